"""Metrics over the rows of one split, exact: counts are integers, ranks are whole, sums float64.

The formulas are scikit-learn's; a class that is neither present nor predicted is left out of a
macro average (its ``zero_division=nan``). None stands for what is not defined: an empty split, the
ROC-AUC of a single class. torchmetrics squeezes logits through a float32 sigmoid before it ranks
them, which makes ties that are not there, so ranking is done here; it serves the other metrics.

Legend: N rows of a split, C classes, T targets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from tiergnn.errors import ConfigError, unknown

# Reported always; the first is what validation judges by unless told otherwise. Several labels a
# node: F1 goes by a fixed threshold, where few labels are set untrained scores look best by it.
OURS = {
    "class": ("accuracy", "f1_macro", "f1_micro", "roc_auc"),
    "multilabel": ("roc_auc", "f1_micro", "f1_macro", "accuracy"),
    "real": ("mse", "mae", "r2"),
}
# Computed only when asked for: torchmetrics' functional of that name.
MORE = {
    "class": ("average_precision", "calibration_error", "cohen_kappa", "matthews_corrcoef"),
    "multilabel": ("average_precision", "matthews_corrcoef"),
    "real": ("pearson_corrcoef", "spearman_corrcoef"),
}
_LOWER_IS_BETTER = frozenset({"calibration_error", "loss", "mae", "mse"})


def metric_mode(name: str) -> Literal["max", "min"]:
    return "min" if name in _LOWER_IS_BETTER else "max"


def check_metric(task: str, name: str, num_classes: int | None) -> None:
    """Raise ConfigError unless ``name`` is a metric of the task with so many classes."""
    known = (*_ours(task, num_classes), *MORE[task], "loss")
    if name not in known:
        raise unknown(f"metric of a {task} task", name, known)


def _ours(task: str, num_classes: int | None) -> tuple[str, ...]:
    """The metrics of ``OURS`` that are reported: a ROC-AUC of classes is one of two classes."""
    left_out = "roc_auc" if task == "class" and num_classes != 2 else None
    return tuple(name for name in OURS[task] if name != left_out)


def compute(task: str, out: Tensor, y: Tensor, num_classes: int | None) -> dict[str, float | None]:
    """Every metric of ``OURS`` of the task; rows without a label must have been left out.

    class: out [N, C], y int64 [N] in 0..C-1; roc_auc only of two classes. multilabel: out logits
    [N, C], y [N, C] of 0, 1 and -1 (left out). real: out and y [N, T], NaN in y left out.
    """
    if task == "class":
        return _class(out, y, num_classes)
    return _multilabel(out, y) if task == "multilabel" else _real(out, y)


def compute_more(name: str, task: str, out: Tensor, y: Tensor) -> float | None:
    """One metric of ``MORE``, by torchmetrics; None without rows.

    Raises ConfigError for an unknown entry of a multilabel or real y, which torchmetrics has no
    way to leave out.
    """
    import torchmetrics.functional as functional

    if not y.shape[0]:
        return None
    if task == "class":
        import torchmetrics.functional.classification as of_class

        measure = getattr(of_class, f"multiclass_{name}")
        return _number(measure(out.softmax(dim=1), y, num_classes=out.shape[1]))
    if bool((y < 0).any() if task == "multilabel" else y.isnan().any()):
        raise ConfigError(
            f"{name} needs every entry of a labelled node to be known",
            hint="one of " + ", ".join(OURS[task]),
        )
    if task == "multilabel":
        import torchmetrics.functional.classification as of_class

        measure = getattr(of_class, f"multilabel_{name}")
        return _number(measure(out.double().sigmoid(), y.long(), num_labels=out.shape[1]))
    measure: Callable[..., Any] = getattr(functional, name)
    return _number(measure(out.double(), y.double()).mean())


def roc_auc(score_N: Tensor, positive_N: Tensor) -> float | None:
    """The chance that a positive scores above a negative, ties counting half; None without both.

    The Mann-Whitney count over groups of equal scores, in integers.
    """
    order = torch.argsort(score_N)
    score, positive = score_N[order], positive_N[order].long()
    num_pos = int(positive.sum())
    num_neg = positive.numel() - num_pos
    if not num_pos or not num_neg:
        return None
    last = torch.ones_like(score, dtype=torch.bool)  # the last of each group of equal scores
    last[:-1] = score[1:] != score[:-1]
    ends = torch.nonzero(last).flatten()
    pos_until = positive.cumsum(0)[ends]
    neg_until = ends + 1 - pos_until
    zero = pos_until.new_zeros(1)
    pos, neg = pos_until.diff(prepend=zero), neg_until.diff(prepend=zero)
    twice_wins = int((pos * (2 * neg_until - neg)).sum())
    return twice_wins / (2 * num_pos * num_neg)


def _class(out: Tensor, y: Tensor, num_classes: int | None) -> dict[str, float | None]:
    count = y.numel()
    if not count:
        return dict.fromkeys(_ours("class", num_classes))
    predicted = out.argmax(dim=1)
    right = predicted == y
    num_columns = out.shape[1]
    hit = torch.bincount(y[right], minlength=num_columns)
    actual = torch.bincount(y, minlength=num_columns)
    given = torch.bincount(predicted, minlength=num_columns)
    accuracy = int(hit.sum()) / count
    metrics = {
        "accuracy": accuracy,
        "f1_macro": _macro_f1(hit, actual + given),
        "f1_micro": accuracy,  # one label and one prediction a node: both are the share of hits
    }
    if num_classes == 2:
        score = out[:, 1].double() - out[:, 0].double()
        metrics["roc_auc"] = roc_auc(score, y == 1)
    return metrics


def _multilabel(out: Tensor, y: Tensor) -> dict[str, float | None]:
    known, actual, given = y >= 0, y == 1, out > 0
    given = given & known
    hit = (given & actual).sum(dim=0)
    total = actual.sum(dim=0) + given.sum(dim=0)
    num_known = int(known.sum())
    # One column at a time: its unknown entries are its own.
    areas = [roc_auc(out[known[:, c], c], actual[known[:, c], c]) for c in range(y.shape[1])]
    defined = [area for area in areas if area is not None]
    return {
        "f1_micro": 2 * int(hit.sum()) / int(total.sum()) if int(total.sum()) else None,
        "f1_macro": _macro_f1(hit, total),
        "roc_auc": sum(defined) / len(defined) if defined else None,
        "accuracy": int((known & (given == actual)).sum()) / num_known if num_known else None,
    }


def _macro_f1(hit: Tensor, total: Tensor) -> float | None:
    """Mean over classes of 2 TP / (2 TP + FP + FN), ``total`` [C] being that denominator."""
    defined = total > 0
    if not bool(defined.any()):
        return None
    f1 = 2 * hit[defined].double() / total[defined].double()
    return float(f1.mean())


def _real(out: Tensor, y: Tensor) -> dict[str, float | None]:
    known = ~y.isnan()
    num_known = int(known.sum())
    if not num_known:
        return dict.fromkeys(OURS["real"])
    y = y.double()
    error = torch.where(known, out.double() - y, 0.0)
    targets = [_r2(error[:, t][known[:, t]], y[:, t][known[:, t]]) for t in range(y.shape[1])]
    defined = [target for target in targets if target is not None]
    return {
        "mse": float(error.square().sum()) / num_known,
        "mae": float(error.abs().sum()) / num_known,
        "r2": sum(defined) / len(defined) if defined else None,
    }


def _r2(error_N: Tensor, y_N: Tensor) -> float | None:
    """1 - residual / total sum of squares of one target; None when the target is constant."""
    if not y_N.numel():
        return None
    spread = y_N - y_N.mean()
    total = float(spread.square().sum())
    return 1 - float(error_N.square().sum()) / total if total else None


def _number(value: Tensor) -> float | None:
    number = float(value)
    return number if number == number else None

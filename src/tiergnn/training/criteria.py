"""What training makes small: a loss of the labelled rows of a split.

Legend: N labelled rows of a split, C classes, T targets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tiergnn.errors import ConfigError, unknown

Criterion = Callable[[Tensor, Tensor], Tensor]
# The first is the default of the task.
CRITERIA = {
    "class": ("cross_entropy", "nll"),
    "multilabel": ("bce",),
    "real": ("mse", "mae", "huber"),
}


def make_criterion(
    task: str, choice: Any, class_weight: Any, y: Tensor, num_classes: int | None
) -> Criterion:
    """``criterion(out_rows, y_rows) -> scalar``, by name, by task, or the caller's own.

    class: out [N, C], y int64 [N]; multilabel: out and y [N, C], y of 0, 1 and -1 (left out);
    real: out and y [N, T], NaN in y left out. ``class_weight`` "balanced" is taken from ``y``, the
    labels of the training split. Raises ConfigError.
    """
    if callable(choice):
        own: Any = choice
        return own
    name = CRITERIA[task][0] if choice is None else choice
    if name not in CRITERIA[task]:
        raise unknown(f"criterion of a {task} task", name, CRITERIA[task])
    if task == "real":
        if class_weight is not None:
            raise ConfigError("class_weight goes with classes, the task is real")
        return _masked_real({"mse": F.mse_loss, "mae": F.l1_loss, "huber": F.huber_loss}[name])
    assert num_classes is not None
    weight_C = class_weights(task, class_weight, y, num_classes)
    if task == "multilabel":
        return lambda out, rows: _masked_bce(out, rows, weight_C)
    loss = F.cross_entropy if name == "cross_entropy" else F.nll_loss
    return _mean_of_rows(loss, weight_C)


def class_weights(task: str, choice: Any, y: Tensor, num_classes: int) -> Tensor | None:
    """float64 [C] or None.

    "balanced", class: N / (C * count), as in scikit-learn (1 for a class without rows);
    multilabel: the weight of positives, negatives / positives (1 where there are none).
    Raises ConfigError.
    """
    if choice is None:
        return None
    if isinstance(choice, str):
        if choice != "balanced":
            raise unknown("class_weight", choice, ("balanced", "one number a class"))
        if task == "class":
            count = torch.bincount(y, minlength=num_classes).double()
            weight = y.numel() / (int((count > 0).sum()) * count)
        else:
            count = (y == 1).sum(dim=0).double()
            weight = (y == 0).sum(dim=0).double() / count
        return torch.where(count > 0, weight, 1.0)
    weight = torch.as_tensor(choice, dtype=torch.float64).to(y.device)
    counts = bool((weight >= 0).all() and weight.isfinite().all() and (weight > 0).any())
    if weight.shape != (num_classes,) or not counts:
        raise ConfigError(
            f"class_weight needs {num_classes} numbers of 0 or more, not all 0, "
            f"had {weight.tolist()}"
        )
    return weight


def _mean_of_rows(loss: Callable[..., Tensor], weight_C: Tensor | None) -> Criterion:
    """The mean that ``loss`` is by itself, over all cores: torch has one work through the rows."""

    def mean(out: Tensor, y: Tensor) -> Tensor:
        if weight_C is None:
            return loss(out, y, reduction="none").mean()
        weight = weight_C.to(out.dtype)
        return loss(out, y, weight=weight, reduction="none").sum() / weight[y].sum()

    return mean


def _masked_bce(out: Tensor, y: Tensor, weight_C: Tensor | None) -> Tensor:
    known = y >= 0
    loss = F.binary_cross_entropy_with_logits(
        out,
        y.clamp(min=0).to(out.dtype),
        pos_weight=None if weight_C is None else weight_C.to(out.dtype),
        reduction="none",
    )
    return torch.where(known, loss, 0.0).sum() / known.sum()


def _masked_real(elementwise: Callable[..., Tensor]) -> Criterion:
    def loss(out: Tensor, y: Tensor) -> Tensor:
        known = ~y.isnan()
        each = elementwise(out, torch.where(known, y, out.detach()), reduction="none")
        return torch.where(known, each, 0.0).sum() / known.sum()

    return loss

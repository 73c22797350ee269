"""Scoring: the labels of the splits on the device, and what an output is worth against them.

Legend: V nodes, N labelled rows of a split, C classes, T targets.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tiergnn.errors import ConfigError
from tiergnn.graph.csr import Graph
from tiergnn.kernels.gather import gather
from tiergnn.runtime.asked import among
from tiergnn.training.criteria import class_weights, make_criterion
from tiergnn.training.metrics import MORE, OURS, check_metric, compute, compute_more, metric_mode
from tiergnn.training.options import Options
from tiergnn.training.splits import judged_nodes, labelled, training_nodes

_log = logging.getLogger("tiergnn")
Mode = Literal["max", "min"]
NO_CRITERION = "no criterion"  # scores carry no loss
Scores = dict[str, float | None]


@dataclass(frozen=True, slots=True)
class _Rows:
    """The labelled nodes of a split and their labels, on the device."""

    ids: Tensor  # int64 [N]
    y: Tensor  # int64 [N]; int8 [N, C]; float [N, T]


class Scoring:
    """Losses and metrics of a model's output over named splits: of all nodes [V, C], or of those
    that are ``judged_nodes`` alone, in their order."""

    def __init__(
        self,
        graph: Graph,
        splits: Mapping[str, np.ndarray],
        device: torch.device,
        *,
        criterion: Any = None,
        class_weight: Any = None,
        metric: Any = None,
        mode: Mode | None = None,
        weighed: np.ndarray | None = None,
    ):
        """weighed: the nodes that ``class_weight`` "balanced" counts, else those of "train"."""
        if graph.y is None or graph.task is None:
            raise ConfigError("the graph has no labels y to train on or to be judged by")
        self.task, self.num_classes = graph.task, graph.num_classes
        self.mode: Mode
        self.metric, self.metric_name, self.mode = _judge(graph, metric, mode)
        has_label = labelled(graph)
        self._num_nodes = graph.num_nodes
        self.judged_nodes = torch.from_numpy(judged_nodes(graph, splits))  # in host memory
        self._rows = {
            name: _Rows(
                torch.from_numpy(ids[has_label[ids]]).to(device),
                _labels(graph, ids[has_label[ids]]).to(device),
            )
            for name, ids in splits.items()
        }
        weigh = self._rows.get("train", next(iter(self._rows.values()))).y
        if weighed is not None:
            weigh = _labels(graph, weighed[has_label[weighed]]).to(device)
        self._own_criterion = callable(criterion)
        self._row_weight = None  # of a row's class in the mean over rows, where they differ
        if graph.task == "class" and class_weight is not None:
            assert graph.num_classes is not None
            self._row_weight = class_weights(graph.task, class_weight, weigh, graph.num_classes)
        self._criterion = None
        if criterion is not NO_CRITERION:
            self._criterion = make_criterion(
                graph.task, criterion, class_weight, weigh, graph.num_classes
            )

    def loss(self, out: Tensor, split: str = "train") -> Tensor:
        """The criterion over the labelled rows of a split, a scalar. Raises ConfigError."""
        rows = self._rows[split]
        assert self._criterion is not None
        ids = self._where(out, rows)
        values = _select(out, ids) if self._own_criterion else self._outputs(out, ids)
        loss = self._criterion(values, self._target(rows.y, values))
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise ConfigError(
                f"criterion(out_rows, y_rows) must give one number, gave {_shape(loss)}"
            )
        return loss.reshape(())

    def by_parts(
        self, parts: Sequence[Tensor] | Mapping[int, Tensor], device: torch.device
    ) -> Callable[[Tensor, int], Tensor]:
        """``share(out, part)``: what a part's output rows [P, ...] on ``device`` add to the loss of
        the training split. Its nodes are ``parts[part]``, ascending; a mapping has the parts that
        are here.

        A part's mean counts as much as its labels do among all. Raises ConfigError for a criterion
        of the caller's that is no sum over rows.
        """
        if self._own_criterion and getattr(self._criterion, "reduction", None) != "sum":
            raise ConfigError(
                "a criterion of your own sees all labelled rows at once, and a plan in parts has "
                "those of one part at a time",
                hint="criterion by name, one with reduction='sum', or strategies=['resident']",
            )
        rows = self._rows["train"]
        total = self._norm(rows.y)
        mine: dict[int, tuple[Tensor, Tensor, float]] = {}
        here = parts if isinstance(parts, Mapping) else dict(enumerate(parts))
        for number, gid in here.items():
            local, places = among(rows.ids, gid.to(rows.ids.device))
            y = rows.y[places]
            norm = self._norm(y)
            part_of = 1.0 if self._own_criterion else norm / total if total else 0.0
            mine[number] = local.to(device), y.to(device), part_of

        def share(out: Tensor, part: int) -> Tensor:
            local, y, weight = mine[part]
            if not local.numel() or weight == 0.0:
                return out[:0].sum()
            values = _select(out, local) if self._own_criterion else self._outputs(out, local)
            assert self._criterion is not None
            loss: Any = self._criterion(values, self._target(y, values))
            return loss * weight

        return share

    def _norm(self, y: Tensor) -> float:
        """What the mean over rows with these labels divides their sum by."""
        if self.task == "multilabel":
            return float((y >= 0).sum())
        if self.task == "real":
            return float((~y.isnan()).sum())
        return float(y.numel() if self._row_weight is None else self._row_weight[y].sum())

    def scores(self, out: Tensor) -> dict[str, Scores]:
        """split -> metric -> value, "loss" among them; None where undefined."""
        return {name: self._score(out, name) for name in self._rows}

    def check_weights(self) -> None:
        """Raise ConfigError where no class of the training split counts; warn of other splits."""
        for name, rows in self._rows.items():
            if not rows.ids.numel() or not self._weightless(rows):
                continue
            *some, last = map(str, rows.y.unique().tolist())
            classes = ", ".join([*some[:5], *(["..."] if some[5:] else []), last])
            if name == "train":
                raise ConfigError(
                    f"class_weight is 0 for every class of the training split: {classes}",
                    hint="a weight above 0 for one of them (--class-weight)",
                )
            _log.warning(
                "class_weight is 0 for every class of split %s (%s): its loss is n/a", name, classes
            )

    def _weightless(self, rows: _Rows) -> bool:
        """Whether labels all weigh 0, so that their weighted mean is none."""
        return self._row_weight is not None and not bool(self._row_weight[rows.y].any())

    def judged(self, split: str) -> bool:
        """Whether the split has labelled rows to judge by."""
        return split in self._rows and self._rows[split].ids.numel() > 0

    def _score(self, out: Tensor, split: str) -> Scores:
        rows = self._rows[split]
        empty = not rows.ids.numel()
        ids = self._where(out, rows)
        values = self._outputs(out, ids)
        known = self._criterion is not None and not (empty or self._weightless(rows))
        scores: Scores = {"loss": float(self.loss(out, split)) if known else None}
        scores |= compute(self.task, values, rows.y, self.num_classes)
        if callable(self.metric):
            own: Any = None
            if not empty:
                values = _select(out, ids)
                own = self.metric(values, self._target(rows.y, values))
            scores[self.metric_name] = None if own is None else float(own)
        elif self.metric_name in MORE[self.task]:
            scores[self.metric_name] = compute_more(self.metric_name, self.task, values, rows.y)
        return scores

    def _where(self, out: Tensor, rows: _Rows) -> Tensor:
        """Which rows of the output are those of a split."""
        if len(out) == self._num_nodes:
            return rows.ids
        return torch.searchsorted(self.judged_nodes.to(rows.ids.device), rows.ids)

    def _outputs(self, out: Tensor, ids: Tensor) -> Tensor:
        """Rows of the output as [N, C]: one logit of two classes becomes the pair (0, logit)."""
        rows = _select(out, ids)
        if rows.dim() == 1:
            rows = rows[:, None]
        if self.task == "class" and self.num_classes == 2 and rows.shape[1] == 1:
            return torch.cat([torch.zeros_like(rows), rows], dim=1)
        return rows

    def _target(self, y: Tensor, out: Tensor) -> Tensor:
        """Labels as a criterion wants them: classes, or floats in the shape of the output."""
        if self.task == "class":
            return y
        return (y[:, 0] if out.dim() == 1 else y).to(out.dtype)

    def check_output(self, out: Tensor, num_nodes: int) -> None:
        """Raise ConfigError unless ``out`` has a row a node and a column a class or target."""
        width = out.shape[1] if out.dim() == 2 else 1
        wanted = self._rows[next(iter(self._rows))].y.shape[-1] if self.task == "real" else 0
        wanted = self.num_classes or wanted
        fits = width == wanted
        if self.task == "class":
            fits = width >= wanted or (wanted == 2 and width == 1)
        if out.dim() not in (1, 2) or out.shape[0] != num_nodes or not fits:
            raise ConfigError(
                f"the model gives {list(out.shape)}; "
                f"{num_nodes} nodes of a {self.task} task need [{num_nodes}, {wanted}]",
                hint=f"out_channels={wanted}",
            )


def scoring_of(
    graph: Graph, splits: Mapping[str, np.ndarray], device: torch.device, options: Options
) -> Scoring:
    """As ``options`` have it, of outputs on ``device``. Raises ConfigError."""
    weighed = None
    if isinstance(options.class_weight, str) and "train" not in splits:
        weighed = training_nodes(graph, options.split, options.seed)
    scoring = Scoring(
        graph,
        splits,
        device,
        criterion=options.criterion,
        class_weight=options.class_weight,
        metric=options.metric,
        mode=options.metric_mode,
        weighed=weighed,
    )
    scoring.check_weights()
    return scoring


def _judge(graph: Graph, metric: Any, mode: Mode | None) -> tuple[Any, str, Mode]:
    """The metric that validation judges by, its name, and which way is better."""
    if callable(metric):
        name = getattr(metric, "__name__", type(metric).__name__)
        assert mode is not None
        return metric, name if name.isidentifier() else "metric", mode
    assert graph.task is not None
    name = OURS[graph.task][0] if metric is None else metric
    check_metric(graph.task, name, graph.num_classes)
    return name, name, metric_mode(name)


def _labels(graph: Graph, ids: np.ndarray) -> Tensor:
    assert graph.y is not None
    y = np.asarray(graph.y[ids])
    if graph.task == "class":
        return torch.from_numpy(y.astype(np.int64).reshape(-1))
    return torch.from_numpy(np.ascontiguousarray(y.reshape(ids.size, -1)))


class _Select(torch.autograd.Function):
    """``index_select``, by our kernel: torch's takes as long for narrow rows as for wide ones on a
    GPU, ten times what their bytes need."""

    @staticmethod
    def forward(ctx: Any, out_ND: Tensor, ids: Tensor) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.num_rows = out_ND.shape[0]
        return gather(out_ND.detach(), ids)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (ids,) = ctx.saved_tensors
        total = grad.new_zeros(ctx.num_rows, *grad.shape[1:])
        return total.index_add_(0, ids, grad), None


def _select(out: Tensor, ids: Tensor) -> Tensor:
    """Rows of the output; half-precision ones as float32, in which losses and metrics are made."""
    ours = out.is_cuda and out.dim() == 2
    rows: Tensor = _Select.apply(out, ids) if ours else out.index_select(0, ids)
    return rows.float() if rows.dtype.itemsize < 4 else rows


def _shape(value: Any) -> str:
    return f"a tensor {list(value.shape)}" if isinstance(value, Tensor) else f"{value!r}"

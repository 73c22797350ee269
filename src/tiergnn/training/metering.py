"""The workload of a training run as the trainer will do it: its model, features, loss, optimizer.

Legend: V nodes, N labelled ones, C classes, T targets.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor, nn
from torch.optim import Optimizer

from tiergnn.graph.csr import Graph
from tiergnn.models.ending import Ending
from tiergnn.models.meter import meter
from tiergnn.models.trace import trace
from tiergnn.training.assemble import pick_device
from tiergnn.training.examples import dtype_of, example_rows
from tiergnn.training.features import choose_features
from tiergnn.training.loop import LR, WEIGHT_DECAY, clip_norm
from tiergnn.training.optimizers import make_optimizer, needs_closure
from tiergnn.training.options import Options
from tiergnn.training.randomness import random_state
from tiergnn.training.scoring import Scoring
from tiergnn.workload import Workload


def workload_of(
    graph: Graph,
    model: nn.Module,
    options: Options,
    *,
    training: bool = True,
    prepared: bool = False,
) -> Workload:
    """What a step (or, training=False, an evaluation) of ``model`` on graphs like this one takes.

    Of the graph only its dtypes, widths, a few rows and whether it has self-loops are read.
    ``prepared``: rows that the graph and its features alone decide are inputs.
    Raises ConfigError for a model that cannot be cut, or options that do not fit.
    """
    device = pick_device(options.device)
    dtype = dtype_of(model, options.dtype)
    features = choose_features(graph, options.features)
    inputs = example_rows(graph, features.width, device, dtype)
    ending = None
    if graph.y is not None:
        ending = Ending(
            loss=_losses(graph, options, device, training),
            optimizer=lambda params: _optimizer(params, options),
            update=_updates(options),
        )
    found = meter(
        model,
        inputs,
        training=training,
        learned=features.kind == "embedding",
        loops=has_loops(graph),
        prepared=prepared and features.kind != "embedding",
        ending=ending,
    )
    return replace(found, label_bytes=0 if device.type == "cpu" else _label_bytes(graph))


def _label_bytes(graph: Graph) -> int:
    """Of a labelled node's label and its id, as ``Scoring`` holds them."""
    if graph.y is None:
        return 0
    y = np.asarray(graph.y[:1])
    return 8 + (8 if graph.task == "class" else y.nbytes)


def prepares(graph: Graph, model: nn.Module, options: Options) -> bool:
    """Whether a training has rows that the graph and its features alone decide."""
    device, dtype = pick_device(options.device), dtype_of(model, options.dtype)
    features = choose_features(graph, options.features)
    if features.kind == "embedding":
        return False
    inputs = example_rows(graph, features.width, device, dtype)
    model = copy.deepcopy(model).to(device, dtype)
    return bool(trace(model, inputs, training=True, prepared=True).prepared)


def evaluation_of(graph: Graph, model: nn.Module, options: Options) -> Workload:
    """What an evaluation of the model by itself takes: its output, and no more."""
    device, dtype = pick_device(options.device), dtype_of(model, options.dtype)
    width = choose_features(graph, options.features).width
    return meter(model, example_rows(graph, width, device, dtype), training=False)


def settle(graph: Graph, model: nn.Module, options: Options) -> None:
    """Give lazy parameters their sizes and first values, those that training here would."""
    if not any(nn.parameter.is_lazy(p) for p in (*model.parameters(), *model.buffers())):
        return
    device = pick_device(options.device)
    dtype = dtype_of(model, options.dtype)
    features = choose_features(graph, options.features)
    with random_state(device, options.seed):
        trace(
            model.to(device, dtype),
            example_rows(graph, features.width, device, dtype),
            training=True,
        )


def has_loops(graph: Graph) -> bool:
    """Whether some edge goes from a row to itself."""
    return bool(_first_loop(np.asarray(graph.rowptr), np.asarray(graph.col)) >= 0)


@njit
def _first_loop(rowptr, col):
    """The first edge that is a loop; -1: none is."""
    for row in range(rowptr.size - 1):
        for e in range(rowptr[row], rowptr[row + 1]):
            if col[e] == row:
                return e
    return -1


def _losses(
    graph: Graph, options: Options, device: torch.device, training: bool
) -> Callable[[int, int], Callable[[Tensor], Any]]:
    """The trainer's loss of N labelled rows of V, or all that an evaluation makes of them."""

    def of(num_rows: int, num_labelled: int) -> Callable[[Tensor], Any]:
        labels = _labels(graph, num_rows)
        small = Graph(
            rowptr=np.zeros(num_rows + 1, np.int64), col=np.zeros(0, np.int32), y=labels,
            num_classes=graph.num_classes, task=graph.task,
        )  # fmt: skip
        split = "train" if training else "all"
        scoring = Scoring(
            small,
            {split: np.arange(num_labelled)},
            device,
            criterion=options.criterion,
            class_weight=options.class_weight,
            metric=options.metric,
            mode=options.metric_mode,
        )
        return scoring.loss if training else scoring.scores

    return of


def _labels(graph: Graph, num_rows: int) -> np.ndarray:
    """Labels like the graph's, of any number of nodes, all classes among them."""
    assert graph.y is not None
    if graph.task == "class":
        return np.arange(num_rows, dtype=np.int64) % (graph.num_classes or 1)
    labels = np.zeros((num_rows, *graph.y.shape[1:]), graph.y.dtype)
    labels[::2] = 1
    return labels


def _optimizer(parameters: list[nn.Parameter], options: Options) -> Optimizer:
    """One like the trainer's; of an optimizer object its class and options."""
    choice = options.optimizer
    if isinstance(choice, Optimizer):
        return type(choice)(parameters, **choice.defaults)
    lr = LR if options.lr is None else options.lr
    decay = WEIGHT_DECAY if options.weight_decay is None else options.weight_decay
    return make_optimizer(choice, nn.ParameterList(parameters), [], lr, decay)


def _updates(
    options: Options,
) -> Callable[[Optimizer, list[nn.Parameter], Callable[[], float]], None]:
    """The end of ``Trainer._step``."""

    def update(
        optimizer: Optimizer, parameters: list[nn.Parameter], closure: Callable[[], float]
    ) -> None:
        def clipped() -> float:
            loss = closure()
            if options.clip is not None:
                clip_norm(parameters, options.clip)
            return loss

        if not needs_closure(optimizer):
            clipped()
        if needs_closure(optimizer):
            optimizer.step(clipped)  # pyright: ignore[reportArgumentType]
        else:
            optimizer.step()

    return update

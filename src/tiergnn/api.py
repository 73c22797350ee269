"""What users call: plan, train, resume, evaluate, predict; the Plan and the Run that come of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tiergnn.errors import ConfigError
from tiergnn.training.options import Options
from tiergnn.units import parse_bytes

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import nn

    from tiergnn.graph.csr import Graph
    from tiergnn.graph.partition import Partition
    from tiergnn.graph.shape import GraphShape
    from tiergnn.hardware.machine import Machine
    from tiergnn.planner.plan import Plan
    from tiergnn.training.run import Run
    from tiergnn.workload import Workload


def plan(
    graph: Graph | GraphShape | str | Path | Any,
    model: nn.Module | Workload | str | Path | Mapping[str, Any],
    *,
    device_memory: str | int | None = None,
    host_memory: str | int | None = None,
    disk: str | Path | None = None,
    machine: Machine | str | Path | None = None,
    ranks: int = 1,
    partition: str | Path | Partition | None = None,
    strategies: Sequence[str] = (),
    storage: Sequence[str] = (),
    hot_frac: float | None = None,
    optimizer: str | Callable[..., Any] | torch.optim.Optimizer = "adam",
    criterion: str | Callable[..., Any] | None = None,
    split: str | int | Mapping[str, Any] | None = None,
    features: str = "auto",
    prepare: bool | None = None,
    device: str = "auto",
    dtype: str | None = None,
    seed: int = 0,
) -> Plan:
    """How to train ``model`` on ``graph``: whether it fits, what lies where, how long it takes.

    graph and model are those of ``train``. graph may also be a GraphShape (or its JSON file, or the
    name of a published one: "products", "papers100M"): counts and degrees of a graph that is not
    here. model may also be a Workload or its JSON file; then torch is not needed.
    device_memory, host_memory: the most to hold there ("8GiB"), at most what there is. disk: the
    folder whose disk may be used; None uses none. machine: this host as measured (up to 20 s, then
    remembered), a Machine, its JSON file, or a preset ("h200", "a100x8-pcie").
    ranks: devices that train together; of this machine any number, which then share what it has.
    partition: a part for each of them: a Partition, the name or the path of a saved one, or a
    method ("block", "metis", "switching", "auto"); by default one that is saved with the graph,
    else "auto". strategies: only these are tried. storage: dtypes that rows may have off the device
    ("bfloat16"), which gives up exactness. hot_frac: the share of all rows, those that most parts
    read, that stays on the device beside the parts of grinnder; 0: none, None: what pays is looked
    for. The rest as for ``train``.

    The fastest plan that fits. ``print(plan)`` shows bytes by tier and kind and predicted seconds;
    ``plan.save(path)`` keeps it. Raises PlanError where none fits, with the least that would do;
    ConfigError, GraphError and StoreError as train does.
    """
    from tiergnn.planner.choose import best
    from tiergnn.training.planning import Budgets, question

    options = Options(
        optimizer=optimizer,
        criterion=criterion,
        split=split,
        features=features,
        prepare=prepare,
        device=device,
        dtype=dtype,
        seed=seed,
    )
    budgets = Budgets(
        device_bytes=None if device_memory is None else parse_bytes(device_memory),
        host_bytes=None if host_memory is None else parse_bytes(host_memory),
        disk=disk,
    )
    asked = question(
        graph,
        model,
        options,
        machine=machine,
        budgets=budgets,
        ranks=ranks,
        parts=partition,
        storage=_names("storage", storage),
        hot_frac=hot_frac,
    )
    return best(
        asked.trials(_names("strategies", strategies)), has_disk=asked.machine.disk is not None
    )


def train(
    graph: Graph | str | Path | Any,
    model: nn.Module | str | Mapping[str, Any],
    plan: Plan | str | Path | None = None,
    *,
    partition: str | Path | Partition | None = None,
    epochs: int = 200,
    out: str | Path | None = None,
    optimizer: str | Callable[..., Any] | torch.optim.Optimizer = "adam",
    lr: float | None = None,
    weight_decay: float | None = None,
    scheduler: str | Callable[..., Any] | None = None,
    criterion: str | Callable[..., Any] | None = None,
    class_weight: str | Any | None = None,
    split: str | int | Mapping[str, Any] | None = None,
    metric: str | Callable[..., Any] | None = None,
    metric_mode: Literal["max", "min"] | None = None,
    patience: int | None = None,
    clip: float | None = None,
    eval_every: int = 1,
    features: str = "auto",
    prepare: bool | None = None,
    capture: bool = True,
    normalize_features: str | None = None,
    seed: int = 0,
    device: str = "auto",
    dtype: str | None = None,
    device_memory: str | int | None = None,
    checkpoint_every: int | None = None,
    tensorboard: bool = False,
    transport: str | None = None,
    timeout: float = 120.0,
    progress: bool | Callable[[dict[str, Any]], None] = True,
    overwrite: bool = False,
) -> Run:
    """Train ``model`` on ``graph``, all of it at every step, and keep the best-validation weights.

    graph is a Graph, the path of a graph folder, or a PyG Data. model is a module written for PyG
    (``forward(x, edge_index, ...)``; trained in place, left on ``device`` with its best weights),
    the name of a ready model ("gcn"), or a mapping of its name and options
    (``{"name": "gcn", "hidden_channels": 16}``); the latter two start from ``seed``.

    plan: what ``plan`` made for this graph and model, or the file that it was saved in; by default
    everything is held on the device, and every stage keeps what its backward reads.
    A plan of several ranks starts them, as processes on this host that are gone when this returns;
    models, criteria and so on are then to be importable, and a script calls this under
    ``if __name__ == "__main__":``. partition: their parts, as for ``plan``. transport: how ranks
    reach each other ("shared", "gloo", "nccl", "ipc", "symmetric", or "virtual": as threads of this
    process); None: the best that works here. timeout: seconds in which a job ends when a rank of it
    hangs (when one dies, in a few); longer than any rank computes or writes without the others.
    out: the run folder (log, checkpoints, result); None keeps nothing on disk.
    optimizer: a name, ``callable(params) -> Optimizer``, or an Optimizer. lr (0.01) and
    weight_decay (0; not of learned rows) go with names only. scheduler: a name or
    ``callable(optimizer)``; steps once an epoch; one that wants a metric gets validation's.
    criterion: a name or ``callable(out_rows, y_rows)`` over the labelled rows of a split; by
    default cross entropy (class), binary cross entropy of logits (multilabel; -1 is left out) or
    mean squared error (real; NaN is left out). Models that end in log_softmax need no change: cross
    entropy of log-probabilities is their negative log-likelihood. class_weight: "balanced", or one
    weight a class.
    split: which splits to use; a number K for train.K, val.K, test.K; "random:0.6/0.2/0.2";
    "planetoid:20/500/1000"; "...@SEED" fixes their seed; or a mapping of names to ids or masks.
    metric: what validation judges by (accuracy; of several labels a node roc_auc; of real targets
    mse), a name or ``callable(out_rows, y_rows) -> float`` with
    metric_mode "max" or "min". patience: epochs without a better validation metric before stopping.
    clip: largest norm of all gradients together. eval_every: epochs between evaluations.
    features: "auto" (the stored ones, else "degree"), "stored", "degree", "constant", "onehot",
    "embedding:WIDTH" (learned rows). normalize_features: "row" divides each
    row by the sum of its absolute values. prepare: what the model makes of the graph and its
    features alone, before any parameter or dropout (a first aggregation, the hops of an SGC), is
    made once and held; False makes it at every step, which takes less memory. None: where there is
    room. A ``plan`` has chosen already; False refuses one that prepares. capture: on a GPU that
    does everything, with host memory or without, a step is recorded as a CUDA graph and replayed;
    where it holds everything, that takes as much memory again as a step. Not with a criterion of
    your own, where there is no room, nor in parts for steps of over 5 s. Same bits.
    dtype: "float32", "float64" or "bfloat16"; None is the model's own. device_memory: the most that
    the run may take on its device. checkpoint_every: epochs; None is about every 30 seconds.
    progress: True, False, or a callable that gets each epoch's record.

    Raises ConfigError, GraphError, PlanError (it does not fit), StoreError (the run folder),
    RankError (a rank died or hung), and Interrupted after Ctrl-C or SIGTERM, once a checkpoint is
    written.
    """
    from tiergnn.training.run import start

    options = Options(
        epochs=epochs,
        optimizer=optimizer,
        lr=lr,
        weight_decay=weight_decay,
        scheduler=scheduler,
        criterion=criterion,
        class_weight=class_weight,
        split=split,
        metric=metric,
        metric_mode=metric_mode,
        patience=patience,
        clip=clip,
        eval_every=eval_every,
        features=features,
        prepare=prepare,
        capture=capture,
        normalize_features=normalize_features,
        seed=seed,
        device=device,
        dtype=dtype,
        device_memory=device_memory,
        checkpoint_every=checkpoint_every,
        tensorboard=tensorboard,
        transport=transport,
        timeout=timeout,
    )
    return start(
        graph,
        model,
        options,
        plan=_plan(plan),
        parts=partition,
        out=out,
        progress=progress,
        overwrite=overwrite,
    )


def _plan(plan: Plan | str | Path | None) -> Plan | None:
    from tiergnn.planner.plan import Plan

    if not isinstance(plan, Plan | str | Path | None):
        raise ConfigError(f"plan must be a Plan or its file, had {plan!r}", hint="tiergnn.plan")
    return Plan.load(plan) if isinstance(plan, str | Path) else plan


def _names(what: str, names: Sequence[str]) -> tuple[str, ...]:
    """Raises ConfigError for what is no list of names; one name is none."""
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise ConfigError(
            f"{what} must be a list of names, had {names!r}", hint=f"{what}=[{str(names)!r}]"
        )
    return tuple(names)


def resume(
    run_dir: str | Path,
    graph: Graph | str | Path | Any | None = None,
    model: nn.Module | None = None,
    *,
    epochs: int | None = None,
    ranks: int | None = None,
    partition: str | Path | Partition | None = None,
    transport: str | None = None,
    optimizer: Callable[..., Any] | torch.optim.Optimizer | None = None,
    scheduler: Callable[..., Any] | None = None,
    criterion: Callable[..., Any] | None = None,
    metric: Callable[..., Any] | None = None,
    device: str | None = None,
    progress: bool | Callable[[dict[str, Any]], None] = True,
) -> Run:
    """Continue a run from its newest sound checkpoint, bit for bit as if it had never stopped.

    It computes on as many threads as it was begun on. A ready model on a graph folder needs only
    ``run_dir``. Whatever else was given to train as a Python object (graph, model, optimizer,
    scheduler, criterion, metric) is given again, and checked against what was recorded. epochs: a
    new total. A finished run is returned as it is. ranks: go on over so many (1: on one device),
    which gives the same numbers up to the order of sums; partition, transport as for ``train``.
    Raises ConfigError, StoreError, and all that train raises.
    """
    from tiergnn.training.run import restart

    given = {
        "optimizer": optimizer,
        "scheduler": scheduler,
        "criterion": criterion,
        "metric": metric,
    }
    return restart(
        run_dir,
        graph,
        model,
        given=given,
        epochs=epochs,
        device=device,
        progress=progress,
        ranks=ranks,
        parts=partition,
        transport=transport,
    )


def evaluate(
    run_dir: str | Path | Run,
    split: str | None = None,
    *,
    graph: Graph | str | Path | Any | None = None,
    model: nn.Module | None = None,
    criterion: Callable[..., Any] | None = None,
    metric: Callable[..., Any] | None = None,
    device: str | None = None,
    ranks: int | None = None,
) -> dict[str, dict[str, float | None]]:
    """Metrics of a run's best weights, split -> name -> value (None where undefined).

    split: one split by name, or "all" for every labelled node; None gives the run's own splits.
    graph may be another graph with the same features. ranks: that compute (1: one device); None:
    as many as trained, on another graph one. Raises as resume does.
    """
    from tiergnn.training.run import reopen

    given = {"criterion": criterion, "metric": metric}
    opened = reopen(run_dir, graph, model, given=given, device=device, ranks=ranks)
    return opened.evaluate(split)


def predict(
    run_dir: str | Path | Run,
    *,
    kind: str = "logits",
    graph: Graph | str | Path | Any | None = None,
    model: nn.Module | None = None,
    device: str | None = None,
    ranks: int | None = None,
) -> np.ndarray:
    """What a run's best weights say of every node, in the graph's node order.

    kind "logits": the model's output [V, C]; "probabilities" [V, C]; "labels": int64 [V] (class),
    int8 [V, C] (multilabel). A real task has "logits" only: its values [V, T].
    graph may be another graph with the same features. ranks as for ``evaluate``. Raises as resume
    does.
    """
    from tiergnn.training.run import reopen

    return reopen(run_dir, graph, model, device=device, ranks=ranks).predict(kind=kind)

"""Run: a trained model with what it did; and the three ways to come by one.

Legend: V nodes, C classes, T targets.
"""

from __future__ import annotations

import logging
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from tiergnn.errors import ConfigError, StoreError, unknown
from tiergnn.graph.csr import Graph
from tiergnn.planner.plan import Plan
from tiergnn.runtime.executor import Resident
from tiergnn.training.assemble import Held, as_graph, build, fingerprint, model_spec, resident
from tiergnn.training.checkpoint import Checkpoints
from tiergnn.training.crew import Crew
from tiergnn.training.features import choose_features
from tiergnn.training.folder import RunFolder
from tiergnn.training.log import Record
from tiergnn.training.loop import Progress, Trainer, load_weights
from tiergnn.training.optimizers import FIXED_LENGTH
from tiergnn.training.options import Options, check_count
from tiergnn.training.outputs import checked_output, device_of
from tiergnn.training.parting import Parts, parts_by, ranks_of
from tiergnn.training.planning import for_ranks
from tiergnn.training.recorded import (
    compare_text,
    plan_crc32,
    recorded_graph,
    recorded_model,
    recorded_options,
    recorded_plan,
    recorded_timeline,
)
from tiergnn.training.scoring import NO_CRITERION, Scores, scoring_of
from tiergnn.training.splits import choose_splits, labelled
from tiergnn.training.threads import on_threads
from tiergnn.version import __version__

KINDS = ("logits", "probabilities", "labels")
_log = logging.getLogger("tiergnn")


class Run:
    """A model with its best-validation weights (the last ones where there is no validation).

    path: the run folder, or None. model, graph: what was trained and on what. history: a record an
    epoch: epoch, loss (before the step), lr, seconds (of the step) and, where it was evaluated,
    split -> metric -> value and eval_seconds. best_epoch, finished: "epochs", "patience", or None
    for a run that was not trained to its end. peak_bytes: tier -> the most memory taken.
    plan: what it was made by, or None. schedule, timeline: what one training step did, and when
    each action of it ran in the last epoch that was measured (None before any).
    transport: how its ranks reached each other, in words; empty of one.
    """

    def __init__(
        self,
        held: Held | Crew,
        graph: Graph,
        options: Options,
        progress: Progress,
        path: Path | None,
        task: str,
        threads: int,
    ):
        self._resident, self._options, self._task = held, options, task
        self._threads = threads
        self.path, self.model, self.graph = path, held.model, graph
        self.history, self.best_epoch = progress.history, progress.best_epoch
        self.finished = progress.finished
        self.peak_bytes = held.peak_bytes
        self.schedule, self.timeline = held.schedule, held.timeline
        self.plan: Plan | None = None
        self.transport: str = getattr(held, "transport", "")

    def __repr__(self) -> str:
        best = self.metrics.get("test") or self.metrics.get("val") or {}
        told = "".join(f", {k}={v:.4g}" for k, v in best.items() if v is not None)
        where = "" if self.path is None else f", path={str(self.path)!r}"
        return f"Run(epochs={len(self.history)}, best_epoch={self.best_epoch}{where}{told})"

    @property
    def losses(self) -> list[float]:
        """The training loss of every epoch."""
        return [record["loss"] for record in self.history]

    @property
    def metrics(self) -> dict[str, Scores]:
        """split -> metric -> value after the best epoch; None where a metric is undefined."""
        if not self.best_epoch:
            return {}
        record = self.history[self.best_epoch - 1]
        return {name: value for name, value in record.items() if isinstance(value, dict)}

    @property
    def seconds_per_epoch(self) -> float | None:
        """Median of the steps after the first, which also compiles kernels; None before any."""
        seconds = [record["seconds"] for record in self.history]
        return statistics.median(seconds[1:] or seconds) if seconds else None

    def as_dict(self) -> dict[str, Any]:
        """What ``result.json`` and ``train --json`` hold."""
        return {
            "losses": self.losses,
            "metrics": self.metrics,
            "best_epoch": self.best_epoch,
            "epochs": len(self.history),
            "finished": self.finished,
            "seconds_per_epoch": self.seconds_per_epoch,
            "peak_bytes": self.peak_bytes,
            "ranks": 1 if self.plan is None else self.plan.knobs.ranks,
            "predicted": None
            if self.plan is None
            else {
                "strategy": self.plan.strategy,
                "seconds_per_epoch": self.plan.seconds,
                "peak_bytes": self.plan.peak_bytes,
            },
            "run": None if self.path is None else str(self.path),
        }

    def evaluate(self, split: str | None = None) -> dict[str, Scores]:
        """split -> metric -> value of these weights, "loss" among them.

        split: train, val, test, any split stored in the graph, or "all" for every labelled node;
        None gives those of the run. Raises ConfigError.
        """
        options = self._options
        if split == "all":
            splits = {"all": np.flatnonzero(labelled(self.graph))}
        elif split is not None and split in self.graph.splits:
            splits = {split: np.asarray(self.graph.splits[split])}
        else:
            splits = choose_splits(self.graph, options.split, options.seed)
            known = (*splits, *self.graph.splits, "all")
            if split is not None and split not in splits:
                raise unknown("split", split, dict.fromkeys(known))
            splits = splits if split is None else {split: splits[split]}
        scoring = scoring_of(self.graph, splits, device_of(self._resident), options)
        with on_threads(self._threads, told=not isinstance(self._resident, Crew)):
            return scoring.scores(checked_output(self._resident, scoring, self.graph.num_nodes))

    def predict(self, kind: str = "logits") -> np.ndarray:
        """The output for every node, in the graph's node order. See ``api.predict``."""
        if kind not in KINDS:
            raise unknown("kind of prediction", kind, KINDS)
        with on_threads(self._threads, told=not isinstance(self._resident, Crew)):
            out = self._resident.infer()
            out = out.float() if out.dtype.itemsize < 4 else out
            if kind != "logits":
                out = self._readable(out, kind)
        return out.cpu().numpy()

    def _readable(self, out: torch.Tensor, kind: str) -> torch.Tensor:
        if self._task == "multilabel":
            return out.sigmoid() if kind == "probabilities" else (out > 0).to(torch.int8)
        if self._task == "real":
            raise ConfigError(f"a real task has no {kind}", hint="kind='logits': its values")
        out = out.reshape(out.shape[0], -1)
        if out.shape[1] == 1:  # one logit of two classes
            out = torch.cat([torch.zeros_like(out), out], dim=1)
        return out.softmax(dim=1) if kind == "probabilities" else out.argmax(dim=1)


def start(
    graph: Any,
    model: Any,
    options: Options,
    *,
    plan: Plan | None,
    parts: Parts = None,
    out: str | Path | None,
    progress: bool | Callable[[Record], None],
    overwrite: bool,
) -> Run:
    """A new run: see ``api.train``. Everything is checked before the folder is touched."""
    if not isinstance(out, str | Path | None):
        raise ConfigError(f"out must be a run folder, had {out!r}", hint="out='runs/NAME'")
    graph = as_graph(graph)
    if out is None and (options.tensorboard or options.checkpoint_every is not None):
        raise ConfigError(
            "tensorboard and checkpoint_every need a run folder", hint="out='runs/NAME'"
        )
    splits = choose_splits(graph, options.split, options.seed)
    spec = model_spec(model, graph, options.features)
    module = model if spec is None else build(spec, options.seed)
    with on_threads(None) as threads:
        trainer = _trainer(graph, splits, module, options, plan, parts, spec=spec)
        threads = getattr(trainer, "threads", threads)  # of each rank
        if plan is None and isinstance(trainer.resident, Resident):
            options = replace(options, prepare=trainer.resident.prepares)  # as it goes on
        if out is None:
            return _finish(trainer, graph, options, progress, plan, threads)
        record = {
            "graph": {
                "path": None if graph.path is None else str(Path(graph.path).absolute()),
                "arrays": fingerprint(graph),
            },
            "task": graph.task,
            "model": {"ready": spec, "text": repr(module)},
            "options": options.to_json(),
            "threads": threads,
            "plan": plan_crc32(plan),
            "versions": {
                "tiergnn": __version__,
                "torch": torch.__version__,
                "python": sys.version.split()[0],
            },
        }
        given = splits if isinstance(options.split, Mapping) else None
        with RunFolder.create(out, record, given, overwrite=overwrite) as folder:
            if plan is not None:
                plan.save(folder.plan)
            trainer.keep_in(folder)
            return _finish(trainer, graph, options, progress, plan, threads)


def restart(
    run_dir: str | Path,
    graph: Any,
    model: nn.Module | None,
    *,
    given: Mapping[str, Any],
    epochs: int | None,
    device: str | None,
    progress: bool | Callable[[Record], None],
    ranks: int | None = None,
    parts: Parts = None,
    transport: str | None = None,
) -> Run:
    """A run continued: see ``api.resume``."""
    if ranks is not None:
        check_count("ranks", ranks)
    folder, record = RunFolder.open(run_dir)
    options = recorded_options(folder, record["options"], given)
    if device is not None:
        options = replace(options, device=device)
    if transport is not None:
        options = replace(options, transport=transport)
    if epochs is not None and epochs != options.epochs:
        if options.scheduler in FIXED_LENGTH:
            raise ConfigError(
                f"the {options.scheduler} schedule was made for {options.epochs} epochs",
                hint="train a new run, or resume without epochs",
            )
        options = replace(options, epochs=epochs)
    graph = recorded_graph(record, graph, must_match=True)
    splits = choose_splits(graph, options.split, options.seed)
    plan = recorded_plan(folder, record)
    module = recorded_model(record, model, options)
    threads, before = record.get("threads"), ranks_of(plan)
    changed = parts is not None or ranks not in (None, before)
    if changed:
        plan = for_ranks(graph, module, options, ranks or before, like=plan, parts=parts)
        threads = None
    elif before > 1 and folder.partition.exists():
        parts = folder.partition
    with folder.held(), on_threads(threads if ranks_of(plan) == 1 else None) as here:
        spec = record["model"]["ready"]
        trainer = _trainer(graph, splits, module, options, plan, parts, threads=threads, spec=spec)
        threads = getattr(trainer, "threads", here)
        compare_text(record, trainer.resident.model)
        trainer.keep_in(folder)
        trainer.restore()
        if changed:
            folder.replan(plan)
            record |= {"plan": plan_crc32(plan), "threads": threads}
        if changed or options.epochs != record["options"]["epochs"]:  # later resumes go on so, too
            folder.rewrite({**record, "options": {**record["options"], "epochs": options.epochs}})
        return _finish(trainer, graph, options, progress, plan, threads)


def reopen(
    run_dir: str | Path | Run,
    graph: Any,
    model: nn.Module | None,
    *,
    given: Mapping[str, Any] | None = None,
    device: str | None,
    ranks: int | None = None,
) -> Run:
    """A run with its best weights, to evaluate and predict with, maybe on another graph."""
    if ranks is not None:
        check_count("ranks", ranks)
    if isinstance(run_dir, Run):
        if run_dir.path is None:
            raise ConfigError(
                "this run was kept in no folder", hint="train(..., out='runs/NAME'), or Run.predict"
            )
        run_dir = run_dir.path
    folder, record = RunFolder.open(run_dir)
    # What only training needs may stay away; a missing criterion leaves the loss undefined.
    stand_in = {"optimizer": "adam", "scheduler": None, "criterion": NO_CRITERION, "metric": None}
    recorded = dict(record["options"])
    for name, default in stand_in.items():
        if isinstance(recorded[name], Mapping) and (given or {}).get(name) is None:
            recorded[name] = default
            if name == "metric":
                recorded["metric_mode"] = None
    options = recorded_options(folder, recorded, given or {})
    options = options if device is None else replace(options, device=device)
    graph = recorded_graph(record, graph, must_match=False)
    module = recorded_model(record, model, options)
    ready = record["model"]["ready"]
    width = choose_features(graph, options.features).width
    if ready is not None and ready["in_channels"] != width:
        raise ConfigError(
            f"the run was trained on {ready['in_channels']} features a node, this graph has {width}"
        )
    threads = record.get("threads", torch.get_num_threads())
    try:
        plan = recorded_plan(folder, record)
    except StoreError as error:  # no number depends on it: everything is held on the device
        _log.warning("left out: %s", error)
        plan = None
    same = plan is not None and (plan.shape.num_nodes, plan.shape.num_edges) == (
        graph.num_nodes, graph.num_edges,
    )  # fmt: skip
    by, parts = plan if same else None, None
    if ranks not in (None, ranks_of(by)):
        by, threads = for_ranks(graph, module, options, ranks or 1, like=plan), None
    elif ranks_of(by) > 1 and folder.partition.exists():
        parts = folder.partition
    if by is not None and ranks_of(by) > 1:
        owners = parts_by(by, graph, parts)
        held = Crew(graph, None, module, options, by, owners, threads=threads, spec=ready)
        threads = held.threads
    else:
        held = resident(graph, module, options, by)
        threads = threads or torch.get_num_threads()
    compare_text(record, module)
    weights, state = Checkpoints(folder.checkpoints).load_best()
    load_weights(held, weights, str(folder.checkpoints))
    progress = Progress(**state["progress"])
    run = Run(held, graph, options, progress, folder.path, record["task"], threads)
    run.timeline = recorded_timeline(folder)
    run.plan = plan
    return run


def _trainer(
    graph: Graph,
    splits: Mapping[str, np.ndarray],
    model: nn.Module,
    options: Options,
    plan: Plan | None,
    parts: Parts = None,
    *,
    threads: int | None = None,
    spec: Mapping[str, Any] | None = None,
) -> Trainer | Crew:
    """``threads``: of each rank, where there are several. ``spec``: of a ready model."""
    if plan is not None and ranks_of(plan) > 1:
        owners = parts_by(plan, graph, parts)
        return Crew(graph, splits, model, options, plan, owners, threads=threads, spec=spec)
    if parts is not None:
        raise ConfigError("a partition is for several ranks", hint="tiergnn.plan(..., ranks=N)")
    held = resident(graph, model, options, plan)
    scoring = scoring_of(graph, splits, device_of(held), options)
    checked_output(held, scoring, graph.num_nodes)
    return Trainer(held, scoring, options, planned=plan is not None)


def _finish(
    trainer: Trainer | Crew,
    graph: Graph,
    options: Options,
    progress: bool | Callable[[Record], None],
    plan: Plan | None,
    threads: int,
) -> Run:
    trainer.fit(progress)
    folder = trainer.folder
    path = None if folder is None else folder.path
    assert graph.task is not None
    run = Run(trainer.resident, graph, options, trainer.progress, path, graph.task, threads)
    run.plan = plan
    if folder is not None:
        if run.timeline is not None:
            run.timeline.save(folder.timeline)
        folder.finish(run.as_dict())
    return run

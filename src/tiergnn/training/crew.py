"""Crew: the ranks of a run, as the process that starts them sees them.

They are started for each piece of work (a training, an evaluation) and gone after it. The process
holds the run folder, tells people what the ranks write into its log, and gets the best weights.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load as load_tensors
from torch import Tensor, nn

from tiergnn.errors import ConfigError, GraphError, Interrupted, PlanError, RankError, StoreError
from tiergnn.files import read_json
from tiergnn.graph.csr import Graph
from tiergnn.graph.partition import Partition
from tiergnn.memory.scratch import Scratch
from tiergnn.planner.plan import Plan
from tiergnn.planner.strategies.known import check_ranked
from tiergnn.training.assemble import pick_device
from tiergnn.training.checkpoint import Checkpoints
from tiergnn.training.examples import dtype_of
from tiergnn.training.folder import RunFolder
from tiergnn.training.joined import TARGETS, here
from tiergnn.training.log import Record, Tail, show
from tiergnn.training.loop import Progress, load_weights, take_up
from tiergnn.training.metering import evaluation_of, settle
from tiergnn.training.options import Options
from tiergnn.training.planned import check_plan
from tiergnn.training.scoring import scoring_of
from tiergnn.training.task import Task, read_answer
from tiergnn.transport.launch import launch
from tiergnn.workload import Workload

# Ranks are forked off a process that has imported everything and used nothing: no CUDA, no threads.
_START = multiprocessing.get_context("forkserver")
_START.set_forkserver_preload(["tiergnn.training.task"])
_KINDS = {kind.__name__: kind for kind in (ConfigError, GraphError, PlanError, StoreError)}


class Crew:
    """What Trainer and executor are to a run on one device: ``model`` is in this process, where it
    gets the best weights. ``splits``: for training; ``threads``: on each rank; None: a share of
    this process's; ``spec``: of a ready model. Raises ConfigError, PlanError."""

    embedding: nn.Parameter | None = None

    def __init__(
        self,
        graph: Graph,
        splits: Mapping[str, np.ndarray] | None,
        model: nn.Module,
        options: Options,
        plan: Plan,
        parts: Partition,
        *,
        threads: int | None = None,
        spec: Mapping[str, Any] | None = None,
    ):
        check_ranked(plan.strategy, plan.knobs)
        self.device = pick_device(options.device)
        if options.device.startswith("cuda:"):
            raise ConfigError(
                f"ranks take the GPUs of their host in turn, had device={options.device!r}",
                hint="device='cuda' (--device cuda)",
            )
        check_plan(plan, graph, model, options)
        settle(graph, model, options)
        self.graph, self.model, self.options, self.plan = graph, model, options, plan
        self.model.to(self.device, dtype_of(model, options.dtype))
        self._metric = ""
        if splits is not None:
            self._metric = scoring_of(graph, splits, torch.device("cpu"), options).metric_name
        # Those that torchrun started have their shares already.
        sharers = plan.knobs.ranks if here() is None else 1
        self.threads = threads or max(1, torch.get_num_threads() // sharers)
        self._spec = spec
        self.progress = Progress()
        self.folder: RunFolder | None = None
        self.peak_bytes: dict[str, int] = {}
        self.timeline = None
        self.transport = ""
        self._parts, self._resuming = parts, False

    @property
    def resident(self) -> Crew:
        """What a run holds to evaluate and predict with."""
        return self

    @cached_property
    def _evaluated(self) -> Workload:
        """Metered once, and not by every rank."""
        return evaluation_of(self.graph, self.model, self.options)

    @property
    def schedule(self) -> Any:
        return self.plan.schedule

    def keep_in(self, folder: RunFolder) -> None:
        self.folder = folder

    def restore(self) -> None:
        """Go on from the folder's newest sound checkpoint. Raises ConfigError, StoreError."""
        assert self.folder is not None
        self._resuming = True
        best, state = Checkpoints(self.folder.checkpoints).load_best()
        load_weights(self, best, str(self.folder.checkpoints))
        self.progress = take_up(Progress(**state["progress"]), self.options.epochs)

    def fit(self, progress: bool | Callable[[Record], None]) -> None:
        """Start the ranks, and return when they have trained to the end. Raises as Trainer.fit,
        and RankError where one of them died, hung or raised."""
        if self.progress.finished:
            assert self.folder is not None
            result = self.folder.path / "result.json"
            self.peak_bytes = read_json(result)["peak_bytes"] if result.exists() else {}
            self.timeline = self.folder.read_timeline()
            return
        with self._site() as (site, task):
            folder = self.folder or RunFolder(site / "run")
            folder.path.mkdir(exist_ok=True)
            task = replace(task, folder=str(folder.path), resuming=self._resuming)
            if here() is not None:  # this process trains itself, and has no time to look on
                task = replace(task, progress=bool(progress))
                progress = False
            done = len(self.progress.history)
            shown = show(progress, self.options.epochs, done, self._metric)
            tail = Tail(folder.log, done, shown)
            try:
                code = self._launch("train", task, tail.look)
            finally:
                tail.close()
            if code:
                where = None if self.folder is None else str(self.folder.path)
                raise Interrupted(tail.epoch, where, code - 128)
            best, state = Checkpoints(folder.checkpoints).load_best()
            load_weights(self, best, str(folder.checkpoints))
            self.progress = Progress(**state["progress"])
            said = read_answer(Path(task.answer))
            self.peak_bytes, self.transport = said["peak_bytes"], said["transport"]
            self.timeline = folder.read_timeline()

    def infer(self) -> Tensor:
        """The output [V, C] for every node, in host memory, made by the ranks. Raises RankError."""
        with self._site() as (_, task):
            code = self._launch("infer", task, lambda: None)
            if code:
                raise Interrupted(len(self.progress.history), None, code - 128)
            return load_tensors(Path(task.answer).read_bytes())["out"]

    def sample_memory(self) -> None:
        """The ranks do."""

    def close(self) -> None:
        """Nothing is held between two pieces of work."""

    def _launch(self, name: str, task: Task, look: Callable[[], None]) -> int:
        """Have all ranks do a task: 0, or 128 and the signal that stopped them."""
        options, joined = self.options, here()
        on_gpu = self.device.type == "cuda"
        try:
            if joined is not None:
                return joined.run(name, task, self._spec, on_gpu=on_gpu)
            return launch(
                TARGETS[name],
                self.plan.knobs.ranks,
                (task.to_bytes(),),
                transport=options.transport,
                on_gpu=on_gpu,
                timeout_s=options.timeout,
                context=_START,
                look=look,
            )
        except RankError as error:
            if error.kind not in _KINDS:
                raise
            kind = _KINDS[error.kind]
            raise kind(error.problem, culprit=error.culprit, hint=error.hint) from error

    @contextmanager
    def _site(self) -> Iterator[tuple[Path, Task]]:
        """A folder for the length of a job, with what its ranks have to open, and their task."""
        with Scratch(tempfile.gettempdir()) as scratch:
            site, graph = scratch.path, self.graph
            if graph.path is None or not is_as_stored(graph):
                graph = replace(graph, path=None).save(site / "graph")
            kept = None if self.folder is None else self.folder.partition
            parts = self._parts
            if parts.graph is not graph:
                parts = replace(parts, graph=graph)
            if kept is None:
                kept = parts.save(site / "partition")
            elif not kept.exists():
                parts.save(kept)
            evaluated = self._evaluated
            task = Task(
                graph=str(graph.path),
                parts=str(kept),
                model=self.model.to("cpu"),  # each rank takes it to its own device
                options=self.options,
                plan=replace(self.plan),
                evaluated=evaluated,
                answer=str(site / "answer"),
                threads=self.threads,
                built=here() is not None,
            )
            try:
                yield site, task
            finally:
                self.model.to(self.device)


def is_as_stored(graph: Graph) -> bool:
    """Whether all arrays are those of the folder that it was opened from: none was replaced."""
    tables = [table.data for table in (graph.x, graph.edge_attr) if table is not None]
    tables += [table.scale for table in (graph.x, graph.edge_attr) if table is not None]
    arrays = [graph.rowptr, graph.col, graph.edge_weight, graph.y, *tables, *graph.splits.values()]
    return all(_is_mapped(array, graph.path) for array in arrays if array is not None)


def _is_mapped(array: Any, folder: Path | None) -> bool:
    if not array.size:  # nothing is mapped of an empty file
        return True
    while isinstance(array, np.ndarray):
        name = getattr(array, "filename", None)
        if name is not None:
            return folder is not None and Path(name).is_relative_to(Path(folder).absolute())
        array = array.base
    return False

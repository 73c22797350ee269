"""Staged: a model over a graph in parts, of which the device holds one or two at a time.

What a step and an evaluation do is their schedules' (``planner/strategies``); here is what they do
it to. The numbers are those of ``Resident``, up to the order of sums.

Legend: V nodes, E edges, D features, C outputs, P rows of one part.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tiergnn.errors import ConfigError, PlanError
from tiergnn.graph.csr import Graph
from tiergnn.graph.hot import hot_mask
from tiergnn.graph.partition import METHODS, Partition, partition
from tiergnn.graph.shape import layout_of
from tiergnn.kernels import memory
from tiergnn.kernels.block import wrap
from tiergnn.kernels.dropout import Key, step_key
from tiergnn.memory.scratch import Scratch
from tiergnn.models.loops import without_loops
from tiergnn.models.meter import meter
from tiergnn.models.trace import trace_both
from tiergnn.planner.plan import Plan
from tiergnn.planner.strategies.draft import Draft
from tiergnn.planner.strategies.known import EVALUATIONS, KNOBS, PREPARING, STRATEGIES
from tiergnn.planner.strategies.passing import piece_bytes
from tiergnn.runtime.again import until_sound
from tiergnn.runtime.asked import Asked
from tiergnn.runtime.buffers import Buffers
from tiergnn.runtime.executor import indexed
from tiergnn.runtime.given import Given
from tiergnn.runtime.host_memory import HostMemory
from tiergnn.runtime.memory import held_before, out_of_memory
from tiergnn.runtime.own_inputs import examples
from tiergnn.runtime.parts import Parts
from tiergnn.runtime.rows import Rows, bad_value, first_not_finite
from tiergnn.runtime.slices import Slices
from tiergnn.runtime.staged_walk import StagedWalk, buffers_put_back, peaks_of
from tiergnn.runtime.staging import PIECE_BYTES, Staging
from tiergnn.runtime.steps import Steps
from tiergnn.runtime.transfers import Transfers
from tiergnn.runtime.visits import Share, Visits
from tiergnn.runtime.whole import Whole
from tiergnn.schedule.check import check
from tiergnn.schedule.contents import What
from tiergnn.schedule.schedule import Schedule
from tiergnn.schedule.timeline import Timeline
from tiergnn.workload import Workload


class Staged:
    """A model over a graph in the parts of ``plan``.

    The model is moved to ``device`` and ``dtype`` in place. ``labelled`` are the nodes that make
    the loss. ``parts`` shares the nodes out; None: as planned. ``evaluated`` is the workload of an
    evaluation; None: it is metered; with ``evaluates`` False there is none. ``asked`` are the nodes
    whose output evaluations give, in ascending order (None: all), for which there is host memory:
    for others their schedule is written anew. ``scratch`` is the folder for what goes to the disk.
    ``capture``: training steps are recorded where they can be (see ``Steps``).
    Schedules are written anew for the parts as they are, and proved.
    Raises PlanError for a plan of another graph, and where the parts do not fit its machine;
    ConfigError for a model that cannot be traced.
    """

    embedding: nn.Parameter | None = None

    def __init__(
        self,
        model: nn.Module,
        graph: Graph,
        plan: Plan,
        *,
        labelled: np.ndarray,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
        normalize_rows: bool = False,
        parts: Partition | None = None,
        evaluated: Workload | None = None,
        evaluates: bool = True,
        asked: np.ndarray | None = None,
        scratch: str | Path | None = None,
        capture: bool = False,
    ):
        if plan.strategy not in EVALUATIONS:
            raise PlanError(
                f"{plan.strategy} is not carried out in stages", hint=", ".join(EVALUATIONS)
            )
        if graph.x is None:
            raise ConfigError("the graph has no node features", hint="features='degree'")
        plan.check_graph(graph.num_nodes, graph.num_edges)
        self.device, self.seed, self.plan, self._graph = (
            indexed(torch.device(device)),
            seed,
            plan,
            graph,
        )
        if self.device.type == "cpu":
            memory.keep_small()  # of slices and blocks, for those that come after them
        memory.no_large()  # that an earlier run kept: here what is held counts
        self.before_bytes = held_before(self.device)
        self.model = model.to(self.device, dtype)
        if parts is None:
            method = plan.layout.method if plan.layout.method in METHODS else "block"
            parts = partition(graph, plan.knobs.parts, method)
        hot_frac = plan.knobs.hot_frac
        self._layout = layout_of(parts, graph, np.asarray(labelled), hot_frac=hot_frac)
        self._x = Rows(graph.x, torch.device("cpu"), dtype, normalize=normalize_rows)
        self._edges: dict[str, Rows | Tensor] = {}
        if graph.edge_weight is not None:
            self._edges["edge_weight"] = wrap(graph.edge_weight).to(dtype)
        if graph.edge_attr is not None:
            self._edges["edge_attr"] = Rows(graph.edge_attr, torch.device("cpu"), dtype)
        inputs = examples(graph, self.device, dtype)
        prepared = bool(plan.workload.prepared)
        self.programs = trace_both(self.model, inputs, prepared=prepared)
        works = {True: plan.workload}
        if evaluates:
            prepared = bool(self.programs[False].prepared)
            works[False] = evaluated or meter(self.model, inputs, training=False, prepared=prepared)
        # Of the very programs, which share their edges.
        self._loops = without_loops(self.programs[training] for training in works)
        self._works = {
            training: replace(work, topology=replace(work.topology, without_loops=self._loops))
            for training, work in works.items()
        }
        write = STRATEGIES[plan.strategy]
        self._schedules = {
            True: write(self._works[True], plan.shape, self._layout, plan.machine, plan.knobs)
        }
        if evaluates:
            counts = parts.num_nodes
            if asked is not None:
                counts = np.bincount(parts.part_of[asked], minlength=parts.num_parts)
            self._schedules[False] = self._evaluation_of(counts.tolist())
        drafts = [self._draft(work, self._layout) for work in self._works.values()]
        self.parts = self._divide(parts, any(draft.edge_ids for draft in drafts))
        self._scratch = None
        if plan.knobs.tier == "disk":
            self._scratch = Scratch(
                "." if scratch is None else scratch,
                capacity_bytes=None
                if plan.machine.disk is None
                else plan.machine.tier("disk").available_bytes,
            )
            weakref.finalize(self, self._scratch.close)  # of a run that failed, or was forgotten
        self._memory = HostMemory(self.device)
        self._steps = Steps(self.device)
        self._staging = Staging(self.device, piece_bytes(self.schedule) or PIECE_BYTES)
        made = {p.name: p.program for p in self.programs[True].prepared}
        self._given = Given(
            self._x, self._edges, self.parts, self.device, self._scratch, made, self._storage,
            tasks=plan.machine.device.kind == "cuda",
        )  # fmt: skip
        self._dtype = dtype
        self._asked = Asked(self.parts, None if asked is None else torch.from_numpy(asked))
        self._past_peaks: dict[str, int] = {}  # of evaluations that gave the output of other nodes
        with out_of_memory(self.device, "loading the graph"):
            self._walks = {
                training: self._walk(training, schedule, self._asked)
                for training, schedule in self._schedules.items()
            }
        if capture:
            self._steps.record(self.model, self.programs[True], self._walks[True], plan)

    def _evaluation_of(self, counts: list[int]) -> Schedule:
        """Of an evaluation that gives the output of so many nodes of each part."""
        plan, parts = self.plan, zip(self._layout.parts, counts, strict=True)
        asked = tuple(replace(shape, labelled=count) for shape, count in parts)
        layout = replace(self._layout, parts=asked)
        write, work = EVALUATIONS[plan.strategy], self._works[False]
        return write(work, plan.shape, layout, plan.machine, plan.knobs, self.schedule)

    @property
    def schedule(self) -> Schedule:
        """Of one training step."""
        return self._schedules[True]

    @property
    def evaluation(self) -> Schedule:
        """Of an evaluation."""
        return self._schedules[False]

    @property
    def _storage(self) -> torch.dtype | None:
        """Of rows off the device, where it is not as they are computed."""
        name = self.plan.knobs.storage
        return None if name is None else getattr(torch, name)

    def _divide(self, parts: Partition, edge_ids: bool) -> Parts | Whole:
        """The parts as blocks, or all rows together where the schedule has buffers of these."""
        contents = [b.holds for b in self.schedule.buffers if b.holds is not None]
        if not any(c.what is What.ROWS and c.part < 0 for c in contents):
            hot_frac = self.plan.knobs.hot_frac
            hot = hot_mask(parts, hot_frac) if hot_frac else None
            return Parts(parts, edge_ids=edge_ids, hot=hot, without_loops=self._loops)
        chunks = any(c.what is What.TOPOLOGY and c.part >= 0 for c in contents)
        return Whole(parts, edge_ids=edge_ids, chunks=chunks, without_loops=self._loops)

    def _draft(self, workload: Workload, layout: Any) -> Draft:
        plan = self.plan
        return Draft(
            plan.strategy, workload, plan.shape, layout, plan.machine, plan.knobs,
            uses=KNOBS[plan.strategy], prepares=plan.strategy in PREPARING,
        )  # fmt: skip

    def _walk(self, training: bool, schedule: Schedule, asked: Asked) -> StagedWalk:
        check(schedule, self.plan.machine)
        machine, program = self.plan.machine, self.programs[training]
        tiers = ["device", "host", *(["disk"] if machine.disk is not None else [])]
        buffers = Buffers(
            schedule,
            asked,
            {**program.rows, **program.between},
            device=self.device,
            storage=self._storage,
            inputs={"x": self._x.stored.dtype} | dict.fromkeys(self._edges, self._dtype),
            capacities={tier: machine.tier(tier).available_bytes for tier in tiers},
            scratch=self._scratch,
            memory=self._memory,
        )
        self._given.fill(schedule, buffers)
        decode = {} if self._x.plain else {"x": self._x.decode}
        transfers = Transfers(buffers, self.parts, decode, asked, self._staging)
        visits = Visits(program, schedule, buffers, self.parts)
        slices = Slices(program, buffers, self.parts, visits)
        return StagedWalk(
            schedule, buffers, transfers, visits, more=slices.does, streams=self._steps.streams
        )

    def train_step(self, share: Share, step: int, *, measure: bool = False) -> float:
        """The schedule up to STEP: gradients add to ``.grad``. Gives the loss.

        ``share(out, part)`` is a part's share of the loss, of its output rows [P, ...]. A step that
        fails, or that ``stop_when`` ends (it raises Stopped), leaves the model's buffers as they
        were. Raises StoreError for a disk that fails.
        """
        with out_of_memory(self.device, "training"):
            self.model.train(True)
            return float(self._run(True, step_key(self.seed, step, self.device), share))

    def _run(self, training: bool, key: Key | None, share: Share | None) -> Tensor:
        """A pass; where rows are kept on a disk that damages some, again."""
        walk = partial(self._walks[training].run, key, share)
        self._staging.begin()
        if self._scratch is not None:
            return until_sound(walk, self.model, self._given.mend)
        with buffers_put_back(self.model):
            if key is None:
                self._steps.evaluate(self._walks[training])
                return torch.zeros(())
            return self._steps.train(self._walks[training], key, share, self._memory.address)

    def stop_when(self, stopped: Callable[[], bool]) -> None:
        """Ask this between the actions of a training step, and give the step up if it is so."""
        self._walks[True].stopped = stopped

    def update(self, move: Callable[[], Any]) -> None:
        """The schedule's STEP: ``move()`` has the optimizer move the parameters."""
        with out_of_memory(self.device, "training"):
            self._walks[True].update(move)

    @torch.no_grad()
    def infer(self, ids: Tensor | None = None) -> Tensor:
        """The output in evaluation mode, in host memory: [V, C], or [N, C] of nodes ``ids`` (int64
        [N], ascending). Raises PlanError where none was asked for or where there is no room,
        StoreError for a disk that fails."""
        if False not in self._walks:
            raise PlanError("this run has no evaluation", hint="evaluates=True")
        with out_of_memory(self.device, "evaluating"):
            self._ask(ids)
            self.model.train(False)
            self._run(False, None, None)
            out: Tensor | None = None
            for part, rows in enumerate(self._walks[False].answers()):
                if out is None:
                    out = rows.new_empty((self._asked.num_nodes, *rows.shape[1:]))
                out[self._asked.places(part)] = rows
            assert out is not None
            return out

    def _ask(self, ids: Tensor | None) -> None:
        """Write the evaluation anew where it gives the output of other nodes."""
        before = self._asked.ids
        if ids is before or (ids is not None and before is not None and torch.equal(ids, before)):
            return
        asked = Asked(self.parts, ids)
        counts = [asked.num_rows(part) for part in range(self.parts.num_parts)]
        schedule = self._evaluation_of(counts)
        walk = self._walk(False, schedule, asked)
        self._past_peaks = peaks_of([self._past_peaks, self._walks[False].peak_bytes])
        self._asked, self._schedules[False], self._walks[False] = asked, schedule, walk

    @property
    def timeline(self) -> Timeline | None:
        """When each action ran in the last training step; None before any."""
        return self._walks[True].timeline()

    @property
    def peak_bytes(self) -> dict[str, int]:
        """The most held so far, tier -> bytes: counted as reserved; of a GPU, by its allocator."""
        held = (walk.peak_bytes for walk in self._walks.values())
        return peaks_of([self._past_peaks, *held], self.device, self.before_bytes)

    def sample_memory(self) -> None:
        """Peaks are counted, not sampled."""

    def not_finite(self) -> str | None:
        """The first NaN or infinity in what the model reads of the graph, in words, or None."""
        needs = self.programs[True].inputs
        tables: Mapping[str, Rows | Tensor] = {"x": self._x, **self._edges}
        for name, rows in tables.items():
            if name not in needs:
                continue
            if isinstance(rows, Tensor):
                found = first_not_finite(rows)
            else:
                found = rows.first_not_finite()
            if found is not None:
                return bad_value(self._graph, name, *found)
        return None

    def close(self) -> None:
        """Give host memory and the scratch folder back."""
        self._steps.close()
        for walk in self._walks.values():
            walk.close()
        self._given.close()
        self.parts.close()
        if self._scratch is not None:
            self._scratch.close()

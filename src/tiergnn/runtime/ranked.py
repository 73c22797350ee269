"""Ranked: one rank of several that train a model over a graph, each with the rows of one part.

What a step and an evaluation do is their schedules' (``planner/strategies``); here is what a rank
does it to, and over which transport. All ranks make theirs together and call the same methods in
the same order. The numbers are those of ``Resident``, up to the order of sums; parameters,
gradients and losses have the same bits on every rank.

Legend: V nodes, E edges, D features, C outputs, P own rows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tiergnn import frozen
from tiergnn.errors import ConfigError, PlanError, RankError
from tiergnn.graph.csr import Graph
from tiergnn.graph.partition import METHODS, Partition, partition
from tiergnn.graph.shape import Layout, PartShape
from tiergnn.kernels.block import Block
from tiergnn.kernels.dropout import step_key
from tiergnn.models.meter import meter
from tiergnn.models.trace import Program, trace
from tiergnn.planner.plan import Plan
from tiergnn.planner.strategies.draft import Draft
from tiergnn.planner.strategies.known import KNOBS, RANKED, STRATEGIES, check_ranked
from tiergnn.runtime.buffers import Buffers
from tiergnn.runtime.executor import indexed
from tiergnn.runtime.memory import out_of_memory
from tiergnn.runtime.own_inputs import examples
from tiergnn.runtime.rank_graph import RankGraph
from tiergnn.runtime.rank_transfers import RankTransfers, Where
from tiergnn.runtime.rank_visits import RankVisits
from tiergnn.runtime.replicas import (
    block_of_replicas,
    halos_of_inputs,
    replicas_in,
    replicas_of_inputs,
    replicated,
)
from tiergnn.runtime.shared_rows import SharedRows, read_by_others
from tiergnn.runtime.staged_walk import StagedWalk, Stopped, buffers_put_back, peaks_of
from tiergnn.runtime.steps import Steps
from tiergnn.runtime.visits import Share
from tiergnn.schedule.actions import Action, Op
from tiergnn.schedule.check import check
from tiergnn.schedule.contents import What
from tiergnn.schedule.schedule import Schedule
from tiergnn.schedule.timeline import Timeline
from tiergnn.transport.failure import Failure
from tiergnn.transport.transport import Transport
from tiergnn.transport.waiting import told
from tiergnn.workload import Workload

# What ranks tell each other: counts of their edges, of those that leave their rows, and losses.
COUNTS, COUNTS_LEAVING, LOSSES = "counts of parts", "counts of edges that leave", "losses"
_GIVEN = (What.ROWS, What.REPLICAS, What.HALO, What.SOURCES)
_TRACING = threading.Lock()  # torch.fx changes classes while it traces; virtual ranks are threads


class Ranked:
    """A model over a graph whose parts are the ranks' of ``plan``; this one is ``transport``'s.

    The model, alike on all ranks, is moved to ``device`` and ``dtype`` in place. ``labelled`` are
    the nodes that make the loss. ``parts`` shares the nodes out, alike on all ranks; None: as
    planned. ``evaluated`` is the workload of an evaluation; None: it is metered. ``held`` is what
    this rank has of the graph, on ``device`` and in ``dtype``, and its parts; None: it is read.
    ``capture``: training steps are recorded where they can be (see ``Steps``): where no host waits
    for other ranks.
    Schedules are written anew for the parts as they are, and proved. Only this rank's features and
    edges are read of the graph.
    Raises PlanError for a plan of another graph or of other ranks, and where the parts do not fit
    its machine; ConfigError for a model that cannot be traced.
    """

    embedding: nn.Parameter | None = None
    before_bytes = 0  # ranks may share a device: all that is held there counts

    def __init__(
        self,
        model: nn.Module,
        graph: Graph,
        plan: Plan,
        transport: Transport,
        *,
        labelled: np.ndarray,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
        normalize_rows: bool = False,
        parts: Partition | None = None,
        evaluated: Workload | None = None,
        held: RankGraph | None = None,
        capture: bool = False,
    ):
        _check_plan(plan, graph, transport)
        self.device, self.seed, self.plan, self._graph = (
            indexed(torch.device(device)),
            seed,
            plan,
            graph,
        )
        self.rank, self.num_ranks, self._transport = transport.rank, transport.size, transport
        self.model = model.to(self.device, dtype)
        parts = parts if held is None else held.parts
        if parts is None:
            method = plan.layout.method if plan.layout.method in METHODS else "block"
            parts = partition(graph, plan.knobs.ranks, method)
        inputs = examples(graph, self.device, dtype)
        with _TRACING:
            self.programs: dict[bool, Program] = {
                training: trace(self.model, inputs, training=training) for training in (True, False)
            }
            if evaluated is None:
                evaluated = meter(self.model, inputs, training=False)
        works = {True: plan.workload, False: evaluated}
        with out_of_memory(self.device, "loading the graph"):
            held = held or RankGraph(
                graph, parts, transport, device=self.device, dtype=dtype,
                normalize_rows=normalize_rows, edge_ids=_edge_ids(plan, works),
            )  # fmt: skip
            self.part, self._inputs = held.part, held.inputs
            reached = self._reaches(transport)
        layout = self._layout(np.asarray(labelled), held, reached=reached)
        arguments = (plan.shape, layout, plan.machine)
        self.schedule = STRATEGIES[plan.strategy](works[True], *arguments, plan.knobs)
        self.evaluation = RANKED[plan.strategy](works[False], *arguments, plan.knobs)
        with out_of_memory(self.device, "loading the graph"):
            self._classes, self._out = held.classes(self._schedules, reached=reached)
            self._where: Where = {}
            self._fixed = halos_of_inputs(
                self._schedules, self.part, self._inputs.rows, transport, held.brought
            )
            self._replicated: Block | None = None
            if reached:
                into, out = held.reach
                given = self._schedules, self.part
                self._where = replicated(*given, into, out)
                self._fixed |= replicas_of_inputs(
                    *given, into, self._inputs.rows, transport, held.brought
                )
                self._replicated = block_of_replicas(*given, into, transport)
                del into, out
        del held  # its edges are in the classes
        self._action = ""
        self._stopped: Callable[[], bool] = lambda: False
        self._shared: list[SharedRows] = []
        self._steps = Steps(self.device)
        self._walks = {
            training: self._walk(training, schedule)
            for training, schedule in zip((True, False), self._schedules, strict=True)
        }
        if capture:
            self._steps.record(self.model, self.programs[True], self._walks[True], plan)
        transport.barrier(tag="ready")

    @property
    def rows(self) -> Tensor:
        """int64 [P]: the nodes of this rank's part, ascending."""
        return self.part.gid

    @property
    def _schedules(self) -> tuple[Schedule, Schedule]:
        return self.schedule, self.evaluation

    def _layout(self, labelled: np.ndarray, held: RankGraph, *, reached: bool) -> Layout:
        """Of all parts: each rank counts its own and says so."""
        shapes = self._counts(self.part.shape(labelled), COUNTS)
        leaving = None
        if reached:
            leaving = self._counts(held.reach[1].shape(held.parts), COUNTS_LEAVING)
        return Layout(method=held.parts.method, exact=True, parts=shapes, leaving=leaving)

    def _counts(self, own: PartShape, tag: str) -> tuple[PartShape, ...]:
        said = self._transport.gather(frozen.encode(own), tag=tag)
        return tuple(frozen.decode(PartShape, each) for each in said)

    def _reaches(self, transport: Transport) -> bool:
        """Whether edges are cut by where rows lie, to be read there."""
        planned = self.plan.schedule
        if not read_by_others(planned) and not replicas_in(planned):
            return False
        if not transport.reads_in_place:
            raise PlanError(
                f"{self.plan.strategy} reads rows of other ranks in place, which the transport "
                f"{transport.name} cannot",
                hint="the strategy halo or nfp, or ranks of one host with transport shared",
            )
        return True

    def _walk(self, training: bool, schedule: Schedule) -> StagedWalk:
        check(schedule, self.plan.machine)
        machine, narrow = self.plan.machine, self.plan.knobs.storage
        storage = None if narrow is None else getattr(torch, narrow)
        program = self.programs[training]
        buffers = Buffers(
            schedule,
            self.part,
            program.rows,
            rank=self.rank,
            device=self.device,
            storage=storage,
            inputs={name: rows.dtype for name, rows in self._inputs.rows.items()},
            capacities={tier: machine.tier(tier).available_bytes for tier in ("device", "host")},
            scratch=None,
            shared=self._share(training, schedule),
        )
        for buffer in schedule.buffers:
            ours, holds = buffer.given and buffer.rank == self.rank, buffer.holds
            if not ours or holds is None or holds.what not in _GIVEN:
                continue
            rows = self._inputs.rows[holds.of] if holds.what is What.ROWS else self._fixed[holds]
            buffers.give(buffer.name, rows if buffer.tier == "host" else rows.to(self.device))
        transfers = RankTransfers(
            program, buffers, self.part, self._transport, model=self.model, storage=storage,
            where=self._where,
        )  # fmt: skip
        visits = RankVisits(
            program, schedule, buffers, self.part, self._classes, self._out, self._replicated
        )
        more = {
            Op.AGGREGATE: visits.aggregate,
            Op.UPDATE: visits.update,
            Op.BARRIER: transfers.barrier,
            Op.EXCHANGE: transfers.exchange,
            Op.REDUCE: transfers.reduce,
        }
        return StagedWalk(
            schedule, buffers, transfers, visits, rank=self.rank, more=more, watch=self,
            streams=self._steps.streams, in_order=self._transport.in_order,
        )  # fmt: skip

    def _share(self, training: bool, schedule: Schedule) -> SharedRows | None:
        if not read_by_others(schedule):
            return None
        name = "training" if training else "evaluation"
        self._shared.append(SharedRows(schedule, self._transport, name, device=self.device))
        return self._shared[-1]

    def at(self, action: Action) -> None:
        """An action is about to be done: others name it where this rank fails there."""
        self._action = f"{action.label} {action.tag}".strip()
        self._transport.at(self._action)

    def failed(self, error: BaseException) -> None:
        """Tell the others at once, who may wait for this rank in a meeting."""
        if not isinstance(error, RankError):
            cause, hint, kind = told(error)
            self._transport.watch.fail(
                Failure(
                    rank=self.rank,
                    by=self.rank,
                    action=self._action,
                    cause=cause,
                    hint=hint,
                    kind=kind,
                )
            )

    def train_step(self, share: Share, step: int, *, measure: bool = False) -> float:
        """The schedule up to STEP: gradients, summed over ranks, add to ``.grad``. Gives the loss
        of the whole graph, the ranks' shares added in their order.

        ``share(out, rank)`` is this part's share of the loss, of its output rows [P, ...]; it is
        not asked for without labels. When any rank's ``stop_when`` says so, all raise Stopped at
        the end of the step. A step that fails or is stopped leaves the model's buffers as they
        were, and its gradients.
        """
        before = [(p, p.grad) for p in self.model.parameters()]
        for parameter, _ in before:
            parameter.grad = None
        try:
            with buffers_put_back(self.model):
                with out_of_memory(self.device, "training"):
                    self.model.train(True)
                    key = step_key(self.seed, step, self.device)
                    loss = float(self._steps.train(self._walks[True], key, share, None))
                said = self._transport.gather([loss, bool(self._stopped())], tag=LOSSES)
                if any(stop for _, stop in said):
                    raise Stopped
        except BaseException:
            for parameter, grad in before:
                parameter.grad = grad
            raise
        for parameter, grad in before:
            if grad is not None:
                parameter.grad = grad if parameter.grad is None else grad + parameter.grad
        return sum(loss for loss, _ in said)

    def stop_when(self, stopped: Callable[[], bool]) -> None:
        """Ask this at the end of a training step, and give the step up if it is so on any rank."""
        self._stopped = stopped

    def update(self, move: Callable[[], Any]) -> None:
        """The schedule's STEP: ``move()`` has the optimizer move the parameters, alike on all."""
        with out_of_memory(self.device, "training"):
            self._walks[True].update(move)

    @torch.no_grad()
    def infer(self) -> Tensor:
        """The output's rows [P, ...] of this rank in evaluation mode, on its device."""
        with out_of_memory(self.device, "evaluating"):
            self.model.train(False)
            walk = self._walks[False]
            self._steps.evaluate(walk)
            (out,) = walk.answers()
            return out.clone() if self._steps.replays else out

    def whole(self, rows: Tensor) -> Tensor | None:
        """Of all ranks' own rows [P, ...] those of all nodes [V, ...] in the graph's order, in host
        memory; on rank 0 alone, None on the others."""
        give = [len(rows)] + [0] * (self.num_ranks - 1)
        gid = self._transport.exchange(self.rows, give, tag="rows")
        got = self._transport.exchange(rows.detach().contiguous(), give, tag="outputs").cpu()
        if self.rank:
            return None
        out = got.new_empty((self._graph.num_nodes, *got.shape[1:]))
        out[gid] = got
        return out

    @property
    def unrecorded(self) -> str | None:
        """Why training steps are not replayed; None where they are, or will be."""
        return self._steps.refused

    @property
    def timeline(self) -> Timeline | None:
        """When each action of this rank ran in the last training step; None before any."""
        return self._walks[True].timeline()

    @property
    def peak_bytes(self) -> dict[str, int]:
        """The most that this rank held so far, tier -> bytes: counted as reserved; of a GPU, by its
        allocator."""
        return peaks_of((walk.peak_bytes for walk in self._walks.values()), self.device)

    def sample_memory(self) -> None:
        """Peaks are counted, not sampled."""

    def not_finite(self) -> str | None:
        """The first NaN or infinity in what the model reads of the graph, in words, or None; alike
        on all ranks, the lowest rank's where several have some."""
        own = self._inputs.not_finite(self.programs[True].needs)
        said = self._transport.gather(own, tag="what is not finite")
        return next((text for text in said if text is not None), None)

    def close(self) -> None:
        """Give memory back. The transport is its owner's to close."""
        self._steps.close()
        for walk in self._walks.values():
            walk.close()
        for rows in self._shared:
            rows.close()


def _check_plan(plan: Plan, graph: Graph, transport: Transport) -> None:
    check_ranked(plan.strategy, plan.knobs)
    if graph.x is None:
        raise ConfigError("the graph has no node features", hint="features='degree'")
    if plan.knobs.ranks != transport.size:
        raise PlanError(
            f"the plan is for {plan.knobs.ranks} ranks, there are {transport.size}",
            hint=f"a plan for {transport.size} ranks",
        )
    plan.check_graph(graph.num_nodes, graph.num_edges)


def _edge_ids(plan: Plan, works: dict[bool, Workload]) -> bool:
    """Whether any pass asks which edges of the graph its own are."""
    drafts = [
        Draft(
            plan.strategy, work, plan.shape, plan.layout, plan.machine, plan.knobs,
            uses=KNOBS[plan.strategy],
        )
        for work in works.values()
    ]  # fmt: skip
    return any(draft.edge_ids for draft in drafts)

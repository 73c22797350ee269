"""Halo: every remote row that a rank reads is brought once a layer, in bulk.

An EXCHANGE fills each rank's boundary rows while it aggregates its own; then those are aggregated.
Backward sums what the rank gives to boundary rows, and an EXCHANGE brings it to their owners.
Boundary rows of inputs never change: they are there before the first step (``keep_inputs``).
Classes of sources (``slice``): 0 own rows, 1 boundary rows.

Legend: P rows of one part, H boundary rows that it reads.
"""

from __future__ import annotations

from tiergnn.graph.shape import GraphShape, Layout
from tiergnn.hardware.machine import Machine
from tiergnn.planner.strategies.bulk import Bulk
from tiergnn.planner.strategies.draft import Draft
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.planner.strategies.ranked import Gathered, Ranked, written
from tiergnn.schedule.actions import Lane, Op
from tiergnn.schedule.contents import Content, What
from tiergnn.schedule.schedule import Schedule
from tiergnn.workload import StageWork, Workload

USES = ("ranks", "recompute", "storage", "keep_inputs")


def write(
    workload: Workload, shape: GraphShape, layout: Layout, machine: Machine, knobs: Knobs
) -> Schedule:
    """One training step of ``ranks``. Raises PlanError where a tier is too small."""
    draft = Draft("halo", workload, shape, layout, machine, knobs, uses=USES)
    return written(draft, _Halo, training=True)


def evaluation(
    workload: Workload, shape: GraphShape, layout: Layout, machine: Machine, knobs: Knobs
) -> Schedule:
    """One evaluation: each rank is left with the output's rows of its part."""
    draft = Draft("halo", workload, shape, layout, machine, knobs, uses=USES)
    return written(draft, _Halo, training=False)


class _Halo:
    def __init__(self, ranked: Ranked) -> None:
        self._ranked, self._draft, self._writer = ranked, ranked.draft, ranked.writer
        self._bulk = Bulk(ranked)

    def give(self) -> None:
        for rank in self._ranked.ranks:
            self._ranked.rooms.topology(rank, num_classes=2)
            self._ranked.rooms.inputs(rank)
            if self._draft.knobs.keep_inputs:
                self._ranked.rooms.inputs_of_others(rank)

    def made(self, name: str) -> None:
        """Rows are exchanged when they are gathered."""

    def summed(self, stage: StageWork, sums: dict[int, list[str]]) -> None:
        """Nothing is exchanged between sums and update."""

    def dropped(self, name: str, rank: int) -> None:
        """Boundary rows go when they have been read."""

    def bring(self, stage: StageWork, op: Op) -> Gathered:
        return self._bulk.bring(stage, op)

    def give_back(self, stage: StageWork, grads: Gathered) -> None:
        self._bulk.give_back(stage, grads)

    def sums(self, stage: StageWork, op: Op) -> dict[int, list[str]]:
        draft, ranks, rows = self._draft, self._ranked.ranks, self._ranked.rows
        sources = {r: [rows[name, r] for name in stage.gathers] for r in ranks}
        made = {rank: [self._ranked.rooms.sum_room(stage, rank, 0)] for rank in ranks}
        holds = {rank: Content(What.HALO, stage.gathers[0], rank) for rank in ranks}
        kept = {rank: self._ranked.rooms.kept.get(holds[rank]) for rank in ranks}
        halos = {rank: kept[rank] or self._room(stage, rank, What.HALO) for rank in ranks}
        for rank in ranks:
            part = draft.layout.parts[rank]
            self._aggregate(stage, op, rank, 0, sources[rank], made[rank][0], part.local_edges)
        if not any(kept.values()):
            tag, targets = f"s{stage.index}.{op.value.lower()}", {r: [halos[r]] for r in ranks}
            self._bulk.exchange(tag, stage.gathers, sources, targets, back=False)
        for rank in ranks:
            part = draft.layout.parts[rank]
            if part.halo:
                made[rank].append(self._ranked.rooms.sum_room(stage, rank, 1))
                rest = part.edges - part.local_edges
                # Own rows stand first among the sources of both classes.
                reads = [*sources[rank], halos[rank]]
                self._aggregate(stage, op, rank, 1, reads, made[rank][1], rest)
            if not kept[rank]:
                self._writer.release(rank, halos[rank])
        return made

    def scatter(self, stage: StageWork, grads: dict[int, str]) -> dict[int, list[str]]:
        draft, ranks = self._draft, self._ranked.ranks
        made = {rank: [self._ranked.rooms.grad_room(stage, rank, 0)] for rank in ranks}
        given = {rank: self._room(stage, rank, What.HALO_GRAD) for rank in ranks}
        returned = {rank: self._bulk.returned(stage.gathers[0], rank) for rank in ranks}
        for rank in ranks:
            part = draft.layout.parts[rank]
            rest = part.edges - part.local_edges
            # What goes to others first: it travels while the rank sums what stays.
            self._aggregate(stage, Op.BACKWARD, rank, 1, [grads[rank]], given[rank], rest)
            self._aggregate(
                stage, Op.BACKWARD, rank, 0, [grads[rank]], made[rank][0], part.local_edges
            )
        sources = {rank: [buffer] for rank, buffer in given.items()}
        targets = {rank: [buffer] for rank, buffer in returned.items()}
        tag = f"s{stage.index}.backward"
        self._bulk.exchange(tag, stage.gathers, sources, targets, back=True)
        for rank in ranks:
            self._writer.release(rank, given[rank])
            made[rank].append(returned[rank])
        return made

    def _room(self, stage: StageWork, rank: int, what: What) -> str:
        name = stage.gathers[0]
        num_bytes = self._draft.layout.parts[rank].halo * self._draft.sum_bytes(stage)
        back = what is What.HALO_GRAD
        return self._draft.take(
            f"{name}.halo.grad.p{rank}" if back else f"{name}.halo.p{rank}",
            "gradients" if back else "cache",
            num_bytes,
            rank=rank,
            holds=Content(what, name, rank),
        )

    def _aggregate(
        self,
        stage: StageWork,
        op: Op,
        rank: int,
        index: int,
        sources: list[str],
        out: str,
        edges: int,
    ) -> None:
        backward = op is Op.BACKWARD
        total = max(1, self._draft.layout.parts[rank].edges)
        self._writer.add(
            rank,
            Lane.COMPUTE,
            op,
            stage=stage.index,
            part=rank,
            slice=index,
            reads=[*sources, self._ranked.rooms.edges(op, rank)],
            writes=[out],
            work=self._draft.works(
                stage.backward if backward else stage.forward,
                self._draft.extent(rank),
                kinds=("gather",),
                edges_frac=edges / total,
                backward=backward,
            ),
        )

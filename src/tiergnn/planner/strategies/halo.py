"""Halo: every remote row that a rank reads is brought once a layer, in bulk.

An EXCHANGE fills each rank's boundary rows while it aggregates its own; then those are aggregated.
Backward sums what the rank gives to boundary rows, and an EXCHANGE brings it to their owners.

Legend: P rows of one part, H boundary rows that it reads.
"""

from __future__ import annotations

from tiergnn.graph.shape import GraphShape, Layout
from tiergnn.hardware.machine import Machine
from tiergnn.planner.strategies.draft import Draft
from tiergnn.planner.strategies.fitting import fitted
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.planner.strategies.ranked import Ranked
from tiergnn.schedule.actions import Lane, Op, Work
from tiergnn.schedule.schedule import Schedule
from tiergnn.workload import StageWork, Workload

USES = ("ranks", "recompute", "storage")


def write(
    workload: Workload, shape: GraphShape, layout: Layout, machine: Machine, knobs: Knobs
) -> Schedule:
    """One training step of ``ranks``. Raises PlanError where a tier is too small."""
    ranked = Ranked(Draft("halo", workload, shape, layout, machine, knobs, uses=USES))
    ranked.write(_Halo(ranked))
    return fitted(ranked.draft.finish(), machine)


class _Halo:
    def __init__(self, ranked: Ranked) -> None:
        self._ranked, self._draft, self._writer = ranked, ranked.draft, ranked.writer

    def give(self) -> None:
        for rank in self._ranked.ranks:
            self._ranked.topology(rank)
            self._ranked.inputs(rank)

    def made(self, name: str) -> None:
        """Rows are exchanged when they are gathered."""

    def summed(self, stage: StageWork, sums: dict[int, list[str]]) -> None:
        """Nothing is exchanged between sums and update."""

    def dropped(self, name: str, rank: int) -> None:
        """Boundary rows go when they have been read."""

    def sums(self, stage: StageWork, op: Op) -> dict[int, list[str]]:
        draft, ranks, rows = self._draft, self._ranked.ranks, self._ranked.rows
        sources = {r: [rows[name, r] for name in stage.gathers] for r in ranks}
        made = {rank: [self._ranked.sum_room(stage, rank, 0)] for rank in ranks}
        halos = {rank: self._room(stage, rank, "halo", "cache") for rank in ranks}
        whole = not stage.columnwise  # an operation that wants all sources of a row at once
        for rank in () if whole else ranks:
            part = draft.layout.parts[rank]
            self._aggregate(stage, op, rank, 0, sources[rank], made[rank], part.local_edges)
        self._exchange(stage, f"s{stage.index}.{op.value.lower()}", sources, halos, back=False)
        for rank in ranks:
            part = draft.layout.parts[rank]
            if whole:
                reads = [*sources[rank], halos[rank]]
                self._aggregate(stage, op, rank, 0, reads, made[rank], part.edges)
            elif part.halo:
                made[rank].append(self._ranked.sum_room(stage, rank, 1))
                rest = part.edges - part.local_edges
                self._aggregate(stage, op, rank, 1, [halos[rank]], made[rank][1:], rest)
            self._writer.release(rank, halos[rank])
        return made

    def scatter(self, stage: StageWork, grads: dict[int, str]) -> dict[int, list[str]]:
        draft, ranks = self._draft, self._ranked.ranks
        made = {rank: [self._ranked.grad_room(stage, rank, 0)] for rank in ranks}
        given = {rank: self._room(stage, rank, "halo.grad", "gradients") for rank in ranks}
        received = {rank: self._received(stage, rank) for rank in ranks}
        for rank in ranks:
            part = draft.layout.parts[rank]
            rest = part.edges - part.local_edges
            # What goes to others first: it travels while the rank sums what stays.
            self._aggregate(stage, Op.BACKWARD, rank, 1, [grads[rank]], [given[rank]], rest)
            self._aggregate(
                stage, Op.BACKWARD, rank, 0, [grads[rank]], made[rank], part.local_edges
            )
        sources = {rank: [buffer] for rank, buffer in given.items()}
        self._exchange(stage, f"s{stage.index}.backward", sources, received, back=True)
        for rank in ranks:
            self._writer.release(rank, given[rank])
            made[rank].append(received[rank])
        return made

    def _room(self, stage: StageWork, rank: int, name: str, kind: str) -> str:
        num_bytes = self._draft.layout.parts[rank].halo * self._draft.sum_bytes(stage)
        label = f"{stage.gathers[0]}.{name}.p{rank}"
        return self._draft.take(label, kind, num_bytes, rank=rank)

    def _sent_rows(self, rank: int) -> int:
        """Rows of a rank that others read, once for each of them."""
        return sum(part.halo_of[rank] for part in self._draft.layout.parts)

    def _received(self, stage: StageWork, rank: int) -> str:
        num_bytes = self._sent_rows(rank) * self._draft.sum_bytes(stage)
        label = f"{stage.gathers[0]}.grad.in.p{rank}"
        return self._draft.take(label, "gradients", num_bytes, rank=rank)

    def _aggregate(
        self,
        stage: StageWork,
        op: Op,
        rank: int,
        index: int,
        sources: list[str],
        out: list[str],
        edges: int,
    ) -> None:
        backward = op is Op.BACKWARD
        topology = f"topology.out.r{rank}" if backward else f"topology.r{rank}"
        total = max(1, self._draft.layout.parts[rank].edges)
        self._writer.add(
            rank,
            Lane.COMPUTE,
            op,
            stage=stage.index,
            part=rank,
            slice=index,
            reads=[*sources, topology],
            writes=out,
            work=self._draft.works(
                stage.backward if backward else stage.forward,
                self._draft.extent(rank),
                kinds=("gather",),
                edges_frac=edges / total,
                backward=backward,
            ),
        )

    def _exchange(
        self,
        stage: StageWork,
        tag: str,
        sources: dict[int, list[str]],
        targets: dict[int, str],
        *,
        back: bool,
    ) -> None:
        """Boundary rows from owners to readers, or ``back``: what each rank sends."""
        draft, ranks = self._draft, self._ranked.ranks
        row = sum(draft.stored_bytes(name) for name in stage.gathers)
        work: dict[int, list[Work]] = {}
        for rank in ranks:
            by_link: dict[str, int] = {}
            for other in ranks:
                parts = draft.layout.parts
                rows = parts[rank].halo_of[other] if back else parts[other].halo_of[rank]
                if rows and other != rank:
                    link = draft.peer(rank, other, bulk=True)
                    by_link[link] = by_link.get(link, 0) + rows
            work[rank] = [
                Work(kind="move", amount=rows * row, place=link) for link, rows in by_link.items()
            ]
        self._writer.meet(
            Op.EXCHANGE,
            tag,
            Lane.PEER,
            reads=sources,
            writes={rank: [buffer] for rank, buffer in targets.items()},
            after=dict.fromkeys(ranks, ()),
            work=work,
        )

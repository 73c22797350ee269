"""NFP: every rank aggregates a slice of the columns over the whole topology.

Two all-to-alls a layer: rows of all columns become columns of all rows, and back; the row-local
rest of a stage runs on the rank's own rows. What moves does not depend on the edges. What is no sum
over edges (attention, maxima) is computed by rows instead, boundary rows being exchanged.

Legend: V nodes of the graph, P rows of one part, N ranks, W columns.
"""

from __future__ import annotations

from tiergnn.graph.shape import GraphShape, Layout
from tiergnn.hardware.machine import Machine
from tiergnn.planner.strategies.bulk import Bulk
from tiergnn.planner.strategies.draft import Draft
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.planner.strategies.ranked import Gathered, Ranked, written
from tiergnn.schedule.actions import Lane, Op, Work
from tiergnn.schedule.contents import Content, What
from tiergnn.schedule.schedule import Schedule
from tiergnn.workload import StageWork, Workload

USES = ("ranks", "recompute", "storage")


def write(
    workload: Workload, shape: GraphShape, layout: Layout, machine: Machine, knobs: Knobs
) -> Schedule:
    """One training step of ``ranks``. Raises PlanError where a tier is too small."""
    draft = Draft("nfp", workload, shape, layout, machine, knobs, uses=USES)
    return written(draft, _Columns, training=True)


def evaluation(
    workload: Workload, shape: GraphShape, layout: Layout, machine: Machine, knobs: Knobs
) -> Schedule:
    """One evaluation: each rank is left with the output's rows of its part."""
    draft = Draft("nfp", workload, shape, layout, machine, knobs, uses=USES)
    return written(draft, _Columns, training=False)


class _Columns:
    def __init__(self, ranked: Ranked) -> None:
        self._ranked, self._draft, self._writer = ranked, ranked.draft, ranked.writer
        self._bulk = Bulk(ranked)

    def give(self) -> None:
        draft = self._draft
        for rank in self._ranked.ranks:
            self._ranked.rooms.inputs(rank)
            self._ranked.rooms.topology(rank, draft.whole, num_classes=1)

    def made(self, name: str) -> None:
        """Rows are exchanged when they are gathered."""

    def summed(self, stage: StageWork, sums: dict[int, list[str]]) -> None:
        """Nothing is exchanged between sums and update."""

    def dropped(self, name: str, rank: int) -> None:
        """Columns go when they have been read."""

    def bring(self, stage: StageWork, op: Op) -> Gathered:
        return self._bulk.bring(stage, op)

    def give_back(self, stage: StageWork, grads: Gathered) -> None:
        self._bulk.give_back(stage, grads)

    def sums(self, stage: StageWork, op: Op) -> dict[int, list[str]]:
        rows = self._ranked.rows
        sources = {r: [rows[n, r] for n in stage.gathers] for r in self._ranked.ranks}
        return self._across(stage, op, sources)

    def scatter(self, stage: StageWork, grads: dict[int, str]) -> dict[int, list[str]]:
        sources = {rank: [buffer] for rank, buffer in grads.items()}
        return self._across(stage, Op.BACKWARD, sources)

    def _columns(self, stage: StageWork, rank: int) -> int:
        """Columns, or heads, of a rank, as bytes of a row."""
        draft = self._draft
        units = draft.units(stage)
        mine = units // draft.num_ranks + (rank < units % draft.num_ranks)
        return draft.sum_bytes(stage) * mine // max(1, units)

    def _across(
        self, stage: StageWork, op: Op, sources: dict[int, list[str]]
    ) -> dict[int, list[str]]:
        """Own rows to own columns, the aggregation, and back."""
        draft, ranks, backward = self._draft, self._ranked.ranks, op is Op.BACKWARD
        tag = f"s{stage.index}.{op.value.lower()}"
        nodes = draft.whole.rows
        kind = "gradients" if backward else "activations"
        label = f"{'grad' if backward else 'sum'}.s{stage.index}"

        def columns(name: str, rank: int) -> str:
            num_bytes = nodes * self._columns(stage, rank)
            holds = Content(What.COLUMNS, stage.gathers[0], rank)
            label = f"{name}.columns.p{rank}"
            return draft.take(label, kind, num_bytes, rank=rank, holds=holds)

        given = {rank: columns(stage.gathers[0], rank) for rank in ranks}
        self._exchange(stage, f"{tag}.in", sources, given, to_columns=True)
        totals = {}
        for rank in ranks:
            totals[rank] = columns(label, rank)
            self._writer.add(
                rank,
                Lane.COMPUTE,
                op,
                stage=stage.index,
                slice=rank,
                reads=[given[rank], self._ranked.rooms.edges(op, rank)],
                writes=[totals[rank]],
                work=draft.works(
                    stage.backward if backward else stage.forward,
                    draft.whole,
                    kinds=("gather",),
                    frac=self._columns(stage, rank) / max(1, draft.sum_bytes(stage)),
                    backward=backward,
                ),
            )
            self._writer.release(rank, given[rank])
        room = self._ranked.rooms.grad_room if backward else self._ranked.rooms.sum_room
        made = {rank: room(stage, rank, 0) for rank in ranks}
        by_rank = {rank: [buffer] for rank, buffer in totals.items()}
        self._exchange(stage, f"{tag}.out", by_rank, made, to_columns=False)
        for rank in ranks:
            self._writer.release(rank, totals[rank])
        return {rank: [buffer] for rank, buffer in made.items()}

    def _exchange(
        self,
        stage: StageWork,
        tag: str,
        sources: dict[int, list[str]],
        targets: dict[int, str],
        *,
        to_columns: bool,
    ) -> None:
        """An all-to-all; the work of each rank is what it sends. Rows cut into columns, and what is
        narrowed, pass through a workspace."""
        draft, ranks = self._draft, self._ranked.ranks
        stored = self._ranked.rooms.sent_bytes(stage.gathers)
        computed = max(1, draft.sum_bytes(stage))
        work: dict[int, list[Work]] = {}
        staging: dict[int, str] = {}
        for rank in ranks:
            by_link: dict[str, int] = {}
            for other in ranks:
                if other == rank:
                    continue
                rows, columns = (rank, other) if to_columns else (other, rank)
                sent = draft.layout.parts[rows].rows * self._columns(stage, columns)
                link = draft.peer(rank, other, bulk=True)
                by_link[link] = by_link.get(link, 0) + sent * stored // computed
            work[rank] = [
                Work(kind="move", amount=num_bytes, place=link)
                for link, num_bytes in by_link.items()
                if num_bytes
            ]
            staged = draft.layout.parts[rank].rows * stored
            if stored < computed:
                staged += draft.whole.rows * self._columns(stage, rank) * stored // computed
            label = f"{stage.gathers[0]}.sent.p{rank}"
            staging[rank] = draft.take(label, "workspace", staged, rank=rank, lane=Lane.PEER)
        self._writer.meet(
            Op.EXCHANGE,
            tag,
            Lane.PEER,
            reads=sources,
            writes={rank: [buffer, staging[rank]] for rank, buffer in targets.items()},
            after=dict.fromkeys(ranks, ()),
            work=work,
        )
        for rank in ranks:
            self._writer.release(rank, staging[rank], lane=Lane.PEER)

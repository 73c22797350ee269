"""UVA: all rows that are gathered lie in pinned host memory and are read there, in place.

The zero-copy way of DGL: a device reads a row over its link to the host for every edge, its own
rows too, and writes what others will read back to the host. No cache. Row-local code reads own rows
that are still on the device.

Legend: P rows of one part, E edges.
"""

from __future__ import annotations

from tiergnn.graph.shape import GraphShape, Layout
from tiergnn.hardware.machine import Machine
from tiergnn.planner.strategies.draft import Draft
from tiergnn.planner.strategies.in_memory import in_memory
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.planner.strategies.ranked import Gathered, Ranked, written
from tiergnn.planner.strategies.reading import Reading
from tiergnn.schedule.actions import Lane, Op, Work
from tiergnn.schedule.contents import Content, What
from tiergnn.schedule.schedule import Schedule
from tiergnn.workload import StageWork, Workload

USES = ("ranks", "recompute", "storage")


def write(
    workload: Workload, shape: GraphShape, layout: Layout, machine: Machine, knobs: Knobs
) -> Schedule:
    """One training step of ``ranks``. Raises PlanError where a tier is too small."""
    draft = Draft("uva", workload, shape, layout, machine, knobs, uses=USES)
    return written(draft, _Host, training=True)


def evaluation(
    workload: Workload, shape: GraphShape, layout: Layout, machine: Machine, knobs: Knobs
) -> Schedule:
    """One evaluation: each rank is left with the output's rows of its part."""
    draft = Draft("uva", workload, shape, layout, machine, knobs, uses=USES)
    return written(draft, _Host, training=False)


class _Host:
    """Host memory as the source of every gathered row."""

    def __init__(self, ranked: Ranked) -> None:
        self._ranked, self._draft, self._writer = ranked, ranked.draft, ranked.writer
        self._host: dict[tuple[str, int], str] = {}  # (tensor, rank) -> its rows in host memory
        self._whole = Reading(ranked, self)

    def give(self) -> None:
        gathered = {name for stage in self._draft.workload.stages for name in stage.gathers}
        for rank in self._ranked.ranks:
            self._ranked.rooms.topology(rank, num_classes=1)
            self._ranked.rooms.inputs(rank)
            for name in self._draft.workload.inputs:
                if name in gathered:
                    num_bytes = self._draft.count(name, rank) * self._ranked.rooms.sent_bytes(
                        [name]
                    )
                    self._host[name, rank] = self._writer.given(
                        f"{name}.p{rank}@host", rank, "host", "features", num_bytes,
                        holds=Content(What.ROWS, name, rank),
                    )  # fmt: skip

    def made(self, name: str) -> None:
        if not any(name in stage.gathers for stage in self._draft.workload.stages):
            return
        for rank in self._ranked.ranks:
            num_bytes = self._draft.count(name, rank) * self._draft.stored_bytes(name)
            self._host[name, rank] = self._publish(
                f"{name}.p{rank}@host", rank, "activations", num_bytes,
                self._ranked.rows[name, rank], Content(What.ROWS, name, rank),
            )  # fmt: skip

    def _publish(
        self, name: str, rank: int, kind: str, num_bytes: int, source: str, holds: Content
    ) -> str:
        """Rows from the device to host memory, where all ranks read them."""
        host = self._draft.take(
            name, kind, num_bytes, rank=rank, tier="host", lane=Lane.D2H, holds=holds
        )
        self._writer.add(
            rank,
            Lane.D2H,
            Op.COPY,
            part=rank,
            reads=[source],
            writes=[host],
            work=[Work(kind="move", amount=num_bytes, place=self._draft.link("d2h"))],
        )
        return host

    def summed(self, stage: StageWork, sums: dict[int, list[str]]) -> None:
        """Nothing is exchanged between sums and update."""

    def dropped(self, name: str, rank: int) -> None:
        host = self._host.pop((name, rank), None)
        if host is not None:
            self._writer.release(rank, host, lane=Lane.D2H)

    # Stages that want all sources together

    lane = Lane.H2D

    def shown(self, name: str, rank: int) -> str:
        return self._host[name, rank]

    def show(self, name: str, rank: int, buffer: str, num_bytes: int) -> str:
        holds = Content(What.SOURCES_GRAD, name, rank)
        label = f"{name}.grad.p{rank}.in@host"
        return self._publish(label, rank, "gradients", num_bytes, buffer, holds)

    def row_bytes(self, name: str) -> int:
        return self._ranked.rooms.sent_bytes([name])

    def reads(self, rank: int, rows_of: tuple[int, ...], row_bytes: int) -> list[Work]:
        rows = sum(count for other, count in enumerate(rows_of) if other != rank)
        place = self._draft.link("zero_copy", "h2d")
        return [Work(kind="move", amount=rows * row_bytes, grain=max(1, row_bytes), place=place)]

    def bring(self, stage: StageWork, op: Op) -> Gathered:
        return self._whole.bring(stage, op)

    def give_back(self, stage: StageWork, grads: Gathered) -> None:
        self._whole.give_back(stage, grads)

    # Sums

    def sums(self, stage: StageWork, op: Op) -> dict[int, list[str]]:
        ranks = self._ranked.ranks
        sources = {r: [self._host[name, r] for name in stage.gathers] for r in ranks}
        return {r: [b] for r, b in self._read(stage, op, sources).items()}

    def scatter(self, stage: StageWork, grads: dict[int, str]) -> dict[int, list[str]]:
        sources = {}
        for rank, source in grads.items():
            num_bytes = self._draft.layout.parts[rank].rows * self._row_bytes(stage)
            name = f"sum.s{stage.index}.grad.p{rank}@host"
            holds = Content(What.SUM_GRAD, stage.gathers[0], rank)
            sources[rank] = [self._publish(name, rank, "gradients", num_bytes, source, holds)]
        made = self._read(stage, Op.BACKWARD, sources)
        for rank, (host,) in sources.items():
            self._writer.release(rank, host, lane=Lane.D2H)
        return {rank: [buffer] for rank, buffer in made.items()}

    def _row_bytes(self, stage: StageWork) -> int:
        return self._ranked.rooms.sent_bytes(stage.gathers)

    def _reads_of_edges(self, rank: int, row_bytes: int, backward: bool) -> list[Work]:
        """A row for every edge, own rows too."""
        part = self._draft.layout.part(rank, leaving=backward)
        read = Work(
            kind="move",
            amount=part.edges * row_bytes,
            grain=max(1, row_bytes),
            place=self._draft.link("zero_copy", "h2d"),
        )
        return in_memory(self._draft, [read], part.sources, leaving=backward)

    def _read(self, stage: StageWork, op: Op, sources: dict[int, list[str]]) -> dict[int, str]:
        """Every rank's sums, from rows that all ranks have in host memory."""
        draft, ranks, backward = self._draft, self._ranked.ranks, op is Op.BACKWARD
        tag = f"s{stage.index}.{op.value.lower()}"
        if draft.num_ranks > 1:
            self._writer.meet(
                Op.BARRIER, f"{tag}.in", Lane.PEER, reads=sources, after=dict.fromkeys(ranks, ())
            )
        everyone = [name for names in sources.values() for name in names]
        made, read = {}, {}
        room = self._ranked.rooms.grad_room if backward else self._ranked.rooms.sum_room
        row = self._row_bytes(stage)
        for rank in ranks:
            made[rank] = room(stage, rank, 0)
            read[rank] = [
                self._writer.add(
                    rank,
                    Lane.H2D,
                    op,
                    stage=stage.index,
                    part=rank,
                    slice=0,
                    reads=[*everyone, self._ranked.rooms.edges(op, rank)],
                    writes=[made[rank]],
                    work=self._reads_of_edges(rank, row, backward),
                )
            ]
        if draft.num_ranks > 1:
            self._writer.meet(Op.BARRIER, f"{tag}.out", Lane.PEER, after=read)
        return made

"""Classes: the sums of one rank over its classes of sources, each where its rows lie.

Legend: P rows of one part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property, lru_cache, partial

from tiergnn.planner.strategies.in_memory import in_memory
from tiergnn.planner.strategies.pages import fault_pages
from tiergnn.planner.strategies.pieces import adding, ahead, pieces_of
from tiergnn.planner.strategies.ranked import Ranked
from tiergnn.planner.strategies.shares import Piece, Replicas, shares_of
from tiergnn.schedule.actions import Lane, Op, Work
from tiergnn.schedule.contents import Content, What
from tiergnn.workload import StageWork

_OF_HOST = 8  # pieces of replicas in host memory at least: up to four are on the device at once


class Classes:
    """Classes (``slice``): 0 own rows, 1 replicas on the device, 2 replicas in host memory, 3 rows
    in their owner's memory."""

    def __init__(self, ranked: Ranked) -> None:
        self._ranked, self._draft, self._writer = ranked, ranked.draft, ranked.writer
        self._knobs = ranked.draft.knobs
        self.shares = lru_cache(maxsize=None)(partial(shares_of, ranked.draft))

    def pieces(self, leaving: bool) -> tuple[int, int]:
        """In how many pieces replicas lie, on the device and in host memory."""
        return self._pieces[leaving]

    def more_pieces(self, rank: int, leaving: bool) -> int:
        """Of a rank, than one of each class that it has replicas of."""
        shares, pieces = self.shares(rank, leaving), self.pieces(leaving)
        rows = shares.device_rows, shares.host_rows
        return sum(max(0, min(pair) - 1) for pair in zip(rows, pieces, strict=True))

    @cached_property
    def _pieces(self) -> tuple[tuple[int, int], tuple[int, int]]:
        into, out = (self._pieces_of(leaving) for leaving in (False, True))
        return into, out

    def _pieces_of(self, leaving: bool) -> tuple[int, int]:
        draft, knobs = self._draft, self._knobs
        if knobs.pieces:
            return knobs.pieces, knobs.pieces
        rank = max(range(draft.num_ranks), key=lambda r: self.shares(r, leaving).device_rows)
        shares, found = self.shares(rank, leaving), 1
        more = shares.host_rows or shares.remote_edges  # comes after: sums have all that time
        if shares.device_rows and not more and knobs.pipeline and knobs.asynchronous:
            found = pieces_of(draft, rank, shares.device_rows, leaving=leaving)
        return found, max(found, _OF_HOST)

    def stored(self, stage: StageWork) -> int:
        """Bytes of a gathered row in host memory."""
        return self._ranked.rooms.sent_bytes(stage.gathers)

    def sums(
        self,
        stage: StageWork,
        op: Op,
        rank: int,
        sources: dict[int, list[str]],
        replicas: Replicas,
        room: Callable[[StageWork, int, int], str],
        met: dict[int, int],
        starts: list[int],
        filled: Iterable[Piece],
    ) -> tuple[list[str], list[int]]:
        """One rank's sums by class, and the actions that read of other ranks. ``filled`` are the
        pieces in host memory, one by one as they are filled."""
        leaving = op is Op.BACKWARD
        shares, knobs = self.shares(rank, leaving), self._knobs
        own, remote_lane = sources[rank], Lane.PEER if knobs.pipeline else Lane.COMPUTE
        # All rooms first: what comes over another lane need not wait for this rank's own sums.
        distant = shares.remote_edges > 0 and not knobs.managed
        near = knobs.managed or bool(replicas.device)
        wanted = {0: True, 1: near, 2: bool(replicas.host), 3: distant}
        sums = {index: room(stage, rank, index) for index, there in wanted.items() if there}
        scratch = ""
        if max(len(replicas.device), len(replicas.host)) > 1:
            size = self._draft.layout.parts[rank].rows * self._draft.sum_bytes(stage)
            label = f"work.s{stage.index}.p{rank}.piece"
            scratch = self._draft.take(label, "workspace", size, rank=rank)
        after = [*starts, *([met[rank]] if rank in met else [])]
        read: list[int] = []
        pages = ""
        if knobs.managed:
            pages, index = fault_pages(self._draft, stage, rank, sources, after)
            read.append(index)
        self._add(stage, op, rank, 0, own, [sums[0]], shares.local_edges, after=starts)
        if pages:
            part = self._draft.layout.part(rank, leaving=leaving)
            edges = part.edges - shares.local_edges
            self._add(stage, op, rank, 1, [pages], [sums[1]], edges)
            self._writer.release(rank, pages)
        for piece in replicas.device:
            self._piece(stage, op, rank, 1, [*own, piece.buffer], [sums[1], scratch], piece)
        if replicas.host:
            self._from_host(stage, op, rank, own, filled, [sums[2], scratch])
        if scratch:
            self._writer.release(rank, scratch)
        if distant:
            others = [name for r in sources if r != rank for name in sources[r]]
            read.append(
                self._writer.add(
                    rank,
                    remote_lane,
                    op,
                    stage=stage.index,
                    part=rank,
                    slice=3,
                    reads=[*own, *others, self._ranked.rooms.edges(op, rank)],
                    writes=[sums[3]],
                    after=after,
                    work=in_memory(
                        self._draft,
                        self._draft.remote_reads(
                            rank, self._draft.sum_bytes(stage), shares.remote_edges, leaving=leaving
                        ),
                        self._draft.layout.part(rank, leaving=leaving).halo,
                        leaving=leaving,
                    ),
                )
            )
        return list(sums.values()), read

    def _add(
        self,
        stage: StageWork,
        op: Op,
        rank: int,
        index: int,
        sources: list[str],
        out: list[str],
        edges: int,
        *,
        after: list[int] | None = None,
        more: tuple[Work, ...] = (),
    ) -> None:
        """One class that lies on the device."""
        backward = op is Op.BACKWARD
        total = max(1, self._draft.layout.part(rank, leaving=backward).edges)
        self._writer.add(
            rank,
            Lane.COMPUTE,
            op,
            stage=stage.index,
            part=rank,
            slice=index,
            reads=[*sources, self._ranked.rooms.edges(op, rank)],
            writes=out,
            after=after or (),
            work=[
                *self._draft.works(
                    stage.backward if backward else stage.forward,
                    self._draft.extent(rank),
                    kinds=("gather",),
                    edges_frac=edges / total,
                    backward=backward,
                ),
                *more,
            ],
        )

    def _piece(
        self,
        stage: StageWork,
        op: Op,
        rank: int,
        index: int,
        sources: list[str],
        out: list[str],
        piece: Piece,
    ) -> None:
        """One piece of a class; all but the first are summed in the second room of ``out`` and
        added to what is in the first one."""
        shares = self.shares(rank, op is Op.BACKWARD)
        part = self._draft.layout.part(rank, leaving=op is Op.BACKWARD)
        first, last = (int(part.edges_served(number)) for number in piece.rows)
        begins = piece.rows[0] == (0 if index == 1 else shares.device_rows)
        size = self._draft.layout.parts[rank].rows * self._draft.sum_bytes(stage)
        more = () if begins else (adding(size),)
        rooms = out[:1] if begins else out
        self._add(stage, op, rank, index, sources, rooms, last - first, more=more)

    def chunk(self, stage: StageWork, rank: int, piece: Piece, what: What, lane: Lane) -> str:
        """Room on the device for a piece that is, or is to be, in host memory."""
        draft, name = self._draft, stage.gathers[0]
        return draft.take(
            f"{name}.chunk.p{rank}", "staging", piece.num_rows * draft.sum_bytes(stage), rank=rank,
            lane=lane, holds=Content(what, name, rank, rows=piece.rows),
        )  # fmt: skip

    def _from_host(
        self,
        stage: StageWork,
        op: Op,
        rank: int,
        own: list[str],
        pieces: Iterable[Piece],
        out: list[str],
    ) -> None:
        """Pieces in host memory, each of which comes while the one before it is summed."""
        lane = Lane.H2D if self._knobs.pipeline else Lane.COMPUTE
        what = What.GRAD_REPLICAS if op is Op.BACKWARD else What.REPLICAS

        def come(piece: Piece) -> str:
            chunk = self.chunk(stage, rank, piece, what, lane)
            amount = piece.num_rows * self.stored(stage)
            self._writer.add(
                rank,
                lane,
                Op.COPY,
                stage=stage.index,
                part=rank,
                reads=[piece.buffer],
                writes=[chunk],
                work=[Work(kind="move", amount=amount, place=self._draft.link("h2d"))],
            )
            return chunk

        for piece, chunk in ahead(pieces, come):
            self._piece(stage, op, rank, 2, [*own, chunk], out, piece)
            self._writer.release(rank, chunk)

    def to_host(self, stage: StageWork, rank: int, chunk: str, piece: Piece, maker: int) -> int:
        """A piece, from a chunk on the device, which is given back; ``maker`` is the stage that
        made its rows."""
        lane = Lane.D2H if self._knobs.pipeline else Lane.COMPUTE
        amount = piece.num_rows * self.stored(stage)
        copied = self._writer.add(
            rank,
            lane,
            Op.COPY,
            stage=maker,
            part=rank,
            reads=[chunk],
            writes=[piece.buffer],
            work=[Work(kind="move", amount=amount, place=self._draft.link("d2h"))],
        )
        self._writer.release(rank, chunk, lane=lane)
        return copied

"""Classes: the sums of one rank over its classes of sources, each where its rows lie.

Legend: P rows of one part.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

from tiergnn.planner.strategies.in_memory import in_memory
from tiergnn.planner.strategies.pages import fault_pages
from tiergnn.planner.strategies.ranked import Ranked
from tiergnn.planner.strategies.shares import Replicas, shares_of
from tiergnn.schedule.actions import Lane, Op, Work
from tiergnn.schedule.contents import Content, What
from tiergnn.workload import StageWork

CHUNKS = 4  # in which replicas are brought from host memory, one while another is aggregated


class Classes:
    """Classes (``slice``): 0 own rows, 1 replicas on the device, 2 replicas in host memory, 3 rows
    in their owner's memory."""

    def __init__(self, ranked: Ranked) -> None:
        self._ranked, self._draft, self._writer = ranked, ranked.draft, ranked.writer
        self._knobs = ranked.draft.knobs
        self.shares = lru_cache(maxsize=None)(partial(shares_of, ranked.draft))

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
    ) -> tuple[list[str], list[int]]:
        """One rank's sums by class, and the actions that read of other ranks."""
        leaving = op is Op.BACKWARD
        shares, knobs = self.shares(rank, leaving), self._knobs
        own, remote_lane = sources[rank], Lane.PEER if knobs.pipeline else Lane.COMPUTE
        # All rooms first: what comes over another lane need not wait for this rank's own sums.
        distant = shares.remote_edges > 0 and not knobs.managed
        near = knobs.managed or bool(replicas.device)
        wanted = {0: True, 1: near, 2: bool(replicas.host), 3: distant}
        sums = {index: room(stage, rank, index) for index, there in wanted.items() if there}
        after = [*starts, *([met[rank]] if rank in met else [])]
        read: list[int] = []
        pages = ""
        if knobs.managed:
            pages, index = fault_pages(self._draft, stage, rank, sources, after)
            read.append(index)
        self._add(stage, op, rank, 0, own, sums[0], shares.local_edges, after=starts)
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
        if pages:
            part = self._draft.layout.part(rank, leaving=leaving)
            edges = part.edges - shares.local_edges
            self._add(stage, op, rank, 1, [pages], sums[1], edges)
            self._writer.release(rank, pages)
        if replicas.device:
            self._add(stage, op, rank, 1, [*own, replicas.device], sums[1], shares.device_edges)
        if replicas.host:
            self._from_host(stage, op, rank, own, replicas.host, sums[2])
        return list(sums.values()), read

    def _add(
        self,
        stage: StageWork,
        op: Op,
        rank: int,
        index: int,
        sources: list[str],
        out: str,
        edges: int,
        *,
        after: list[int] | None = None,
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
            writes=[out],
            after=after or (),
            work=self._draft.works(
                stage.backward if backward else stage.forward,
                self._draft.extent(rank),
                kinds=("gather",),
                edges_frac=edges / total,
                backward=backward,
            ),
        )

    def _from_host(
        self, stage: StageWork, op: Op, rank: int, own: list[str], replicas: str, out: str
    ) -> None:
        """Replicas in host memory come in chunks, each aggregated while the next one comes."""
        shares, draft = self.shares(rank, op is Op.BACKWARD), self._draft
        lane = Lane.H2D if self._knobs.pipeline else Lane.COMPUTE
        bounds = [shares.host_rows * i // CHUNKS for i in range(CHUNKS + 1)]
        edges = [shares.host_edges * i // CHUNKS for i in range(CHUNKS + 1)]
        what = What.GRAD_REPLICAS if op is Op.BACKWARD else What.REPLICAS
        for i in range(CHUNKS):
            rows = bounds[i + 1] - bounds[i]
            if not rows:
                continue
            first = shares.device_rows + bounds[i]
            chunk = draft.take(
                f"{stage.gathers[0]}.chunk.p{rank}", "staging",
                rows * draft.sum_bytes(stage), rank=rank, lane=lane,
                holds=Content(what, stage.gathers[0], rank, rows=(first, first + rows)),
            )  # fmt: skip
            self._writer.add(
                rank,
                lane,
                Op.COPY,
                stage=stage.index,
                part=rank,
                reads=[replicas],
                writes=[chunk],
                work=[Work(kind="move", amount=rows * self.stored(stage), place=draft.link("h2d"))],
            )
            self._add(stage, op, rank, 2, [*own, chunk], out, edges[i + 1] - edges[i])
            self._writer.release(rank, chunk)

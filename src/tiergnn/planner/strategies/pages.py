"""Pages: unified memory, modelled: rows of other ranks come as pages at faults.

A model and no measurement. Every rank reads a page with rows of another rank once a layer, and the
owner takes its pages back when it writes: less than what ranks that read at once really bounce.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tiergnn.planner.strategies.draft import Draft
from tiergnn.schedule.actions import Lane, Op, Work
from tiergnn.workload import StageWork

PAGE_BYTES = 64 * 1024  # that move at a fault
FAULTS = 256  # that are served at once


def fault_pages(
    draft: Draft,
    stage: StageWork,
    rank: int,
    sources: Mapping[int, list[str]],
    after: Iterable[int],
) -> tuple[str, int]:
    """A buffer with the pages of other ranks' rows, and the action that brought them."""
    part = draft.layout.parts[rank]
    row = max(1, sum(draft.stored_bytes(name) for name in stage.gathers))
    others = max(1, draft.whole.rows - part.rows)
    per_page = max(1, PAGE_BYTES // row)
    touched = 1 - (1 - min(1.0, part.halo / others)) ** per_page
    pages = round(touched * -(-others * row // PAGE_BYTES)) if part.halo else 0
    back = -(-part.rows * row // PAGE_BYTES)
    buffer = draft.take(f"{stage.gathers[0]}.pages.p{rank}", "cache", pages * PAGE_BYTES, rank=rank)
    index = draft.writer.add(
        rank,
        Lane.H2D,
        Op.COPY,
        stage=stage.index,
        part=rank,
        reads=[name for r in sources if r != rank for name in sources[r]] or sources[rank],
        writes=[buffer],
        after=after,
        work=[
            Work(
                kind="move",
                amount=(pages + back) * PAGE_BYTES,
                grain=PAGE_BYTES,
                place=draft.link("pageable", "h2d"),
                launches=max(1, -(-(pages + back) // FAULTS)),
            )
        ],
    )
    return buffer, index

"""Pieces: in how many of them rows of others come, so that one is summed while the next one comes.

A piece takes its launches, and one more pass over all sums of the part, to which it is added. Rows
that serve most edges come first: of what comes last little is left to be summed. All pulls of a
schedule one way are cut alike, since each piece has its edges in a block of its own.

Legend: P rows of one part, H boundary rows that it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TypeVar

from tiergnn.planner.cost import Costs
from tiergnn.planner.strategies.draft import Draft
from tiergnn.schedule.actions import Action, Lane, Op, Work
from tiergnn.workload import StageWork

T = TypeVar("T")
MOST = 16
_WORTH = 0.01  # of a pull: what less than this is won is not worth more pieces


def cut(first: int, last: int, pieces: int) -> Iterator[tuple[int, int]]:
    """The numbers from ``first`` to ``last`` in so many pieces, those that are empty left out."""
    bounds = [first + (last - first) * i // pieces for i in range(pieces + 1)]
    return (pair for pair in pairwise(bounds) if pair[0] < pair[1])


def ahead(pieces: Iterable[T], come: Callable[[T], str]) -> Iterator[tuple[T, str]]:
    """Each piece and the room that it comes to, once the next one has been told to come: two rooms
    at a time, so that a piece does not wait until the one before it is used."""
    before: tuple[T, str] | None = None
    for piece in pieces:
        now = piece, come(piece)
        if before is not None:
            yield before
        before = now
    if before is not None:
        yield before


def adding(sum_bytes: int) -> Work:
    """What is summed of a piece added to what was summed before: two reads and a write."""
    return Work(kind="stream", amount=3 * sum_bytes)


def widest(draft: Draft) -> StageWork | None:
    """The stage whose sums are over the widest rows that are not there from the beginning."""
    inputs = draft.workload.inputs
    pulled = [s for s in draft.workload.stages if s.divisible and s.gathers[0] not in inputs]
    return max(pulled, key=draft.sum_bytes, default=None)


def pieces_of(draft: Draft, rank: int, rows: int, *, leaving: bool) -> int:
    """How many make the widest pull of a rank's ``rows`` hottest boundary rows end soonest, sums
    and all. Where lanes share the cores of a CPU nothing is won."""
    stage = widest(draft)
    if stage is None or draft.machine.device.kind == "cpu":
        return 1
    row_bytes = draft.sum_bytes(stage)
    pull = draft.remote_reads(rank, row_bytes, rows, leaving=leaving)
    costs = Costs.of(draft.machine)
    come_s = costs.seconds(_action(Lane.PEER, Op.COPY, pull))
    part = draft.layout.part(rank, leaving=leaving)
    degrees = draft.shape.in_degrees if leaving else draft.shape.out_degrees
    ends: dict[int, float] = {}
    for pieces in range(1, min(MOST, max(1, rows)) + 1):
        sums_s: list[float] = []
        for first, last in cut(0, rows, pieces):
            edges = part.edges_served(last) - part.edges_served(first)
            gather = Work(
                kind="gather",
                amount=round(edges) * row_bytes,
                grain=max(1, row_bytes),
                span=rows * row_bytes,
                evenness=degrees.evenness,
            )
            work = [gather, Work(kind="walk", amount=part.rows)]
            work += [adding(part.rows * row_bytes)] if sums_s else []
            sums_s.append(costs.seconds(_action(Lane.COMPUTE, Op.AGGREGATE, work)))
        ends[pieces] = _end_s(come_s, sums_s)
    soonest = min(ends.values())
    return next(n for n, end_s in ends.items() if end_s <= soonest + _WORTH * come_s)


def _action(lane: Lane, op: Op, work: Sequence[Work]) -> Action:
    return Action(index=0, rank=0, lane=lane, op=op, work=tuple(work))


def _end_s(come_s: float, sums_s: Sequence[float]) -> float:
    """When the last piece is summed, where all come within ``come_s``, one after the other."""
    now = 0.0
    for number, sum_s in enumerate(sums_s, start=1):
        now = max(now, come_s * number / len(sums_s)) + sum_s
    return now

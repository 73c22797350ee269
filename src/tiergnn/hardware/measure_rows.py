"""Rates at which our aggregation kernels gather rows, by their width and by where the table lies.

A sum over some 16 in-edges a row, from sources at random, is timed on tables that fit a core's own
cache, that fit the last cache, and that fit neither. Of the last two a part is still answered by
the nearer caches; that part is taken out, so that a prediction can put any share of it back. What
a row takes whatever its edges is found beside a sum over fewer of them, and taken out, too.

Legend: P destinations, S sources, E edges, D columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from tiergnn.hardware.clock import Call, Clock
from tiergnn.hardware.effort import Effort
from tiergnn.hardware.machine import Curve, cache_of, hit_frac
from tiergnn.kernels.aggregate import aggregate
from tiergnn.kernels.block import Block

DEGREE, FEW = 16, 4  # edges of a row: about those of the graphs that people have, and fewer
_ID_BYTES, _END_BYTES = 4, 8  # of an edge's source, of a row's end
FAR = 8  # how often a table outside of a cache holds it
_NEAR = 0.25  # the share of a memory that a table well inside it takes
_MOST = 0.9  # that a nearer cache may answer: of less than a tenth, nothing can be said
_WIDTH = 256  # bytes of the rows by which the cache is sized
_NARROW = 64  # of those by which a row is told from its edges
LEAST_FRAC = 0.02  # of what takes longer: of less than that nothing can be said


@dataclass(frozen=True, slots=True, kw_only=True)
class GatherRates:
    """``cache_bytes`` is what the last cache is worth, which other tenants may share."""

    near_bytes: int
    cache_bytes: int
    near: Curve | None
    cached: Curve
    memory: Curve
    walks_per_s: float | None  # rows a second, whatever their edges; None: none to speak of


def random_rowptr(edges: int, generator: torch.Generator, degree: int = DEGREE) -> Tensor:
    """Rows of ``degree`` edges on average and of very different lengths, as graphs have them."""
    device, shape = generator.device, (edges // degree - 1,)
    ends = torch.randint(edges + 1, shape, generator=generator, device=device)
    bounds = torch.tensor([0, edges], device=device)
    return torch.cat([bounds[:1], ends.sort().values, bounds[1:]])


class _Gatherer:
    """Sums of random rows, all from one memory."""

    def __init__(
        self,
        clock: Clock,
        effort: Effort,
        pass_bytes: int,
        other_s: Callable[[int], float],
    ):
        self._clock, self._effort, self._other_s = clock, effort, other_s
        self._pass_bytes = pass_bytes
        # An edge's id may take as much as its row; drawing ids at random takes twice of them.
        self._memory = torch.ones(effort.most_bytes // 2 // 4, device=clock.device)
        self._generator = torch.Generator(device=clock.device).manual_seed(0)

    @property
    def most_span(self) -> int:
        return self._memory.numel() * 4

    def span(self, row_bytes: int, wanted: float) -> int:
        """Bytes of a table that a pass of the kernel sees as ``wanted`` bytes, where they fit."""
        passes = row_bytes / self._pass_bytes if 0 < self._pass_bytes < row_bytes else 1.0
        most = self.most_span // row_bytes * row_bytes
        return min(most, max(row_bytes, round(wanted * passes) // row_bytes * row_bytes))

    def seen(self, row_bytes: int, span: int) -> float:
        """Of a table of ``span`` bytes, what one pass reads."""
        narrow = 0 < self._pass_bytes < row_bytes
        return span * self._pass_bytes / row_bytes if narrow else float(span)

    def s_per_byte(
        self, cases: Iterable[tuple[int, int]], walk_s: float
    ) -> dict[tuple[int, int], float]:
        """(bytes of a row, bytes of the table) -> seconds a byte of rows gathered."""
        found = {}
        calls = {(row, span): partial(self._call, row, span) for row, span in cases}
        for (row, span), seconds in self._clock.times(calls, "gathers").items():
            edges = self._edges(row)
            other_s = self._in_order_s(row) + edges // DEGREE * walk_s
            # What is left of a call that takes little more than the rest of it is noise, not 0.
            found[row, span] = max(seconds - other_s, seconds / 10) / (edges * row)
        return found

    def walk_s(self, row_bytes: int, span: int) -> float:
        """Seconds of a row beside its edges and what is read and written in order."""
        cases = {degree: partial(self._call, row_bytes, span, degree) for degree in (FEW, DEGREE)}
        taken = self._clock.times(cases, "rows")
        few_s, many_s = (taken[d] - self._in_order_s(row_bytes, d) for d in (FEW, DEGREE))
        more = self._edges(row_bytes) // FEW - self._edges(row_bytes) // DEGREE
        beyond_s = few_s - many_s
        return beyond_s / more if beyond_s > LEAST_FRAC * taken[FEW] else 0.0

    def _in_order_s(self, row_bytes: int, degree: int = DEGREE) -> float:
        edges = self._edges(row_bytes)
        return self._other_s(edges * _ID_BYTES + edges // degree * (row_bytes + _END_BYTES))

    def streamed(self, row_bytes: int) -> float:
        """Bytes in order for each byte of a row: an edge's id, and a row written for every 16."""
        if self._pass_bytes:
            return 0.0  # as costs have it of a device that walks rows in passes
        return (_ID_BYTES + (row_bytes + _END_BYTES) / DEGREE) / row_bytes

    def _edges(self, row_bytes: int) -> int:
        """A row takes a cache line at least: so many that no cache keeps all that one call reads.

        An edge's id is drawn as well, and takes memory.
        """
        edges = self._effort.read_bytes // max(row_bytes, 64 + _ID_BYTES)
        return max(DEGREE, edges // DEGREE * DEGREE)

    def _call(self, row_bytes: int, span: int, degree: int = DEGREE) -> Call:
        block, x_SD = self._case(row_bytes, span, degree)

        def call() -> None:
            with torch.no_grad():
                aggregate(block, x_SD)

        return self._clock.of_device(call)

    def _case(self, row_bytes: int, span: int, degree: int) -> tuple[Block, Tensor]:
        edges = self._edges(row_bytes)
        num_rows = max(1, span // row_bytes)
        col = torch.randint(
            num_rows,
            (edges,),
            generator=self._generator,
            device=self._clock.device,
            dtype=torch.int32,
        )
        rowptr = random_rowptr(edges, self._generator, degree)
        width = row_bytes // 4
        num_src = max(num_rows, edges // degree)
        x_SD = self._memory[: num_src * width].view(num_src, width)
        return Block(rowptr=rowptr, col=col, num_src=num_src), x_SD


def measure_gathers(
    clock: Clock,
    effort: Effort,
    *,
    near_bytes: int,
    cache_bytes: int,
    other_s: Callable[[int], float],
    pass_bytes: int = 0,
) -> GatherRates:
    """``near_bytes`` and ``cache_bytes`` are what the machine states, 0 where there is no such
    cache; ``pass_bytes`` as in ``Device``. ``other_s`` gives the seconds of a call that only reads
    and writes so many bytes in order, which are taken off."""
    gatherer = _Gatherer(clock, effort, pass_bytes, other_s)
    rows = effort.row_bytes
    near_bytes = min(near_bytes, int(gatherer.most_span * _NEAR))
    within = {row: gatherer.span(row, near_bytes / 2) for row in rows if near_bytes}
    middle = max(2 * near_bytes, (near_bytes * cache_bytes) ** 0.5) or cache_bytes * _NEAR
    inside = {row: gatherer.span(row, middle) for row in rows}
    far = {row: gatherer.span(row, FAR * cache_bytes) for row in rows}
    reference = min(rows, key=lambda row: abs(row - _WIDTH))
    around = [gatherer.span(reference, cache_bytes * share) for share in (0.5, 1, 2, 4)]
    pairs = [pair for spans in (within, inside, far) for pair in spans.items()]
    narrow = min(rows, key=lambda row: abs(row - _NARROW))
    walk_s = gatherer.walk_s(narrow, inside[narrow])
    taken = gatherer.s_per_byte([*pairs, *((reference, span) for span in around)], walk_s)
    _at_most(taken, rows, [far, inside, *([within] if within else [])])

    near = {row: taken[row, span] for row, span in within.items()}
    cached = {}
    for row, span in inside.items():
        seen = gatherer.seen(row, span)
        answered = min(_MOST, hit_frac(near_bytes, seen, 1.0, gatherer.streamed(row)))
        nearest = near.get(row, 0.0)
        cached[row] = max(nearest, _rest(taken[row, span], answered, nearest))
    worth = _cache_worth(
        [(gatherer.seen(reference, s), taken[reference, s]) for s in around],
        (gatherer.seen(reference, far[reference]), taken[reference, far[reference]]),
        stated=cache_bytes,
        cached_s=cached[reference],
    )
    memory = {}
    for row, span in far.items():
        seen = gatherer.seen(row, span)
        answered = min(_MOST, hit_frac(worth, seen, 1.0, gatherer.streamed(row)))
        memory[row] = max(cached[row], _rest(taken[row, span], answered, cached[row]))
    return GatherRates(
        near_bytes=min(near_bytes, worth) if near else 0,
        cache_bytes=worth,
        near=_curve(near) if near else None,
        cached=_curve(cached),
        memory=_curve(memory),
        walks_per_s=1 / walk_s if walk_s else None,
    )


def _at_most(
    taken: dict[tuple[int, int], float],
    rows: Sequence[int],
    outermost_first: Sequence[Mapping[int, int]],
) -> None:
    """Lower what took longer than it can: a byte of a wider row, or of a table that lies nearer,
    takes no longer. Whatever disturbs a measurement only adds to it, so the least one is right."""
    for row in rows:
        for level, spans in enumerate(outermost_first):
            bounds = [taken[other, spans[other]] for other in rows if other <= row]
            bounds += [taken[row, farther[row]] for farther in outermost_first[:level]]
            taken[row, spans[row]] = min(bounds)


def _rest(whole_s: float, answered_frac: float, answered_s: float) -> float:
    """What a read takes that a nearer cache did not answer, from what all took on average."""
    return (whole_s - answered_frac * answered_s) / (1 - answered_frac)


def _cache_worth(
    around: list[tuple[float, float]], far: tuple[float, float], *, stated: int, cached_s: float
) -> int:
    """Bytes of a cache that would answer as many reads as were answered.

    ``around`` are tables about as large as the cache and ``far`` one that is much larger, each as
    (bytes, seconds a byte).
    """
    worth = float(stated)
    for _ in range(4):  # what memory takes, and what the cache is worth: each from the other
        memory_s = _rest(far[1], min(_MOST, hit_frac(worth, far[0])), cached_s)
        if memory_s <= cached_s:
            return stated  # no difference that could be measured
        found = sorted(
            cache_of(share, span)
            for span, taken in around
            if span < far[0] and 0.1 < (share := (memory_s - taken) / (memory_s - cached_s)) < 0.9
        )
        if not found:
            break
        worth = min(max(found[len(found) // 2], stated / 8), 2.0 * stated)
    return round(worth)


def _curve(s_per_byte: dict[int, float]) -> Curve:
    return Curve(tuple((float(row), 1 / taken) for row, taken in sorted(s_per_byte.items())))

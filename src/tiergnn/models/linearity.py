"""Bytes of a few runs on blocks of different sizes as functions of the block that hold for all.

Legend: B blocks, N numbers that each gives, in one order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tiergnn.workload import TASKS, Extent, Peak, Size, Tasks

_PAGE = 4096
_EXACT = 0.75  # what is off by less was measured
# Kinds of tasks that one total may have.
_TOGETHER = [("sums", "sums_t"), ("attention", "attention_t")]
_STEPS = 8  # coefficients are whole eighths: a bit a row is the least that there is


class Law:
    """What is fitted: blocks by their counts, ``loops`` of their edges being loops."""

    def __init__(self, extents: Sequence[Extent], loops: Sequence[int]):
        self._plain_BK = np.array([[1, e.rows, e.sources, e.edges] for e in extents], np.float64)
        counts = {kind: [cut.count(e) for e in extents] for kind, cut in TASKS.items()}
        counts["loops"] = list(loops)
        kinds = [(kind,) for kind in counts] + [(kind, "loops") for kind in TASKS] + _TOGETHER
        self._more = [
            (names, np.array([counts[name] for name in names], np.float64).T) for names in kinds
        ]

    def totals(self, by_block: Sequence[Sequence[float]]) -> list[Size]:
        """What was held at first (nothing) and after each allocation, in the order of all blocks.

        Blocks that did not do alike give two: the most that was held, and what was left.
        """
        totals = [np.concatenate([[0.0], np.cumsum(events)]) for events in by_block]
        if len({total.size for total in totals}) > 1:
            totals = [np.array([total.max(), total[-1]]) for total in totals]
        return self.sizes(np.stack(totals))

    def size(self, values_B: Sequence[float]) -> Size:
        return self.sizes(np.array(values_B, np.float64)[:, None])[0]

    def sizes(self, values_BN: np.ndarray) -> list[Size]:
        """The sizes that give ``values`` [B, N] on all blocks, or at least as much.

        What is no linear function of the counts is met by one with tasks, or with loops (of which
        a row has one at most), where that is exact; else from above.
        """
        found: list[Size | None] = [None] * values_BN.shape[1]
        self._solve(self._plain_BK, values_BN, (), found)
        for kinds, columns in self._more:
            if None not in found:
                break
            if np.ptp(columns, axis=0).all():  # else it is nothing of its own
                self._solve(np.hstack([self._plain_BK, columns]), values_BN, kinds, found)
        return [
            self._bound(values_BN[:, place]) if size is None else size
            for place, size in enumerate(found)
        ]

    def _solve(
        self,
        given_BK: np.ndarray,
        values_BN: np.ndarray,
        kinds: tuple[str, ...],
        found: list[Size | None],
    ) -> None:
        """Put exact solutions, which need fewer coefficients than blocks, where none stands."""
        if given_BK.shape[1] >= given_BK.shape[0]:
            return
        rounded = np.round(_least_squares(given_BK, values_BN) * _STEPS) / _STEPS
        exact = np.abs(given_BK @ rounded - values_BN).max(axis=0, initial=0) <= _EXACT
        for place in np.flatnonzero(exact):
            if found[place] is not None:
                continue
            # Adding 0 makes 0 of -0.
            fixed, row, source, edge, *rest = (float(n) + 0.0 for n in rounded[:, place])
            more = dict(zip(kinds, rest, strict=True))
            row += max(0.0, more.pop("loops", 0.0))
            tasks = tuple(Tasks(kind, number) for kind, number in sorted(more.items()) if number)
            found[place] = Size(fixed, row, source, edge, tasks)

    def _bound(self, values_B: np.ndarray) -> Size:
        """The nearest linear size, raised by twice what it is short of at most and a page: lengths
        that are rounded up differ by as much again from those that were seen."""
        found = _least_squares(self._plain_BK, values_B)
        found[0] += 2 * max(0.0, float((values_B - self._plain_BK @ found).max())) + _PAGE
        fixed, row, source, edge = (float(number) for number in found)
        return Size(fixed, row, source, edge)


def _least_squares(given_BK: np.ndarray, values: np.ndarray) -> np.ndarray:
    scale = np.maximum(np.abs(given_BK).max(axis=0), 1.0)
    solved = np.linalg.lstsq(given_BK / scale, values, rcond=None)[0]
    return (solved.T / scale).T


def peak_of(sizes: Sequence[Size]) -> Peak:
    """The largest of some sizes, without those that another is never below, and those below 0."""
    kept: list[Size] = []
    for size in sorted(set(sizes), key=_weight, reverse=True):
        if not any(_covers(other, size) for other in (Size(), *kept)):
            kept.append(size)
    return Peak(tuple(kept))


def _weight(size: Size) -> float:
    return size.fixed + 1e3 * (size.per_row + size.per_source) + 1e4 * size.per_edge


def _covers(one: Size, other: Size) -> bool:
    """Whether ``one`` is at least ``other`` on every block; S >= P."""
    more = one - other
    return (
        more.fixed >= 0
        and more.per_source >= 0
        and more.per_row + more.per_source >= 0
        and more.per_edge >= 0
        and all(task.per_task >= 0 for task in more.tasks)
    )

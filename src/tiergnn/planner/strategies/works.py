"""Works: what terms of a workload take on a block, worked out once for blocks that are alike."""

from __future__ import annotations

from collections.abc import Sequence

from tiergnn.graph.shape import GraphShape
from tiergnn.schedule.actions import Work
from tiergnn.workload import PRODUCTS, Extent, Term

ALL = ("gather", "matmul", "stream")
# What goes along with what.
_BESIDE = {
    "walk": "gather", "attend": "gather", "drop": "gather", "softmax": "gather", "add": "gather",
    "outer": "matmul", "rowwise": "stream", "total": "stream", "draw": "stream", "fresh": "stream",
}  # fmt: skip
_OF_ROWS = ("walk", "softmax")  # that a graph operation makes
_Asked = tuple[int, Extent, tuple[str, ...], float, float, bool]


class Works:
    """Of one schedule: its parts and slices ask alike, thousands of times."""

    def __init__(self, shape: GraphShape, dtype: str) -> None:
        self._evenness = (shape.out_degrees.evenness, shape.in_degrees.evenness)
        self._dtype_place = "device" if dtype == "float32" else dtype
        # By the id of the terms, which are kept with their works so that no others get it.
        self._made: dict[_Asked, tuple[Sequence[Term], tuple[Work, ...]]] = {}

    def of(
        self,
        terms: Sequence[Term],
        extent: Extent,
        *,
        kinds: tuple[str, ...] = ALL,
        frac: float = 1.0,
        edges_frac: float = 1.0,
        backward: bool = False,
    ) -> list[Work]:
        """What terms take on a block: of ``frac`` of its columns, gathers of ``edges_frac`` edges.

        Forward reads a row as often as it has out-edges, backward as often as in-edges.
        """
        asked = (id(terms), extent, kinds, frac, edges_frac, backward)
        if asked not in self._made:
            works = []
            for term in terms:
                kind = _BESIDE.get(term.kind, term.kind)
                share = frac * (edges_frac if kind == "gather" else 1.0)
                if term.kind in _OF_ROWS:  # whatever of their edges and columns is read
                    share = frac if term.kind == "softmax" else 1.0
                amount = round(term.amount.at(extent) * share)
                if kind in kinds and amount:
                    works.append(self._work(term, extent, amount, frac, backward=backward))
            self._made[asked] = (terms, tuple(works))
        return list(self._made[asked][1])

    def _work(
        self, term: Term, extent: Extent, amount: int, frac: float, *, backward: bool
    ) -> Work:
        return Work(
            kind=term.kind,
            amount=amount,
            grain=max(1, round(term.grain * frac)),
            span=round(term.table.at(extent) * frac),
            place=self._dtype_place if term.kind in PRODUCTS else "device",
            launches=term.launches,
            evenness=self._evenness[backward] if term.kind == "gather" else 1.0,
        )

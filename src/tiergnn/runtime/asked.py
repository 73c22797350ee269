"""Asked: the nodes whose rows of the output an evaluation gives, by the parts that make them.

Legend: V nodes, P rows of one part, N nodes that are asked for.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tiergnn.runtime.parts import Parts
from tiergnn.runtime.whole import Whole
from tiergnn.schedule.contents import Content, What


def among(ids: Tensor, gid: Tensor) -> tuple[Tensor, Tensor]:
    """Which of the nodes ``gid`` [P] are among ``ids`` [N], ascending, and where they stand there:
    int64 of as many."""
    if not ids.numel():
        none = gid.new_zeros(0, dtype=torch.int64)
        return none, none
    place = torch.searchsorted(ids, gid).clamp(max=ids.numel() - 1)
    rows = torch.nonzero(ids[place] == gid).flatten()
    return rows, place[rows]


class Asked:
    """``ids`` int64 [N], ascending and distinct; None: all nodes of ``parts``."""

    def __init__(self, parts: Parts | Whole, ids: Tensor | None):
        self._parts, self.ids = parts, ids
        self._rows: list[Tensor] = []  # of each part, among its own
        self._places: list[Tensor] = []  # the same, among all that are asked for
        if ids is None:
            return
        for gid in parts.gids:
            rows, places = among(ids, gid)
            self._rows.append(rows)
            self._places.append(places)

    @property
    def num_nodes(self) -> int:
        return sum(self._parts.num_rows) if self.ids is None else self.ids.numel()

    def rows(self, part: int) -> Tensor | None:
        """int64, ascending: which of a part's rows; None: all."""
        return self._rows[part] if self._rows else None

    def places(self, part: int) -> Tensor:
        """int64: where a part's rows stand in the answer."""
        return self._places[part] if self._places else self._parts.gids[part]

    def num_rows(self, part: int) -> int:
        return len(self.places(part))

    def count(self, content: Content, of: str) -> int:
        """Rows of what a buffer holds, as ``parts`` has it, and of answers."""
        if content.what is What.ANSWER:
            return self.num_rows(content.part)
        return self._parts.count(content, of)

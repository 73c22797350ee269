"""Asked: the nodes whose rows of the output an evaluation gives, by the parts that make them.

Legend: V nodes, P rows of one part, N nodes that are asked for.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tiergnn.runtime.parts import Parts
from tiergnn.runtime.whole import Whole
from tiergnn.schedule.contents import Content, What


class Asked:
    """``ids`` int64 [N], ascending and distinct; None: all nodes of ``parts``."""

    def __init__(self, parts: Parts | Whole, ids: Tensor | None):
        self._parts, self.ids = parts, ids
        self._rows: list[Tensor] = []  # of each part, among its own
        self._places: list[Tensor] = []  # the same, among all that are asked for
        if ids is None:
            return
        for gid in parts.gids:
            place = torch.searchsorted(ids, gid)
            found = torch.zeros_like(place, dtype=torch.bool)
            if ids.numel():
                place = place.clamp(max=ids.numel() - 1)
                found = ids[place] == gid
            self._rows.append(torch.nonzero(found).flatten())
            self._places.append(place[found])

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

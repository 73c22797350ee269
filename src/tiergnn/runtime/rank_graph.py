"""RankGraph: what one rank has of a graph, for one executor or for several that take turns.

Legend: P own rows, H rows of others that they read, E edges.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cached_property

import torch
from torch import Tensor

from tiergnn.graph.csr import Graph
from tiergnn.graph.partition import Partition
from tiergnn.kernels.block import Block
from tiergnn.runtime.own_inputs import OwnInputs
from tiergnn.runtime.own_part import OwnPart
from tiergnn.runtime.replicas import cuts_of
from tiergnn.runtime.source_classes import (
    Chosen,
    Reach,
    SourceClass,
    SourceClasses,
    chosen_by,
    own_and_halo,
    reach_of,
    whole_graph,
)
from tiergnn.schedule.contents import What
from tiergnn.schedule.schedule import Schedule
from tiergnn.transport.transport import Transport


class RankGraph:
    """The part of ``transport``'s rank: its inputs, and its edges by where their sources lie. All
    ranks make theirs together.

    ``edge_ids``: blocks know their edges' place in the graph. ``leaving``: the edges that leave own
    rows, where they are known. What was made once, on ``device``, is kept as long as this.
    """

    def __init__(
        self,
        graph: Graph,
        parts: Partition,
        transport: Transport,
        *,
        device: torch.device,
        dtype: torch.dtype,
        normalize_rows: bool = False,
        edge_ids: bool = True,
        leaving: Reach | None = None,
    ):
        self.graph, self.parts, self._device = graph, parts, device
        self.part = OwnPart(graph, parts, transport, edge_ids=edge_ids, device=device)
        self.inputs = OwnInputs(graph, self.part, device, dtype, normalize_rows=normalize_rows)
        self.brought: dict[str, Tensor] = {}  # inputs by name: rows of others [H, D], by owner
        self._leaving = leaving
        self._made: dict[tuple[int, Chosen], SourceClass] = {}

    @cached_property
    def reach(self) -> tuple[Reach, Reach]:
        """Own edges, and those that leave own rows."""
        graph, parts, rank = self.graph, self.parts, self.part.rank
        leaving = self._leaving or reach_of(graph, parts, rank, out=True)
        return reach_of(graph, parts, rank, out=False), leaving

    def classes(
        self, schedules: Sequence[Schedule], *, reached: bool
    ) -> tuple[SourceClasses, SourceClasses | None]:
        """The edges as aggregations go over them: by sources, or all where columns are cut; and
        those that leave own rows, where (``reached``) backward goes over them."""
        own = self.part.rank
        if reached:
            found: list[dict[Hashable, SourceClass]] = [
                {cut: self._class(way, each) for cut, each in chosen_by(own, cuts).items()}
                for way, cuts in enumerate(cuts_of(schedules, own))
            ]
            return found[0], found[1]
        held = [b.holds for s in schedules for b in s.buffers if b.holds is not None]
        if any(holds.what is What.COLUMNS for holds in held):
            return {own: self._whole}, None
        return self._own_and_halo, None

    def _class(self, way: int, chosen: Chosen) -> SourceClass:
        if (way, chosen) not in self._made:
            self._made[way, chosen] = self._with_inputs(self.reach[way].edges(chosen))
        return self._made[way, chosen]

    @cached_property
    def _own_and_halo(self) -> SourceClasses:
        return own_and_halo(self.part.block, self.inputs.edges)

    @cached_property
    def _whole(self) -> SourceClass:
        return self._with_inputs(whole_graph(self.graph, self.parts))

    def _with_inputs(self, block: Block) -> SourceClass:
        """A block in host memory, on the device with the inputs of its edges."""
        assert block.eid is not None
        return SourceClass(block.to(self._device), self.inputs.of_edges(block.eid.numpy()))

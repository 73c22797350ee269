"""OwnInputs: one rank's rows of what the graph gives, as the model reads them.

Legend: P own rows, E own edges, D columns.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from tiergnn.graph.csr import Graph
from tiergnn.graph.table import Table
from tiergnn.runtime.own_part import OwnPart, as_slice
from tiergnn.runtime.rows import Rows, bad_value, first_not_finite

_EXAMPLES = 8


class OwnInputs:
    """``rows`` by name: x [P, D], and edge_weight [E] and edge_attr [E, D] where there are any, on
    ``device``. Nothing else is read of the graph's tables."""

    def __init__(
        self,
        graph: Graph,
        part: OwnPart,
        device: torch.device,
        dtype: torch.dtype,
        *,
        normalize_rows: bool,
    ):
        self._graph, self._part, self._device, self._dtype = graph, part, device, dtype
        assert graph.x is not None
        own = replace(graph.x, data=_taken(graph.x.data, part.gid.numpy()))
        x = Rows(own, device, dtype, normalize=normalize_rows).values()
        self.rows: dict[str, Tensor] = {"x": x} | self.of_edges(part.eid.numpy())

    @property
    def edges(self) -> dict[str, Tensor]:
        """Those of edges."""
        return {name: rows for name, rows in self.rows.items() if name != "x"}

    def of_edges(self, where: np.ndarray) -> dict[str, Tensor]:
        """Inputs of the edges at these places of the graph."""
        graph, found = self._graph, {}
        if graph.edge_attr is not None:
            own = replace(graph.edge_attr, data=_taken(graph.edge_attr.data, where))
            found["edge_attr"] = Rows(own, self._device, self._dtype).values()
        if graph.edge_weight is not None:
            weight = torch.from_numpy(_taken(graph.edge_weight, where))
            found["edge_weight"] = weight.to(self._device, self._dtype)
        return found

    def not_finite(self, names: Iterable[str]) -> str | None:
        """The first NaN or infinity in these inputs, in words, or None."""
        for name in names:
            if (found := first_not_finite(self.rows[name])) is not None:
                row, column, value = found
                ids = self._part.gid if name == "x" else self._part.eid
                return bad_value(self._graph, name, int(ids[row]), column, value)
        return None


def examples(graph: Graph, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
    """Some rows of each input, as a model is traced with."""
    found: dict[str, Tensor] = {}
    tables: dict[str, Table | None] = {"x": graph.x, "edge_attr": graph.edge_attr}
    for name, table in tables.items():
        if table is not None:
            some = replace(table, data=np.array(table.data[:_EXAMPLES]))
            found[name] = Rows(some, device, dtype).values()
    if graph.edge_weight is not None:
        found["edge_weight"] = torch.from_numpy(np.array(graph.edge_weight[:_EXAMPLES]))
    return {name: rows.to(device, dtype) for name, rows in found.items()}


def _taken(rows: np.ndarray, where: np.ndarray) -> np.ndarray:
    """Copies of those rows alone."""
    return np.array(rows[as_slice(where)])

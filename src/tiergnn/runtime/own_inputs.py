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
from tiergnn.runtime.rows import Rows

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
            rows = self.rows[name]
            rows = rows.reshape(len(rows), rows.shape[1:].numel())
            bad = torch.nonzero(~torch.isfinite(rows))
            if not len(bad):
                continue
            row, column = bad[0].tolist()
            value = float(rows[row, column])
            if name == "x":
                gid = int(self._part.gid[row])
                return f"x[{gid}, {column}], of node {gid}, is {value}"
            edge = int(self._part.eid[row])
            end = int(np.searchsorted(self._graph.rowptr, edge, side="right")) - 1
            place = f"{edge}" if name == "edge_weight" else f"{edge}, {column}"
            ends = f"{int(self._graph.col[edge])} -> {end}"
            return f"{name}[{place}], of edge {ends}, is {value}"
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

"""The undirected view of a graph: what partitioners and balancing walk.

Legend: V nodes, E edges, U entries of the view (each pair of neighbours twice).
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np

from tiergnn.errors import ConfigError


@numba.njit(cache=True, nogil=True)
def _reverse(rowptr, col):
    """The out-edges: pointers int64 [V+1] and destinations [E], ascending within a node."""
    ptr = np.zeros(rowptr.size, np.int64)
    for e in range(col.size):
        ptr[col[e] + 1] += 1
    for v in range(rowptr.size - 1):
        ptr[v + 1] += ptr[v]
    slot = ptr[:-1].copy()
    out = np.empty_like(col)
    for v in range(rowptr.size - 1):
        for e in range(rowptr[v], rowptr[v + 1]):
            out[slot[col[e]]] = v
            slot[col[e]] += 1
    return ptr, out


@numba.njit(cache=True, nogil=True)
def _merge(rowptr, col, ptr, out, xadj, adjncy, eweight):
    """Merge each node's ascending in- and out-neighbours, without itself and repeats.

    Fills xadj [V+1]; adjncy and eweight only when they have room (a first call counts). eweight
    is the number of edges, either way, between two nodes. Returns its extremes.
    """
    least, most = np.int64(1) << 62, np.int64(0)
    n = 0
    for v in range(rowptr.size - 1):
        xadj[v] = n
        i, j = rowptr[v], ptr[v]
        while i < rowptr[v + 1] or j < ptr[v + 1]:
            if j == ptr[v + 1] or (i < rowptr[v + 1] and col[i] <= out[j]):
                u = col[i]
            else:
                u = out[j]
            edges = 0
            while i < rowptr[v + 1] and col[i] == u:
                i += 1
                edges += 1
            while j < ptr[v + 1] and out[j] == u:
                j += 1
                edges += 1
            if u != v:
                if adjncy.size:
                    adjncy[n] = u
                if eweight.size:
                    eweight[n] = edges
                least, most = min(least, edges), max(most, edges)
                n += 1
    xadj[rowptr.size - 1] = n
    return least, most


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class View:
    """A graph without directions, loops and repeats, as METIS takes it.

    xadj [V+1], adjncy [U] ascending within a node; eweight [U] counts the edges, either way,
    between two nodes, so that cuts are in edges of the graph; it is empty when all are equal.
    """

    xadj: np.ndarray
    adjncy: np.ndarray
    eweight: np.ndarray


def undirected_view(rowptr: np.ndarray, col: np.ndarray, dtype: np.dtype | type) -> View:
    """The View of a graph's in-edges, all three arrays in ``dtype``.

    Linear in edges; beside the result it holds the reversed edges.
    Raises ConfigError when dtype cannot count the entries.
    """
    ptr, out = _reverse(rowptr, col)
    none = np.empty(0, dtype)
    xadj = np.empty(rowptr.size, np.int64)
    least, most = _merge(rowptr, col, ptr, out, xadj, none, none)
    num_entries = int(xadj[-1])
    if num_entries > np.iinfo(dtype).max:
        raise ConfigError(
            f"this METIS counts in {np.dtype(dtype)}, "
            f"the undirected graph has {num_entries} entries",
            hint="method='block', or a pymetis built with 64-bit indices",
        )
    adjncy = np.empty(num_entries, dtype)
    eweight = np.empty(num_entries if least < most else 0, dtype)
    _merge(rowptr, col, ptr, out, xadj, adjncy, eweight)
    return View(xadj=xadj.astype(dtype, copy=False), adjncy=adjncy, eweight=eweight)

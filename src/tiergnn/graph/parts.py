"""The pieces of a partitioned graph: halos and part-local CSRs, and the passes that build them.

Legend: V nodes, E edges, K parts, P rows of one part, H halo rows of one part, S = P + H.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Halo:
    """The rows that a part reads and another part owns.

    ``gid[owner_ptr[q]:owner_ptr[q+1]]`` are those that part q owns, ascending.
    """

    gid: np.ndarray  # int32 or int64 [H]
    owner_ptr: np.ndarray  # int64 [K+1]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartCSR:
    """The in-edges of a part's own rows, over sources numbered within the part (lid).

    Sources 0..P-1 are the own rows, ascending by gid; then come the halo rows, grouped by owner.
    The edges of a row keep the order that they have in the graph.
    """

    rowptr: np.ndarray  # int64 [P+1]
    col: np.ndarray  # int32 or int64 [E of the part]: lid of each edge's source
    src_gid: np.ndarray  # int32 or int64 [S]
    eid: np.ndarray  # int64 [E of the part]: position of each edge in the graph
    owner_ptr: np.ndarray  # int64 [K+1]: into src_gid[P:]

    @property
    def num_dst(self) -> int:
        return self.rowptr.size - 1

    @property
    def num_src(self) -> int:
        return self.src_gid.size

    @property
    def dst_gid(self) -> np.ndarray:
        return self.src_gid[: self.num_dst]


@numba.njit(cache=True, nogil=True)
def group(part_of, num_parts, order):
    """Fill order [V] with node ids by part, ascending within; returns int64 [K+1] pointers."""
    ptr = np.zeros(num_parts + 1, np.int64)
    for v in range(part_of.size):
        ptr[part_of[v] + 1] += 1
    for p in range(num_parts):
        ptr[p + 1] += ptr[p]
    slot = ptr[:-1].copy()
    for v in range(part_of.size):
        p = part_of[v]
        order[slot[p]] = v
        slot[p] += 1
    return ptr


@numba.njit(cache=True, nogil=True)
def tally(rowptr, col, part_of, order, part_ptr):
    """Per part int64 [K]: in-edges from other parts, and halo rows. Holds one number a node."""
    num_parts = part_ptr.size - 1
    num_cut = np.zeros(num_parts, np.int64)
    num_halo = np.zeros(num_parts, np.int64)
    last = np.full(part_of.size, -1, np.int32)  # the last part that met a source
    for p in range(num_parts):
        for i in range(part_ptr[p], part_ptr[p + 1]):
            v = order[i]
            for e in range(rowptr[v], rowptr[v + 1]):
                u = col[e]
                if part_of[u] != p:
                    num_cut[p] += 1
                    if last[u] != p:
                        last[u] = p
                        num_halo[p] += 1
    return num_cut, num_halo


@numba.njit(cache=True, nogil=True)
def list_halos(rowptr, col, part_of, order, part_ptr, position, out):
    """Fill out with the place in ``order`` of each part's halo rows, in order of meeting."""
    last = np.full(part_of.size, -1, np.int32)
    n = 0
    for p in range(part_ptr.size - 1):
        for i in range(part_ptr[p], part_ptr[p + 1]):
            v = order[i]
            for e in range(rowptr[v], rowptr[v + 1]):
                u = col[e]
                if part_of[u] != p and last[u] != p:
                    last[u] = p
                    out[n] = position[u]
                    n += 1


@numba.njit(cache=True, nogil=True)
def _localise(rowptr, col, src_gid, num_rows, lid, out_ptr, out_col, eid):
    for i in range(src_gid.size):
        lid[src_gid[i]] = i
    n = 0
    for i in range(num_rows):
        out_ptr[i] = n
        v = src_gid[i]
        for e in range(rowptr[v], rowptr[v + 1]):
            out_col[n] = lid[col[e]]
            eid[n] = e
            n += 1
    out_ptr[num_rows] = n


def localise(
    rowptr: np.ndarray, col: np.ndarray, own: np.ndarray, num_edges: int, halo: Halo
) -> PartCSR:
    """The PartCSR of rows ``own`` [P], which have ``num_edges`` in-edges and read ``halo``.

    Reads the part's edges only; a table of V numbers is reserved and touched at S of them.
    """
    src_gid = np.concatenate([own, halo.gid])
    lid = np.empty(rowptr.size - 1, src_gid.dtype)
    out_ptr = np.empty(own.size + 1, np.int64)
    out_col = np.empty(num_edges, src_gid.dtype)
    eid = np.empty(num_edges, np.int64)
    _localise(rowptr, col, src_gid, own.size, lid, out_ptr, out_col, eid)
    return PartCSR(rowptr=out_ptr, col=out_col, src_gid=src_gid, eid=eid, owner_ptr=halo.owner_ptr)

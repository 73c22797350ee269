"""METIS: few cut edges between parts of equal load.

Legend: V nodes.
"""

from __future__ import annotations

import ctypes
import logging
from typing import Any

import numpy as np

from tiergnn.errors import ConfigError, PlanError
from tiergnn.graph.balance import Criterion, blend, cut, cut_weight, read_balance, rebalance
from tiergnn.graph.csr import Graph
from tiergnn.graph.undirected import View, undirected_view

_log = logging.getLogger("tiergnn")

# Below this many nodes a part METIS leaves parts empty and complains on standard output.
_NODES_PER_PART = 8


def metis(graph: Graph, num_parts: int, criteria: list[Criterion], seed: int) -> np.ndarray:
    """int32 [V]: METIS's part of each node on the undirected view, then ``rebalance``.

    METIS holds nodes and edges level; splits are left to ``rebalance``, which cuts fewer edges
    for them than METIS does. Asked for both nodes and edges, it is also tried with the first
    alone, and what holds with fewer edges cut is taken.
    With under 8 nodes a part METIS only gathers nodes into clusters, and equal pieces of that
    order are the parts.
    Raises ConfigError when pymetis is not installed, PlanError when METIS gives up.
    """
    try:
        import pymetis
    except ImportError as error:
        raise ConfigError(
            "method 'metis' needs pymetis, which is not installed",
            hint="pip install 'tiergnn[partition]', or method='block'",
        ) from error
    view = undirected_view(graph.rowptr, graph.col, pymetis.zero_copy_dtype())
    held = [c for c in criteria if c.name in ("nodes", "edges") and c.total]
    num_clusters = min(num_parts, graph.num_nodes // _NODES_PER_PART)
    best: tuple[tuple[int, int], np.ndarray] | None = None
    for tried in [held] if len(held) < 2 else [held, held[:1]]:
        part_of = np.zeros(graph.num_nodes, np.int32)
        if num_clusters > 1:
            call = _call_several if len(tried) > 1 else _call
            part_of = call(num_clusters, view, tried or read_balance(graph, "nodes"), seed)
        if num_clusters < num_parts:
            order = np.argsort(part_of, kind="stable")
            ptr = cut(blend(criteria)[order], num_parts)
            part_of[order] = np.repeat(np.arange(num_parts, dtype=np.int32), np.diff(ptr))
        part_of = rebalance(part_of, num_parts, criteria, view)
        missed = sum(not c.holds(c.loads(part_of, num_parts)) for c in criteria)
        score = (missed, int(cut_weight(part_of, view.xadj, view.adjncy, view.eweight)))
        if best is None or score < best[0]:
            best = score, part_of
    assert best is not None
    return best[1]


def _call(num_parts: int, view: View, criteria: list[Criterion], seed: int) -> np.ndarray:
    """One weight a node, by pymetis: that of the only criterion, or a blend of several.

    Recursive bisection: measured on real graphs it cuts about as many edges as the k-way scheme on
    meshes, up to 40 % fewer on power laws and when parts are small, and leaves parts level.
    """
    import pymetis

    scale = 1 << (40 if view.xadj.dtype == np.int64 else 28)
    vweight = criteria[0].weight if len(criteria) == 1 else blend(criteria, scale)
    vweight = vweight.astype(view.xadj.dtype)
    try:
        found = pymetis.part_graph(
            num_parts,
            pymetis.CSRAdjacency(view.xadj, view.adjncy),
            vweights=None if (vweight == vweight[0]).all() else vweight,
            eweights=view.eweight if view.eweight.size else None,
            recursive=True,
            options=pymetis.Options(seed=_seed(seed)),
        )
    except (RuntimeError, MemoryError) as error:
        raise _gave_up(str(error), view) from error
    return np.asarray(found.vertex_part).astype(np.int32)


def _call_several(num_parts: int, view: View, criteria: list[Criterion], seed: int) -> np.ndarray:
    """Several weights a node. pymetis passes one on, so the METIS inside it is called directly.

    Where its entry is not to be found, says so and blends the weights: more edges are cut.
    """
    import pymetis._internal

    internal: Any = pymetis._internal  # its types do not list the options
    entry = getattr(ctypes.CDLL(internal.__file__), "METIS_PartGraphKway", None)
    if entry is None:
        _log.warning(
            "this pymetis does not show METIS_PartGraphKway: %s are blended into one weight and "
            "mended afterwards, which cuts more edges",
            " and ".join(c.name for c in criteria),
        )
        return _call(num_parts, view, criteria, seed)
    dtype = view.xadj.dtype
    index = ctypes.c_int64 if dtype == np.int64 else ctypes.c_int32
    options = np.full(40, -1, dtype)
    slack = min(c.tolerance for c in criteria) - 1
    options[internal.options_indices.UFACTOR] = max(1, round(1000 * slack))
    options[internal.options_indices.SEED] = _seed(seed)
    vweight = np.stack([c.weight for c in criteria], axis=1).astype(dtype)
    part_of = np.empty(view.xadj.size - 1, dtype)
    num_cut = index()
    status = entry(
        *(ctypes.byref(index(n)) for n in (part_of.size, len(criteria))),
        *(_pointer(array) for array in (view.xadj, view.adjncy, vweight, None, view.eweight)),
        ctypes.byref(index(num_parts)),
        None,
        None,
        _pointer(options),
        ctypes.byref(num_cut),
        _pointer(part_of),
    )
    if status != 1:
        raise _gave_up(f"status {status}", view)
    return part_of.astype(np.int32)


def _seed(seed: int) -> int:
    """METIS's seed: 1 and up, since the C library takes 0 for 1."""
    return seed % (2**31 - 1) + 1


def _pointer(array: np.ndarray | None) -> ctypes.c_void_p | None:
    """NULL for nothing and for an empty array, which METIS takes for "all equal"."""
    return None if array is None or not array.size else array.ctypes.data_as(ctypes.c_void_p)


def _gave_up(reason: str, view: View) -> PlanError:
    return PlanError(
        f"METIS gave up on a graph of {view.adjncy.size} entries: {reason}",
        hint="method='block'; METIS needs about 120 bytes of memory an entry",
    )

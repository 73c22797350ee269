"""Whether two graphs hold the same bits."""

from __future__ import annotations

import numpy as np

from tiergnn.graph.csr import Graph


def assert_same(graph: Graph, want: Graph) -> None:
    """Every array, its dtype and every field of ``want``."""
    arrays = {
        name: (getattr(graph, name), getattr(want, name))
        for name in ("rowptr", "col", "edge_weight", "y")
    }
    for name in ("edge_attr", "x"):
        a, b = getattr(graph, name), getattr(want, name)
        assert (a is None) == (b is None), name
        if a is not None:
            assert a.dtype == b.dtype, name
            arrays[name] = a.data, b.data
            assert (a.scale is None) == (b.scale is None), name
            if a.scale is not None:
                arrays[f"{name} scale"] = a.scale, b.scale
    assert set(graph.splits) == set(want.splits)
    for name, ids in want.splits.items():
        arrays[f"split {name}"] = graph.splits[name], ids
    assert (graph.node_ids is None) == (want.node_ids is None)
    if want.node_ids is not None:
        assert graph.node_ids is not None
        assert graph.node_ids.names().tolist() == want.node_ids.names().tolist()
    for name, (a, b) in arrays.items():
        assert (a is None) == (b is None), name
        if a is not None:
            assert a.dtype == b.dtype, (name, a.dtype, b.dtype)
            assert a.shape == b.shape, name
            assert np.asarray(a).tobytes() == np.asarray(b).tobytes(), name
    assert (graph.task, graph.num_classes) == (want.task, want.num_classes)

"""Edge lists to graphs, against plain loops over a Python list."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.odd import ODD_GRAPHS, EdgeList, edge_lists
from tiergnn.errors import ConfigError, GraphError
from tiergnn.graph.csr import Graph, check_topology, from_edges, index_dtype
from tiergnn.graph.edges import to_bfloat16
from tiergnn.graph.table import Table

few = settings(max_examples=50, deadline=None)


def oracle(edges: EdgeList, weight, attr, *, undirected, self_loops, duplicates):
    """The sorted edges as (dst, src, weight, attr), the slow and obvious way."""
    out = []
    for position, (s, d) in enumerate(zip(edges.src.tolist(), edges.dst.tolist(), strict=True)):
        if s == d and self_loops == "remove":
            continue
        out.append((d, s, position, weight[position], attr[position]))
        if undirected and s != d:
            out.append((s, d, position, weight[position], attr[position]))
    if self_loops == "add":
        has = {d for d, s, *_ in out if d == s}
        out += [(v, v, 10**9, 1.0, 0.0) for v in range(edges.num_nodes) if v not in has]
    out.sort(key=lambda edge: edge[:3])
    if duplicates == "sum":
        merged: dict[tuple[int, int], list[float]] = {}
        for d, s, _, w, a in out:
            total = merged.setdefault((d, s), [0.0, 0.0])
            total[0] += w
            total[1] += a
        return [(d, s, w, a) for (d, s), (w, a) in merged.items()]
    return [(d, s, w, a) for d, s, _, w, a in out]


def listed(graph: Graph):
    dst = np.repeat(np.arange(graph.num_nodes), graph.in_degree)
    assert graph.edge_attr is not None
    return list(
        zip(
            dst.tolist(),
            graph.col.tolist(),
            graph.edge_weight.tolist(),
            graph.edge_attr.data[:, 0].tolist(),
            strict=True,
        )
    )


@few
@given(
    edges=edge_lists(),
    undirected=st.booleans(),
    self_loops=st.sampled_from(["keep", "remove", "add"]),
    duplicates=st.sampled_from(["keep", "sum"]),
    dtype=st.sampled_from([np.int16, np.uint8, np.int32, np.uint64]),
)
def test_every_option_against_plain_loops(edges, undirected, self_loops, duplicates, dtype):
    weight = np.arange(edges.src.size) + 0.5
    attr = np.arange(edges.src.size) * 2.0
    options = {"undirected": undirected, "self_loops": self_loops, "duplicates": duplicates}
    graph = from_edges(
        edges.src.astype(dtype),
        edges.dst.astype(dtype),
        edges.num_nodes,
        edge_weight=weight,
        edge_attr=attr,
        **options,
    )
    assert listed(graph) == oracle(edges, weight, attr, **options)
    assert graph.rowptr.dtype == np.int64
    assert graph.col.dtype == np.int32


@few
@given(edges=edge_lists())
def test_sum_without_weights_counts(edges):
    graph = edges.graph(duplicates="sum")
    dense = np.zeros((edges.num_nodes, edges.num_nodes))
    np.add.at(dense, (edges.dst, edges.src), 1)
    dst = np.repeat(np.arange(graph.num_nodes), graph.in_degree)
    again = np.zeros_like(dense)
    again[dst, graph.col] = graph.edge_weight
    np.testing.assert_array_equal(again, dense)
    assert graph.num_edges == (dense > 0).sum()
    assert graph.edge_weight.dtype == np.float32


def test_refuse_names_the_first_repeat_and_both_positions():
    src, dst = np.array([4, 0, 1, 0, 4, 0]), np.array([2, 1, 1, 3, 2, 1])
    with pytest.raises(GraphError, match="edge 4 -> 2 is given twice, at positions 0 and 4"):
        from_edges(src, dst, 5, duplicates="refuse")
    # As its reverse: 1 -> 0 at position 1 repeats 0 -> 1 at position 0.
    with pytest.raises(GraphError, match="at positions 0 and 1"):
        from_edges(np.array([0, 1]), np.array([1, 0]), 2, undirected=True, duplicates="refuse")


def test_refuse_accepts_what_has_no_duplicates():
    loops = np.array([0, 0, 1])
    assert from_edges(loops, np.array([1, 2, 1]), 3, duplicates="refuse").num_edges == 3
    # The loops are gone before duplicates are looked for.
    twice = np.array([1, 1, 0])
    graph = from_edges(twice, np.array([1, 1, 2]), 3, duplicates="refuse", self_loops="remove")
    assert graph.num_edges == 1


@pytest.mark.parametrize("graph", ODD_GRAPHS)
def test_odd_graphs_are_sound(graph):
    check_topology(graph.rowptr, graph.col)
    assert graph.in_degree.sum() == graph.num_edges
    assert repr(graph).startswith(f"Graph(num_nodes={graph.num_nodes}")


# --- A11: ids that are none -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("src", "dst", "what"),
    [
        ([3, 7, 9], [3, 3, 12], r"source\[1\] is 7; with num_nodes=5 ids must be 0..4"),
        ([0, 1], [2, -1], r"destination\[1\] is -1"),
        ([0, 5], [1, 1], r"source\[1\] is 5"),
        ([1, 2, 5], [2, 3, 1], "1-based"),
    ],
)
@pytest.mark.parametrize("dtype", [np.int16, np.int64])
def test_a11_bad_ids_are_named(src, dst, what, dtype):
    with pytest.raises(ValueError, match=what):
        from_edges(np.array(src, dtype), np.array(dst, dtype), 5)


@pytest.mark.parametrize("dtype", [np.float64, np.bool_, object, "U1"])
def test_a11_ids_are_whole_numbers(dtype):
    with pytest.raises(GraphError, match="needs whole numbers"):
        from_edges(np.array([0, 1]).astype(dtype), np.array([1, 1]), 2)


def test_a11_lengths_and_counts():
    with pytest.raises(GraphError, match=r"one length \[E\], have \[2\] and \[3\]"):
        from_edges(np.zeros(2, int), np.zeros(3, int), 4)
    with pytest.raises(GraphError, match="0 or more"):
        from_edges(np.zeros(0, int), np.zeros(0, int), -1)
    with pytest.raises(GraphError, match="there is no node to name"):
        from_edges(np.zeros(1, int), np.zeros(1, int), 0)


# --- A12: any order, any strides, any width ---------------------------------------------------


def test_a12_order_strides_and_width_do_not_matter():
    src = np.array([0, 5, 3, 3, 1, 4, 2, 0])
    dst = np.array([1, 0, 2, 1, 5, 5, 2, 4])
    want = from_edges(
        src, dst, 6, edge_weight=10 * src + dst, edge_attr=(10.0 * src + dst)[:, None]
    )
    rng = np.random.default_rng(0)
    shuffled = rng.permutation(8)
    pairs = np.stack([src, dst], axis=1)  # [8, 2]: its transpose is a strided view
    wide = np.zeros((4, 24), np.int64)
    wide[1, ::3], wide[3, ::3] = src, dst
    forms = {
        "shuffled": (src[shuffled], dst[shuffled]),
        "transposed view": tuple(pairs.T),
        "strided slice": (wide[1, ::3], wide[3, ::3]),
        "reversed view": (src[::-1], dst[::-1]),
        "int32": (src.astype(np.int32), dst.astype(np.int32)),
        "big endian": (src.astype(">i4"), dst.astype(">i4")),
        "mixed": (src.astype(np.int16), dst.astype(np.uint64)),
    }
    for form, (s, d) in forms.items():
        weight = 10.0 * s.astype(np.int64) + d.astype(np.int64)
        got = from_edges(s, d, 6, edge_weight=weight, edge_attr=weight[:, None])
        np.testing.assert_array_equal(got.rowptr, want.rowptr, err_msg=form)
        np.testing.assert_array_equal(got.col, want.col, err_msg=form)
        np.testing.assert_array_equal(got.edge_weight, want.edge_weight, err_msg=form)
        np.testing.assert_array_equal(got.edge_attr.data, want.edge_attr.data, err_msg=form)
    ends = np.repeat(np.arange(6), want.in_degree)
    np.testing.assert_array_equal(want.edge_weight, 10 * want.col + ends)


# --- edge rows --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (np.array([1, 2, 3], np.float16), "float16"),
        (np.array([1, 2, 3], np.float64), "float64"),
        (np.array([1, 2, 3], np.int8), "int8"),
        (np.array([True, False, True]), "bool"),
    ],
)
def test_edge_attr_keeps_its_dtype(array, dtype):
    graph = from_edges(np.array([2, 1, 0]), np.array([0, 0, 0]), 3, edge_attr=array)
    assert graph.edge_attr.dtype == dtype
    np.testing.assert_array_equal(graph.edge_attr.data[:, 0], array[::-1])


def test_sum_of_edge_attr_rounds_once_to_the_stored_dtype():
    src, dst = np.zeros(3, int), np.ones(3, int)
    small = np.array([2048, 1, 1], np.float16)  # one by one, 1 would be lost in float16
    graph = from_edges(src, dst, 2, edge_attr=small, duplicates="sum")
    assert graph.edge_attr.data.tolist() == [[2050.0]]
    bits = to_bfloat16(np.array([[256.0], [1.0], [1.0]]))
    table = Table(data=bits, dtype="bfloat16")
    graph = from_edges(src, dst, 2, edge_attr=table, duplicates="sum")
    assert graph.edge_attr.dtype == "bfloat16"
    assert graph.edge_attr.decode().tolist() == [[258.0]]
    scaled = Table(data=np.array([[100], [20], [7]], np.int8), dtype="int8", scale=np.float32(0.5))
    graph = from_edges(src, dst, 2, edge_attr=scaled, duplicates="sum")
    assert graph.edge_attr.decode().tolist() == [[63.5]]


def test_sums_that_the_dtype_cannot_hold_are_refused():
    src, dst = np.zeros(2, int), np.ones(2, int)
    with pytest.raises(GraphError, match="is 200, which int8 does not hold"):
        from_edges(src, dst, 2, edge_attr=np.array([100, 100], np.int8), duplicates="sum")
    with pytest.raises(GraphError, match="boolean edge_attr cannot be summed"):
        from_edges(src, dst, 2, edge_attr=np.array([True, True]), duplicates="sum")
    # Without a duplicate there is nothing to sum.
    kept = from_edges(src, np.array([0, 1]), 2, edge_attr=np.array([True, True]), duplicates="sum")
    assert kept.edge_attr.dtype == "bool"


@few
@given(st.lists(st.floats(width=64), max_size=20))
def test_bfloat16_rounds_to_nearest_even(values):
    torch = pytest.importorskip("torch")
    # Through float32 torch rounds twice; exact where float32 holds the value.
    with np.errstate(over="ignore"):
        single = np.array(values, np.float64).astype(np.float32)
    want = torch.from_numpy(single.copy()).bfloat16()
    got = torch.from_numpy(to_bfloat16(single.astype(np.float64)).view(np.int16).copy())
    assert torch.equal(got.view(torch.bfloat16).float().nan_to_num(7), want.float().nan_to_num(7))


def test_bfloat16_rounds_once():
    # Just above a tie between two bfloat16 values, by less than float32 can tell.
    above = 1 + 2.0**-8 + 2.0**-40
    bits = to_bfloat16(np.array([above, -above, 1 + 2.0**-8, 1 + 3 * 2.0**-8]))
    assert bits.tolist() == [0x3F81, 0xBF81, 0x3F80, 0x3F82]
    below = 1 + 3 * 2.0**-8 - 2.0**-40
    assert to_bfloat16(np.array([below])).tolist() == [0x3F81]


@pytest.mark.parametrize(
    ("weight", "dtype"),
    [
        (np.array([1, 2], np.int64), np.float32),
        (np.array([2**24 + 1, 1], np.int64), np.float64),
        (np.array([1, 2], np.float16), np.float32),
        (np.array([1, 2], np.float64), np.float64),
        (np.array([True, False]), np.float32),
    ],
)
def test_edge_weight_becomes_a_float_that_holds_it(weight, dtype):
    graph = from_edges(np.array([0, 1]), np.array([1, 1]), 2, edge_weight=weight)
    assert graph.edge_weight.dtype == dtype
    np.testing.assert_array_equal(graph.edge_weight, weight.astype(np.float64))


def test_bad_edge_rows_are_refused():
    src, dst = np.array([0, 1]), np.array([1, 1])
    with pytest.raises(GraphError, match=r"edge_weight\[1\] is nan"):
        from_edges(src, dst, 2, edge_weight=np.array([1, np.nan]))
    with pytest.raises(GraphError, match=r"edge_weight needs numbers \[2\]"):
        from_edges(src, dst, 2, edge_weight=np.ones(3))
    with pytest.raises(GraphError, match="edge_attr has 3 rows, the graph has 2 edges in its list"):
        from_edges(src, dst, 2, edge_attr=np.ones((3, 1)))


def test_unknown_options_are_answered_with_the_known():
    src = np.zeros(1, int)
    with pytest.raises(ConfigError, match="'sum', or one of keep, sum, refuse"):
        from_edges(src, src, 1, duplicates="sun")
    with pytest.raises(ConfigError, match="keep, remove, add"):
        from_edges(src, src, 1, self_loops="drop")


# --- Graph checks itself ----------------------------------------------------------------------


def test_a04_narrow_ids_with_wide_offsets():
    graph = from_edges(np.arange(9, dtype=np.int32) % 6, np.arange(9) % 5, 6)
    assert (graph.rowptr.dtype, graph.col.dtype) == (np.int64, np.int32)
    assert index_dtype(2**31) == np.int32
    assert index_dtype(2**31 + 1) == np.int64


def test_a04_more_edges_than_int32_counts():
    num_edges = 2**31 + 7
    # Edges that take no memory: what is stored of them are the offsets.
    col = np.broadcast_to(np.int32(1), num_edges)
    graph = Graph(rowptr=np.array([0, 5, num_edges]), col=col, path=Path("not read"))
    assert graph.num_edges == num_edges
    assert graph.in_degree.tolist() == [5, num_edges - 5]
    assert "num_edges=2,147,483,655" in repr(graph)


def test_a_graph_in_memory_is_checked_whole():
    rowptr, col = np.array([0, 2, 3]), np.array([0, 1, 1], np.int32)
    Graph(rowptr=rowptr, col=col)
    for bad_rowptr, bad_col, what in [
        (np.array([0, 2, 4]), col, "rowptr must run from 0 to 3"),
        (np.array([0, 4, 3]), col, r"rowptr\[1\] is 4; it must be 0 .* to 3"),
        (rowptr, np.array([0, 2, 1], np.int32), r"col\[1\] is 2; sources must be 0..1"),
        (rowptr, np.array([0, -1, 1], np.int32), r"col\[1\] is -1"),
        (rowptr, np.array([1, 0, 1], np.int32), "sources of node 0 must be ascending"),
        (rowptr.astype(np.int32), col, "rowptr needs int64"),
        (rowptr, col.astype(np.int16), "col needs int32 or int64"),
    ]:
        with pytest.raises(GraphError, match=what):
            Graph(rowptr=bad_rowptr, col=bad_col)


def test_rows_must_match_the_graph():
    graph = from_edges(np.array([0, 1]), np.array([1, 0]), 2)
    for field, value, what in [
        ("x", Table.from_array(np.ones((3, 1))), "x has 3 rows, the graph has 2 nodes"),
        ("edge_weight", np.ones(3, np.float32), "edge_weight has 3 rows"),
        ("edge_weight", np.ones(2, np.int64), "edge_weight needs float32 or float64"),
        ("edge_weight", np.ones((2, 1)), "edge_weight needs float32 or float64"),
        ("y", np.zeros(2, np.int64), "y and task go together"),
        ("splits", {"train": np.array([1, 0])}, "ascending node ids in 0..1"),
        ("splits", {"train": np.array([0, 2])}, "ascending node ids in 0..1"),
    ]:
        with pytest.raises(GraphError, match=what):
            replace(graph, **{field: value})


@pytest.mark.parametrize(
    ("y", "task", "num_classes", "what"),
    [
        (np.zeros(2, np.int32), "class", 1, r"y of task 'class' is int64 \[V\], had int32"),
        (np.zeros((2, 1), np.int64), "class", 1, "is int64"),
        (np.zeros((2, 3), np.int64), "multilabel", 3, "is int8"),
        (np.zeros(2, np.float32), "real", None, "is float32 or float64"),
        (np.zeros((2, 3), np.int8), "multilabel", 4, "y has 3 columns, num_classes says 4"),
        (np.zeros(2, np.int64), "class", None, "task 'class' with num_classes=None"),
        (np.zeros((2, 1), np.float32), "real", 3, "task 'real' with num_classes=3"),
        (np.zeros(2, np.int64), "klass", 1, "unknown task 'klass'"),
    ],
)
def test_labels_must_have_the_form_of_their_task(y, task, num_classes, what):
    graph = from_edges(np.array([0, 1]), np.array([1, 0]), 2)
    with pytest.raises(ValueError, match=what):
        replace(graph, y=y, task=task, num_classes=num_classes)


def test_splits_do_not_change_behind_a_graph():
    graph = from_edges(np.array([0]), np.array([1]), 2, splits={"train": np.array([1, 0])})
    assert graph.splits["train"].tolist() == [0, 1]
    with pytest.raises(TypeError):
        graph.splits["val"] = np.array([0])


def test_a06_isolated_nodes_stay():
    graph = from_edges(np.array([0, 1]), np.array([1, 4]), 10, splits={"test": np.array([9])})
    assert graph.num_nodes == 10
    assert graph.in_degree.tolist() == [0, 1, 0, 0, 1, 0, 0, 0, 0, 0]
    assert graph.splits["test"].tolist() == [9]

"""Labels and splits as users hold them (case A22), and names of nodes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiergnn.errors import ConfigError, GraphError
from tiergnn.graph.csr import from_edges
from tiergnn.graph.ids import NodeIds
from tiergnn.graph.ingest import ingest
from tiergnn.graph.labels import read_labels, read_masks, read_split

few = settings(max_examples=40, deadline=None)
WANT = [2, 0, -1, 1]


@pytest.mark.parametrize("shape", [(4,), (4, 1)])
@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
def test_a22_whole_numbers_are_classes(dtype, shape):
    labels = read_labels(np.array(WANT, dtype).reshape(shape))
    assert (labels.task, labels.num_classes, labels.y.dtype) == ("class", 3, np.int64)
    assert labels.y.tolist() == WANT


@pytest.mark.parametrize("shape", [(4,), (4, 1)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("unlabelled", [-1, np.nan])
def test_a22_floats_are_classes_only_when_asked(dtype, shape, unlabelled):
    y = np.array([2, 0, unlabelled, 1], dtype).reshape(shape)
    asked = read_labels(y, "class")
    assert (asked.task, asked.num_classes, asked.y.tolist()) == ("class", 3, WANT)
    told = read_labels(y)
    assert (told.task, told.num_classes, told.y.shape) == ("real", None, (4, 1))
    np.testing.assert_array_equal(told.y[:, 0], y.reshape(-1).astype(told.y.dtype))


def test_a22_a_fraction_is_no_class():
    with pytest.raises(GraphError, match=r"y\[1, 0\] is 0.5, .* not a whole number"):
        read_labels(np.array([1.0, 0.5]), "class")
    with pytest.raises(GraphError, match="not a whole number"):
        read_labels(np.array([[1.0, 0.5]]), "multilabel")
    with pytest.raises(GraphError, match="not a whole number"):
        read_labels(np.array([1.0, np.inf]), "class")


def test_booleans_are_two_classes():
    labels = read_labels(np.array([True, False, False]))
    assert (labels.task, labels.y.tolist(), labels.num_classes) == ("class", [1, 0, 0], 2)


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.bool_])
def test_columns_of_ones_and_zeros_are_multilabel(dtype):
    labels = read_labels(np.array([[1, 0, 1], [0, 0, 0]], dtype))
    assert (labels.task, labels.num_classes, labels.y.dtype) == ("multilabel", 3, np.int8)
    assert labels.y.tolist() == [[1, 0, 1], [0, 0, 0]]


def test_multilabel_unknown_is_minus_one_or_nan():
    assert read_labels(np.array([[1, -1]])).y.tolist() == [[1, -1]]
    assert read_labels(np.array([[1, np.nan]]), "multilabel").y.tolist() == [[1, -1]]
    with pytest.raises(GraphError, match=r"y\[0, 1\] is 2, which is not 0, 1 or unknown"):
        read_labels(np.array([[1, 2]]), "multilabel")


@pytest.mark.parametrize(
    ("y", "dtype"),
    [
        (np.array([0.5, 1], np.float32), np.float32),
        (np.array([0.5, 1], np.float64), np.float64),
        (np.array([0.5, 1], np.float16), np.float32),
        (np.array([3, 1], np.int64), np.float32),
        (np.array([2**24 + 1, 1], np.int64), np.float64),
    ],
)
def test_real_targets_keep_their_value(y, dtype):
    labels = read_labels(y, "real")
    assert labels.y.dtype == dtype
    np.testing.assert_array_equal(labels.y[:, 0], y.astype(np.float64))


@pytest.mark.parametrize(
    ("y", "options", "what"),
    [
        (np.array(["a", "b"]), {}, "y needs numbers"),
        (np.zeros((2, 2, 2)), {}, "y needs numbers"),
        (np.array([[5, 6]]), {}, "neither classes nor 0/1 labels"),
        (np.array([[0, 1]]), {"task": "class"}, "a class label is one number a node"),
        (np.array([0, -2]), {}, r"y\[1\] is -2, which is not a class"),
        (np.array([0, 3]), {"num_classes": 3}, r"y\[1\] is 3, which is not below num_classes=3"),
        (np.array([[0, 1]]), {"num_classes": 3}, "y has 2 columns, num_classes says 3"),
        (np.array([0.5, np.inf]), {}, "is infinite"),
        (np.array([0.5]), {"num_classes": 3}, "a real target has no classes"),
    ],
)
def test_bad_labels_are_refused(y, options, what):
    with pytest.raises(GraphError, match=what):
        read_labels(y, **options)


def test_unknown_task():
    with pytest.raises(ConfigError, match="class, multilabel, real"):
        read_labels(np.zeros(2), "classes")


def test_more_classes_than_seen_and_no_nodes():
    assert read_labels(np.array([0, 1]), num_classes=7).num_classes == 7
    assert read_labels(np.zeros(0, np.int64), num_classes=7).num_classes == 7
    assert read_labels(np.zeros((0, 4), np.int64)).y.shape == (0, 4)
    assert read_labels(np.array([-1, -1])).num_classes == 0


@few
@given(st.lists(st.booleans(), max_size=30))
def test_masks_and_ids_are_one_split(mask):
    ids = np.flatnonzero(np.array(mask, np.bool_))
    from_mask = read_split("train", np.array(mask, np.bool_), len(mask))
    from_ids = read_split("train", ids[::-1].astype(np.int32), len(mask))
    assert from_mask.tolist() == from_ids.tolist() == ids.tolist()
    assert from_mask.dtype == from_ids.dtype == np.int64


def test_masks_in_columns_are_numbered():
    mask = np.array([[True, False], [False, True], [True, True]])
    splits = read_masks({"train": mask, "val": np.array([2])}, 3)
    assert {name: ids.tolist() for name, ids in splits.items()} == {
        "train.0": [0, 2],
        "train.1": [1, 2],
        "val": [2],
    }


@pytest.mark.parametrize(
    ("chosen", "what"),
    [
        (np.array([True]), "the mask of split 'train' has 1 entries, the graph 3 nodes"),
        (np.array([0, 3]), r"split 'train'\[1\] is 3, which is not a node: ids must be 0..2"),
        (np.array([0, -1]), r"split 'train'\[1\] is -1"),
        (np.array([1, 0, 1]), "holds node 1 more than once"),
        (np.array([0.0]), "needs a boolean mask or node ids"),
        (np.zeros((1, 1, 1)), "needs one dimension"),
    ],
)
def test_bad_splits_are_refused(chosen, what):
    with pytest.raises(GraphError, match=what):
        read_split("train", chosen, 3)


# --- names of nodes ---------------------------------------------------------------------------

names_of_nodes = st.one_of(
    st.lists(st.integers(-(2**63), 2**63 - 1), unique=True, max_size=20),
    st.lists(
        st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=6),
        unique=True,
        min_size=1,
        max_size=20,
    ),
)


@few
@given(names_of_nodes)
def test_names_there_and_back(names):
    ids = NodeIds.from_names(names if names else np.empty(0, np.int64))
    assert len(ids) == len(names)
    assert ids.names().tolist() == names
    backwards = np.arange(len(names))[::-1]
    assert ids.names(backwards).tolist() == names[::-1]
    assert ids.names(slice(1, None, 2)).tolist() == names[1::2]
    assert ids.find(names[::-1]).tolist() == backwards.tolist()
    again = NodeIds.from_arrays(ids.arrays())
    assert again.names().tolist() == names


def test_from_arrays_without_names():
    assert NodeIds.from_arrays({"x": np.zeros(1)}) is None


def test_find_says_what_is_missing():
    with pytest.raises(GraphError, match=r"no node is named 'c' \(2 of 3 names are unknown\)"):
        NodeIds.from_names(["a", "b"]).find(["b", "c", "d"])
    with pytest.raises(GraphError, match=r"no node is named 3"):
        NodeIds.from_names([1, 2]).find([3])
    with pytest.raises(GraphError, match="node ids of this graph are whole numbers, had 'a'"):
        NodeIds.from_names([1, 2]).find(["a"])
    with pytest.raises(GraphError, match=r"node 0..2 is not in 0..1"):
        NodeIds.from_names(["a", "b"]).names(np.array([0, 2]))
    with pytest.raises(GraphError, match="no node is named"):
        NodeIds(numbers=np.empty(0, np.int64)).find([3])


@pytest.mark.parametrize(
    ("names", "what"),
    [
        (["a\0b", "c"], "holds the NUL character"),
        ([0.5, 1.5], "whole numbers or strings"),
        (["a", 1.5, None], "whole numbers or strings"),
        (np.array([2**64 - 1], np.uint64), "does not fit int64"),
        (["\ud800"], "is not valid text"),
    ],
)
def test_names_that_are_none(names, what):
    with pytest.raises(GraphError, match=what):
        NodeIds.from_names(names)


@pytest.mark.parametrize(
    ("arrays", "what"),
    [
        ({"numbers": np.zeros(2)}, "need int64"),
        ({"numbers": np.zeros(2, np.int64), "text": np.zeros(0, np.uint8)}, "not both"),
        ({"text": np.zeros(0, np.uint8)}, "need both offsets and text"),
        ({"offsets": np.zeros(0, np.int64), "text": np.zeros(0, np.uint8)}, "num_nodes\\+1"),
        ({"offsets": np.zeros(1, np.int64), "text": np.zeros(0, np.int8)}, "uint8"),
        ({"offsets": np.array([0, 3]), "text": np.zeros(2, np.uint8)}, "run from 0 to 2"),
    ],
)
def test_bad_arrays_of_names_are_refused(arrays, what):
    with pytest.raises(GraphError, match=what):
        NodeIds(**arrays)


@pytest.mark.parametrize("num_classes", [None, 10**12 + 1])
def test_labels_that_are_no_classes(num_classes, tmp_path):
    """Each class is an output: a number of another kind would be an allocation that fails."""
    ends, y = np.array([0, 1]), np.array([1, 10**12, 0])
    words = f"{10**12 + 1} classes for 3 nodes; the greatest label is {10**12}, of "
    with pytest.raises(GraphError, match=words + "node 1") as caught:
        from_edges(ends, ends, 3, y=y, num_classes=num_classes)
    assert "return_inverse" in (caught.value.hint or "")
    np.save(tmp_path / "edges.npy", np.stack([ends, ends], 1))
    np.save(tmp_path / "y.npy", y)
    with pytest.raises(GraphError, match=words + r".*y\.npy"):
        ingest(
            tmp_path / "edges.npy", tmp_path / "out", labels=tmp_path / "y.npy", num_nodes=3,
            num_classes=num_classes,
        )  # fmt: skip
    assert from_edges(ends, ends, 3, y=np.array([1, 99_999, 0])).num_classes == 100_000

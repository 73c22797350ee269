"""Which nodes train, validate and test."""

from __future__ import annotations

import numpy as np
import pytest

from tiergnn.errors import ConfigError, GraphError
from tiergnn.graph.csr import from_edges
from tiergnn.training.splits import choose_splits, labelled


def graph(num_nodes=60, splits=(), y=None, **options):
    ids = np.arange(num_nodes)
    y = np.where(ids % 10 == 9, -1, ids % 3) if y is None else y
    splits = {name: np.array(value) for name, value in dict(splits).items()}
    return from_edges(ids, (ids + 1) % num_nodes, num_nodes, y=y, splits=splits, **options)


def as_lists(splits):
    return {name: ids.tolist() for name, ids in splits.items()}


def test_stored_splits_come_by_name_and_number():
    plain = graph(splits={"train": [0], "valid": [1], "test": [2], "train.0": [3]})
    assert as_lists(choose_splits(plain, None, 0)) == {"train": [0], "val": [1], "test": [2]}
    many = graph(
        splits={f"{part}.{k}": [k] for part in ("train", "val", "test") for k in range(12)}
    )
    assert as_lists(choose_splits(many, None, 0))["train"] == [0]
    for which in (3, "3", "11"):
        assert as_lists(choose_splits(many, which, 0)) == {
            part: [int(which)] for part in ("train", "val", "test")
        }
    with pytest.raises(ConfigError, match=r"no split '12'"):
        choose_splits(many, 12, 0)


def test_no_training_split_lists_what_there_is_and_how_to_make_one():
    with pytest.raises(ConfigError) as error:
        choose_splits(graph(splits={"held_out": [1]}), None, 0)
    assert "held_out" in str(error.value)
    assert "random:0.6/0.2/0.2" in str(error.value)
    with pytest.raises(ConfigError, match="has a label"):
        choose_splits(graph(splits={"train": [9, 19]}), None, 0)


def test_a_graph_without_labels_is_told_where_labels_come_from():
    for split in (None, "random:0.6/0.2/0.2", {"train": [0]}):
        with pytest.raises(ConfigError, match="no labels y to train on") as error:
            choose_splits(from_edges([0], [1], 2, splits={"train": np.array([0])}), split, 0)
        assert "--node-label" in str(error.value)


def test_random_splits_are_seeded_disjoint_and_labelled():
    g = graph()
    first = choose_splits(g, "random:0.5/0.25/0.25", 1)
    assert {name: ids.size for name, ids in first.items()} == {"train": 27, "val": 13, "test": 14}
    together = np.concatenate(list(first.values()))
    assert np.array_equal(np.sort(together), np.flatnonzero(labelled(g)))
    assert as_lists(first) == as_lists(choose_splits(g, "random:0.5/0.25/0.25", 1))
    assert as_lists(first) != as_lists(choose_splits(g, "random:0.5/0.25/0.25", 2))
    fixed = [as_lists(choose_splits(g, "random:0.5/0.25/0.25@1", seed)) for seed in (0, 7)]
    assert fixed == [as_lists(first)] * 2


def test_planetoid_splits_take_the_same_number_of_each_class():
    g = graph()
    made = choose_splits(g, "planetoid:5/10/20", 3)
    assert np.bincount(g.y[made["train"]]).tolist() == [5, 5, 5]
    assert (made["val"].size, made["test"].size) == (10, 20)
    assert np.unique(np.concatenate(list(made.values()))).size == 45
    with pytest.raises(ConfigError, match="leaves 39 labelled nodes for 20 \\+ 20"):
        choose_splits(g, "planetoid:5/20/20", 3)


def test_splits_of_the_caller():
    mask = np.zeros(60, bool)
    mask[[1, 5]] = True
    made = choose_splits(graph(), {"train": mask, "test": [7, 3]}, 0)
    assert as_lists(made) == {"train": [1, 5], "test": [3, 7]}
    with pytest.raises(ConfigError, match="trian"):
        choose_splits(graph(), {"trian": mask}, 0)
    with pytest.raises(GraphError):
        choose_splits(graph(), {"train": [60]}, 0)


@pytest.mark.parametrize(
    "spec", ["random:0.6/0.2", "random:a/b/c", "random:-1/1/1", "strata:1/2/3", "random:.1/.2/.3@x"]
)
def test_bad_specs_are_answered_with_good_ones(spec):
    with pytest.raises(ConfigError, match=r"random:0\.6/0\.2/0\.2"):
        choose_splits(graph(), spec, 0)


def test_impossible_specs():
    with pytest.raises(ConfigError, match="more than 1"):
        choose_splits(graph(), "random:0.6/0.3/0.2", 0)
    with pytest.raises(ConfigError, match="one class a node"):
        choose_splits(graph(y=np.ones((60, 2), np.int8), task="multilabel"), "planetoid:1/2/3", 0)


def test_labelled_rows_of_every_task():
    many = np.array([[-1, -1], [0, -1], [1, 1]], np.int8)
    assert labelled(graph(3, y=many, task="multilabel")).tolist() == [False, True, True]
    real = np.array([np.nan, 0.0, 1.0])
    assert labelled(graph(3, y=real)).tolist() == [False, True, True]

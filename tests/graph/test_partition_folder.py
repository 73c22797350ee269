"""Saved partitions: read back as they were, and refused when damaged or of another graph."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest

from tiergnn.errors import ConfigError, StoreError
from tiergnn.graph import partition_folder
from tiergnn.graph.csr import Graph, from_edges
from tiergnn.graph.generate import rmat, sbm
from tiergnn.graph.odd import ODD
from tiergnn.graph.partition import Partition, partition
from tiergnn.graph.partition_folder import FILE, list_partitions


@pytest.fixture
def graph(tmp_path) -> Graph:
    return sbm(200, 3, degree=6, seed=4).save(tmp_path / "graph")


def same(a: Partition, b: Partition) -> None:
    assert (a.part_of == b.part_of).all()
    assert a.to_json() == b.to_json()
    assert a.num_parts == b.num_parts
    for part in range(a.num_parts):
        assert (a.halo(part).gid == b.halo(part).gid).all()
        assert (a.halo(part).owner_ptr == b.halo(part).owner_ptr).all()
        assert (a.part_csr(part).col == b.part_csr(part).col).all()


@pytest.mark.parametrize("name", [name for name in ODD if name != "weighted"])
def test_round_trip(tmp_path, name):
    graph = ODD[name]().save(tmp_path / name)
    for parts in (partition(graph, 3), partition(graph, 40, "metis", seed=7, balance="train")):
        where = parts.save()
        assert where == tmp_path / name / "partitions" / f"{parts.method}-{parts.num_parts}"
        same(Partition.open(graph, where.name), parts)
    assert list_partitions(graph) == ["block-3", "metis-40"]


def test_by_name_or_by_path(graph, tmp_path):
    parts = partition(graph, 4, "metis", balance={"nodes": 1.1, "train": 1.0})
    parts.save("mine")
    parts.save(tmp_path / "elsewhere")
    for where in ("mine", tmp_path / "elsewhere", str(tmp_path / "elsewhere")):
        opened = Partition.open(graph, where)
        same(opened, parts)
        assert opened.balance == (("nodes", 1.1), ("train", 1.0))


def test_halos_are_memory_mapped_and_not_computed_again(graph, monkeypatch):
    partition(graph, 4).save()
    opened = Partition.open(Graph.open(graph.path), "block-4")
    assert isinstance(opened.halos[0].base, np.memmap)
    monkeypatch.delattr("tiergnn.graph.partition.list_halos")
    assert opened.halo(1).gid.size > 0


def test_features_and_splits_may_change_under_a_partition(graph, tmp_path):
    where = partition(graph, 4).save(tmp_path / "parts")
    changed = sbm(200, 3, degree=6, seed=4, signal=2.0, train_frac=0.5)
    changed = changed.save(graph.path, overwrite=True)
    opened = Partition.open(changed, where)
    assert opened.split_sizes("train").sum() == 100


def test_a_partition_of_another_graph_is_refused(graph, tmp_path):
    where = partition(graph, 4).save()
    for other, what in (
        (sbm(200, 3, degree=6, seed=5), "crc32 of"),
        (sbm(201, 3, degree=6, seed=4), "num_nodes 200 is now 201"),
    ):
        for opened in (other, other.save(tmp_path / f"other-{other.num_nodes}-{what[:3]}")):
            with pytest.raises(StoreError, match="another graph") as caught:
                Partition.open(opened, where)
            assert what in str(caught.value)
            assert "tiergnn partition" in str(caught.value)


def test_memory_and_folder_are_one_graph(graph, tmp_path):
    in_memory = sbm(200, 3, degree=6, seed=4)
    parts = partition(in_memory, 3)
    with pytest.raises(ConfigError, match=r"in memory only .* 'block-3'"):
        parts.save()
    parts.save(tmp_path / "parts")
    same(Partition.open(graph, tmp_path / "parts"), parts)
    assert list_partitions(in_memory) == []


def test_a_taken_name_needs_overwrite(graph):
    partition(graph, 4, "metis").save("mine")
    other = partition(graph, 3)
    with pytest.raises(StoreError, match="exists already"):
        other.save("mine")
    assert Partition.open(graph, "mine").num_parts == 4
    other.save("mine", overwrite=True)
    assert Partition.open(graph, "mine").num_parts == 3
    assert list(graph.path.glob("partitions/*partial*")) == []


def test_a_folder_of_something_else_is_never_overwritten(graph, tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("mine")
    with pytest.raises(StoreError, match="holds something else"):
        partition(graph, 3).save(tmp_path / "notes", overwrite=True)
    assert (tmp_path / "notes" / "a.txt").read_text() == "mine"


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-3])


@pytest.mark.parametrize("name", ["part_of.npy", "halo.npy", "halo_ptr.npy", FILE])
@pytest.mark.parametrize("damage", [flip, cut_short, Path.unlink])
def test_damage_is_one_clear_error(graph, name, damage):
    where = partition(graph, 4).save()
    damage(where / name)
    with pytest.raises(StoreError) as caught:
        Partition.open(graph, "block-4")
    assert str(where) in str(caught.value)


def test_a_changed_value_in_the_json_is_found(graph):
    where = partition(graph, 4).save()
    text = (where / FILE).read_text()
    (where / FILE).write_text(text.replace('"num_parts": 4', '"num_parts": 5'))
    with pytest.raises(StoreError, match="its own checksum"):
        Partition.open(graph, "block-4")


@pytest.mark.parametrize(
    ("change", "want"),
    [({"version": 2}, "version 2, this tiergnn reads version 1"), ({"format": "x"}, "format")],
    ids=str,
)
def test_other_formats_and_versions(graph, change, want):
    where = partition(graph, 4).save()
    content = json.loads((where / FILE).read_text()) | change
    (where / FILE).write_text(json.dumps(content))
    with pytest.raises(StoreError, match=want):
        Partition.open(graph, "block-4")


def test_an_unknown_name_is_answered_with_the_known(graph):
    with pytest.raises(StoreError, match="`tiergnn partition` makes one"):
        Partition.open(graph, "metis-8")
    partition(graph, 4).save()
    with pytest.raises(StoreError, match=r"no partition 'block-5'(.|\n)*'block-4'"):
        Partition.open(graph, "block-5")


def test_a_full_disk_leaves_what_was_there(graph, monkeypatch):
    partition(graph, 4).save("mine")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tiergnn.graph.arrays._write_all", full)
    with pytest.raises(StoreError, match="No space left"):
        partition(graph, 3).save("mine", overwrite=True)
    monkeypatch.undo()
    assert Partition.open(graph, "mine").num_parts == 4
    assert [path.name for path in (graph.path / "partitions").iterdir()] == ["mine"]


def test_no_permission_is_one_clear_error(graph, monkeypatch):
    def refused(*_, **__):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "mkdir", refused)
    with pytest.raises(StoreError, match="Permission denied"):
        partition(graph, 3).save()


def test_wide_ids_are_kept(tmp_path):
    graph = rmat(50, 400, seed=1)
    wide = Graph(rowptr=graph.rowptr, col=graph.col.astype(np.int64))
    where = partition(wide, 3).save(tmp_path / "parts")
    same(Partition.open(wide, where), partition(wide, 3))
    with pytest.raises(StoreError, match="another graph"):
        Partition.open(graph, where)


def test_damaged_contents_that_pass_their_checksum(tmp_path, monkeypatch):
    """Such as a file made by hand: still refused with the file's name."""
    graph = from_edges(np.array([0]), np.array([1]), 3)
    parts = partition(graph, 2)
    object.__setattr__(parts, "num_parts", 1)
    where = partition_folder.save_partition(parts, tmp_path / "parts")
    with pytest.raises(StoreError, match=r"part_of\[\d\] is 1, parts are 0\.\.0"):
        Partition.open(graph, where)

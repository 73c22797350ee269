"""Graph folders: there and back, and every way in which a file can go wrong."""

from __future__ import annotations

import os
import resource

import numpy as np
import pytest

from tests.contents import contents
from tests.graph.same import assert_same
from tests.odd import ODD_GRAPHS
from tiergnn.errors import ConfigError, GraphError
from tiergnn.graph.csr import Graph, from_edges
from tiergnn.graph.folder import FolderWriter, save_folder
from tiergnn.graph.ids import NodeIds
from tiergnn.graph.manifest import read_manifest
from tiergnn.graph.odd import ODD
from tiergnn.graph.staging import StagedFolder
from tiergnn.graph.table import STORED, Table


@pytest.mark.parametrize("graph", ODD_GRAPHS)
def test_odd_graphs_come_back(graph, tmp_path):
    opened = graph.save(tmp_path / "graph")
    assert_same(opened, graph)
    assert_same(Graph.open(tmp_path / "graph", verify=True), graph)
    assert opened.path == tmp_path / "graph"
    assert os.listdir(tmp_path) == ["graph"]


def test_opened_arrays_are_mapped_and_read_only(saved):
    graph = Graph.open(saved)
    base = graph.col
    while isinstance(base, np.ndarray):
        base = base.base
    assert type(base).__name__ == "mmap"
    with pytest.raises(ValueError, match="read-only"):
        graph.col[0] = 0


@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("kind", ["x", "edge_attr"])
def test_a22_every_stored_dtype_keeps_its_size(dtype, kind, tmp_path):
    rng = np.random.default_rng(0)
    data = (rng.random((100, 7)) * 200 - 50).astype(STORED[dtype])
    for scale in (None, np.float32(0.25), np.arange(7, dtype=np.float32) + 1):
        if scale is not None and dtype not in ("int8", "uint8"):
            continue
        table = Table(data=data, dtype=dtype, scale=None if scale is None else np.asarray(scale))
        node = np.arange(100)
        graph = from_edges(node, np.sort(node), 100, **{kind: table})
        opened = graph.save(tmp_path / "graph", overwrite=True)
        got = getattr(opened, kind)
        assert got.dtype == dtype
        assert got.data.dtype.itemsize == data.dtype.itemsize
        np.testing.assert_array_equal(got.decode(), table.decode())
        header = (tmp_path / "graph" / f"{kind}.npy").stat().st_size - data.nbytes
        assert 0 < header <= 256
        entry = read_manifest(tmp_path / "graph")["arrays"][kind]
        assert (entry["dtype"], entry["shape"]) == (dtype, [100, 7])


@pytest.mark.parametrize("names", [[10, -3, 7], ["anna", "", "Øre"]])
def test_node_ids_come_back(names, tmp_path):
    graph = from_edges(np.array([0]), np.array([2]), 3, node_ids=NodeIds.from_names(names))
    opened = graph.save(tmp_path / "graph")
    assert opened.node_ids.names().tolist() == names
    assert opened.node_ids.find(names[::-1]).tolist() == [2, 1, 0]


def test_strided_and_big_arrays_are_written_in_pieces(tmp_path):
    wide = np.arange(3 * 10**6, dtype=np.float64).reshape(-1, 6)[:, ::2]
    graph = from_edges(np.zeros(0, int), np.zeros(0, int), len(wide), x=wide)
    np.testing.assert_array_equal(graph.save(tmp_path / "graph").x.data, wide)


def test_arrays_filled_and_streamed(tmp_path):
    want = ODD["weighted"]()
    with FolderWriter(tmp_path / "graph") as writer:
        writer.array("rowptr", want.rowptr)
        stream = writer.stream("col", np.int32, (want.num_edges,))
        for start in range(0, want.num_edges, 50):
            stream.append(want.col[start : start + 50])
        filled = writer.create("edge_weight", np.float32, (want.num_edges,))
        assert not filled.any()
        filled[::-1] = want.edge_weight[::-1]
        writer.create("x", np.uint16, (want.num_nodes, 2), "bfloat16")[:] = 0x3F80
        assert writer.create("splits/none", np.int64, (0,)).size == 0
        path = writer.commit(num_nodes=23, num_edges=120, source={"command": "test"})
    graph = Graph.open(path, verify=True)
    np.testing.assert_array_equal(graph.edge_weight, want.edge_weight)
    np.testing.assert_array_equal(graph.col, want.col)
    np.testing.assert_array_equal(graph.x.decode(), np.ones((23, 2)))
    assert graph.splits["none"].size == 0
    assert read_manifest(path)["source"]["command"] == "test"


def test_a_stream_takes_exactly_its_shape(tmp_path):
    with pytest.raises(GraphError, match=r"col.npy takes 3 more values of int32, had 4 of int32"), \
            FolderWriter(tmp_path / "graph") as writer:  # fmt: skip
        writer.stream("col", np.int32, (3,)).append(np.zeros(4, np.int32))
    with pytest.raises(GraphError, match=r"had 1 of int64"), \
            FolderWriter(tmp_path / "graph") as writer:  # fmt: skip
        writer.stream("col", np.int32, (3,)).append(np.zeros(1, np.int64))
    with FolderWriter(tmp_path / "graph") as writer:
        writer.stream("col", np.int32, (3,)).append(np.zeros(1, np.int32))
        with pytest.raises(GraphError, match=r"col.npy lacks 2 values of int32"):
            writer.commit(num_nodes=0, num_edges=3)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["splits/../x", "splits/a/b", "splits/", "splits/.x", "z", "../x"])
def test_names_that_could_leave_the_folder_are_refused(name, tmp_path):
    with (
        pytest.raises(ConfigError, match="a graph folder has no array"),
        FolderWriter(tmp_path / "graph") as writer,
    ):
        writer.array(name, np.zeros(1))
    assert os.listdir(tmp_path) == []


def test_staged_folder_holds_anything(tmp_path):
    with StagedFolder(tmp_path / "run", marker="run.json") as staged:
        (staged.folder / "run.json").write_text("{}")
        (staged.folder / "deep").mkdir()
        (staged.folder / "deep" / "file").write_text("x")
        staged.publish()
    assert contents(tmp_path / "run") == {"run.json": b"{}", "deep/file": b"x"}


def test_save_folder_notes_its_source(tmp_path):
    save_folder(ODD["path"](), tmp_path / "graph", source={"generator": "path", "num_nodes": 17})
    source = read_manifest(tmp_path / "graph")["source"]
    assert source["generator"] == "path"
    assert "tiergnn" in source


def test_new_folders_follow_the_umask(tmp_path):
    old = os.umask(0o027)
    try:
        ODD["path"]().save(tmp_path / "graph")
    finally:
        os.umask(old)
    assert (tmp_path / "graph").stat().st_mode & 0o777 == 0o750
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 100_000  # limits stayed in the child

"""Graph folders: there and back, and every way in which a file can go wrong."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from tests.odd import ODD_GRAPHS
from tiergnn.errors import ConfigError, GraphError, StoreError
from tiergnn.graph import folder as folder_module
from tiergnn.graph import staging
from tiergnn.graph.csr import Graph, from_edges
from tiergnn.graph.folder import FolderWriter, open_folder, save_folder
from tiergnn.graph.ids import NodeIds
from tiergnn.graph.manifest import manifest_crc32, read_manifest
from tiergnn.graph.odd import ODD
from tiergnn.graph.staging import StagedFolder
from tiergnn.graph.table import STORED, Table


def arrays_of(graph: Graph) -> dict[str, np.ndarray | None]:
    arrays = {
        "rowptr": graph.rowptr,
        "col": graph.col,
        "edge_weight": graph.edge_weight,
        "y": graph.y,
        **{f"splits/{name}": ids for name, ids in graph.splits.items()},
    }
    for name, table in (("x", graph.x), ("edge_attr", graph.edge_attr)):
        arrays[name] = None if table is None else table.data
        arrays[f"{name}_scale"] = None if table is None else table.scale
    return arrays


def assert_same(got: Graph, want: Graph) -> None:
    got_arrays, want_arrays = arrays_of(got), arrays_of(want)
    assert got_arrays.keys() == want_arrays.keys()
    for name, array in want_arrays.items():
        if array is None:
            assert got_arrays[name] is None, name
        else:
            assert got_arrays[name].dtype == array.dtype, name
            np.testing.assert_array_equal(got_arrays[name], array, err_msg=name)
    assert (got.task, got.num_classes) == (want.task, want.num_classes)
    assert (got.x is None) or got.x.dtype == want.x.dtype


def contents(path: Path) -> dict[str, bytes]:
    return {str(f.relative_to(path)): f.read_bytes() for f in path.rglob("*") if f.is_file()}


@pytest.fixture
def saved(tmp_path) -> Path:
    return Path(ODD["weighted"]().save(tmp_path / "graph").path)


def rewrite(path: Path, **changes) -> None:
    """A manifest with some fields changed (None: removed) and its checksum made good again."""
    manifest = json.loads((path / "manifest.json").read_text())
    manifest.pop("crc32")
    manifest |= changes
    manifest = {name: value for name, value in manifest.items() if value != "gone"}
    manifest["crc32"] = manifest_crc32(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))


# --- there and back ---------------------------------------------------------------------------


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


# --- what exists stays ------------------------------------------------------------------------


def test_an_existing_graph_is_replaced_only_when_asked(saved):
    before = contents(saved)
    other = ODD["path"]()
    with pytest.raises(StoreError, match=r"the folder exists already(.|\n)*overwrite=True"):
        other.save(saved)
    assert contents(saved) == before
    old = Graph.open(saved)
    old_col = old.col.copy()
    assert_same(other.save(saved, overwrite=True), other)
    np.testing.assert_array_equal(old.col, old_col)  # still mapped, though the file is gone
    assert os.listdir(saved.parent) == [saved.name]


def test_a_graph_saved_over_itself(saved):
    graph = Graph.open(saved)
    before = contents(saved)
    assert_same(graph.save(saved, overwrite=True), ODD["weighted"]())
    assert contents(saved) == before


def test_a_folder_of_something_else_is_never_removed(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(StoreError, match="the folder holds something else"):
        ODD["path"]().save(tmp_path, overwrite=True)
    with pytest.raises(StoreError, match="a file stands where the folder should be"):
        ODD["path"]().save(tmp_path / "thesis.tex", overwrite=True)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_an_empty_folder_and_missing_parents_are_welcome(tmp_path):
    (tmp_path / "empty").mkdir()
    assert ODD["path"]().save(tmp_path / "empty").num_nodes == 17
    assert ODD["path"]().save(tmp_path / "a" / "b" / "c").num_nodes == 17


def test_through_a_link_the_folder_behind_it_is_replaced(saved, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(saved)
    ODD["path"]().save(link, overwrite=True)
    assert link.is_symlink()
    assert Graph.open(saved).num_nodes == 17


def test_leaving_without_commit_leaves_nothing(saved):
    before = contents(saved)
    with suppress(KeyboardInterrupt), FolderWriter(saved, overwrite=True) as writer:
        writer.array("rowptr", np.zeros(1, np.int64))
        writer.create("col", np.int32, (1000,))
        assert len(os.listdir(saved.parent)) == 2
        raise KeyboardInterrupt
    assert contents(saved) == before
    assert os.listdir(saved.parent) == [saved.name]


KILLED = """
    import sys, time
    import numpy as np
    from tiergnn.graph.folder import FolderWriter
    with FolderWriter(sys.argv[1], overwrite=True) as writer:
        writer.array("rowptr", np.zeros(1, np.int64))
        print("writing", flush=True)
        time.sleep(60)
"""


def test_a_killed_write_is_no_graph_and_is_swept_by_the_next(saved):
    before = contents(saved)
    command = [sys.executable, "-c", textwrap.dedent(KILLED), str(saved)]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert writer.stdout.readline() == "writing\n"
    (partial,) = saved.parent.glob("graph.partial-*")
    # While the writer lives its folder is its own.
    ODD["path"]().save(saved, overwrite=True)
    assert partial.exists()
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    with pytest.raises(StoreError, match="not a graph folder"):
        Graph.open(partial)
    assert Graph.open(saved).num_nodes == 17
    ODD["weighted"]().save(saved, overwrite=True)
    assert contents(saved) == before
    assert os.listdir(saved.parent) == [saved.name]


def test_where_names_cannot_be_swapped(saved, monkeypatch):
    monkeypatch.setattr(staging, "_swap", lambda a, b: False)
    assert ODD["path"]().save(saved, overwrite=True).num_nodes == 17
    assert os.listdir(saved.parent) == [saved.name]
    # The second of the two moves fails: the old folder comes back.
    before = contents(saved)
    rename = os.rename

    def failing(a, b):
        if ".partial-" in str(a):
            raise OSError(errno.EACCES, "denied")
        rename(a, b)

    monkeypatch.setattr(staging.os, "rename", failing)
    with pytest.raises(StoreError, match="cannot move the finished folder to its place"):
        ODD["weighted"]().save(saved, overwrite=True)
    monkeypatch.undo()
    assert contents(saved) == before
    assert os.listdir(saved.parent) == [saved.name]


def test_a_crash_between_two_moves_is_told_and_mended(saved):
    aside = saved.with_name("graph.replaced-01234567")
    saved.rename(aside)
    with pytest.raises(StoreError, match=f"a replacement was interrupted: mv {aside} {saved}"):
        Graph.open(saved)
    # A write that fails must not take the only copy with it.
    with pytest.raises(KeyboardInterrupt), FolderWriter(saved):
        raise KeyboardInterrupt
    assert aside.exists()
    ODD["path"]().save(saved)
    ODD["path"]().save(saved, overwrite=True)
    assert os.listdir(saved.parent) == [saved.name]


def test_only_our_own_leftovers_are_swept(saved):
    dead = saved.with_name("graph.partial-0123abcd")
    kept = [
        saved.with_name(name)
        for name in ("graph.partial-mine", "graph.partial-0123abcd.bak", "graph2.partial-0123abcd")
    ]
    for folder in (dead, *kept):
        folder.mkdir()
        (folder / "file").write_text("x")
    link = saved.with_name("graph.partial-11111111")
    link.symlink_to(kept[0])
    ODD["path"]().save(saved, overwrite=True)
    assert not dead.exists()
    assert all((folder / "file").exists() for folder in kept)


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOTSUP])
def test_a_file_system_without_locks(saved, code, monkeypatch):
    def fail(*args):
        raise OSError(code, "injected")

    monkeypatch.setattr(staging.fcntl, "flock", fail)
    left = saved.with_name("graph.partial-0123abcd")
    left.mkdir()
    assert ODD["path"]().save(saved, overwrite=True).num_nodes == 17
    assert sorted(os.listdir(saved.parent)) == [saved.name, left.name]  # who knows whose it is


def test_two_writers_of_one_place(tmp_path):
    graph = ODD["path"]()
    with FolderWriter(tmp_path / "graph") as writer:
        writer.array("rowptr", graph.rowptr)
        writer.array("col", graph.col)
        ODD["weighted"]().save(tmp_path / "graph")
        with pytest.raises(StoreError, match="the folder exists already"):
            writer.commit(num_nodes=17, num_edges=16)
    assert Graph.open(tmp_path / "graph").num_nodes == 23
    assert os.listdir(tmp_path) == ["graph"]


# --- writes that fail -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.ENOSPC, "No space left on device(.|\n)*free some space"),
        (errno.EACCES, "Permission denied(.|\n)*permissions"),
        (errno.EROFS, "Read-only file system(.|\n)*mounted for writing"),
        (errno.EDQUOT, "quota"),
        (errno.EIO, "Input/output error"),
    ],
)
@pytest.mark.parametrize(
    "where", ["mkdir", "open", "write", "fsync", "manifest", "publish", "reserve"]
)
def test_a_failing_write_is_one_error_and_changes_nothing(code, words, where, saved, monkeypatch):
    before = contents(saved)

    def fail(*args, **kwargs):
        raise OSError(code, "injected")

    if where == "mkdir":
        monkeypatch.setattr(Path, "mkdir", fail)
    elif where == "open":
        monkeypatch.setattr("tiergnn.graph.arrays.open", fail, raising=False)
    elif where == "write":
        monkeypatch.setattr("tiergnn.graph.arrays._write_all", fail)
    elif where == "fsync":
        monkeypatch.setattr(os, "fsync", fail)
    elif where == "manifest":
        monkeypatch.setattr(Path, "write_text", fail)
    elif where == "publish":
        monkeypatch.setattr(staging, "_swap", lambda a, b: False)
        monkeypatch.setattr(os, "rename", fail)
    else:
        monkeypatch.setattr(os, "posix_fallocate", fail)

    def write() -> None:
        with FolderWriter(saved, overwrite=True) as writer:
            writer.array("rowptr", np.zeros(1, np.int64))
            writer.create("col", np.int32, (5,))
            writer.commit(num_nodes=0, num_edges=0)

    with pytest.raises(StoreError, match=f"cannot .*: .*{words}") as caught:
        write()
    monkeypatch.undo()
    assert "at: " + str(saved.parent) in str(caught.value)
    assert contents(saved) == before
    assert os.listdir(saved.parent) == [saved.name]


LIMITED = """
    import resource, sys
    from tiergnn.errors import StoreError
    from tiergnn.graph.generate import rmat
    graph = rmat(1000, 50_000)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    try:
        graph.save(sys.argv[1], overwrite=True)
    except StoreError as error:
        print(error)
"""


def test_a_real_file_size_limit(saved):
    before = contents(saved)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LIMITED), str(saved)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    assert done.stdout.startswith("cannot write: File too large\n  at: ")
    assert "ulimit -f" in done.stdout
    assert contents(saved) == before
    assert os.listdir(saved.parent) == [saved.name]


def test_a_real_full_disk(saved):
    """On a file system of a fixed size, where the machine lets one be made."""
    small = saved.parent / "small"
    small.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        ODD["weighted"]().save(small / "graph")
        before = contents(small)
        graph = from_edges(np.zeros(0, int), np.zeros(0, int), 2000, x=np.ones((2000, 200)))
        with pytest.raises(StoreError, match="cannot write: No space left on device"):
            graph.save(small / "graph", overwrite=True)
        with pytest.raises(StoreError, match="cannot reserve space for: No space left"), \
                FolderWriter(small / "graph", overwrite=True) as writer:  # fmt: skip
            writer.create("x", np.float64, (2000, 200))
        assert contents(small) == before
    finally:
        subprocess.run(["umount", str(small)], check=True)


# --- folders that cannot be trusted -----------------------------------------------------------


def test_what_is_no_graph_folder(tmp_path):
    with pytest.raises(StoreError, match=r"there is no such graph folder(.|\n)*tiergnn ingest"):
        Graph.open(tmp_path / "nothing")
    with pytest.raises(StoreError, match=r"it has no manifest.json(.|\n)*tiergnn ingest"):
        Graph.open(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match=r"it has no manifest.json|Not a directory"):
        Graph.open(tmp_path / "file")


@pytest.mark.parametrize("verify", [None, True, False])
@pytest.mark.parametrize("file", ["rowptr.npy", "col.npy", "x.npy", "splits/train.npy"])
@pytest.mark.parametrize("cut", [1, 90, None])
def test_a_truncated_array(saved, file, cut, verify):
    path = saved / file
    with open(path, "rb+") as array:
        array.truncate(0 if cut is None else path.stat().st_size - cut)
    with pytest.raises(StoreError, match=r"the file has \d+ bytes, the manifest says \d+") as error:
        Graph.open(saved, verify=verify)
    assert f"at: {path}" in str(error.value)


@pytest.mark.parametrize("file", ["rowptr.npy", "col.npy", "edge_attr.npy", "y.npy"])
@pytest.mark.parametrize("at", [0, 70, -1])
def test_a_flipped_byte(saved, file, at):
    data = bytearray((saved / file).read_bytes())
    data[at] ^= 0x10
    (saved / file).write_bytes(data)
    with pytest.raises(StoreError) as error:
        Graph.open(saved)
    assert f"at: {saved / file}" in str(error.value)


def test_checksums_of_a_big_folder_are_read_when_asked(saved, monkeypatch):
    monkeypatch.setattr(folder_module, "VERIFY_BYTES", 100)
    data = bytearray((saved / "x.npy").read_bytes())
    data[-1] ^= 1
    (saved / "x.npy").write_bytes(data)
    assert Graph.open(saved).num_nodes == 23
    with pytest.raises(StoreError, match="the checksum is"):
        Graph.open(saved, verify=True)


@pytest.mark.parametrize("file", ["rowptr.npy", "y.npy", "splits/val.npy"])
def test_a_missing_array(saved, file):
    (saved / file).unlink()
    with pytest.raises(StoreError, match="cannot read: No such file or directory") as error:
        Graph.open(saved)
    assert f"at: {saved / file}" in str(error.value)


@pytest.mark.parametrize("text", ["", "{", "[1]", "nul", '{"format": "tiergnn-run"}', "\xff"])
def test_a_manifest_that_is_none(saved, text):
    (saved / "manifest.json").write_text(text, encoding="latin-1")
    with pytest.raises(StoreError, match="the manifest is not") as error:
        Graph.open(saved)
    assert f"at: {saved / 'manifest.json'}" in str(error.value)


def test_every_flipped_byte_of_a_manifest_is_seen(saved):
    data = (saved / "manifest.json").read_bytes()
    # A blank that becomes another blank is the same manifest.
    for at in range(0, len(data), 7):
        changed = bytearray(data)
        changed[at] ^= 0x08
        if changed[at : at + 1].isspace() and data[at : at + 1].isspace():
            continue
        (saved / "manifest.json").write_bytes(changed)
        with pytest.raises(StoreError):
            Graph.open(saved)


def test_other_versions(saved):
    rewrite(saved, version=2)
    with pytest.raises(StoreError, match=r"version 2, this tiergnn reads version 1(.|\n)*newer"):
        Graph.open(saved)
    rewrite(saved, version="one")
    with pytest.raises(StoreError, match=r"version 'one'(.|\n)*ingest it again"):
        Graph.open(saved)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"num_nodes": 24}, "says num_nodes=24, the arrays 23"),
        ({"num_edges": 1}, "says num_edges=1, the arrays 120"),
        ({"task": "none of these"}, "unknown task"),
        ({"task": None}, "y and task go together"),
        ({"num_nodes": "gone"}, "lacks something"),
        ({"arrays": {}}, "has no array 'rowptr'"),
        ({"arrays": []}, "lacks something"),
        ({"arrays": {"rowptr": {}}}, "lacks something"),
        ({"arrays": {"secret": {}}}, "unknown array 'secret'"),
        ({"arrays": {"splits/../../x": {}}}, "unknown array"),
    ],
)
def test_manifests_that_contradict_the_arrays(saved, changes, what):
    rewrite(saved, **changes)
    with pytest.raises(StoreError, match=what):
        Graph.open(saved)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"file": "../x.npy"}, "puts array 'x' into '../x.npy'"),
        ({"dtype": "float64"}, r"array 'x' is float32 \[23, 5\], the manifest says float64"),
        ({"dtype": "bfloat16"}, "the manifest says bfloat16"),
        ({"dtype": 7}, "gives no dtype"),
        ({"shape": [23, 6]}, r"the manifest says float32 \[23, 6\]"),
        ({"shape": [23, 5.0]}, "no whole numbers"),
        ({"bytes": "many"}, "no whole numbers"),
    ],
)
def test_entries_that_contradict_their_array(saved, change, what):
    arrays = read_manifest(saved)["arrays"]
    arrays["x"] |= change
    rewrite(saved, arrays=arrays)
    with pytest.raises(StoreError, match=what):
        Graph.open(saved)


def test_a_wrong_csr_with_good_checksums_is_seen(tmp_path):
    with FolderWriter(tmp_path / "graph") as writer:
        writer.array("rowptr", np.array([0, 1, 2]))
        writer.array("col", np.array([0, 7], np.int32))
        path = writer.commit(num_nodes=2, num_edges=2)
    with pytest.raises(StoreError, match=r"contradicts itself: col\[1\] is 7"):
        Graph.open(path)


def test_no_pickle_is_ever_loaded(saved):
    evil = np.array([{"a": 1}], dtype=object)
    np.save(saved / "x.npy", evil, allow_pickle=True)
    data = (saved / "x.npy").read_bytes()
    arrays = read_manifest(saved)["arrays"]
    arrays["x"] |= {"bytes": len(data), "crc32": zlib.crc32(data), "dtype": "object", "shape": [1]}
    rewrite(saved, arrays=arrays)
    with pytest.raises(StoreError, match=r"not a .npy array"):
        Graph.open(saved)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EMFILE, errno.EIO])
@pytest.mark.parametrize("method", ["stat", "read_bytes", "exists"])
def test_reads_that_are_denied(saved, code, method, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError(code, "injected")

    monkeypatch.setattr(Path, method, fail)
    with pytest.raises(StoreError, match=f"cannot .*: {os.strerror(code)}"):
        open_folder(saved)


DENIED = """
    import os, sys
    from tiergnn.errors import StoreError
    from tiergnn.graph.csr import Graph
    graph = Graph.open(sys.argv[1])  # everything that is needed is imported by now
    os.chmod(sys.argv[1] + "/col.npy", 0)
    os.chmod(sys.argv[1], 0o555)
    if os.getuid() == 0:  # root may do everything
        os.setgid(65534), os.setuid(65534)
    for act in (lambda: Graph.open(sys.argv[1]), lambda: graph.save(sys.argv[1] + "/sub")):
        try:
            act()
        except StoreError as error:
            print(error)
"""


def test_files_without_permission():
    with tempfile.TemporaryDirectory() as place:  # pytest's own folders are closed to others
        os.chmod(place, 0o755)
        path = Path(place) / "graph"
        ODD["path"]().save(path)
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(DENIED), str(path)],
            capture_output=True,
            text=True,
            check=True,
        )
        os.chmod(path, 0o755)
    read, write = done.stdout.split("cannot make a folder for writing: ")
    assert read.startswith(
        f"cannot read: Permission denied\n  at: {path}/col.npy\n  try: check who"
    )
    assert write.startswith(f"Permission denied\n  at: {path}\n  try: check who")


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

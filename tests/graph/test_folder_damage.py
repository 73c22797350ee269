"""Graph folders that cannot be trusted: every way in which a file can go wrong."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import zlib
from pathlib import Path

import numpy as np
import pytest

from tiergnn.errors import StoreError
from tiergnn.graph import folder as folder_module
from tiergnn.graph.csr import Graph
from tiergnn.graph.folder import FolderWriter, open_folder
from tiergnn.graph.manifest import manifest_crc32, read_manifest
from tiergnn.graph.odd import ODD


def rewrite(path: Path, **changes) -> None:
    """A manifest with some fields changed (None: removed) and its checksum made good again."""
    manifest = json.loads((path / "manifest.json").read_text())
    manifest.pop("crc32")
    manifest |= changes
    manifest = {name: value for name, value in manifest.items() if value != "gone"}
    manifest["crc32"] = manifest_crc32(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))


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

"""One `.npy` file of a graph folder: written in order, filled in any order, read by memory map."""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np

from tiergnn.errors import GraphError, StoreError
from tiergnn.graph.staging import store_errors
from tiergnn.graph.table import STORED

_CHUNK_BYTES = 2**23


class ArrayStream:
    """Rows appended in order, checksummed as they pass. Unbuffered: every append is a write."""

    def __init__(self, file: Path, dtype: np.dtype, shape: tuple[int, ...], logical: str | None):
        self._file = file
        self._entry = {"dtype": logical or dtype.name, "shape": [int(side) for side in shape]}
        self._dtype = dtype
        self._left = math.prod(shape)
        header = _header(dtype, shape)
        self._crc32 = zlib.crc32(header)
        self._bytes = len(header) + self._left * dtype.itemsize
        self._out = open(file, "xb", buffering=0)  # noqa: SIM115 - closed by finish or close
        _write_all(self._out, header)

    def append(self, rows: np.ndarray) -> None:
        """Write rows of the array's dtype. Raises GraphError past its shape, StoreError."""
        if rows.dtype != self._dtype or rows.size > self._left:
            raise GraphError(
                f"{self._file.name} takes {self._left} more values of {self._dtype}, "
                f"had {rows.size} of {rows.dtype}"
            )
        if rows.size == 0:
            return
        data = np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data
        with store_errors("write", self._file):
            _write_all(self._out, data)
        self._crc32 = zlib.crc32(data, self._crc32)
        self._left -= rows.size

    def finish(self) -> dict[str, Any]:
        """Sync and close; the array's entry in the manifest."""
        if self._left:
            raise GraphError(f"{self._file.name} lacks {self._left} values of {self._dtype}")
        os.fsync(self._out.fileno())
        self.close()
        return {**self._entry, "bytes": self._bytes, "crc32": self._crc32}

    def close(self) -> None:
        self._out.close()


class FilledArray:
    """A writable memory map ``data`` of zeros; checksummed when finished."""

    def __init__(self, file: Path, dtype: np.dtype, shape: tuple[int, ...], logical: str | None):
        self._file = file
        self._entry = {"dtype": logical or dtype.name, "shape": [int(side) for side in shape]}
        header = _header(dtype, shape)
        self._bytes = len(header) + math.prod(shape) * dtype.itemsize
        self._map: np.memmap | None = None
        with open(file, "xb", buffering=0) as out:
            _write_all(out, header)
            if self._bytes == len(header):  # nothing can be mapped
                self.data = np.empty(shape, dtype)
                return
            os.posix_fallocate(out.fileno(), 0, self._bytes)
        self._map = np.memmap(file, dtype, "r+", offset=len(header), shape=shape)
        self.data = np.asarray(self._map)

    def finish(self) -> dict[str, Any]:
        """Sync; the array's entry in the manifest. ``data`` must not change any more."""
        if self._map is not None:
            self._map.flush()
        with open(self._file, "rb") as written:
            os.fsync(written.fileno())
        return {**self._entry, "bytes": self._bytes, "crc32": crc32_of(self._file)}

    def close(self) -> None:
        self._map = None


def open_array(folder: Path, name: str, entry: Mapping[str, Any]) -> np.ndarray:
    """The array of a manifest entry, memory-mapped and read-only. Raises StoreError."""
    file = folder / entry["file"]
    with store_errors("read", file):
        num_bytes = file.stat().st_size
        if num_bytes != entry["bytes"]:
            raise StoreError(
                f"the file has {num_bytes} bytes, the manifest says {entry['bytes']}",
                culprit=str(file),
                hint="restore the file, or ingest the graph again",
            )
        empty = 0 in entry["shape"]
        try:
            array = np.load(file, mmap_mode=None if empty else "r", allow_pickle=False)
        except (ValueError, TypeError, KeyError, EOFError, SyntaxError, TokenError) as error:
            raise StoreError(f"not a .npy array: {error}", culprit=str(file)) from error
    stored = STORED.get(entry["dtype"], entry["dtype"])
    if array.dtype.name != str(stored) or list(array.shape) != entry["shape"]:
        raise StoreError(
            f"array {name!r} is {array.dtype} {list(array.shape)}, "
            f"the manifest says {entry['dtype']} {entry['shape']}",
            culprit=str(file),
            hint="restore the file, or ingest the graph again",
        )
    return np.asarray(array)


def crc32_of(file: Path) -> int:
    """CRC-32 of a whole file, read in pieces."""
    crc32 = 0
    with store_errors("read", file), open(file, "rb", buffering=0) as data:
        buffer = memoryview(bytearray(_CHUNK_BYTES))
        while count := data.readinto(buffer):
            crc32 = zlib.crc32(buffer[:count], crc32)
    return crc32


def crc32_of_array(array: np.ndarray) -> int:
    """CRC-32 of the file that ``array`` would be written to."""
    crc32 = zlib.crc32(_header(array.dtype, array.shape))
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, crc32)


def _header(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    out = BytesIO()
    fields = {
        "descr": np.lib.format.dtype_to_descr(dtype),
        "fortran_order": False,
        "shape": tuple(int(side) for side in shape),
    }
    np.lib.format.write_array_header_1_0(out, fields)
    return out.getvalue()


def _write_all(out: Any, data: bytes | memoryview) -> None:
    """An unbuffered write may be short, for example at 2 GiB: go on until all is out."""
    view = memoryview(data)
    while view.nbytes:
        view = view[out.write(view) :]

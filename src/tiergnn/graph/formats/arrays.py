"""`.npy` files and the members of `.npz` files, read by blocks at a position: no map, no pickle.

Legend: R rows (the first axis).
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import shutil
import zipfile
import zlib
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from tiergnn.errors import GraphError
from tiergnn.graph.runs import read_all
from tiergnn.graph.staging import store_errors

_DONTNEED = 4  # of madvise, on Linux and macOS
_MAGIC = b"\x93NUMPY"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FileArray:
    """An array in a file. ``name`` is what messages call it, such as ``x.npz: data``."""

    path: Path
    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int
    fortran: bool = False

    def __post_init__(self) -> None:
        if self.dtype.hasobject:
            raise GraphError(
                "the array holds Python objects, which only pickle can read, and that is unsafe",
                culprit=self.name,
                hint="save it with a number dtype, e.g. array.astype('float32')",
            )
        if self.dtype.kind not in "biufSU":
            raise GraphError(f"wanted an array of numbers, had {self.dtype}", culprit=self.name)
        have = self.path.stat().st_size - self.offset
        if have < self.nbytes:
            raise GraphError(
                f"the file is cut short: {self.dtype} {list(self.shape)} takes {self.nbytes} "
                f"bytes, {max(have, 0)} are there",
                culprit=self.name,
                hint="copy or download it again",
            )

    @property
    def logical(self) -> str:
        return self.dtype.newbyteorder("=").name

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def flat(self, start: int, end: int) -> np.ndarray:
        """Values start to end in the order in which they lie in the file, in native byte order."""
        out = np.empty(end - start, self.dtype)
        with store_errors("read", self.path):
            handle = os.open(self.path, os.O_RDONLY)
            try:
                read_all(handle, self.offset + start * self.dtype.itemsize, out)
            finally:
                os.close(handle)
        return out if self.dtype.isnative else out.astype(self.dtype.newbyteorder("="))

    def rows(self, start: int, end: int) -> np.ndarray:
        """Rows start to end of the first axis, contiguous."""
        width = math.prod(self.shape[1:])
        shape = (end - start, *self.shape[1:])
        if not self.fortran or self.ndim < 2:
            return self.flat(start * width, end * width).reshape(shape)
        if self.ndim > 2:
            raise GraphError(
                "a Fortran-ordered array of more than two dimensions is not read",
                culprit=self.name,
                hint="numpy.save(path, numpy.ascontiguousarray(array))",
            )
        out = np.empty(shape, self.dtype.newbyteorder("="))
        for column in range(width):
            first = column * self.shape[0]
            out[:, column] = self.flat(first + start, first + end)
        return out

    def whole(self) -> np.ndarray:
        if self.ndim == 0:
            return self.flat(0, 1).reshape(())
        return self.rows(0, self.shape[0])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeldArray:
    """An array in memory, or mapped by who made it, read in the same way as a FileArray."""

    name: str
    data: np.ndarray
    logical: str  # "bfloat16" for its uint16 bits
    is_mapped: bool = False  # from a file that is only read: what was read is let go at once

    @property
    def dtype(self) -> np.dtype:
        return self.data.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    @property
    def ndim(self) -> int:
        return self.data.ndim

    @property
    def size(self) -> int:
        return self.data.size

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def flat(self, start: int, end: int) -> np.ndarray:
        return self._taken(self.data.reshape(-1)[start:end])

    def rows(self, start: int, end: int) -> np.ndarray:
        return self._taken(self.data[start:end])

    def _taken(self, part: np.ndarray) -> np.ndarray:
        if not self.is_mapped or part.size == 0:
            return part
        out = part.copy()
        _let_go(part)
        return out

    def whole(self) -> np.ndarray:
        return self.data


def _let_go(part: np.ndarray) -> None:
    """Tell the system that the pages of a private, unwritten map are not needed for now.

    They count as this process's memory otherwise. Where that cannot be told, they just stay.
    """
    page = mmap.PAGESIZE
    begin = part.ctypes.data // page * page
    with suppress(OSError, AttributeError):
        advise = ctypes.CDLL(None).madvise
        size = part.ctypes.data + part.nbytes - begin
        advise(ctypes.c_void_p(begin), ctypes.c_size_t(size), _DONTNEED)


def open_npy(path: Path) -> FileArray:
    """Raises GraphError when it is no `.npy` file of plain numbers, StoreError."""
    with _npy_errors(path.name), store_errors("read", path), open(path, "rb") as file:
        shape, fortran, dtype = _header(file)
        return FileArray(
            path=path,
            name=path.name,
            dtype=dtype,
            shape=shape,
            offset=file.tell(),
            fortran=fortran,
        )


def open_npz(path: Path, scratch: Path) -> dict[str, FileArray]:
    """The arrays of a `.npz` file by name. Compressed ones are unpacked into ``scratch``.

    Raises GraphError when the archive is damaged or holds objects, StoreError.
    """
    arrays = {}
    with _npy_errors(path.name), store_errors("read", path), zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if not member.filename.endswith(".npy"):
                continue
            key = member.filename.removesuffix(".npy")
            name = f"{path.name}: {key}"
            with archive.open(member) as file:
                shape, fortran, dtype = _header(file)
                if dtype.hasobject or member.compress_type == zipfile.ZIP_STORED:
                    where, offset = path, _member_start(path, member) + file.tell()
                else:
                    where, offset = _unpacked(file, path, len(arrays), scratch), 0
            arrays[key] = FileArray(
                path=where, name=name, dtype=dtype, shape=shape, offset=offset, fortran=fortran
            )
    return arrays


def _unpacked(file: IO[bytes], path: Path, member: int, scratch: Path) -> Path:
    """The rest of a member as a file of its own, which an earlier process may have made."""
    unpacked = scratch / f"{zlib.crc32(os.fsencode(path)):08x}-{member}"
    if not unpacked.exists():
        part = unpacked.with_suffix(".part")
        with store_errors("write", part), open(part, "wb") as out:
            shutil.copyfileobj(file, out, 2**20)
        part.rename(unpacked)
    return unpacked


def npz_names(path: Path) -> list[str]:
    """The names of the arrays of a `.npz` file; empty when it is none."""
    try:
        with zipfile.ZipFile(path) as archive:
            return [n.removesuffix(".npy") for n in archive.namelist() if n.endswith(".npy")]
    except (OSError, zipfile.BadZipFile):
        return []


def is_npy(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def open_arrays(folder: Path, stem: str, scratch: Path) -> dict[str, FileArray]:
    """What ``STEM.npz`` holds, or ``STEM.npy`` under the name STEM; empty when neither is there."""
    if (folder / f"{stem}.npz").exists():
        return open_npz(folder / f"{stem}.npz", scratch)
    if (folder / f"{stem}.npy").exists():
        return {stem: open_npy(folder / f"{stem}.npy")}
    return {}


def _header(file) -> tuple[tuple[int, ...], bool, np.dtype]:
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    return np.lib.format.read_array_header_2_0(file)


def _member_start(path: Path, member: zipfile.ZipInfo) -> int:
    """Where a stored member's bytes begin: after its local header, whose two lengths vary."""
    with open(path, "rb") as file:
        file.seek(member.header_offset + 26)
        name, extra = np.frombuffer(file.read(4), "<u2").tolist()
    return member.header_offset + 30 + name + extra


@contextmanager
def _npy_errors(name: str):
    try:
        yield
    except GraphError:
        raise
    except (ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise GraphError(
            f"not a whole .npy or .npz file: {error}",
            culprit=name,
            hint="copy or download it again, or save it anew with NumPy",
        ) from error

"""Files of array bytes without a header, appended to and read at a position."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

import numpy as np

from tiergnn.graph.runs import read_all, write_all
from tiergnn.graph.staging import store_errors


class RawFile:
    """Appends to a file, which is cut to ``num_bytes`` on opening. Raises StoreError."""

    def __init__(self, path: Path, num_bytes: int = 0):
        self.path, self.num_bytes = path, num_bytes
        with store_errors("open", path):
            # A file object closes itself when an error leaves it behind.
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115
            self._handle = self._file.fileno()
            os.ftruncate(self._handle, num_bytes)

    def append(self, values: np.ndarray) -> None:
        with store_errors("write", self.path):
            write_all(self._handle, values)
        self.num_bytes += values.nbytes

    def sync(self) -> None:
        """Force what was appended to the disk. Blocks."""
        with store_errors("write", self.path):
            os.fdatasync(self._handle)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> RawFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()


def read_raw(path: Path, dtype: np.dtype | type, start: int, end: int) -> np.ndarray:
    """Values start to end of a file of ``dtype``."""
    out = np.empty(end - start, dtype)
    with store_errors("read", path), open(path, "rb", buffering=0) as file:
        read_all(file.fileno(), start * out.itemsize, out)
    return out

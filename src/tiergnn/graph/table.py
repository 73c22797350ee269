"""Rows of one kind (features, edge features), kept in the width they were given in.

Legend: R rows, D columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tiergnn.errors import GraphError, unknown

# Stored dtype name -> the NumPy dtype of its bits. NumPy has no bfloat16: its bits are uint16.
STORED = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(np.uint16),
    "int8": np.dtype(np.int8),
    "uint8": np.dtype(np.uint8),
    "bool": np.dtype(np.bool_),
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table:
    """``data`` [R, D] holds stored bits; a value is those read as ``dtype``, times ``scale``."""

    data: np.ndarray
    dtype: str
    scale: np.ndarray | None = None  # float32 [] or [D]; only with int8 and uint8

    def __post_init__(self) -> None:
        if self.dtype not in STORED:
            raise unknown("feature dtype", self.dtype, STORED)
        if self.data.ndim != 2:
            raise GraphError(f"a table needs 2 dimensions, has shape {self.data.shape}")
        if self.data.dtype != STORED[self.dtype]:
            raise GraphError(
                f"a {self.dtype} table is stored as {STORED[self.dtype]}, had {self.data.dtype}"
            )
        if self.scale is not None:
            if self.dtype not in ("int8", "uint8"):
                raise GraphError(f"a scale goes with int8 or uint8, had {self.dtype}")
            if self.scale.shape not in ((), (self.width,)):
                raise GraphError(f"scale needs shape () or ({self.width},), has {self.scale.shape}")

    @property
    def num_rows(self) -> int:
        return self.data.shape[0]

    @property
    def width(self) -> int:
        return self.data.shape[1]

    @property
    def row_bytes(self) -> int:
        return self.width * self.data.dtype.itemsize

    @classmethod
    def from_array(
        cls, array: np.ndarray, *, scale: np.ndarray | float | None = None, name: str = "x"
    ) -> Table:
        """Wrap [R, D] or [R] values, without copying where their dtype is one of STORED.

        Whole numbers of 16 to 64 bits become the narrowest of uint8, int8, float32 and float64
        that holds each of them exactly; a bfloat16 array comes as its uint16 bits through the
        constructor instead. Raises GraphError.
        """
        if array.ndim == 1:
            array = array[:, None]
        if array.dtype.kind in "iu" and array.dtype.itemsize > 1:
            array = _narrowed(array, name)
        for dtype, stored in STORED.items():
            if array.dtype == stored and dtype != "bfloat16":
                break
        else:
            raise GraphError(
                f"{name} has dtype {array.dtype}, which no table stores",
                hint="cast it to one of " + ", ".join(STORED),
            )
        if scale is not None:
            scale = np.asarray(scale, dtype=np.float32)
        return cls(data=array, dtype=dtype, scale=scale)

    def decode(self, ids: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Values of rows ``ids`` as float32 (or float64, if stored so), [len(ids), D]; copies."""
        rows = self.data[ids]
        if self.dtype == "bfloat16":
            return (rows.astype(np.uint32) << 16).view(np.float32)
        values = rows.astype(np.float64 if self.dtype == "float64" else np.float32)
        return values if self.scale is None else values * self.scale


def _narrowed(array: np.ndarray, name: str) -> np.ndarray:
    """Whole numbers as the narrowest stored dtype that holds each exactly."""
    low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
    for dtype in (np.uint8, np.int8):
        if np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max:
            return array.astype(dtype)
    for dtype, exact in ((np.float32, 2**24), (np.float64, 2**53)):
        if -exact <= low and high <= exact:
            return array.astype(dtype)
    bad = (array > 2**53) | (array < -(2**53))
    position = np.unravel_index(int(np.argmax(bad)), bad.shape)
    raise GraphError(
        f"{name}[{', '.join(str(int(axis)) for axis in position)}] is {array[position]}, "
        "which no float holds exactly",
        hint="numbers of at most 53 bits, or a float dtype of your choice",
    )

"""RowKind: a tensor with one row a node (or an edge), by name, and the dtypes that rows have."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tiergnn.errors import ConfigError, unknown
from tiergnn.frozen import check_counts

INPUTS = ("x", "edge_weight", "edge_attr")  # that a graph has
DTYPE_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip
# What schedules call other things than rows.
_RESERVED = ("topology", "parameters", "optimizer", "gradients", "labels", "buffers")
_MOMENTS = re.compile(r"s\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowKind:
    """What a schedule moves and stores. Raises ConfigError for a name that means something else."""

    name: str
    width: int  # elements of a row
    dtype: str
    of: str = "nodes"  # or edges
    grad: bool = True  # whether backward makes a gradient of it

    def __post_init__(self) -> None:
        if self.dtype not in DTYPE_BYTES:
            raise unknown("dtype", self.dtype, DTYPE_BYTES)
        if self.of not in ("nodes", "edges"):
            raise unknown("kind of rows", self.of, ("nodes", "edges"))
        if not self.name.isidentifier() or self.name in _RESERVED or _MOMENTS.fullmatch(self.name):
            raise ConfigError(
                f"name: wanted a word of its own for rows, had {self.name!r}",
                hint="h1, for example; s1, s2, ... are moments",
            )
        check_counts(self, "width")

    @property
    def row_bytes(self) -> int:
        return self.width * DTYPE_BYTES[self.dtype]

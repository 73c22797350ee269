"""NodeIds: the names that a user's data gave to nodes, whole numbers or strings.

Legend: V nodes. Strings are kept as one run of UTF-8 bytes with V+1 offsets, so they can be
memory-mapped; a name never holds the NUL character.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numba
import numpy as np

from tiergnn.errors import GraphError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeIds:
    """Names of nodes 0..V-1: either ``numbers`` int64 [V], or ``offsets`` and ``text``."""

    numbers: np.ndarray | None = None
    offsets: np.ndarray | None = None  # int64 [V+1]
    text: np.ndarray | None = None  # uint8: name v is text[offsets[v]:offsets[v+1]]

    def __post_init__(self) -> None:
        if self.numbers is not None:
            if self.offsets is not None or self.text is not None:
                raise GraphError("node ids are numbers or strings, not both")
            if self.numbers.ndim != 1 or self.numbers.dtype != np.int64:
                raise GraphError(
                    "numeric node ids need int64 [num_nodes], "
                    f"have {self.numbers.dtype} {list(self.numbers.shape)}"
                )
            return
        if self.offsets is None or self.text is None:
            raise GraphError("string node ids need both offsets and text")
        if self.offsets.ndim != 1 or self.offsets.size == 0 or self.offsets.dtype != np.int64:
            raise GraphError(f"offsets of node ids need int64 [num_nodes+1], have {self.offsets!r}")
        if self.text.ndim != 1 or self.text.dtype != np.uint8:
            raise GraphError(f"text of node ids needs uint8 bytes, has {self.text.dtype}")
        if self.offsets[0] != 0 or self.offsets[-1] != self.text.size:
            raise GraphError(
                f"offsets of node ids must run from 0 to {self.text.size}, "
                f"run from {self.offsets[0]} to {self.offsets[-1]}"
            )

    @property
    def are_numbers(self) -> bool:
        return self.numbers is not None

    def __len__(self) -> int:
        if self.numbers is not None:
            return self.numbers.size
        assert self.offsets is not None
        return self.offsets.size - 1

    @classmethod
    def from_names(cls, names: Sequence[int] | Sequence[str] | np.ndarray) -> NodeIds:
        """Names of nodes 0, 1, ...: all whole numbers that fit int64, or all strings.

        Raises GraphError when they are of neither kind, or a string holds NUL.
        """
        array = np.asarray(names)
        if array.dtype.kind in "iu" and array.ndim == 1:
            if array.size and int(array.max()) > np.iinfo(np.int64).max:
                raise GraphError(f"node id {array.max()} does not fit int64", hint="strings")
            return cls(numbers=array.astype(np.int64))
        try:
            joined = "\0".join(list(names))  # type: ignore[arg-type]
        except TypeError:
            raise GraphError(
                f"node ids must be whole numbers or strings, had {array.dtype}"
            ) from None
        try:
            text = np.frombuffer(joined.encode(), np.uint8)
        except UnicodeEncodeError as error:
            raise GraphError(f"a node id is not valid text: {error.reason}") from None
        ends = np.flatnonzero(text == 0)
        if ends.size != max(len(names) - 1, 0):
            raise GraphError("a node id holds the NUL character")
        offsets = np.zeros(len(names) + 1, np.int64)
        if len(names):
            offsets[1:-1] = ends - np.arange(ends.size)
            offsets[-1] = text.size - ends.size
        return cls(offsets=offsets, text=text[text != 0])

    def names(self, ids: np.ndarray | slice | None = None) -> np.ndarray:
        """Names of nodes ``ids`` (all when None): an int64 array, or an object array of str."""
        if self.numbers is not None:
            return np.array(self.numbers[slice(None) if ids is None else ids])
        assert self.offsets is not None
        assert self.text is not None
        if ids is None or isinstance(ids, slice):
            ids = np.arange(len(self))[slice(None) if ids is None else ids]
        ids = np.ascontiguousarray(ids, dtype=np.int64)
        if ids.size == 0:
            return np.empty(0, object)
        if int(ids.min()) < 0 or int(ids.max()) >= len(self):
            raise GraphError(f"node {ids.min()}..{ids.max()} is not in 0..{len(self) - 1}")
        joined = _join(self.offsets, self.text, ids)
        return np.array(joined.tobytes().decode().split("\0"), dtype=object)

    def find(self, names: Sequence[int] | Sequence[str] | np.ndarray) -> np.ndarray:
        """The nodes of these names, int64 [len(names)].

        Sorts the ids (or a hash of each string) on every call: ask for many names at once.
        Raises GraphError naming the first name that no node has.
        """
        if len(names) == 0:
            return np.empty(0, np.int64)
        wanted = NodeIds.from_names(names)
        if wanted.are_numbers != self.are_numbers:
            kind = "whole numbers" if self.are_numbers else "strings"
            raise GraphError(f"node ids of this graph are {kind}, had {names[0]!r}")
        if self.numbers is not None and wanted.numbers is not None:
            keys, keys_wanted = self.numbers, wanted.numbers
            found = _lookup(keys, keys_wanted)
        else:
            assert self.offsets is not None
            assert self.text is not None
            assert wanted.offsets is not None
            assert wanted.text is not None
            keys = _hash(self.offsets, self.text)
            keys_wanted = _hash(wanted.offsets, wanted.text)
            order = np.argsort(keys, kind="stable")
            first = np.searchsorted(keys, keys_wanted, sorter=order)
            found = _match(
                keys, order, first, keys_wanted,
                self.offsets, self.text, wanted.offsets, wanted.text,
            )  # fmt: skip
        missing = np.flatnonzero(found < 0)
        if missing.size:
            raise GraphError(
                f"no node is named {names[int(missing[0])]!r} "
                f"({missing.size} of {len(names)} names are unknown)"
            )
        return found

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays of a graph folder, by name."""
        if self.numbers is not None:
            return {"node_ids": self.numbers}
        assert self.offsets is not None
        assert self.text is not None
        return {"node_ids_offsets": self.offsets, "node_ids_text": self.text}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> NodeIds | None:
        """The inverse of ``arrays``; other names are passed over. None when there are none."""
        if "node_ids" in arrays:
            return cls(numbers=arrays["node_ids"])
        if "node_ids_offsets" in arrays or "node_ids_text" in arrays:
            return cls(offsets=arrays.get("node_ids_offsets"), text=arrays.get("node_ids_text"))
        return None


def _lookup(keys: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    if keys.size == 0:
        return np.full(wanted.size, -1, np.int64)
    order = np.argsort(keys, kind="stable")
    slot = np.minimum(np.searchsorted(keys, wanted, sorter=order), keys.size - 1)
    found = order[slot].astype(np.int64)
    return np.where(keys[found] == wanted, found, -1)


@numba.njit(cache=True, nogil=True)
def _join(offsets, text, ids):
    """The names of ``ids`` one after the other with a NUL between."""
    total = ids.size - 1
    for i in range(ids.size):
        total += offsets[ids[i] + 1] - offsets[ids[i]]
    out = np.zeros(total, np.uint8)
    at = 0
    for i in range(ids.size):
        for k in range(offsets[ids[i]], offsets[ids[i] + 1]):
            out[at] = text[k]
            at += 1
        at += 1
    return out


@numba.njit(cache=True, nogil=True)
def _hash(offsets, text):
    """FNV-1a, 64 bits, of every name."""
    out = np.empty(offsets.size - 1, np.uint64)
    for v in range(out.size):
        h = np.uint64(0xCBF29CE484222325)
        for k in range(offsets[v], offsets[v + 1]):
            h = (h ^ np.uint64(text[k])) * np.uint64(0x100000001B3)
        out[v] = h
    return out


@numba.njit(cache=True, nogil=True)
def _match(keys, order, first, keys_wanted, offsets, text, wanted_offsets, wanted_text):
    """Among names of one hash, the one whose bytes are equal; -1 when there is none."""
    found = np.full(first.size, -1, np.int64)
    for i in range(first.size):
        lo = wanted_offsets[i]
        length = wanted_offsets[i + 1] - lo
        slot = first[i]
        while slot < order.size and keys[order[slot]] == keys_wanted[i]:
            v = order[slot]
            start = offsets[v]
            same = offsets[v + 1] - start == length
            k = 0
            while same and k < length:
                same = text[start + k] == wanted_text[lo + k]
                k += 1
            if same:
                found[i] = v
                break
            slot += 1
    return found

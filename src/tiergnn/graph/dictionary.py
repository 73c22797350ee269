"""Ids of any kind numbered in the order in which they turn up, by hash tables of our own.

Legend: n ids given, U different ones.
"""

from __future__ import annotations

import numba
import numpy as np

from tiergnn.errors import GraphError
from tiergnn.graph.draws import mix
from tiergnn.graph.formats.fields import Text
from tiergnn.graph.radix import sort_with_order

LONGEST_NAME = 1024  # bytes
_BATCH = 32  # names looked up together
_SIGN = np.uint64(1 << 63)


class Numbers:
    """Whole numbers of 64 bits, each known by the order of its first coming."""

    def __init__(self) -> None:
        self._table = np.full(2**10, -1, np.int32)
        self._values = np.empty(2**9, np.int64)
        self.size = 0

    @property
    def num_bytes(self) -> int:
        return self._table.nbytes + self._values.nbytes

    def add(self, ids: np.ndarray) -> np.ndarray:
        """int32 [n]: the number of each of ``ids`` (integers of any width)."""
        ids = np.ascontiguousarray(ids, dtype=np.int64)
        out = np.empty(ids.size, np.int32)
        done = 0
        while True:
            done, self.size = _number(ids, done, self._table, self._values, self.size, out)
            if done == ids.size:
                return out
            self._values = _grown(self._values, 2 * self._values.size)
            self._table = np.full(2 * self._table.size, -1, np.int32)
            _refill(self._values[: self.size], self._table)

    def sorted(self) -> tuple[np.ndarray, np.ndarray]:
        """int64 [U] ascending, and the number of each."""
        keys = self._values[: self.size].view(np.uint64) ^ _SIGN
        keys, order = sort_with_order(keys)
        return (keys ^ _SIGN).view(np.int64), order


class Names:
    """Names as bytes, each known by the order of its first coming."""

    def __init__(self) -> None:
        self._table = np.full(2**10, -1, np.int32)
        self._offsets = np.zeros(2**9 + 1, np.int64)
        self._bytes = np.empty(2**13, np.uint8)
        self.size = 0

    @property
    def num_bytes(self) -> int:
        return self._table.nbytes + self._offsets.nbytes + self._bytes.nbytes

    def add(self, ids: Text) -> np.ndarray:
        """int32 [n]: the number of each name. Raises BadNameError at the first that is none."""
        out = np.empty(ids.size, np.int32)
        done = 0
        while True:
            done, self.size, fault, _ = _number_names(
                ids.bytes, ids.starts, ids.ends, done,
                self._table, self._offsets, self._bytes, self.size, out,
            )  # fmt: skip
            if fault:
                raise BadNameError(done, ids[done])
            if done == ids.size:
                return out
            need = int(self._offsets[self.size]) + int(ids.ends[done] - ids.starts[done])
            if need > self._bytes.size:
                self._bytes = _grown(self._bytes, 2 * need)
            if 2 * (self.size + 1) > self._table.size:
                self._offsets = _grown(self._offsets, 2 * self._offsets.size - 1)
                self._table = np.full(2 * self._table.size, -1, np.int32)
                _refill_names(self._bytes, self._offsets, self.size, self._table)

    def sorted(self) -> tuple[Text, np.ndarray]:
        """Names ascending by their bytes, and the number of each."""
        text = Text(self._bytes, self._offsets[: self.size], self._offsets[1 : self.size + 1])
        order = sort_text(text)
        return Text(self._bytes, text.starts[order], text.ends[order]), order


def most_bytes(ids: np.ndarray | Text) -> int:
    """What taking in ``ids`` adds to a dictionary at most."""
    text = 2 * int((ids.ends - ids.starts).sum()) if isinstance(ids, Text) else 0
    return 32 * ids.size + text


class BadNameError(GraphError):
    """A name that cannot be one; ``row`` is its place in what was given."""

    def __init__(self, row: int, name: str):
        self.row = row
        if name == "":
            problem = "the name of a node is empty"
        elif "\0" in name:
            problem = f"the name {name!r} holds the NUL character"
        else:
            problem = f"the name {name[:40]!r}... is longer than {LONGEST_NAME} bytes"
        super().__init__(problem)


def sort_text(text: Text) -> np.ndarray:
    """The stable order [n] that sorts names by their bytes: a radix sort, eight bytes at a time."""
    order = np.arange(text.size)
    if text.size == 0:
        return order
    longest = int((text.ends - text.starts).max())
    for word in range(-(-longest // 8) - 1, -1, -1):
        keys = np.empty(text.size, np.uint64)
        _words(text.bytes, text.starts, text.ends, order, word, keys)
        order = order[sort_with_order(keys)[1]]
    return order


def pack_text(text: Text) -> tuple[np.ndarray, np.ndarray]:
    """(offsets int64 [n+1], bytes) of names put one after the other."""
    offsets = np.zeros(text.size + 1, np.int64)
    np.cumsum(text.ends - text.starts, out=offsets[1:])
    out = np.empty(offsets[-1], np.uint8)
    _copy(text.bytes, text.starts, text.ends, offsets, out)
    return offsets, out


def unlike_before(text: Text) -> np.ndarray:
    """bool [n]: whether each name differs from the one before it; the first does."""
    out = np.ones(text.size, np.bool_)
    _unlike(text.bytes, text.starts, text.ends, out)
    return out


def count_up_to(text: Text, last: Text) -> int:
    """How many of the ascending ``text`` are at most the one name ``last``."""
    return _count_up_to(
        text.bytes, text.starts, text.ends, last.bytes[last.starts[0] : last.ends[0]]
    )


def _grown(array: np.ndarray, size: int) -> np.ndarray:
    out = np.empty(size, array.dtype)
    out[: array.size] = array
    return out


@numba.njit(cache=True, nogil=True)
def _number(ids, done, table, values, size, out):
    """(ids done, different ones): stops early when the table is half full."""
    mask = np.uint64(table.size - 1)
    for i in range(done, ids.size):
        slot = mix(np.uint64(ids[i])) & mask
        while table[slot] >= 0 and values[table[slot]] != ids[i]:
            slot = (slot + np.uint64(1)) & mask
        if table[slot] < 0:
            if size == values.size:
                return i, size
            values[size] = ids[i]
            table[slot] = size
            size += 1
        out[i] = table[slot]
    return ids.size, size


@numba.njit(cache=True, nogil=True)
def _refill(values, table):
    mask = np.uint64(table.size - 1)
    for v in range(values.size):
        slot = mix(np.uint64(values[v])) & mask
        while table[slot] >= 0:
            slot = (slot + np.uint64(1)) & mask
        table[slot] = v


@numba.njit(cache=True, nogil=True)
def _hash(data, start, end):
    """Of eight bytes at a time, as a little-endian number."""
    h = np.uint64(end - start)
    word, shift = np.uint64(0), np.uint64(0)
    for k in range(start, end):
        word |= np.uint64(data[k]) << shift
        shift += np.uint64(8)
        if shift == np.uint64(64):
            h = mix(h ^ word)
            word, shift = np.uint64(0), np.uint64(0)
    return mix(h ^ word)


@numba.njit(cache=True, nogil=True)
def _number_names(data, starts, ends, done, table, offsets, held, size, out):
    """(names done, different ones, fault, nothing): stops early where there is no room."""
    mask = np.uint64(table.size - 1)
    slots = np.empty(_BATCH, np.uint64)
    first = np.empty(_BATCH, np.int64)
    touched = np.uint8(0)
    for i in range(done, starts.size):
        length = ends[i] - starts[i]
        if length == 0 or length > LONGEST_NAME:
            return i, size, True, touched
        if (i - done) % _BATCH == 0:
            # What a batch will look at is asked for at once, so that it comes from memory together.
            stop = min(i + _BATCH, starts.size)
            for j in range(i, stop):
                slots[j - i] = _hash(data, starts[j], ends[j]) & mask
            for j in range(stop - i):
                first[j] = max(table[slots[j]], 0)
            for j in range(stop - i):
                first[j] = offsets[first[j]]
            for j in range(stop - i):
                touched |= held[first[j]]
        slot = slots[(i - done) % _BATCH]
        start = starts[i]
        while table[slot] >= 0:
            v = table[slot]
            begin = offsets[v]
            if offsets[v + 1] - begin == length:
                k = 0
                while k < length and held[begin + k] == data[start + k]:
                    k += 1
                if k == length:
                    break
            slot = (slot + np.uint64(1)) & mask
        if table[slot] < 0:
            used = offsets[size]
            if 2 * (size + 1) > table.size or used + length > held.size:
                return i, size, False, touched
            for k in range(length):
                if data[start + k] == 0:
                    return i, size, True, touched
                held[used + k] = data[start + k]
            offsets[size + 1] = used + length
            table[slot] = size
            size += 1
        out[i] = table[slot]
    return starts.size, size, False, touched


@numba.njit(cache=True, nogil=True)
def _refill_names(held, offsets, size, table):
    mask = np.uint64(table.size - 1)
    for v in range(size):
        slot = _hash(held, offsets[v], offsets[v + 1]) & mask
        while table[slot] >= 0:
            slot = (slot + np.uint64(1)) & mask
        table[slot] = v


@numba.njit(cache=True, nogil=True)
def _words(data, starts, ends, order, word, out):
    """Bytes 8*word to 8*word+7 of each name as a number that ascends with them; 0 past its end."""
    for i in range(order.size):
        begin = starts[order[i]] + 8 * word
        end = ends[order[i]]
        value = np.uint64(0)
        for k in range(begin, begin + 8):
            value = value << np.uint64(8)
            if k < end:
                value |= np.uint64(data[k])
        out[i] = value


@numba.njit(cache=True, nogil=True)
def _copy(data, starts, ends, offsets, out):
    for i in range(starts.size):
        for k in range(ends[i] - starts[i]):
            out[offsets[i] + k] = data[starts[i] + k]


@numba.njit(cache=True, nogil=True)
def _unlike(data, starts, ends, out):
    for i in range(1, starts.size):
        length = ends[i] - starts[i]
        same = ends[i - 1] - starts[i - 1] == length
        k = 0
        while same and k < length:
            same = data[starts[i] + k] == data[starts[i - 1] + k]
            k += 1
        out[i] = not same


@numba.njit(cache=True, nogil=True)
def _count_up_to(data, starts, ends, last):
    low, high = 0, starts.size
    while low < high:
        middle = (low + high) // 2
        length = ends[middle] - starts[middle]
        k = 0
        while k < length and k < last.size and data[starts[middle] + k] == last[k]:
            k += 1
        if k == length:
            above = False
        elif k == last.size:
            above = True
        else:
            above = data[starts[middle] + k] > last[k]
        if above:
            high = middle
        else:
            low = middle + 1
    return low

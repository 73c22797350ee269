"""Radix sort of 64-bit keys: stable, linear, touching only the bits that differ.

Legend: N keys. An edge's key is ``dst << 32 | src``, so keys ascend by (dst, src).
"""

from __future__ import annotations

import numba
import numpy as np

_DIGIT = 9  # bits: 512 write streams stay within the first levels of cache and TLB
_ONE = np.uint64(1)
_LOW = np.uint64(2**32 - 1)
_HALF = np.uint64(32)


def sort_keys(keys: np.ndarray) -> np.ndarray:
    """uint64 [N], ascending; ``keys`` is used as scratch. Holds one more array of its size."""
    scratch = np.empty_like(keys)
    for shift, width in _digits(keys):
        _move(keys, scratch, shift, width)
        keys, scratch = scratch, keys
    return keys


def sort_with_order(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sorted keys and the stable order [N] that sorts them; ``keys`` is used as scratch."""
    order = np.arange(keys.size, dtype=np.uint32 if keys.size < 2**32 else np.uint64)
    scratch, scratch_order = np.empty_like(keys), np.empty_like(order)
    for shift, width in _digits(keys):
        _move_both(keys, order, scratch, scratch_order, shift, width)
        keys, scratch = scratch, keys
        order, scratch_order = scratch_order, order
    return keys, order


def pack(src: np.ndarray, dst: np.ndarray) -> np.ndarray:
    """Keys uint64 [N] of edges whose ids are in [0, 2**32)."""
    out = np.empty(src.size, np.uint64)
    _pack(src, dst, out)
    return out


def unpack(keys: np.ndarray, index: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """(src, dst) of keys, of dtype ``index``."""
    return (keys & _LOW).astype(index), (keys >> _HALF).astype(index)


def reverse(keys: np.ndarray) -> np.ndarray:
    """The keys of the edges the other way round."""
    return (keys << _HALF) | (keys >> _HALF)


def _digits(keys: np.ndarray) -> list[tuple[np.uint64, np.uint64]]:
    """(shift, width) of digits, low to high, that cover every bit in which keys differ."""
    left = int(_differing(keys)) if keys.size else 0
    digits = []
    while left:
        shift = (left & -left).bit_length() - 1
        width = min(_DIGIT, left.bit_length() - shift)
        digits.append((np.uint64(shift), np.uint64(width)))
        left = left >> (shift + width) << (shift + width)
    return digits


@numba.njit(cache=True, nogil=True)
def _differing(keys):
    bits = np.uint64(0)
    first = keys[0]
    for i in range(keys.size):
        bits |= keys[i] ^ first
    return bits


@numba.njit(cache=True, nogil=True)
def _starts(keys, shift, width):
    mask = (_ONE << width) - _ONE
    starts = np.zeros(np.int64(mask) + 2, np.int64)
    for i in range(keys.size):
        starts[np.int64((keys[i] >> shift) & mask) + 1] += 1
    for d in range(starts.size - 1):
        starts[d + 1] += starts[d]
    return starts


@numba.njit(cache=True, nogil=True)
def _move(keys, out, shift, width):
    mask = (_ONE << width) - _ONE
    starts = _starts(keys, shift, width)
    for i in range(keys.size):
        d = np.int64((keys[i] >> shift) & mask)
        out[starts[d]] = keys[i]
        starts[d] += 1


@numba.njit(cache=True, nogil=True)
def _move_both(keys, order, out, out_order, shift, width):
    mask = (_ONE << width) - _ONE
    starts = _starts(keys, shift, width)
    for i in range(keys.size):
        d = np.int64((keys[i] >> shift) & mask)
        out[starts[d]] = keys[i]
        out_order[starts[d]] = order[i]
        starts[d] += 1


@numba.njit(cache=True, nogil=True)
def _pack(src, dst, out):
    for i in range(src.size):
        out[i] = (np.uint64(dst[i]) << _HALF) | np.uint64(src[i])


@numba.njit(cache=True, nogil=True)
def row_ends(keys, first_row, out):
    """out[r] = the number of ``keys`` (ascending) whose dst is at most first_row + r."""
    i = 0
    for r in range(out.size):
        limit = np.uint64(first_row + r)
        while i < keys.size and (keys[i] >> _HALF) <= limit:
            i += 1
        out[r] = i


@numba.njit(cache=True, nogil=True)
def missing_loops(keys, begin, end):
    """The nodes begin <= v < end, int64 ascending, whose loop is not among ``keys``."""
    has = np.zeros(end - begin, np.bool_)
    for i in range(keys.size):
        if keys[i] >> _HALF == keys[i] & _LOW:
            has[np.int64(keys[i] & _LOW) - begin] = True
    return np.flatnonzero(~has) + begin

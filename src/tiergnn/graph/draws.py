"""Random numbers that depend on nothing but (seed, stream, counter).

Integers only until the last step, so every machine, thread count and library version agrees.
The mixing is that of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014); permutations are Feistel networks (Luby and Rackoff, 1988) walked until
they land inside (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002).
"""

from __future__ import annotations

import numba
import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
_ROUNDS = 3


@numba.njit(cache=True, nogil=True, inline="always")
def mix(word):
    """A bijection of uint64 that spreads every bit over all."""
    word = (word ^ (word >> np.uint64(30))) * _MIX1
    word = (word ^ (word >> np.uint64(27))) * _MIX2
    return word ^ (word >> np.uint64(31))


@numba.njit(cache=True, nogil=True, inline="always")
def draw(key, counter):
    """The uint64 number ``counter`` of the stream ``key``."""
    return mix(key + (counter + np.uint64(1)) * _GOLDEN)


def stream_key(seed: int, stream: int) -> np.uint64:
    """The key of one of a seed's independent streams."""
    return np.uint64(stream_key_of(np.uint64(seed % 2**64), np.uint64(stream)))


@numba.njit(cache=True, nogil=True)
def stream_key_of(seed, stream):
    """``stream_key`` of two uint64, for compiled callers."""
    return mix(mix(seed + _GOLDEN) ^ mix(stream * _MIX1 + _MIX2))


@numba.njit(cache=True, nogil=True)
def id_bits(size):
    """The bits of numbers below ``size``, at least 1."""
    bits = np.uint64(1)
    while (np.uint64(1) << bits) < np.uint64(size):
        bits += np.uint64(1)
    return bits


@numba.njit(cache=True, nogil=True)
def permute(key, value, size, bits):
    """Where the key's permutation of 0..size-1 sends ``value``; bits = id_bits(size)."""
    low_bits = (bits + np.uint64(1)) >> np.uint64(1)
    low_mask = (np.uint64(1) << low_bits) - np.uint64(1)
    high_mask = (np.uint64(1) << (bits - low_bits)) - np.uint64(1)
    while True:
        high, low = value >> low_bits, value & low_mask
        for turn in range(_ROUNDS):
            high ^= mix(key + (low << np.uint64(4)) + np.uint64(2 * turn)) & high_mask
            low ^= mix(key + (high << np.uint64(4)) + np.uint64(2 * turn + 1)) & low_mask
        value = (high << low_bits) | low
        if value < size:
            return value


@numba.njit(cache=True, nogil=True)
def _permutation(key, size):
    out = np.empty(size, np.int64)
    bits = id_bits(size)
    for i in range(size):
        out[i] = permute(key, np.uint64(i), np.uint64(size), bits)
    return out


@numba.njit(cache=True, nogil=True)
def _normals(key, start, out):
    """Eight 16-bit uniforms make one value: sum, centre, scale. A sum is at most 8 * 65535."""
    scale = np.sqrt(12.0 / 8.0) / 65536.0
    flat = out.reshape(-1)
    for i in range(flat.size):
        total = 0
        for half in range(2):
            word = draw(key, np.uint64(2 * (start + i) + half))
            for part in range(4):
                total += np.int64((word >> np.uint64(16 * part)) & np.uint64(0xFFFF))
        flat[i] = (total - 262140) * scale


def permutation(size: int, seed: int, stream: int = 0) -> np.ndarray:
    """A permutation of 0..size-1, int64, in linear time."""
    return _permutation(stream_key(seed, stream), size)


def normals(rows: int, width: int, seed: int, stream: int = 0, *, first_row: int = 0) -> np.ndarray:
    """float32 [rows, width] of mean 0 and variance 1: nearly normal, within -4.9..4.9.

    Sums of eight uniform numbers: no logarithm or cosine, whose last bits differ between machines.
    Rows ``first_row`` onwards of the one table that (seed, stream, width) names.
    """
    out = np.empty((rows, width), np.float32)
    _normals(stream_key(seed, stream), first_row * width, out)
    return out

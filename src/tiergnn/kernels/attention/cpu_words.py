"""Philox in Numba, over many rows at once."""

from __future__ import annotations

import numpy as np
from numba import njit

from tiergnn.kernels.dropout.reference import MULTIPLIER_0, MULTIPLIER_1, ROUNDS, WEYL_0, WEYL_1

_M0, _M1 = np.uint64(MULTIPLIER_0), np.uint64(MULTIPLIER_1)
_W0, _W1 = np.uint32(WEYL_0), np.uint32(WEYL_1)
_HIGH = np.uint64(32)


@njit(inline="always")
def philox(c0, c1, c2, c3, k0, k1):
    """The four words of one counter; all arguments are uint32."""
    for _ in range(ROUNDS):
        p0, p1 = np.uint64(c0) * _M0, np.uint64(c2) * _M1
        c0, c2 = np.uint32(p1 >> _HIGH) ^ c1 ^ k0, np.uint32(p0 >> _HIGH) ^ c3 ^ k1
        c1, c3 = np.uint32(p1), np.uint32(p0)
        k0, k1 = np.uint32(k0 + _W0), np.uint32(k1 + _W1)
    return c0, c1, c2, c3


@njit(cache=True, nogil=True)
def quad_words(id_n, n, quad, key0, key1, site, words):
    """words[4t + j] = the word of column 4 * quad + j of row id_n[t]; all are int64."""
    third, fourth = np.uint32(quad), np.uint32(site)
    k0, k1 = np.uint32(key0), np.uint32(key1)
    for t in range(n):
        low, high = np.uint32(id_n[t]), np.uint32(id_n[t] >> 32)
        w0, w1, w2, w3 = philox(low, high, third, fourth, k0, k1)
        words[4 * t], words[4 * t + 1] = np.int64(w0), np.int64(w1)
        words[4 * t + 2], words[4 * t + 3] = np.int64(w2), np.int64(w3)

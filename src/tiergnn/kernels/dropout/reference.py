"""Counter-based dropout in plain torch integers: what the other backends must match bit for bit.

Legend: N rows, D columns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# Philox 4x32 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3; SC 2011).
MULTIPLIER_0, MULTIPLIER_1 = 0xD2511F53, 0xCD9E8D57
WEYL_0, WEYL_1 = 0x9E3779B9, 0xBB67AE85
ROUNDS = 10
_WORD = 0xFFFFFFFF


def _multiply(a: Tensor, constant: int) -> tuple[Tensor, Tensor]:
    """High and low word of a * constant, both 32 bits; halves keep each product inside int64."""
    low = (a & 0xFFFF) * constant  # < 2**48
    high = (a >> 16) * constant + (low >> 16)  # the product's bits from 16 up
    return high >> 16, (low & 0xFFFF) | ((high << 16) & _WORD)


def philox(
    c0: Tensor, c1: Tensor, c2: Tensor, c3: Tensor, key: tuple[Any, Any]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The four words of Philox 4x32-10 for counters of int64 tensors holding uint32; broadcasts.

    ``key``: its two words, likewise or as integers.
    """
    k0, k1 = key
    for _ in range(ROUNDS):
        high_0, low_0 = _multiply(c0, MULTIPLIER_0)
        high_1, low_1 = _multiply(c2, MULTIPLIER_1)
        c0, c1, c2, c3 = high_1 ^ c1 ^ k0, low_1, high_0 ^ c3 ^ k1, low_0
        k0, k1 = (k0 + WEYL_0) & _WORD, (k1 + WEYL_1) & _WORD
    return c0, c1, c2, c3


def words(gid_N: Tensor, num_columns: int, key: Tensor, site: int) -> Tensor:
    """int64 [N, D] holding the uint32 word of every (row id, column)."""
    quads = torch.arange((num_columns + 3) // 4, device=gid_N.device)[None, :]
    row = gid_N.long()[:, None]
    two = key & _WORD, (key >> 32) & _WORD
    four = philox(row & _WORD, (row >> 32) & _WORD, quads, torch.full_like(quads, site), two)
    return torch.stack(torch.broadcast_tensors(*four), dim=2).flatten(1)[:, :num_columns]


def keep_mask(gid_N: Tensor, num_columns: int, threshold: int, key: Tensor, site: int) -> Tensor:
    """bool [N, D]: where the word is at least ``threshold``."""
    return words(gid_N, num_columns, key, site) >= threshold


def dropout(
    x_ND: Tensor,
    gid_N: Tensor | None,
    threshold: int,
    scale: float,
    key: Tensor,
    site: int,
) -> Tensor:
    """x * scale where the element is kept, else 0; multiplied in float32 (float64 for float64)."""
    gid_N = torch.arange(x_ND.shape[0], device=x_ND.device) if gid_N is None else gid_N
    keep = keep_mask(gid_N, x_ND.shape[1], threshold, key, site)
    wide = x_ND.double() if x_ND.dtype == torch.float64 else x_ND.float()
    return torch.where(keep, wide * scale, torch.zeros_like(wide)).to(x_ND.dtype)

"""Dropout whose mask is a function of (seed, step, site, row id, column) and nothing else."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tiergnn.errors import ConfigError
from tiergnn.kernels import backend
from tiergnn.kernels.arguments import check_draws, check_floats, check_ids
from tiergnn.kernels.dropout.reference import (
    MULTIPLIER_0,
    MULTIPLIER_1,
    ROUNDS,
    WEYL_0,
    WEYL_1,
)
from tiergnn.kernels.library import define

Key = Tensor  # int64 [1], beside what is dropped: see ``step_key``
_WORD = 0xFFFFFFFF


def philox_words(
    counter: tuple[int, int, int, int], key: tuple[int, int]
) -> tuple[int, int, int, int]:
    """Philox 4x32-10 of one counter, in Python integers."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        p0, p1 = c0 * MULTIPLIER_0, c2 * MULTIPLIER_1
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & _WORD, (p0 >> 32) ^ c3 ^ k1, p0 & _WORD
        k0, k1 = (k0 + WEYL_0) & _WORD, (k1 + WEYL_1) & _WORD
    return c0, c1, c2, c3


def step_key(seed: int, step: int, device: torch.device | str = "cpu") -> Key:
    """int64 [1]: the key of every dropout of one training step, two words of 32 bits, low first.

    Words 0 and 1 of Philox at counter ``step`` (64 bits) under key ``seed`` (64 bits). In memory
    of the device, so that a step that was recorded can be run again under another key; written
    there by the device, so that nobody waits for it.
    """
    counter = (step & _WORD, (step >> 32) & _WORD, 0, 0)
    low, high, *_ = philox_words(counter, (seed & _WORD, (seed >> 32) & _WORD))
    return make_key(low, high, device)


def key_words(key: Key) -> tuple[int, int]:
    """The two words of a key; waits for its device."""
    words = int(key)
    return words & _WORD, (words >> 32) & _WORD


def make_key(low: int, high: int, device: torch.device | str = "cpu") -> Key:
    """The key of two words."""
    words = low | high << 32
    signed = words - (words >> 63 << 64)
    return torch.full((1,), signed, dtype=torch.int64, device=device)


def threshold(p: float) -> int:
    """The least uint32 word that is kept: round(p * 2**32); 2**32 keeps nothing."""
    if not 0.0 <= p <= 1.0:
        raise ConfigError(f"dropout needs 0 <= p <= 1, has {p}")
    return round(p * 2**32)


def scale(p: float) -> float:
    """What kept elements are multiplied by, 1 / (1 - p); 0 when nothing is kept."""
    return 0.0 if p == 1.0 else 1.0 / (1.0 - p)


def _run(x_ND: Tensor, gid_N: Tensor | None, p: float, key: Tensor, site: int, name: str) -> Tensor:
    module = backend.load("dropout", name)
    return module.dropout(x_ND, gid_N, threshold(p), scale(p), key, site)


def _fake(x_ND: Tensor, *options: Any) -> Tensor:
    return torch.empty_like(x_ND, memory_format=torch.contiguous_format)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, gid_N, ctx.p, key, *ctx.place = inputs
    ctx.save_for_backward(gid_N, key)


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    """Dropout is linear: the same call on the gradient, so that no mask is stored."""
    gid_N, key = ctx.saved_tensors
    return _op(grad, gid_N, ctx.p, key, *ctx.place), None, None, None, None, None


_op = define(
    "dropout",
    "(Tensor x, Tensor? gid, float p, Tensor key, int site, str backend) -> Tensor",
    run=_run,
    fake=_fake,
    keep=_keep,
    backward=_backward,
)


def dropout(
    x_ND: Tensor, p: float, key: Key | None, site: int, gid: Tensor | None = None
) -> Tensor:
    """Zero each element of x with probability p and divide the others by 1 - p.

    x [N, ...] of any float dtype; trailing dimensions count as flattened columns. ``key`` comes
    from ``step_key``; ``site`` is the ordinal of this call in the model; ``gid`` int64 [N] are the
    rows' ids in the whole graph (None: 0..N-1). Multiplies in float32 (float64 for float64) and
    rounds once. Every backend gives the same bits. With p = 0 returns x itself. Raises ConfigError
    unless 0 <= p <= 1, and for what does not fit.
    """
    check_floats("x of dropout", x_ND, "float rows [N, ...]")
    if not x_ND.dim():
        raise ConfigError("x of dropout needs float rows [N, ...], has a single number")
    if gid is not None:
        check_ids("row ids", gid, x_ND.shape[0], x_ND.device)
    if threshold(p) == 0:
        return x_ND
    check_draws(key, site=site)
    assert key is not None
    flat = x_ND.reshape(x_ND.shape[0], -1) if x_ND.numel() else x_ND.reshape(x_ND.shape[0], 0)
    name = backend.choose(x_ND.device)
    return _op(flat, gid, p, key.to(x_ND.device), site, name).reshape(x_ND.shape)

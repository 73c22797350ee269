"""Whether a layer may run as it stands: it is tried on a small graph and on parts of it.

An output row may depend on nothing but the row itself, its in-edges and their sources.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from tiergnn.kernels.block import Block
from tiergnn.kernels.dropout import make_key
from tiergnn.models import norms
from tiergnn.models.parts import part_of
from tiergnn.models.standing import Drops, Signature, call, copied

_KEY = make_key(1, 2)
_SITE = 3


class Trial(NamedTuple):
    pairs: bool
    drops: tuple[str, ...]
    copies: bool  # it changes what it is given


def attempt(
    layer: nn.Module, block: Block, examples: dict[str, tuple], signature: Signature
) -> Trial | str:
    """How the layer runs on parts of a small graph as it does on the whole, or why it does not."""
    rows = examples["gathered"], examples["own"], examples["edges"]
    single = all(g is o for g, o in zip(rows[0], rows[1], strict=True))
    training, problem = layer.training, ""
    with _untouched(layer) as changed:
        try:  # a lazy layer takes its width here
            mode, given = Drops(block, _KEY, _SITE), copied(rows)
            alone = call(layer, block, given, signature, not single, training, mode)
            copies = any(tensor._version for tensors in given for tensor in tensors)
        except Exception as error:
            return f"fails on a small graph: {_first_line(error)}"
        state = _random_state()
        for pairs in (True, False) if single else (True,):
            try:
                mode = Drops(block, _KEY, _SITE)
                whole = call(layer, block, copied(rows), signature, pairs, training, mode)
                drops = tuple(mode.seen)
                parts = _by_parts(layer, block, rows, signature, pairs, drops)
            except Exception as error:
                problem = problem or f"fails on a part of a graph: {_first_line(error)}"
                continue
            if _random_state() != state:
                return "draws its own random numbers"
            if names := changed():
                return f"keeps {', '.join(names)} from one call to the next (cached=True?)"
            if _same(alone, whole) and _same(alone, parts):
                return Trial(pairs, drops, copies)
            problem = f"gives other rows on a part of the graph: {norms.reading_more(layer)}"
    return problem


def _by_parts(
    layer: nn.Module,
    block: Block,
    rows: tuple[tuple[Tensor, ...], tuple[Tensor, ...], tuple[Tensor, ...]],
    signature: Signature,
    pairs: bool,
    drops: tuple[str, ...],
) -> Tensor:
    """The layer's rows, computed by two parts of the block."""
    order = torch.arange(block.num_dst, device=block.device)
    out = None
    for owned in (order[::2], order[1::2].flip(0)):
        part, sources, edges = part_of(block, owned)
        taken = (
            tuple(x[sources] for x in rows[0]),
            tuple(x[owned] for x in rows[1]),
            tuple(e[edges] for e in rows[2]),
        )
        mode = Drops(part, _KEY, _SITE, drops)
        got = call(layer, part, taken, signature, pairs, layer.training, mode)
        out = got.new_zeros(block.num_dst, *got.shape[1:]) if out is None else out
        out[owned] = got
    assert out is not None
    return out


def _same(a: Tensor, b: Tensor) -> bool:
    bound = 1e-9 if a.dtype == torch.float64 else 1e-3
    return a.shape == b.shape and torch.allclose(a, b, rtol=bound, atol=bound, equal_nan=True)


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _random_state() -> tuple:
    """Where every generator stands that a layer might draw from."""
    states = [torch.get_rng_state().numpy().tobytes(), random.getstate()]
    states += [np.random.get_state(legacy=True)[1].tobytes()]  # pyright: ignore[reportArgumentType]
    if torch.cuda.is_initialized():
        states.append(torch.cuda.get_rng_state().numpy().tobytes())
    return tuple(states)


@contextmanager
def _untouched(layer: nn.Module) -> Iterator[Callable[[], list[str]]]:
    """Undo what calls do to the layer's buffers and attributes; says which tensors it kept."""
    kept = [(m, dict(vars(m))) for m in layer.modules()]
    lazy = nn.parameter.is_lazy
    buffers = [(b, b.clone()) for b in layer.buffers() if not lazy(b)]

    def changed() -> list[str]:
        return [
            name
            for m, before in kept
            for name, value in vars(m).items()
            if value is not before.get(name) and _holds_tensor(value)
        ]

    try:
        yield changed
    finally:
        for m, before in kept:
            for name, value in list(vars(m).items()):
                if value is not before.get(name) and _holds_tensor(value):
                    if name in before:
                        vars(m)[name] = before[name]
                    else:
                        del vars(m)[name]
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_holds_tensor, value))
    return isinstance(value, Tensor)

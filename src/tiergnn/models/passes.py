"""One stage by itself: forward on inputs cut off from their history, backward from its outputs.

Every executor runs stages so. Between the two passes only that lives which an operation of the
stage reads in backward; what the stage was given and what it wrote are the caller's to hold.
Autograd itself finds the parameters, so that tied, frozen, parametrized and unused ones are as in
one graph of the whole model.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from tiergnn.kernels.block import Block
from tiergnn.kernels.dropout import Key
from tiergnn.models.functional import Columns
from tiergnn.models.stages import Stage

# Something that requires a gradient and gets none, so that a graph starts without holding rows.
_ANCHOR = torch.empty(0, requires_grad=True)


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """The graph of a stage, by the names of what was written: good for one backward.

    ``coming`` hands gradients to its ends, ``found`` takes those that arrive at its starts.
    """

    ends: dict[str, Tensor] = field(default_factory=dict)
    coming: dict[str, Tensor] = field(default_factory=dict)
    found: dict[str, Tensor] = field(default_factory=dict)


def run_forward(
    stage: Stage,
    block: Block,
    key: Key | None,
    gathered: Mapping[str, Tensor],
    own: Mapping[str, Tensor] | None = None,
    *,
    keep: bool,
    columns: Columns | None = None,
    again: bool = False,
) -> tuple[dict[str, Tensor], Kept | None]:
    """What ``stage.run`` gives, and what its backward needs; nothing of it with keep=False.

    Rows and moments that require gradients get one, and what is written requires one where
    autograd says so. ``own`` None: as ``gathered``. Where both hold a row by one name, of other
    rows, its gradients are ``NAME`` of those gathered and ``own:NAME``.
    """
    kept = Kept()
    if own is None:
        names = (*stage.gathers, *stage.reads, *stage.edges, *stage.statistics)
        gathered = starts({name: gathered[name] for name in names}, kept.found)
    else:
        begun = {n: f"own:{n}" if n in stage.gathers else n for n in stage.reads}
        begun |= {n: n for n in (*stage.edges, *stage.statistics)}
        rows = {name: gathered[name] for name in stage.gathers}
        gathered = starts(rows | {name: own[n] for n, name in begun.items()}, kept.found)
        own = {n: gathered[name] for n, name in begun.items()}
    with torch.enable_grad(), nullcontext() if keep else _nothing_saved():
        written = stage.run(block, key, gathered, own, columns, again=again)
    rows = {name: cut(name, row, kept if keep else None) for name, row in written.items()}
    return rows, kept if keep else None


def cut(name: str, row: Tensor, kept: Kept | None) -> Tensor:
    """A row that was written, without its history but requiring a gradient where it does.

    Its gradient enters the graph where it was cut, by ``name``, when ``kept`` runs backward.
    """
    if not row.requires_grad:
        return row.detach()
    if kept is not None:
        with torch.enable_grad():
            end: Any = _End.apply(row, name, kept.coming)
        kept.ends[name] = end
    return row.detach().requires_grad_()


def run_backward(kept: Kept, grads: dict[str, Tensor]) -> dict[str, Tensor]:
    """Gradients of what was given, by name, from those of what was written; none is zeros.

    Takes what it uses out of ``grads``, so that each is gone when its last reader is. Those of
    parameters are added to ``.grad``. Names may share one tensor.
    """
    ends = []
    for name, end in kept.ends.items():
        if name in grads:
            kept.coming[name] = grads.pop(name)
            ends.append(end)
    if ends:
        torch.autograd.backward(ends, [end.new_empty(0) for end in ends])
    return kept.found


def starts(rows: Mapping[str, Tensor], found: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rows as starts of a graph that does not hold them; its backward puts gradients in ``found``.

    A parameter (learned rows) is a start already: its gradient is added to ``.grad``.
    """
    flows = [row.requires_grad and not isinstance(row, nn.Parameter) for row in rows.values()]
    if not any(flows):
        return dict(rows)
    names = [name for name, flow in zip(rows, flows, strict=True) if flow]
    with torch.enable_grad():
        begun: Any = _Starts.apply(_ANCHOR, found, names, *(rows[n].detach() for n in names))
    return {**rows, **dict(zip(names, begun, strict=True))}


def _nothing_saved() -> saved_tensors_hooks:
    """Inside, graphs tell what requires gradients and hold nothing for them."""
    return saved_tensors_hooks(_forget, _forgotten)


def _forget(saved: Tensor) -> None:
    return None


def _forgotten(packed: None) -> Tensor:
    raise AssertionError("backward of a stage that kept nothing")


class _Starts(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, found: dict[str, Tensor], names: list[str], *rows: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.found, ctx.names = found, names
        return tuple(row.detach() for row in rows)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[None, ...]:
        pairs = zip(ctx.names, grads, strict=True)
        ctx.found.update((name, grad) for name, grad in pairs if grad is not None)
        return (None,) * (3 + len(grads))


class _End(torch.autograd.Function):
    """An end of a graph that does not hold the row there; autograd alone holds its gradient."""

    @staticmethod
    def forward(ctx: Any, row: Tensor, name: str, coming: dict[str, Tensor]) -> Tensor:
        ctx.name, ctx.coming = name, coming
        return row.new_empty(0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return ctx.coming.pop(ctx.name), None, None

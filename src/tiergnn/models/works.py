"""What a run computes, by the operations that torch is asked for: rows gathered, products, and rows
read and written in order; and what some take besides: attention's arithmetic, numbers that dropout
draws, new tensors of torch's own.

Legend: P rows, S sources, E edges, K heads, D columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tiergnn.kernels.block import Block
from tiergnn.models.linearity import Law
from tiergnn.workload import Size, Term


class Done(NamedTuple):
    """One operation's work of one kind, as a ``workload.Term``; ``launches`` 0 for what another
    entry of it launched."""

    kind: str
    amount: float
    grain: int = 0
    table_bytes: float = 0.0
    launches: int = 1


# The Python of a pass around its operations, which takes about as long as a call of ours.
_AROUND = Done("rowwise", 0.0)


class Works(TorchDispatchMode):
    """While entered, lists what every operation does; ``take`` gives the list, with what a pass
    takes around its operations, and starts anew."""

    def __init__(self) -> None:
        super().__init__()
        self._done: list[Done] = []

    def take(self) -> list[Done]:
        done, self._done = self._done, []
        return [*done, _AROUND] if done else done

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if not func.is_view:
            self._done += _done(func.name(), (*args, *kwargs.values()), out)
        return out


def terms(law: Law, by_block: Sequence[Sequence[Done]]) -> tuple[Term, ...]:
    """The works of one pass on every block, in one order, as terms; those alike are added up.

    Blocks that did not do the same operations give the sums of each kind.
    """
    if len({tuple((d.kind, d.launches) for d in done) for done in by_block}) > 1:
        by_block = [_summed(done) for done in by_block]
    # What a kernel streams besides its gathers stays apart: it makes no tensor of its own.
    # So does what a block's size does not change: a few bytes of weights are no rows.
    found: dict[tuple[str, int, Size, bool, bool], tuple[Size, int]] = {}
    for same in zip(*by_block, strict=True):
        grain = min(done.grain for done in same)
        table = law.size([done.table_bytes for done in same])
        amount = law.size([done.amount for done in same])
        grows = amount != Size(fixed=amount.fixed)
        key = (same[0].kind, grain, table, same[0].launches > 0, grows)
        before, launches = found.get(key, (Size(), 0))
        found[key] = (before + amount, launches + same[0].launches)
    return tuple(
        Term(kind=kind, amount=amount, grain=grain, table=table, launches=launches)
        for (kind, grain, table, *_), (amount, launches) in found.items()
        if amount != Size() or launches
    )


def _summed(done: Sequence[Done]) -> list[Done]:
    """One entry a kind, gathers of the widest rows."""
    sums = []
    for kind in dict.fromkeys(d.kind for d in done):
        these = [d for d in done if d.kind == kind]
        sums.append(
            Done(
                kind,
                sum(d.amount for d in these),
                max((d.grain for d in these), default=0),
                max((d.table_bytes for d in these), default=0.0),
            )
        )
    return sums


def _done(name: str, given: Sequence[Any], out: Any) -> list[Done]:
    plain = name.split("::")[-1].split(".")[0]
    read = [t for t in tree_leaves(given) if isinstance(t, Tensor)]
    written = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
    if plain in _NOTHING or not (read or written):
        return []
    ours = name.startswith("tiergnn::")
    make = (_OURS if ours else _DENSE).get(plain, _in_order)
    done = make(given, read, written)
    if ours:
        done = [_by_our_kernel(work) for work in done]
    return done if ours and plain not in _OF_TORCH else done + _fresh(read, written)


def _by_our_kernel(work: Done) -> Done:
    return work._replace(kind="rowwise") if work.kind == "stream" and work.launches else work


def _in_order(given: Sequence[Any], read: list[Tensor], written: list[Tensor]) -> list[Done]:
    return [Done("stream", _bytes(*read, *written))]


def _total(given: Sequence[Any], read: list[Tensor], written: list[Tensor]) -> list[Done]:
    """A sum over rows, as of the gradient of a bias; other sums are operations in order."""
    done = _in_order(given, read, written)
    over_rows = read[0].dim() == 2 and len(given) > 1 and given[1] == [0]
    return [done[0]._replace(kind="total")] if over_rows else done


def _fresh(read: list[Tensor], written: list[Tensor]) -> list[Done]:
    """New tensors of torch's allocator; our kernels' rows are of a pool (``kernels.memory``)."""
    held = {t.untyped_storage().data_ptr() for t in read}
    new = [t for t in written if t.untyped_storage().data_ptr() not in held]
    return [Done("fresh", _bytes(t), _row_bytes(t)) for t in new if t.numel()]


def _bytes(*tensors: Tensor | None) -> float:
    return float(sum(t.numel() * t.element_size() for t in tensors if t is not None))


def _row_bytes(tensor: Tensor) -> int:
    rows = max(1, tensor.shape[0]) if tensor.dim() else 1
    return tensor.numel() // rows * tensor.element_size()


# Products


def _product(given: Sequence[Any], read: list[Tensor], written: list[Tensor]) -> list[Done]:
    left, right = read[-2:]
    sizes = (left.shape[-2], left.shape[-1], right.shape[-1])
    batch = math.prod(left.shape[:-2])
    moved = _bytes(*read, *written)
    # Rows are transposed where their outer products are summed: the gradient of a weight.
    transposed = left.stride(-1) > left.stride(-2) == 1
    kind = "outer" if transposed else "matmul"
    return [Done(kind, 2.0 * batch * math.prod(sizes), min(sizes), moved)]


def _rows_product(given: Sequence[Any], read: list[Tensor], written: list[Tensor]) -> list[Done]:
    """Of rows [P, D] with a weight [F, D], or of their gradients [P, F]."""
    sizes = (read[0].shape[0], *read[1].shape)
    return [Done("matmul", 2.0 * math.prod(sizes), min(sizes), _bytes(*read, *written))]


# Rows by index


def _taken(given: Sequence[Any], read: list[Tensor], written: list[Tensor]) -> list[Done]:
    return _by_index("gather", read, written)


def _added(given: Sequence[Any], read: list[Tensor], written: list[Tensor]) -> list[Done]:
    """What is added to a copy of the table copies it first."""
    return _by_index("add", read, written)


def _by_index(kind: str, read: list[Tensor], written: list[Tensor]) -> list[Done]:
    """Rows of a table taken or added to by index; a row an index, which is read or written too."""
    table = read[0]
    index = next((t for t in read if not t.is_floating_point()), table)
    count = index.shape[0] if index.dim() else 1
    grain = max(1, _row_bytes(table))
    moved = float(count * grain)
    done = [
        Done(kind, moved, grain, _bytes(table), launches=0),
        Done("stream", moved + _bytes(index)),
    ]
    if any(t.shape == table.shape and t.data_ptr() != table.data_ptr() for t in written):
        done.append(Done("stream", 2 * _bytes(table), launches=0))
    return done


# Rows by themselves


def _epilogue(given: Sequence[Any], read: list[Tensor], written: list[Tensor]) -> list[Done]:
    """Forward draws a number for every element where it drops some."""
    return [*_in_order(given, read, written), *_draws(_chance(given), written[:1])]


def _epilogue_grad(given: Sequence[Any], read: list[Tensor], written: list[Tensor]) -> list[Done]:
    """What relu and dropout left says where they did not; of others the numbers are drawn anew."""
    done = _in_order(given, read, written)
    return done if "relu" in given else done + _draws(_chance(given), read[:1])


def _dropout(given: Sequence[Any], read: list[Tensor], written: list[Tensor]) -> list[Done]:
    return [*_in_order(given, read, written), *_draws(True, written)]


def _chance(given: Sequence[Any]) -> bool:
    """Whether an epilogue drops: p stands after the slope, and both after the name of ``act``."""
    act = next(i for i, value in enumerate(given) if isinstance(value, str))
    return given[act + 2] > 0


def _draws(dropping: bool, tensors: Sequence[Tensor]) -> list[Done]:
    count = float(sum(t.numel() for t in tensors))
    return [Done("draw", count, launches=0)] if dropping else []


# Our kernels of a graph, whose first argument is a block's handle


def _sum(given: Sequence[Any], read: list[Tensor], written: list[Tensor]) -> list[Done]:
    block = Block.by_handle(given[0])
    (rows,) = [t for t in given[1:] if isinstance(t, Tensor)][:1]
    return _rows_by_edge(block, [rows], written)


def _dot(given: Sequence[Any], read: list[Tensor], written: list[Tensor]) -> list[Done]:
    block = Block.by_handle(given[0])
    return _rows_by_edge(block, [read[-1]], [*written, read[0]])


def _max_grad(given: Sequence[Any], read: list[Tensor], written: list[Tensor]) -> list[Done]:
    block = Block.by_handle(given[0])
    return _rows_by_edge(block, read[:2] if not given[1] else read[2:3], written)


def _gat(given: Sequence[Any], read: list[Tensor], written: list[Tensor]) -> list[Done]:
    """Forward gathers rows and scores of sources."""
    done = _rows_by_edge(Block.by_handle(given[0]), read[:2], [*written, *read[2:3]])
    return done + _attended(given, read[0])


def _gat_grad(given: Sequence[Any], read: list[Tensor], written: list[Tensor]) -> list[Done]:
    """By source: gradients of destinations' rows, and four numbers a head of theirs."""
    grad, out, best = read[0], read[1], read[2]
    done = _rows_by_edge(Block.by_handle(given[0]), [grad, best, best, best, best], written)
    done.append(Done("stream", 2 * _bytes(grad) + _bytes(out), launches=0))
    return done + _attended(given, grad)


def _gatv2(given: Sequence[Any], read: list[Tensor], written: list[Tensor]) -> list[Done]:
    done = _rows_by_edge(Block.by_handle(given[0]), read[:1], [*written, read[1]])
    return done + _attended(given, read[0])


def _gatv2_grad(given: Sequence[Any], read: list[Tensor], written: list[Tensor]) -> list[Done]:
    """By source over rows of destinations and gradients; by destination over those of sources."""
    block = Block.by_handle(given[0])
    grad, source, own = read[0], read[4], read[5]
    first = _rows_by_edge(block, [grad, own], written) + _attended(given, grad)
    return first + _rows_by_edge(block, [source], [grad, own]) + _attended(given, source)


def _attended(given: Sequence[Any], rows: Tensor) -> list[Done]:
    """The arithmetic over every edge and head of rows [S, K, F], and over those of the rows that
    are made; some edges may drop: the threshold stands after whether there are loops."""
    block, heads = Block.by_handle(given[0]), rows.shape[1]
    made = block.num_dst if rows.shape[0] == block.num_src else block.num_src
    done = [
        Done("attend", float(block.num_edges * heads), heads, launches=0),
        Done("softmax", float(made * heads), heads, launches=0),
    ]
    threshold = next(b for a, b in pairwise(given) if isinstance(a, bool) and type(b) is int)
    return done + [done[0]._replace(kind="drop")] * (threshold > 0)


def _edge_mean(given: Sequence[Any], read: list[Tensor], written: list[Tensor]) -> list[Done]:
    return [Done("stream", _bytes(*read, *written))]


def _rows_by_edge(block: Block, tables: list[Tensor], streamed: list[Tensor]) -> list[Done]:
    """A row of each table for every edge, summed by row; the edges and other rows in order."""
    index = block.num_edges * (block.col.element_size())
    done = [
        Done(
            "gather", float(block.num_edges * _row_bytes(t)), _row_bytes(t), _bytes(t), int(i == 0)
        )
        for i, t in enumerate(tables)
    ]
    rows = streamed[0].shape[0] if streamed[0].shape[0] == block.num_src else block.num_dst
    done.append(Done("walk", float(rows), launches=0))
    return [*done, Done("stream", _bytes(*streamed) + index, launches=0)]


Maker = Callable[[Sequence[Any], list[Tensor], list[Tensor]], list[Done]]
_OURS: dict[str, Maker] = {
    "aggregate_sum": _sum,
    "aggregate_max": _sum,
    "aggregate_edge_dot": _dot,
    "aggregate_max_grad": _max_grad,
    "gat_attention": _gat,
    "gat_attention_grad": _gat_grad,
    "gatv2_attention": _gatv2,
    "gatv2_attention_grad": _gatv2_grad,
    "edge_mean": _edge_mean,
    "gather": _taken,
    "epilogue": _epilogue,
    "epilogue_grad": _epilogue_grad,
    "dropout": _dropout,
    "product": _rows_product,
    "product_grad_rows": _rows_product,
}
_DENSE: dict[str, Maker] = dict.fromkeys(("mm", "bmm", "addmm", "addbmm", "baddbmm"), _product)
_DENSE |= dict.fromkeys(("index_select", "index", "gather", "embedding"), _taken)
_DENSE |= dict.fromkeys(
    (
        "index_add", "index_add_", "scatter_add", "scatter_add_", "scatter_reduce",
        "scatter_reduce_", "scatter", "scatter_", "index_put", "index_put_", "_index_put_impl_",
        "index_reduce", "index_reduce_", "segment_reduce",
    ),
    _added,
)  # fmt: skip
_DENSE["sum"] = _total
# Of ours, what takes its memory from torch.
_OF_TORCH = {name for name in _OURS if name.startswith(("gat", "edge", "product"))}
_NOTHING = {"empty", "empty_like", "empty_strided", "new_empty", "detach", "lift_fresh", "alias"}

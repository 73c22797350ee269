"""Traced: what stands for a tensor while a model is traced.

It looks like a tensor to the user's code: widths, dtype and device are plain values, the number of
rows stays symbolic, and a change in place renames what every holder of it sees.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.fx import Node, Proxy
from torch.overrides import is_tensor_method_or_property

from tiergnn.models.rowlocal import words


@dataclass
class Fact:
    """What the trace knows of a node.

    kind: rows [V, ...], edges [E, ...], whole (the same for all rows), count, edge count, graph,
    key, mixed (not row-local, and refused when it is used). ``value`` is an example.
    """

    kind: str
    value: Any = None
    reason: str = ""  # why it is mixed, or cannot be read any more
    stale: bool = False  # changed in place through a tensor that shares its memory
    place: str = ""  # file:line: code
    path: str = ""  # of the module, in the user's model


def fact(node: Node) -> Fact:
    return node.meta["fact"]


class Traced(Proxy):
    """A Proxy whose node may be replaced, with the answers that the trace knows."""

    tracer: Any

    @property
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]
        # So that isinstance(x, Tensor) in a model says what it does outside of a trace.
        kinds = {"count": int, "edge count": int}
        return kinds.get(fact(self.node).kind, Tensor)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        known: Fact = fact(self.node)
        if known.kind == "mixed":
            self.tracer.refuse(known.reason, node=self.node)
        if known.kind == "graph":
            self.tracer.refuse_graph(f"edge_index.{name}")
        if isinstance(known.value, Tensor):
            if name in _ANSWERS:
                return getattr(known.value, name)
            if name == "shape":
                return self.size()
            if name in ("T", "mT", "H", "mH"):
                return self.tracer.record("call_method", "transpose", (self, -2, -1), {})
            if name == "data":
                return self.tracer.record("call_method", "detach", (self,), {})
        if not callable(getattr(Tensor, name, None)):
            raise AttributeError(f"a traced tensor has no attribute {name!r}")

        def method(*args: Any, **kwargs: Any) -> Any:
            return self.tracer.record("call_method", name, (self, *args), kwargs)

        return method

    def size(self, dim: int | None = None) -> Any:
        """Widths as numbers; the number of rows or edges as a symbol."""
        known: Fact = fact(self.node)
        sizes: list[Any] = list(known.value.shape)
        if known.kind in ("rows", "edges") and sizes:
            sizes[0] = self.tracer.count(known.kind)
        return tuple(sizes) if dim is None else sizes[dim]

    def dim(self) -> int:
        return fact(self.node).value.dim()

    @property
    def ndim(self) -> int:
        return self.dim()

    def is_floating_point(self) -> bool:
        return fact(self.node).value.is_floating_point()

    def numel(self) -> Any:
        if fact(self.node).kind == "whole":
            return fact(self.node).value.numel()
        return self.tracer.refuse("numel() depends on the number of rows", node=self.node)

    def __bool__(self) -> bool:
        if fact(self.node).kind == "graph":
            self.tracer.refuse_graph("bool(edge_index)")
        return self.tracer.refuse(
            "a branch depends on values", node=self.node, hint="torch.where, or a constant"
        )

    def __len__(self) -> int:
        if fact(self.node).kind == "whole":
            return len(fact(self.node).value)
        if fact(self.node).kind == "graph":
            self.tracer.refuse_graph("len(edge_index)")
        return self.tracer.refuse(
            "len() must be a number, the rows are not counted yet", hint="x.size(0)"
        )

    def __iter__(self) -> Iterator[Any]:
        if fact(self.node).kind == "whole":
            return iter(self[i] for i in range(len(self)))  # pyright: ignore[reportIndexIssue]
        if fact(self.node).kind == "graph":
            self.tracer.refuse_graph("row, col = edge_index")
        return self.tracer.refuse("a loop over rows", node=self.node, hint=_BY_ROW)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.tracer.refuse(
            "assigning to a part of a tensor", node=self.node, hint="torch.where, or torch.cat"
        )

    def __contains__(self, item: Any) -> bool:
        return self.tracer.refuse("a branch depends on values", node=self.node)

    def _number(self, *_: Any) -> Any:
        return self.tracer.refuse(
            "a tensor is turned into a number, which a trace does not know",
            node=self.node,
            hint="keep it a tensor",
        )

    __int__ = __float__ = __index__ = __array__ = __complex__ = _number

    @classmethod
    def __torch_function__(
        cls,
        orig_method: Any,
        types: Any,
        args: tuple | None = None,
        kwargs: dict | None = None,
    ) -> Any:
        args, kwargs = args or (), kwargs or {}
        tracer = next(a.tracer for a in _leaves((args, kwargs)))
        if is_tensor_method_or_property(orig_method):
            return tracer.record("call_method", orig_method.__name__, args, kwargs)
        return tracer.record("call_function", orig_method, args, kwargs)


_BY_ROW = "work on whole rows with tensor operations"
_ANSWERS = words("dtype device requires_grad is_cuda is_cpu is_meta is_sparse is_leaf layout")


def _leaves(value: Any) -> Iterator[Traced]:
    if issubclass(type(value), Traced):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, dict):
        yield from _leaves(list(value.values()))


def _in_place(name: str) -> Callable[[Traced, Any], Traced]:
    target = getattr(operator, name)

    def change(self: Traced, other: Any) -> Traced:
        return self.tracer.record("call_function", target, (self, other), {}, in_place=True)

    return change


for _name in words("add sub mul truediv floordiv mod pow matmul and_ or_ xor"):
    setattr(Traced, f"__i{_name.rstrip('_')}__", _in_place(_name))


class TracedData:
    """Stands for a torch_geometric Data in ``forward(data)``; what the graph lacks is None."""

    def __init__(self, count: Callable[[str], Any], **known: Any) -> None:
        self._count = count
        self.__dict__.update(known)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"data has x, edge_index, adj_t, edge_weight, edge_attr, num_nodes; no {name!r}"
        )

    @property
    def num_nodes(self) -> Any:
        return self._count("rows")

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def __contains__(self, name: str) -> bool:
        return self.__dict__.get(name) is not None


def is_traced(value: Any) -> bool:
    return issubclass(type(value), Traced)

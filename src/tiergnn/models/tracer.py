"""ModelTracer: torch.fx through a user's model and our layers, down to graph operations.

Every operation is judged when it is recorded, so that what cannot be cut is refused with the line
of the model that does it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.fx import Node, Tracer
from torch.nn import functional as F

from tiergnn.errors import ConfigError
from tiergnn.models import counts, dropouts, norms, pyg, rowlocal
from tiergnn.models.arguments import (
    WAY_OUT,
    Several,
    call_text,
    item,
    lookup,
    nodes_in,
    out_of_place,
    storage,
    traced_in,
)
from tiergnn.models.judge import Judge, Probe
from tiergnn.models.linear import Linear, is_linear
from tiergnn.models.operation import Operation
from tiergnn.models.places import place_here
from tiergnn.models.traced import Fact, Traced, fact, is_traced

_DROPOUTS = (F.dropout, torch.dropout)
_INPUTS = {"x": "rows", "edge_weight": "edges", "edge_attr": "edges", "block": "graph"}


class ModelTracer(Tracer):
    """Traces a root module ``forward(x, edge_weight, edge_attr, block, key)``, for one mode."""

    proxy_buffer_attributes = True

    def __init__(self, probe: Probe, *, prepares: bool = False) -> None:
        super().__init__()
        self.prepares = prepares  # rows that x and the graph alone decide are made once
        self.judge = Judge(self, probe)
        self.paused = False
        self.sites = 0  # dropout calls so far
        self.standing: set[nn.Module] = set()  # layers that run as they stand, all within them
        self.inputs: dict[str, Traced] = {}
        self._made: dict[Any, Traced] = {}  # structure nodes, by what makes them
        self._path = ""

    # What the model calls

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple, kwargs: dict
    ) -> Any:
        if self.paused:
            return forward(*args, **kwargs)
        with self._inside(m) as path:
            if path is None and next(m.parameters(), None) is not None:
                self.refuse(
                    f"{type(m).__name__} is no submodule of the model: its parameters would not "
                    "be trained",
                    hint="assign it to self, or keep it in a ModuleList",
                )
            if isinstance(m, nn.Identity):
                return args[0]
            if isinstance(m, nn.Dropout):
                return self.dropout(*args, p=m.p, training=m.training, inplace=m.inplace)
            if isinstance(m, _RANDOM_MODULES):
                if m.training or isinstance(m, nn.RReLU):
                    self.refuse(f"{type(m).__name__} draws its own random numbers", hint=_DRAWS)
                return args[0]
            if norms.is_norm(m):
                return norms.normalize(self, m, *args, **kwargs)
            if (layer := pyg.as_ours(m)) is not None:
                return layer.forward(*args, **kwargs)
            if pyg.is_message_passing(m):
                return pyg.call_layer(self, m, args, kwargs)
            if isinstance(m, (*rowlocal.MODULES, Linear)) or is_linear(m):
                return self._call_leaf(m, path, args, kwargs)
            if type(m).__module__.startswith("torch.nn.") and not isinstance(m, nn.Sequential):
                self.refuse(
                    f"{type(m).__name__} is not known to work on each row by itself",
                    hint="the same by functions of torch.nn.functional in a module of your own",
                )
            return forward(*args, **kwargs)

    def _call_leaf(self, m: nn.Module, path: str | None, args: tuple, kwargs: dict) -> Any:
        if isinstance(m, nn.RNNBase) and m.dropout and m.training:
            self.refuse(f"{type(m).__name__} with dropout draws its own numbers", hint=_DRAWS)
        in_place = bool(getattr(m, "inplace", False))
        if in_place:
            m, path = copy.copy(m), None
            m.inplace = False  # pyright: ignore[reportArgumentType]
        if path is None:
            path = self.get_fresh_qualname("_made_in_forward")
            setattr(self.root, path, m)
        buffers = [(b, b.clone()) for b in m.buffers()]
        out = self.record("call_module", path, args, kwargs, in_place=in_place)
        changed = [(b, before) for b, before in buffers if not torch.equal(b, before)]
        for buffer, before in changed:
            buffer.copy_(before)
        if changed:
            self.refuse(f"{type(m).__name__} changes its buffers at every call", hint="eval() it")
        return out

    def dropout(self, x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        """nn.Dropout and F.dropout: counter-based, by the ids of rows or edges."""
        if not training or p == 0:
            return x
        if not is_traced(x):
            self.refuse("dropout of a constant would be drawn once only", hint=_PARAMETER)
        kind = fact(x.node).kind
        if kind == "edges":
            out = dropouts.drop_edges(x, self.inputs["block"], p=p)
        elif kind == "whole":
            out = dropouts.drop_rows(x, None, p=p)
        else:
            out = dropouts.drop_rows(x, self.inputs["block"], p=p)
        return self._replace(x, out) if inplace else out

    def count(self, kind: str) -> Traced:
        """The symbol for the number of rows or edges."""
        function = counts.num_rows if kind == "rows" else counts.num_edges
        return function(self.inputs["block"])

    # Nodes

    def create_proxy(
        self, kind: str, target: Any, args: tuple, kwargs: dict, *rest: Any, **options: Any
    ) -> Any:
        if kind == "placeholder":
            values = {"block": self.judge.probe.block, **self.judge.probe.inputs}
            known = Fact(_INPUTS.get(target, "key"), values.get(target))
            self.inputs[target] = self._node(kind, target, args, kwargs, known)
            return self.inputs[target]
        if kind == "get_attr":
            with self.pause():
                value = lookup(self.root, target)
            return self._node(kind, target, args, kwargs, Fact("whole", value))
        return self.record(kind, target, args, kwargs)

    def record(
        self, kind: str, target: Any, args: tuple, kwargs: dict, *, in_place: bool = False
    ) -> Any:
        """A call as a node, once it is known to be row-local; a tuple of nodes for a tuple."""
        if target in _DROPOUTS:
            names = ("x", "p", "training" if target is F.dropout else "train", "inplace")
            given = dict(zip(names, args, strict=False)) | kwargs
            given["x"] = given.pop("input", given.get("x"))
            given["training"] = given.pop("train", given.get("training", True))
            return self.dropout(**given)
        kwargs = {k: v for k, v in kwargs.items() if not (k == "out" and v is None)}
        in_place = bool(kwargs.pop("inplace", False)) or in_place
        if kind != "call_module":
            name = rowlocal.name_of(target)
            if name in rowlocal.RANDOM:
                self.refuse(f"{name} draws its own random numbers", hint=_DRAWS)
            if "out" in kwargs:
                self.refuse(f"{name}(out=...) writes into a tensor", hint="use what it returns")
            target, changes = out_of_place(kind, target)
            in_place = in_place or changes
        if in_place and not (is_traced(args[0]) and fact(args[0].node).kind in ("rows", "edges")):
            self.refuse("a parameter or a buffer is changed in place", hint="a new tensor")
        nodes = nodes_in(self, (args, kwargs))
        call = self._caller(kind, target)
        listed = kind == "call_module"
        known = self.judge.call(target, call, nodes, args, kwargs, listed)
        if isinstance(known, Several):
            whole = self._node(kind, target, args, kwargs, Fact("mixed", reason="a tuple"))
            parts = tuple(
                self._node("call_function", item, (whole, i), {}, part)
                for i, part in enumerate(known.facts)
            )
            return known.kind(parts)
        if known.kind == "mixed":
            self.refuse(known.reason, call=(target, args, kwargs), hint=WAY_OUT)
        out = self._node(kind, target, args, kwargs, known)
        return self._replace(args[0], out) if in_place else out

    def call_operation(self, function: Callable[..., Any], given: dict[str, Any]) -> Any:
        """A graph operation, a statistic or another function of ``functional`` as a node."""
        operation: Operation = function.operation  # pyright: ignore[reportFunctionMemberAccess]
        nodes = nodes_in(self, given)
        label = (function, (), given)
        if given.get("block") is not None and fact(given["block"].node).kind != "graph":
            self.refuse("a layer is called on edges that are not the graph's", hint=_GIVEN)
        if operation.kind == "structure":
            name = (function, tuple((k, v.node if is_traced(v) else v) for k, v in given.items()))
            if name not in self._made:
                known = Fact(operation.of, self.judge.example(function, given))
                self._made[name] = self._node("call_function", function, (), given, known)
            return self._made[name]
        gathered = [leaf for name in operation.gathers for leaf in traced_in(given[name])]
        if any(fact(leaf.node).kind != "rows" for leaf in gathered):
            self.refuse("it gathers something else than rows of nodes", call=label)
        if given.get("p"):
            given |= {"key": self.inputs["key"], "site": self.sites}
            self.sites += 1
        if operation.kind == "rows":
            known = self.judge.call(function, function, nodes, (), given, listed=True)
            assert isinstance(known, Fact)
        else:
            dry = {**given, "p": 0.0, "key": None} if "p" in given else given
            value = self.judge.example(function, dry)
            if operation.kind == "dropout":
                known = replace(fact(given["x"].node), value=value.clone())
            else:
                known = Fact("whole" if operation.kind == "statistic" else "rows", value)
        return self._node("call_function", function, (), given, known)

    def mark(self, stats: Traced, *, commit: nn.Module | None = None, least_rows: int = 1) -> None:
        """Say whose running statistics follow a statistic, and how many rows it needs."""
        stats.node.meta["statistic"] = (commit, least_rows)

    def example(self, x: Traced) -> Any:
        return fact(x.node).value

    def _node(self, kind: str, target: Any, args: Any, kwargs: Any, known: Fact) -> Traced:
        node = self.create_node(kind, target, self.create_arg(args), self.create_arg(kwargs))
        known.place, known.path = place_here("call_model"), self._path
        node.meta["fact"] = known
        if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            self.refuse("autocast inside of forward", hint="the dtype of the whole model")
        made = isinstance(known.value, Tensor) and kind not in ("placeholder", "get_attr")
        if made and not torch.is_grad_enabled():
            node = self.create_node("call_method", "detach", (node,), {})  # as no_grad does
            node.meta["fact"] = replace(known)
        return Traced(node, self)

    def create_arg(self, a: Any) -> Any:
        # A Traced passes for a Tensor, which fx would keep as a constant.
        if is_traced(a):
            return a.node
        with self.pause():
            made = super().create_arg(a)
        if isinstance(made, Node) and "fact" not in made.meta:
            value = a.detach() if isinstance(a, Tensor) else a
            made.meta["fact"] = Fact("whole", value, path=self._path)
        return made

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict) -> Any:
        if self.paused:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def _caller(self, kind: str, target: Any) -> Callable[..., Any]:
        if kind == "call_method":
            return lambda x, *args, **kwargs: getattr(x, target)(*args, **kwargs)
        return self.root.get_submodule(target) if kind == "call_module" else target

    def _replace(self, old: Traced, new: Traced) -> Traced:
        """``old`` was changed in place: all who hold it see ``new``, other views are stale."""
        shared = storage(fact(old.node).value)
        for node in self.graph.nodes:
            known = node.meta.get("fact")
            if node is not old.node and known is not None and shared is not None:
                known.stale = known.stale or storage(known.value) == shared
        fact(new.node).stale = False
        old.node = new.node
        return old

    # Where it happens

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Run modules on real tensors, as outside of a trace."""
        before, self.paused = self.paused, True
        try:
            yield
        finally:
            self.paused = before

    @contextmanager
    def _inside(self, m: nn.Module) -> Iterator[str | None]:
        path = (self.submodule_paths or {}).get(m)
        before = self._path
        self._path = path.removeprefix("model").lstrip(".") if path else before
        try:
            yield path
        finally:
            self._path = before

    def refuse(
        self,
        problem: str,
        *,
        node: Node | None = None,
        call: tuple | None = None,
        hint: str | None = None,
    ) -> NoReturn:
        """Raise ConfigError with the operation, the line of the user's model and the way out."""
        text = call_text(*call) if call else ""
        if node is not None:
            plain = node.op == "placeholder"
            text = node.name if plain else call_text(node.target, node.args, node.kwargs)
        where = place_here("call_model")
        if self._path:
            where = f"{where}\n      in {self._path}" if where else self._path
        lead = f"the model cannot be cut at `{text}`: " if text else "the model cannot be cut: "
        raise ConfigError(lead + problem, culprit=where or None, hint=hint)

    def refuse_graph(self, text: str) -> NoReturn:
        self.refuse(
            f"`{text}` works on the graph itself; a model may only hand it to its layers",
            hint="change the graph when it is ingested (undirected, self-loops, weights)",
        )


_RANDOM_MODULES = (
    nn.RReLU,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
)
_PARAMETER = "dropout of rows, or of a parameter or buffer of the model"
_GIVEN = "the edge_index that forward is given"
_DRAWS = "Dropout or F.dropout, whose masks are the same whatever computes them"

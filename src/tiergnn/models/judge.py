"""Judge: whether a recorded call is row-local in the use at hand, tried on a small graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from tiergnn.errors import ConfigError
from tiergnn.kernels import backend
from tiergnn.kernels.block import Block
from tiergnn.models import rowlocal
from tiergnn.models.arguments import WAY_OUT, Several, call_text, examples, fill, spread, traced_in
from tiergnn.models.rowlocal import NotRowLocalError, Sample, words
from tiergnn.models.traced import Fact, fact, is_traced

_GATHERS = "a layer gathers: one of PyG's or tiergnn.nn's, or a MessagePassing of your own"
# What may make rows of nothing but their number.
_MAKERS = words("expand broadcast_to new_zeros new_ones new_full repeat tile")


@dataclass(frozen=True)
class Probe:
    """A small graph and example inputs on it, to run operations on while tracing."""

    block: Block
    inputs: dict[str, Tensor]  # x [rows.count, D], edge_weight [edges.count] ...
    rows: Sample
    edges: Sample


class Judge:
    """Runs calls on examples, on random rows and on some of those; refuses through the tracer."""

    def __init__(self, tracer: Any, probe: Probe) -> None:
        self.tracer = tracer
        self.probe = probe
        self._generator = torch.Generator().manual_seed(0)

    def call(
        self,
        target: Any,
        call: Callable[..., Any],
        nodes: list[Node],
        args: tuple,
        kwargs: dict,
        listed: bool = False,
    ) -> Fact | Several:
        """The facts of what ``call`` gives; ``target`` is its name, ``nodes`` what it reads.

        ``listed`` when it is known already to be one that can be row-local.
        """
        label = (target, args, kwargs)
        kinds = {fact(node).kind for node in nodes}
        if kinds & {"graph", "key"}:
            self.tracer.refuse_graph(call_text(*label))
        if kinds & {"edges", "edge count"} and kinds & {"rows", "count"}:
            self.tracer.refuse("rows of nodes and of edges meet", call=label, hint=_GATHERS)
        of_edges = bool(kinds & {"edges", "edge count"})
        rows = self.probe.edges if of_edges else self.probe.rows
        if not listed and not kinds <= {"whole"}:
            self._check(target, kinds, args, kwargs)

        def run(given: Any) -> Any:
            return call(*given[0], **given[1])

        value = self._run(run, examples((args, kwargs)), label)
        if kinds <= {"whole"}:
            return spread(value, "whole")
        with self.tracer.pause():
            fresh = {node: self._fresh(node, rows) for node in nodes}

        def part(node: Node) -> Any:
            if fact(node).kind in ("rows", "edges"):
                return fresh[node][rows.kept.to(fresh[node].device)]
            return len(rows.kept) if "count" in fact(node).kind else fresh[node]

        full = self._run(run, fill((args, kwargs), fresh.__getitem__), label)
        try:
            less = self._run(run, fill((args, kwargs), part))
        except Exception as error:
            return Fact("mixed", value, f"it fails on fewer rows: {str(error).splitlines()[0]}")
        verdict = rowlocal.check_probe(full, less, rows)
        return spread(value, "edges" if of_edges else "rows", verdict)

    def example(self, function: Callable[..., Any], given: dict[str, Any]) -> Any:
        """What an operation gives on examples."""
        label = (function, (), given)
        return self._run(lambda real: function(**real), examples(given), label)

    def _check(self, target: Any, kinds: set[str], args: tuple, kwargs: dict) -> None:
        """Refuse what is not on the list, and what picks or counts rows."""
        label = (target, args, kwargs)
        counts = kinds & {"count", "edge count"} and not kinds & {"rows", "edges"}
        if counts and rowlocal.name_of(target) not in _MAKERS:
            self.tracer.refuse(
                "a number depends on how many rows there are", call=label, hint=WAY_OUT
            )
        try:
            rowlocal.check_listed(target)
            if args and is_traced(args[0]) and fact(args[0].node).kind in ("rows", "edges"):
                rowlocal.check_indices(target, *examples((args, kwargs)))
        except NotRowLocalError as reason:
            self.tracer.refuse(str(reason), call=label, hint=WAY_OUT)

    def _fresh(self, node: Node, rows: Sample) -> Any:
        known = fact(node)
        if known.kind in ("rows", "edges"):
            return rows.fresh(known.value, self._generator)
        return known.value

    def _run(self, call: Callable[[Any], Any], given: Any, label: tuple | None = None) -> Any:
        """A call on real tensors: nothing of it is traced, no kernel is compiled for it."""
        with self.tracer.pause(), torch.no_grad(), backend.use_here("reference"):
            try:
                return call(given)
            except ConfigError as error:
                self.tracer.refuse(error.problem, call=label, hint=error.hint)
            except (RuntimeError, TypeError, IndexError, ValueError) as error:
                if label is None:
                    raise
                count = self.probe.rows.count
                self.tracer.refuse(
                    f"it fails on a small graph of {count} nodes: {error}",
                    call=label,
                    hint=_row_table(label),
                )


def _row_table(label: tuple) -> str | None:
    """What to say when a parameter looks like one row for every node of some graph."""
    facts = [fact(traced.node) for traced in traced_in(label[1:])]
    dims = {f.value.dim() for f in facts if f.kind == "rows"}
    if any(f.kind == "whole" and f.value.dim() in dims and len(f.value) > 1 for f in facts):
        return "learned rows of nodes are features, not parameters: train(features='embedding')"
    return None

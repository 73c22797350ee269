"""``trace``: a user's model as a Program of stages, for training or for evaluation."""

from __future__ import annotations

import inspect
import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.utils.checkpoint
from numba.core.registry import cpu_target
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tiergnn.errors import ConfigError, TiergnnError
from tiergnn.kernels.block import Block
from tiergnn.models import pyg, rowlocal
from tiergnn.models.code import EDGE_INPUTS
from tiergnn.models.cut import cut
from tiergnn.models.epilogues import join_epilogues
from tiergnn.models.judge import Probe
from tiergnn.models.places import place_of_error
from tiergnn.models.prepare import prepare
from tiergnn.models.products import join_products
from tiergnn.models.rowlocal import sample, words
from tiergnn.models.stages import Program, Rows, Stage, Statistic
from tiergnn.models.traced import TracedData, fact, is_traced
from tiergnn.models.tracer import ModelTracer

__all__ = ["Program", "Rows", "Stage", "Statistic", "trace", "trace_both"]

# What a parameter of forward is, by its name.
_X = words("x feat feats feature features h input inputs node_feat")
_GRAPH = words("edge_index adj_t adj edges edge_indices block graph g")
_EDGES = {"edge_weight": "edge_weight", "edge_weights": "edge_weight", "weight": "edge_weight"}
_EDGES |= {"edge_attr": "edge_attr", "edge_attrs": "edge_attr", "edge_feat": "edge_attr"}
_DATA = words("data batch graph g sample")
_CHECKPOINTS = "_checkpoint_without_reentrant_generator"  # what torch's checkpoint calls
_LAZY = words("in_channels in_features num_features input_size normalized_shape training")


def trace(
    model: nn.Module, inputs: Mapping[str, Tensor], *, training: bool, prepared: bool = False
) -> Program:
    """Cut a model into stages.

    ``inputs`` are examples of what the graph has: x [V, D] and, if any, edge_weight [E] and
    edge_attr [E, D]; dtype, device, trailing shape and first rows are read. ``forward`` takes
    (x, edge_index) and optionally edge weights or features, by PyG's names, or one Data. Lazy
    parameters get their shapes. The model keeps its mode, parameters and buffers.
    ``prepared``: rows that x and the graph alone decide may be inputs (``Program.prepared``).

    Raises ConfigError, with the line of the model, for what cannot be cut: see docs/design.md.
    """
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    if not isinstance(model, nn.Module):
        raise ConfigError(f"a model is a torch.nn.Module, had {type(model).__name__}")
    # Numba knows math's functions by themselves from its first use on, which may be in this trace,
    # while torch.fx has others in their places.
    numba_context: Any = cpu_target.target_context
    numba_context.refresh()
    tracer = ModelTracer(_probe(model, inputs), prepares=prepared)
    root = _Root(model, tracer, tuple(inputs))
    with (
        _mode(model, training),
        _unchanged(model, tracer),
        _no_draws(tracer),
        _no_functions(tracer),
    ):
        try:
            with torch.enable_grad():  # so that a no_grad of the model's own is seen
                graph = tracer.trace(root)
        except TiergnnError:
            raise
        except Exception as error:
            raise _explain(error, model) from error
    returned = next(n for n in graph.nodes if n.op == "output").args[0]
    known = fact(returned) if isinstance(returned, torch.fx.Node) else None
    if known is None or known.kind != "rows" or known.stale:
        reason = "" if known is None else known.reason
        if known is not None and known.stale:
            reason = "it was changed in place through another view of it"
        raise ConfigError(
            f"{type(model).__name__}.forward returns something else than one tensor of rows"
            + (f": {reason}" if reason else ""),
            culprit=known.place if known is not None else None,
            hint="return the output of every node, [V, ...]; losses and pooling go outside",
        )
    made = prepare(graph, root, training=training) if prepared else ()
    join_epilogues(graph, root)
    join_products(graph, root)
    program = replace(cut(graph, root, training=training), prepared=made)
    del root._count  # it holds the tracer, whose examples nobody reads any more
    return program


def trace_both(
    model: nn.Module, inputs: Mapping[str, Tensor], *, prepared: bool = False
) -> dict[bool, Program]:
    """For training (True) and evaluation: this prepares the rows that training does, or none."""
    training, evaluation = (
        trace(model, inputs, training=mode, prepared=prepared) for mode in (True, False)
    )
    if [made.text for made in training.prepared] != [made.text for made in evaluation.prepared]:
        evaluation = trace(model, inputs, training=False)
    return {True: training, False: evaluation}


class _Root(nn.Module):
    """Calls the model with what its forward asks for; the stages' code finds parameters here."""

    def __init__(self, model: nn.Module, tracer: ModelTracer, known: tuple[str, ...]) -> None:
        super().__init__()
        self.model = model
        self._known = known
        self._count = tracer.count

    def forward(self, x: Any, edge_weight: Any, edge_attr: Any, block: Any, key: Any) -> Any:
        edges = {"edge_weight": edge_weight, "edge_attr": edge_attr}
        edges = {name: value if name in self._known else None for name, value in edges.items()}
        return call_model(self.model, _arguments(self.model, x, block, edges, self._count))


def call_model(model: nn.Module, given: dict[str, Any]) -> Any:
    """The user's forward; the search for a line of the user's code goes no further out."""
    return model(**given)


def _arguments(
    model: nn.Module, x: Any, block: Any, edges: dict[str, Any], count: Callable[[str], Any]
) -> dict[str, Any]:
    """Arguments for forward, by the names (or else the places) of its parameters."""
    name = type(model).__name__
    parameters = inspect.signature(model.forward).parameters.values()
    plain = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    listed: Any = getattr(model, "signature", None)
    if not plain and listed is not None:  # PyG's Sequential, which lists them itself
        keyword = inspect.Parameter.KEYWORD_ONLY
        plain = [inspect.Parameter(argument, keyword) for argument in listed.param_dict]
    if any(p.kind is p.POSITIONAL_ONLY for p in plain):
        raise ConfigError(f"{name}.forward has positional-only parameters", hint="leave out the /")
    required = [p.name for p in plain if p.default is p.empty]
    takes_graph = any(p.name in _GRAPH - _DATA for p in plain)
    if len(required) == 1 and required[0] not in _X and not takes_graph:
        data = TracedData(count, x=x, edge_index=block, adj_t=block, batch=None, **edges)
        return {required[0]: data}
    roles = {p.name: _role(p.name) for p in plain}
    for role in ("x", "graph"):  # whatever is required and has no telling name, in PyG's order
        nameless = [p for p in required if roles[p] is None]
        if role not in roles.values() and nameless:
            roles[nameless[0]] = role
    given: dict[str, Any] = {}
    for parameter, role in roles.items():
        if role in ("x", "graph"):
            given[parameter] = x if role == "x" else block
        elif role == "edge_attr" and parameter not in required and pyg.takes_no_edge_attr(model):
            continue
        elif role is not None and edges[role] is not None:
            given[parameter] = edges[role]
        elif parameter in required:
            lacking = "which the graph does not have" if role else "which is nothing of a graph"
            way = f"{parameter}=None in forward"
            if parameter == "edge_type":
                way = (
                    "types of edges as a column of edge_attr: edge_type[:, None].to(torch.uint8) "
                    "in the graph, edge_attr[:, 0].long() in forward"
                )
            raise ConfigError(
                f"{name}.forward needs {parameter}, {lacking}",
                hint=f"{way}; it gets x, edge_index, edge_weight, edge_attr, "
                "or one data with all of them",
            )
    return given


def _role(name: str) -> str | None:
    """What a parameter of this name takes: x, graph, edge_weight, edge_attr."""
    if name in _X:
        return "x"
    return "graph" if name in _GRAPH else _EDGES.get(name)


def _probe(model: nn.Module, inputs: Mapping[str, Tensor]) -> Probe:
    """A small graph with loops, duplicates and rows without in-edges, and inputs on it.

    Its numbers of rows and edges, and of those in the smaller runs, are none of the model's widths.
    """
    unknown = set(inputs) - {"x", *EDGE_INPUTS}
    if "x" not in inputs or unknown:
        raise ConfigError(f"inputs are x, edge_weight, edge_attr, had {', '.join(inputs)}")
    lazy = nn.parameter.is_lazy
    tensors = [t for t in (*model.parameters(), *model.buffers()) if not lazy(t)]
    widths = {n for t in (*tensors, *inputs.values()) for n in t.shape[1:]}
    widths |= {n for t in tensors for n in t.shape[:1]}
    counts = (n for n in range(5, 10**6) if n not in widths)
    few_rows, few_edges, num_nodes = next(counts), next(counts), next(n for n in counts if n > 9)
    num_edges = next(n for n in counts if n > 3 * num_nodes)
    generator = torch.Generator().manual_seed(num_nodes)
    src, dst = torch.randint(num_nodes - 1, (2, num_edges), generator=generator)
    src[:3] = dst[:3] = torch.tensor([1, 1, 2])
    dst, order = dst.sort(stable=True)
    degree = torch.bincount(dst, minlength=num_nodes)
    block = Block(
        rowptr=torch.cat([degree.new_zeros(1), degree.cumsum(0)]),
        col=src[order].to(torch.int32),
        num_src=num_nodes,
    ).to(inputs["x"].device)
    rows, edges = sample(num_nodes, few_rows), sample(num_edges, few_edges)
    examples = {
        name: _first(value.detach(), num_nodes if name == "x" else num_edges)
        for name, value in inputs.items()
    }
    return Probe(block, examples, rows, edges)


def _first(value: Tensor, count: int) -> Tensor:
    """``count`` rows of an example, its own over again when it is short; ones when it is empty."""
    if value.shape[0] == 0:
        return value.new_ones(count, *value.shape[1:])
    return value[torch.arange(count, device=value.device) % value.shape[0]]


def _explain(error: Exception, model: nn.Module) -> ConfigError:
    hint = None
    if isinstance(error, TypeError):
        hint = "tensors are made from others, as x.new_zeros(x.size(0), 3), not by torch.zeros"
    return ConfigError(
        f"the model cannot be traced: {type(error).__name__}: {error}",
        culprit=place_of_error(error, "call_model") or type(model).__name__,
        hint=hint,
    )


@contextmanager
def _mode(model: nn.Module, training: bool) -> Iterator[None]:
    """The model in training or evaluation, each of its modules as before afterwards."""
    flags = [(m, m.training) for m in model.modules()]
    model.train(training)
    try:
        yield
    finally:
        for m, flag in flags:
            m.training = flag


@contextmanager
def _unchanged(model: nn.Module, tracer: ModelTracer) -> Iterator[None]:
    """Take back what forward assigned while it was traced; refuse what would change its numbers.

    A layer that runs as it stands assigns again whenever it runs, so that is no change; but what
    it chose for a small graph must not stay.
    """
    kept = [(m, dict(vars(m)), dict(m._buffers)) for m in model.modules()]
    members = {m: _members(m) for m in model.modules()}
    yield_error = True
    try:
        yield
        yield_error = False
    finally:
        changed, assigned = [], []
        for m, before, buffers in kept:
            for name, value in list(vars(m).items()):
                old = before.get(name)
                if _holds_traced(value):
                    assigned.append(f"{type(m).__name__}.{name}")
                    if name in before:
                        vars(m)[name] = old
                    else:
                        del vars(m)[name]
                elif not isinstance(value, (bool, int, float, str)) or value is old or value == old:
                    continue
                elif m in tracer.standing:
                    if _members(m) != members[m]:
                        continue  # it made its parameters, and may have noted so
                    if name in before:
                        vars(m)[name] = old
                    else:
                        del vars(m)[name]
                else:
                    changed += [] if name in _LAZY else [f"{type(m).__name__}.{name}"]
            for name, value in list(m._buffers.items()):
                if is_traced(value):
                    changed.append(f"{type(m).__name__}.{name}")
                    m._buffers[name] = buffers.get(name)
        if changed and not yield_error:
            raise ConfigError(
                f"forward changes {', '.join(changed)}, which a traced model does not do again",
                hint="state that changes belongs into the training loop",
            )
        if assigned and not yield_error:
            warnings.warn(
                f"forward keeps {', '.join(assigned)}; a traced model only returns its output",
                stacklevel=3,
            )


def _members(m: nn.Module) -> list[tuple[str, int, bool]]:
    """Its parameters and submodules, and which parameters wait for their shape."""
    lazy = nn.parameter.is_lazy
    listed = [(name, id(p), bool(lazy(p))) for name, p in m.named_parameters()]
    return listed + [(name, id(child), False) for name, child in m.named_modules()]


def _holds_traced(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_holds_traced, value))
    if type(value) is dict:
        return any(map(_holds_traced, value.values()))
    return is_traced(value)


@contextmanager
def _no_draws(tracer: ModelTracer) -> Iterator[None]:
    """Refuse random numbers that forward draws while it is traced: they would never change."""
    before = random.getstate(), np.random.get_state(legacy=True)[1].tobytes()  # pyright: ignore[reportArgumentType]
    with _Draws(tracer):
        yield
    after = random.getstate(), np.random.get_state(legacy=True)[1].tobytes()  # pyright: ignore[reportArgumentType]
    if before != after:
        raise ConfigError(
            "forward draws from random or numpy.random; traced, it would draw once only",
            hint="Dropout or F.dropout",
        )


@contextmanager
def _no_functions(tracer: ModelTracer) -> Iterator[None]:
    """Refuse autograd functions of the model's own: torch's C code would take what stands for a
    tensor for one, and the process would die."""
    kept: Any = torch.autograd.Function.__dict__["apply"]

    def refuse_checkpoint(*_: Any, **__: Any) -> Any:
        tracer.refuse(
            "torch.utils.checkpoint", hint="the function itself: a plan says what is made again"
        )

    def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
        if any(map(is_traced, (*args, *kwargs.values()))):
            if cls.__module__ == torch.utils.checkpoint.__name__:
                refuse_checkpoint()
            tracer.refuse(
                f"{cls.__name__}.apply is a black box", hint="the same by tensor operations"
            )
        return kept.__func__(cls, *args, **kwargs)

    with (
        _replaced(torch.autograd.Function, "apply", classmethod(apply)),
        _replaced(torch.utils.checkpoint, _CHECKPOINTS, refuse_checkpoint),
    ):
        yield


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


class _Draws(TorchFunctionMode):
    def __init__(self, tracer: ModelTracer) -> None:
        super().__init__()
        self.tracer = tracer

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        name, kwargs = rowlocal.name_of(func), kwargs or {}
        if name in rowlocal.RANDOM and not self.tracer.paused:
            self.tracer.refuse(
                f"{name} draws its own random numbers, once only when it is traced",
                hint="Dropout or F.dropout",
            )
        if func in (torch.nn.functional.dropout, torch.dropout) and not self.tracer.paused:
            return self.tracer.record("call_function", func, args, kwargs)
        return func(*args, **kwargs)

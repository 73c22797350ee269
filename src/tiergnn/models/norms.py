"""Normalisations whose statistics are over all rows: BatchNorm and PyG's, from the same moments.

Each is a statistic (``moments``) and row-local code, so that parts of the rows compute
their own moments, combine them, and go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tiergnn.models.functional import finish_rows
from tiergnn.models.moments import moments, unless_single
from tiergnn.models.rowlocal import words

if TYPE_CHECKING:
    from tiergnn.models.tracer import ModelTracer

_PYG = words(
    "BatchNorm GraphNorm GraphSizeNorm InstanceNorm LayerNorm MeanSubtractionNorm PairNorm"
)
_REFUSED = words("HeteroBatchNorm HeteroLayerNorm")


def is_norm(m: nn.Module) -> bool:
    """Whether ``normalize`` knows the module: its class itself, or any kind of BatchNorm."""
    if isinstance(m, nn.modules.batchnorm._BatchNorm):
        return True
    home = type(m).__module__.startswith("torch_geometric.nn.norm")
    return home and type(m).__name__ in _PYG | _REFUSED


def reading_more(layer: nn.Module) -> str:
    """What a layer that gives other rows on a part of the graph reads, as far as one can see."""
    inside = sorted({type(m).__name__ for m in layer.modules() if m is not layer and is_norm(m)})
    held = f", as its {' and '.join(inside)} may take" if inside else ""
    return (
        "it reads more than a node's in-edges "
        f"(degrees of the sources, several hops, statistics over all nodes{held})"
    )


def normalize(
    tracer: ModelTracer, m: Any, x: Any, batch: Any = None, batch_size: Any = None
) -> Any:
    """The module's output for traced rows x [V, D], with a statistic as a stage of its own."""
    name = type(m).__name__
    if batch is not None:
        tracer.refuse(f"{name} over several graphs", hint="leave out `batch`: there is one graph")
    if name in _REFUSED:
        tracer.refuse(f"{name} normalises several types of nodes", hint="BatchNorm1d")
    if isinstance(m, nn.modules.batchnorm._BatchNorm):
        return _batch_norm(tracer, m, x)
    if name == "BatchNorm":
        return _batch_norm(tracer, m.module, x, single=m.allow_single_element)
    if name == "LayerNorm" and m.mode == "node":
        return torch.nn.functional.layer_norm(x, (m.in_channels,), m.weight, m.bias, m.eps)
    _check_rows(tracer, name, x)
    stats = moments(x)
    tracer.mark(stats, least_rows=2 if name == "InstanceNorm" else 1)
    count, mean, squares = stats.unbind(0)
    count = count.clamp(min=1)
    var = squares / count
    if name == "LayerNorm":
        shift = mean.mean()
        std = (var.mean() + (mean - shift).square().mean()).sqrt() + m.eps
        scale = torch.ones_like(mean) / std
        scale = scale if m.weight is None else scale * m.weight
        return finish_rows(x, shift=shift.expand(mean.shape), gain=scale, bias=m.bias)
    if name == "GraphNorm":
        var = var + ((1 - m.mean_scale) * mean).square()
        gain = m.weight * (var + m.eps).rsqrt()
        return finish_rows(x, shift=mean * m.mean_scale, gain=gain, bias=m.bias)
    if name == "InstanceNorm":
        if m.track_running_stats:
            tracer.refuse("InstanceNorm with running statistics", hint="BatchNorm")
        scale = (var + m.eps).rsqrt()
        scale = scale if m.weight is None else scale * m.weight
        return finish_rows(x, shift=mean, gain=scale, bias=m.bias)
    if name == "GraphSizeNorm":
        return x * count.pow(-0.5)
    if name == "MeanSubtractionNorm":
        return finish_rows(x, shift=mean)
    assert name == "PairNorm"
    if m.scale_individually:
        x = finish_rows(x, shift=mean)
        return m.scale * x / (m.eps + x.norm(2, -1, keepdim=True))
    gain = torch.ones_like(mean) * m.scale * (m.eps + var.sum()).rsqrt()
    return finish_rows(x, shift=mean, gain=gain)


def _batch_norm(tracer: ModelTracer, m: Any, x: Any, single: bool = False) -> Any:
    """BatchNorm: of all rows in training, of the running statistics in evaluation."""
    with tracer.pause():  # a lazy one takes its width from x
        if any(map(nn.parameter.is_lazy, (*m.parameters(), *m.buffers()))):
            was = m.training
            m.eval()(tracer.example(x))
            m.train(was)
    _check_rows(tracer, type(m).__name__, x)
    if not m.training and m.running_mean is not None:
        mean, var = m.running_mean, m.running_var
    else:
        with tracer.pause():
            keeps = m.training and m.running_mean is not None
        stats = moments(x)
        tracer.mark(stats, commit=m if keeps else None, least_rows=1 if single else 2)
        count, mean, squares = stats.unbind(0)
        var = squares / count.clamp(min=1)
        if single:
            block = tracer.inputs["block"]
            mean = unless_single(mean, m.running_mean, block)
            var = unless_single(var, m.running_var, block)
    scale = (var + m.eps).rsqrt()
    scale = scale if m.weight is None else scale * m.weight
    return finish_rows(x, shift=mean, gain=scale, bias=m.bias)


def _check_rows(tracer: ModelTracer, name: str, x: Any) -> None:
    if x.dim() != 2:
        tracer.refuse(f"{name} over rows of {x.dim() - 1} dimensions", hint="flatten(1) first")


@torch.no_grad()
def commit(m: Any, values: Tensor, num_rows: int) -> None:
    """Move a BatchNorm's running statistics by the moments [3, D] of ``num_rows`` rows."""
    if num_rows < 2:
        return
    _, mean, squares = values
    m.num_batches_tracked.add_(1)
    share = m.momentum if m.momentum is not None else 1.0 / float(m.num_batches_tracked)
    m.running_mean.lerp_(mean.to(m.running_mean.dtype), share)
    m.running_var.lerp_((squares / (num_rows - 1)).to(m.running_var.dtype), share)

"""Kernels as torch's own ops: checked by torch, compiled around, and safe about what they keep."""

from __future__ import annotations

import gc

import pytest
import torch

from tests.kernels.blocks import ragged, rand
from tiergnn.errors import ConfigError
from tiergnn.kernels import backend
from tiergnn.kernels.aggregate import REDUCTIONS, aggregate
from tiergnn.kernels.dropout import dropout, step_key

OPS = torch.ops.tiergnn
CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")


@pytest.mark.parametrize("name", ["reference", "cpu"])
@pytest.mark.parametrize("op", ["sum", "mean", "out-edges", "dot", "max", "grad", "dropout"])
def test_torch_checks_the_op(op, name):
    block = ragged([3, 0, 5, 1, 2], 6)
    x, g = rand(6, 3).requires_grad_(), rand(5, 3, seed=2).requires_grad_()
    weight = rand(11, seed=1).requires_grad_()
    out, ties = OPS.aggregate_max(block.handle, x.detach(), None, name)
    function, arguments = {
        "sum": (OPS.aggregate_sum, (block.handle, False, False, x, weight, name)),
        "mean": (OPS.aggregate_sum, (block.handle, False, True, x, None, name)),
        "out-edges": (OPS.aggregate_sum, (block.handle, True, True, g, weight, name)),
        "dot": (OPS.aggregate_edge_dot, (block.handle, True, 0, g, x, name)),
        "max": (OPS.aggregate_max, (block.handle, x, weight, name)),
        "grad": (
            OPS.aggregate_max_grad,
            (block.handle, False, g.detach() / ties.clamp(min=1), out, x.detach(), None, name),
        ),
        "dropout": (OPS.dropout, (x, None, 0.5, step_key(1, 2), 3, name)),
    }[op]
    torch.library.opcheck(function.default, arguments, test_utils=CHECKS)


def model(block, x, weight, reduce, key):
    x = aggregate(block, torch.relu(x) * 2, reduce=reduce, weight_E=weight)
    return dropout(x, 0.5, key, 1) + 1


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_compiled_models_run_the_same_kernels(reduce):
    """One graph without a break, forward and backward, for keys that change at every step."""
    block, weight = ragged([3, 0, 5, 1, 2], 5), rand(11, seed=1).float().requires_grad_()
    x = rand(5, 3).float().requires_grad_()
    torch.compiler.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for step in range(4):
        results = []
        for run in (model, compiled):
            out = run(block, x, weight, reduce, step_key(0, step))
            results.append([out, *torch.autograd.grad(out.square().sum(), [x, weight])])
        for got, want in zip(*results, strict=True):
            assert torch.equal(got, want)


def test_a_block_lives_until_backward():
    x = rand(6, 3).requires_grad_()
    out = aggregate(ragged([3, 0, 5, 1, 2], 6), x)  # nothing else holds the block
    gc.collect()
    out.sum().backward()
    counts = torch.bincount(ragged([3, 0, 5, 1, 2], 6).col, minlength=6).double()
    assert torch.equal(x.grad, counts[:, None].expand(6, 3))


def test_the_graph_of_an_op_does_not_keep_blocks_for_good():
    block = ragged([1], 1)
    handle = block.handle
    aggregate(block, torch.ones(1, 1, requires_grad=True)).sum().backward()
    del block
    gc.collect()
    with pytest.raises(KeyError):
        OPS.aggregate_sum(handle, False, False, torch.ones(1, 1), None, "cpu")


def test_max_is_differentiable_once():
    x = rand(6, 3).requires_grad_()
    out = aggregate(ragged([3, 0, 5, 1, 2], 6), x, reduce="max")
    (grad,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
    with pytest.raises(ConfigError, match="differentiable once"):
        grad.sum().backward()


def test_autocast_aggregates_what_it_is_given():
    block, x = ragged([3, 0, 5, 1, 2], 6), rand(6, 4).float()
    linear = torch.nn.Linear(4, 3)
    with torch.autocast("cpu", torch.bfloat16), backend.use("cpu"):
        out = aggregate(block, linear(x))
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert linear.weight.grad.dtype == torch.float32
    assert linear.weight.grad.isfinite().all()

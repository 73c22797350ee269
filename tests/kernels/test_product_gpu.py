"""Products of float32 rows in Triton against the oracle in float64."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from tests.kernels.blocks import assert_close, ragged, rand
from tests.kernels.device import DEVICE, INTERPRETED, SUITE, on_gpu
from tiergnn.kernels import backend, product
from tiergnn.kernels.product import gpu, linear_rows
from tiergnn.kernels.product.shapes import Tile
from tiergnn.models.trace import trace

pytestmark = SUITE
ERROR = 2e-6  # of the sum of magnitudes
OPS = torch.ops.tiergnn
CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")
SHAPES = ((29, 37, 19), (1, 1, 1), (70, 100, 47), (33, 16, 64), (40, 3, 70))
WIDE = () if INTERPRETED else ((5000, 602, 41), (4097, 256, 256), (30_000, 100, 256))


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    """The interpreter walks programs one by one: few and small ones. Few rows are multiplied."""
    monkeypatch.setattr(product, "LEAST_ROWS", 0)
    if INTERPRETED:
        tile = Tile(32, 16, 16, 4, 2)
        monkeypatch.setattr(gpu, "rows_tile", lambda *_: tile)
    with backend.use("gpu"):
        yield


def leaves(num_rows, inner, outer, *, bias=True):
    made = [rand(num_rows, inner), rand(outer, inner, seed=1), rand(outer, seed=2)]
    return [t.float().to(DEVICE).requires_grad_() for t in made[: 3 if bias else 2]]


def run(call, given, grad):
    out = call(*given)
    return [out.detach(), *torch.autograd.grad(out, given, grad.to(out))]


def check(given, grad):
    """Results and gradients, in parts of the sums of magnitudes."""
    got = run(linear_rows, given, grad)
    exact = [t.detach().double().requires_grad_() for t in given]
    sizes = [t.detach().double().abs().requires_grad_() for t in given]
    want, scale = run(F.linear, exact, grad), run(F.linear, sizes, grad.abs())
    for g, w, s in zip(got, want, scale, strict=True):
        assert_close(g, w, rel=ERROR, scale=s)
    return got


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [*SHAPES, *WIDE], ids=str)
def test_values_and_gradients(shape, bias):
    check(leaves(*shape, bias=bias), rand(shape[0], shape[2], seed=3).to(DEVICE))


@on_gpu
@pytest.mark.parametrize("outer", [16, 47, 64, 65, 128, 256, 300])
@pytest.mark.parametrize("inner", [8, 16, 17, 100, 256, 602])
def test_every_tile(inner, outer):
    check(leaves(3000, inner, outer), rand(3000, outer, seed=3).to(DEVICE))


@pytest.mark.parametrize("shape", [(1,), (), (1, 19), (30, 19), (30, 1)], ids=str)
def test_a_bias_of_another_shape_is_torchs(shape):
    given = [*leaves(30, 7, 19, bias=False), torch.full(shape, 0.3, device=DEVICE)]
    assert torch.equal(linear_rows(*given), F.linear(*given))


@pytest.mark.parametrize("count", [18, 20])
def test_a_bias_that_does_not_fit_is_told(count):
    with pytest.raises(RuntimeError):
        linear_rows(*leaves(30, 7, 19, bias=False), torch.ones(count, device=DEVICE))


def test_two_runs_give_the_same_bits():
    given, grad = leaves(90, 40, 20), rand(90, 20, seed=3).to(DEVICE)
    first, second = (run(linear_rows, given, grad) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_rows_of_other_tables():
    """Rows that lie apart, columns that do, and a weight that is transposed."""
    table, grads = rand(80, 90).float().to(DEVICE), rand(40, 60, seed=3).float().to(DEVICE)
    weight = rand(33, 20, seed=1).float().to(DEVICE).T.requires_grad_()
    for x in (table[::2, 3:36], table.T[5:45, ::2][:, :33]):
        check([x.detach().requires_grad_(), weight], grads[:, ::3])
    check([x.detach().requires_grad_(), weight], grads[:, :1].expand(40, 20))


def test_nothing_is_no_trouble():
    for shape in ((0, 3, 2), (3, 0, 2), (3, 2, 0)):
        given = leaves(*shape)
        grad = torch.ones(shape[0], shape[2])
        got, want = run(linear_rows, given, grad), run(F.linear, given, grad)
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_what_is_no_number_stays_in_its_row():
    x, weight, _ = leaves(40, 20, 10)
    with torch.no_grad():
        x[3, 7], x[5, 2] = float("nan"), float("inf")
        out = linear_rows(x, weight)
    broken = ~out.isfinite().all(1)
    assert broken.nonzero()[:, 0].tolist() == [3, 5]
    assert out[3].isnan().all()


def test_gradients_of_gradients():
    given = leaves(20, 9, 5)

    def second(call):
        first = torch.autograd.grad(call(*given).square().sum(), given, create_graph=True)
        return torch.autograd.grad(sum(t.square().sum() for t in first), given)

    for got, want in zip(second(linear_rows), second(F.linear), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("of", ["x", "weight", "bias"])
def test_one_gradient_alone(of):
    given = leaves(20, 9, 5)
    leaf = given[("x", "weight", "bias").index(of)]
    got, want = (
        torch.autograd.grad(call(*(t if t is leaf else t.detach() for t in given)).sum(), leaf)
        for call in (linear_rows, F.linear)
    )
    torch.testing.assert_close(got, want)


class Names(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.name())
        return func(*args, **(kwargs or {}))


class Net(torch.nn.Module):
    def __init__(self, of_rows):
        super().__init__()
        self.of_rows = of_rows

    def forward(self, x, edge_index):
        return self.of_rows(x)


def is_ours(*given):
    with Names() as seen, torch.no_grad():
        linear_rows(*given)
    return "tiergnn::product" in seen.names


def test_what_is_left_to_torch(monkeypatch):
    x, weight, bias = (t.detach() for t in leaves(20, 9, 5))
    assert is_ours(x, weight, bias)
    assert not is_ours(x.double(), weight.double())
    assert not is_ours(x.bfloat16(), weight.bfloat16())
    assert not is_ours(x[None], weight)
    assert not is_ours(x[0], weight)
    with torch.autocast(DEVICE, torch.bfloat16):
        assert not is_ours(x, weight, bias)
    with backend.use("reference"):
        assert not is_ours(x, weight, bias)
    monkeypatch.setattr(product, "LEAST_ROWS", 21)
    assert not is_ours(x, weight, bias)


def test_a_lower_precision_that_was_asked_for_is_torchs():
    x, weight, _ = (t.detach() for t in leaves(20, 9, 5))
    before = torch.get_float32_matmul_precision()
    try:
        for precision in ("high", "medium"):
            torch.set_float32_matmul_precision(precision)
            assert not is_ours(x, weight)
    finally:
        torch.set_float32_matmul_precision(before)
    assert is_ours(x, weight)


def test_torch_checks_the_ops():
    x, weight, bias = leaves(20, 9, 5)
    grad = rand(20, 5, seed=3).float().to(DEVICE)
    for function, given in (
        (OPS.product, (x, weight, bias)),
        (OPS.product, (x, weight, None)),
        (OPS.product_grad_rows, (grad, weight.detach())),
    ):
        torch.library.opcheck(function.default, given, test_utils=CHECKS)


def test_compiled_models_run_the_same_kernels(monkeypatch):
    given, grad = leaves(30, 9, 5), rand(30, 5, seed=3)
    torch.compiler.reset()

    def model(x, weight, bias):
        return torch.relu(linear_rows(x * 2, weight, bias)) + 1

    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    results = run(compiled, given, grad), run(model, given, grad)
    assert all(torch.equal(got, want) for got, want in zip(*results, strict=True))
    monkeypatch.setattr(gpu, "product", lambda x, weight, bias: x.new_full((30, 5), 2.0))
    assert torch.equal(compiled(*given), torch.full_like(grad, 3.0).float().to(DEVICE))


@on_gpu
def test_tables_of_more_than_2_31_elements():
    x = torch.ones(2**24 + 3, 129, device=DEVICE, requires_grad=True)
    weight = rand(17, 129).float().to(DEVICE).requires_grad_()
    out = linear_rows(x, weight)
    assert torch.equal(out[-5:], linear_rows(x[-5:], weight))
    of_x, of_weight = torch.autograd.grad(out, (x, weight), torch.ones_like(out))
    assert torch.equal(of_x[-1], of_x[0])
    assert_close(of_weight, torch.full_like(of_weight, x.shape[0]), rel=1e-6)


def test_a_traced_model_multiplies_by_it():
    """Forward and backward, whatever runs the stages."""
    net = torch.nn.Sequential(torch.nn.Linear(9, 7), torch.nn.ReLU(), torch.nn.Linear(7, 5))
    net = Net(net).to(DEVICE)
    x = rand(20, 9).float().to(DEVICE)
    block = ragged([1] * 20, 20).to(DEVICE)
    program = trace(net, {"x": x}, training=True)
    with Names() as seen:
        got = program.run({"x": x}, block)
        grads = torch.autograd.grad(got.square().sum(), list(net.parameters()))
    assert {"tiergnn::product", "tiergnn::product_grad_rows"} <= seen.names
    want = net(x, None)
    torch.testing.assert_close(got, want)
    others = torch.autograd.grad(want.square().sum(), list(net.parameters()))
    torch.testing.assert_close(grads, others, rtol=1e-4, atol=1e-4)

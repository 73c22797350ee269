"""Moments of rows are those of two passes in float64, whatever the threads; and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.kernels.blocks import BACKENDS, assert_close, rand
from tests.kernels.by_threads import assert_same_bits
from tiergnn.errors import ConfigError
from tiergnn.kernels import backend
from tiergnn.kernels.moments import cpu, moments, moments_beside, moments_grad
from tiergnn.models.moments import combine_moments

WIDTHS = (1, 3, 37, 63, 130, 256)
OPS = torch.ops.tiergnn
CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")


def oracle(x):
    """Two passes, in float64."""
    x = x.double()
    mean = x.mean(0)
    return torch.stack([torch.full_like(mean, x.shape[0]), mean, (x - mean).square().sum(0)])


def oracle_grad(x, values, grad):
    off = x.double() - values[1].double()
    return 2 * grad[2].double() * off + grad[1].double() / values[0].double()


def of(name, x):
    with backend.use(name):
        return moments(x)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", BACKENDS)
def test_values(name, width):
    """Also of columns far from 0, which one sum of squares would not keep."""
    for num_rows in (2, 100, 8300):
        x = rand(num_rows, width, seed=num_rows)
        assert_close(of(name, x), oracle(x), rel=1e-10, scale=oracle(x).abs() + 1)
        single = x.float()
        assert_close(of(name, single), oracle(single), rel=1e-5, scale=oracle(single).abs() + 1)
        far = (x + 1e4).float()
        assert_close(of(name, far), oracle(far), rel=1e-5)
        assert_close(of(name, x + 1e4), oracle(x + 1e4), rel=1e-10)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", BACKENDS)
def test_short_floats_are_summed_in_float32(name, dtype):
    x = (rand(700, 37) + 3).to(dtype)
    got = of(name, x)
    assert got.dtype == torch.float32
    assert_close(got, oracle(x), rel=1e-6)


@pytest.mark.parametrize("name", BACKENDS)
def test_few_rows(name):
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        x = rand(1, 5).to(dtype)
        wide = torch.promote_types(dtype, torch.float32)
        want = torch.stack([torch.ones(5), x[0].float(), torch.zeros(5)]).to(wide)
        assert torch.equal(of(name, x).float(), want.float())
        assert torch.equal(of(name, x[:0]), torch.zeros(3, 5, dtype=wide))
        assert of(name, x[:, :0]).shape == (3, 0)
    assert of(name, torch.full((999, 3), 0.1))[2].max() < 1e-10


@pytest.mark.parametrize("name", BACKENDS)
def test_a_step_in_a_column(name):
    """Blocks whose means differ by 1e6 times their deviations."""
    x = rand(6000, 2)
    x[:3001] += 1e6
    assert_close(of(name, x.float()), oracle(x.float()), rel=1e-6)
    x = torch.cat([torch.zeros(40, 3), 1e4 + rand(5000, 3).float()])
    assert_close(of(name, x), oracle(x), rel=1e-5)


@pytest.mark.parametrize("name", BACKENDS)
def test_parts_give_the_whole(name):
    x = rand(9000, 7) + 1e3
    parts = [of(name, part) for part in x.split([1, 0, 4000, 37, 4962])]
    assert_close(combine_moments(parts), of(name, x), rel=1e-11)


@pytest.mark.parametrize("name", BACKENDS)
def test_what_is_not_a_number_comes_through(name):
    for row in (0, 5000, 8999):
        x = rand(9000, 3).float()
        x[row, 1] = torch.nan
        assert of(name, x)[1:].isnan().tolist() == [[False, True, False]] * 2
    x[row, 1] = torch.inf
    assert not of(name, x)[1:, 1].isfinite().any()


def test_any_layout():
    x = rand(3000, 80)
    for rows in (x[::2, 3:40], x[:1000, :70].t(), x[:, 5:6]):
        assert torch.equal(of("cpu", rows), of("cpu", rows.contiguous()))


def test_same_bits_for_any_number_of_threads():
    x, grad = rand(20_000, 70).float() + 5, rand(3, 70).float()

    def both():
        values = of("cpu", x)
        return values, cpu.moments_grad(x, values, grad)

    assert_same_bits(both)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", BACKENDS)
def test_gradients(name, width):
    """Alone, added in place, and added on the way back; rounded once."""
    for dtype, rel in ((torch.float64, 1e-10), (torch.float32, 1e-5), (torch.bfloat16, 4e-3)):
        x, more = rand(300, width, seed=1).to(dtype), rand(300, width, seed=2).to(dtype)
        values = of(name, x)
        grad = rand(3, width, seed=3).to(values.dtype)
        want = oracle_grad(x, values, grad)
        size = want.abs() + more.double().abs() + grad[2].double().abs()
        with backend.use(name):
            got = moments_grad(x, values, grad)
            total = more.clone()
            assert moments_grad(x, values, grad, add_to=total) is total
            leaf = x.clone().requires_grad_()
            found = moments_beside(leaf)
            beside = torch.autograd.grad(found, leaf, (grad, more))[0]
            (alone,) = torch.autograd.grad(moments(leaf), leaf, grad)
        assert got.dtype == total.dtype == dtype
        assert_close(got, want, rel=rel, scale=size)
        assert_close(total, want + more.double(), rel=rel, scale=size)
        assert torch.equal(beside, total)
        assert torch.equal(alone, got)


@pytest.mark.parametrize("name", BACKENDS)
def test_gradients_in_parts_of_tables(name):
    """Rows and sums that lie among others, of which nothing is written."""
    table, sums = rand(40, 50), rand(40, 50, seed=1)
    x, grad = table[::2, 3:20], rand(3, 17, seed=2)
    values = oracle(x)
    want = sums.clone()
    want[1::2, 3:20] += oracle_grad(x, values, grad)
    with backend.use(name):
        moments_grad(x, values, grad, add_to=sums[1::2, 3:20])
    assert_close(sums, want, rel=1e-12, scale=want.abs() + 1)


@pytest.mark.parametrize("name", BACKENDS)
def test_gradients_of_gradients(name):
    x = rand(7, 5, seed=9).requires_grad_()

    def variance(x):
        count, mean, squares = moments(x)
        return squares / count + mean

    def normed(x):
        (count, mean, squares), rows = moments_beside(x)
        return (rows - mean) * (squares / count + 0.1).rsqrt()

    with backend.use(name):
        for call in (variance, normed):
            assert torch.autograd.gradcheck(call, x)
            assert torch.autograd.gradgradcheck(call, x)


@pytest.mark.parametrize("name", BACKENDS)
def test_either_result_may_go_unused(name):
    x = rand(9, 4).requires_grad_()
    with backend.use(name):
        for which in (0, 1):
            (got,) = torch.autograd.grad(moments_beside(x)[which].square().sum(), x)
            (want,) = torch.autograd.grad((moments(x), x)[which].square().sum(), x)
            assert torch.equal(got, want)
        values, rows = moments_beside(x.detach())
    assert not values.requires_grad
    assert not rows.requires_grad
    assert rows.data_ptr() == x.data_ptr()


@pytest.mark.parametrize("name", BACKENDS)
def test_nothing_has_no_gradient(name):
    with backend.use(name):
        for shape in ((0, 3), (3, 0)):
            x = torch.ones(shape, requires_grad=True)
            (grad,) = torch.autograd.grad(moments(x).sum(), x)
            assert grad.shape == shape


def test_rows_are_kept_alone():
    x = rand(9, 6).requires_grad_()
    made: Any = moments(x).grad_fn
    kept = [t for t in made.saved_tensors if t.shape[0] == 9]
    assert [t.data_ptr() for t in kept] == [x.data_ptr()]


@pytest.mark.parametrize("name", BACKENDS)
def test_torch_checks_the_ops(name):
    x, values, grad = rand(6, 3).requires_grad_(), rand(3, 3, seed=1).abs(), rand(3, 3, seed=2)
    torch.library.opcheck(OPS.moments.default, (x, name), test_utils=CHECKS)
    for more in (None, rand(6, 3, seed=3)):
        given = (x.detach(), values, grad, more, name)
        torch.library.opcheck(OPS.moments_grad.default, given, test_utils=CHECKS)


def test_compiles_whole():
    x = rand(8, 6).float()

    def call(x):
        count, mean, squares = moments(x * 2)
        return (x - mean) * (squares / count + 0.1).rsqrt()

    made = torch.compile(call, fullgraph=True, backend="aot_eager")
    results = []
    for function in (made, call):
        leaf = x.clone().requires_grad_()
        out = function(leaf)
        out.square().sum().backward()
        results.append((out, leaf.grad))
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


def test_what_does_not_fit_is_refused():
    x, values = torch.ones(4, 3), torch.ones(3, 3)
    with pytest.raises(ConfigError, match=r"float rows \[P, D\], has int64 \[2, 2\]"):
        moments(torch.ones(2, 2, dtype=torch.int64))
    with pytest.raises(ConfigError, match=r"has float32 \[4\]"):
        moments_beside(x[:, 0])
    with pytest.raises(ConfigError, match=r"needs float32 \[4, 3\], has float64 \[4, 3\]"):
        moments_grad(x, values, values, add_to=x.double())
    with pytest.raises(ConfigError, match=r"contiguous rows of its own, has strides \(1, 4\)"):
        moments_grad(x, values, values, add_to=torch.ones(3, 4).t())

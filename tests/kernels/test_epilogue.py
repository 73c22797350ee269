"""Epilogues: one pass gives what torch gives step by step, and its gradients."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.blocks import BACKENDS, assert_close, rand
from tests.kernels.by_threads import assert_same_bits
from tests.kernels.epilogues import CASES, FLOWING, KEY, SITE, Case, oracle
from tiergnn.errors import ConfigError
from tiergnn.kernels import backend
from tiergnn.kernels.dropout import dropout
from tiergnn.kernels.epilogue import epilogue

FULL = next(case for case in CASES if "shift gain bias post" in case.parts)


def leaves_of(x, terms):
    return [x, *(terms[name] for name in FLOWING if name in terms)]


def both(case, num_rows, width, name, dtype=torch.float64):
    """(result, gradients) by one backend in ``dtype``, and by the oracle in float64."""
    x, terms, grad = (
        rand(num_rows, width, seed=9),
        case.terms(num_rows, width),
        rand(num_rows, width),
    )
    gid = terms.pop("gid", None)
    x, grad = x.to(dtype), grad.to(dtype)
    rows = {n: t.to(dtype) if n in FLOWING else t for n, t in terms.items()}
    want_x = x.double().requires_grad_()
    want_terms = {n: t.double().requires_grad_(n in FLOWING) for n, t in rows.items()}
    want = oracle(want_x, case, gid=gid, **want_terms)
    leaves = leaves_of(want_x, want_terms)
    wanted = [want.detach(), *torch.autograd.grad(want, leaves, grad.double())]
    x.requires_grad_()
    for n, t in rows.items():
        t.requires_grad_(n in FLOWING)
    with backend.use(name):
        got = epilogue(x, **rows, gid=gid, **case.options)
        grads = torch.autograd.grad(got, leaves_of(x, rows), grad)
    assert got.dtype == dtype
    return [got.detach(), *grads], wanted


def assert_alike(got, want, rel):
    """Element by element for rows, by the largest of them where columns were added up."""
    for g, w in zip(got, want, strict=True):
        assert_close(g, w, rel=rel, scale=w.abs().max().clamp(min=1e-3).expand_as(w))


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("name", BACKENDS)
def test_values_and_gradients(name, case):
    for num_rows, width in ((29, 37), (3, 1), (70, 130), (5, 3), (9, 63), (4, 64), (6, 128)):
        assert_alike(*both(case, num_rows, width, name), 1e-14)
        assert_alike(*both(case, num_rows, width, name, torch.float32), 2e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("case", CASES[4:10], ids=str)
def test_short_floats_are_rounded_once(case, dtype):
    """cpu gives the bits of the reference but for a last one: only float32 sums differ."""
    results = [both(case, 29, 37, name, dtype)[0] for name in BACKENDS]
    for a, b in zip(*results, strict=True):
        assert_close(a, b, rel=2 * torch.finfo(dtype).eps, scale=b.double().abs() + 1e-3)


@pytest.mark.parametrize("name", BACKENDS)
def test_gradients_of_gradients(name):
    case = Case(parts="other loop scale shift gain bias post", act="elu", slope=0.8, p=0.3)
    terms = case.terms(5, 6)
    flowing = [n for n in FLOWING if n in terms]
    fixed = {n: t for n, t in terms.items() if n not in flowing}

    def call(x, *given):
        return epilogue(x, **dict(zip(flowing, given, strict=True)), **fixed, **case.options)

    leaves = [rand(5, 6, seed=9), *(terms[n] for n in flowing)]
    with backend.use(name):
        given = [leaf.requires_grad_() for leaf in leaves]
        assert torch.autograd.gradcheck(call, given)
        assert torch.autograd.gradgradcheck(call, given)


@pytest.mark.parametrize("name", BACKENDS)
def test_numbers_of_rows_may_need_gradients(name):
    case = Case(parts="other loop scale bias post", act="relu", p=0.4)
    terms = case.terms(7, 5)
    leaves = [t.requires_grad_() for t in (rand(7, 5, seed=9), *terms.values())]
    want = oracle(leaves[0], case, **terms)
    wanted = torch.autograd.grad(want.square().sum(), leaves)
    with backend.use(name):
        got = epilogue(leaves[0], **terms, **case.options)
        assert_alike([got], [want], 1e-14)
        assert_alike(torch.autograd.grad(got.square().sum(), leaves), wanted, 1e-14)


@pytest.mark.parametrize("name", BACKENDS)
def test_only_what_needs_a_gradient_gets_one(name):
    case = FULL
    for wanted in ("other", "gain", "bias", "shift"):
        terms = case.terms(9, 6)
        x, leaf = rand(9, 6, seed=9), terms[wanted].requires_grad_()
        want = torch.autograd.grad(oracle(x, case, **terms).sum(), leaf)
        with backend.use(name):
            got = torch.autograd.grad(epilogue(x, **terms, **case.options).sum(), leaf)
        assert_alike(got, want, 1e-14)


@pytest.mark.parametrize("name", BACKENDS)
def test_masks_are_those_of_dropout(name):
    x = rand(40, 33).float()
    gid = torch.arange(40) * 2**31
    with backend.use(name):
        got = epilogue(x, act="relu", p=0.3, key=KEY, site=SITE, gid=gid)
        assert torch.equal(got, dropout(x.relu(), 0.3, KEY, SITE, gid))
        parts = [
            epilogue(x[rows], act="relu", p=0.3, key=KEY, site=SITE, gid=gid[rows])
            for rows in (slice(0, 11), slice(11, 40))
        ]
    assert torch.equal(torch.cat(parts), got)


def saved(out):
    return [t for t in out.grad_fn.saved_tensors if t is not None and t.dim() == 2]


def test_what_is_kept():
    """The result of an activation; the rows only where the gain is learned."""
    x, gain = rand(9, 6).requires_grad_(), rand(6)
    other = rand(9, 6)
    assert saved(epilogue(x, other=other, p=0.5, key=KEY)) == []
    out = epilogue(x, other=other, gain=gain, act="relu", p=0.5, key=KEY)
    (kept,) = saved(out)
    assert kept.data_ptr() == out.data_ptr()
    assert len(saved(epilogue(x, other=other, gain=gain.requires_grad_(), act="relu"))) == 3


def test_a_sum_alone_gives_back_the_gradient_it_got():
    x, other = (rand(9, 6, seed=seed).requires_grad_() for seed in (1, 2))
    grad = rand(9, 6, seed=3)
    of_x, of_other = torch.autograd.grad(epilogue(x, other=other), (x, other), grad)
    assert of_x.data_ptr() == of_other.data_ptr() == grad.data_ptr()


def test_same_bits_for_any_number_of_threads():
    assert_same_bits(lambda: both(FULL, 5000, 17, "cpu", torch.float32)[0])


@pytest.mark.parametrize("name", BACKENDS)
def test_long_columns_add_up(name):
    """2^20 gradients of 1 + 2^-12 each, which float32 alone would not keep."""
    rows = 2**20 if name == "cpu" else 2**12
    bias = torch.zeros(3, requires_grad=True)
    with backend.use(name):
        out = epilogue(torch.ones(rows, 3), bias=bias, act="relu")
        (got,) = torch.autograd.grad(out, bias, torch.full_like(out, 1 + 2**-12))
    assert torch.equal(got, torch.full((3,), rows * (1 + 2**-12)))


@pytest.mark.parametrize("name", BACKENDS)
def test_nothing_and_any_layout(name):
    case = Case(parts="bias", act="relu", p=0.5)
    with backend.use(name):
        for shape in ((0, 5), (5, 0)):
            x = torch.ones(shape, requires_grad=True)
            bias = torch.zeros(shape[1], requires_grad=True)
            out = epilogue(x, bias=bias, **case.options)
            assert out.shape == shape
            grads = torch.autograd.grad(out.sum(), (x, bias))
            assert [g.shape for g in grads] == [x.shape, bias.shape]
            assert torch.equal(grads[1], bias)
        x = rand(12, 12)
        want = epilogue(x[::2, 1:9].contiguous(), act="relu")
        assert torch.equal(epilogue(x[::2, 1:9], act="relu"), want)
        assert torch.equal(epilogue(x[::2, 1:9].t(), act="relu"), want.t())


def test_elu_near_and_far_from_0():
    x = torch.cat([-torch.logspace(-30, 3, 500), torch.tensor([0.0, -0.0, -torch.inf, 5.0])])
    for dtype, rel in ((torch.float32, 3e-7), (torch.float64, 5e-16)):
        rows = x.to(dtype)[:, None].contiguous()
        with backend.use("cpu"):
            got = epilogue(rows, act="elu", slope=1.0)
        want = torch.nn.functional.elu(rows.double())
        assert_close(got, want, rel=rel)
    assert epilogue(torch.tensor([[torch.nan]]), act="relu").isnan().all()


def test_compiles_whole():
    case = Case(parts="other scale bias post", act="relu", p=0.4)
    terms = {n: t.float() for n, t in case.terms(8, 6).items()}
    x = rand(8, 6).float()

    def call(x, **terms):
        return epilogue(x * 2, **terms, **case.options) + 1

    made = torch.compile(call, fullgraph=True, backend="aot_eager")
    results = []
    for function in (made, call):
        leaf = x.clone().requires_grad_()
        out = function(leaf, **terms)
        out.sum().backward()
        results.append((out, leaf.grad))
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


def test_what_does_not_fit_is_refused():
    x = torch.ones(4, 3)
    with pytest.raises(ConfigError, match="swish"):
        epilogue(x, act="swish")
    with pytest.raises(ConfigError, match=r"slope of 0 or more, has -0\.1"):
        epilogue(x, act="leaky_relu", slope=-0.1)
    with pytest.raises(ConfigError, match=r"float rows \[P, D\], has int64 \[4, 3\]"):
        epilogue(x.long())
    with pytest.raises(ConfigError, match=r"need float32 \[4, 3\], have float64 \[4, 3\]"):
        epilogue(x, other=x.double())
    with pytest.raises(ConfigError, match=r"scale needs \[4, 1\] or \[1\], has float32 \[3\]"):
        epilogue(x, scale=torch.ones(3))
    with pytest.raises(ConfigError, match=r"need \[3\], have float32 \[4\]"):
        epilogue(x, bias=torch.ones(4))
    with pytest.raises(ConfigError, match="0 <= p <= 1"):
        epilogue(x, p=1.5)

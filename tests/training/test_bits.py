"""The same bits whatever is around a run: how its kernels were compiled, threads, other runs."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import tiergnn as tg
from tests.training.models import community, same_bits, weights
from tiergnn.runtime.order import FixedOrder

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "tiergnn"

TRAIN = """
import hashlib
import tiergnn as tg
from tests.training.models import community, weights

graph = community(2_000)
for name in ("gat", "gatv2", "sage"):
    spec = {"name": name, "hidden_channels": 8, "dropout": 0.5}
    spec |= {"aggr": "max"} if name == "sage" else {"heads": 2}
    run = tg.train(graph, spec, epochs=5, seed=3, progress=False)
    bits = b"".join(w.tobytes() for w in weights(run.model)) + repr(run.losses).encode()
    print(name, hashlib.sha256(bits).hexdigest())
"""


def test_kernels_just_compiled_and_from_the_cache_give_the_same_bits(tmp_path):
    """What fastmath makes of a function depends on what else is compiled with it."""
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    told = [
        subprocess.run(
            [sys.executable, "-c", TRAIN],
            capture_output=True, text=True, timeout=300, cwd=ROOT, env=env, check=True,
        ).stdout
        for _ in range(2)
    ]  # fmt: skip
    assert list(tmp_path.rglob("*.nbc"))
    assert told[0] == told[1] != ""


def test_no_kernel_lets_the_compiler_reorder_or_fuse():
    for path in SRC.rglob("*.py"):
        text = path.read_text()
        for word in ("fastmath=", "flags=(", "parallel=True"):
            assert word not in text, f"{path.name}: {word}"


@contextmanager
def threads(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def bce(x, **options):
    return F.binary_cross_entropy_with_logits(x, (x > 0).to(x.dtype), **options)


def smooth(x):
    return F.cross_entropy(x.reshape(-1, 8), torch.arange(x.numel() // 8) % 8, label_smoothing=0.1)


NAMES = """
    elu selu celu sigmoid silu mish softplus gelu logsigmoid glu tanh relu leaky_relu exp log1p
    expm1 erf sin cosh sinh exp2 rsqrt atan asinh hardswish softsign sum mean std var norm
    """
FUNCTIONS = {name: getattr(F if hasattr(F, name) else torch, name) for name in NAMES.split()} | {
    "log_softmax": lambda x: F.log_softmax(x.reshape(-1, 8), 1),
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "elu in place": lambda x: F.elu(x * 1, inplace=True),
    "pow": lambda x: (x * x + 0.1) ** 1.3,
    "cube": lambda x: x**3,
    "power": lambda x: torch.pow(x.abs() + 0.1, torch.full_like(x, 1.5)),
    "divergence": lambda x: F.kl_div(x, x.detach().exp(), reduction="batchmean"),
    "logaddexp": lambda x: torch.logaddexp(x, x.flip(0)),
    "one number": lambda x: torch.ones(1, dtype=x.dtype, requires_grad=True) * x,
    "prelu": lambda x: F.prelu(x, torch.full((1,), 0.3, dtype=x.dtype)),
    "bce": bce,
    "bce weighted": lambda x: bce(x.reshape(-1, 8), pos_weight=torch.arange(8.0, dtype=x.dtype)),
    "bce each": lambda x: bce(x, reduction="none"),
    "mse": lambda x: F.mse_loss(x, x.detach().flip(0)),
    "huber": lambda x: F.huber_loss(x, x.detach().flip(0), reduction="sum"),
    "smoothed": smooth,
    "layer norm": lambda x: F.layer_norm(x.reshape(-1, 8), [8]),
}


def results(function, x):
    """function(x) and its gradient."""
    x = x.detach().requires_grad_()
    out = function(x)
    grad = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).to(out.dtype).reshape(out.shape)
    return [out.detach(), *torch.autograd.grad(out, x, grad + 0.25)]


def draw(count, dtype):
    x = torch.randn(count, generator=torch.Generator().manual_seed(count), dtype=torch.float64)
    return x.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_do_not_follow_the_threads(name, dtype):
    """Above and below the sizes from which torch shares a tensor among threads."""
    for count in (4_104, 32_768, 100_016, 159_568):
        x = draw(count, dtype)
        x = x.abs() if name in ("log1p", "rsqrt") else x
        got = []
        for number in (1, 2, 3):
            with threads(number), FixedOrder():
                got.append(results(FUNCTIONS[name], x))
        for other in got[1:]:
            for a, b in zip(got[0], other, strict=True):
                assert torch.equal(a.nan_to_num(), b.nan_to_num()), count


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("count", [16, 2_056])
def test_functions_in_order_are_torchs_own(name, count):
    x = draw(count, torch.float64)
    x[0] = 0
    x[1:3] = torch.tensor([-45.0, 45.0])
    x = x.abs() + 1e-3 if name in ("log1p", "rsqrt") else x
    want = results(FUNCTIONS[name], x)
    for mode in (FixedOrder(), nullcontext()):
        with mode, threads(3):
            got = results(FUNCTIONS[name], x)
        for ours, theirs in zip(got, want, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13, equal_nan=True)


def test_the_gradient_of_one_number_and_of_full_zeros():
    x = draw(100_016, torch.float32)
    grads = []
    for number in (1, 2, 3):
        with threads(number), FixedOrder():
            eps = torch.zeros(1, requires_grad=True)
            (((1 + eps) * x) / (eps + 2)).backward(x)
            grads.append(eps.grad)
    assert torch.equal(grads[0], grads[1])
    assert torch.equal(grads[0], grads[2])
    zeros = torch.zeros(4_000, requires_grad=True)
    with FixedOrder():
        zeros.norm().backward()
    assert not zeros.grad.any()


def bits(run):
    return run.losses, weights(run.model), run.metrics


def same(a, b):
    return a[0] == b[0] and same_bits(a[1], b[1]) and a[2] == b[2]


MODELS = {
    "gat elu": {"name": "gat", "hidden_channels": 8, "heads": 2, "act": "elu", "dropout": 0.5},
    "gatv2 layer": {"name": "gatv2", "hidden_channels": 8, "heads": 2, "norm": "layer"},
    "gin": {"name": "gin", "hidden_channels": 16, "train_eps": True},
    "sage batch": {"name": "sage", "hidden_channels": 16, "norm": "batch", "act": "tanh"},
}


@pytest.fixture(scope="module")
def graph():
    return community(9_001, degree=4.0)


@pytest.mark.parametrize("name", MODELS)
def test_halves_on_other_numbers_of_threads(graph, tmp_path, name):
    """As a run on one thread, whatever the threads before and after a kill."""

    def crash(record):
        if record["epoch"] == 3:
            raise RuntimeError("crash")

    options = {"epochs": 5, "seed": 3, "checkpoint_every": 1, "clip": 1.0}
    with threads(1):
        want = bits(tg.train(graph, MODELS[name], out=tmp_path / "1", progress=False, **options))
    for first, second in ((2, 3), (3, 1)):
        out = tmp_path / f"{first} {second}"
        with threads(first), pytest.raises(RuntimeError, match="crash"):
            tg.train(graph, MODELS[name], out=out, progress=crash, **options)
        with threads(second):
            assert same(bits(tg.resume(out, graph=graph, progress=False)), want)

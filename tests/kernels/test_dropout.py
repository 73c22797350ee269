"""Dropout: the published words of Philox, one mask whatever computes it, nothing stored."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.blocks import BACKENDS, rand
from tests.kernels.by_threads import assert_same_bits
from tiergnn.errors import ConfigError
from tiergnn.kernels import backend
from tiergnn.kernels.dropout import dropout, key_words, make_key, philox_words, reference, step_key

ONES = 0xFFFFFFFF
PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
# Known answers of the Random123 distribution for philox4x32, 10 rounds: counter, key, words.
KNOWN = [
    ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (PI, (0xA4093822, 0x299F31D0), (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
]
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@pytest.mark.parametrize(("counter", "key", "want"), KNOWN)
def test_known_answers(counter, key, want):
    assert philox_words(counter, key) == want
    words = reference.philox(*(torch.tensor([c]) for c in counter), key)
    assert tuple(int(word) for word in words) == want


def kept_from(words, name, row, site, key):
    """The least threshold that drops each of columns 0..7 tells its word: by bisection."""
    low, high = torch.zeros(8), torch.full((8,), 2.0**32)
    low, high = low.double(), high.double()
    x, gid = torch.ones(8, 8, dtype=torch.float64), torch.full((8,), row)
    for _ in range(32):
        middle = ((low + high) / 2).floor()
        with backend.use(name):
            kept = torch.stack(
                [dropout(x, float(m) / 2**32, key, site, gid)[0] > 0 for m in middle]
            ).diagonal()
        low, high = torch.where(kept, middle, low), torch.where(kept, high, middle)
    return low.long().tolist()


@pytest.mark.parametrize("name", BACKENDS)
def test_counter_is_row_quad_and_site(name):
    """docs/design.md: (row low, row high, column // 4, site), words to neighbouring columns."""
    row, site, key = 0x123456789AB, 77, (0xDEADBEEF, 0x12345678)
    want = [
        word for quad in (0, 1) for word in philox_words((row & ONES, row >> 32, quad, site), key)
    ]
    assert kept_from(want, name, row, site, make_key(*key)) == want


def test_step_keys_differ():
    keys = {
        key_words(step_key(seed, step)) for seed in (0, 1, 2**32, 2**40) for step in (0, 1, 2**32)
    }
    assert len(keys) == 12
    assert key_words(step_key(3, 5)) == philox_words((5, 0, 0, 0), (3, 0))[:2]
    assert key_words(make_key(ONES, 2**31)) == (ONES, 2**31)


@pytest.mark.parametrize("dtype", DTYPES)
def test_backends_agree_bit_for_bit(dtype):
    key = step_key(12345678901, 7)
    gid = torch.randint(0, 2**40, (29,), generator=torch.Generator().manual_seed(0))
    for width, ids, p in itertools.product((1, 3, 37, 63, 130), (None, gid), (1e-9, 0.3, 1.0)):
        x = rand(29, width).to(dtype)
        results = []
        for name in BACKENDS:
            with backend.use(name):
                results.append(dropout(x, p, key, 5, ids))
        for other in results[1:]:
            assert torch.equal(results[0], other)


@pytest.mark.parametrize("name", BACKENDS)
def test_what_is_kept_is_scaled(name):
    """Against float64, in every width of storage: rounded once."""
    for width, dtype in itertools.product((1, 3, 37, 63), DTYPES):
        x = rand(40, width, dtype=dtype)
        with backend.use(name):
            out = dropout(x, 0.3, step_key(1, 2), 3)
        kept = out != 0
        assert 0.4 < kept.double().mean() < 0.95
        want = torch.where(kept, x.double() / 0.7, 0)
        unit = torch.finfo(dtype).eps
        torch.testing.assert_close(out.double(), want, rtol=1.1 * unit, atol=0)


@pytest.mark.parametrize("name", BACKENDS)
def test_edges_of_p(name):
    x = rand(50, 30).float()
    x[0, 0], x[1, 1] = float("inf"), float("nan")
    with backend.use(name):
        assert dropout(x, 0.0, make_key(1, 2), 3) is x
        assert torch.equal(dropout(x, 1.0, make_key(1, 2), 3), torch.zeros_like(x))
        leaf = x.clone().requires_grad_()
        dropout(leaf, 1.0, make_key(1, 2), 3).sum().backward()
        assert torch.equal(leaf.grad, torch.zeros_like(x))


@pytest.mark.parametrize("name", BACKENDS)
def test_frequencies(name):
    """Share of kept elements, of pairs, and of neighbours: within five standard deviations."""
    n, width, p = 4000, 64, 0.3
    with backend.use(name):
        masks = [
            dropout(torch.ones(n, width), p, step_key(seed, step), site) > 0
            for seed, step, site in ((0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0))
        ]
    q = 1 - p
    for mask in masks:
        assert abs(mask.double().mean() - q) < 5 * (p * q / mask.numel()) ** 0.5
        for axis in (0, 1):
            both = (mask & mask.roll(1, axis)).double().mean()
            assert abs(both - q * q) < 5 * (q * q * (1 - q * q) / mask.numel()) ** 0.5
        for column in mask.double().mean(0):
            assert abs(column - q) < 5 * (p * q / n) ** 0.5
    for a, b in itertools.combinations(masks, 2):
        both = (a & b).double().mean()
        assert abs(both - q * q) < 5 * (q * q * (1 - q * q) / a.numel()) ** 0.5


@pytest.mark.parametrize("name", BACKENDS)
def test_gradient_has_the_same_mask(name):
    x = rand(20, 37).requires_grad_()
    with backend.use(name):
        out = dropout(x, 0.4, make_key(1, 2), 3)
        saved = out.grad_fn.next_functions[0][0].saved_tensors  # of the op below the reshape
        (grad,) = torch.autograd.grad(out.sum(), x)
        assert torch.equal(grad != 0, out != 0)
        few = x[:4, :9].detach().requires_grad_()
        assert torch.autograd.gradcheck(lambda x: dropout(x, 0.4, make_key(1, 2), 3), few)
        assert torch.autograd.gradgradcheck(lambda x: dropout(x, 0.4, make_key(1, 2), 3), few)
    assert [t if t is None else t.numel() for t in saved] == [None, 1]  # the key, and no mask


@pytest.mark.parametrize("name", BACKENDS)
def test_any_shape_and_layout(name):
    key = make_key(1, 2)
    with backend.use(name):
        flat = dropout(torch.ones(6, 24), 0.5, key, 0)
        assert torch.equal(dropout(torch.ones(6, 2, 3, 4), 0.5, key, 0), flat.view(6, 2, 3, 4))
        assert torch.equal(dropout(torch.ones(6), 0.5, key, 0), flat[:, 0])
        assert torch.equal(dropout(torch.ones(24, 6).t(), 0.5, key, 0), flat)
        assert torch.equal(dropout(torch.ones(12, 48)[::2, ::2], 0.5, key, 0), flat)
        for shape in ((0, 5), (5, 0), (0, 2, 3)):
            assert dropout(torch.ones(shape), 0.5, key, 0).shape == shape


@settings(max_examples=25, deadline=None)
@given(data=st.data(), name=st.sampled_from(BACKENDS))
def test_a_part_of_the_rows_is_the_same_part_of_the_mask(data, name):
    num_rows, width = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 20))
    rows = torch.tensor(data.draw(st.lists(st.integers(0, num_rows - 1), max_size=20))).long()
    x = rand(num_rows, width).float()
    with backend.use(name):
        whole = dropout(x, 0.5, make_key(7, 8), 9)
        assert torch.equal(dropout(x[rows], 0.5, make_key(7, 8), 9, rows), whole[rows])


def test_same_mask_for_any_number_of_threads():
    with backend.use("cpu"):
        assert_same_bits(lambda: [dropout(torch.ones(5000, 7), 0.5, make_key(1, 2), 3)])


def test_what_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match=r"0 <= p <= 1, has 1\.5"):
        dropout(torch.ones(2, 2), 1.5, make_key(0, 0), 0)
    with pytest.raises(ConfigError, match="float rows"):
        dropout(torch.ones(2, 2).int(), 0.5, make_key(0, 0), 0)
    with pytest.raises(ConfigError, match=r"row ids need int64 \[2\], have int32 \[3\]"):
        dropout(torch.ones(2, 2), 0.5, make_key(0, 0), 0, torch.zeros(3, dtype=torch.int32))

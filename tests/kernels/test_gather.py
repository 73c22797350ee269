"""Rows moved by index against plain torch in float64, on every backend."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.blocks import BACKENDS, rand
from tests.kernels.by_threads import assert_same_bits
from tiergnn.errors import ConfigError
from tiergnn.kernels import backend
from tiergnn.kernels.gather import FLOATS, Groups, accumulate_rows, gather, scatter_rows
from tiergnn.kernels.table import RowTable

WIDTHS = (1, 3, 37, 63, 130)


def indices(count, num_rows, seed=0, dtype=torch.int64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(num_rows, (count,), generator=generator).to(dtype)


def tables_of(sizes, width, dtype, device="cpu"):
    return RowTable([rand(size, width, seed=i).to(device, dtype) for i, size in enumerate(sizes)])


PAIRS = [(a, b) for a in FLOATS for b in FLOATS if torch.float32 in (a, b)]
PAIRS += [(torch.float64, torch.bfloat16), (torch.float16, torch.float64)]


@pytest.mark.parametrize("name", BACKENDS)
def test_gather_converts_between_widths(name):
    for turn, (dtype, to) in enumerate(PAIRS):
        width, index_type = WIDTHS[turn % 5], torch.int32 if turn % 2 else torch.int64
        x, index = rand(90, width, dtype=dtype), indices(200, 90, dtype=index_type)
        with backend.use(name):
            got = gather(x, index, dtype=to)
            into = gather(x, index, out=torch.empty(200, width, dtype=to))
        assert torch.equal(got, x[index.long()].to(to))
        assert torch.equal(into, got)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("sizes", [(5,), (4, 0, 9, 1), (0, 7), (2, 0)], ids=str)
def test_gather_from_several_tables(name, sizes):
    for width, dtype in zip(WIDTHS, (*FLOATS, torch.float32), strict=True):
        table = tables_of(sizes, width, dtype)
        index = indices(50, sum(sizes))
        with backend.use(name):
            got = gather(table, index)
            again = gather(table, table.places(index), dtype=torch.float32)
        assert torch.equal(got, torch.cat(table.tables)[index])
        assert torch.equal(again, got.float())


@pytest.mark.parametrize("name", BACKENDS)
def test_accumulate_adds_every_row_once(name):
    """Rows that come never, once and often; a hub of 20,000; in every width of storage."""
    index = torch.cat([indices(300, 40), torch.full((20_000,), 41), torch.tensor([44])])
    for width, dtype in zip((1, 3, 37, 63), FLOATS, strict=True):
        rows, out = rand(index.numel(), width, dtype=dtype), rand(45, width, seed=1, dtype=dtype)
        want = out.double().index_add(0, index, rows.double())
        size = out.double().abs().index_add(0, index, rows.double().abs())
        untouched = [40, 42, 43]
        kept = out[untouched].clone()
        with backend.use(name):
            assert accumulate_rows(rows, index, out) is out
        unit = torch.finfo(dtype).eps
        allowed = 0.51 * unit * want.abs() + 1e-6 * size if unit > 1e-4 else 2e-7 * size
        assert bool(((out.double() - want).abs() <= allowed).all())
        assert torch.equal(out[untouched], kept)


@pytest.mark.parametrize("name", BACKENDS)
@given(st.lists(st.integers(0, 9), max_size=30), st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_scatter_and_accumulate(name, places, width):
    index = torch.tensor(places, dtype=torch.int64)
    rows = rand(len(places), width, dtype=torch.float64)
    written, added = torch.zeros(10, width).double(), torch.ones(10, width).double()
    want = written.clone()
    for m, place in enumerate(places):
        want[place] = rows[m]
    with backend.use(name):
        scatter_rows(rows, index, written)
        accumulate_rows(rows, Groups.of(index), added)
    assert torch.equal(written, want)
    torch.testing.assert_close(added, torch.ones(10, width).double().index_add(0, index, rows))


@pytest.mark.parametrize("name", BACKENDS)
def test_rows_in_any_layout(name):
    """Columns of wider rows, rows of heads, transposed rows; columns of a wider output."""
    base, index = rand(40, 40), indices(30, 12)
    wide = torch.zeros(12, 20).double()
    with backend.use(name):
        for x in (base[:12, 3:10], base[:24:2, :7], base[:7, :12].t(), base[:1, :7].expand(12, 7)):
            assert torch.equal(gather(x, index), x[index])
            accumulate_rows(x[:5], indices(5, 12), wide[:, 4:11])
        heads = base[:12, :12].contiguous().view(12, 3, 4)
        assert torch.equal(gather(heads, index), heads[index])
        scatter_rows(heads[:2].clone(), torch.tensor([1, 0]), heads)
        assert torch.equal(heads.view(12, 12)[:2], base[:2, :12].flip(0))
    assert not wide[:, :4].any()
    assert not wide[:, 11:].any()
    assert wide[:, 4:11].any()


def test_same_bits_for_any_number_of_threads():
    index = indices(30_000, 500)
    rows = rand(30_000, 37).float()

    def both():
        out = accumulate_rows(rows, index, rand(500, 37, seed=1).float())
        return gather(out, index), out

    with backend.use("cpu"):
        assert_same_bits(both)


@pytest.mark.parametrize("name", BACKENDS)
def test_nothing_is_no_trouble(name):
    none = torch.zeros(0, dtype=torch.int64)
    with backend.use(name):
        assert gather(torch.ones(3, 4), none).shape == (0, 4)
        for shape in ((3, 0), (3, 2, 0)):
            rows = torch.ones(shape, requires_grad=True)
            twice = gather(rows, torch.tensor([1, 1]))
            assert twice.shape == (2, *shape[1:])
            assert torch.autograd.grad(twice.sum(), rows)[0].shape == shape
        out = torch.ones(3, 4)
        accumulate_rows(torch.ones(0, 4), none, out)
        scatter_rows(torch.ones(0, 4), none, out)
    assert torch.equal(out, torch.ones(3, 4))


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("sizes", [(9,), (4, 0, 5)], ids=str)
def test_gradients(name, sizes):
    """Rows that come never, once and often, of each table; against torch's own in float64."""
    index = torch.cat([indices(40, 7), torch.full((3000,), 8)])
    for width, dtype in ((3, torch.float64), (37, torch.float32), (5, torch.float16)):
        tables = [t.requires_grad_() for t in tables_of(sizes, width, dtype).tables]
        wide = [t.detach().double().requires_grad_() for t in tables]
        seed = rand(index.numel(), width, seed=5).to(dtype)
        with backend.use(name):
            out = gather(RowTable(tables), index)
        assert torch.equal(out, torch.cat(tables)[index])
        got = torch.autograd.grad(out, tables, seed)
        want = torch.autograd.grad(torch.cat(wide)[index], wide, seed.double())
        unit = torch.finfo(dtype).eps
        for one, right in zip(got, want, strict=True):
            assert one.dtype == dtype
            atol = 3000 * min(unit, 1e-7)  # 3,000 numbers of about 1 are added up
            torch.testing.assert_close(one.double(), right, rtol=unit, atol=atol)


@pytest.mark.parametrize("name", BACKENDS)
def test_gradcheck(name):
    a, b = rand(3, 2).requires_grad_(), rand(2, 2, seed=1)
    index = torch.tensor([4, 0, 0, 3, 2, 0])
    with backend.use(name):
        assert torch.autograd.gradcheck(lambda a: gather(a, index[index < 3]), (a,))
        assert torch.autograd.gradcheck(lambda a: gather(RowTable((a, b)), index), (a,))
        narrow = gather(a, index[:1] - 4, dtype=torch.float32)
        assert torch.autograd.grad(narrow.sum(), a)[0].dtype == torch.float64


def test_torch_checks_the_op():
    a, b = rand(3, 2).requires_grad_(), rand(2, 2, seed=1).requires_grad_()
    at, shift = RowTable((a, b)).places(torch.tensor([4, 0, 0, 3]))
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    for call in (([a, b], at, shift, None, "cpu"), ([a], at[1:3], 0, torch.float32, "cpu")):
        torch.library.opcheck(torch.ops.tiergnn.gather.default, call, test_utils=checks)


def test_compiles_whole():
    """With the index as it comes, which is looked at where it is read."""
    torch.compiler.reset()
    compiled = torch.compile(
        lambda a, b, index: gather(RowTable((a, b)), index).relu() + gather(a, index % 3),
        backend="aot_eager",
        fullgraph=True,
    )
    a, b = rand(3, 2).requires_grad_(), rand(2, 2, seed=1)
    for index in (torch.tensor([4, 0, 0, 3]), torch.tensor([1, 1])):
        got = compiled(a, b, index)
        want = torch.cat([a, b])[index].relu() + a[index % 3]
        assert torch.equal(got, want)
        assert torch.equal(*(torch.autograd.grad(out.sum(), a)[0] for out in (got, want)))
    with pytest.raises(ConfigError, match="beyond tables"):
        compiled(a, b, torch.tensor([5, 0]))


def test_a_second_gradient_is_refused():
    x = rand(3, 2).requires_grad_()
    out = gather(x, torch.tensor([0, 2]))
    (grad,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
    with pytest.raises(ConfigError, match="differentiable once"):
        grad.sum().backward()


def test_what_does_not_fit_is_refused():
    x, index = torch.ones(3, 4), torch.tensor([0, 2])
    out = torch.ones(3, 4, requires_grad=True)
    for call, words in (
        (lambda: gather(x, torch.tensor([0, 3])), "index needs 0..2"),
        (lambda: gather(x, torch.tensor([-1])), "index needs 0..2"),
        (lambda: gather(x, index.short()), "int32 or int64"),
        (lambda: gather(x.int(), index), "rows of floats"),
        (lambda: gather(x, index, out=torch.ones(3, 4)), r"out needs .*\[2, 4\]"),
        (lambda: scatter_rows(x, index, x.clone()), "2 indices need as many rows"),
        (lambda: accumulate_rows(x[:2, :3], index, x), "rows of shape"),
        (lambda: accumulate_rows(x[:2], index, out), "not differentiable"),
        (lambda: gather(out, index, out=torch.ones(2, 4)), "not differentiable"),
        (lambda: scatter_rows(out[:2], index, x.clone()), "not differentiable"),
        (lambda: accumulate_rows(x[:2], index, torch.ones(4, 3).t()), "contiguous rows"),
        (lambda: RowTable([]), "at least one table"),
        (lambda: RowTable([x, x.double()]), "one shape and dtype"),
        (lambda: gather(RowTable([x, torch.ones(3, 8)[:, ::2]]), index), "contiguous rows"),
    ):
        with pytest.raises(ConfigError, match=words):
            call()

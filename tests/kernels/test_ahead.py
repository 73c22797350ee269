"""Every kernel of the GPU compiles for sm_80 and sm_90 on a machine without one."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from tests.kernels.ahead import ARCHS, compiled_ahead
from tests.kernels.blocks import ragged, rand
from tests.kernels.epilogues import CASES, KEY
from tiergnn.kernels.aggregate import gpu, gpu_kernels, gpu_max
from tiergnn.kernels.columns import gpu as columns_gpu
from tiergnn.kernels.dropout import gpu as dropout_gpu
from tiergnn.kernels.dropout import threshold
from tiergnn.kernels.epilogue import gpu as epilogue_gpu
from tiergnn.kernels.epilogue.reference import Options, Terms
from tiergnn.kernels.gather import gpu as gather_gpu
from tiergnn.kernels.tasks import MOST

KERNELS = {name for name in vars(gpu_kernels) | vars(gpu_max) if name.endswith("_kernel")}
BLOCK = ragged([2, 0, 99, 2 * MOST, *[0] * 9], 60)  # parts, long rows and short ones


@pytest.fixture(autouse=True)
def not_interpreted(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


@pytest.mark.parametrize("arch", ARCHS)
def test_sums(arch):
    plan, weight = gpu.plan(BLOCK.rowptr), rand(BLOCK.num_edges).float()
    edge = torch.arange(BLOCK.num_edges).int()
    with compiled_ahead(arch) as found:
        for x, factor, which, mean in (
            (rand(60, 16).float(), None, None, False),
            (rand(60, 37).bfloat16(), weight, None, True),
            (rand(60, 8), weight, edge, False),
        ):
            gpu.weighted_sum(BLOCK.rowptr, BLOCK.col, plan, x, factor, which, mean)
    # Long rows, short ones, and parts to merge.
    assert len(found["sum_kernel"]) == 3 * 3


@pytest.mark.parametrize("arch", ARCHS)
def test_other_aggregations(arch):
    plan, weight = gpu.plan(BLOCK.rowptr), rand(BLOCK.num_edges).float()
    rowptr_t, dst_t, edge_t = BLOCK.transposed
    x, rows = rand(60, 6).float(), rand(13, 6).float()
    with compiled_ahead(arch) as found:
        gpu.maximum(BLOCK.rowptr, BLOCK.col, plan, x, weight)
        gpu.maximum_grad_x(rowptr_t, dst_t, edge_t, gpu.plan(rowptr_t), rows, rows, x, weight)
        gpu.maximum_grad_weight(BLOCK.rowptr, BLOCK.col, plan, rows, rows, x, weight)
        gpu.edge_dot(BLOCK.rowptr, BLOCK.col, plan, rows, x)
    assert set(found) == KERNELS - {"sum_kernel"}


@pytest.mark.parametrize("arch", ARCHS)
def test_dropout(arch):
    with compiled_ahead(arch) as found:
        for x in (rand(9, 40).float(), rand(9, 3)):
            for gid in (None, torch.arange(9)):
                dropout_gpu.dropout(x, gid, 2**31, 2.0, KEY, 3)
    assert len(found["dropout_kernel"]) == 4


@pytest.mark.parametrize("arch", ARCHS)
def test_epilogue(arch):
    """And back; wide rows are read and written 16 bytes at a time."""
    cases = [CASES[at] for at in (4, 7, 9, 12)]
    with compiled_ahead(arch) as found:
        for case, dtype in zip(
            cases, (torch.float32, torch.float64, torch.bfloat16, torch.float16), strict=True
        ):
            numbers = torch.float64 if dtype == torch.float64 else torch.float32
            given = {n: t.to(numbers) for n, t in case.terms(9, 256).items() if n != "gid"}
            given = {n: t if t.dim() == 1 or n == "other" else t[:, 0] for n, t in given.items()}
            terms = Terms(**{name: given.get(name) for name in Terms._fields})
            if terms.other is not None:
                terms = terms._replace(other=terms.other.to(dtype))
            if case.with_gid:
                terms = terms._replace(gid=torch.arange(9))
            kept = threshold(case.p)
            options = Options(case.act, case.slope, kept, 1 / (1 - case.p), KEY, 3)
            x = rand(9, 256).to(dtype)
            epilogue_gpu.epilogue(x, terms, options)
            epilogue_gpu.epilogue_grad(x, x, x, terms, options, (True, True))
            epilogue_gpu.epilogue_grad(x, x, None, terms, options, (True, False))
    assert len(found["epilogue_kernel"]) == len(cases)
    assert len(found["epilogue_grad_kernel"]) == 2 * len(cases)
    for text in (found["epilogue_kernel"][0], found["epilogue_grad_kernel"][0]):
        assert "ld.global.v4.b32" in text
        assert "st.global.v4.b32" in text


@pytest.mark.parametrize("arch", ARCHS)
def test_rows_of_several_tables(arch):
    """And weights an edge and head; rows are read 16 bytes at a time all the same."""
    x, g = rand(60, 32).float(), rand(13, 32).float()
    tables, (at, shift) = (x[:50], x[50:].clone()), BLOCK.places((50, 10))
    plan, weight = gpu.plan(BLOCK.rowptr), rand(BLOCK.num_edges, 4).float()
    given = BLOCK.rowptr, at, plan
    with compiled_ahead(arch) as found:
        gpu.weighted_sum(*given, tables, None, None, False, shift)
        gpu.weighted_sum(*given, tables, weight, at, True, shift)
        gpu.maximum(*given, tables, weight, shift)
        gpu.edge_dot(*given, g, tables, 4, shift)
        gpu.maximum_grad_weight(*given, g, g, tables, weight, shift)
        gpu.maximum_grad_x(*given[:2], at, plan, g, g, x[:13], weight)
    assert set(found) == KERNELS
    assert found["sum_kernel"][0].count("ld.global.v4.b32") >= 2 * gpu.LOADS


@pytest.mark.parametrize("arch", ARCHS)
def test_rows_beyond_a_link(arch, monkeypatch):
    """By few programs in turns; read 16 bytes at a time all the same."""
    x = rand(60, 32).float()
    tables, (at, shift) = (x[:50], x[50:].clone()), BLOCK.places((50, 10))
    monkeypatch.setattr(gpu, "most_programs", lambda *_: 4)
    with compiled_ahead(arch) as found:
        gpu.weighted_sum(BLOCK.rowptr, at, gpu.plan(BLOCK.rowptr), tables, None, None, False, shift)
    assert found["sum_kernel"][0].count("ld.global.v4.b32") >= 2 * gpu.LOADS


@pytest.mark.parametrize("arch", ARCHS)
def test_moves(arch):
    """From one table and from several, whose rows are read 16 bytes at a time all the same."""
    x, index = rand(60, 64).float(), torch.arange(40).int()
    with compiled_ahead(arch) as found:
        for tables, shift in (((x,), 0), ((x, x.clone(), x[:0]), 6)):
            for out, add in ((rand(60, 64).bfloat16(), False), (rand(60, 64).float(), True)):
                gather_gpu.move(tables, index, shift, out, index.long(), add)
        gather_gpu.move((rand(40, 3),), None, 0, rand(60, 3).half(), index, False)
    assert len(found["move_kernel"]) == 5
    for text in found["move_kernel"][:4]:
        assert "ld.global.v4.b32" in text


@pytest.mark.parametrize(("width", "dtype"), [(16, torch.float32), (100, torch.bfloat16)])
def test_rows_are_read_16_bytes_at_a_time(width, dtype):
    """Also where the rows were copied to be aligned."""
    plan = gpu.plan(BLOCK.rowptr)
    x = rand(60, width).to(dtype)
    with compiled_ahead(90) as found:
        gpu.weighted_sum(BLOCK.rowptr, BLOCK.col, plan, x, None, None, False)
    long_rows = found["sum_kernel"][0]
    assert long_rows.count("ld.global.v4.b32") >= 2 * gpu.LOADS


@pytest.mark.parametrize("arch", ARCHS)
def test_columns(arch):
    slices, block = rand(8, 70, 4).bfloat16(), rand(70, 64).float()
    with compiled_ahead(arch) as found:
        for joins in (True, False):
            columns_gpu.turn(slices, block[:, 32:], joins)
            columns_gpu.turn(slices.double(), block.half(), joins)
    assert len(found["turn_kernel"]) == 4

"""What does not fit is told before compiled code reads it: each op, each argument, each kind."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from tests.kernels.blocks import BACKENDS, ragged
from tiergnn.errors import ConfigError, GraphError
from tiergnn.kernels import backend
from tiergnn.kernels.aggregate import aggregate, aggregate_grad
from tiergnn.kernels.attention import edge_mean, gat_attention, gatv2_attention
from tiergnn.kernels.block import Block
from tiergnn.kernels.dropout import dropout, step_key
from tiergnn.kernels.epilogue import epilogue
from tiergnn.kernels.gather import Groups, accumulate_rows, gather, scatter_rows
from tiergnn.kernels.moments import moments, moments_grad
from tiergnn.kernels.table import Places, RowTable

BLOCK = ragged([2, 1], 3)
KEY, INDEX, IDS = step_key(0, 0), torch.tensor([2, 0]), torch.arange(3)
X, ROWS, HEADS, EDGES = torch.ones(3, 4), torch.ones(2, 4), torch.ones(3, 2, 4), torch.ones(3, 2)
SCORES, ATT, MOMENTS = torch.ones(3, 2), torch.ones(2, 4), torch.ones(3, 4)


def gat(h=HEADS, src=SCORES, dst=SCORES[:2], edge=EDGES, loop=SCORES[:2]):
    scores = {"score_edge_EK": edge, "score_loop_PK": loop}
    return gat_attention(BLOCK, h, src, dst, **scores)


def gatv2(x=HEADS, dst=HEADS[:2], att=ATT, edge=EDGES, weight=HEADS[:2], loop=EDGES[:2]):
    return gatv2_attention(
        BLOCK, x, dst, att, edge_attr_ED=edge, edge_weight_DKF=weight, loop_attr_PD=loop
    )


# Each argument that is a tensor, and whether whole numbers do in it.
CALLS = {
    "aggregate": (lambda t: aggregate(BLOCK, t), X, False),
    "aggregate, a table": (lambda t: aggregate(BLOCK, RowTable((t[:1], t[1:]))), X, False),
    "aggregate, weights": (lambda t: aggregate(BLOCK, X, weight_E=t), EDGES[:, 0], True),
    "aggregate, weights of heads": (lambda t: aggregate(BLOCK, X, weight_E=t), EDGES, True),
    "aggregate_grad": (lambda t: aggregate_grad(BLOCK, t, mean=True), ROWS, False),
    "gat, h": (lambda t: gat(h=t), HEADS, False),
    "gat, sources": (lambda t: gat(src=t), SCORES, True),
    "gat, destinations": (lambda t: gat(dst=t), SCORES[:2], True),
    "gat, edges": (lambda t: gat(edge=t), EDGES, True),
    "gat, loops": (lambda t: gat(loop=t), SCORES[:2], True),
    "gatv2, x": (lambda t: gatv2(x=t), HEADS, False),
    "gatv2, destinations": (lambda t: gatv2(dst=t), HEADS[:2], True),
    "gatv2, att": (lambda t: gatv2(att=t), ATT, True),
    "gatv2, edges": (lambda t: gatv2(edge=t), EDGES, True),
    "gatv2, weight": (lambda t: gatv2(weight=t), HEADS[:2], True),
    "gatv2, loops": (lambda t: gatv2(loop=t), EDGES[:2], True),
    "edge_mean": (lambda t: edge_mean(BLOCK, t), EDGES, False),
    "dropout": (lambda t: dropout(t, 0.5, KEY, 0), X, False),
    "epilogue": (epilogue, X, False),
    "epilogue, scale": (lambda t: epilogue(X, scale=t), X[:, :1], True),
    "epilogue, loop": (lambda t: epilogue(X, other=X, loop=t), X[:, :1], True),
    "epilogue, bias": (lambda t: epilogue(X, bias=t), X[0], True),
    "epilogue, post": (lambda t: epilogue(X, post=t), X[:, :1], True),
    "moments": (moments, X, False),
    "gather": (lambda t: gather(t, INDEX), X, False),
    "gather, a table": (lambda t: gather(RowTable((t[:2], t[2:])), INDEX), X, False),
    "scatter_rows": (lambda t: scatter_rows(t, INDEX, torch.zeros(3, 4)), ROWS, False),
    "accumulate_rows": (lambda t: accumulate_rows(t, INDEX, torch.zeros(3, 4)), ROWS, False),
}


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.complex64, torch.int32, torch.bool])
@pytest.mark.parametrize("call", CALLS)
def test_dtypes(call, dtype, name):
    """Floats of 16 to 64 bits; whole numbers where they are weights, as the floats they are."""
    run, good, takes_whole = CALLS[call]
    with backend.use(name):
        want = run(good)
        if takes_whole and not (dtype.is_floating_point or dtype.is_complex):
            assert torch.equal(run(good.to(dtype)), want)
            return
        with pytest.raises(ConfigError, match=str(dtype).removeprefix("torch.")):
            run(good.to(dtype))


@pytest.mark.parametrize("call", CALLS)
def test_devices(call):
    """Memory that is not where the others are is read by none: that would end the process."""
    run, good, _ = CALLS[call]
    if call in ("dropout", "epilogue", "moments"):  # which have no other
        run(good.to("meta"))
        return
    with pytest.raises(ConfigError, match="meta"):
        run(good.to("meta"))


@pytest.mark.parametrize("call", [call for call in CALLS if "table" not in call])
def test_what_are_no_dense_tensors(call):
    run, good, _ = CALLS[call]
    with pytest.raises(ConfigError, match="had ndarray"):
        run(good.numpy())
    with pytest.raises(ConfigError, match="had sparse_coo"):
        run(good.to_sparse())


@pytest.mark.parametrize("call", CALLS)
def test_shapes(call):
    """A row more, and a dimension more."""
    run, good, _ = CALLS[call]
    free = call in ("dropout", "epilogue", "moments", "gather", "gather, a table")
    if not free:
        with pytest.raises(ConfigError):
            run(torch.cat([good, good[:1]]))
    if call not in ("dropout", "gather", "gather, a table", "aggregate, weights"):
        with pytest.raises(ConfigError):
            run(good[..., None])


def refused(call, words, kind=ConfigError):
    with pytest.raises(kind, match=re.escape(words)):
        call()


def test_keys_sites_and_heads():
    for draw in (
        lambda **given: dropout(X, 0.5, **({"key": KEY, "site": 0} | given)),
        lambda **given: epilogue(X, p=0.5, **({"key": KEY} | given)),
        lambda **given: gat_attention(
            BLOCK, HEADS, SCORES, SCORES[:2], p=0.5, **({"key": KEY} | given)
        ),
    ):
        refused(lambda d=draw: d(key=None), "needs a key")
        refused(lambda d=draw: d(key=7), "is int64 [1], had int")
        refused(lambda d=draw: d(key=torch.tensor([1, 2])), "is int64 [1], had int64 [2]")
        refused(lambda d=draw: d(key=torch.tensor([1.5])), "is int64 [1], had float32 [1]")
        refused(lambda d=draw: d(site=-1), "needs 0..2**32 - 1, has -1")
        refused(lambda d=draw: d(site=2**32), "needs 0..2**32 - 1, has 4294967296")
    given = {"p": 0.5, "key": KEY, "head": -1}
    refused(
        lambda: gat_attention(BLOCK, HEADS, SCORES, SCORES[:2], **given),
        "head of attention dropout needs 0..2**32 - 1",
    )


def test_ids_of_rows():
    for draw in (
        lambda gid: dropout(X, 0.5, KEY, 0, gid),
        lambda gid: epilogue(X, p=0.5, key=KEY, gid=gid),
    ):
        draw(IDS)
        for gid in (IDS[:1], IDS.int(), IDS.float(), IDS[:, None]):
            refused(lambda d=draw, g=gid: d(g), "need int64 [3], have")
        refused(lambda d=draw: d(IDS.to("meta")), "meta")


def test_moments_of_all_rows():
    for values in (MOMENTS[:2], MOMENTS[:, :1], MOMENTS.double(), MOMENTS.half()):
        refused(lambda v=values: moments_grad(X, v, MOMENTS), "need torch.float32 [3, 4]")
        refused(lambda v=values: moments_grad(X, MOMENTS, v), "need torch.float32 [3, 4]")
    refused(lambda: moments_grad(X, MOMENTS.to("meta"), MOMENTS), "values on meta")
    shared = torch.zeros(1, 4).expand(3, 4)
    refused(lambda: moments_grad(X, MOMENTS, MOMENTS, add_to=shared), "rows of its own")


def test_moved_rows():
    out, table = torch.zeros(3, 4), RowTable((X, X))
    beyond = Groups.of(torch.tensor([0, 9]))
    twice = Groups.of(torch.tensor([-1, -1]))
    for call, words in (
        (lambda: gather(X, Places(torch.tensor([9]), 0)), "needs 0..2, the rows of x; has 9..9"),
        (lambda: gather(table, Places(torch.tensor([99]), 2)), "beyond tables of [3, 3] rows"),
        (lambda: gather(table, Places(torch.tensor([-1]), 2)), "beyond tables of [3, 3] rows"),
        (lambda: gather(table, Places(torch.tensor([3]), 2)), "beyond tables of [3, 3] rows"),
        (lambda: gather(table, torch.tensor([6])), "beyond tables of [3, 3] rows"),
        (lambda: gather(X, table.places(torch.tensor([5]))), "beyond tables of [3] rows"),
        (lambda: table.places(torch.tensor([6])), "needs 0..5, the rows of the tables"),
        (lambda: table.places(torch.tensor([-1])), "needs 0..5, the rows of the tables"),
        (lambda: scatter_rows(ROWS, beyond, out), "groups name rows 0..9, out has 3"),
        (lambda: accumulate_rows(ROWS, twice, out), "groups name rows -1..-1, out has 3"),
        (lambda: accumulate_rows(out, IDS, out), "share memory"),
        (lambda: gather(out, IDS, out=out), "share memory"),
        (lambda: scatter_rows(X, IDS, X[:1].expand(3, 4)), "contiguous rows of their own"),
        (lambda: accumulate_rows(X, IDS, out.to("meta")), "out float32 [3, 4] on meta"),
        (lambda: gather(X, [0]), "had list"),
        (lambda: RowTable((X, None)), "table 1 needs a tensor of rows, had NoneType"),
        (lambda: RowTable((X[0],)), "needs rows [N, ...], has float32 [4]"),
    ):
        refused(call, words)
    assert not out.any()


def test_what_is_no_block():
    edge_index = torch.tensor([[0, 1], [1, 0]])
    for call in (
        lambda: aggregate(edge_index, X),
        lambda: aggregate_grad(edge_index, X, mean=True),
        lambda: gat_attention(edge_index, HEADS, SCORES, SCORES),
        lambda: gatv2_attention(edge_index, HEADS, HEADS, ATT),
        lambda: edge_mean(edge_index, EDGES),
    ):
        refused(call, "needs a Block, had Tensor\n  try: Block.from_graph(")


def block(rowptr=(0, 2, 3), col=(0, 2, 1), **options) -> Block:
    return Block(rowptr=torch.tensor(rowptr), col=torch.tensor(col), num_src=3, **options)


WRONG = {
    "beyond": (block(col=(0, 3, 1)), "col needs 0..2, the sources of the block; has 3"),
    "far beyond": (block(col=(0, 10**12, 1)), "has 1000000000000\n  at: edge 1"),
    "negative": (block(col=(0, 2, -1)), "has -1\n  at: edge 2"),
    "falls": (block((0, 5, 3)), "rowptr needs to ascend; goes from 5 to 3\n  at: row 1"),
    "starts late": (block((1, 2, 3)), "rowptr needs to go from 0 to 3"),
    "ends early": (block((0, 2, 2)), "goes from 0 to 2"),
    "ends far beyond": (block((0, 2, 3 * 10**9)), "goes from 0 to 3000000000"),
}


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("wrong", WRONG)
def test_blocks_that_contradict_themselves(wrong, name):
    """Looked at before an op first reads them; before, they ended the process or gave numbers."""
    given, words = WRONG[wrong]
    with backend.use(name):
        for call in (
            lambda: aggregate(given, X),
            lambda: aggregate(given, X, reduce="max"),
            lambda: aggregate(given, RowTable((X[:1], X[1:]))),
            lambda: aggregate_grad(given, ROWS, mean=True),
            lambda: gat_attention(given, HEADS, SCORES, SCORES[:2]),
            lambda: gatv2_attention(given, HEADS, HEADS[:2], ATT),
            lambda: edge_mean(given, EDGES),
            lambda: given.transposed,
            given.check,
        ):
            refused(call, words, GraphError)


def test_parts_of_a_block_that_do_not_fit_each_other():
    for options, words in (
        ({"dst_gid": IDS[:2].int()}, "dst_gid needs int64 [2], has int32 [2]"),
        ({"eid": IDS.float()}, "eid needs int64 [3], has float32 [3]"),
        ({"eid": torch.tensor(3)}, "eid needs 3 rows, has int64 []"),
        ({"src_gid": IDS.to("meta")}, "src_gid is on meta, col on cpu"),
        ({"edge_weight": np.ones(3)}, "edge_weight needs a tensor, had ndarray"),
    ):
        refused(lambda o=options: block(**o), words, GraphError)


def test_a_block_is_looked_at_once(monkeypatch):
    seen = []
    monkeypatch.setattr("tiergnn.kernels.block.check_csr", lambda *given: seen.append(given))
    given = ragged([2, 1, 3], 3)
    for _ in range(2):
        aggregate(given, X)
        aggregate(given.rows(1, 3), X)
        aggregate(given.only(torch.tensor([0, 3])), X)
    assert len(seen) == 1

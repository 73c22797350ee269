"""What operations are counted as, beside the bytes that they read and write in order."""

from __future__ import annotations

import pytest
import torch

from tiergnn.kernels.aggregate import aggregate
from tiergnn.kernels.attention import gat_attention
from tiergnn.kernels.block import Block
from tiergnn.kernels.dropout import step_key
from tiergnn.models.works import Works

ROWS, SOURCES, EDGES, HEADS, COLUMNS = 63, 101, 400, 3, 5


def block() -> Block:
    ends = torch.linspace(0, EDGES, ROWS + 1).round().long()
    col = torch.arange(EDGES, dtype=torch.int32) % SOURCES
    return Block(rowptr=ends, col=col, num_src=SOURCES)


def amounts(run) -> dict[str, float]:
    found: dict[str, float] = {}
    with torch.no_grad(), Works() as works:
        run()
        for done in works.take():
            found[done.kind] = found.get(done.kind, 0.0) + done.amount
    return found


def test_torchs_sums_over_rows_and_rows_added_by_index_are_told_from_other_operations():
    x, index = torch.ones(ROWS, COLUMNS), torch.arange(20)
    assert amounts(lambda: x.sum(0))["total"] == 4 * COLUMNS * (ROWS + 1)
    for other in (lambda: x.sum(1), lambda: x.sum(), lambda: x + x):
        assert "total" not in amounts(other)
    added = amounts(lambda: x.index_add_(0, index, torch.ones(20, COLUMNS)))
    assert added["add"] == 20 * COLUMNS * 4
    assert "gather" not in added
    taken = amounts(lambda: x.index_select(0, index))
    assert taken["gather"] == 20 * COLUMNS * 4
    assert "add" not in taken


@pytest.mark.parametrize("transposed", [False, True])
def test_kernels_of_a_graph_walk_the_rows_that_they_make(transposed):
    made, x = block(), torch.ones(SOURCES, COLUMNS, requires_grad=True)
    grad = torch.ones(ROWS, COLUMNS)
    with torch.enable_grad():
        out = aggregate(made, x)

    def run() -> None:
        if transposed:
            torch.autograd.grad(out, x, grad)
        else:
            aggregate(made, x)

    assert amounts(run)["walk"] == (SOURCES if transposed else ROWS)


@pytest.mark.parametrize("p", [0.0, 0.5])
def test_attention_weighs_every_edge_and_head_and_may_drop_it(p):
    rows, scores = torch.ones(SOURCES, HEADS, COLUMNS), torch.ones(SOURCES, HEADS)
    key = step_key(0, 0, rows.device)
    found = amounts(lambda: gat_attention(block(), rows, scores, scores[:ROWS], p=p, key=key))
    assert found["attend"] == EDGES * HEADS
    assert found["softmax"] == ROWS * HEADS
    assert found.get("drop", 0.0) == (EDGES * HEADS if p else 0.0)
    assert "draw" not in found

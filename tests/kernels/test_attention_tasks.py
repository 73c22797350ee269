"""Rows that begin exactly where a task of the CPU's attention does belong to that task alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.kernels.test_attention import FUSED, OPS, assert_near, run
from tiergnn.graph.csr import from_edges
from tiergnn.kernels.attention.cpu_rows import num_tasks
from tiergnn.kernels.block import Block
from tiergnn.kernels.dropout import step_key

DEGREE = 9  # with its end a row is ten units, of which a task takes a multiple


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("self_loop", [True, False])
@pytest.mark.parametrize("kind", OPS)
def test_every_task_begins_with_a_row(kind, self_loop, name):
    num_rows = 1_000
    units = num_rows * (DEGREE + 1)
    tasks = num_tasks(num_rows, num_rows * DEGREE)
    assert tasks > 2
    assert units % tasks == 0 == units // tasks % (DEGREE + 1)
    dst = np.repeat(np.arange(num_rows), DEGREE)
    src = np.random.default_rng(0).integers(0, num_rows, dst.size)
    block = Block.from_graph(from_edges(src, dst, num_rows))
    op, make = OPS[kind]
    tensors = make(block, 2, 5, edges=True)
    options = {"self_loop": self_loop, "p": 0.3, "key": step_key(1, 2)}
    got = run(name, op, block, tensors, torch.float64, **options)
    want = run("reference", op, block, tensors, torch.float64, **options)
    assert_near(got, want, 1e-10, 1e-9)

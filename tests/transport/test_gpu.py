"""Back ends between GPUs against the contract, with rows in device memory.

Ranks beyond the number of GPUs share them: two and four processes on one are tested everywhere.
"""

from __future__ import annotations

import pytest
import torch

from tests.transport.contract import run_all
from tests.transport.processes import FRESH
from tiergnn.transport.launch import launch

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    ("transport", "size", "debug"),
    [("ipc", 2, False), ("ipc", 4, True), ("symmetric", 2, False), ("nccl", 2, False)],
)
def test_contract(transport, size, debug):
    if transport == "nccl" and torch.cuda.device_count() < size:
        pytest.skip(f"NCCL wants a GPU a rank: {torch.cuda.device_count()} of {size}")
    assert (
        launch(
            run_all,
            size,
            ("cuda",),
            transport=transport,
            on_gpu=True,
            debug=debug,
            timeout_s=120,
            context=FRESH,
        )
        == 0
    )


def test_virtual():
    assert launch(run_all, 3, ("cuda",), transport="virtual", timeout_s=120) == 0

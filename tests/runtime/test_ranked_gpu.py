"""Ranks that are processes on GPUs give the numbers of one device, with dropout and BatchNorm.

Ranks beyond the number of GPUs share them. Each job runs all its cases: starting one takes seconds.
"""

from __future__ import annotations

import pytest
import torch

from tests.runtime.ranking import start_processes

pytestmark = pytest.mark.gpu
BOTH = ("deep", "gat")
LEO = ("leo 0.1 0.2", "leo 0.1 0.2 inputs")
JOBS = {
    "ipc": (2, [(s, name) for s in ("halo", "nfp", "mgg", "uva", *LEO) for name in BOTH]),
    "ipc, four": (
        4,
        [("halo", "gin"), ("nfp", "gcn"), ("mgg", "gin"), *((s, "deep") for s in LEO)],
    ),
    "symmetric": (2, [("mgg", "deep"), (LEO[0], "gat"), (LEO[1], "gin"), ("halo", "deep")]),
    "nccl": (2, [(s, name) for s in ("halo", "nfp") for name in BOTH]),
}


@pytest.mark.parametrize("job", JOBS)
def test_processes(job, tmp_path):
    size, cases = JOBS[job]
    transport = job.partition(",")[0]
    if transport == "nccl" and torch.cuda.device_count() < size:
        pytest.skip(f"NCCL wants a GPU a rank: {torch.cuda.device_count()} of {size}")
    options = {"on_gpu": True, "timeout_s": 240.0}  # a rank may compile while others wait
    start_processes(cases, (400, 3_000, 0), size, transport, tmp_path, "cuda", **options)

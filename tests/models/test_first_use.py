"""What is first used while a model is traced works afterwards."""

from __future__ import annotations

import subprocess
import sys


def test_numba_finds_functions_of_math_that_a_trace_stood_in_for():
    """In a process whose first compiled kernel runs within a trace: torch.fx then has others in the
    place of math's functions, by which Numba would know its own."""
    script = """
import math
import numba, torch
from torch_geometric.nn import GCNConv
from tiergnn.models.trace import trace

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = GCNConv(3, 4)

    def forward(self, x, edge_index):
        return self.conv(x, edge_index).relu()

trace(Net(), {"x": torch.ones(8, 3)}, training=True)

@numba.njit
def f(x):
    return math.fabs(x) + math.sqrt(abs(x))

assert f(-4.0) == 6.0
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr

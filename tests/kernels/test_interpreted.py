"""Every suite of the GPU's kernels, interpreted on the CPU, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SUITES = sorted(path.name for path in HERE.glob("test_*_gpu.py"))
# Tests that each suite runs interpreted, at least; the others have 11 or more.
LEAST = {"test_gather_gpu.py": 7, "test_table_gpu.py": 7}
LONG = ["test_aggregate_gpu.py", "test_attention_gpu.py"]
# What starts a process takes longer than most suites.
TOGETHER = [*([suite] for suite in LONG), [suite for suite in SUITES if suite not in LONG]]


@pytest.mark.parametrize("suites", TOGETHER, ids=" ".join)
def test_interpreted(suites):
    pytest.importorskip("triton")
    paths = [str(HERE / suite) for suite in suites]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:xdist", "-m", "not slow", "-rp", *paths],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
    for suite in suites:
        assert done.stdout.count(f"\nPASSED tests/kernels/{suite}::") >= LEAST.get(suite, 11)

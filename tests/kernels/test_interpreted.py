"""Every suite of the GPU's kernels, interpreted on the CPU, each in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SUITES = sorted(path.name for path in HERE.glob("test_*_gpu.py"))
# Tests that each suite runs interpreted, at least; the others have 11 or more.
LEAST = {"test_gather_gpu.py": 7, "test_table_gpu.py": 7}


@pytest.mark.parametrize("suite", SUITES)
def test_interpreted(suite):
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:xdist", "-m", "not slow", str(HERE / suite)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= LEAST.get(suite, 11)

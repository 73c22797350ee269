"""Where the suites of the GPU's kernels run: on a GPU, or interpreted on the CPU.

Interpreted where TRITON_INTERPRET=1 was set before Triton was imported; ``test_interpreted`` does
that in a process of its own, since a load beyond a tensor ends it.
"""

from __future__ import annotations

import os

import pytest

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
SUITE = [] if INTERPRETED else [pytest.mark.gpu]
on_gpu = pytest.mark.skipif(INTERPRETED, reason="too much for the interpreter")

"""The same bits whatever is around a run: how its kernels were compiled, threads, other runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "tiergnn"

TRAIN = """
import hashlib
import tiergnn as tg
from tests.training.models import community, weights

graph = community(2_000)
for name in ("gat", "gatv2", "sage"):
    spec = {"name": name, "hidden_channels": 8, "dropout": 0.5}
    spec |= {"aggr": "max"} if name == "sage" else {"heads": 2}
    run = tg.train(graph, spec, epochs=5, seed=3, progress=False)
    bits = b"".join(w.tobytes() for w in weights(run.model)) + repr(run.losses).encode()
    print(name, hashlib.sha256(bits).hexdigest())
"""


def test_kernels_just_compiled_and_from_the_cache_give_the_same_bits(tmp_path):
    """What fastmath makes of a function depends on what else is compiled with it."""
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    told = [
        subprocess.run(
            [sys.executable, "-c", TRAIN],
            capture_output=True, text=True, timeout=300, cwd=ROOT, env=env, check=True,
        ).stdout
        for _ in range(2)
    ]  # fmt: skip
    assert list(tmp_path.rglob("*.nbc"))
    assert told[0] == told[1] != ""


def test_no_kernel_lets_the_compiler_reorder_or_fuse():
    for path in SRC.rglob("*.py"):
        text = path.read_text()
        for word in ("fastmath=", "flags=(", "parallel=True"):
            assert word not in text, f"{path.name}: {word}"

"""What users import: a frozen list of names that costs nothing until one is used."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from inspect import ismodule

import pytest

import tiergnn

NAMES = [
    "ConfigError",
    "Graph",
    "GraphError",
    "Interrupted",
    "PlanError",
    "RankError",
    "Run",
    "StoreError",
    "TiergnnError",
    "__version__",
    "evaluate",
    "generate",
    "ingest",
    "nn",
    "partition",
    "plan",
    "predict",
    "resume",
    "trace",
    "train",
    "zoo",
]


def test_the_public_names_are_these():
    assert tiergnn.__all__ == NAMES
    assert dir(tiergnn) == sorted(NAMES)


def test_every_name_is_there_and_is_the_thing_itself():
    for name in NAMES:
        assert getattr(tiergnn, name) is not None
    # A package of the same name would hide the function once it is imported.
    for name in ("train", "resume", "evaluate", "predict", "partition", "plan", "trace", "ingest"):
        assert callable(getattr(tiergnn, name)), name
        assert not ismodule(getattr(tiergnn, name)), name
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        tiergnn.trian  # noqa: B018


def test_import_is_fast_and_loads_nothing_heavy():
    """The fastest of a few tries: a busy machine may delay any one of them."""
    script = (
        "import sys, time, json; start = time.perf_counter(); import tiergnn;"
        "took = time.perf_counter() - start;"
        "print(json.dumps([took, sorted({m.split('.')[0] for m in sys.modules})]))"
    )
    fastest = float("inf")
    for _ in range(5):
        out = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        )
        took, modules = json.loads(out.stdout)
        assert not {"torch", "numpy", "numba", "scipy", "torch_geometric", "rich"} & set(modules)
        fastest = min(fastest, took)
        if fastest < 0.3:
            break
        time.sleep(1)
    assert fastest < 0.3


def test_python_m_tiergnn_is_the_command():
    out = subprocess.run(
        [sys.executable, "-m", "tiergnn", "--version"], capture_output=True, text=True, check=False
    )
    assert out.returncode == 0, out.stderr
    assert tiergnn.__version__ in out.stdout

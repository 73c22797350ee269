"""Where the real graphs are: $TIERGNN_DATA, else ../shared/data beside the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(os.environ.get("TIERGNN_DATA", Path(__file__).parents[2] / "shared" / "data"))


def data_dir(name: str) -> Path:
    """The folder of one real graph; skips the test when it is not there."""
    path = ROOT / name
    if not path.exists():
        pytest.skip(f"no real data: {name} is not in TIERGNN_DATA or ../shared/data")
    return path

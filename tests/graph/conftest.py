"""Fixtures of graphs that several files share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiergnn.graph.odd import ODD


@pytest.fixture
def saved(tmp_path) -> Path:
    return Path(ODD["weighted"]().save(tmp_path / "graph").path)

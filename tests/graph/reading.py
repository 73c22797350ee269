"""One little graph, and reading a file of it."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

from tiergnn.graph.csr import Graph, from_edges
from tiergnn.graph.ingest import ingest

RNG = np.random.default_rng(0)
V, E = 20, 60
PAIRS = RNG.integers(0, V, (E, 2))
WEIGHT = RNG.random(E)
WANT = from_edges(PAIRS[:, 0], PAIRS[:, 1], V)
WEIGHTED = from_edges(PAIRS[:, 0], PAIRS[:, 1], V, edge_weight=WEIGHT)


ENDS = (PAIRS[:, 0], PAIRS[:, 1])


def read(tmp_path: Path, name: str, content: str | bytes | None = None, **options) -> Graph:
    path = tmp_path / name
    if content is not None:
        data = content.encode() if isinstance(content, str) else content
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    options.setdefault("num_nodes", V)
    return ingest(path, tmp_path / "out", overwrite=True, **options)


def lines(pattern: str, *columns) -> str:
    columns = columns or ENDS
    return "".join(pattern.format(*row) for row in zip(*columns, strict=True))

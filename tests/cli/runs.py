"""A small graph, and runs on it."""

from __future__ import annotations

import numpy as np
import pytest

from tiergnn.graph.csr import Graph
from tiergnn.graph.generate import sbm

FEW = ("--epochs", 4, "--quiet", "--json")


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    """120 nodes of 3 classes, 10 of them isolated, with numbered splits beside the plain ones."""
    folder = tmp_path_factory.mktemp("graphs") / "sbm"
    made = sbm(120, 3, degree=6, num_features=8, seed=1)
    splits = dict(made.splits)
    splits |= {f"{name}.1": ids[::2].copy() for name, ids in made.splits.items()}
    weight = 0.5 + np.arange(made.num_edges, dtype=np.float32) / made.num_edges
    kept = Graph(
        rowptr=made.rowptr,
        col=made.col,
        edge_weight=weight,
        x=made.x,
        y=made.y,
        task="class",
        num_classes=3,
        splits=splits,
    )
    kept.save(folder)
    return folder


@pytest.fixture
def train(cli, graph, tmp_path):
    """Trains four epochs into a fresh folder and gives what ``--json`` says."""
    count = 0

    def run(*options, model="gcn"):
        nonlocal count
        count += 1
        out = tmp_path / f"run{count}"
        small = {"gcn", "sage", "gin", "gat", "gatv2"}
        width = ("--hidden", 8) if model in small and "--hidden" not in options else ()
        done = cli("train", graph, "--model", model, "--out", out, *FEW, *width, *options)
        return done.json

    return run

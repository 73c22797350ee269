"""How evenly rows are read, held to what a least-recently-used cache answers."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest

from tiergnn.graph.generate import rmat
from tiergnn.graph.shape import Histogram


def histogram(times: np.ndarray) -> Histogram:
    degrees, counts = np.unique(times, return_counts=True)
    return Histogram(tuple(degrees.tolist()), tuple(counts.astype(float).tolist()))


def answered(reads: np.ndarray, held: int) -> float:
    """The share of reads that a cache of so many rows answers, once it is full."""
    cache: OrderedDict[int, None] = OrderedDict()
    hits = []
    for row in reads.tolist():
        hits.append(row in cache)
        cache[row] = None
        cache.move_to_end(row)
        if len(cache) > held:
            cache.popitem(last=False)
    return float(np.mean(hits[len(hits) // 2 :]))


@pytest.mark.parametrize(("a", "b", "least", "most"), [
    (0.57, 0.19, 0.02, 0.09), (0.45, 0.22, 0.12, 0.3), (0.25, 0.25, 0.7, 1.0),
])  # fmt: skip
def test_a_cache_answers_what_evenness_says(a, b, least, most):
    graph = rmat(4000, 80_000, a=a, b=b, c=b, seed=1)
    even = histogram(np.bincount(graph.col, minlength=graph.num_nodes)).evenness
    assert least < even < most
    reads = np.random.default_rng(0).permutation(graph.col)
    for share in (0.02, 0.1, 0.3):
        found = answered(reads, int(share * graph.num_nodes))
        assert share / (share + even * (1 - share)) == pytest.approx(found, abs=0.06)


def test_the_ends_of_evenness():
    assert Histogram((7,), (100.0,)).evenness == 1.0
    assert Histogram((0,), (3.0,)).evenness == 1.0
    assert Histogram((), ()).evenness == 1.0
    assert Histogram((0, 5), (99.0, 1.0)).evenness == 0.001  # one row in a hundred is read at all
    # Fractions of nodes, and the same shape of any size, give the same.
    small, large = (Histogram((1, 2, 40), (0.7 * n, 0.2 * n, 0.1 * n)) for n in (1.0, 1e6))
    assert small.evenness == pytest.approx(large.evenness, rel=1e-3)

"""Shapes of graphs that are not there: degrees expected of a generator, from its parameters alone.

Legend: V nodes, E edges.
"""

from __future__ import annotations

import numpy as np
from scipy.special import betainc

from tiergnn.errors import ConfigError
from tiergnn.graph.shape import GraphShape, Histogram

_TAIL = 8.0  # standard deviations of a binomial that are followed


def rmat_shape(
    num_nodes: int,
    num_edges: int,
    *,
    a: float = 0.57,
    b: float = 0.19,
    c: float = 0.19,
    undirected: bool = False,
    num_features: int = 0,
    feature_dtype: str = "float32",
    num_classes: int = 0,
    num_labelled: int = 0,
    name: str = "rmat",
) -> GraphShape:
    """What ``generate.rmat`` of the same arguments makes on average, repeated edges kept.

    A node whose id lies in the upper half u times of the L that its range is halved is the source
    of Binomial(E, (a + b)^(L - u) (c + d)^u) edges: there are few kinds of nodes. ``undirected``
    doubles the edges: exact where b = c, else a node's edges both ways count as one binomial.
    Raises ConfigError on chances that are none.
    """
    if min(a, b, c) < 0 or a + b + c > 1 + 1e-9:
        raise ConfigError(f"chances must be at least 0 and at most 1 in all, had {a}, {b}, {c}")
    _check(num_nodes, num_edges)
    lows, highs, nodes = _halvings(num_nodes)
    source = (a + b) ** lows * (1 - a - b) ** highs
    target = (a + c) ** lows * (1 - a - c) ** highs
    if undirected:
        num_edges *= 2
        source = target = (source + target) / 2
    return GraphShape(
        name=name,
        num_nodes=num_nodes,
        num_edges=num_edges,
        in_degrees=_binomials(num_edges, target, nodes),
        out_degrees=_binomials(num_edges, source, nodes),
        num_features=num_features,
        feature_dtype=feature_dtype,
        num_classes=num_classes,
        num_labelled=num_labelled,
    )


def uniform_shape(
    num_nodes: int,
    num_edges: int,
    *,
    num_features: int = 0,
    feature_dtype: str = "float32",
    num_classes: int = 0,
    num_labelled: int = 0,
    name: str = "uniform",
) -> GraphShape:
    """Both ends of each edge drawn from all nodes alike. Raises ConfigError on negative counts."""
    _check(num_nodes, num_edges)
    chance, nodes = np.array([1 / max(1, num_nodes)]), np.array([float(num_nodes)])
    degrees = _binomials(num_edges, chance, nodes)
    return GraphShape(
        name=name,
        num_nodes=num_nodes,
        num_edges=num_edges,
        in_degrees=degrees,
        out_degrees=degrees,
        num_features=num_features,
        feature_dtype=feature_dtype,
        num_classes=num_classes,
        num_labelled=num_labelled,
    )


def power_law_shape(
    num_nodes: int,
    num_edges: int,
    exponent: float,
    *,
    num_features: int = 0,
    feature_dtype: str = "float32",
    num_classes: int = 0,
    num_labelled: int = 0,
    name: str = "power-law",
) -> GraphShape:
    """Degrees d in proportion to (d + s)^-exponent, 0 <= d < V, s such that their mean is E / V.

    In and out. Raises ConfigError when no s gives the mean, or the exponent is not above 1.
    """
    _check(num_nodes, num_edges)
    if not exponent > 1:
        raise ConfigError(f"a power law needs an exponent above 1, had {exponent}")
    low, high = _steps(num_nodes)
    middle, width = (low + high - 1) / 2, high - low
    mean = num_edges / max(1, num_nodes)

    def counts(log_shift: float) -> np.ndarray:
        weight = width * (middle + np.exp(log_shift)) ** -exponent
        return weight * (num_nodes / weight.sum())

    least, most = np.log(1e-9), np.log(1e3 * max(2, num_nodes))
    reach = [float(counts(shift) @ middle) / max(1, num_nodes) for shift in (least, most)]
    if num_edges and not reach[0] <= mean <= reach[1]:
        raise ConfigError(
            f"exponent {exponent} allows mean degrees from {reach[0]:.3g} to {reach[1]:.3g} in "
            f"{num_nodes} nodes, had {mean:.3g}",
            hint="another exponent",
        )
    for _ in range(100):  # the mean grows with the shift
        shift = (least + most) / 2
        below = float(counts(shift) @ middle) < num_edges
        least, most = (shift, most) if below else (least, shift)
    found = counts(most) if num_edges else np.where(middle == 0, num_nodes, 0)
    degrees = Histogram.of(np.rint(middle), found)
    return GraphShape(
        name=name,
        num_nodes=num_nodes,
        num_edges=num_edges,
        in_degrees=degrees,
        out_degrees=degrees,
        num_features=num_features,
        feature_dtype=feature_dtype,
        num_classes=num_classes,
        num_labelled=num_labelled,
    )


def _check(num_nodes: int, num_edges: int) -> None:
    if min(num_nodes, num_edges) < 0 or (num_edges and not num_nodes):
        raise ConfigError(f"{num_nodes} nodes cannot have {num_edges} edges")


def _halvings(num_nodes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Kinds of ids when 0..V-1 is halved to the end, the lower half taking the odd one: how often
    each lies in the lower and in the upper half, and how many ids are of that kind.

    Ranges of one level have two sizes at most, so there are some 2 log2(V)^2 kinds on the way.
    """
    kinds: dict[tuple[int, int], float] = {}
    level = {(num_nodes, 0, 0): 1.0} if num_nodes else {}
    while level:
        below: dict[tuple[int, int, int], float] = {}
        for (size, lows, highs), ranges in level.items():
            if size == 1:
                kinds[lows, highs] = kinds.get((lows, highs), 0.0) + ranges
                continue
            for half in (((size + 1) // 2, lows + 1, highs), (size // 2, lows, highs + 1)):
                below[half] = below.get(half, 0.0) + ranges
        level = below
    pairs = np.array(list(kinds), np.float64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1], np.array(list(kinds.values()), np.float64)


def _binomials(draws: int, chance: np.ndarray, nodes: np.ndarray) -> Histogram:
    """Expected degrees of ``nodes[i]`` nodes with Binomial(draws, chance[i]) edges each.

    Degrees of large means come in steps of a tenth of their standard deviation, counted at the
    middle of a step.
    """
    degrees, counts = [np.empty(0)], [np.empty(0)]
    for p, held in zip(chance.tolist(), nodes.tolist(), strict=True):
        mean, deviation = draws * p, np.sqrt(draws * p * (1 - p))
        step = max(1, 2 * int(deviation / 20) + 1)
        start = max(0, int(mean - _TAIL * deviation - 8))
        edges = np.arange(start, min(draws, int(mean + _TAIL * deviation + 24)) + 1 + step, step)
        inside = np.clip(edges, 1, max(1, draws)).astype(np.float64)
        reached = np.where(edges < 1, 1.0, betainc(inside, draws - inside + 1, p))
        reached = np.where(edges > draws, 0.0, reached)
        degrees.append((edges[:-1] + (step - 1) // 2).astype(np.float64))
        counts.append(held * (reached[:-1] - reached[1:]))
    return Histogram.of(np.concatenate(degrees), np.concatenate(counts))


def _steps(num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """[low, high) ranges of the degrees 0..V-1: single ones to 1,000, then odd widths of 1%."""
    top = max(1, num_nodes)
    low = [np.arange(min(top, 1000), dtype=np.float64)]
    if top > 1000:
        marks = 1000 * 1.01 ** np.arange(np.log(top / 1000) / np.log(1.01))
        widths = 2 * np.floor(marks / 200) + 1
        starts = 1000 + np.concatenate([[0.0], np.cumsum(widths)])
        low.append(starts[starts < top])
    lows = np.concatenate(low)
    return lows, np.append(lows[1:], top)

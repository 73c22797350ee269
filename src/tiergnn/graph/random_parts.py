"""What parts drawn at random read of each other, on average, from degrees alone.

Of a source with d destinations, each lies in a given part with chance q, so the part's edges that
it serves are Binomial(d, q). Both tails that are wanted are incomplete beta functions:
P(B >= t) = I_q(t, d - t + 1), and E[B; B >= t] = d q P(Binomial(d - 1, q) >= t - 1).
"""

from __future__ import annotations

import numpy as np
from scipy.special import betainc

_FINE = 256  # degrees, and edges served, that are told apart; above they go in steps of a percent
_STEP = 1.01
_SURE = 1e-9  # chance that a part does not read a row, from which on all do


def halo_curve(
    degrees: np.ndarray, counts: np.ndarray, num_nodes: int, num_parts: int, self_loops: int
) -> tuple[tuple[int, int], ...]:
    """(rows, edges) points of one part's halo, hottest rows first: ``PartShape.served``.

    degrees, counts: out-degrees, self-loops included, and how many nodes have each.
    """
    if num_parts == 1 or num_nodes < 2:
        return ((0, 0),)
    degrees, counts = _condense(*_without_loops(degrees, counts, self_loops))
    if degrees.size == 0:
        return ((0, 0),)
    share = 1 / num_parts
    chance = min(1.0, share * num_nodes / (num_nodes - 1))
    hottest = degrees.max() * chance
    most = max(1.0, min(hottest + 8 * np.sqrt(hottest) + 8, degrees.max()))
    thresholds = _ladder(most, 1.03)[:, None]
    possible = degrees >= thresholds
    other = np.where(possible, degrees - thresholds + 1, 1.0)
    reached = np.where(possible, betainc(thresholds, other, chance), 0.0)
    further = np.where(thresholds > 1, betainc(np.maximum(thresholds - 1, 1), other, chance), 1.0)
    further = np.where(possible, further, 0.0)
    rows = (1 - share) * (reached @ counts)
    edges = (1 - share) * (further @ (counts * degrees * chance))
    points = np.floor(np.stack([rows, edges], axis=1)[::-1] + 0.5).astype(np.int64)
    points = np.maximum.accumulate(points)
    points = points[np.append(np.diff(points[:, 0]) > 0, True)]  # the last of equally many rows
    points = points[points[:, 0] > 0]
    return ((0, 0), *map(tuple, points.tolist()))


def _ladder(most: float, step: float) -> np.ndarray:
    """Whole numbers from 1 to ``most`` and one above: all at first, then in growing steps."""
    top = max(float(np.ceil(most)), 1.0)
    low = np.arange(1.0, min(top, 64.0) + 1)
    if top <= 64:
        return low
    high = np.ceil(64 * step ** np.arange(1, np.log(top / 64) / np.log(step) + 1))
    return np.unique(np.concatenate([low, high, [top]]))


def _without_loops(
    degrees: np.ndarray, counts: np.ndarray, self_loops: int
) -> tuple[np.ndarray, np.ndarray]:
    """Degrees towards other nodes: loops are dealt out evenly over nodes that can have them."""
    able = float(counts[degrees > 0].sum())
    if not self_loops or not able:
        return degrees, counts
    looped = np.where(degrees > 0, min(1.0, self_loops / able), 0.0)
    fewer = np.maximum(degrees - max(1.0, self_loops / able), 0)
    return np.concatenate([degrees, fewer]), np.concatenate(
        [counts * (1 - looped), counts * looped]
    )


def _condense(degrees: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Neighbouring degrees above _FINE taken together at their mean; none without edges."""
    held = (degrees > 0) & (counts > 0)
    degrees, counts = degrees[held], counts[held]
    large = np.log(np.maximum(degrees, _FINE) / _FINE) / np.log(_STEP)
    _, place = np.unique(
        np.where(degrees < _FINE, degrees, _FINE + np.floor(large)), return_inverse=True
    )
    nodes = np.bincount(place, weights=counts)
    return np.bincount(place, weights=counts * degrees) / np.maximum(nodes, 1e-300), nodes


def readers(
    degrees: np.ndarray, counts: np.ndarray, num_nodes: int, num_parts: int, self_loops: int
) -> np.ndarray:
    """float64 [K]: how many rows 0, 1, ... K - 1 other parts read.

    Each destination of a row lies in any of the parts alike, so one more destination finds its part
    new, or one that reads the row already, or its owner.
    """
    rows = np.zeros(num_parts)
    degrees, counts = _condense(*_without_loops(degrees, counts, self_loops))
    rows[0] = num_nodes - counts.sum()
    of_degree = np.bincount(np.rint(degrees).astype(np.int64), weights=counts)
    chance = np.zeros(num_parts)
    chance[0] = 1.0
    stays = (1 + np.arange(num_parts)) / num_parts
    for degree in range(1, of_degree.size):
        gone = chance * (1 - stays)
        chance = chance * stays
        chance[1:] += gone[:-1]
        rows += of_degree[degree] * chance
        if chance[-1] > 1 - _SURE:
            rows[-1] += of_degree[degree + 1 :].sum()
            break
    return rows

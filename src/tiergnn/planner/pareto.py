"""Pareto sets of points in any number of dimensions, smaller being better in each.

Divide and conquer after Kung, Luccio and Preparata (1975): O(M log^(D-2) M) comparisons, each pass
over whole arrays. Legend: M points, D dimensions.
"""

from __future__ import annotations

import numpy as np

_SMALL = 1 << 16  # pairs of points that are compared at once
_LEAF = 64


def undominated(costs: np.ndarray) -> np.ndarray:
    """Indices of the points of ``costs`` [M, D] that no other is as good as in every dimension.

    Ascending by the first column, then the next. Of equal points the first stays.
    """
    num = costs.shape[0]
    if num == 0:
        return np.zeros(0, np.int64)
    varied = np.flatnonzero((costs != costs[0]).any(axis=0))
    if varied.size == 0:
        return np.zeros(1, np.int64)
    # Columns apart are contiguous; lexsort's last key is the first to sort by.
    columns = [np.ascontiguousarray(costs[:, column]) for column in varied]
    order = np.lexsort(columns[::-1])
    points = np.stack([column[order] for column in columns])
    fresh = np.append(True, (points[:, 1:] != points[:, :-1]).any(axis=0))
    order, points = order[fresh], points[:, fresh]
    return order[_front(points)]


def _front(points: np.ndarray) -> np.ndarray:
    """Places of the undominated columns of ``points`` [D, M], distinct and in lexical order."""
    dims, num = points.shape
    if dims == 1:
        return np.zeros(1, np.int64)
    if dims == 2:
        least = np.minimum.accumulate(points[1])
        return np.flatnonzero(np.append(True, points[1, 1:] < least[:-1]))
    if num <= _LEAF:
        below = (points[1:, :, None] <= points[1:, None, :]).all(axis=0)
        return np.flatnonzero(~np.triu(below, 1).any(axis=0))
    first = _front(points[:, : num // 2])
    second = _front(points[:, num // 2 :]) + num // 2
    beaten = _covered(points[1:, first], points[1:, second])
    return np.concatenate([first, second[~beaten]])


def _covered(by: np.ndarray, points: np.ndarray) -> np.ndarray:
    """bool [M]: whether some column of ``by`` [D, N] is at most that of ``points`` [D, M]."""
    dims, num = points.shape
    if by.shape[1] == 0 or num == 0:
        return np.zeros(num, bool)
    if dims == 1:
        return by[0].min() <= points[0]
    if dims == 2:
        order = np.argsort(by[0], kind="stable")
        least = np.append(np.inf, np.minimum.accumulate(by[1, order]))
        return least[np.searchsorted(by[0, order], points[0], side="right")] <= points[1]
    if by.shape[1] * num <= _SMALL:
        below = by[0][:, None] <= points[0]
        for column in range(1, dims):
            below &= by[column][:, None] <= points[column]
        return below.any(axis=0)
    pivot = np.partition(by[0], by.shape[1] // 2)[by.shape[1] // 2]
    low, near = by[0] < pivot, points[0] < pivot
    if not low.any():  # half of ``by`` or more shares the least value
        low, near = by[0] <= pivot, points[0] < pivot
        found = np.zeros(num, bool)
        found[~near] = _covered(by[1:, low], points[1:, ~near])
        rest = np.flatnonzero(~found & (points[0] > pivot))
        found[rest] = _covered(by[:, ~low], points[:, rest])
        return found
    found = np.zeros(num, bool)
    found[near] = _covered(by[:, low], points[:, near])
    found[~near] = _covered(by[1:, low], points[1:, ~near])
    rest = np.flatnonzero(~found & ~near)
    found[rest] = _covered(by[:, ~low], points[:, rest])
    return found

"""Graphs made from a seed: the same bits on every machine. Linear in nodes and edges.

Legend: V nodes, E edges, D features, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np

from tiergnn.errors import ConfigError
from tiergnn.graph.csr import Graph, from_edges, index_dtype
from tiergnn.graph.draws import draw, id_bits, normals, permutation, permute, stream_key

_MOST = 2**48  # of nodes or edges, all of which are held in memory
# One stream a purpose, so that no two share numbers.
_EDGES, _NODES, _MEANS, _NOISE, _SPLIT, _PAIRS = range(6)


def rmat(
    num_nodes: int,
    num_edges: int,
    *,
    seed: int = 0,
    a: float = 0.57,
    b: float = 0.19,
    c: float = 0.19,
    shuffle: bool = True,
    undirected: bool = False,
    duplicates: str = "keep",
    self_loops: str = "keep",
) -> Graph:
    """An R-MAT graph (Chakrabarti, Zhan and Faloutsos, 2004): a power law without communities.

    num_nodes: any number, not only powers of two.
    num_edges: directed edges drawn, before ``undirected`` doubles them or options drop some.
    a, b, c: chances of the quarters (low, low), (low, high) and (high, low) of (source,
    destination) at every level; d is the rest. Graph500's by default.
    shuffle: rename nodes at random; otherwise low ids are the hubs.
    undirected, duplicates, self_loops: as in ``from_edges``.
    """
    src, dst = rmat_edges(num_nodes, num_edges, seed=seed, a=a, b=b, c=c, shuffle=shuffle)
    return from_edges(
        src, dst, num_nodes, undirected=undirected, duplicates=duplicates, self_loops=self_loops
    )


def rmat_edges(
    num_nodes: int,
    num_edges: int,
    *,
    seed: int = 0,
    a: float = 0.57,
    b: float = 0.19,
    c: float = 0.19,
    shuffle: bool = True,
    start: int = 0,
    stop: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Source and destination of edges ``start`` to ``stop`` of the edge list behind ``rmat``.

    Any piece can be made by itself: a list longer than memory comes in pieces that do not depend
    on where it is cut, nor on num_edges. Returns two arrays, int32 where ids fit.
    At every level the range of ids is halved, the lower half taking the odd one.
    Raises ConfigError on chances that are none and on a range outside the list.
    """
    stop = num_edges if stop is None else stop
    if not 0 <= start <= stop <= num_edges:
        raise ConfigError(f"edges {start}..{stop} are not within the {num_edges} of the list")
    if num_nodes < 1 and stop > start:
        raise ConfigError(f"edges need at least one node, had num_nodes={num_nodes}")
    if not (min(a, b, c) >= 0 and a + b + c <= 1 + 1e-9):  # nan is neither
        raise ConfigError(f"chances must be at least 0 and at most 1 in all, had {a}, {b}, {c}")
    _check_counts(nodes=num_nodes, edges=stop - start)
    index = index_dtype(num_nodes)
    src, dst = np.empty(stop - start, index), np.empty(stop - start, index)
    bounds = [min(round(part * 2**32), 2**32) for part in (a, a + b, a + b + c)]
    _rmat(
        stream_key(seed, _EDGES),
        stream_key(seed, _NODES),
        np.array(bounds, np.uint64),
        max(num_nodes - 1, 0).bit_length(),
        num_nodes,
        shuffle,
        start,
        src,
        dst,
    )
    return src, dst


@numba.njit(cache=True, nogil=True)
def _rmat(edge_key, node_key, bounds, levels, num_nodes, shuffle, start, src, dst):
    words = (levels + 1) // 2  # a 64-bit word serves two levels
    bits, size = id_bits(num_nodes), np.uint64(num_nodes)
    for i in range(src.size):
        src_low, src_high, dst_low, dst_high = 0, num_nodes, 0, num_nodes
        word = np.uint64(0)
        for level in range(levels):
            if level % 2 == 0:
                word = draw(edge_key, np.uint64((start + i) * words + level // 2))
            chance = word & np.uint64(0xFFFFFFFF)
            word >>= np.uint64(32)
            src_mid = (src_low + src_high + 1) // 2
            dst_mid = (dst_low + dst_high + 1) // 2
            # No branches on chance: the processor would guess every other one wrongly.
            up = chance >= bounds[1]
            right = ((chance >= bounds[0]) & ~up) | (chance >= bounds[2])
            up, right = up & (src_mid < src_high), right & (dst_mid < dst_high)
            src_low, src_high = (src_mid, src_high) if up else (src_low, src_mid)
            dst_low, dst_high = (dst_mid, dst_high) if right else (dst_low, dst_mid)
        if shuffle:
            src[i] = permute(node_key, np.uint64(src_low), size, bits)
            dst[i] = permute(node_key, np.uint64(dst_low), size, bits)
        else:
            src[i], dst[i] = src_low, dst_low


def sbm(
    num_nodes: int | Sequence[int] = 2_000,
    num_classes: int = 5,
    *,
    degree: float = 10.0,
    homophily: float = 0.8,
    num_features: int = 32,
    signal: float = 1.0,
    train_frac: float = 0.1,
    val_frac: float = 0.2,
    shuffle: bool = True,
    seed: int = 0,
) -> Graph:
    """A stochastic block model with labels, features that tell of them, and splits.

    num_nodes: how many, in ``num_classes`` blocks of (nearly) equal size, or the size of each
    block. A node's class is its block.
    degree: mean number of neighbours; edges are undirected, without loops or duplicates.
    homophily: fraction of edges inside blocks. The numbers of edges inside blocks and between
    them are exact, and each set of pairs of that many is equally likely.
    num_features, signal: x is normal noise of variance 1 around its class's mean, which lies
    ``signal`` from the origin. At 1 a node's own features say little: its neighbours must help.
    train_frac, val_frac: of nodes in the splits train and val; the rest are test.
    shuffle: mix the ids of blocks; otherwise block 0 comes first.
    Raises ConfigError when a block has fewer pairs than edges are wanted.
    """
    sizes = _block_sizes(num_nodes, num_classes)
    total = int(sizes.sum())
    if min(train_frac, val_frac) < 0 or train_frac + val_frac > 1:
        raise ConfigError(f"train_frac and val_frac must be parts of 1: {train_frac}, {val_frac}")
    for name, value in (("degree", degree), ("signal", signal)):
        if not 0 <= value < np.inf:
            raise ConfigError(f"{name} must be a number from 0, had {value}")
    if not 0 <= homophily <= 1:
        raise ConfigError(f"homophily must be within 0..1, had {homophily}")
    src, dst = _block_edges(sizes, degree, homophily, seed)
    y = np.repeat(np.arange(sizes.size), sizes)
    means = normals(sizes.size, num_features, seed, _MEANS).astype(np.float64)
    lengths = np.sqrt(np.cumsum(means * means, axis=1)[:, -1:])  # in one order on any machine
    means *= signal / np.maximum(lengths, 1e-12)
    x = normals(total, num_features, seed, _NOISE)
    x += means.astype(np.float32)[y]
    if shuffle:
        name = permutation(total, seed, _NODES)
        src, dst = name[src], name[dst]
        x[name], y[name] = x.copy(), y.copy()
    mixed = permutation(total, seed, _SPLIT)
    cuts = round(total * train_frac), round(total * (train_frac + val_frac))
    train, val, test = np.split(mixed, cuts)
    return from_edges(
        src,
        dst,
        total,
        undirected=True,
        x=x,
        y=y,
        num_classes=sizes.size,
        splits={"train": train, "val": val, "test": test},
    )


def _block_sizes(num_nodes: int | Sequence[int], num_classes: int) -> np.ndarray:
    if not isinstance(num_nodes, int | np.integer):
        sizes = np.asarray(num_nodes, np.int64)
    elif num_classes < 1:
        raise ConfigError(f"num_classes must be at least 1, had {num_classes}")
    else:
        _check_counts(nodes=num_nodes, classes=num_classes)
        sizes = np.diff(np.arange(num_classes + 1) * int(num_nodes) // num_classes)
    if sizes.size == 0 or sizes.min() < 0:
        raise ConfigError(f"block sizes must be 0 or more, had {sizes.tolist()}")
    return sizes


def _block_edges(
    sizes: np.ndarray, degree: float, homophily: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Distinct undirected pairs: each kind's first so many of a permutation of all its pairs."""
    starts = np.concatenate([[0], np.cumsum(sizes)])
    num_edges = round(float(sizes.sum()) * degree / 2)
    inside = round(num_edges * homophily)
    src, dst = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    pairs = sizes * (sizes - 1) // 2
    for block, count in enumerate(_shares(inside, pairs, "inside blocks")):
        key = stream_key(seed, _PAIRS + block)
        high, low = _triangle_pairs(key, int(count), int(pairs[block]))
        src.append(high + starts[block])
        dst.append(low + starts[block])
    # All pairs between blocks are one rectangle's: block b against every later node.
    later = sizes.sum() - starts[1:]
    between = sizes * later
    for block, count in enumerate(_shares(num_edges - inside, between, "between blocks")):
        key = stream_key(seed, _PAIRS + sizes.size + block)
        row, column = _rectangle_pairs(key, int(count), int(between[block]), int(later[block]))
        src.append(row + starts[block])
        dst.append(column + starts[block + 1])
    return np.concatenate(src), np.concatenate(dst)


def _shares(count: int, pairs: np.ndarray, where: str) -> np.ndarray:
    """``count`` edges dealt out in proportion to ``pairs``, whole numbers that add up to it."""
    total = int(pairs.sum())
    if count > total:
        raise ConfigError(
            f"{count} edges {where} were asked for, there are {total} pairs",
            hint="a lower degree, another homophily, or more nodes",
        )
    ends = [count * int(end) // total if total else 0 for end in np.cumsum(pairs)]
    return np.diff(ends, prepend=0)


@numba.njit(cache=True, nogil=True)
def _triangle_pairs(key, count, total):
    """``count`` distinct pairs high > low; pair k is (h, k - h(h-1)/2)."""
    high, low = np.empty(count, np.int64), np.empty(count, np.int64)
    bits, size = id_bits(total), np.uint64(total)
    for i in range(count):
        k = np.int64(permute(key, np.uint64(i), size, bits))
        h = np.int64((1 + np.sqrt(1 + 8.0 * k)) / 2)
        while h * (h - 1) // 2 > k:  # the root is only nearly right
            h -= 1
        while (h + 1) * h // 2 <= k:
            h += 1
        high[i], low[i] = h, k - h * (h - 1) // 2
    return high, low


@numba.njit(cache=True, nogil=True)
def _rectangle_pairs(key, count, total, width):
    row, column = np.empty(count, np.int64), np.empty(count, np.int64)
    bits, size = id_bits(total), np.uint64(total)
    for i in range(count):
        k = np.int64(permute(key, np.uint64(i), size, bits))
        row[i], column[i] = k // width, k % width
    return row, column


def grid(height: int, width: int, **rows: Any) -> Graph:
    """Nodes (r, c), numbered r * width + c, each joined with its neighbours up, down, left, right.

    ``rows``: x, y, splits and the like, as in ``from_edges``.
    """
    _check_counts(height=height, width=width, nodes=height * width)
    node = np.arange(height * width).reshape(height, width)
    src = np.concatenate([node[:, :-1].ravel(), node[:-1].ravel()])
    dst = np.concatenate([node[:, 1:].ravel(), node[1:].ravel()])
    return from_edges(src, dst, height * width, undirected=True, **rows)


def path(num_nodes: int, *, directed: bool = True, **rows: Any) -> Graph:
    """0 -> 1 -> ... -> num_nodes-1; both ways unless ``directed``.

    ``rows``: as in ``from_edges``.
    """
    _check_counts(nodes=num_nodes)
    node = np.arange(max(num_nodes, 0))
    return from_edges(node[:-1], node[1:], num_nodes, undirected=not directed, **rows)


def star(num_leaves: int, *, direction: str = "in", **rows: Any) -> Graph:
    """Node 0 and its leaves 1..num_leaves. ``rows``: as in ``from_edges``.

    direction: "in" (leaves point to node 0, so leaves have in-degree 0), "out" or "both".
    """
    if direction not in ("in", "out", "both"):
        raise ConfigError(f"direction must be 'in', 'out' or 'both', had {direction!r}")
    _check_counts(leaves=num_leaves)
    leaf = np.arange(1, num_leaves + 1)
    hub = np.zeros(num_leaves, np.int64)
    src, dst = (hub, leaf) if direction == "out" else (leaf, hub)
    return from_edges(src, dst, num_leaves + 1, undirected=direction == "both", **rows)


def _check_counts(**counts: Any) -> None:
    for name, count in counts.items():
        if count >= _MOST:
            raise ConfigError(f"{count} {name} are more than any memory holds; at most {_MOST - 1}")

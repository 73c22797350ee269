"""The shape of a graph and of its parts: counts and degrees, all that a plan needs to know.

So a plan can be made for a graph that is not there: counts and a distribution of degrees do.

Legend: P rows of one part, H halo rows of one part (read by it, owned by others).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_LEAST_EVENNESS = 1e-3


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many nodes have each degree; degrees ascending. Fractions of nodes are allowed."""

    degrees: tuple[int, ...]
    counts: tuple[float, ...]

    @property
    def evenness(self) -> float:
        """How evenly rows are read, each as often as its degree: 1 when all alike, towards 0 when
        few serve nearly all. A cache of a share f of the rows then answers f / (f + e (1 - f)) of
        the reads: set so at f = 0.1, it holds within some percent from 0.01 to 0.6 for R-MAT.

        What a least-recently-used cache holds is Che's approximation (Che, Tung and Wang, 2002).
        """
        degrees = np.asarray(self.degrees, np.float64)
        counts = np.asarray(self.counts, np.float64)
        reads = float(degrees @ counts)
        if not reads:
            return 1.0
        share = 0.1
        kept, chance = share * counts.sum(), degrees / reads
        if kept >= counts[degrees > 0].sum():
            return _LEAST_EVENNESS
        low, high = 0.0, 100.0  # logarithm of the reads for which a row stays
        for _ in range(60):
            middle = (low + high) / 2
            held = -np.expm1(-chance * np.exp(middle))
            low, high = (middle, high) if counts @ held < kept else (low, middle)
        hits = float((counts * chance) @ held)
        evenness = share * (1 - hits) / (hits * (1 - share))
        return round(min(1.0, max(_LEAST_EVENNESS, evenness)), 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphShape:
    """``num_labelled`` nodes are of the training split."""

    name: str
    num_nodes: int
    num_edges: int
    in_degrees: Histogram
    out_degrees: Histogram
    num_features: int
    feature_dtype: str
    num_classes: int
    num_labelled: int
    edge_features: int = 0
    weighted: bool = False

    @property
    def id_bytes(self) -> int:
        """Of one entry of ``col``."""
        return 4 if self.num_nodes < 2**31 else 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PartShape:
    """One part: ``halo_of[q]`` of its halo rows are owned by part q.

    ``served`` is the hotness of the halo: (rows, edges) points, both ascending from (0, 0): that
    many of the halo's rows, hottest first, serve so many of the part's edges from other parts.
    """

    rows: int
    edges: int
    local_edges: int
    labelled: int
    halo_of: tuple[int, ...]
    served: tuple[tuple[int, int], ...]

    @property
    def halo(self) -> int:
        return sum(self.halo_of)

    @property
    def sources(self) -> int:
        return self.rows + self.halo


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A graph in parts; ``exact`` when counted from a partition, else expected of a random one."""

    method: str
    parts: tuple[PartShape, ...]
    exact: bool

    @property
    def num_parts(self) -> int:
        return len(self.parts)

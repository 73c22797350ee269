"""The shape of a graph and of its parts: counts and degrees, all that a plan needs to know.

So a plan can be made for a graph that is not there: counts and a distribution of degrees do.

Legend: P rows of one part, H halo rows of one part (read by it, owned by others).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tiergnn import frozen
from tiergnn.errors import ConfigError, GraphError, unknown
from tiergnn.frozen import check_counts
from tiergnn.graph.halo_counts import count_parts, degrees_of
from tiergnn.graph.hot import HotRows, expected_hot, hot_rows
from tiergnn.graph.random_parts import halo_curve

if TYPE_CHECKING:
    from tiergnn.graph.csr import Graph
    from tiergnn.graph.partition import Partition

FORMAT = "tiergnn-shape"
VERSION = 1
_LEAST_EVENNESS = 1e-3
_TOLERANCE = 1e-3  # of a histogram's sums: expected ones are rounded


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many nodes have each degree; degrees ascending. Fractions of nodes are allowed."""

    degrees: tuple[int, ...]
    counts: tuple[float, ...]

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in pairwise((-1, *self.degrees)))
        sound = all(math.isfinite(count) and count >= 0 for count in self.counts)
        if not rising or not sound or len(self.degrees) != len(self.counts):
            raise ConfigError(
                "a histogram needs ascending degrees from 0 on, and as many counts of 0 or more"
            )

    @classmethod
    def of(cls, degrees: np.ndarray, counts: np.ndarray) -> Histogram:
        """From degrees in any order, equal ones added up; those that nothing has are left out."""
        merged, place = np.unique(np.asarray(degrees, np.int64), return_inverse=True)
        total = np.bincount(place, weights=counts, minlength=merged.size)
        held = total > 0
        return cls(tuple(merged[held].tolist()), tuple(total[held].tolist()))

    @property
    def num_nodes(self) -> float:
        return math.fsum(self.counts)

    @property
    def num_edges(self) -> float:
        return math.fsum(d * n for d, n in zip(self.degrees, self.counts, strict=True))

    @property
    def evenness(self) -> float:
        """How evenly rows are read, each as often as its degree: 1 when all alike, towards 0 when
        few serve nearly all. A cache of a share f of the rows then answers f / (f + e (1 - f)) of
        the reads: set so at f = 0.1, it holds within some percent from 0.01 to 0.6 for R-MAT.

        What a least-recently-used cache holds is Che's approximation (Che, Tung and Wang, 2002).
        """
        return _evenness(self)


@lru_cache(maxsize=64)  # every schedule of a graph asks for it
def _evenness(histogram: Histogram) -> float:
    degrees = np.asarray(histogram.degrees, np.float64)
    counts = np.asarray(histogram.counts, np.float64)
    reads = float(degrees @ counts)
    if not reads:
        return 1.0
    share = 0.1
    kept, chance = share * counts.sum(), degrees / reads
    if kept >= counts[degrees > 0].sum():
        return _LEAST_EVENNESS
    low, high = -50.0, 100.0  # logarithm of the reads for which a row stays
    held = chance
    for _ in range(60):
        middle = (low + high) / 2
        held = -np.expm1(-chance * np.exp(middle))
        low, high = (middle, high) if counts @ held < kept else (low, middle)
    hits = float((counts * chance) @ held)
    evenness = share * (1 - hits) / (hits * (1 - share))
    return round(min(1.0, max(_LEAST_EVENNESS, evenness)), 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphShape:
    """A graph by its counts. ``num_labelled`` nodes, those of the training split, make the loss.

    ``self_loops`` of the edges are loops, thought of as spread evenly over the nodes.
    Raises ConfigError when a histogram and the counts contradict each other.
    """

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
    self_loops: int = 0

    def __post_init__(self) -> None:
        check_counts(
            self, "num_nodes", "num_edges", "num_features", "num_classes", "edge_features",
            "self_loops",
        )  # fmt: skip
        for which in ("in_degrees", "out_degrees"):
            degrees: Histogram = getattr(self, which)
            for what, found in (("nodes", degrees.num_nodes), ("edges", degrees.num_edges)):
                wanted = getattr(self, f"num_{what}")
                if abs(found - wanted) > _TOLERANCE * wanted + 0.5:
                    raise ConfigError(
                        f"{which} hold {found:.0f} {what}, the graph has {wanted}",
                        culprit=self.name,
                    )
        if not 0 <= self.num_labelled <= self.num_nodes:
            raise ConfigError(
                f"{self.num_labelled} of {self.num_nodes} nodes cannot be labelled",
                culprit=self.name,
            )

    @property
    def id_bytes(self) -> int:
        """Of one entry of ``col``."""
        return 4 if self.num_nodes <= 2**31 else 8

    def save(self, path: str | Path) -> None:
        """Raises StoreError when the file cannot be written."""
        frozen.save(path, FORMAT, VERSION, self)

    @classmethod
    def load(cls, path: str | Path) -> GraphShape:
        """Raises StoreError for a file that cannot be read, ConfigError for anything else in it."""
        return frozen.load(cls, path, FORMAT, VERSION)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartShape:
    """One part: ``halo_of[q]`` of its halo rows are owned by part q, ``loops`` of its edges go
    from a row to itself.

    ``served`` is the hotness of the halo: (rows, edges) points, both ascending from (0, 0): that
    many of the halo's rows, hottest first, serve so many of the part's edges from other parts.
    Between two points rows serve alike: there the curve is a straight line.
    """

    rows: int
    edges: int
    local_edges: int
    labelled: int
    halo_of: tuple[int, ...]
    served: tuple[tuple[int, int], ...]
    loops: int = 0

    def __post_init__(self) -> None:
        check_counts(self, "rows", "edges", "local_edges", "labelled", "loops", "halo_of")
        for few, many in (("local_edges", "edges"), ("loops", "edges"), ("labelled", "rows")):
            most, found = getattr(self, many), getattr(self, few)
            if found > most:
                raise ConfigError(f"{few}: wanted at most the {most} {many} of a part, had {found}")
        rising = pairwise(((0, 0), *self.served))
        if not self.served or any(a[0] > b[0] or a[1] > b[1] for a, b in rising):
            raise ConfigError(f"served wants ascending (rows, edges), had {self.served[:4]} ...")

    @property
    def halo(self) -> int:
        return sum(self.halo_of)

    @property
    def sources(self) -> int:
        return self.rows + self.halo

    def edges_served(self, rows: float) -> float:
        """Edges that the ``rows`` hottest rows of the halo serve, at most those from other parts:
        where these are expected, they are fewer than the curve's by rounding."""
        at, edges = np.array(self.served, np.float64).T
        return min(float(np.interp(rows, at, edges)), float(self.edges - self.local_edges))


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A graph in parts; ``exact`` when counted from a partition, else expected of a random one.

    ``leaving`` are the parts of the graph with its edges turned round: of the edges that leave a
    part's rows, and what those reach. None: as ``parts``, which an undirected graph's are.
    ``hot`` are its hot rows, where they were counted.
    """

    method: str
    parts: tuple[PartShape, ...]
    exact: bool
    leaving: tuple[PartShape, ...] | None = None
    hot: HotRows | None = None

    def __post_init__(self) -> None:
        """Raises ConfigError where parts, or what is told of them, are of different numbers."""
        if not self.parts:
            raise ConfigError("parts: wanted 1 or more, had none")
        leaving = self.parts if self.leaving is None else self.leaving
        kinds = {"parts": self.parts, "leaving": leaving}
        each = {"leaving": leaving} | {
            f"{kind}[{p}].halo_of": part.halo_of
            for kind, parts in kinds.items()
            for p, part in enumerate(parts)
        }
        if self.hot is not None:
            each |= {"hot.owned": self.hot.owned, "hot.read": self.hot.read}
        for what, found in each.items():
            if len(found) != len(self.parts):
                raise ConfigError(
                    f"{what}: wanted one for each of {len(self.parts)} parts, had {len(found)}"
                )
        for kind, parts in kinds.items():
            for p, part in enumerate(parts):
                if part.halo_of[p]:
                    raise ConfigError(
                        f"{kind}[{p}].halo_of: wanted no rows of its own, had {part.halo_of[p]}"
                    )
                if part.rows != self.parts[p].rows:
                    raise ConfigError(
                        f"{kind}[{p}].rows: wanted {self.parts[p].rows} as in parts, had "
                        f"{part.rows}"
                    )

    @property
    def num_parts(self) -> int:
        return len(self.parts)

    def part(self, number: int, *, leaving: bool) -> PartShape:
        """A part by its in-edges, or by the edges that leave its rows."""
        parts = self.leaving if leaving and self.leaving is not None else self.parts
        return parts[number]

    def hot_rows(self, frac: float, shape: GraphShape) -> HotRows:
        """Its hot rows of so many: counted, or else as of random parts of a graph like this."""
        if self.hot is not None and self.hot.frac == frac:
            return self.hot
        return expected_hot(shape, self, frac)


def shape_of(graph: Graph, split: str | np.ndarray = "train", *, name: str = "") -> GraphShape:
    """The counts and degrees of a graph: one pass over its edges, one number a node.

    split: the nodes that make the loss, by the name of a stored split (NAME or NAME.0) or by
    their ids; those without a known label do not count. A graph that stores no split gives all
    its labelled nodes. Raises ConfigError for a split that the graph does not have.
    """
    out_degree, loops = degrees_of(graph.rowptr, graph.col)
    return GraphShape(
        name=name or (graph.path.name if graph.path else "graph"),
        num_nodes=graph.num_nodes,
        num_edges=graph.num_edges,
        in_degrees=_histogram(graph.in_degree),
        out_degrees=_histogram(out_degree),
        num_features=graph.x.width if graph.x else 0,
        feature_dtype=graph.x.dtype if graph.x else "float32",
        num_classes=graph.num_classes or _targets(graph),
        num_labelled=_labelled(graph, split).size,
        edge_features=graph.edge_attr.width if graph.edge_attr else 0,
        weighted=graph.edge_weight is not None,
        self_loops=int(loops),
    )


def layout_of(
    partition: Partition,
    graph: Graph,
    split: str | np.ndarray = "train",
    *,
    hot_frac: float = 0.0,
) -> Layout:
    """Every count of every part, exact: two passes over the edges, one number a node and thread;
    with ``hot_frac`` of so many hot rows as well.

    ``served`` has a point for each hotness below 256, then at least 16 each time it doubles.
    Raises GraphError for the partition of another graph, ConfigError for an unknown split.
    """
    if partition.part_of.size != graph.num_nodes:
        raise GraphError(
            f"the partition is of {partition.part_of.size} nodes, the graph has {graph.num_nodes}"
        )
    num_parts = partition.num_parts
    local, loops, halo_of, curves = count_parts(
        graph.rowptr, graph.col, partition.part_of, partition.order, partition.part_ptr
    )
    labelled = np.bincount(partition.part_of[_labelled(graph, split)], minlength=num_parts)
    edges = partition.num_edges
    return Layout(
        method=partition.method,
        exact=True,
        hot=hot_rows(partition, hot_frac) if hot_frac else None,
        parts=tuple(
            PartShape(
                rows=int(partition.num_nodes[p]),
                edges=int(edges[p]),
                local_edges=int(local[p]),
                loops=int(loops[p]),
                labelled=int(labelled[p]),
                halo_of=tuple(halo_of[p].tolist()),
                served=curves[p],
            )
            for p in range(num_parts)
        ),
    )


def expected_layout(shape: GraphShape, num_parts: int) -> Layout:
    """What equal parts drawn at random would have on average, from degrees alone.

    A source with d edges to others is read by a given other part with chance 1 - (1 - q)^d, where
    q = P / (V - 1) is the chance of each of its destinations to be there. Edges that repeat make
    this an upper bound. Raises ConfigError for less than one part.
    """
    if num_parts < 1:
        raise ConfigError(f"a layout needs 1 part or more, had {num_parts}")
    rows, edges = _deal(shape.num_nodes, num_parts), _deal(shape.num_edges, num_parts)
    labelled, loops = (_deal(n, num_parts) for n in (shape.num_labelled, shape.self_loops))
    degrees = np.array(shape.out_degrees.degrees, np.float64)
    counts = np.array(shape.out_degrees.counts, np.float64)
    curve = halo_curve(degrees, counts, shape.num_nodes, num_parts, shape.self_loops)
    halo, cut = curve[-1]
    base = PartShape(rows=0, edges=0, local_edges=0, labelled=0, halo_of=(), served=curve)
    owners = _deal(halo, num_parts - 1) if num_parts > 1 else []
    return Layout(
        method="random",
        exact=False,
        parts=tuple(
            replace(
                base,
                rows=rows[p],
                edges=edges[p],
                local_edges=max(0, edges[p] - cut),
                loops=loops[p],
                labelled=labelled[p],
                halo_of=(*owners[:p], 0, *owners[p:]),
            )
            for p in range(num_parts)
        ),
    )


def _deal(count: int, ways: int) -> list[int]:
    """``count`` in whole shares that differ by one at most, the larger ones first."""
    return [count // ways + (i < count % ways) for i in range(ways)]


def _histogram(degree: np.ndarray) -> Histogram:
    degrees, counts = np.unique(degree, return_counts=True)
    return Histogram(tuple(degrees.tolist()), tuple(counts.astype(np.float64).tolist()))


def _labelled(graph: Graph, split: str | np.ndarray) -> np.ndarray:
    """Ids of the nodes of a split that have a known label, if the graph has labels at all."""
    if isinstance(split, np.ndarray):
        ids = split
    elif not graph.splits:
        ids = np.arange(graph.num_nodes if graph.y is not None else 0)
    else:
        named = [name for name in (split, f"{split}.0") if name in graph.splits]
        if not named:
            raise unknown("split", split, graph.splits)
        ids = graph.splits[named[0]]
    if graph.y is None:
        return ids
    y = graph.y[ids]
    known: np.ndarray = ~np.isnan(y) if y.dtype.kind == "f" else y >= 0
    return ids[known if known.ndim == 1 else known.any(axis=1)]


def _targets(graph: Graph) -> int:
    return graph.y.shape[1] if graph.y is not None and graph.task == "real" else 0

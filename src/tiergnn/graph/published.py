"""Graphs that papers measure on, as shapes: counts with their sources, degrees of a model.

The degrees are those of an R-MAT graph of the same counts, which has a power law but is not the
graph itself: for a graph at hand, ``shape.shape_of`` counts the true ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from tiergnn.errors import unknown
from tiergnn.graph.distributions import rmat_shape
from tiergnn.graph.shape import GraphShape

_GRAPH500 = (0.57, 0.19, 0.19)
_LEO = "LEO's table of graphs, rounded as printed"
_OGB = "Open Graph Benchmark, node property prediction"


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Counts of a published graph; ``num_edges`` as trained on (both ways where undirected).

    ``counts_from`` and ``labels_from`` say where the figures come from; ``quarters`` are the
    chances a, b, c of the R-MAT graph that lends its degrees, a choice of ours.
    """

    num_nodes: int
    num_edges: int
    num_features: int
    num_classes: int
    num_labelled: int
    counts_from: str
    labels_from: str
    quarters: tuple[float, float, float] = _GRAPH500


SHAPES: Mapping[str, Published] = MappingProxyType(
    {
        "reddit": Published(
            num_nodes=232_965,
            num_edges=114_615_892,
            num_features=602,
            num_classes=41,
            num_labelled=153_431,
            counts_from="GraphSAGE's Reddit posts, as PyG and DGL distribute them",
            labels_from="the training split that comes with it",
        ),
        "enwiki-2013": Published(
            num_nodes=4_200_000,
            num_edges=202_000_000,
            num_features=300,
            num_classes=12,
            num_labelled=420_000,
            counts_from=_LEO,
            labels_from="a tenth of the nodes, assumed: labels are random in LEO",
        ),
        "it-2004": Published(
            num_nodes=41_000_000,
            num_edges=1_150_000_000,
            num_features=256,
            num_classes=64,
            num_labelled=4_100_000,
            counts_from=_LEO,
            labels_from="a tenth of the nodes, assumed: labels are random in LEO",
        ),
        "papers100M": Published(
            num_nodes=111_059_956,
            num_edges=1_615_685_872,
            num_features=128,
            num_classes=172,
            num_labelled=1_207_179,
            counts_from=_OGB + ", directed citations",
            labels_from=_OGB + ", training split",
        ),
        "products": Published(
            num_nodes=2_449_029,
            num_edges=123_718_280,
            num_features=100,
            num_classes=47,
            num_labelled=196_615,
            counts_from=_OGB + ", both directions",
            labels_from=_OGB + ", training split",
            quarters=(0.45, 0.22, 0.22),
        ),
        "com-orkut": Published(
            num_nodes=3_072_441,
            num_edges=234_370_166,
            num_features=128,
            num_classes=32,
            num_labelled=307_244,
            counts_from="SNAP's com-Orkut, 117,185,083 friendships both ways; widths of LEO",
            labels_from="a tenth of the nodes, assumed: labels are random in LEO",
        ),
        "MAG240M": Published(
            num_nodes=244_000_000,
            num_edges=1_750_000_000,
            num_features=768,
            num_classes=153,
            num_labelled=1_112_392,
            counts_from=_LEO + ": papers, authors and institutions as nodes of one kind",
            labels_from="OGB-LSC, training split",
        ),
    }
)


@lru_cache(maxsize=len(SHAPES))
def published_shape(name: str) -> GraphShape:
    """The shape of one of ``SHAPES``. Raises ConfigError listing them for any other name."""
    if name not in SHAPES:
        raise unknown("published graph", name, SHAPES)
    known = SHAPES[name]
    a, b, c = known.quarters
    return rmat_shape(
        known.num_nodes,
        known.num_edges,
        a=a,
        b=b,
        c=c,
        num_features=known.num_features,
        num_classes=known.num_classes,
        num_labelled=known.num_labelled,
        name=name,
    )

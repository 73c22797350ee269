"""What ``leo_modelled`` compares with: the paper's claims, and our first proofs on one H200."""

from __future__ import annotations

from typing import Any

# Shares of all rows that LEO's tables imply for its device and host caches, by machine.
SHARES: dict[str, dict[str, tuple[float, float]]] = {
    "reddit": {"A": (0.64, 0.16), "B": (0.49, 0.20)},
    "enwiki-2013": {"A": (0.61, 0.14), "B": (0.47, 0.19)},
    "it-2004": {"A": (0.25, 0.07), "B": (0.20, 0.10)},
    "papers100M": {"A": (0.22, 0.09), "B": (0.20, 0.10)},
    "products": {"A": (0.68, 0.14), "B": (0.49, 0.19)},
    "com-orkut": {"A": (0.68, 0.12), "B": (0.49, 0.20)},
    "MAG240M": {"A": (0.20, 0.10), "B": (0.20, 0.10)},  # not told: as papers100M on B
}

# Why the model deviates, from its timelines.
WHY = {
    "DGL (uva) / leo": (
        "uva is bound by the link to the host in all 28 plans: rank 0's h2d lane is busy for "
        "{h2d:.0%} of the epoch or more (the paper: 85% is host transfer). In the model every "
        "edge's row crosses; on Reddit's shape an H200 read a third less, since a cache has "
        "the hot rows (below), and Reddit alone lifts the mean from {uva_but_reddit:.0f} to "
        "{uva:.0f}. The rest is leo, which runs at our kernels' rates and is bound by them on "
        "B: a slower kernel changes leo alone, so the paper's ratio is smaller where its "
        "kernels take longer."
    ),
    "DGL (uva) / leo, GCN": (
        "As above; the largest ratios, {uva_reddit_b:.0f} and {uva_orkut_b:.0f}, are Reddit's "
        "and orkut's on B, where leo is bound by compute."
    ),
    "DGL (uva) / leo, GIN": (
        "As above, and the first layer gathers the features themselves (100 to 768 columns): "
        "uva reads them for every edge, leo has their replicas filled once and reads what "
        "these leave. The paper's GIN gains less than its GCN: its leo must spend more "
        "outside of transfers, in wide layers that we do not slow down."
    ),
    "DGL (uva) / leo on A": (
        "uva is bound by h2d, leo by peers in 13 of 14: bytes over rates. That two devices "
        "share an uplink is our assumption: with one each it is less (below). The nearest "
        "graphs, MAG240M and papers100M, have {uva_near[0]:.1f} to {uva_near[1]:.1f}."
    ),
    "MGG / leo": (
        "mgg is bound by peers in 25 of 28, leo by peers in 13 (on A) and compute in 13. The "
        "machines pull apart: {mgg_a:.0f} on A, where remote reads share PCIe, {mgg_b:.1f} on "
        "B. That narrow rows are read over NVSwitch at three quarters of the bulk rate is "
        "assumed; at a quarter of that B has more (below), so the paper's 3.25 lies between "
        "the two assumptions for B, and A raises the mean."
    ),
    "MGG / leo, GCN": ("As above."),
    "MGG / leo, GIN": (
        "As above; the {mgg_most:.0f} of Reddit on A: the caches' 80% of all rows hold every "
        "boundary row (68%), so leo reads nothing remote, where mgg reads 88% of all edges' "
        "rows over PCIe."
    ),
    "device cache of 20% / none": (
        "Peers bind mgg in 25 plans, and 20% of the rows leave 0 to 6% of the remote reads on "
        "R-MAT's degrees, 20% on products' (counted on generated graphs at 25%: 3.9, 18.5 and "
        "2.2%). The paper's 25% and 15% leave 5 to 14%: its graphs are less skewed in what a "
        "part reads. Products, the least skewed here, has {products[0]:.1f} to "
        "{products[1]:.1f}."
    ),
    "host cache of 15% besides": (
        "On B it loses, {host_b[0]:.2f} to {host_b[1]:.2f}, wherever boundary rows are left "
        "for it: they are written to the host (d2h) and come back (h2d) at each layer over "
        "PCIe, 13 times slower than NVSwitch, and these lanes then bind. On A it gains where "
        "the device's 20% leave much (up to {host_a[1]:.1f}, on Reddit) and costs up to "
        "{host_cost:.0%} elsewhere. LEO's refresh of host rows must be hidden or rarer than "
        "once a layer."
    ),
    "MGG with cache / MGG (GIN)": (
        "Without a pipeline all is on the compute lane, most of it remote reads (the paper: "
        "over 95% of MGG's time is remote aggregation), and the cache takes nearly all of "
        "those away: {cached_a[0]:.1f} to {cached_a[1]:.0f} on A, {cached_b[0]:.1f} to "
        "{cached_b[1]:.1f} on B. On products on B it loses: its host cache goes over PCIe."
    ),
    "MGG with both / MGG (GIN)": (
        "As the cache alone: what the pipeline hides beside remote reads is little (at most "
        "{piped:.2f}, on B). The paper's 1.40 from the pipeline includes how neighbour groups "
        "are mapped to warps, inside one kernel, which is not modelled."
    ),
}

PAPER: list[dict[str, Any]] = [
    {"what": "DGL (uva) / leo", "paper": 7.50, "over": "uva", "under": "leo",
     "why": WHY["DGL (uva) / leo"]},
    {"what": "DGL (uva) / leo, GCN", "paper": 10.0, "over": "uva", "under": "leo",
     "models": ("GCN",), "why": WHY["DGL (uva) / leo, GCN"]},
    {"what": "DGL (uva) / leo, GIN", "paper": 5.0, "over": "uva", "under": "leo",
     "models": ("GIN",), "why": WHY["DGL (uva) / leo, GIN"]},
    {"what": "DGL (uva) / leo on A", "paper": 5.0, "over": "uva", "under": "leo",
     "machines": ("A",), "why": WHY["DGL (uva) / leo on A"]},
    {"what": "unified memory / leo", "paper": 11.90, "over": "leo, managed", "under": "leo",
     "why": ""},
    {"what": "MGG / leo", "paper": 3.25, "over": "mgg", "under": "leo", "why": WHY["MGG / leo"]},
    {"what": "MGG / leo, GCN", "paper": 2.54, "over": "mgg", "under": "leo", "models": ("GCN",),
     "why": WHY["MGG / leo, GCN"]},
    {"what": "MGG / leo, GIN", "paper": 3.95, "over": "mgg", "under": "leo", "models": ("GIN",),
     "why": WHY["MGG / leo, GIN"]},
    {"what": "device cache of 20% / none", "paper": 3.12, "over": "mgg", "under": "leo, 20%",
     "why": WHY["device cache of 20% / none"]},
    {"what": "host cache of 15% besides", "paper": 1.22, "over": "leo, 20%",
     "under": "leo, 20% and 15%", "why": WHY["host cache of 15% besides"]},
    {"what": "asynchronous refresh / synchronous", "paper": 1.38, "over": "leo, synchronous",
     "under": "leo", "why": ""},
    {"what": "MGG with cache / MGG (GIN)", "paper": 1.83, "over": "mgg, in turn",
     "under": "leo, in turn", "models": ("GIN",), "why": WHY["MGG with cache / MGG (GIN)"]},
    {"what": "MGG with pipeline / MGG (GIN)", "paper": 1.40, "over": "mgg, in turn",
     "under": "mgg", "models": ("GIN",), "why": ""},
    {"what": "MGG with both / MGG (GIN)", "paper": 2.56, "over": "mgg, in turn", "under": "leo",
     "models": ("GIN",), "why": WHY["MGG with both / MGG (GIN)"]},
]  # fmt: skip

EXPLAINED = (
    "The paper gives neither its partitions' boundary rows nor whether devices share uplinks, and "
    "its systems' kernels are not ours: all three strategies here run on our kernels' rates, on "
    "R-MAT graphs of the published counts. Of the cache shares those of MAG240M are a guess."
)
PROOFS_EXPLAINED = (
    "The rate of rows read in place was set by the products column of uva, so that column is no "
    "prediction; all others are. Over 30%: on Reddit's shape kernels read a third less than every "
    "edge's row over the link, since hot rows stay in a cache of the card, which the model leaves "
    "out. In eight slices the first and last copies overlap with nothing and the prototype took "
    "about as long as its copies one after the other (orkut: 3.1 GB each way, 57 + 57 ms); the "
    "model overlaps all but one slice."
)

_FORMS = ("uva", "mgg", "25%", "40%", "pulled")


def _ms(*values: float) -> dict[str, float]:
    return dict(zip(_FORMS, values, strict=True))


# Counted and measured on an H200 in November 2026: nodes, edges, R-MAT quarters; remote edges that
# a cache of so many of all rows leaves; milliseconds by columns.
PROOF: dict[str, dict[str, Any]] = {
    "Reddit": {
        "graph": (232_965, 114_615_892, (0.57, 0.19, 0.19)),
        "left": {0.25: 0.039, 0.40: 0.012},
        "ms": {16: _ms(15.2, 12.1, 1.09, 0.53, 0.38), 64: _ms(45.2, 40.1, 3.07, 1.62, 1.19)},
    },
    "products": {
        "graph": (2_449_029, 123_718_280, (0.45, 0.22, 0.22)),
        "left": {0.25: 0.185, 0.40: 0.078},
        "ms": {16: _ms(24.0, 21.4, 5.29, 3.52, 2.66), 64: _ms(77.7, 68.8, 16.5, 11.2, 9.21)},
    },
    "orkut": {
        "graph": (3_072_441, 234_370_166, (0.57, 0.19, 0.19)),
        "left": {0.25: 0.022, 0.40: 0.0},
        "ms": {16: _ms(39.6, 36.8, 2.78, 2.66, 2.32), 64: _ms(132.0, 116.0, 7.92, 7.63, 7.26)},
    },
    "papers": {"graph": (111_059_956, 1_615_685_872, (0.57, 0.19, 0.19)), "left": {}, "ms": {}},
}

STAGED: dict[str, dict[str, Any]] = {
    "products": {"width": 256, "ms": {"parts": 537.0, "8": 82.0, "16": 61.0, "32": 60.0}},
    "orkut": {"width": 256, "ms": {"parts": 404.0, "8": 119.0, "16": 72.0, "32": 73.0}},
    "papers, 128 bfloat16": {
        "width": 128, "dtype": "bfloat16", "like": "papers", "ms": {"8": 870.0},
    },
}  # fmt: skip

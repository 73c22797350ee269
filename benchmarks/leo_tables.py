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

PAPER: list[dict[str, Any]] = [
    {"what": "DGL (uva) / leo", "paper": 7.50, "over": "uva", "under": "leo", "why": ""},
    {"what": "DGL (uva) / leo, GCN", "paper": 10.0, "over": "uva", "under": "leo",
     "models": ("GCN",), "why": ""},
    {"what": "DGL (uva) / leo, GIN", "paper": 5.0, "over": "uva", "under": "leo",
     "models": ("GIN",), "why": ""},
    {"what": "DGL (uva) / leo on A", "paper": 5.0, "over": "uva", "under": "leo",
     "machines": ("A",), "why": ""},
    {"what": "unified memory / leo", "paper": 11.90, "over": "leo, managed", "under": "leo",
     "why": ""},
    {"what": "MGG / leo", "paper": 3.25, "over": "mgg", "under": "leo", "why": ""},
    {"what": "MGG / leo, GCN", "paper": 2.54, "over": "mgg", "under": "leo", "models": ("GCN",),
     "why": ""},
    {"what": "MGG / leo, GIN", "paper": 3.95, "over": "mgg", "under": "leo", "models": ("GIN",),
     "why": ""},
    {"what": "device cache of 20% / none", "paper": 3.12, "over": "mgg", "under": "leo, 20%",
     "why": ""},
    {"what": "host cache of 15% besides", "paper": 1.22, "over": "leo, 20%",
     "under": "leo, 20% and 15%", "why": ""},
    {"what": "asynchronous refresh / synchronous", "paper": 1.38, "over": "leo, synchronous",
     "under": "leo", "why": ""},
    {"what": "MGG with cache / MGG (GIN)", "paper": 1.83, "over": "mgg, in turn",
     "under": "leo, in turn", "models": ("GIN",), "why": ""},
    {"what": "MGG with pipeline / MGG (GIN)", "paper": 1.40, "over": "mgg, in turn",
     "under": "mgg", "models": ("GIN",), "why": ""},
    {"what": "MGG with both / MGG (GIN)", "paper": 2.56, "over": "mgg, in turn", "under": "leo",
     "models": ("GIN",), "why": ""},
]  # fmt: skip

EXPLAINED = ""

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

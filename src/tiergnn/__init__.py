"""tiergnn: train graph neural networks on graphs that do not fit, exactly.

The names below load when first used, so that ``import tiergnn`` takes no time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tiergnn.compiled import ensure_place
from tiergnn.errors import (
    ConfigError,
    GraphError,
    Interrupted,
    PlanError,
    RankError,
    StoreError,
    TiergnnError,
)
from tiergnn.version import __version__

if TYPE_CHECKING:
    from tiergnn import nn
    from tiergnn.api import evaluate, plan, predict, resume, train
    from tiergnn.graph import generate
    from tiergnn.graph.csr import Graph
    from tiergnn.graph.ingest import ingest
    from tiergnn.graph.partition import partition
    from tiergnn.models import zoo
    from tiergnn.models.trace import trace
    from tiergnn.training.run import Run

# Public name -> where it lives: a module, or a module and a name in it.
_LAZY = {
    "Graph": "tiergnn.graph.csr:Graph",
    "Run": "tiergnn.training.run:Run",
    "evaluate": "tiergnn.api:evaluate",
    "generate": "tiergnn.graph.generate",
    "ingest": "tiergnn.graph.ingest:ingest",
    "nn": "tiergnn.nn",
    "partition": "tiergnn.graph.partition:partition",
    "plan": "tiergnn.api:plan",
    "predict": "tiergnn.api:predict",
    "resume": "tiergnn.api:resume",
    "trace": "tiergnn.models.trace:trace",
    "train": "tiergnn.api:train",
    "zoo": "tiergnn.models.zoo",
}

__all__ = [
    "ConfigError",
    "Graph",
    "GraphError",
    "Interrupted",
    "PlanError",
    "RankError",
    "Run",
    "StoreError",
    "TiergnnError",
    "__version__",
    "evaluate",
    "generate",
    "ingest",
    "nn",
    "partition",
    "plan",
    "predict",
    "resume",
    "trace",
    "train",
    "zoo",
]


ensure_place()


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'tiergnn' has no attribute {name!r}")
    module, _, attribute = _LAZY[name].partition(":")
    value = import_module(module)
    if attribute:
        value = getattr(value, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

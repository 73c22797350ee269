"""PyG's convolutions on tiergnn's kernels: see ``tiergnn.models.layers``."""

from __future__ import annotations

from tiergnn.models.layers import (
    APPNP,
    GATConv,
    GATv2Conv,
    GCNConv,
    GINConv,
    Linear,
    SAGEConv,
    SGConv,
)

__all__ = ["APPNP", "GATConv", "GATv2Conv", "GCNConv", "GINConv", "Linear", "SAGEConv", "SGConv"]

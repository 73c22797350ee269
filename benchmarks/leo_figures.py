"""The figures that the page of ``leo_modelled`` explains deviations with, from its own epochs."""

from __future__ import annotations

from math import exp, log
from statistics import fmean
from typing import Any


def figures(epochs: list[dict[str, Any]]) -> dict[str, Any]:
    """By the names that the explanations (``leo_tables.WHY``) ask for."""

    def ratios(over: str, under: str, **only: str) -> list[float]:
        """Of the epochs with these graph, machine and model, ascending."""
        return sorted(
            row[over]["seconds"] / row[under]["seconds"]
            for row in epochs
            if all(row[key] == value for key, value in only.items())
        )

    def mean(values: list[float]) -> float:
        return exp(fmean(map(log, values)))

    def ends(values: list[float]) -> tuple[float, float]:
        return min(values), max(values)

    uva = {graph: ratios("uva", "leo", graph=graph) for graph in {row["graph"] for row in epochs}}
    near = [
        r for g in ("MAG240M", "papers100M") for r in ratios("uva", "leo", graph=g, machine="A")
    ]
    host_a = ratios("leo, 20%", "leo, 20% and 15%", machine="A")
    host_b = [r for r in ratios("leo, 20%", "leo, 20% and 15%", machine="B") if r < 0.995]
    cached = {
        machine: ends(ratios("mgg, in turn", "leo, in turn", machine=machine, model="GIN"))
        for machine in "AB"
    }
    return {
        "h2d": min(row["uva"]["busy"]["h2d"] for row in epochs),
        "uva": mean([r for found in uva.values() for r in found]),
        "uva_but_reddit": mean([r for g, found in uva.items() if g != "reddit" for r in found]),
        "uva_reddit_b": ratios("uva", "leo", graph="reddit", machine="B", model="GCN")[0],
        "uva_orkut_b": ratios("uva", "leo", graph="com-orkut", machine="B", model="GCN")[0],
        "uva_near": ends(near),
        "mgg_a": mean(ratios("mgg", "leo", machine="A")),
        "mgg_b": mean(ratios("mgg", "leo", machine="B")),
        "mgg_most": ratios("mgg", "leo", graph="reddit", machine="A")[-1],
        "products": ends(ratios("mgg", "leo, 20%", graph="products")),
        "host_a": ends(host_a),
        "host_cost": 1 - min(host_a),
        "host_b": ends(host_b),
        "piped": ratios("leo, in turn", "leo", model="GIN")[-1],
        "cached_a": cached["A"],
        "cached_b": cached["B"],
    }

"""What planning an exchange is predicted to save against peer-to-peer, by machine and graph.

    python benchmarks/exchange.py
Writes results/exchange-modelled.json and .md. Every second is *modelled* by the published rates of
wires; no exchange was timed. Only the planning itself is measured. Shapes of papers are in 8 parts
drawn at random, classes expected of their degrees; graphs of TIERGNN_DATA are really partitioned.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from provenance import DATA, RESULTS, provenance, sentence
from tiergnn.graph.boundary import Demand, boundary_of, expected_demands
from tiergnn.graph.csr import from_edges
from tiergnn.graph.partition import partition
from tiergnn.graph.published import published_shape
from tiergnn.hardware.topologies import TOPOLOGIES, topology
from tiergnn.planner.exchange import plan_exchange
from tiergnn.schedule.exchange_check import check_exchange

PUBLISHED = ("reddit", "products", "com-orkut")
REAL = ("amazon_photo", "snap_email_enron", "snap_ego_twitter_und")
WIDTHS = (64, 1024)  # bytes of a row: 16 and 256 columns of float32
RANKS = 8


def main() -> None:
    record: dict[str, Any] = provenance()
    plan_exchange(topology("dgx1"), expected_demands(published_shape("reddit"), RANKS), 64)
    record["cells"] = [
        cell(graph, method, demands, name, row_bytes)
        for graph, method, demands in graphs()
        for name in TOPOLOGIES
        for row_bytes in WIDTHS
    ]
    record["million"] = million_rows()
    (RESULTS / "exchange-modelled.json").write_text(json.dumps(record, indent=1) + "\n")
    text = page(record)
    (RESULTS / "exchange-modelled.md").write_text(text)
    print(text)


def graphs() -> Iterator[tuple[str, str, tuple[Demand, ...]]]:
    for name in PUBLISHED:
        yield name, "random, expected", expected_demands(published_shape(name), RANKS)
    for name in REAL:
        if (DATA / name).exists():
            edges = np.load(DATA / name / "edge_index.npz")["edge_index"]
            graph = from_edges(edges[0], edges[1], int(edges.max()) + 1)
            for method in ("block", "metis"):
                yield name, method, boundary_of(partition(graph, RANKS, method)).demands


def cell(
    graph: str, method: str, demands: tuple[Demand, ...], name: str, row_bytes: int
) -> dict[str, Any]:
    start = time.perf_counter()
    plan = plan_exchange(topology(name), demands, row_bytes)
    planning_s = time.perf_counter() - start
    check_exchange(plan)
    rows = sum(need.rows for need in demands)
    return {
        "graph": graph,
        "parts": method,
        "topology": name,
        "row_bytes": row_bytes,
        "classes": len(demands),
        "boundary_rows": rows,
        "readers_a_row": sum(need.rows * len(need.readers) for need in demands) / max(1, rows),
        "method": plan.method,
        "stages": plan.num_stages,
        "relayed_frac": plan.relayed_rows / max(1, plan.num_rows),
        "direct_s": plan.direct_seconds,
        "seconds": plan.seconds,
        "saved_frac": plan.saved_frac,
        "planning_s": planning_s,
        "loads": [
            {"stage": load.stage, "way": load.way, "bytes": load.num_bytes, "s": load.seconds}
            for load in plan.loads
            if graph == "products" and row_bytes == WIDTHS[0]  # one graph's, by link
        ],
    }


def million_rows() -> dict[str, Any]:
    """Seconds from a partition to a plan, where over a million rows are read by others."""
    draws = np.random.default_rng(0)
    src, dst = draws.integers(1_300_000, size=(2, 3_000_000))
    graph = from_edges(src, dst, 1_300_000)
    parts = partition(graph, RANKS)
    start = time.perf_counter()
    boundary = boundary_of(parts)
    classes_s = time.perf_counter() - start
    plan = plan_exchange(topology("dgx1"), boundary.demands, 64)
    return {
        "rows": int(boundary.row.size),
        "classes": boundary.num_classes,
        "classes_s": classes_s,
        "total_s": time.perf_counter() - start,
        "saved_frac": plan.saved_frac,
    }


def page(record: dict[str, Any]) -> str:
    lines = [
        "# Exchanges, planned and peer-to-peer",
        "",
        "**Modelled, not timed**: seconds of a stage are its fixed cost and the bytes of its "
        "busiest wire at published rates (`hardware/topologies`). `saved` is against every owner "
        "sending to every reader at once over the wires' shortest ways. Eight ranks.",
        "",
        "| graph | parts | readers a row | wired as | bytes a row | peer-to-peer | planned "
        "| stages | relayed | saved | planning |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for c in record["cells"]:
        chosen = f"{c['seconds'] * 1e3:.3f} ms" if c["method"] == "planned" else "kept direct"
        lines.append(
            f"| {c['graph']} | {c['parts']} | {c['readers_a_row']:.1f} | {c['topology']} "
            f"| {c['row_bytes']} | {c['direct_s'] * 1e3:.3f} ms | {chosen} | {c['stages']} "
            f"| {c['relayed_frac']:.1%} | {c['saved_frac']:.0%} | {c['planning_s']:.1f} s |"
        )
    lines += ["", "Saved at least and at most:", ""]
    for name in TOPOLOGIES:
        saved = [c["saved_frac"] for c in record["cells"] if c["topology"] == name]
        shapes = [
            c["saved_frac"]
            for c in record["cells"]
            if c["topology"] == name and c["graph"] in PUBLISHED
        ]
        lines.append(
            f"- {name}: {min(saved):.0%} to {max(saved):.0%}; the three shapes of papers "
            f"{min(shapes):.0%} to {max(shapes):.0%}"
        )
    m = record["million"]
    lines += [
        "",
        f"Measured: {m['rows']:,} boundary rows to {m['classes']} classes in {m['classes_s']:.2f} "
        f"s, to a plan for a DGX-1 in {m['total_s']:.2f} s in all (kernels compiled before).",
        "",
        sentence(record).replace("Measured by", "Made by"),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()

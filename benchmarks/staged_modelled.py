"""What ``sliced`` epochs would take of the link's time, by the model alone: no GPU, no graph.

    python benchmarks/staged_modelled.py

The cells of ``staged_gpu.py`` on the published graphs' shapes with hidden 256: 3 and 5 layers of
GCN, SAGE and GAT under a tenth of the activations, or the least that would do. Each row has the
clock's seconds, the bytes that cross the link, what its rates allow for them (both ways at once as
far as that goes, the rest alone), and how long each lane is at work.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from provenance import RESULTS, provenance
from staged_gpu import HEADS, least_s, planned, room_of
from tiergnn.graph.published import published_shape
from tiergnn.hardware.machine import Machine
from tiergnn.hardware.presets import resolve
from tiergnn.planner.choose import Choosing
from tiergnn.planner.models import classic
from tiergnn.planner.plan import Plan

CELLS = tuple(
    f"{graph} {model} {layers}"
    for graph in ("products", "com-orkut")
    for model in ("gcn", "sage", "gat")
    for layers in (3, 5)
)
_COPY_BYTES = 2**28


def link_rates(machine: Machine) -> dict[str, float]:
    """Bytes a second each way alone, and each way while both are busy."""
    links = {name: machine.links[name] for name in ("h2d", "d2h")}
    alone = {name: link.Bps.at(_COPY_BYTES) for name, link in links.items()}
    both = min(alone[name] * link.duplex_frac for name, link in links.items())
    return alone | {"both": both}


def plan_of(cell: str, machine: Machine, hidden: int, share: float) -> Plan:
    name, model, layers = cell.split()
    shape = published_shape(name)
    shape = replace(shape, num_labelled=shape.num_nodes // 2)
    sizes: dict[str, int] = {"hidden": hidden}
    if model == "gat":
        sizes = {"hidden": hidden // HEADS, "heads": HEADS}
    workload = classic(model, shape.num_features, shape.num_classes, layers=int(layers), **sizes)
    asked = Choosing(workload=workload, shape=shape, machine=machine)
    room = room_of(asked)
    return planned(asked, "sliced", room.there + int(share * room.kept))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", nargs="+", default=CELLS, help="'com-orkut gcn 3' ...")
    parser.add_argument("--machine", default="h200", help="a preset or a file")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--share", type=float, default=0.1, help="of the activations")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    machine = resolve(args.machine)
    rates = link_rates(machine)
    record: dict[str, Any] = {**provenance(), "rates_Bps": rates, "rows": []}
    args.out.mkdir(parents=True, exist_ok=True)
    for cell in args.cells:
        plan = plan_of(cell, machine, args.hidden, args.share)
        moved = {lane: n for lane, n in plan.timeline.moved_bytes().items() if n}
        limit_s = least_s(moved, rates)
        row = {
            "cell": cell,
            "knobs": str(plan.knobs),
            "predicted_s": plan.seconds,
            "moved_bytes": moved,
            "link_limit_s": limit_s,
            "share_of_limit": limit_s / plan.seconds,
            "busy_s": {lane: s for (_, lane), s in plan.timeline.busy_s().items()},
            "planned_peak_bytes": plan.peak_bytes,
            "budget_bytes": plan.machine.tier("device").available_bytes,
        }
        record["rows"].append(row)
        (args.out / "staged-modelled.json").write_text(json.dumps(record, indent=1) + "\n")
        print(
            f"{cell:16} {plan.knobs!s:40} {plan.seconds:7.3f} s, link {limit_s:.3f} s: "
            f"{100 * row['share_of_limit']:.0f}%",
            flush=True,
        )


if __name__ == "__main__":
    main()

"""LEO's comparison and our first proofs on the model: predicted times, measured nowhere else.

    python benchmarks/leo_modelled.py

Writes results/leo-modelled.json and results/leo-modelled.md. Every figure of ours is *modelled*:
schedules of the strategies on the clock of the simulator, machines from ``hardware/presets``,
graphs from counts and a degree distribution. Takes some seconds and no GPU.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from math import exp, log
from statistics import fmean
from typing import Any

from leo_page import page
from leo_proofs import first_proof, staging
from leo_tables import PAPER, SHARES
from provenance import RESULTS, provenance
from tiergnn.errors import PlanError
from tiergnn.graph.published import SHAPES, published_shape
from tiergnn.graph.shape import expected_layout
from tiergnn.hardware.machine import Curve, Machine
from tiergnn.hardware.presets import preset
from tiergnn.planner.cost import Costs
from tiergnn.planner.models import classic
from tiergnn.planner.simulate import simulate
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.planner.strategies.known import STRATEGIES

MACHINES = {"A": "a100x8-pcie", "B": "a100x8-nvswitch"}
MODELS = {"GCN": ("gcn", 16, 2), "GIN": ("gin", 64, 5)}


def main() -> None:
    record: dict[str, Any] = provenance()
    record["proof"] = first_proof()
    record["staged"] = staging()
    record["epochs"] = epochs()
    record["ratios"] = ratios(record["epochs"])
    record["assumed"] = assumed(record["epochs"])
    (RESULTS / "leo-modelled.json").write_text(json.dumps(record, indent=1) + "\n")
    text = page(record)
    (RESULTS / "leo-modelled.md").write_text(text)
    print(text)


# LEO's comparison


def epochs() -> list[dict[str, Any]]:
    found = []
    for letter, preset_name in MACHINES.items():
        machine = preset(preset_name)
        for graph in SHAPES:
            shape = published_shape(graph)
            layout = expected_layout(shape, 8)
            device, host = SHARES[graph][letter]
            for model, (name, hidden, layers) in MODELS.items():
                workload = classic(
                    name, shape.num_features, shape.num_classes, hidden=hidden, layers=layers
                )
                forms = {
                    "uva": ("uva", {}),
                    "mgg": ("mgg", {}),
                    "mgg, in turn": ("mgg", {"pipeline": False}),
                    "leo": ("leo", {"device_cache_frac": device, "host_cache_frac": host}),
                    "leo, managed": ("leo", {"managed": True}),
                    "leo, in turn": (
                        "leo",
                        {"device_cache_frac": device, "host_cache_frac": host, "pipeline": False},
                    ),
                    "leo, 20%": ("leo", {"device_cache_frac": 0.2}),
                    "leo, 20% and 15%": (
                        "leo", {"device_cache_frac": 0.2, "host_cache_frac": 0.15},
                    ),
                    "leo, synchronous": (
                        "leo",
                        {
                            "device_cache_frac": device, "host_cache_frac": host,
                            "asynchronous": False,
                        },
                    ),
                    "leo, device only": ("leo", {"device_cache_frac": device}),
                    "halo": ("halo", {}),
                    "nfp": ("nfp", {}),
                }  # fmt: skip
                row: dict[str, Any] = {"machine": letter, "graph": graph, "model": model}
                for form, (strategy, knobs) in forms.items():
                    row[form] = epoch(strategy, workload, shape, layout, machine, knobs)
                found.append(row)
                print(letter, graph, model, told(row["leo"]), flush=True)
    return found


def epoch(strategy, workload, shape, layout, machine, knobs) -> dict[str, Any]:
    """Modelled seconds, and the lane that is busiest; without the room for it, the reason too.

    A plan that does not fit is clocked on the same machine with memory enough.
    """
    chosen, refused = Knobs(ranks=8, **knobs), ""
    try:
        schedule = STRATEGIES[strategy](workload, shape, layout, machine, chosen)
    except PlanError as error:
        refused = error.problem.splitlines()[0]
        roomy = replace(
            machine,
            device=replace(
                machine.device, memory=replace(machine.device.memory, capacity_bytes=2**44)
            ),
            host=replace(machine.host, capacity_bytes=2**46),
        )
        schedule = STRATEGIES[strategy](workload, shape, layout, roomy, chosen)
        machine = roomy
    timeline = simulate(schedule, machine, Costs.of(machine))
    busy: dict[str, float] = {}
    for (rank, lane), seconds in timeline.busy_s().items():
        if rank == 0:
            busy[lane] = seconds / timeline.seconds
    return {
        "seconds": timeline.seconds, "bottleneck": timeline.bottleneck, "busy": busy,
        "refused": refused,
    }  # fmt: skip


def told(cell: dict[str, Any]) -> str:
    return f"{cell['seconds'] * 1e3:.1f} ms ({cell['bottleneck']})"


def ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Geometric means of ratios over graphs, beside the paper's."""
    found = []
    for item in PAPER:
        values = [
            row[item["over"]]["seconds"] / row[item["under"]]["seconds"]
            for row in rows
            if row["model"] in item.get("models", MODELS)
            and row["machine"] in item.get("machines", MACHINES)
        ]
        ours = exp(fmean(map(log, values)))
        found.append(
            {
                "what": item["what"], "paper": item["paper"], "modelled": ours,
                "least": min(values), "most": max(values), "deviation": ours / item["paper"] - 1,
                "why": item["why"], "bound": [bound(rows, item, end) for end in ("over", "under")],
            }
        )  # fmt: skip
    return found


def bound(rows: list[dict[str, Any]], item: dict[str, Any], end: str) -> str:
    """Which lanes are busiest in how many of the plans that a ratio is of."""
    lanes = Counter(
        row[item[end]]["bottleneck"]
        for row in rows
        if row["model"] in item.get("models", MODELS)
        and row["machine"] in item.get("machines", MACHINES)
    )
    return ", ".join(f"{lane} {count}" for lane, count in lanes.most_common())


def assumed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What one assumption is worth: two ratios without it."""
    found = []
    for what, chosen, machine_of in (
        ("as above", lambda row: True, None),
        (
            "without Reddit, whose hot rows stay in a cache",
            lambda row: row["graph"] != "reddit",
            None,
        ),
        ("on A, two devices a PCIe uplink", lambda row: row["machine"] == "A", None),
        ("on A, an uplink for each device", lambda row: row["machine"] == "A", own_uplinks),
        ("on B, NVSwitch reads in place at the bulk rate", lambda row: row["machine"] == "B", None),
        ("on B, at a quarter of it", lambda row: row["machine"] == "B", slow_reads),
    ):
        values: dict[str, list[float]] = {"uva": [], "mgg": []}
        for row in filter(chosen, rows):
            seconds = {form: row[form]["seconds"] for form in ("uva", "mgg", "leo")}
            if machine_of is not None:
                seconds = again(row, machine_of(preset(MACHINES[row["machine"]])))
            for form, ratio in values.items():
                ratio.append(seconds[form] / seconds["leo"])
        means = {form: exp(fmean(map(log, ratio))) for form, ratio in values.items()}
        found.append({"what": what, **means})
    return found


def own_uplinks(machine: Machine) -> Machine:
    return replace(
        machine, links={name: replace(link, devices=1) for name, link in machine.links.items()}
    )


def slow_reads(machine: Machine) -> Machine:
    peer = machine.links["peer"]
    points = tuple((size, rate / 4) for size, rate in peer.Bps.points)
    return replace(machine, links=dict(machine.links) | {"peer": replace(peer, Bps=Curve(points))})


def again(row: dict[str, Any], machine: Machine) -> dict[str, float]:
    """The seconds of a row's three systems on another machine."""
    shape = published_shape(row["graph"])
    layout = expected_layout(shape, 8)
    name, hidden, layers = MODELS[row["model"]]
    workload = classic(name, shape.num_features, shape.num_classes, hidden=hidden, layers=layers)
    device, host = SHARES[row["graph"]][row["machine"]]
    caches = {"device_cache_frac": device, "host_cache_frac": host}
    return {
        form: epoch(form, workload, shape, layout, machine, knobs)["seconds"]
        for form, knobs in (("uva", {}), ("mgg", {}), ("leo", caches))
    }


if __name__ == "__main__":
    main()

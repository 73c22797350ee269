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

from leo_tables import EXPLAINED, PAPER, PROOF, SHARES, STAGED
from provenance import RESULTS, provenance

from tiergnn.errors import PlanError
from tiergnn.graph.distributions import rmat_shape
from tiergnn.graph.published import SHAPES, published_shape
from tiergnn.graph.shape import GraphShape, Layout, PartShape, expected_layout
from tiergnn.hardware.machine import Curve, Machine
from tiergnn.hardware.presets import preset
from tiergnn.planner.cost import Costs
from tiergnn.planner.models import classic
from tiergnn.planner.simulate import simulate
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.planner.strategies.known import STRATEGIES
from tiergnn.schedule.actions import Lane, Op
from tiergnn.schedule.check import check
from tiergnn.schedule.schedule import Schedule
from tiergnn.schedule.timeline import Timeline
from tiergnn.workload import Peak, RowKind, Size, StageWork, Term, Workload

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


# One aggregation


def one_sum(width: int, dtype: str = "float32") -> Workload:
    """A model that is one aggregation of rows that change at every step."""
    row = width * (2 if dtype == "bfloat16" else 4)
    gather = Term(kind="gather", amount=Size(per_edge=row), grain=row, table=Size(per_source=row))
    nothing: dict[str, Any] = {
        "frees": (), "saves": (), "forward_held": Peak(), "kept": Size(), "kept_held": Peak(),
        "backward_held": Peak(), "parameter_bytes": 0,
    }  # fmt: skip
    stages = (
        StageWork(
            index=0, kind="rows", op="rows", gathers=(), reads=("x",), writes=("h0",),
            columnwise=False, forward=(), backward=(), **nothing,
        ),
        StageWork(
            index=1, kind="graph", op="sum of in-edges", gathers=("h0",), reads=(),
            writes=("h1",), columnwise=True, forward=(gather,), backward=(gather,), **nothing,
        ),
    )  # fmt: skip
    rows = [RowKind(name="x", width=1, dtype=dtype, grad=False)]
    rows += [RowKind(name=name, width=width, dtype=dtype) for name in ("h0", "h1")]
    return Workload(
        name=f"sum of {width}", dtype=dtype, rows=tuple(rows), inputs=("x",), output="h1",
        stages=stages, loss=(), loss_held=Peak(), step=(), step_held=0, parameter_bytes=4,
        optimizer_bytes=0,
    )  # fmt: skip


def clocked(schedule: Schedule, machine: Machine) -> Timeline:
    check(schedule, machine)
    return simulate(schedule, machine, Costs.of(machine))


def between(schedule: Schedule, timeline: Timeline, wanted) -> float:
    """Seconds from the start of the first action of rank 0 that is wanted to the end of the last."""
    chosen = {a.index for a in schedule.actions if a.rank == 0 and wanted(a)}
    spans = [span for span in timeline.spans if span.index in chosen]
    return max(s.end_s for s in spans) - min(s.start_s for s in spans)


# The first proof: rank 0 of 8 on one H200, the other ranks' rows in pinned host memory


def proof_machine() -> Machine:
    """An H200 whose peers' memory is the host's: read in place, or pulled."""
    machine = preset("h200")
    links = dict(machine.links)
    links["peer"], links["peer_copy"] = links["zero_copy"], links["zero_copy"]
    return replace(machine, num_devices=8, links=links, host=replace(machine.host))


def proof_shape(name: str) -> GraphShape:
    nodes, edges, quarters = PROOF[name]["graph"]
    a, b, c = quarters
    return rmat_shape(nodes, edges, a=a, b=b, c=c, name=name)


def proof_layout(shape: GraphShape, left: dict[float, float]) -> Layout:
    """Expected parts, their hotness as it was counted: shares of rows -> remote edges left."""

    def counted(part: PartShape) -> PartShape:
        remote = part.edges - part.local_edges
        points = [(0, 0)]
        for frac, rest in sorted(left.items()):
            rows = min(int(frac * shape.num_nodes), part.halo - 1)
            points.append((rows, round(remote * (1 - rest))))
        return replace(part, served=(*points, (part.halo, remote)))

    layout = expected_layout(shape, 8)
    return replace(layout, parts=tuple(map(counted, layout.parts)))


def first_proof() -> list[dict[str, Any]]:
    machine = proof_machine()
    forms = {
        "uva": ("uva", {}),
        "mgg": ("mgg", {}),
        "25%": ("leo", {"device_cache_frac": 0.25}),
        "40%": ("leo", {"device_cache_frac": 0.40}),
        "pulled": ("leo", {"device_cache_frac": 1.0}),
    }
    found = []
    for name, known in PROOF.items():
        shape = proof_shape(name)
        layout = proof_layout(shape, known["left"])
        for width, measured in known["ms"].items():
            row: dict[str, Any] = {"graph": name, "width": width}
            for form, (strategy, knobs) in forms.items():
                schedule = STRATEGIES[strategy](
                    one_sum(width), shape, layout, machine, Knobs(ranks=8, **knobs)
                )
                timeline = clocked(schedule, machine)
                seconds = between(
                    schedule,
                    timeline,
                    lambda a: a.stage == 1 and a.op in (Op.AGGREGATE, Op.COPY) and a.slice != 9
                    and a.index < first_update(schedule) and a.lane != Lane.D2H,
                )  # fmt: skip
                row[form] = {"modelled_ms": seconds * 1e3, "measured_ms": measured[form]}
            found.append(row)
    return found


def first_update(schedule: Schedule) -> int:
    """Where rank 0 turns from sums to rows."""
    return next(a.index for a in schedule.actions if a.op is Op.UPDATE)


# Staging through host memory: one aggregation of 256 columns


def staging() -> list[dict[str, Any]]:
    found = []
    for name, known in STAGED.items():
        shape = proof_shape(known.get("like", name))
        for form, measured in known["ms"].items():
            machine = preset("h200")
            dtype = known.get("dtype", "float32")
            workload = one_sum(known["width"], dtype)
            if form == "parts":
                layout = expected_layout(shape, 16)
                schedule = STRATEGIES["grinnder"](workload, shape, layout, machine, Knobs(parts=16))
                ends = (Op.FORWARD, Op.COPY)
            else:
                machine = known_machine(machine, known)
                schedule, machine = least_sliced(workload, shape, machine, int(form))
                ends = (Op.AGGREGATE, Op.COPY)
            timeline = clocked(schedule, machine)
            turn = turning(schedule, form)
            seconds = between(
                schedule,
                timeline,
                lambda a, turn=turn, ends=ends: turn[0] <= a.index < turn[1] and a.op in ends,
            )
            moved = [
                sum(a.moved_bytes for a in schedule.actions[turn[0] : turn[1]] if a.lane is lane)
                for lane in (Lane.H2D, Lane.D2H)
            ]
            found.append(
                {
                    "graph": name, "form": form, "modelled_ms": seconds * 1e3,
                    "measured_ms": measured, "in_GB": moved[0] / 1e9, "out_GB": moved[1] / 1e9,
                }
            )  # fmt: skip
    return found


def known_machine(machine: Machine, known: dict[str, Any]) -> Machine:
    return machine.with_budgets(host_bytes=known.get("host_bytes"))


def turning(schedule: Schedule, form: str) -> tuple[int, int]:
    """The actions of the one aggregation: from its first copy in to the first of what follows."""
    if form == "parts":
        own = [a.index for a in schedule.actions if a.op is Op.FORWARD and a.stage == 1]
        loads = [
            a.index
            for a in schedule.actions
            if a.op is Op.COPY and a.writes[0].startswith("h0") and a.writes[0].endswith(".in")
        ]
        after = next(a.index for a in schedule.actions if a.op is Op.ZERO)
        return loads[0], max(own[-1] + 1, after)
    own = [a.index for a in schedule.actions if a.op is Op.AGGREGATE]
    loads = [
        a.index for a in schedule.actions if a.writes[0].startswith("h0.c") and a.lane is Lane.H2D
    ]
    after = next(
        a.index for a in schedule.actions if a.lane is Lane.H2D and "sum.s1.p0" in a.writes
    )
    return min(loads), max(own[-1] + 1, after)


def least_sliced(
    workload: Workload, shape: GraphShape, machine: Machine, slices: int
) -> tuple[Schedule, Machine]:
    """The schedule on the smallest device that does, so that no slice stays there."""
    layout = expected_layout(shape, 16)
    low, high = 0, machine.device.memory.available_bytes
    best: tuple[Schedule, Machine] | None = None
    while high - low > 2**26:
        middle = (low + high) // 2
        small = machine.with_budgets(device_bytes=middle)
        try:
            knobs = Knobs(parts=16, slices=slices)
            best = STRATEGIES["sliced"](workload, shape, layout, small, knobs), small
            high = middle
        except PlanError:
            low = middle
    assert best is not None
    return best


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


# The page


def page(record: dict[str, Any]) -> str:
    lines = [
        "# LEO's comparison, modelled",
        "",
        f"*Modelled*, not measured, by `{record['command']}` at commit {record['commit']} on "
        f"{record['date']}: schedules of the strategies on the simulator's clock. Columns that say "
        "measured are those of our own first proofs on an H200; the paper's ratios are its claims.",
        "",
        "## Ratios beside the paper's",
        "Geometric means over the seven graphs (and models and machines, unless one is named).",
        "",
        "| ratio | paper | modelled | from, to | deviation | busiest lanes, above / below |",
        "|---|---|---|---|---|---|",
    ]
    for row in record["ratios"]:
        lines.append(
            f"| {row['what']} | {row['paper']:.2f} | {row['modelled']:.2f} | "
            f"{row['least']:.2f}, {row['most']:.2f} | {row['deviation']:+.0%} | "
            f"{row['bound'][0]} / {row['bound'][1]} |"
        )
    lines += ["", "### Why they deviate", EXPLAINED, ""]
    lines += [
        f"- **{row['what']}** ({row['deviation']:+.0%}): {row['why']}"
        for row in record["ratios"]
        if abs(row["deviation"]) > 0.3
    ]
    lines += [
        "",
        "## What assumptions are worth",
        "",
        "| | DGL (uva) / leo | MGG / leo |",
        "|---|---|---|",
        *(f"| {row['what']} | {row['uva']:.2f} | {row['mgg']:.2f} |" for row in record["assumed"]),
    ]
    lines += epoch_table(record["epochs"])
    lines += proof_table(record["proof"])
    lines += staging_table(record["staged"])
    return "\n".join(lines) + "\n"


def epoch_table(rows: list[dict[str, Any]]) -> list[str]:
    forms = ("uva", "mgg", "leo", "leo, managed", "halo", "nfp")
    lines = [
        "",
        "## Epochs, modelled: milliseconds, and the lane that is busiest",
        "A star: the plan is refused on this machine for want of memory, and is clocked without that.",
        "",
        "| machine | graph | model | " + " | ".join(forms) + " |",
        "|---|---|---|" + "---|" * len(forms),
    ]
    for row in rows:
        cells = []
        for form in forms:
            cell = row[form]
            star = "*" if cell["refused"] else ""
            cells.append(f"{cell['seconds'] * 1e3:.1f}{star} {cell['bottleneck']}")
        lines.append(
            f"| {row['machine']} | {row['graph']} | {row['model']} | " + " | ".join(cells) + " |"
        )
    return lines


def proof_table(rows: list[dict[str, Any]]) -> list[str]:
    forms = ("uva", "mgg", "25%", "40%", "pulled")
    lines = [
        "",
        "## A check of the model: the first proof on one H200",
        "Rank 0 of 8, the other ranks' rows in pinned host memory, one forward aggregation. Milliseconds: "
        "modelled / measured: error. The shares of remote edges that a cache leaves are those "
        "counted on the graphs; boundary rows are expected of the degrees.",
        "",
        "| graph, width | " + " | ".join(forms) + " |",
        "|---|" + "---|" * len(forms),
    ]
    errors: dict[str, list[float]] = {form: [] for form in forms}
    for row in rows:
        cells = []
        for form in forms:
            ours, theirs = row[form]["modelled_ms"], row[form]["measured_ms"]
            errors[form].append(abs(log(ours / theirs)))
            cells.append(f"{ours:.3g} / {theirs:.3g}: {ours / theirs - 1:+.0%}")
        lines.append(f"| {row['graph']}, {row['width']} | " + " | ".join(cells) + " |")
    means = [f"{exp(fmean(errors[form])) - 1:.0%}" for form in forms]
    lines.append("| typical error | " + " | ".join(means) + " |")
    return lines


def staging_table(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "",
        "## A check of the model: staging through host memory on one H200",
        "One aggregation, from pinned host memory to pinned host memory.",
        "",
        "| graph | form | GB in, out | modelled ms | measured ms | error |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        form = "16 row parts" if row["form"] == "parts" else f"{row['form']} slices"
        lines.append(
            f"| {row['graph']} | {form} | {row['in_GB']:.1f}, {row['out_GB']:.1f} | "
            f"{row['modelled_ms']:.0f} | {row['measured_ms']:.0f} | "
            f"{row['modelled_ms'] / row['measured_ms'] - 1:+.0%} |"
        )
    return lines


if __name__ == "__main__":
    main()

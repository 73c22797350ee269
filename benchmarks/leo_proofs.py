"""Our first proofs on one H200, modelled: one aggregation each, beside what was measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from leo_tables import PROOF, STAGED
from tiergnn.errors import PlanError
from tiergnn.graph.distributions import rmat_shape
from tiergnn.graph.shape import GraphShape, Layout, PartShape, expected_layout
from tiergnn.hardware.machine import Machine
from tiergnn.hardware.presets import preset
from tiergnn.planner.cost import Costs
from tiergnn.planner.simulate import simulate
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.planner.strategies.known import STRATEGIES
from tiergnn.schedule.actions import Action, Lane, Op
from tiergnn.schedule.check import check
from tiergnn.schedule.schedule import Schedule
from tiergnn.schedule.timeline import Timeline
from tiergnn.workload import Peak, RowKind, Size, StageWork, Term, Workload


def one_sum(width: int, dtype: str = "float32") -> Workload:
    """A model that is one aggregation of rows that change at every step, and a look at each row."""
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
            writes=("h1",), columnwise=True, divisible=True, forward=(gather,), backward=(gather,),
            **nothing,
        ),
        # Or else the sum would be in one visit with the loss and its backward.
        StageWork(
            index=2, kind="rows", op="rows", gathers=(), reads=("h1",), writes=("h2",),
            columnwise=False, forward=(), backward=(), **nothing,
        ),
    )  # fmt: skip
    rows = [RowKind(name="x", width=1, dtype=dtype, grad=False)]
    rows += [RowKind(name=name, width=width, dtype=dtype) for name in ("h0", "h1")]
    rows += [RowKind(name="h2", width=1, dtype=dtype)]
    return Workload(
        name=f"sum of {width}", dtype=dtype, rows=tuple(rows), inputs=("x",), output="h2",
        stages=stages, loss=(), loss_held=Peak(), step=(), step_held=0, parameter_bytes=4,
        optimizer_bytes=0,
    )  # fmt: skip


def clocked(schedule: Schedule, machine: Machine) -> Timeline:
    check(schedule, machine)
    return simulate(schedule, machine, Costs.of(machine))


def between(timeline: Timeline, indices: set[int]) -> float:
    """Seconds on rank 0 from the start of the first of these actions to the end of the last."""
    spans = [span for span in timeline.spans if span.index in indices and span.rank == 0]
    return max(s.end_s for s in spans) - min(s.start_s for s in spans)


# The first proof: rank 0 of 8 on one H200, the other ranks' rows in pinned host memory


def proof_machine() -> Machine:
    """An H200 whose peers' memory is the host's: read in place, or pulled."""
    machine = preset("h200")
    links = dict(machine.links)
    links["peer"], links["peer_copy"] = links["zero_copy"], links["zero_copy"]
    return replace(machine, num_devices=8, links=links)


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
                # Sums, and what refreshes replicas; the rows of uva lie in the host already.
                end = first_update(schedule)
                indices = {
                    a.index
                    for a in schedule.actions[:end]
                    if a.stage == 1 and a.op in (Op.AGGREGATE, Op.COPY) and a.lane != Lane.D2H
                }
                seconds = between(timeline, indices)
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
                schedule, machine = least_sliced(workload, shape, machine, int(form))
                ends = (Op.AGGREGATE, Op.COPY)
            timeline = clocked(schedule, machine)
            turn = turning(schedule, form)
            seconds = between(timeline, {a.index for a in turn if a.op in ends})
            moved = [
                sum(a.moved_bytes for a in turn if a.lane is lane) for lane in (Lane.H2D, Lane.D2H)
            ]
            found.append(
                {
                    "graph": name, "form": form, "modelled_ms": seconds * 1e3,
                    "measured_ms": measured, "in_GB": moved[0] / 1e9, "out_GB": moved[1] / 1e9,
                }
            )  # fmt: skip
    return found


def turning(schedule: Schedule, form: str) -> list[Action]:
    """The actions of the one aggregation: what it reads brought, the sums, and those taken away."""
    if form == "parts":
        return [
            a
            for a in schedule.actions
            if (a.op is Op.FORWARD and a.stage == 1)
            or (a.op is Op.COPY and a.lane is Lane.H2D and _of(a.writes, "h0.p", ".in"))
            or (a.op is Op.COPY and a.lane is Lane.D2H and _of(a.writes, "h1.p", "@host"))
        ]
    own = [a.index for a in schedule.actions if a.op is Op.AGGREGATE]
    loads = [a.index for a in schedule.actions if _of(a.writes, "h0.c", "") and a.lane is Lane.H2D]
    after = next(
        a.index for a in schedule.actions if a.lane is Lane.H2D and "sum.s1.p0" in a.writes
    )
    return list(schedule.actions[min(loads) : max(own[-1] + 1, after)])


def _of(names: tuple[str, ...], start: str, end: str) -> bool:
    return bool(names) and names[0].startswith(start) and names[0].endswith(end)


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

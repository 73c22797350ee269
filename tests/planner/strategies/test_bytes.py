"""What strategies move, against closed forms of the papers and of ours, exactly.

Legend: D bytes of a tensor's rows, S rows that all parts read (alpha times the nodes).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings

from tests.planner.strategies.cases import WORKLOADS, Case, cases, graph_case, machine
from tiergnn.errors import PlanError
from tiergnn.packed import packed_bytes
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.planner.strategies.known import STRATEGIES
from tiergnn.schedule.actions import Lane, Op
from tiergnn.schedule.schedule import Schedule
from tiergnn.workload import StageWork, Workload

MODELS = ("gat", "gcn", "gin", "sage")


def write(name: str, workload: Workload, case: Case, **knobs) -> Schedule:
    count = "parts" if name in ("hongtu", "grinnder", "sliced") else "ranks"
    chosen = Knobs(**{count: case.layout.num_parts}, **knobs)
    return STRATEGIES[name](workload, case.shape, case.layout, machine(), chosen)


def over(schedule: Schedule) -> dict[str, int]:
    """Bytes by link."""
    moved: Counter[str] = Counter()
    for action in schedule.actions:
        for work in action.work:
            if work.kind == "move":
                moved[work.place] += work.amount
    return {link: amount for link, amount in moved.items() if amount}


class Sizes:
    """The terms of the closed forms, of one workload and one layout."""

    def __init__(self, workload: Workload, case: Case):
        self.workload, self.parts = workload, case.layout.parts
        self.nodes = sum(part.rows for part in self.parts)
        self.sources = sum(part.sources for part in self.parts)
        self.halo = self.sources - self.nodes
        self.edges = sum(part.edges for part in self.parts)
        self.ranks = len(self.parts)

    def row(self, *names: str) -> int:
        return sum(self.workload.row_kind(name).row_bytes for name in names)

    def grad(self, *names: str) -> int:
        """Of a row of what has a gradient."""
        return sum(self.row(name) for name in names if self.workload.row_kind(name).grad)

    def others(self, stage: StageWork) -> tuple[str, ...]:
        """Own rows that a stage reads and does not gather."""
        return tuple(name for name in stage.reads if name not in stage.gathers)

    def stored(self, stage: StageWork) -> tuple[str, ...]:
        """What a stage writes that somebody reads."""
        read = {n for s in self.workload.stages for n in (*s.gathers, *s.reads)}
        return tuple(name for name in stage.writes if name in read)

    def backward(self) -> list[StageWork]:
        return [s for s in self.workload.stages if self.grad(*s.writes)]

    @property
    def ending(self) -> StageWork:
        """Makes the output: its forward and its backward are one visit, with the loss between."""
        return next(s for s in self.workload.stages if self.workload.output in s.writes)


def alone(workload: Workload, name: str, stage: StageWork) -> bool:
    users = [s for s in workload.stages if name in (*s.gathers, *s.reads)]
    return users == [stage] and name not in stage.gathers


@pytest.mark.parametrize("model", MODELS)
@given(case=cases())
@settings(max_examples=10, deadline=None)
def test_grinnder_moves_alpha_d_in_and_d_out(model, case):
    """A layer forward: alpha D in, D out; backward: alpha D in again, gradients both ways.

    The last comes in once, and neither the output nor its gradient moves.
    """
    workload = WORKLOADS[model]
    size = Sizes(workload, case)
    into = out = 0
    for stage in workload.stages:
        rows_in = size.sources * size.row(*stage.gathers)
        rows_in += size.nodes * size.row(*size.others(stage))
        into += rows_in
        out += size.nodes * size.row(*size.stored(stage))
        if stage in size.backward():
            if stage != size.ending:
                into += rows_in + size.nodes * size.grad(*stage.writes)
            out += size.sources * size.grad(*stage.gathers)
            out += size.nodes * size.grad(*size.others(stage))
    for knobs in ({}, {"gradients": "buckets"}, {"tier": "disk"}):
        moved = over(write("grinnder", workload, case, **knobs))
        assert moved.get("h2d", 0) + moved.get("zero_copy", 0) == into
        assert moved.get("d2h", 0) == out
        if "tier" not in knobs:
            assert set(moved) <= {"h2d", "zero_copy", "d2h"}


@pytest.mark.parametrize("model", MODELS)
def test_hongtu_adds_snapshots(model):
    """The same in, though in bulk in backward; out alpha D more for every gathered tensor whose
    backward is another visit than its forward."""
    workload, case = WORKLOADS[model], graph_case(50, 300, 4, 20, seed=2)
    size = Sizes(workload, case)
    ours, theirs = over(write("grinnder", workload, case)), over(write("hongtu", workload, case))
    again = [s for s in workload.stages if s != size.ending]
    snapshots = sum(size.sources * size.row(*s.gathers) for s in again)
    assert theirs["d2h"] - ours["d2h"] == snapshots
    assert theirs["h2d"] + theirs["zero_copy"] == ours["h2d"] + ours["zero_copy"]
    gathers = {s.index: size.halo * size.row(*s.gathers) for s in workload.stages}
    assert ours["zero_copy"] - theirs["zero_copy"] == sum(gathers[s.index] for s in again)
    assert theirs["h2d"] > ours["h2d"]


def test_hot_rows_are_not_brought_again():
    workload = WORKLOADS["gcn"]
    case = graph_case(60, 900, 3, 20, seed=2, skew=3.0, hot_frac=0.25)
    plain = over(write("grinnder", workload, case))
    hot = over(write("grinnder", workload, case, hot_frac=0.25))
    assert case.layout.hot is not None
    read = sum(map(sum, case.layout.hot.read))
    size, saved = Sizes(workload, case), 0
    for stage in workload.stages:
        saved += (1 if stage == size.ending else 2) * size.row(*stage.gathers) * read
    assert plain["zero_copy"] - hot["zero_copy"] == saved > 0
    assert plain["d2h"] == hot["d2h"]
    assert plain["h2d"] == hot["h2d"]


def test_disk_sees_each_row_once_where_nothing_is_kept():
    """Without any cache every entry is read for every part that wants it, whole."""
    workload, case = WORKLOADS["gcn"], graph_case(60, 900, 3, 20, seed=2)
    there = machine(1)
    for host in range(2_000, 12_000, 250):
        try:
            schedule = STRATEGIES["grinnder"](
                workload, case.shape, case.layout, there.with_budgets(host_bytes=host),
                Knobs(parts=3, tier="disk", gradients="buckets"),
            )  # fmt: skip
        except PlanError:
            continue
        moved = over(schedule)
        break
    else:
        raise AssertionError("no budget was enough")
    size = Sizes(workload, case)
    touched = sum(
        owner.rows
        for p, part in enumerate(case.layout.parts)
        for q, owner in enumerate(case.layout.parts)
        if p == q or part.halo_of[q]
    )
    most = size.nodes * size.row("x") * 2
    for stage in workload.stages:
        most += 2 * touched * size.row(*stage.gathers)
        most += size.sources * size.grad(*stage.gathers)  # buckets
        most += 2 * size.nodes * size.row(*stage.writes)
    assert size.nodes * size.row("x") <= moved["disk_read"] <= most


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("slices", [1, 3])
def test_sliced_moves_two_d_each_way(model, slices):
    """Gathered rows in and sums out, sums in and rows out: 2 D, whatever the graph and the parts.

    Own rows that the row-local half reads come in besides; a device that holds nothing else.
    """
    workload, case = WORKLOADS[model], graph_case(50, 300, 4, 20, seed=2)
    size = Sizes(workload, case)
    into = out = 0
    for stage in workload.stages:
        main = stage.gathers[:1]
        scores = tuple(n for n in (*stage.gathers[1:], *stage.before) if n not in main)
        dense = stage.after if stage.kind == "graph" else stage.reads
        rows_in = size.row(*main) + size.row(*dense)
        into += size.row(*main, *scores) + rows_in
        out += size.row(*main) + size.row(*size.stored(stage))
        if stage not in size.backward():
            continue
        twice = [n for n in dense if size.grad(n) and graded_before(workload, n, stage)]
        into += size.grad(*twice)
        if stage != size.ending:
            into += rows_in + size.grad(*stage.writes)
        out += size.grad(*dense)
        if size.grad(*main):
            first = [n for n in (*main, *scores) if n in dense or graded_before(workload, n, stage)]
            into += size.row(*main) + size.grad(*first)
            into += size.row(*main, *scores) if scores else 0
            out += size.row(*main) + size.grad(*main, *scores)
    schedule = lean(workload, case, slices)
    moved = over(schedule)
    assert moved["h2d"] == into * size.nodes
    assert moved["d2h"] == out * size.nodes


def graded_before(workload: Workload, name: str, stage: StageWork) -> bool:
    """Whether a later stage, whose backward runs before, reads a tensor too."""
    later = workload.stages[workload.stages.index(stage) + 1 :]
    return any(name in (*s.gathers, *s.reads) for s in later)


def lean(workload: Workload, case: Case, slices: int) -> Schedule:
    """The schedule of the smallest device that does."""
    there = machine(1).with_budgets(device_bytes=1000)
    for _ in range(3):
        try:
            return STRATEGIES["sliced"](
                workload, case.shape, case.layout, there, Knobs(parts=4, slices=slices)
            )
        except PlanError as error:
            least = int(str(error).split("at least ")[1].split()[0])
            there = machine(1).with_budgets(device_bytes=least)
    raise AssertionError("the least was not enough")


def test_sums_with_nothing_of_their_own_move_exactly_two_d():
    gcn = WORKLOADS["gcn"]
    workload = replace(gcn, stages=tuple(replace(s, reads=(), before=()) for s in gcn.stages))
    workload = replace(workload, stages=workload.stages[1:], inputs=("h0",))
    rows = tuple(replace(r, grad=r.grad and r.name != "h0") for r in workload.rows)
    workload = replace(workload, rows=rows)
    case = graph_case(50, 300, 4, 20, seed=2)
    moved: Counter[str] = Counter()
    last = workload.stages[-1]  # whose forward comes with its backward
    for action in lean(workload, case, 2).actions:
        if action.op is Op.AGGREGATE and action.stage == last.index:
            break
        ahead = action.lane is Lane.H2D and action.writes[0].startswith(f"{last.gathers[0]}.")
        moved[action.lane] += 0 if ahead else action.moved_bytes
    size = Sizes(workload, case)
    assert moved[Lane.H2D] == 2 * size.row("h0") * 50
    assert moved[Lane.D2H] == size.row("h0", "h1") * 50


@pytest.mark.parametrize("loops", ["", "alone"])
@pytest.mark.parametrize(
    ("name", "topology"),
    [("hongtu", "host"), ("grinnder", "device"), ("grinnder", "host")]
    + [("sliced", topology) for topology in ("device", "host", "turns")],
)
def test_tasks_of_a_gpu_lie_with_the_edges_and_come_with_them(name, topology, loops):
    """Those of a block's rows with in-edges, of its sources with out-edges; none on a CPU."""
    case, plain = graph_case(50, 9000, 3, 20, seed=2, skew=3.0), WORKLOADS["gin"]
    workload = replace(plain, topology=replace(plain.topology, without_loops=loops))
    knobs = Knobs(parts=3, topology=topology, **({"slices": 2} if name == "sliced" else {}))
    found = {}
    for kind in ("cpu", "cuda"):
        there = replace(machine(), device=replace(machine().device, kind=kind))
        schedule = STRATEGIES[name](workload, case.shape, case.layout, there, knobs)
        found[kind] = {b.name: b.num_bytes for b in schedule.buffers if b.kind == "topology"}
        for action in schedule.actions:
            if action.op is Op.COPY and action.writes[0].startswith("topology"):
                assert action.moved_bytes == found[kind][action.writes[0]]
    assert found["cpu"].keys() == found["cuda"].keys()
    for buffer, num_bytes in found["cuda"].items():
        place = buffer.partition("@")[0].partition("~")[0]
        if place == "degrees":
            assert num_bytes == found["cpu"][buffer]
            continue
        part = int(place.rpartition(".p")[2]) if ".p" in place else -1
        parts = case.layout.parts if part < 0 else case.layout.parts[part : part + 1]
        edges = sum(p.edges - (p.loops if loops else 0) for p in parts)
        rows, nodes = sum(p.rows for p in parts), sum(p.rows for p in case.layout.parts)
        if "out" in place:
            rows = nodes if name == "sliced" else parts[0].sources
        assert num_bytes - found["cpu"][buffer] == packed_bytes(rows, edges)

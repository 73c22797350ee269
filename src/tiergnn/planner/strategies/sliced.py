"""Sliced: columns instead of rows. All rows of a slice of columns are aggregated at once.

An aggregation works on every column (or head of attention) by itself: AGGREGATE takes slice after
slice over the whole topology, and every byte crosses once each way, whatever the graph. The
row-local rest of a stage, UPDATE, takes blocks of rows, all their columns. Backward does the same
in reverse: BACKWARD of a block (p) for the row-local half, then BACKWARD of a slice (c).

Legend: V nodes of the graph, P rows of a block, E edges.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from tiergnn.errors import PlanError
from tiergnn.graph.shape import GraphShape, Layout
from tiergnn.hardware.machine import TIERS, Machine
from tiergnn.planner.strategies.columns import Columns, like
from tiergnn.planner.strategies.draft import Draft
from tiergnn.planner.strategies.fitting import fitted
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.planner.strategies.moments import Moments
from tiergnn.planner.strategies.passing import ahead
from tiergnn.planner.strategies.slices import Slices
from tiergnn.schedule.actions import Lane, Op
from tiergnn.schedule.check import peaks
from tiergnn.schedule.schedule import Schedule
from tiergnn.workload import StageWork, Workload

USES = ("parts", "slices", "recompute", "storage", "tier", "topology")
_ROWWISE = ("matmul", "stream")
_TRIES = 4  # to find how many slices fit


def write(
    workload: Workload, shape: GraphShape, layout: Layout, machine: Machine, knobs: Knobs
) -> Schedule:
    """One training step; the parts of the layout are the blocks of rows.

    As many slices of every tensor stay on the device as fit; of the others as many in host memory,
    where the tier is "disk". Raises PlanError where a stage cannot be sliced, and where not even a
    slice at a time fits, with what would do.
    """

    def written(device_slices: int, host_slices: int) -> Schedule:
        draft = Draft("sliced", workload, shape, layout, machine, knobs, uses=USES)
        fracs = (device_slices / knobs.slices, host_slices / knobs.slices)
        _Sliced(draft, device_frac=fracs[0], host_frac=fracs[1]).write()
        return draft.finish()

    # A slice on the device is none in host memory, so only the device can be too small for none.
    least = written(0, 0)
    device, schedule = _most(least, lambda n: written(n, 0), knobs.slices, machine, "device")
    fits = _held(schedule, "device") <= machine.tier("device").available_bytes
    if knobs.tier == "disk" and fits and device < knobs.slices:
        left = knobs.slices - device
        _, schedule = _most(schedule, lambda n: written(device, n), left, machine, "host")
    return fitted(schedule, machine)


def _most(
    least: Schedule, written: Callable[[int], Schedule], limit: int, machine: Machine, tier: str
) -> tuple[int, Schedule]:
    """About the largest number of slices up to a limit with which a tier holds all, and the
    schedule; found in few writings, since each slice takes about as much. None fits: ``least``.
    """
    room = machine.tier(tier).available_bytes
    low, schedule, held, high = 0, least, _held(least, tier), limit + 1
    farther = TIERS[TIERS.index(tier) + 1 :]
    far = sum(_held(least, other) for other in farther)  # in slices that come nearer
    if held > room or 2 * (room - held) * limit < far:
        return 0, least
    guess = min(limit, max(1, (room - held) * limit // max(1, far)))
    for _ in range(_TRIES):
        if not low < guess < high:
            break
        tried = written(guess)
        needs = _held(tried, tier)
        slice_bytes = max(1, (needs - held) // (guess - low))
        if needs <= room:
            low, schedule, held = guess, tried, needs
        else:
            high = guess
        guess = min(high - 1, low + (room - held) // slice_bytes)
    return low, schedule


def _held(schedule: Schedule, tier: str) -> int:
    return peaks(schedule).get((0, tier), (0, {}))[0]


@dataclass(slots=True)
class _Block:
    """A block of rows at work: buffers by the rows that they hold."""

    part: int
    inputs: dict[str, str] = field(default_factory=dict)
    grads: dict[str, str] = field(default_factory=dict)


class _Sliced:
    def __init__(self, draft: Draft, *, device_frac: float, host_frac: float) -> None:
        self._draft, self._writer = draft, draft.writer
        self._stages = draft.workload.stages
        units: dict[str, int] = {}
        for stage in self._stages:
            if stage.kind != "graph":
                continue
            self._check(stage)
            names = [stage.gathers[0]]
            if self._draft.attends(stage):
                names += [n for n in stage.reads if like(draft, stage, n)]
            for name in names:
                units[name] = draft.units(stage)
        self._slices = Slices(draft, units, device_frac=device_frac, host_frac=host_frac)
        self._moments = Moments(draft)
        self._columns = Columns(draft, self._slices)

    def _check(self, stage: StageWork) -> None:
        if not stage.columnwise:
            raise PlanError(
                f"sliced: stage {stage.index} ({stage.op}) does not work on every column by itself",
                hint="the strategy grinnder",
            )
        made = [n for n in stage.reads if self._draft.of_edges(n) and n not in self._inputs]
        if made:
            raise PlanError(
                f"sliced: stage {stage.index} reads rows of edges that another stage makes: "
                f"{made[0]}",
                hint="the strategy grinnder",
            )

    @property
    def _inputs(self) -> tuple[str, ...]:
        return self._draft.workload.inputs

    def write(self) -> None:
        draft = self._draft
        draft.parameters(0)
        for name in self._inputs:
            if draft.of_edges(name):
                num_bytes = draft.whole.edges * draft.row_bytes(name)
                self._writer.given(name, 0, "device", "features", num_bytes)
            else:
                self._slices.open(name, "features", given=True)
        self._columns.give_topology()
        for stage in self._stages:
            self._forward(stage)
        draft.clear_gradients(0)
        for stage in reversed(self._stages):
            if self._columns.graded.intersection(stage.writes):
                self._backward(stage)
            self._moments.free(stage)
        for name in [n for n in self._names() if self._slices.has(n)]:
            self._slices.drop(name)
        self._slices.close()
        draft.step()

    def _names(self) -> list[str]:
        return [rows.name for rows in self._draft.workload.rows]

    # Forward

    def _forward(self, stage: StageWork) -> None:
        if stage.moments_of:
            self._statistic(stage)
        if not stage.writes:
            return  # moments for later stages
        if stage.kind == "graph":
            self._columns.aggregate(stage, Op.AGGREGATE)
        for name in stage.writes:
            if self._draft.users(name):
                self._slices.open(name, "activations")
        for block in ahead(self._draft.parts, partial(self._begin, stage)):
            self._update(stage, block)
        if stage.index in self._draft.knobs.recompute and stage.kind == "graph":
            self._slices.drop(f"sum.s{stage.index}")
        for name in dict.fromkeys((*stage.gathers, *stage.reads)):
            last = self._draft.users(name)[-1] is stage
            if last and not self._draft.of_edges(name) and not self._read_again(name):
                self._slices.drop(name)

    def _read_again(self, name: str) -> bool:
        """Whether a backward reads rows: as inputs of row-local code, of scores, of sums again."""
        for stage in self._draft.users(name):
            if name in self._rowwise(stage) or self._draft.attends(stage) or name in stage.saves:
                return True
            if stage.index in self._draft.knobs.recompute:
                return True
        return False

    def _rowwise(self, stage: StageWork) -> list[str]:
        """The own rows that the row-local half of a stage reads."""
        return [] if stage.kind == "graph" and self._draft.attends(stage) else list(stage.reads)

    def _begin(self, stage: StageWork, part: int) -> _Block:
        """Bring a block of rows that the row-local half reads."""
        block = _Block(part)
        names = self._rowwise(stage)
        if stage.kind == "graph":
            names.append(f"sum.s{stage.index}")
        for name in names:
            if name in self._inputs and self._draft.of_edges(name):
                continue
            block.inputs[name] = self._slices.bring_rows(name, part)
        return block

    def _compute(self, stage: StageWork, block: _Block, op: Op) -> tuple[dict[str, str], list[str]]:
        """The row-local half of a stage: what it writes, and what it keeps for backward."""
        draft, part = self._draft, block.part
        extent = draft.dense(draft.layout.parts[part].rows)
        for name, buffer in block.inputs.items():
            self._slices.fill_rows(name, part, buffer)
        outputs = {}
        for name in stage.writes:
            num_bytes = draft.count(name, part) * draft.row_bytes(name)
            outputs[name] = draft.take(f"{name}.p{part}", "activations", num_bytes)
        held, saved = stage.forward_held.at(extent), []
        if op is Op.RECOMPUTE:
            kept = stage.kept.at(extent)
            held = stage.kept_held.at(extent) - kept
            saved = [draft.take(f"saved.s{stage.index}.p{part}", "saved", kept)]
        scratch = draft.take(f"work.s{stage.index}.p{part}", "workspace", max(0, held))
        self._writer.add(
            0,
            Lane.COMPUTE,
            op,
            stage=stage.index,
            part=part,
            reads=[*block.inputs.values(), *self._shared(stage)],
            writes=[*outputs.values(), *saved, scratch],
            work=draft.works(stage.forward, extent, kinds=_ROWWISE),
        )
        self._writer.release(0, scratch)
        return outputs, saved

    def _shared(self, stage: StageWork) -> list[str]:
        parameters = ["parameters"] if stage.parameter_bytes else []
        return [*parameters, *self._moments.of(stage)]

    def _update(self, stage: StageWork, block: _Block) -> None:
        draft, part = self._draft, block.part
        op = Op.UPDATE if stage.kind == "graph" else Op.FORWARD
        outputs, _ = self._compute(stage, block, op)
        for name, buffer in outputs.items():
            for statistic in draft.statistics(name):
                self._moments.take(statistic, part, buffer)
        if block.inputs:
            self._writer.release(0, *block.inputs.values())
        out = draft.workload.output
        if out in outputs:
            grad = draft.loss(0, part, outputs[out])
            self._columns.open_grad(out)
            self._slices.store_rows(f"{out}.grad", part, grad)
        for name, buffer in outputs.items():
            if draft.users(name):
                self._slices.store_rows(name, part, buffer)
            else:
                self._writer.release(0, buffer)

    def _statistic(self, stage: StageWork) -> None:
        """The moments of all rows, of blocks that were taken as they passed, or are taken now."""
        if not self._moments.taken(stage):
            for part in self._draft.parts:
                buffer = self._slices.bring_rows(stage.moments_of, part)
                self._slices.fill_rows(stage.moments_of, part, buffer)
                self._moments.take(stage, part, buffer)
                self._writer.release(0, buffer)
        self._moments.commit(stage)

    # Backward

    def _backward(self, stage: StageWork) -> None:
        draft, slices = self._draft, self._slices
        graph, total = stage.kind == "graph", f"sum.s{stage.index}"
        if graph and stage.index in draft.knobs.recompute:
            self._columns.aggregate(stage, Op.RECOMPUTE)
        self._moments.clear_grads(stage)
        added = {n for n in self._rowwise(stage) if n in self._columns.graded}
        wanted = [n for n in dict.fromkeys(self._rowwise(stage)) if draft.has_grad(n)]
        for name in wanted:
            self._columns.open_grad(name)
        through = graph and any(draft.has_grad(n) for n in (*stage.gathers, *stage.reads))
        if through:
            slices.open(f"{total}.grad", "gradients", of=stage.gathers[0])
        for block in ahead(draft.parts, partial(self._begin_backward, stage, added)):
            self._run_backward(stage, block, wanted, through)
        if graph:
            slices.drop(total)
        for name in stage.writes:
            if name in self._columns.graded:
                slices.drop(f"{name}.grad")
        if through:
            self._columns.scatter(stage)
        for name in dict.fromkeys((*stage.gathers, *stage.reads)):
            if name not in self._inputs and slices.has(name) and draft.users(name)[0] is stage:
                slices.drop(name)

    def _begin_backward(self, stage: StageWork, added: set[str], part: int) -> _Block:
        block = self._begin(stage, part)
        names = [n for n in stage.writes if n in self._columns.graded]
        for name in dict.fromkeys((*names, *sorted(added))):
            block.grads[name] = self._slices.bring_rows(f"{name}.grad", part)
        return block

    def _run_backward(
        self, stage: StageWork, block: _Block, wanted: list[str], through: bool
    ) -> None:
        """The row-local half: from the gradients of what it wrote to those of sums and own rows."""
        draft, part = self._draft, block.part
        extent = draft.dense(draft.layout.parts[part].rows)
        outputs, saved = self._compute(stage, block, Op.RECOMPUTE)
        for name, buffer in block.grads.items():
            self._slices.fill_rows(f"{name}.grad", part, buffer)
        for name, buffer in outputs.items():
            if name in block.grads:
                self._moments.give_back(name, part, buffer, block.grads[name])
        made = {}
        for name in wanted:
            num_bytes = draft.count(name, part) * draft.row_bytes(name)
            made[f"{name}.grad"] = block.grads.get(name) or draft.take(
                f"{name}.grad.p{part}", "gradients", num_bytes
            )
        if through:
            total = f"sum.s{stage.index}.grad"
            num_bytes = draft.count(stage.gathers[0], part) * draft.row_bytes(stage.gathers[0])
            made[total] = draft.take(f"{total}.p{part}", "gradients", num_bytes)
        scratch = draft.take(
            f"work.s{stage.index}.p{part}.back", "workspace", stage.backward_held.at(extent)
        )
        gradients = ["gradients"] if stage.parameter_bytes else []
        moments = self._moments.grads_of(stage)
        self._writer.add(
            0,
            Lane.COMPUTE,
            Op.BACKWARD,
            stage=stage.index,
            part=part,
            reads=[
                *block.inputs.values(), *outputs.values(), *saved, *block.grads.values(),
                *self._shared(stage), *gradients, *moments,
            ],
            writes=[*made.values(), *gradients, *moments, scratch],
            work=draft.works(stage.backward, extent, kinds=_ROWWISE, backward=True),
        )  # fmt: skip
        done = [b for n, b in block.grads.items() if f"{n}.grad" not in made]
        self._writer.release(0, scratch, *outputs.values(), *saved, *block.inputs.values(), *done)
        for name, buffer in made.items():
            self._slices.store_rows(name, part, buffer)

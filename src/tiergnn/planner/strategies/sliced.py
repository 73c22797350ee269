"""Sliced: columns instead of rows. All rows of a slice of columns are aggregated at once.

An aggregation works on every column (or head of attention) by itself: AGGREGATE takes slice after
slice over the whole topology, and every byte crosses once each way, whatever the graph. The
row-local rest of a stage, UPDATE, takes blocks of rows, all their columns. Backward does the same
in reverse: BACKWARD of a block (p) for the row-local half, then BACKWARD of a slice (c).

Legend: V nodes of the graph, P rows of a block, E edges.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from functools import cache, partial

from tiergnn.errors import PlanError
from tiergnn.graph.shape import GraphShape, Layout
from tiergnn.hardware.machine import Machine
from tiergnn.planner.strategies.blocks import ROWWISE, Block, Blocks, rowwise
from tiergnn.planner.strategies.chunks import Chunks
from tiergnn.planner.strategies.columns import Columns
from tiergnn.planner.strategies.cuts import holding, slices_of, units_of
from tiergnn.planner.strategies.draft import Draft
from tiergnn.planner.strategies.fitting import Fitting, fit, most_slices, shortfall
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.planner.strategies.moments import Moments
from tiergnn.planner.strategies.passing import Turns, give_passing
from tiergnn.planner.strategies.slices import Slices
from tiergnn.schedule.actions import Lane, Op
from tiergnn.schedule.schedule import Schedule
from tiergnn.schedule.sizing import Sized
from tiergnn.workload import PREPARED_COLUMNS, StageWork, Workload

USES = ("parts", "slices", "recompute", "storage", "tier", "topology")
_PREPARING_BYTES = 64  # of a row, whatever the columns: degrees, and numbers made of them


def write(
    workload: Workload, shape: GraphShape, layout: Layout, machine: Machine, knobs: Knobs
) -> Schedule:
    """One training step; the parts of the layout are the blocks of rows.

    About as many slices of every tensor stay on the device as fit; of the others in host memory,
    where the tier is "disk". Raises PlanError where a stage cannot be sliced or no slice fits.
    """
    return fitting(workload, shape, layout, machine, knobs).write()


def evaluation(
    workload: Workload,
    shape: GraphShape,
    layout: Layout,
    machine: Machine,
    knobs: Knobs,
    step: Schedule,
) -> Schedule:
    """One pass of a workload that was traced for evaluation, beside training steps; raises as
    ``write``. The slices of inputs lie where a ``step`` has them, as far as they fit."""
    return fitting(workload, shape, layout, machine, knobs, beside=step).write()


def fitting(
    workload: Workload,
    shape: GraphShape,
    layout: Layout,
    machine: Machine,
    knobs: Knobs,
    *,
    beside: Schedule | None = None,
) -> Fitting:
    """The schedule that fits, of training steps or of evaluations ``beside`` them. Raises PlanError
    where none does."""

    def written(device_slices: int, host_slices: int, *, sizing: bool = False) -> Draft:
        draft = Draft(
            "sliced", workload, shape, layout, machine, knobs, uses=USES, sizing=sizing,
            prepares=True,
        )  # fmt: skip
        fracs = (device_slices / knobs.slices, host_slices / knobs.slices)
        sliced = _Sliced(draft, device_frac=fracs[0], host_frac=fracs[1], sizing=sizing)
        if beside is None:
            sliced.write()
        else:
            sliced.write_evaluation()
        return draft

    @cache
    def sized(device_slices: int, host_slices: int) -> Sized:
        return written(device_slices, host_slices, sizing=True).sized()

    # A slice on the device is none in host memory, so only the device can be too small for none.
    least = sized(0, 0)
    fit(least, machine, ("device", "host"))
    most, host = knobs.slices, 0
    if beside is not None:
        most, host = slices_of(beside, knobs.slices)
        if shortfall(sized(most, host), machine) is None:
            return Fitting(sized(most, host), lambda: written(most, host).finish())
        host = 0
    device = most_slices(least, lambda n: sized(n, 0), most, machine, "device")
    if knobs.tier == "disk" and device < knobs.slices:
        left = knobs.slices - device
        host = most_slices(sized(device, 0), lambda n: sized(device, n), left, machine, "host")
    fit(sized(device, host), machine)
    return Fitting(sized(device, host), lambda: written(device, host).finish())


class _Sliced:
    def __init__(self, draft: Draft, *, device_frac: float, host_frac: float, sizing: bool) -> None:
        self._draft, self._writer = draft, draft.writer
        self._stages = draft.workload.stages
        units = units_of(draft)
        self._slices = Slices(draft, units, device_frac=device_frac, host_frac=host_frac)
        if draft.workload.prepared and not draft.workload.by_column:
            raise PlanError(
                "sliced: columns of the rows to be prepared depend on each other",
                hint="prepare=False",
            )
        if draft.workload.prepared and draft.knobs.topology == "host":
            raise PlanError(
                "sliced: rows are prepared over all edges at once, and topology=host has some",
                hint="topology=turns, or prepare=False",
            )
        self._training = True
        self._dropped: set[str] = set()  # once the turn at hand was run
        self._moments = Moments(draft)
        self._turns = Turns(self._slices.settle)
        self._chunks = Chunks(draft, self._turns, sizing=sizing)
        self._columns = Columns(draft, self._slices, self._chunks, self._turns)
        self._blocks = Blocks(draft, self._slices, self._chunks, self._moments)

    @property
    def _inputs(self) -> tuple[str, ...]:
        return self._draft.workload.inputs

    def write(self) -> None:
        """One training step."""
        draft = self._draft
        self._open()
        for stage in self._stages:
            self._forward(stage)
        draft.clear_gradients(0)
        for stage in reversed(self._stages):
            if stage is draft.ending or self._columns.graded.intersection(stage.writes):
                self._backward(stage)
            self._turns.then(partial(self._moments.free, stage))
        self._close()
        draft.step()

    def write_evaluation(self) -> None:
        """Forward alone. The output's rows that are asked for stay in host memory."""
        self._training = False
        self._open()
        for stage in self._stages:
            self._forward(stage)
        self._turns.finish()
        for stage in self._stages:
            self._moments.free(stage)
        self._close()

    def _open(self) -> None:
        draft = self._draft
        draft.parameters(0, optimizer=self._training)
        for name in self._inputs:
            if draft.of_edges(name):
                num_bytes = draft.whole.edges * draft.row_bytes(name)
                self._writer.given(name, 0, "device", "features", num_bytes, holds=holding(name))
            else:
                self._slices.open(name, "features", given=True)
        self._chunks.give()
        give_passing(draft)
        if draft.workload.prepared and self._training:
            self._prepare()

    def _prepare(self) -> None:
        """Room for making prepared rows before the first step, some columns at a time."""
        draft, most = self._draft, 0
        for name in draft.workload.prepared:
            width = draft.width(name)
            columns = max(
                self._slices.frac(name, i) * width for i in range(self._slices.count(name))
            )
            most = max(most, columns / max(1, min(PREPARED_COLUMNS, width)))
        held = round(most * draft.workload.preparing.at(draft.whole))
        held += _PREPARING_BYTES * draft.whole.rows + self._chunks.turn_bytes
        work = draft.take("work.prepare", "workspace", held)
        self._writer.release(0, work)

    def _close(self) -> None:
        self._turns.finish()
        for rows in self._draft.workload.rows:
            if self._slices.has(rows.name):
                self._slices.drop(rows.name)
        self._chunks.close()
        self._slices.close()

    # Forward

    def _forward(self, stage: StageWork) -> None:
        if stage.moments_of:
            self._statistic(stage)
        if not stage.writes or (self._training and stage is self._draft.ending):
            return  # moments for later stages; rows that backward makes
        draft, last = self._draft, self._read_last(stage)
        if stage.kind == "graph":
            self._columns.aggregate(stage, Op.AGGREGATE, last - {*rowwise(stage)})
        made = [name for name in stage.writes if draft.users(name)]
        for name in made:
            self._slices.open(name, "activations")
        if self._training and draft.workload.output in stage.writes:
            self._columns.open_grad(draft.workload.output)
            made.append(f"{draft.workload.output}.grad")
        if stage.kind == "graph" and (stage.index in draft.knobs.recompute or not self._training):
            last.add(f"sum.s{stage.index}")
        for part in draft.parts:
            begin = partial(self._blocks.begin, stage, last, part)
            self._turns.take(begin, partial(self._update, stage))
        self._expect(made)
        self._drop(last)

    def _expect(self, names: Iterable[str]) -> None:
        """The last block of rows that were made is still to be run."""
        for name in names:
            self._slices.expect(name, part=self._draft.parts[-1])

    def _drop(self, names: Iterable[str]) -> None:
        """Let go of tensors once the turn at hand was run."""
        names = sorted(names)
        self._dropped.update(names)
        for name in names:
            self._turns.then(partial(self._slices.drop, name))

    def _read_last(self, stage: StageWork) -> set[str]:
        """What no forward reads after a stage, and no backward."""
        found = set()
        for name in dict.fromkeys((*stage.gathers, *stage.reads)):
            last = self._draft.users(name)[-1] is stage and not self._awaited(name, stage)
            if last and not self._draft.of_edges(name) and not self._read_again(name):
                found.add(name)
        return found

    def _awaited(self, name: str, stage: StageWork) -> bool:
        """Whether moments are taken of a tensor after a stage."""
        return any(s.index > stage.index for s in self._draft.statistics(name))

    def _read_again(self, name: str) -> bool:
        """Whether a backward reads rows: as inputs of row-local code, of scores, of sums again."""
        if not self._training:
            return False
        for stage in self._draft.users(name):
            if name in rowwise(stage) or (stage.kind == "graph" and not stage.divisible):
                return True
            if stage.index in self._draft.knobs.recompute:
                return True
        return bool(self._draft.statistics(name))

    def _update(self, stage: StageWork, block: Block) -> None:
        draft, part = self._draft, block.part
        op = Op.UPDATE if stage.kind == "graph" else Op.FORWARD
        outputs, _ = self._blocks.compute(stage, block, op)
        for name, buffer in outputs.items():
            for statistic in draft.statistics(name):
                self._moments.take(statistic, part, buffer)
        if block.inputs or block.edges.brought:
            self._writer.release(0, *block.inputs.values(), *block.edges.brought)
        out = draft.workload.output
        if out in outputs and not self._training:
            self._slices.answer(part, outputs[out], kept=bool(draft.users(out)))
        elif out in outputs:
            grad = draft.loss(0, part, outputs[out])
            self._slices.store_rows(f"{out}.grad", part, grad)
        for name, buffer in outputs.items():
            if draft.users(name):
                self._slices.store_rows(name, part, buffer)
            elif name != out or self._training:
                self._writer.release(0, buffer)

    def _statistic(self, stage: StageWork) -> None:
        """The moments of all rows, of blocks that were taken as they passed, or are taken now."""
        if not self._moments.taken(stage):
            self._turns.finish()
        if not self._moments.taken(stage):
            for part in self._draft.parts:
                buffer = self._slices.bring_rows(stage.moments_of, part)
                self._slices.fill_rows(stage.moments_of, part, buffer)
                self._moments.take(stage, part, buffer)
                self._writer.release(0, buffer)
        self._turns.then(partial(self._moments.commit, stage))

    # Backward

    def _backward(self, stage: StageWork) -> None:
        draft, slices = self._draft, self._slices
        graph, total = stage.kind == "graph", f"sum.s{stage.index}"
        if graph and stage is draft.ending:
            last = self._read_last(stage) - {*rowwise(stage)}
            self._columns.aggregate(stage, Op.AGGREGATE, last)
            self._drop(last)
        elif graph and stage.index in draft.knobs.recompute:
            self._columns.aggregate(stage, Op.RECOMPUTE)
        self._turns.then(partial(self._moments.clear_grads, stage))
        added = {n for n in rowwise(stage) if n in self._columns.graded}
        wanted = [n for n in dict.fromkeys(rowwise(stage)) if draft.has_grad(n)]
        made = [f"{name}.grad" for name in wanted]
        for name in wanted:
            self._columns.open_grad(name)
        through = graph and any(draft.has_grad(n) for n in (*stage.gathers, *stage.reads))
        if through:
            slices.open(f"{total}.grad", "gradients", of=stage.gathers[0])
            made.append(f"{total}.grad")
        first = self._read_first(stage)
        last = {n for n in first if not (graph and n in stage.gathers)}
        last |= {total, *(f"{n}.grad" for n in stage.writes if n not in added)}
        for part in draft.parts:
            self._turns.take(
                partial(self._begin_backward, stage, added, last, part),
                partial(self._run_backward, stage, wanted=wanted, through=through),
            )
        self._expect(made)
        grads = [f"{name}.grad" for name in stage.writes if name in self._columns.graded]
        self._drop([*([total] if graph else []), *grads])
        if through:
            self._columns.scatter(stage)
        self._drop(first)

    def _read_first(self, stage: StageWork) -> list[str]:
        """What no backward reads after that of a stage."""
        names = dict.fromkeys((*stage.gathers, *stage.reads))
        there = [n for n in names if n not in self._inputs and self._has(n)]
        return [n for n in there if self._draft.users(n)[0] is stage]

    def _has(self, name: str) -> bool:
        return self._slices.has(name) and name not in self._dropped

    def _begin_backward(
        self, stage: StageWork, added: set[str], last: Container[str], part: int
    ) -> Block:
        block = self._blocks.begin(stage, last, part)
        names = [n for n in stage.writes if n in self._columns.graded]
        for name in dict.fromkeys((*names, *sorted(added))):
            grad = f"{name}.grad"
            block.grads[name] = self._slices.bring_rows(grad, part, last=grad in last)
        return block

    def _run_backward(
        self, stage: StageWork, block: Block, *, wanted: list[str], through: bool
    ) -> None:
        """The row-local half: from the gradients of what it wrote to those of sums and own rows."""
        draft, part = self._draft, block.part
        extent = self._blocks.extent(stage, part)
        outputs, saved = self._blocks.compute(stage, block, Op.RECOMPUTE)
        for name, buffer in block.grads.items():
            self._slices.fill_rows(f"{name}.grad", part, buffer)
        if stage is draft.ending:
            out = draft.workload.output
            block.grads[out] = draft.loss(0, part, outputs[out])
        for name, buffer in outputs.items():
            if name in block.grads:
                self._moments.give_back(name, part, buffer, block.grads[name])
        made = {}
        for name in wanted:
            num_bytes = draft.count(name, part) * draft.row_bytes(name)
            made[f"{name}.grad"] = block.grads.get(name) or draft.take(
                f"{name}.grad.p{part}", "gradients", num_bytes, holds=holding(f"{name}.grad", part)
            )
        if through:
            total = f"sum.s{stage.index}.grad"
            num_bytes = draft.count(stage.gathers[0], part) * draft.row_bytes(stage.gathers[0])
            made[total] = draft.take(
                f"{total}.p{part}", "gradients", num_bytes, holds=holding(total, part)
            )
        scratch = draft.take(
            f"work.s{stage.index}.p{part}.back", "workspace", draft.backward_held(stage, extent)
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
                *self._blocks.shared(stage), *gradients, *moments,
            ],
            writes=[*made.values(), *gradients, *moments, scratch],
            work=draft.works(
                stage.backward, draft.dense(extent.rows), kinds=ROWWISE, backward=True
            ),
        )  # fmt: skip
        done = [b for n, b in block.grads.items() if f"{n}.grad" not in made]
        done += block.edges.brought
        self._writer.release(0, scratch, *outputs.values(), *saved, *block.inputs.values(), *done)
        for name, buffer in made.items():
            self._slices.store_rows(name, part, buffer)

"""Sliced: columns instead of rows. All rows of a slice of columns are aggregated at once.

An aggregation works on every column (or head of attention) by itself: AGGREGATE takes slice after
slice over the whole topology, and every byte crosses once each way, whatever the graph. The
row-local rest of a stage, UPDATE, takes blocks of rows, all their columns. Backward does the same
in reverse: BACKWARD of a block (p) for the row-local half, then BACKWARD of a slice (c).

Legend: V nodes of the graph, P rows of a block, E edges.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from tiergnn.errors import PlanError
from tiergnn.graph.shape import GraphShape, Layout
from tiergnn.hardware.machine import Machine
from tiergnn.planner.strategies.draft import Draft
from tiergnn.planner.strategies.fitting import fitted, shortfall
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.planner.strategies.moments import Moments
from tiergnn.planner.strategies.passing import ahead
from tiergnn.planner.strategies.slices import Slices
from tiergnn.schedule.actions import Lane, Op, Work
from tiergnn.schedule.schedule import Schedule
from tiergnn.workload import Extent, StageWork, Workload

USES = ("parts", "slices", "recompute", "storage", "tier", "topology")
_ROWWISE = ("matmul", "stream")


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

    least = fitted(written(0, 0), machine)
    device, schedule = _most(partial(written, host_slices=0), knobs.slices, machine)
    schedule = schedule or least
    if knobs.tier == "disk":
        host, more = _most(lambda n: written(device, n), knobs.slices, machine)
        schedule = more if host and more is not None else schedule
    return schedule


def _most(written, limit: int, machine: Machine) -> tuple[int, Schedule | None]:
    """The largest number of slices up to a limit with which a schedule fits, and the schedule."""
    low, high, found = 0, limit, None
    while low < high:
        middle = (low + high + 1) // 2
        schedule = written(middle)
        if shortfall(schedule, machine) is None:
            low, found = middle, schedule
        else:
            high = middle - 1
    return low, found


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
                names += [n for n in stage.reads if self._like(stage, n)]
            for name in names:
                units[name] = draft.units(stage)
        self._slices = Slices(draft, units, device_frac=device_frac, host_frac=host_frac)
        self._moments = Moments(draft)
        self._graded: set[str] = set()

    def _check(self, stage: StageWork) -> None:
        if not stage.columnwise:
            raise PlanError(
                f"sliced: stage {stage.index} ({stage.op}) does not work on every column by itself",
                hint="the strategy grinnder",
            )
        made = [n for n in stage.reads if self._of_edges(n) and n not in self._inputs]
        if made:
            raise PlanError(
                f"sliced: stage {stage.index} reads rows of edges that another stage makes: "
                f"{made[0]}",
                hint="the strategy grinnder",
            )

    @property
    def _inputs(self) -> tuple[str, ...]:
        return self._draft.workload.inputs

    def _of_edges(self, name: str) -> bool:
        return self._draft.workload.row_kind(name).of == "edges"

    def _like(self, stage: StageWork, name: str) -> bool:
        """Whether rows are cut as the gathered ones are."""
        return self._draft.width(name) == self._draft.width(stage.gathers[0])

    def write(self) -> None:
        draft = self._draft
        draft.parameters(0)
        for name in self._inputs:
            if self._of_edges(name):
                num_bytes = draft.whole.edges * draft.row_bytes(name)
                self._writer.given(name, 0, "device", "features", num_bytes)
            else:
                self._slices.open(name, "features", given=True)
        self._give_topology()
        for stage in self._stages:
            self._forward(stage)
        draft.clear_gradients(0)
        for stage in reversed(self._stages):
            if self._graded.intersection(stage.writes):
                self._backward(stage)
        for name in [n for n in self._names() if self._slices.has(n)]:
            self._slices.drop(name)
        self._slices.close()
        draft.step()

    def _names(self) -> list[str]:
        return [rows.name for rows in self._draft.workload.rows]

    # Topology

    def _give_topology(self) -> None:
        draft = self._draft
        if draft.knobs.topology == "device":
            whole = draft.whole
            self._writer.given("topology", 0, "device", "topology", draft.csr_bytes(whole))
            self._writer.given(
                "topology.out", 0, "device", "topology", draft.transposed_bytes(whole)
            )
            return
        for part in draft.parts:
            for name, num_bytes in self._topology_sizes(part).items():
                self._writer.given(f"{name}.p{part}@host", 0, "host", "topology", num_bytes)

    def _topology_sizes(self, part: int) -> dict[str, int]:
        """Of the edges of a block's rows, in and out: as many, over all blocks, as of the whole."""
        extent = self._chunk(part)
        return {
            "topology": self._draft.csr_bytes(extent),
            "topology.out": self._draft.transposed_bytes(extent),
        }

    def _chunk(self, part: int) -> Extent:
        shape = self._draft.layout.parts[part]
        return Extent(shape.rows, shape.rows, shape.edges)

    # Forward

    def _forward(self, stage: StageWork) -> None:
        if stage.moments_of:
            self._statistic(stage)
        if stage.kind == "graph":
            self._aggregate(stage, Op.AGGREGATE)
        for name in stage.writes:
            if self._draft.users(name):
                self._slices.open(name, "activations")
        for block in ahead(self._draft.parts, partial(self._begin, stage)):
            self._update(stage, block)
        if stage.index in self._draft.knobs.recompute and stage.kind == "graph":
            self._slices.drop(f"sum.s{stage.index}")
        for name in dict.fromkeys((*stage.gathers, *stage.reads)):
            last = self._draft.users(name)[-1] is stage
            if last and not self._of_edges(name) and not self._read_again(name):
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

    def _aggregate(self, stage: StageWork, op: Op) -> None:
        """Slice after slice over all rows, from the gathered rows to sums."""
        main = stage.gathers[0]
        total = f"sum.s{stage.index}"
        self._slices.open(total, "activations", of=main)
        whole = {name: self._slices.bring(name, 0) for name in self._uncut(stage)}
        begun = ahead(range(self._slices.count(main)), partial(self._begin_slice, stage))
        for index, inputs in begun:
            out = self._slices.room(total, index)
            self._run_slice(stage, op, index, [*inputs.values(), *whole.values()], [out])
            for name, buffer in inputs.items():
                self._slices.leave(name, index, buffer, written=False)
            self._slices.leave(total, index, out, written=True)
        for name, buffer in whole.items():
            self._slices.leave(name, 0, buffer, written=False)

    def _cut(self, stage: StageWork) -> list[str]:
        """The tensors of nodes that an aggregation takes slice by slice."""
        names = [stage.gathers[0]]
        if self._draft.attends(stage):
            names += [n for n in stage.reads if not self._of_edges(n) and self._like(stage, n)]
        return list(dict.fromkeys(names))

    def _uncut(self, stage: StageWork) -> list[str]:
        """Those that it reads whole, whatever the slice: scores."""
        names = [*stage.gathers, *(stage.reads if self._draft.attends(stage) else ())]
        cut = self._cut(stage)
        return [n for n in dict.fromkeys(names) if n not in cut and not self._of_edges(n)]

    def _begin_slice(self, stage: StageWork, index: int) -> tuple[int, dict[str, str]]:
        return index, {name: self._slices.bring(name, index) for name in self._cut(stage)}

    def _run_slice(
        self,
        stage: StageWork,
        op: Op,
        index: int,
        reads: list[str],
        writes: list[str],
    ) -> None:
        """One slice over the topology, at once or chunk after chunk as it is brought."""
        draft = self._draft
        backward = op is Op.BACKWARD
        terms = stage.backward if backward else stage.forward
        frac = self._slices.frac(stage.gathers[0], index)
        held = stage.backward_held if backward else stage.forward_held
        edges = [n for n in stage.reads if self._of_edges(n)]
        streamed = draft.knobs.topology == "host"
        direction = "topology.out" if backward else "topology"
        for part in draft.parts if streamed else (-1,):
            extent = self._chunk(part) if streamed else draft.whole
            topology = direction
            if streamed:
                num_bytes = self._topology_sizes(part)[direction]
                topology = draft.take(f"{direction}.p{part}", "topology", num_bytes, lane=Lane.H2D)
                self._writer.add(
                    0,
                    Lane.H2D,
                    Op.COPY,
                    part=part,
                    reads=[f"{direction}.p{part}@host"],
                    writes=[topology],
                    work=[Work(kind="move", amount=num_bytes, place=draft.link("h2d"))],
                )
            beyond = held.at(Extent(0, extent.sources, extent.edges)) - held.at(Extent(0, 0, 0))
            scratch = draft.take(
                f"work.s{stage.index}.c{index}", "workspace", round(frac * max(0, beyond))
            )
            work = draft.works(terms, extent, kinds=("gather",), frac=frac, backward=backward)
            self._writer.add(
                0,
                Lane.COMPUTE,
                op,
                stage=stage.index,
                part=part,
                slice=index,
                reads=[*reads, *edges, topology],
                writes=[*writes, scratch],
                work=work,
            )
            self._writer.release(0, scratch, *([topology] if streamed else []))

    def _begin(self, stage: StageWork, part: int) -> _Block:
        """Bring a block of rows that the row-local half reads."""
        block = _Block(part)
        names = self._rowwise(stage)
        if stage.kind == "graph":
            names.append(f"sum.s{stage.index}")
        for name in names:
            if name in self._inputs and self._of_edges(name):
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
            self._open_grad(out)
            self._slices.store_rows(f"{out}.grad", part, grad)
        for name, buffer in outputs.items():
            if draft.users(name):
                self._slices.store_rows(name, part, buffer)
            else:
                self._writer.release(0, buffer)

    def _open_grad(self, name: str) -> None:
        if name not in self._graded:
            self._graded.add(name)
            self._slices.open(f"{name}.grad", "gradients", of=name)

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
            self._aggregate(stage, Op.RECOMPUTE)
        self._moments.clear_grads(stage)
        added = {n for n in self._rowwise(stage) if n in self._graded}
        wanted = [n for n in dict.fromkeys(self._rowwise(stage)) if draft.has_grad(n)]
        for name in wanted:
            self._open_grad(name)
        through = graph and any(draft.has_grad(n) for n in (*stage.gathers, *stage.reads))
        if through:
            slices.open(f"{total}.grad", "gradients", of=stage.gathers[0])
        for block in ahead(draft.parts, partial(self._begin_backward, stage, added)):
            self._run_backward(stage, block, wanted, through)
        if graph:
            slices.drop(total)
        for name in stage.writes:
            if name in self._graded:
                slices.drop(f"{name}.grad")
        if through:
            self._scatter(stage)
        for name in dict.fromkeys((*stage.gathers, *stage.reads)):
            if name not in self._inputs and slices.has(name) and draft.users(name)[0] is stage:
                slices.drop(name)
        self._moments.free(stage)

    def _begin_backward(self, stage: StageWork, added: set[str], part: int) -> _Block:
        block = self._begin(stage, part)
        names = [n for n in stage.writes if n in self._graded]
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

    def _scatter(self, stage: StageWork) -> None:
        """Slice after slice, from the gradients of sums to those of the rows that were gathered."""
        draft, slices, total = self._draft, self._slices, f"sum.s{stage.index}.grad"
        again = self._draft.attends(stage)
        cut = [n for n in self._cut(stage) if draft.has_grad(n)]
        uncut = [n for n in self._uncut(stage) if draft.has_grad(n)]
        whole = {n: slices.bring(n, 0) for n in self._uncut(stage)} if again else {}
        olds = {n for n in (*cut, *uncut) if n in self._graded}
        for name in (*cut, *uncut):
            self._open_grad(name)
        scores = {}
        for name in uncut:
            bring = slices.bring if name in olds else slices.room
            scores[name] = bring(f"{name}.grad", 0)
            if name not in olds:
                self._writer.add(0, Lane.COMPUTE, Op.ZERO, writes=[scores[name]])

        def begin(index: int) -> tuple[int, dict[str, str], dict[str, str]]:
            inputs = {total: slices.bring(total, index)}
            if again:
                inputs |= {name: slices.bring(name, index) for name in self._cut(stage)}
            return index, inputs, {n: slices.bring(f"{n}.grad", index) for n in cut if n in olds}

        for index, inputs, grads in ahead(range(slices.count(stage.gathers[0])), begin):
            read = list(grads.values())
            for name in cut:
                if name not in grads:
                    grads[name] = slices.room(f"{name}.grad", index)
            out = [*grads.values(), *scores.values()]
            reads = [*inputs.values(), *whole.values(), *read, *scores.values()]
            self._run_slice(stage, Op.BACKWARD, index, reads, out)
            for name, buffer in inputs.items():
                slices.leave(name, index, buffer, written=False)
            for name, buffer in grads.items():
                slices.leave(f"{name}.grad", index, buffer, written=True)
        for name, buffer in whole.items():
            slices.leave(name, 0, buffer, written=False)
        for name, buffer in scores.items():
            slices.leave(f"{name}.grad", 0, buffer, written=True)
        slices.drop(total)

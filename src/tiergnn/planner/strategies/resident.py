"""Resident: the whole graph, its features and all rows on one device.

Stages run forward one after the other and backward in reverse. What a stage leaves for its
backward is kept, or made again by running its forward once more. Rows are given back after their
last reader, gradients of rows reserved when they are first written. Every other strategy gives
the numbers of this one.

Names: ``h1`` rows, ``d.h1`` their gradient, ``s2`` moments; ``saved.s1`` what stage 1 keeps beyond
rows, ``work.s1``, ``work.s1.again`` and ``work.s1.back`` the scratch of its passes.
"""

from __future__ import annotations

from collections.abc import Iterable

from tiergnn.errors import ConfigError
from tiergnn.graph.shape import GraphShape, Layout
from tiergnn.hardware.machine import Machine
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.row_kinds import DTYPE_BYTES
from tiergnn.schedule.actions import Lane, Op, Work
from tiergnn.schedule.schedule import Schedule, Writer
from tiergnn.workload import PRODUCTS, Extent, StageWork, Term, Workload

NAME = "resident"
USES = ("recompute",)


def write(
    workload: Workload, shape: GraphShape, layout: Layout | None, machine: Machine, knobs: Knobs
) -> Schedule:
    """One training step; layout and machine change nothing. Raises ConfigError for other knobs."""
    knobs.check(NAME, USES)
    return training(workload, shape, recompute=knobs.recompute)


def training(workload: Workload, shape: GraphShape, *, recompute: Iterable[int] = ()) -> Schedule:
    """One training step; ``recompute`` names stages by index that keep nothing for backward.

    Raises ConfigError for a stage that the model does not have.
    """
    again = frozenset(recompute)
    known = [stage.index for stage in workload.stages]
    if strangers := again.difference(known):
        raise ConfigError(
            f"recompute names stage {min(strangers)}, the model has stages "
            + ", ".join(map(str, known))
        )
    return _Writing(workload, shape, again).training()


def evaluation(workload: Workload, shape: GraphShape) -> Schedule:
    """One pass of a workload that was traced for evaluation: nothing is kept, LOSS reads all."""
    return _Writing(workload, shape, frozenset()).evaluation()


def works(terms: Iterable[Term], extent: Extent, evenness: float, dtype: str) -> tuple[Work, ...]:
    """What a stage's terms amount to on a block that lies on the device."""
    place = dict.fromkeys(PRODUCTS, "device" if dtype == "float32" else dtype)
    return tuple(
        Work(
            kind=term.kind,
            amount=term.amount.at(extent),
            grain=max(1, term.grain),
            span=term.table.at(extent),
            place=place.get(term.kind, "device"),
            launches=term.launches,
            evenness=evenness if term.kind == "gather" else 1.0,
        )
        for term in terms
    )


class _Writing:
    """A schedule as it is written; ``again`` are the stages whose forward is run again."""

    def __init__(self, workload: Workload, shape: GraphShape, again: frozenset[int]):
        self.workload, self.shape, self.again = workload, shape, again
        nodes = shape.num_nodes
        self.extent = Extent(rows=nodes, sources=nodes, edges=shape.num_edges)
        self.kinds = {rows.name: rows for rows in workload.rows}
        self.moments = {f"s{s.index}": s.moments_of for s in workload.stages if s.moments_of}
        self.out = Writer(NAME)
        self.given: set[str] = set()  # rows that are there before the first action
        self.graded: set[str] = set()  # rows whose gradient is reserved

    def training(self) -> Schedule:
        self._give(optimizer=True)
        self._sort()
        self._prepare()
        last = self._last_backward()
        for stage in self.workload.stages:
            self._forward(stage, keep=stage.index not in self.again, training=True)
            self._release(name for name in stage.frees if name not in last)
        self._loss(last)
        for stage in reversed(self.workload.stages):
            self._backward(stage)
            self._release(name for name, index in last.items() if index == stage.index)
        self._step()
        return self.out.finish()

    def evaluation(self) -> Schedule:
        self._give(optimizer=False)
        for stage in self.workload.stages:
            self._forward(stage, keep=False, training=False)
            self._release(stage.frees)
        nodes = self.shape.num_nodes
        held = self.workload.loss_held.at(Extent(nodes, nodes, 0))
        work = self._scratch("work.loss", held)
        self._reserve(work)
        self._add(Op.LOSS, reads=[self.workload.output], writes=work)
        self._release([*work, self.workload.output])
        return self.out.finish()

    # What is there

    def _give(self, *, optimizer: bool) -> None:
        shape, workload = self.shape, self.workload
        rowptr = 8 * (shape.num_nodes + 1)
        held = rowptr + shape.num_edges * shape.id_bytes
        held += workload.topology.forward.at(self.extent)
        self.out.given("topology", 0, "device", "topology", held)
        parameters, state = workload.parameter_bytes, workload.optimizer_bytes
        if any(self.kinds[name].grad for name in workload.inputs):
            state += shape.num_nodes * workload.learned.optimizer_bytes
        self.out.given("parameters", 0, "device", "parameters", parameters)
        if workload.label_bytes:
            labels = shape.num_nodes * workload.label_bytes
            self.out.given("labels", 0, "device", "features", labels)
        if workload.buffer_bytes:
            self.out.given("buffers", 0, "device", "parameters", workload.buffer_bytes)
        if optimizer:
            out_edges = workload.topology.backward.at(self.extent)
            aggregates = any(stage.kind == "graph" for stage in workload.stages)
            if not out_edges and aggregates:  # of a workload that was not metered
                position = 4 if shape.num_edges < 2**31 else 8
                out_edges = rowptr + shape.num_edges * (shape.id_bytes + position)
            self.out.given("topology.out", 0, "device", "topology", out_edges)
            self.out.given("optimizer", 0, "device", "optimizer", state)
        for name in workload.inputs:
            self._give_input(name)

    def _give_input(self, name: str) -> None:
        """Rows of the graph, decoded at the start of the step where they are stored narrower."""
        kind = self.kinds[name]
        stored = DTYPE_BYTES.get(self.shape.feature_dtype, 8)
        if name == "x" and not kind.grad and stored < DTYPE_BYTES[kind.dtype]:
            held = self.shape.num_nodes * kind.width * stored
            self.out.given("x.stored", 0, "device", "features", held)
            self._reserve(self._rows(["x"]))
            self._add(
                Op.COPY, reads=["x.stored"], writes=["x"], work=[_copy(held, self._row_bytes("x"))]
            )
            return
        self.given.add(name)
        purpose = "parameters" if kind.grad else "features"
        self.out.given(name, 0, "device", purpose, self._row_bytes(name))

    def _sort(self) -> None:
        """Room for sorting the edges, before there is anything of a step."""
        work = self._scratch("work.sort", self.workload.topology.sorting.at(self.extent))
        self._reserve(work)
        self._release(work)

    def _prepare(self) -> None:
        """Room for what prepared rows are made of, before the first step: the features where
        nothing else reads them, and rows on the way."""
        if not self.workload.prepared:
            return
        nodes, features = self.shape.num_nodes, self.shape.num_features
        held = self.workload.preparing.at(self.extent)
        if "x" not in self.workload.inputs:
            stored, read = (
                DTYPE_BYTES.get(dtype, 8)
                for dtype in (self.shape.feature_dtype, self.workload.dtype)
            )
            held += nodes * features * (read + (stored if stored < read else 0))
        work = self._scratch("work.prepare", held)
        self._reserve(work)
        self._release(work)

    # Forward

    def _forward(self, stage: StageWork, *, keep: bool, training: bool) -> None:
        index = stage.index
        kept = stage.kept.at(self.extent) if keep else 0
        held = stage.kept_held if keep else stage.forward_held
        work = self._scratch(f"work.s{index}", held.at(self.extent) - kept)
        saved = [self._declare(f"saved.s{index}", "saved", kept)] if keep else []
        moments = self._rows([f"s{index}"] if stage.moments_of else [])
        # Moments are made before the rows are, in scratch that counts on the rows' room.
        self._reserve([*moments, *self._rows(stage.writes), *saved, *work])
        if stage.moments_of:
            self._add(Op.MOMENTS, stage=index, reads=[stage.moments_of], writes=[*moments, *work])
            if training:
                self._add(Op.COMMIT, stage=index, reads=moments)
        self._add(
            Op.FORWARD,
            stage=index,
            reads=self._inputs(stage, "topology"),
            writes=[*stage.writes, *saved, *work],
            work=self._works(stage.forward, backward=False),
        )
        self._release(work)

    def _inputs(self, stage: StageWork, topology: str) -> list[str]:
        """What a pass over the stage reads besides what was kept."""
        names = [*stage.gathers, *stage.reads, *stage.statistics]
        if stage.kind == "graph":
            names.append(topology)
        return names + ["parameters"] * (stage.parameter_bytes > 0)

    # Loss, backward and step

    def _last_backward(self) -> dict[str, int]:
        """Rows that a backward reads -> the stage of the last backward that does."""
        last: dict[str, int] = {}
        for stage in reversed(self.workload.stages):
            names: tuple[str, ...] = stage.saves
            if stage.index in self.again:
                names = (*stage.gathers, *stage.reads, *stage.statistics)
            if stage.moments_of:
                names = (*names, stage.moments_of, f"s{stage.index}")
            last |= dict.fromkeys(names, stage.index)
        return last

    def _loss(self, last: dict[str, int]) -> None:
        output, labelled = self.workload.output, self.shape.num_labelled
        extent = Extent(labelled, self.shape.num_nodes, 0)
        work = self._scratch("work.loss", self.workload.loss_held.at(extent))
        self._reserve([*self._gradients([output]), *work])
        self._add(
            Op.LOSS,
            reads=[output],
            writes=[f"d.{output}", *work],
            work=works(self.workload.loss, extent, 1.0, self.workload.dtype),
        )
        self._release([*work, *([] if output in last else [output])])

    def _backward(self, stage: StageWork) -> None:
        index, keep = stage.index, stage.index not in self.again
        incoming = [f"d.{name}" for name in stage.writes if name in self.graded]
        saved = f"saved.s{index}"
        # Moments that only later stages read have a gradient where no row of the stage has one.
        own = [f"d.s{index}"] if stage.moments_of and f"s{index}" in self.graded else []
        if not incoming and not own:
            self._release([saved] if keep else [])
            return
        if not keep:
            self._recompute(stage, saved)
        read = dict.fromkeys((*stage.gathers, *stage.reads, *stage.statistics))
        wanted = [name for name in read if self._has_gradient(name)]
        added = [f"d.{name}" for name in wanted if name in self.graded]
        new = self._gradients(wanted)
        reads = [*incoming, *own, saved, *added, *self._kept_rows(stage)]
        reads += ["topology.out"] * (stage.kind == "graph")
        writes = [f"d.{name}" for name in wanted]
        if stage.parameter_bytes:
            reads += ["parameters", *(["gradients"] if "parameters" in self.graded else [])]
            writes += ["gradients"]
            if "parameters" not in self.graded:
                self.graded.add("parameters")
                new += [self._declare("gradients", "gradients", self.workload.parameter_bytes)]
        work = self._scratch(f"work.s{index}.back", stage.backward_held.at(self.extent))
        self._reserve([*new, *work])
        self._add(
            Op.BACKWARD,
            stage=index,
            reads=reads,
            writes=[*writes, *work],
            work=self._works(stage.backward, backward=True),
        )
        own = [f"d.s{index}"] if f"s{index}" in self.graded else []
        self._release([*work, saved, *incoming, *own])

    def _recompute(self, stage: StageWork, saved: str) -> None:
        """The forward once more.

        Of the rows that it writes again, those that its backward reads live until then.
        """
        rewritten = {name: self._row_bytes(name) for name in stage.writes}
        kept = stage.kept.at(self.extent)
        own = sum(size for name, size in rewritten.items() if name in stage.saves)
        passing = sum(rewritten.values()) - own
        self._declare(saved, "saved", kept + own)
        held = stage.kept_held.at(self.extent) - kept + passing
        work = self._scratch(f"work.s{stage.index}.again", held)
        self._reserve([saved, *work])
        self._add(
            Op.RECOMPUTE,
            stage=stage.index,
            reads=self._inputs(stage, "topology"),
            writes=[saved, *work],
            work=self._works(stage.forward, backward=False),
        )
        self._release(work)

    def _kept_rows(self, stage: StageWork) -> list[str]:
        """The rows that its backward reads by name."""
        own = () if stage.index in self.again else stage.writes
        readable = (*stage.gathers, *stage.reads, *stage.statistics, *own)
        names = [name for name in stage.saves if name in readable]
        if stage.moments_of:
            names += [stage.moments_of, f"s{stage.index}"]
        return names

    def _step(self) -> None:
        learned = [name for name in self.workload.inputs if self.kinds[name].grad]
        rows = self.shape.num_nodes * bool(learned)
        held = self.workload.step_held + rows * self.workload.learned.step_held
        work = self._scratch("work.step", held)
        gradients = [f"d.{name}" for name in learned if name in self.graded]
        gradients += ["gradients"] * ("parameters" in self.graded)
        self._reserve(work)
        self._add(
            Op.STEP,
            reads=[*gradients, "parameters", "optimizer", *learned],
            writes=["parameters", "optimizer", *learned, *work],
            work=works(self.workload.step, self.extent, 1.0, self.workload.dtype),
        )
        self._release([*gradients, *work])

    # Small things

    def _row_bytes(self, name: str) -> int:
        if name in self.moments:
            of = self.kinds[self.moments[name]]
            return 3 * of.width * max(4, DTYPE_BYTES[of.dtype])
        kind = self.kinds[name]
        count = self.shape.num_edges if kind.of == "edges" else self.shape.num_nodes
        return count * kind.row_bytes

    def _has_gradient(self, name: str) -> bool:
        return self.kinds[self.moments.get(name, name)].grad

    def _declare(self, name: str, kind: str, num_bytes: int) -> str:
        return self.out.buffer(name, 0, "device", kind, num_bytes)

    def _rows(self, names: Iterable[str]) -> list[str]:
        return [self._declare(name, "activations", self._row_bytes(name)) for name in names]

    def _gradients(self, names: Iterable[str]) -> list[str]:
        """Those of the rows' gradients that nothing was written to yet."""
        new = [name for name in names if name not in self.graded]
        self.graded |= set(new)
        return [self._declare(f"d.{name}", "gradients", self._row_bytes(name)) for name in new]

    def _scratch(self, name: str, num_bytes: int) -> list[str]:
        """A workspace as a list of one; none where nothing is needed."""
        return [self._declare(name, "workspace", num_bytes)] if num_bytes > 0 else []

    def _reserve(self, names: Iterable[str]) -> None:
        names = tuple(names)
        if names:
            self.out.reserve(0, *names)

    def _release(self, names: Iterable[str]) -> None:
        names = [name for name in names if name not in self.given]
        if names:
            self.out.release(0, *names)

    def _works(self, terms: Iterable[Term], *, backward: bool) -> tuple[Work, ...]:
        """Forward reads a row as often as it has out-edges, backward as often as in-edges."""
        degrees = self.shape.in_degrees if backward else self.shape.out_degrees
        gathers = any(term.kind == "gather" for term in terms)
        return works(terms, self.extent, degrees.evenness if gathers else 1.0, self.workload.dtype)

    def _add(
        self,
        op: Op,
        *,
        stage: int = -1,
        reads: Iterable[str],
        writes: Iterable[str] = (),
        work: Iterable[Work] = (),
    ) -> None:
        self.out.add(0, Lane.COMPUTE, op, stage=stage, reads=reads, writes=writes, work=work)


def _copy(read: int, written: int) -> Work:
    return Work(kind="stream", amount=read + written)

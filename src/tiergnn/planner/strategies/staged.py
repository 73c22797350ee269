"""Staged: one device that visits the parts of a graph stage by stage; rows lie at Home between.

Lanes bring a part's rows and take its results away while the part between them computes. In
backward a stage's forward is run again on each part.

Legend: P rows of one part, S source rows it reads, E edges.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from tiergnn.planner.strategies.again import again_of
from tiergnn.planner.strategies.draft import Draft
from tiergnn.planner.strategies.gathering import Gathering
from tiergnn.planner.strategies.giving import Giving
from tiergnn.planner.strategies.home import Home
from tiergnn.planner.strategies.moments import Moments
from tiergnn.planner.strategies.passing import Leaving, ahead
from tiergnn.schedule.actions import Lane, Op, moved
from tiergnn.schedule.contents import Content, What
from tiergnn.workload import StageWork


@dataclass(slots=True)
class _Visit:
    """What one visit to a part holds on the device: buffers by the rows that they hold."""

    stage: StageWork
    part: int
    topology: list[str] = field(default_factory=list)
    inputs: dict[str, str] = field(default_factory=dict)
    grads: dict[str, str] = field(default_factory=dict)  # that were brought
    outputs: dict[str, str] = field(default_factory=dict)
    extra: list[str] = field(default_factory=list)


class Staged:
    """Writes the visits of one training step, or of an evaluation.

    ``snapshot``: gathered rows are kept at Home for backward, else gathered again there.
    ``piecewise``: rows are gathered from one part after the other, so that host memory need not
    hold all of them at once. ``serpentine``: every other walk goes backwards through the parts, and
    starts with what is at hand.
    """

    def __init__(
        self,
        draft: Draft,
        home: Home,
        *,
        snapshot: bool = False,
        piecewise: bool = False,
        serpentine: bool = False,
    ) -> None:
        self._draft, self._home, self._writer = draft, home, draft.writer
        self._snapshot, self._serpentine = snapshot, serpentine
        self._stages = draft.workload.stages
        self._training, self._walks = True, 0
        self._gathering = Gathering(draft, home, piecewise=piecewise)
        self._giving = Giving(draft, home, self._gathering, piecewise=piecewise)
        self._graded: set[str] = set()
        self._moments = Moments(draft)
        self._leaving = Leaving(draft)

    def write(self) -> None:
        """One training step."""
        draft = self._draft
        self._open()
        for stage in self._stages:
            self._forward(stage)
        draft.clear_gradients(0)
        for stage in reversed(self._stages):
            if stage is draft.ending or self._graded.intersection(stage.writes):
                self._backward(stage)
            self._moments.free(stage)
        self._close()
        draft.step()

    def write_evaluation(self) -> None:
        """Forward alone, of a workload that was traced for evaluation. The output's rows that are
        asked for stay in host memory; all else is dropped after its last reader."""
        self._training = False
        self._open()
        for stage in self._stages:
            self._forward(stage)
            for name in dict.fromkeys((*stage.gathers, *stage.reads)):
                given = name in self._draft.workload.inputs
                if not given and self._last_reader(name) is stage:
                    self._drop(name)
                    self._gathering.cool(name)
        for stage in self._stages:
            self._moments.free(stage)
        self._close()

    def _last_reader(self, name: str) -> StageWork:
        """Of rows, or of what their moments are taken of."""
        return [s for s in self._stages if name in (*s.gathers, *s.reads) or name == s.moments_of][
            -1
        ]

    def _open(self) -> None:
        draft = self._draft
        draft.parameters(0, optimizer=self._training)
        for name in draft.workload.inputs:
            for part in draft.parts:
                num_bytes = draft.count(name, part) * draft.stored_bytes(name)
                self._home.given(
                    f"{name}.p{part}", "features", num_bytes, Content(What.ROWS, name, part)
                )
        for part in draft.parts:
            self._gathering.give_topology(part)
        for name in draft.workload.inputs:
            self._gathering.heat(name, given=True)

    def _close(self) -> None:
        self._leaving.close()
        self._giving.close()
        self._home.close()
        self._gathering.close()

    def _walk(self) -> list[int]:
        """The parts in the order of the next walk."""
        self._walks += 1
        parts = list(self._draft.parts)
        return parts[::-1] if self._serpentine and self._walks % 2 == 0 else parts

    # Forward

    def _forward(self, stage: StageWork) -> None:
        draft = self._draft
        if stage.moments_of:
            self._statistic(stage)
        if not stage.writes or (self._training and stage is self._draft.ending):
            return  # moments for later stages; rows that backward makes
        for name in stage.writes:
            self._gathering.heat(name)
        for visit in ahead(self._walk(), partial(self._begin, stage)):
            self._compute(visit, Op.FORWARD)
            self._end_forward(visit)
        for name in dict.fromkeys((*stage.gathers, *stage.reads)):
            if self._snapshot and draft.users(name)[-1] is stage and self._only_gathered(name):
                self._drop(name)

    def _only_gathered(self, name: str) -> bool:
        """Whether every reader gathers a tensor: its snapshots then do for backward."""
        return all(name in stage.gathers for stage in self._draft.users(name))

    def _begin(self, stage: StageWork, part: int) -> _Visit:
        """Bring what a stage reads of a part in forward."""
        visit = _Visit(stage, part)
        # Row-local code may ask for degrees, too.
        visit.topology, visit.extra = self._gathering.bring_topology(part, backward=False)
        for name in stage.gathers:
            visit.inputs[name] = self._gathering.gather(name, part)
        self._bring_reads(visit)
        return visit

    def _bring_reads(self, visit: _Visit) -> None:
        for name in visit.stage.reads:
            if name not in visit.inputs:
                visit.inputs[name] = self._bring_own(name, visit.part)

    def _bring_own(self, name: str, part: int) -> str:
        rows, holds = self._draft.count(name, part), Content(What.ROWS, name, part)
        return self._gathering.bring(f"{name}.p{part}", "activations", rows, holds)

    def _compute(self, visit: _Visit, op: Op) -> None:
        """Run a stage's forward on a part; RECOMPUTE keeps what its backward needs."""
        draft, stage, part = self._draft, visit.stage, visit.part
        extent = self._gathering.extent(part)
        for name in stage.gathers:
            self._gathering.add_hot(name, part, visit.inputs[name])
        again = again_of(draft, stage)
        unread = again.unread if op is Op.RECOMPUTE else ()
        for name in (n for n in stage.writes if n not in unread):
            num_bytes = draft.count(name, part) * draft.row_bytes(name)
            holds = Content(What.ROWS, name, part)
            visit.outputs[name] = draft.take(
                f"{name}.p{part}", "activations", num_bytes, holds=holds
            )
        held, terms, kept = stage.forward_held.at(extent), stage.forward, 0
        saved = []
        if op is Op.RECOMPUTE:
            held, terms, kept = again.held.at(extent), again.works, stage.kept.at(extent)
            holds = Content(What.SAVED, f"s{stage.index}", part)
            saved = [draft.take(f"saved.s{stage.index}.p{part}", "saved", kept, holds=holds)]
        scratch = draft.take(f"work.s{stage.index}.p{part}", "workspace", max(0, held - kept))
        self._writer.add(
            0,
            Lane.COMPUTE,
            op,
            stage=stage.index,
            part=part,
            reads=[*visit.inputs.values(), *visit.topology, *self._shared(stage)],
            writes=[*visit.outputs.values(), *saved, scratch],
            work=draft.works(terms, extent),
        )
        self._writer.release(0, scratch)
        visit.extra = [*visit.extra, *saved]

    def _shared(self, stage: StageWork) -> list[str]:
        """What a stage reads that is of no part."""
        parameters = ["parameters"] if stage.parameter_bytes else []
        return [*parameters, *self._moments.of(stage)]

    def _end_forward(self, visit: _Visit) -> None:
        """Take of a part's outputs what is taken on the device, then let them go Home."""
        draft, stage, part = self._draft, visit.stage, visit.part
        for name, buffer in visit.outputs.items():
            for statistic in draft.statistics(name):
                self._moments.take(statistic, part, buffer)
            self._gathering.keep_hot(name, part, buffer)
        if self._snapshot:
            for name in stage.gathers:
                num_bytes = self._gathering.extent(part).sources * draft.stored_bytes(name)
                entry = f"{name}.p{part}.in.s{stage.index}"
                self._home.store(
                    entry, "saved", num_bytes, visit.inputs[name], stage=stage.index, part=part,
                    holds=Content(What.SOURCES, name, part),
                )  # fmt: skip
        self._leave(visit)
        out = draft.workload.output
        if out in visit.outputs and not self._training:
            self._answer(out, visit)
        elif out in visit.outputs:
            grad = draft.loss(0, part, visit.outputs[out])
            self._save("gradients", grad, visit, Content(What.GRAD, out, part))
            self._graded.add(out)
        for name, buffer in visit.outputs.items():
            if draft.users(name):
                self._save("activations", buffer, visit, Content(What.ROWS, name, part))
            else:
                self._writer.release(0, buffer)

    def _save(self, kind: str, buffer: str, visit: _Visit, holds: Content) -> None:
        """A part's own rows, or their gradient, from the device to Home."""
        self._leaving.close()
        name, part = holds.of, holds.part
        entry = f"{name}.grad.p{part}" if holds.what is What.GRAD else f"{name}.p{part}"
        num_bytes = self._draft.count(name, part) * self._draft.stored_bytes(name)
        self._home.store(
            entry, kind, num_bytes, buffer, stage=visit.stage.index, part=part, holds=holds
        )
        self._leaving.leave(buffer)

    def _answer(self, out: str, visit: _Visit) -> None:
        """Those of a part's rows of the model's output that are asked for stay in host memory."""
        answer, num_bytes = self._draft.answer(visit.part)
        self._writer.reserve(0, answer, lane=Lane.D2H)
        work = moved(num_bytes, self._draft.link("d2h"))
        self._gathering.copy(Lane.D2H, visit.part, [visit.outputs[out]], answer, work)

    def _leave(self, visit: _Visit) -> None:
        """Give back what was brought for a visit."""
        buffers = [*visit.inputs.values(), *visit.grads.values(), *visit.extra]
        if buffers:
            self._writer.release(0, *buffers)
        visit.extra = []

    def _drop(self, name: str) -> None:
        self._home.drop(*(f"{name}.p{part}" for part in self._draft.parts))

    def _statistic(self, stage: StageWork) -> None:
        """The moments of all rows, of parts that were taken as they passed, or are taken now."""
        draft, rows = self._draft, stage.moments_of
        if not self._moments.taken(stage):
            for part in draft.parts:
                buffer = self._bring_own(rows, part)
                self._moments.take(stage, part, buffer)
                self._writer.release(0, buffer)
        self._moments.commit(stage)

    # Backward

    def _backward(self, stage: StageWork) -> None:
        draft = self._draft
        wanted = [n for n in dict.fromkeys((*stage.gathers, *stage.reads)) if draft.has_grad(n)]
        self._moments.clear_grads(stage)
        for name in wanted:
            if name not in self._graded and not self._alone(name, stage):
                self._giving.clear(name)
        for visit in ahead(self._walk(), partial(self._begin_backward, stage)):
            self._run_backward(visit, wanted)
        self._graded.update(wanted)
        for name in dict.fromkeys((*stage.gathers, *stage.reads)):
            if name in draft.workload.inputs or draft.users(name)[0] is not stage:
                continue
            self._gathering.cool(name)
            if self._home.has(f"{name}.p0"):
                self._drop(name)

    def _alone(self, name: str, stage: StageWork) -> bool:
        """Whether a tensor's gradient comes of one stage's own rows alone, and needs no adding."""
        return self._draft.users(name) == [stage] and name not in stage.gathers

    def _begin_backward(self, stage: StageWork, part: int) -> _Visit:
        draft, visit = self._draft, _Visit(stage, part)
        graph = stage.kind == "graph"
        visit.topology, visit.extra = self._gathering.bring_topology(part, backward=graph)
        for name in stage.gathers:
            if self._snapshot and stage is not draft.ending:
                entry = f"{name}.p{part}.in.s{stage.index}"
                sources = self._gathering.extent(part).sources
                holds = Content(What.SOURCES, name, part)
                visit.inputs[name] = self._gathering.bring(entry, "activations", sources, holds)
                self._home.drop(entry)
            else:
                visit.inputs[name] = self._gathering.gather(name, part)
        self._bring_reads(visit)
        for name in stage.writes:
            if name in self._graded:
                visit.grads[name] = self._giving.collect(name, part)
        return visit

    def _run_backward(self, visit: _Visit, wanted: list[str]) -> None:
        draft, stage, part = self._draft, visit.stage, visit.part
        extent = self._gathering.extent(part)
        self._compute(visit, Op.RECOMPUTE)
        if stage is draft.ending:
            out = draft.workload.output
            visit.grads[out] = draft.loss(0, part, visit.outputs[out])
        for name, buffer in visit.outputs.items():
            if name in visit.grads:
                self._moments.give_back(name, part, buffer, visit.grads[name])
        grads = {}
        for name in wanted:
            rows = extent.sources if name in stage.gathers else draft.count(name, part)
            suffix = ".in" if name in stage.gathers else ""
            what = What.SOURCES_GRAD if name in stage.gathers else What.GRAD
            grads[name] = draft.take(
                f"{name}.grad.p{part}{suffix}", "gradients", rows * draft.row_bytes(name),
                holds=Content(what, name, part),
            )  # fmt: skip
        moments = self._moments.grads_of(stage)
        scratch = draft.take(
            f"work.s{stage.index}.p{part}.back", "workspace", draft.backward_held(stage, extent)
        )
        gradients = ["gradients"] if stage.parameter_bytes else []
        self._writer.add(
            0,
            Lane.COMPUTE,
            Op.BACKWARD,
            stage=stage.index,
            part=part,
            reads=[
                *visit.inputs.values(), *visit.outputs.values(), *visit.grads.values(),
                *visit.extra, *visit.topology, *self._shared(stage), *gradients, *moments,
            ],
            writes=[*grads.values(), *gradients, *moments, scratch],
            work=draft.works(stage.backward, extent, backward=True),
        )  # fmt: skip
        self._writer.release(0, scratch, *visit.outputs.values())
        self._leave(visit)
        for name, buffer in grads.items():
            self._give(visit, name, buffer)

    def _give(self, visit: _Visit, name: str, buffer: str) -> None:
        """What a part gives to the gradients of rows that it read goes to those rows' owners."""
        stage, part = visit.stage, visit.part
        if self._alone(name, stage):
            self._save("gradients", buffer, visit, Content(What.GRAD, name, part))
            return
        self._leaving.close()
        self._giving.give(stage, part, name, buffer)
        self._leaving.leave(buffer)

"""The action loop: walks a schedule over a program and a block, and holds buffers by their names.

Whatever could be chosen, the schedule says: what is kept or made again, when rows and gradients
are given back. Stages that follow each other and are kept are one graph, whose backward is one
call of autograd: it runs them in reverse, as their BACKWARD actions stand. Between such runs rows
are cut from their history, and contributions to one gradient are added in the order of the actions.

Legend: V nodes, D columns, C outputs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tiergnn.errors import PlanError, TiergnnError
from tiergnn.kernels.block import Block
from tiergnn.kernels.dropout import Key
from tiergnn.models.moments import moments_grad
from tiergnn.models.passes import Kept, cut, run_backward, run_forward, starts
from tiergnn.models.stages import Stage
from tiergnn.models.trace import Program
from tiergnn.schedule.actions import Action, Op
from tiergnn.schedule.schedule import HERE, Schedule
from tiergnn.schedule.timeline import Span, Timeline

_AROUND = 4  # lines of a schedule shown before and after the step that failed


class Walk:
    """A schedule of one rank whose rows all lie on its device, to be walked once a step.

    ``load`` gives the rows of an input by its name, as the program reads them.
    Raises PlanError for a schedule that asks for what this executor does not do.
    """

    def __init__(
        self, program: Program, schedule: Schedule, block: Block, load: Callable[[str], Tensor]
    ):
        self.schedule = schedule
        self._program, self._block, self._load = program, block, load
        self._stages = {stage.index: stage for stage in program.stages}
        self._training = program.training
        does: dict[Op, Callable[[Action], None]] = {
            Op.RELEASE: self._release,
            Op.COPY: self._copy,
            Op.FORWARD: self._forward if self._training else self._infer,
            Op.MOMENTS: self._moments,
            Op.COMMIT: self._commit,
            Op.LOSS: self._loss,
            Op.RECOMPUTE: self._recompute,
            Op.BACKWARD: self._backward,
        }
        self._steps: list[tuple[Action, Callable[[Action], None]]] = []
        self._step: Action | None = None
        for action in schedule.actions:
            if action.op == Op.STEP:
                self._step = action
            elif action.op in does and action.rank == 0:
                self._steps.append((action, does[action.op]))
            elif action.op != Op.RESERVE:  # the allocator makes room when something is written
                raise PlanError(
                    f"one device that holds everything does not {action.op}",
                    culprit=str(action),
                    hint="the resident strategy",
                )
        copied = {name for a in schedule.actions if a.op == Op.COPY for name in a.writes}
        self._given = [name for name in program.needs if name not in copied]
        self._backwards = {a.stage: a for a in schedule.actions if a.op == Op.BACKWARD}
        self._run_of = _runs(schedule) if self._training else {}
        self._outside = self._read_outside()
        on_cpu = block.device.type == "cpu"
        self._clock = time.perf_counter if on_cpu else _event
        self._held: dict[str, Any] = {}
        self._attached: dict[str, Tensor] = {}  # rows with their history in the run now at work
        self._graphs: dict[int, Kept] = {}  # by the first stage of a run
        self._done: set[int] = set()  # stages whose backward has run
        self._begun_backwards: set[int] = set()  # their actions, where they are measured
        self._key: Key | None = None
        self._of_out: Callable[[Tensor], Tensor] | None = None
        self._result: Tensor | None = None
        self._marks: list[tuple[Action, Any]] | None = None  # of the step at work, if measured
        self._measured: list[tuple[Action, Any]] = []
        self._host_began: Any = None
        self._end: Any = None
        self._moved: Any = None  # when the parameters were

    def _read_outside(self) -> set[str]:
        """Rows and moments written in a run and read by others: they are cut from their history."""
        run_of, maker = self._run_of, {}
        outside = set()
        for stage in self._program.stages:
            names = {*stage.gathers, *stage.reads, *stage.statistics}
            if stage.statistic is not None:
                names.add(stage.statistic.of)
                maker[stage.statistic.name] = run_of.get(stage.index)
            here = run_of.get(stage.index)
            outside |= {n for n in names if n in maker and (here is None or maker[n] != here)}
            maker |= dict.fromkeys(stage.writes, here)
        last = run_of.get(self._program.stages[-1].index) if self._program.stages else None
        self._ends_in_loss = last is not None and maker.get(self._program.output) == last
        return outside if self._ends_in_loss else outside | {self._program.output}

    def run(
        self,
        key: Key | None,
        loss_of_out: Callable[[Tensor], Tensor] | None = None,
        *,
        measure: bool = False,
    ) -> Tensor:
        """Everything before STEP: the loss in training, else the output [V, C].

        Gradients of parameters are added to their ``.grad``. A failure leaves nothing held and
        says where in the schedule it happened.
        """
        action: Action | None = None
        marks = self._marks = [] if measure else None
        self._key, self._of_out = key, loss_of_out
        try:
            for name in self._given:
                self._held[name] = self._load(name)
            for action, do in self._steps:
                if marks is not None:
                    self._mark(action)
                do(action)
            assert self._result is not None
            return self._result
        except Exception as error:
            if action is not None and not isinstance(error, TiergnnError):
                error.add_note(around(self.schedule, action.index))
            raise
        finally:
            for held in (self._held, self._attached, self._graphs, self._done):
                held.clear()
            self._begun_backwards.clear()
            self._of_out = self._result = self._marks = None
            if marks:
                self._measured, self._end, self._moved = marks, self._clock(), None

    def begin(self, *, measured: bool) -> None:
        """A step begins, on the host, that is run or replayed; of one that is ``measured``, note
        when, and when its STEP ends."""
        if measured:
            self._host_began, self._moved = self._clock(), None

    def update(self, move: Callable[[], Any]) -> None:
        """The schedule's STEP: ``move()`` has the optimizer move the parameters."""
        move()
        if self._measured and self._moved is None:
            self._moved = self._clock()

    def timeline(self, peak_bytes: int) -> Timeline | None:
        """When each action ran in the step that was measured last; None before any.

        What the host does before the first one is the time before that; between the last one and
        the parameters' move, it is STEP's. On CUDA this waits for the device.
        """
        if not self._measured:
            return None
        first = self._measured[0][1] if self._host_began is None else self._host_began
        times = [_seconds(first, mark) for mark in (*(m for _, m in self._measured), self._end)]
        spans = [
            _span(action, times[i], times[i + 1]) for i, (action, _) in enumerate(self._measured)
        ]
        if self._step is not None and self._moved is not None:
            spans.append(_span(self._step, times[-1], _seconds(first, self._moved)))
        return Timeline(
            source="measured", spans=tuple(spans), peak_bytes=((0, "device", peak_bytes),)
        )

    def _mark(self, action: Action) -> None:
        """An action begins, and the one before it ends; a BACKWARD may have begun long ago."""
        assert self._marks is not None
        if action.op == Op.BACKWARD:
            if action.index in self._begun_backwards:
                return
            self._begun_backwards.add(action.index)
        self._marks.append((action, self._clock()))

    def _mark_backward(self, stage: int, rows: Iterable[Tensor]) -> None:
        """When the gradient of something that a stage wrote is complete, its backward begins."""
        if self._marks is None or stage not in self._backwards:
            return
        for row in rows:
            if row.requires_grad:
                row.register_hook(lambda _: self._mark(self._backwards[stage]))

    # What each action does

    def _release(self, action: Action) -> None:
        for name in action.writes:
            self._held.pop(name, None)
            self._attached.pop(name, None)

    def _copy(self, action: Action) -> None:
        for name in action.writes:
            self._held[name] = self._load(name)

    def _infer(self, action: Action) -> None:
        self._held |= self._stages[action.stage].run(self._block, None, self._held)

    def _forward(self, action: Action) -> None:
        """FORWARD; whether it keeps anything is whether it writes what is saved."""
        stage = self._stages[action.stage]
        if stage.index not in self._run_of:
            self._attached.clear()
            self._held |= self._alone(stage, keep=False)[0]
            return
        rows = self._begun(stage, (*stage.gathers, *stage.reads, *stage.edges, *stage.statistics))
        with torch.enable_grad():
            written = stage.run(self._block, self._key, rows)
        self._write(stage, written)

    def _recompute(self, action: Action) -> None:
        _, kept = self._alone(self._stages[action.stage], keep=True)
        self._held[f"saved.s{action.stage}"] = kept

    def _alone(self, stage: Stage, *, keep: bool) -> tuple[dict[str, Tensor], Kept | None]:
        return run_forward(stage, self._block, self._key, self._held, keep=keep)

    def _begun(self, stage: Stage, names: Iterable[str]) -> dict[str, Tensor]:
        """Rows with their history in the stage's run, or as its starts."""
        run = self._run_of[stage.index]
        if run not in self._graphs:
            self._attached.clear()
            self._graphs[run] = Kept()
        new = {name: self._held[name] for name in names if name not in self._attached}
        if new:
            self._attached |= starts(new, self._graphs[run].found)
        return self._attached

    def _write(self, stage: Stage, written: Mapping[str, Tensor]) -> None:
        """What a stage of a run wrote; what others read of it is cut from its history."""
        self._attached |= written
        kept = self._graphs[self._run_of[stage.index]]
        for name in self._outside & written.keys():
            self._held[name] = cut(name, written[name], kept)
        self._mark_backward(stage.index, written.values())

    def _moments(self, action: Action) -> None:
        stage = self._stages[action.stage]
        assert stage.statistic is not None
        name, of = stage.statistic.name, stage.statistic.of
        if stage.index in self._run_of:
            rows = self._begun(stage, [of])
            with torch.enable_grad():
                own, rows[of] = stage.partial_beside(self._block, rows)
                values = stage.combine([own])
            self._attached[name] = values
            if name in self._outside:
                self._held[name] = cut(name, values, self._graphs[self._run_of[stage.index]])
            return
        self._attached.clear()
        with torch.no_grad():
            values = stage.combine([stage.partial(self._block, self._held)])
        self._held[name] = values.requires_grad_(self._held[of].requires_grad)

    def _commit(self, action: Action) -> None:
        stage = self._stages[action.stage]
        assert stage.statistic is not None
        name = stage.statistic.name
        values = self._attached[name] if name in self._attached else self._held[name]
        stage.commit(values, self._block.num_dst)

    def _loss(self, action: Action) -> None:
        name = self._program.output
        if self._of_out is None:
            self._result = self._held[name]
            return
        kept = Kept()
        if self._ends_in_loss:
            run = self._run_of[self._program.stages[-1].index]
            kept = self._graphs.pop(run)
            loss = self._of_out(self._attached[name])
            self._attached.clear()  # what backward reads, the graph holds
            self._done |= {index for index, first in self._run_of.items() if first == run}
        else:
            loss = self._of_out(starts({name: self._held[name]}, kept.found)[name])
        loss.backward()
        self._result = loss.detach()
        self._add_all(kept.found)

    def _backward(self, action: Action) -> None:
        stage = self._stages[action.stage]
        if stage.index in self._done:
            return
        run = self._run_of.get(stage.index)
        if run is None:
            kept = self._held.pop(f"saved.s{stage.index}")
        else:
            kept = self._graphs.pop(run)
            self._done |= {index for index, first in self._run_of.items() if first == run}
        names = [name for name in kept.ends if f"d.{name}" in self._held]
        self._add_all(run_backward(kept, {n: self._held.pop(f"d.{n}") for n in names}))
        of = stage.statistic
        if run is None and of is not None and f"d.{of.name}" in self._held:
            self._add_moments(of.of, self._held[of.name], self._held.pop(f"d.{of.name}"))

    def _add_moments(self, name: str, values: Tensor, grad: Tensor) -> None:
        """Add to the gradient of rows what their moments give: in place as ``_add`` does."""
        row, key = self._held[name], f"d.{name}"
        if key in self._held and _is_sole(self._held, key):
            moments_grad(row, values, grad, add_to=self._held[key])
        else:
            self._add(name, moments_grad(row, values, grad))

    def _add_all(self, found: dict[str, Tensor]) -> None:
        for name in list(found):
            self._add(name, found.pop(name))

    def _add(self, name: str, grad: Tensor) -> None:
        """Add to the gradient of rows: in place where nothing else holds the sum so far."""
        row, key = self._held.get(name), f"d.{name}"
        if isinstance(row, nn.Parameter):
            row.grad = grad if row.grad is None else row.grad + grad
        elif key not in self._held:
            self._held[key] = grad
        elif _is_sole(self._held, key):
            self._held[key].add_(grad)
        else:
            self._held[key] = self._held[key] + grad


def _runs(schedule: Schedule) -> dict[int, int]:
    """Kept stage -> the first of those that follow each other and are kept."""
    runs: dict[int, int] = {}
    first: int | None = None
    for action in schedule.actions:
        if action.op == Op.FORWARD:
            kept = f"saved.s{action.stage}" in action.writes
            first = (action.stage if first is None else first) if kept else None
            runs |= {action.stage: first} if first is not None else {}
    return runs


def around(schedule: Schedule, index: int) -> str:
    """The actions around one, which is marked."""
    lines = []
    for action in schedule.actions[max(0, index - _AROUND) : index + _AROUND + 1]:
        lines.append(f"  {action}  {HERE}" if action.index == index else f"  {action}")
    return "\n".join([f"in the schedule {schedule.strategy}:", *lines])


def _is_sole(held: dict[str, Any], key: str) -> bool:
    """Whether the tensor's memory is nobody else's, so that it may be written.

    Gradients of two rows may be one tensor, or lie in memory that a graph still holds.
    """
    tensor = held[key]
    if not hasattr(tensor, "_use_count") or not tensor.is_contiguous():
        return False
    memory = tensor.untyped_storage()
    # Held by the dictionary, this name and the call; its memory by the tensor and that name.
    return (
        sys.getrefcount(tensor) <= 3
        and tensor._use_count() == 1
        and torch._C._storage_Use_Count(memory._cdata) <= 2
    )


def _event() -> torch.cuda.Event:
    """Of the current stream; where a step is recorded, of each time that it is replayed."""
    recorded = torch.cuda.is_current_stream_capturing()
    event = torch.cuda.Event(enable_timing=True, external=recorded)
    event.record()
    return event


def _seconds(first: Any, mark: Any) -> float:
    if isinstance(mark, float):
        return mark - first
    mark.synchronize()
    return first.elapsed_time(mark) / 1e3


def _span(action: Action, start_s: float, end_s: float) -> Span:
    return Span(
        index=action.index,
        rank=action.rank,
        lane=action.lane,
        label=action.label,
        start_s=start_s,
        end_s=end_s,
        moved_bytes=action.moved_bytes,
    )

"""The action loop: walks a schedule over a program and a block, and holds buffers by their names.

Whatever could be chosen, the schedule says: what is kept or made again, when rows and gradients
are given back. Contributions to one gradient are added in the order of the actions.

Legend: V nodes, D columns, C outputs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from tiergnn.errors import PlanError, TiergnnError
from tiergnn.kernels.block import Block
from tiergnn.kernels.dropout import Key
from tiergnn.models.moments import moments_grad
from tiergnn.models.passes import run_backward, run_forward, starts
from tiergnn.models.trace import Program
from tiergnn.runtime.order import FixedOrder
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
            Op.RECOMPUTE: self._forward,
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
        copied = {
            name for action in schedule.actions if action.op == Op.COPY for name in action.writes
        }
        self._given = [name for name in program.needs if name not in copied]
        on_cpu = block.device.type == "cpu"
        self._order = FixedOrder if on_cpu else nullcontext
        self._mark = time.perf_counter if on_cpu else _event
        self._held: dict[str, Any] = {}
        self._key: Key | None = None
        self._of_out: Callable[[Tensor], Tensor] | None = None
        self._result: Tensor | None = None
        self._marks: list[Any] = []
        self._step_marks: list[Any] = []

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
        marks = [self._mark()] if measure else []
        self._key, self._of_out = key, loss_of_out
        try:
            for name in self._given:
                self._held[name] = self._load(name)
            for action, do in self._steps:
                do(action)
                if measure:
                    marks.append(self._mark())
            assert self._result is not None
            return self._result
        except Exception as error:
            if action is not None and not isinstance(error, TiergnnError):
                error.add_note(around(self.schedule, action.index))
            raise
        finally:
            self._held.clear()
            self._of_out = self._result = None
            if measure:
                self._marks, self._step_marks = marks, []

    def update(self, move: Callable[[], Any]) -> None:
        """The schedule's STEP: ``move()`` has the optimizer move the parameters."""
        measure = bool(self._marks) and not self._step_marks
        before = self._mark() if measure else None
        move()
        if measure:
            self._step_marks = [before, self._mark()]

    def timeline(self, peak_bytes: int) -> Timeline | None:
        """When each action ran in the step that was measured last; None before any.

        On CUDA this waits for the device.
        """
        steps = [action for action, _ in self._steps]
        if len(self._marks) != len(steps) + 1:
            return None
        first = self._marks[0]
        times = [_seconds(first, mark) for mark in self._marks]
        spans = [_span(action, times[i], times[i + 1]) for i, action in enumerate(steps)]
        if self._step is not None and self._step_marks:
            spans.append(_span(self._step, *(_seconds(first, m) for m in self._step_marks)))
        return Timeline(
            source="measured", spans=tuple(spans), peak_bytes=((0, "device", peak_bytes),)
        )

    # What each action does

    def _release(self, action: Action) -> None:
        for name in action.writes:
            self._held.pop(name, None)

    def _copy(self, action: Action) -> None:
        for name in action.writes:
            self._held[name] = self._load(name)

    def _infer(self, action: Action) -> None:
        with self._order():
            self._held |= self._stages[action.stage].run(self._block, None, self._held)

    def _forward(self, action: Action) -> None:
        """FORWARD and RECOMPUTE; whether it keeps anything is whether it writes what is saved."""
        saved = f"saved.s{action.stage}"
        keep = saved in action.writes
        written, kept = run_forward(
            self._stages[action.stage],
            self._block,
            self._key,
            self._held,
            keep=keep,
            order=self._order,
        )
        if action.op == Op.FORWARD:
            self._held |= written
        if keep:
            self._held[saved] = kept

    def _moments(self, action: Action) -> None:
        stage = self._stages[action.stage]
        assert stage.statistic is not None
        with torch.no_grad(), self._order():
            values = stage.combine([stage.partial(self._block, self._held)])
        of = self._held[stage.statistic.of]
        self._held[stage.statistic.name] = values.requires_grad_(of.requires_grad)

    def _commit(self, action: Action) -> None:
        stage = self._stages[action.stage]
        assert stage.statistic is not None
        stage.commit(self._held[stage.statistic.name], self._block.num_dst)

    def _loss(self, action: Action) -> None:
        name = self._program.output
        out = self._held[name]
        if self._of_out is None:
            self._result = out
            return
        found: dict[str, Tensor] = {}
        loss = self._of_out(starts({name: out}, found)[name])
        loss.backward()
        self._result = loss.detach()
        if name in found:
            self._add(name, found.pop(name))

    def _backward(self, action: Action) -> None:
        stage = self._stages[action.stage]
        names = [name for name in stage.writes if f"d.{name}" in self._held]
        grads = {name: self._held.pop(f"d.{name}") for name in names}
        found = run_backward(self._held.pop(f"saved.s{action.stage}"), grads)
        for name in (*stage.gathers, *stage.reads, *stage.statistics):
            if name in found:
                self._add(name, found.pop(name))
        of = stage.statistic
        if of is not None and f"d.{of.name}" in self._held:
            grad = self._held.pop(f"d.{of.name}")
            self._add(of.of, moments_grad(self._held[of.of], self._held[of.name], grad))

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
    event = torch.cuda.Event(enable_timing=True)
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

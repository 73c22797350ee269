"""Visits: what is computed while a part is on the device: a stage's passes, moments, the loss.

Legend: P rows of one part (destinations), S source rows it reads, E its edges.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tiergnn.kernels.block import Block
from tiergnn.kernels.dropout import Key
from tiergnn.models.passes import Kept, run_backward, run_forward
from tiergnn.models.stages import Stage
from tiergnn.models.trace import Program
from tiergnn.runtime.buffers import Buffers
from tiergnn.runtime.parts import Parts
from tiergnn.runtime.whole import Whole
from tiergnn.schedule.actions import Action, Op
from tiergnn.schedule.contents import Content, What
from tiergnn.schedule.schedule import Schedule

# A part's share of the loss of the whole graph, of its output rows [P, ...] and its number.
Share = Callable[[Tensor, int], Tensor]
_GRADS = (What.GRAD, What.SOURCES_GRAD)


class Visits:
    """Stages of ``program`` on parts, as one schedule says. Runs on the compute lane alone."""

    def __init__(
        self, program: Program, schedule: Schedule, buffers: Buffers, parts: Parts | Whole
    ):
        self._stages = {stage.index: stage for stage in program.stages}
        self._between = program.between.keys()
        self._buffers, self._parts = buffers, parts
        self._num_rows = sum(parts.num_rows)
        self._makers = {
            f"s{stage.index}": stage.statistic.name
            for stage in program.stages
            if stage.statistic is not None
        }
        # Of which rows and moments a backward makes gradients.
        self._graded: dict[tuple[int, int], set[str]] = {}
        for action in schedule.actions:
            if action.op is Op.BACKWARD and action.slice < 0:
                found = {content.of for _, content in self._buffers.contents(action.writes)}
                self._graded[action.stage, action.part] = found
        self.key: Key | None = None
        self._share: Share | None = None
        self._losses: list[Tensor] = []

    def begin(self, key: Key | None, share: Share | None) -> None:
        """A new step; ``share`` is for a schedule with a LOSS."""
        self.key, self._share, self._losses = key, share, []

    def loss(self) -> Tensor:
        """The sum of the parts' shares in the order of their visits; 0 before any."""
        losses, self._losses = self._losses, []
        return torch.stack(losses).sum() if losses else torch.zeros(())

    def _block(self, action: Action) -> Block:
        """The part's edges: those that were brought, or those that stay on the device, or how many
        its rows have."""
        for name, holds in self._buffers.contents(action.reads):
            if holds.what is What.DEGREES:
                assert isinstance(self._parts, Whole)
                return self._parts.bare(self._buffers.get(name), action.part)
            if holds.what is What.TOPOLOGY:
                block = self._buffers.get(name)
                if holds.part == action.part or isinstance(self._parts, Parts):
                    return block
                return block.rows(*self._parts.rows(action.part), self._parts.edges(action.part))
        raise AssertionError(str(action))

    def _stage(self, action: Action) -> Stage:
        """The stage, or what comes after its graph operation where that was done by columns."""
        stage = self._stages[action.stage]
        given = any(holds.of in self._between for _, holds in self._buffers.contents(action.reads))
        return stage.columns[1] if given else stage

    def _read(self, action: Action) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Rows by their names: those of sources, and own ones with moments."""
        gathered: dict[str, Tensor] = {}
        own: dict[str, Tensor] = {}
        for name, holds in self._buffers.contents(action.reads):
            if holds.what is What.SOURCES:
                gathered[holds.of] = self._buffers.get(name)
            elif holds.what is What.ROWS:
                own[holds.of] = self._own(action, name, holds)
            elif holds.what is What.MOMENTS:
                own[self._makers[holds.of]] = self._buffers.get(name)
        stage, count = self._stage(action), self._parts.num_rows[action.part]
        for name in stage.reads:
            if name not in own:
                own[name] = gathered[name][:count]
        return gathered, own

    def _own(self, action: Action, name: str, holds: Content) -> Tensor:
        """A part's own rows, of those of all parts where the buffer holds these."""
        rows: Tensor = self._buffers.get(name)
        if holds.part == action.part or isinstance(self._parts, Parts):
            return rows
        of_edges = self._buffers.of_edges(holds.of)
        return rows[slice(*(self._parts.edges if of_edges else self._parts.rows)(action.part))]

    def forward(self, action: Action) -> None:
        stage = self._stage(action)
        gathered, own = self._read(action)
        with torch.no_grad():
            written = stage.run(self._block(action), self.key, gathered, own)
        self._write(action, written)

    def recompute(self, action: Action) -> None:
        """A forward again, by the same key, that keeps what its backward needs. Products that only
        other stages read are made where the action writes them."""
        stage = self._stage(action)
        gathered, own = self._read(action)
        graded = self._graded.get((action.stage, action.part), set())
        graded |= {self._makers[name] for name in graded & self._makers.keys()}
        for rows in (gathered, own):
            for name in graded & rows.keys():
                rows[name] = rows[name].detach().requires_grad_()
        wanted = {holds.of for _, holds in self._buffers.contents(action.writes, What.ROWS)}
        written, kept = run_forward(
            stage, self._block(action), self.key, gathered, own, keep=True,
            again=wanted.isdisjoint(stage.unread),
        )  # fmt: skip
        self._write(action, written)
        for name, holds in self._buffers.contents(action.writes):
            if holds.what is What.SAVED:
                self._buffers.put(name, kept)

    def _write(self, action: Action, written: dict[str, Tensor]) -> None:
        for name, holds in self._buffers.contents(action.writes):
            if holds.what is What.ROWS:
                self._buffers.put(name, written[holds.of].detach())

    def backward(self, action: Action) -> None:
        stage = self._stages[action.stage]
        kept: Kept | None = None
        grads: dict[str, Tensor] = {}
        for name, holds in self._buffers.contents(action.reads):
            if holds.what is What.SAVED:
                kept = self._buffers.take(name)
            elif holds.what is What.GRAD and holds.of in stage.writes:
                grads[holds.of] = self._buffers.get(name)
        assert kept is not None, str(action)
        found = run_backward(kept, grads)
        for name, holds in self._buffers.contents(action.writes):
            if holds.what is What.MOMENTS_GRAD:
                grad = found.get(self._makers[holds.of])
                before = self._buffers.get(name)
                if grad is not None:
                    self._buffers.put(name, grad if before is None else before + grad)
            elif holds.what in _GRADS and name in action.reads:
                grad = found.get(holds.of)
                if grad is not None:
                    self._buffers.get(name).add_(grad)
            elif holds.what in _GRADS:
                self._buffers.put(name, self._grad(name, holds, found, grads))

    def _grad(
        self, name: str, holds: Content, found: dict[str, Tensor], given: dict[str, Tensor]
    ) -> Tensor:
        """The gradient of rows that were gathered (and read as own ones, too), or read."""
        grad, own = found.pop(holds.of, None), None
        if holds.what is What.SOURCES_GRAD:
            own = found.pop(f"own:{holds.of}", None)
        if grad is None or (own is not None and not _is_own(grad, given)):
            total: Any = self._buffers.room(name)
            if grad is None:
                total.zero_()
            else:
                total.copy_(grad)
            grad = total
        if own is not None:
            grad[: own.shape[0]] += own
        return grad

    def moments(self, action: Action) -> None:
        stage = self._stages[action.stage]
        assert stage.statistic is not None
        rows = next(self._buffers.get(n) for n, h in self._buffers.contents(action.reads))
        values = self._held_parts(action)
        with torch.no_grad():
            values[action.part] = stage.partial(self._parts.sample, {stage.statistic.of: rows})

    def _held_parts(self, action: Action) -> dict[int, Tensor]:
        name = action.writes[0]
        if not self._buffers.there(name):
            self._buffers.put(name, {})
        return self._buffers.get(name)

    def commit(self, action: Action) -> None:
        """The moments of all rows; running statistics follow them."""
        stage = self._stages[action.stage]
        parts = self._buffers.get(action.reads[0])
        with torch.no_grad():
            values = stage.combine([parts[part] for part in sorted(parts)])
        stage.commit(values, self._num_rows)
        self._buffers.put(action.writes[0], values)

    def take_loss(self, action: Action) -> None:
        rows: Tensor = self._buffers.get(action.reads[0]).detach().requires_grad_()
        assert self._share is not None
        loss = self._share(rows, action.part)
        loss.backward()
        self._losses.append(loss.detach())
        self._buffers.put_grad(action.writes[0], rows.grad)


def _is_own(grad: Tensor, given: dict[str, Tensor]) -> bool:
    """Whether a gradient is memory of its own, and not that of one that was given."""
    theirs = {rows.untyped_storage().data_ptr() for rows in given.values()}
    return grad.is_contiguous() and grad.untyped_storage().data_ptr() not in theirs

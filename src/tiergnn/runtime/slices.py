"""Slices: graph operations on some columns of all rows at once, forward and backward.

Legend: V nodes, P rows of one part, C columns of a slice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from tiergnn.kernels.block import Block
from tiergnn.models.functional import Columns
from tiergnn.models.passes import run_backward, run_forward
from tiergnn.models.stages import Stage
from tiergnn.models.trace import Program
from tiergnn.runtime.buffers import Buffers
from tiergnn.runtime.parts import Parts
from tiergnn.runtime.visits import Visits
from tiergnn.runtime.whole import Whole
from tiergnn.schedule.actions import Action, Op
from tiergnn.schedule.contents import Content, What


class _Given(NamedTuple):
    """What an action reads: its edges, rows of the sources, own rows, the columns it is of."""

    block: Block
    rows: slice  # of all, those that it makes sums of
    gathered: dict[str, Tensor]
    own: dict[str, Tensor]
    columns: Columns


class Slices:
    """The operations of ``program``'s stages by columns, as a schedule says. Runs on the compute
    lane alone, by the key of ``visits``. An action of a part takes that part's edges, one of none
    those of all."""

    def __init__(self, program: Program, buffers: Buffers, parts: Parts | Whole, visits: Visits):
        self._stages = {stage.index: stage for stage in program.stages}
        self._buffers, self._parts, self._visits = buffers, parts, visits
        # What a walk does by slices, and whole where an action is of no slice.
        self.does: dict[Op, Callable[[Action], None]] = {
            Op.AGGREGATE: self.forward,
            Op.UPDATE: visits.forward,
            Op.RECOMPUTE: lambda a: (self.forward if a.slice >= 0 else visits.recompute)(a),
            Op.BACKWARD: lambda a: (self.backward if a.slice >= 0 else visits.backward)(a),
        }

    def forward(self, action: Action) -> None:
        half = self._stages[action.stage].columns[0]
        given = self._given(action, half)
        with torch.no_grad():
            made = half.run(given.block, self._visits.key, given.gathered, given.own, given.columns)
        ((name, holds),) = self._buffers.contents(action.writes, What.ROWS)
        self._add(name, given.rows, made[holds.of], fresh=True)

    def backward(self, action: Action) -> None:
        """Adds to the gradients that it writes. Where the gradient of the result is not all that
        backward takes, the forward is run again, by the same key."""
        stage = self._stages[action.stage]
        half = stage.adjoint or stage.columns[0]
        given = self._given(action, half)
        ((name, holds),) = [
            (n, h)
            for n, h in self._buffers.contents(action.reads, What.GRAD)
            if n not in action.writes
        ]
        grad = self._shaped(name, holds)[given.rows]
        targets = self._buffers.contents(action.writes, What.GRAD)
        if stage.adjoint is not None:
            with torch.no_grad():
                gathered = {holds.of: grad}
                made = half.run(given.block, self._visits.key, gathered, given.own, given.columns)
            ((target, of),) = targets
            self._add(target, slice(None), made[of.of], fresh=True)
            return
        wanted = {holds.of for _, holds in targets}
        for rows in (given.gathered, given.own):
            for of in wanted & rows.keys():
                rows[of] = rows[of].detach().requires_grad_()
        made, kept = run_forward(
            half, given.block, self._visits.key, given.gathered, given.own, keep=True,
            columns=given.columns,
        )  # fmt: skip
        assert kept is not None
        found = run_backward(kept, {holds.of: grad.reshape(made[holds.of].shape)})
        del made
        for target, of in targets:
            of_sources = found.get(of.of) if of.of in half.gathers else None
            of_own = found.get(f"own:{of.of}" if of.of in half.gathers else of.of)
            self._add(target, slice(None), of_sources)
            self._add(target, given.rows, of_own)

    def _given(self, action: Action, half: Stage) -> _Given:
        assert isinstance(self._parts, Whole)
        rows, edges = (slice(*of(action.part)) for of in (self._parts.rows, self._parts.edges))
        gathered: dict[str, Tensor] = {}
        own: dict[str, Tensor] = {}
        block, columns = None, None
        for name, holds in self._buffers.contents(
            (*action.reads, *action.writes), What.ROWS, What.GRAD, What.TOPOLOGY, What.OUT_EDGES
        ):
            if holds.what in (What.TOPOLOGY, What.OUT_EDGES):
                # In-edges know the out-edges that lie beside them.
                block = self._buffers.get(name) if block is None else block
                continue
            if holds.of == f"sum.s{half.index}":
                first, _ = holds.columns or (0, 0)
                columns = Columns(first, self._buffers.width(holds.of))
            if holds.what is not What.ROWS or name in action.writes:
                continue
            value = self._shaped(name, holds)
            if holds.of in half.gathers:
                gathered[holds.of] = value
            if holds.of in (*half.reads, *half.edges):
                own[holds.of] = value[edges if self._buffers.of_edges(holds.of) else rows]
        assert block is not None, str(action)
        assert columns is not None, str(action)
        return _Given(block, rows, gathered, own, columns)

    def _shaped(self, name: str, holds: Content) -> Tensor:
        """Rows as the stage knows them, or [V, C] where the slice cuts through their dimensions."""
        rows: Tensor = self._buffers.get(name)
        shape = self._buffers.shape(holds.of)
        if holds.columns is None or len(shape) < 2:
            return rows
        inner = torch.Size(shape[1:]).numel()
        if inner == 0 or holds.columns[0] % inner or rows.shape[1] % inner:
            return rows
        return rows.view(len(rows), -1, *shape[1:])

    def _add(self, name: str, rows: slice, values: Tensor | None, *, fresh: bool = False) -> None:
        """Into some rows of a buffer, to what is there. ``fresh`` values are nobody else's."""
        there = self._buffers.there(name)
        if values is None and there:
            return
        shape = self._buffers.room_shape(name)
        if fresh and values is not None and not there and len(values) == shape[0]:
            self._buffers.put(name, values.reshape(shape))
            return
        total = self._buffers.room(name)
        assert isinstance(total, Tensor)
        if not there:
            total.zero_()
        if values is not None:
            target = total[rows]
            target += values.reshape(target.shape)

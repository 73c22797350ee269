"""RankVisits: what a rank computes of its part: stages whole or by classes of sources, the loss.

Runs on the compute lane alone. An action says by what it reads whether a stage runs over all
sources of the part, or adds up sums.

Legend: P own rows, H rows of others that they read, S = P + H, E own edges, D columns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tiergnn.kernels.block import Block
from tiergnn.kernels.dropout import Key
from tiergnn.kernels.table import RowTable
from tiergnn.models.passes import Kept, cut, run_backward, run_forward, starts
from tiergnn.models.stages import Stage
from tiergnn.models.trace import Program
from tiergnn.runtime.buffers import Buffers
from tiergnn.runtime.own_part import OwnPart
from tiergnn.runtime.shared_rows import read_by_others
from tiergnn.runtime.source_classes import SourceClass, SourceClasses, cut_of
from tiergnn.runtime.visits import Share
from tiergnn.schedule.actions import Action, Op
from tiergnn.schedule.contents import Content, What
from tiergnn.schedule.schedule import Schedule
from tiergnn.transport.transport import rows_bytes

_GRADS = (What.GRAD, What.SOURCES_GRAD, What.SUM_GRAD)
TABLES = (
    What.ROWS, What.HALO, What.COLUMNS, What.SUM_GRAD, What.REPLICAS, What.GRAD_REPLICAS,
)  # fmt: skip


class RankVisits:
    """Stages of ``program`` on a rank's part, as its actions of one schedule say. ``replicated``
    are the rows of others whose row-local code runs here, too, without their edges."""

    def __init__(
        self,
        program: Program,
        schedule: Schedule,
        buffers: Buffers,
        part: OwnPart,
        classes: SourceClasses,
        out: SourceClasses | None,
        replicated: Block | None,
    ):
        self._stages = {stage.index: stage for stage in program.stages}
        self._buffers, self._part, self._classes, self._out = buffers, part, classes, out
        self._replicated, self._shown = replicated, read_by_others(schedule)
        self._makers = {
            f"s{stage.index}": stage.statistic.name
            for stage in program.stages
            if stage.statistic is not None
        }
        self._graded: dict[int, set[tuple[What, str]]] = {}  # stage -> what its backward makes
        self._passed: set[tuple[int, int]] = set()  # (stage, class) with a backward
        for action in schedule.actions:
            if action.op is not Op.BACKWARD or action.rank != part.rank:
                continue
            if action.slice >= 0:
                self._passed.add((action.stage, action.slice))
            else:
                contents = [content for _, content in self._buffers.contents(action.writes)]
                self._graded[action.stage] = {(c.what, c.of) for c in contents}
        self._key: Key | None = None
        self._share: Share | None = None
        self._kept: dict[tuple[int, int], Kept] = {}  # (stage, class) -> its graph
        self._loss: Tensor | None = None

    def begin(self, key: Key | None, share: Share | None) -> None:
        """A new step; ``share`` is for a schedule with a LOSS."""
        self._key, self._share = key, share
        self._kept.clear()
        if key is not None or share is not None:
            self._loss = None

    def loss(self) -> Tensor:
        """This part's share of the loss; 0 where it has no labels."""
        loss, self._loss = self._loss, None
        return torch.zeros(()) if loss is None else loss

    def _held(self, action: Action, what: What) -> dict[str, Tensor]:
        """What an action reads of a kind, by tensor; the last of those that stand twice."""
        found = self._buffers.contents(action.reads)
        return {holds.of: self._buffers.get(name) for name, holds in found if holds.what is what}

    # Forward

    def aggregate(self, action: Action) -> int:
        """The sums over one class of sources; gives the bytes read of other ranks."""
        stage, kept = self._stages[action.stage].sums[0], Kept()
        tables, chosen = self._tables(action), self._class_of(action, self._classes)
        graded = self._out is None and (action.stage, action.slice) in self._passed
        if graded:
            last = {"last": tables[-1].detach().requires_grad_()}
            tables[-1] = starts(last, kept.found)["last"]
        with torch.set_grad_enabled(graded):
            made = self._sums(stage, chosen, tables)
        if graded:
            made = cut(stage.writes[0], made, kept)
            self._kept[action.stage, action.slice] = kept
        self._put_sums(action.writes[0], made.detach())
        return self._read_of_others(action, chosen, tables[0])

    def _gathered(self, action: Action) -> list[tuple[str, Content]]:
        """What an action gathers, in its order, but that own rows come first, as in any block."""
        (name,) = self._stages[action.stage].gathers
        found = self._buffers.contents(action.reads, *TABLES)
        tables = [(n, holds) for n, holds in found if holds.of == name]
        return sorted(tables, key=lambda table: table[1].part != self._part.rank)

    def _tables(self, action: Action) -> list[Tensor]:
        """The rows that an action gathers, table by table: own ones, then those of the class."""
        return [self._buffers.get(name) for name, _ in self._gathered(action)]

    def _class_of(self, action: Action, classes: SourceClasses) -> SourceClass:
        if self._out is None:
            return classes[action.slice]
        return classes[cut_of(holds for _, holds in self._gathered(action))]

    def _put_sums(self, name: str, made: Tensor) -> None:
        """Sums of a class; one that comes in pieces is added up."""
        if self._buffers.there(name):
            self._buffers.get(name).add_(made)
        else:
            self._buffers.put(name, made)

    def _sums(self, stage: Stage, chosen: SourceClass, tables: list[Tensor]) -> Tensor:
        device = chosen.block.device
        if tables[0].device != device:  # rows in host memory, which a GPU reads there
            tables = [rows if len(rows) else rows.to(device) for rows in tables]
            tables = [tables[0].new_empty((0, *tables[0].shape[1:]), device=device), *tables]
        rows = tables[0] if len(tables) == 1 else RowTable(tables)
        given: Any = {stage.gathers[0]: rows}
        (made,) = stage.run(chosen.block, self._key, given, chosen.edges).values()
        return made.to(self._buffers.dtype(stage.gathers[0]))  # of rows that are stored narrower

    def _read_of_others(self, action: Action, chosen: SourceClass, rows: Tensor) -> int:
        """A row that lies at another rank, or in host memory, is read there for every edge."""
        others = any(
            holds.part != self._part.rank or self._buffers.tier(name) == "host"
            for name, holds in self._gathered(action)
        )
        return chosen.block.num_edges * rows_bytes(rows) if others else 0

    def update(self, action: Action) -> int:
        """The row-local rest of a stage, from the sums of all classes; or on replicas."""
        if action.slice >= 0:
            return self._run_on_replicas(action)
        self._run(action)
        return 0

    def _run_on_replicas(self, action: Action) -> int:
        """Row-local code on rows of others, from their sums or from replicas of what it reads;
        nothing is kept for backward. Gives the bytes that came from host memory."""
        stage, block = self._stages[action.stage], self._replicated
        assert block is not None, str(action)
        own = {self._makers[of]: m for of, m in self._held(action, What.MOMENTS).items()}
        pieces: dict[str, list[Tensor]] = {}
        moved = 0
        kinds = (What.REPLICAS, What.SUM_REPLICAS)
        for name, holds in self._buffers.contents(action.reads, *kinds):
            rows: Tensor = self._buffers.get(name)
            moved += len(rows) * rows_bytes(rows) if self._buffers.tier(name) == "host" else 0
            rows = rows.to(block.device, non_blocking=True)  # pinned, where it is far
            rows = rows.to(self._buffers.dtype(holds.of))
            if holds.what is What.SUM_REPLICAS:
                stage, own[f"sum.s{action.stage}"] = stage.sums[1], rows
            else:
                pieces.setdefault(holds.of, []).append(rows)
        own |= {of: rows[0] if len(rows) == 1 else torch.cat(rows) for of, rows in pieces.items()}
        with torch.no_grad():
            written = stage.run(block, self._key, {}, own)
        for name, holds in self._buffers.contents(action.writes, What.REPLICAS):
            first, last = holds.rows or (0, block.num_dst)
            rows = written[holds.of][first:last]
            self._buffers.put(name, rows if last - first == block.num_dst else rows.clone())
        return moved

    def forward(self, action: Action) -> None:
        self._run(action)

    def recompute(self, action: Action) -> int:
        """A forward again, by the same key."""
        if action.slice >= 0:
            return self.aggregate(action)
        self._run(action)
        return 0

    def _run(self, action: Action) -> None:
        """A stage, or its second half; it keeps what its backward needs where it writes that."""
        stage = self._stages[action.stage]
        own = self._held(action, What.ROWS)
        own |= {self._makers[of]: m for of, m in self._held(action, What.MOMENTS).items()}
        gathered = self._held(action, What.SOURCES)
        graded = self._graded.get(action.stage, set())
        sums = [n for n, c in self._buffers.contents(action.reads) if c.what is What.SUM]
        if sums:
            stage, name = stage.sums[1], f"sum.s{action.stage}"
            own[name] = self._total(sums)
            if any(what is What.SUM_GRAD for what, _ in graded):
                own[name] = own[name].requires_grad_()
        saved = [n for n, c in self._buffers.contents(action.writes) if c.what is What.SAVED]
        if saved:
            for what, of in graded:
                of = self._makers.get(of, of)
                if what is not What.SUM_GRAD and of in own:
                    own[of] = own[of].detach().requires_grad_()
                if what is What.SOURCES_GRAD:
                    gathered[of] = gathered[of].detach().requires_grad_()
        block = self._part.block
        if saved:
            written, kept = run_forward(stage, block, self._key, gathered, own, keep=True)
            self._buffers.put(saved[0], kept)
        else:
            with torch.no_grad():
                written = stage.run(block, self._key, gathered, own)
        for name, holds in self._buffers.contents(action.writes):
            if holds.what is What.ROWS:
                self._buffers.put(name, written[holds.of].detach())

    def _total(self, names: list[str]) -> Tensor:
        """The sums of all classes, in their order; a copy of what others read where it lies, since
        that is another buffer's when it is given back and backward may still read it."""
        total: Tensor = self._buffers.get(names[0]).detach()
        if names[0] in self._shown:
            total = total.clone()
        for name in names[1:]:
            total += self._buffers.get(name)
        return total

    # Backward

    def backward(self, action: Action) -> int:
        """Gives the bytes read of other ranks."""
        if action.slice >= 0:
            return self._class_backward(action)
        self._stage_backward(action)
        return 0

    def _stage_backward(self, action: Action) -> None:
        stage = self._stages[action.stage]
        kept: Kept | None = None
        grads: dict[str, Tensor] = {}
        for name, holds in self._buffers.contents(action.reads):
            if holds.what is What.SAVED:
                kept = self._buffers.take(name)
            elif holds.what is What.GRAD and holds.of in stage.writes:
                grads[holds.of] = self._buffers.get(name)
        assert kept is not None, str(action)
        taken = {_memory(grad) for grad in grads.values()}
        found = run_backward(kept, grads)
        for name, holds in self._buffers.contents(action.writes):
            if holds.what is What.MOMENTS_GRAD:
                grad = found.get(self._makers[holds.of])
                before = self._buffers.get(name)
                if grad is not None:
                    self._buffers.put(name, grad.clone() if before is None else before + grad)
            elif holds.what in _GRADS:
                key = f"sum.s{stage.index}" if holds.what is What.SUM_GRAD else holds.of
                self._put_grad(name, holds.what, key, found, taken)

    def _put_grad(
        self, name: str, what: What, key: str, found: dict[str, Tensor], taken: set[int]
    ) -> None:
        """Write or add to the gradient of own rows, of sources or of sums; ``taken`` is memory that
        is somebody else's, so that nothing may be added to it."""
        grad, own = found.pop(key, None), None
        if what is What.SOURCES_GRAD:
            own = found.pop(f"own:{key}", None)
        if self._buffers.there(name):
            if grad is not None:
                self._buffers.get(name).add_(grad)
            return
        alone = grad is not None and own is None and grad.is_contiguous()
        if grad is not None and alone and _memory(grad) not in taken:
            taken.add(_memory(grad))
            self._buffers.put(name, grad)
            return
        room: Any = self._buffers.room(name)
        if grad is None:
            room.zero_()
        else:
            room.copy_(grad)
        if own is not None:
            room[: len(own)] += own

    def _class_backward(self, action: Action) -> int:
        """What one class of edges gives: to the gradients of its sources, by those of sums, or to
        the gradients of own rows, over the edges that leave them."""
        if self._out is not None:
            tables, chosen = self._tables(action), self._class_of(action, self._out)
            with torch.no_grad():
                made = self._sums(self._stages[action.stage].sums[0], chosen, tables)
            self._put_sums(action.writes[0], made)
            return self._read_of_others(action, chosen, tables[0])
        held = self._held(action, What.SUM_GRAD) | self._held(action, What.COLUMNS)
        (grad,) = held.values()
        kept = self._kept.pop((action.stage, action.slice), None)
        found: Tensor | None = None  # nothing was gathered: a part that reads nothing of others
        if kept is not None:
            found = next(iter(run_backward(kept, dict.fromkeys(kept.ends, grad)).values()), None)
        self._buffers.put_grad(action.writes[0], found)
        return 0

    # Moments and the loss

    def moments(self, action: Action) -> None:
        stage = self._stages[action.stage]
        assert stage.statistic is not None
        rows = self._held(action, What.ROWS)[stage.statistic.of]
        with torch.no_grad():
            values = stage.partial(self._part.block, {stage.statistic.of: rows})
        self._buffers.put(action.writes[0], [values])

    def commit(self, action: Action) -> None:
        """The moments of all rows, of all ranks' in their order; running statistics follow them."""
        stage = self._stages[action.stage]
        with torch.no_grad():
            values = stage.combine(self._buffers.get(action.reads[0]))
        stage.commit(values, self._part.block.num_graph_nodes or 0)
        self._buffers.put(action.writes[0], values)

    def take_loss(self, action: Action) -> None:
        rows: Tensor = self._buffers.get(action.reads[0]).detach().requires_grad_()
        assert self._share is not None
        loss = self._share(rows, action.part)
        loss.backward()
        self._loss = loss.detach()
        self._buffers.put_grad(action.writes[0], rows.grad)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()

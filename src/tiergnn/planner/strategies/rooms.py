"""Rooms: what ranks hold of their parts: edges, inputs, and room for sums of classes of sources.

Legend: P rows of one part, S source rows it reads, E edges.
"""

from __future__ import annotations

from collections.abc import Iterable

from tiergnn.planner.strategies.draft import Draft
from tiergnn.planner.strategies.edges import block_bytes, csr_bytes, transposed_bytes
from tiergnn.schedule.actions import Op
from tiergnn.schedule.contents import Content, What
from tiergnn.workload import Extent, StageWork

Rows = dict[tuple[str, int], str]  # (tensor, rank) -> buffer


class Rooms:
    """``rows`` are the buffers of rows that ranks hold now, ``kept`` those of rows of others that
    they have from the beginning."""

    def __init__(self, draft: Draft, *, training: bool) -> None:
        self.draft, self.writer, self.training = draft, draft.writer, training
        self.rows: Rows = {}
        self.kept: dict[Content, str] = {}

    def topology(
        self,
        rank: int,
        extent: Extent | None = None,
        *,
        num_classes: int,
        pieces: tuple[int, int] = (0, 0),
    ) -> None:
        """A rank's edges in its device's memory: those of its part (``topology``), and cut into
        classes of sources (``edges``), of ``extent`` where those are not the part's; in backward
        by their sources (``.out``). Classes are cut into so many more ``pieces``, each a block of
        the same rows, forward and backward."""
        draft, part = self.draft, self.draft.extent(rank)
        out = draft.layout.part(rank, leaving=True)
        leaving = extent or Extent(out.rows, out.sources, out.edges)
        extent = extent or part
        graphs = [stage for stage in draft.workload.stages if stage.kind == "graph"]
        divided = any(stage.divisible for stage in graphs)
        whole = any(not stage.divisible for stage in graphs)
        there: list[tuple[str, bool, int, What | None]] = [
            ("topology", True, block_bytes(draft, part), What.TOPOLOGY)
        ]
        there += [("topology.out", whole, transposed_bytes(draft, part), What.OUT_EDGES)]
        for name, num_bytes, more in (
            ("edges", csr_bytes(draft, extent), pieces[0]),
            ("edges.out", transposed_bytes(draft, leaving), pieces[1]),
        ):
            num_bytes += (num_classes - 1) * 8 * (extent.sources + 1)
            num_bytes += more * 16 * (extent.rows + 1)  # where edges begin, and the rows' ids
            there.append((name, divided, num_bytes, None))
        for name, wanted, num_bytes, what in there:
            if wanted and (self.training or not name.endswith(".out")):
                holds = None if what is None else Content(what, part=rank)
                self.writer.given(f"{name}.r{rank}", rank, "device", "topology", num_bytes,
                    holds=holds,
                )  # fmt: skip

    def edges(self, op: Op, rank: int) -> str:
        """The edges that an AGGREGATE or a BACKWARD of a class reads."""
        return f"edges.out.r{rank}" if op is Op.BACKWARD else f"edges.r{rank}"

    def inputs(self, rank: int) -> None:
        """A rank's rows of the inputs, as they are computed with, in its device's memory."""
        for name in self.draft.workload.inputs:
            num_bytes = self.draft.count(name, rank) * self.draft.row_bytes(name)
            self.rows[name, rank] = self.writer.given(
                f"{name}.p{rank}", rank, "device", "features", num_bytes,
                holds=Content(What.ROWS, name, rank),
            )  # fmt: skip

    def inputs_of_others(self, rank: int) -> None:
        """Rows of others that a rank gathers of inputs, as they are computed with, in its device's
        memory: alone beside own ones where they are summed, else behind a copy of those."""
        draft, fixed = self.draft, self.draft.workload.gathered_inputs
        for stage in draft.workload.stages:
            for name in stage.gathers:
                holds = Content(What.HALO if stage.divisible else What.SOURCES, name, rank)
                if name not in fixed or holds in self.kept:
                    continue
                label, count = f"{name}.in.p{rank}", draft.extent(rank).sources
                if stage.divisible:
                    label, count = f"{name}.halo.p{rank}", draft.layout.parts[rank].halo
                self.kept[holds] = self.writer.given(
                    label, rank, "device", "cache", count * draft.row_bytes(name), holds=holds
                )

    def sent_bytes(self, names: Iterable[str]) -> int:
        """Of a row of these tensors between ranks: inputs travel as they are held."""
        draft = self.draft
        return sum(
            draft.row_bytes(name) if name in draft.workload.inputs else draft.stored_bytes(name)
            for name in names
        )

    def sum_room(self, stage: StageWork, rank: int, index: int) -> str:
        """Room for the sums of one class of sources."""
        return self._room(stage, rank, f"sum.s{stage.index}.p{rank}.c{index}", What.SUM)

    def grad_room(self, stage: StageWork, rank: int, index: int) -> str:
        """Room for what one class gives to the gradients of gathered rows."""
        return self._room(stage, rank, f"grad.s{stage.index}.p{rank}.c{index}", What.SHARE)

    def _room(self, stage: StageWork, rank: int, name: str, what: What) -> str:
        num_bytes = self.draft.layout.parts[rank].rows * self.draft.sum_bytes(stage)
        kind = "activations" if what is What.SUM else "gradients"
        holds = Content(what, stage.gathers[0], rank)
        return self.draft.take(name, kind, num_bytes, rank=rank, holds=holds)

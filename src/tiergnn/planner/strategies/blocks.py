"""Blocks: the row-local halves of stages, on all columns of a block of rows."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

from tiergnn.planner.strategies.again import again_of
from tiergnn.planner.strategies.chunks import Chunk, Chunks
from tiergnn.planner.strategies.cuts import holding
from tiergnn.planner.strategies.draft import Draft
from tiergnn.planner.strategies.moments import Moments
from tiergnn.planner.strategies.slices import Slices
from tiergnn.schedule.actions import Lane, Op
from tiergnn.schedule.contents import Content, What
from tiergnn.workload import Extent, StageWork

ROWWISE = ("matmul", "stream")  # the work of such a half


def rowwise(stage: StageWork) -> list[str]:
    """The own rows that the row-local half of a stage reads."""
    return list(stage.after if stage.kind == "graph" else stage.reads)


@dataclass(slots=True)
class Block:
    """A block of rows at work: buffers by the rows that they hold."""

    part: int
    edges: Chunk
    inputs: dict[str, str] = field(default_factory=dict)
    grads: dict[str, str] = field(default_factory=dict)


class Blocks:
    """Those of one device, whose rows lie in ``slices``."""

    def __init__(self, draft: Draft, slices: Slices, chunks: Chunks, moments: Moments) -> None:
        self._draft, self._writer = draft, draft.writer
        self._slices, self._chunks, self._moments = slices, chunks, moments

    def begin(self, stage: StageWork, last: Container[str], part: int) -> Block:
        """Bring a block of rows that the row-local half reads, some for the ``last`` time."""
        block = Block(part, self._chunks.of_rows(stage, part))
        names = rowwise(stage)
        if stage.kind == "graph":
            names.append(f"sum.s{stage.index}")
        for name in names:
            if name in self._draft.workload.inputs and self._draft.of_edges(name):
                continue
            block.inputs[name] = self._slices.bring_rows(name, part, last=name in last)
        return block

    def compute(self, stage: StageWork, block: Block, op: Op) -> tuple[dict[str, str], list[str]]:
        """The row-local half of a stage: what it writes, and what it keeps for backward."""
        draft, part = self._draft, block.part
        extent = self.extent(stage, part)
        for name, buffer in block.inputs.items():
            self._slices.fill_rows(name, part, buffer)
        outputs, again = {}, again_of(draft, stage)
        unread = again.unread if op is Op.RECOMPUTE else ()
        for name in (n for n in stage.writes if n not in unread):
            num_bytes = draft.count(name, part) * draft.row_bytes(name)
            outputs[name] = draft.take(
                f"{name}.p{part}", "activations", num_bytes, holds=holding(name, part)
            )
        held, terms, saved = stage.forward_held.at(extent), stage.forward, []
        if op is Op.RECOMPUTE:
            kept = stage.kept.at(extent)
            held, terms = again.held.at(extent) - kept, again.works
            holds = Content(What.SAVED, f"s{stage.index}", part)
            saved = [draft.take(f"saved.s{stage.index}.p{part}", "saved", kept, holds=holds)]
        held = max(0, held) + self._chunks.view_bytes(stage, part)
        scratch = draft.take(f"work.s{stage.index}.p{part}", "workspace", held)
        self._writer.add(
            0,
            Lane.COMPUTE,
            op,
            stage=stage.index,
            part=part,
            reads=[
                *block.inputs.values(), *block.edges.topology,
                *self._edges(stage), *self.shared(stage),
            ],
            writes=[*outputs.values(), *saved, scratch],
            work=draft.works(terms, draft.dense(extent.rows), kinds=ROWWISE),
        )  # fmt: skip
        self._writer.release(0, scratch)
        return outputs, saved

    def extent(self, stage: StageWork, part: int) -> Extent:
        """What the row-local half of a stage holds bytes for: its edges too, where it reads what
        they carry."""
        shape = self._draft.layout.parts[part]
        return Extent(shape.rows, shape.rows, shape.edges if self._edges(stage) else 0)

    def _edges(self, stage: StageWork) -> list[str]:
        """The inputs of edges that its row-local half reads."""
        return [name for name in rowwise(stage) if self._draft.of_edges(name)]

    def shared(self, stage: StageWork) -> list[str]:
        """The parameters and moments that a stage reads."""
        parameters = ["parameters"] if stage.parameter_bytes else []
        return [*parameters, *self._moments.of(stage)]

"""Slicing: what the graph operation of a stage holds while it runs on a slice of the columns.

Each runs forward and backward as executors run it (``runtime/slices``), on all columns and on the
fewest that can be a slice, while the allocator is watched.

Legend: P rows of a block, S its sources, K units (heads, or columns) that a slice has some of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from tiergnn.models.allocations import Allocations, recording
from tiergnn.models.bench import KEY, Bench
from tiergnn.models.functional import Columns
from tiergnn.models.linearity import Law, peak_of
from tiergnn.models.passes import run_backward, run_forward
from tiergnn.models.sample_blocks import SampleBlock
from tiergnn.models.stages import Stage
from tiergnn.workload import Peak, Size, SliceWork

_WAYS = ("whole", "least")


class Slicing:
    """Passes of all stages by columns, on some blocks."""

    def __init__(self, bench: Bench, samples: Sequence[SampleBlock]):
        self._bench = bench
        self._out_bytes: dict[tuple[int, str], list[int]] = {}
        self._stages = {stage.index: stage for stage in bench.program.stages if stage.columns}
        self._events = [self._recorded(sample) for sample in samples]

    def work(self, law: Law, index: int) -> SliceWork | None:
        """Of a stage; None where it is not done by columns."""
        if index not in self._stages:
            return None
        peaks = {}
        for way in _WAYS:
            out = law.size(self._out_bytes[index, way])
            peaks[way] = self._peak(law, f"forward {way} {index}", out)
            peaks[f"back_{way}"] = self._peak(law, f"backward {way} {index}", Size())
        return SliceWork(**peaks)

    def _peak(self, law: Law, mark: str, less: Size) -> Peak:
        """The most held beyond ``less``; nothing where the pass did not run."""
        if not all(mark in events for events in self._events):
            return Peak()
        totals = law.totals([events[mark] for events in self._events])
        return peak_of([size - less for size in totals])

    def _recorded(self, sample: SampleBlock) -> dict[str, list[int]]:
        """Of a second run: what is made once and kept is there."""
        self._run(Allocations(), sample, counted=False)
        with recording(self._bench.device) as allocations:
            self._run(allocations, sample, counted=True)
        return allocations.by_mark

    def _run(self, allocations: Allocations, sample: SampleBlock, *, counted: bool) -> None:
        for stage in self._stages.values():
            for way in _WAYS:
                made = self._forward(allocations, stage, sample, way)
                if counted:
                    found = self._out_bytes.setdefault((stage.index, way), [])
                    found.append(made.numel() * made.element_size())
                if self._bench.program.training:
                    self._backward(allocations, stage, sample, way, torch.ones_like(made))

    def _given(
        self, half: Stage, stage: Stage, sample: SampleBlock, way: str
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], Columns]:
        """Rows of sources, own rows, and which columns they are of."""
        rows = self._bench.rows(stage, sample)
        main = self._bench.program.rows[stage.columns[0].gathers[0]]
        columns = Columns(0, main.width)
        gathered = {n: rows.gathered[n].detach() for n in half.gathers if n in rows.gathered}
        own = {n: rows.own[n].detach() for n in (*half.reads, *half.edges)}
        if way == "least":
            cut = {n for n in (*gathered, *own) if self._bench.program.rows[n].width == main.width}
            cut -= set(half.edges)
            gathered, own = (
                {n: _first(r, stage) if n in cut else r for n, r in some.items()}
                for some in (gathered, own)
            )
        return gathered, own, columns

    def _forward(
        self, allocations: Allocations, stage: Stage, sample: SampleBlock, way: str
    ) -> Tensor:
        half = stage.columns[0]
        gathered, own, columns = self._given(half, stage, sample, way)
        allocations.mark(f"forward {way} {stage.index}")
        with torch.no_grad():
            made = half.run(sample.block, KEY, gathered, own, columns)
        allocations.mark("")
        return made[f"sum.s{stage.index}"]

    def _backward(
        self, allocations: Allocations, stage: Stage, sample: SampleBlock, way: str, grad: Tensor
    ) -> None:
        total, half = f"sum.s{stage.index}", stage.adjoint or stage.columns[0]
        gathered, own, columns = self._given(half, stage, sample, way)
        mark = f"backward {way} {stage.index}"
        if stage.adjoint is not None:
            allocations.mark(mark)
            with torch.no_grad():
                made: Mapping[str, Tensor] = half.run(
                    sample.block, KEY, {total: grad}, own, columns
                )
            allocations.mark("")
            return
        for rows in (gathered, own):
            for name in self._bench.graded & rows.keys():
                rows[name].requires_grad_()
        allocations.mark(mark)
        made, kept = run_forward(half, sample.block, KEY, gathered, own, keep=True, columns=columns)
        assert kept is not None
        found = run_backward(kept, {total: grad.reshape(made[total].shape)})
        allocations.mark("")
        del found


def _first(rows: Tensor, stage: Stage) -> Tensor:
    """The first unit of rows: a head where edges are scored, else a column."""
    if stage.divisible or rows.dim() < 3:
        return rows.reshape(len(rows), -1)[:, :1].clone()
    return rows[:, :1].clone()

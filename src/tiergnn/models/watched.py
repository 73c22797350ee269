"""Watched: a program's stages run on one block, each by itself, while the allocator and torch's
operations are watched.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tiergnn.models.allocations import Allocations, recording
from tiergnn.models.bench import KEY, Bench, BenchRows, own_bytes
from tiergnn.models.moments import moments_grad
from tiergnn.models.passes import Kept, run_backward, run_forward
from tiergnn.models.sample_blocks import SampleBlock
from tiergnn.models.stages import Stage
from tiergnn.models.works import Done, Works


class Passes:
    """All passes over one block: recorded when it is new, recorded again, and by operation.

    ``events[index, phase]`` is (when it was new, later): the allocations, in order.
    ``written`` are bytes of memory that a stage's outputs took, ``kept`` those that stayed beyond.
    """

    def __init__(self, bench: Bench, sample: SampleBlock):
        self.bench, self.sample = bench, sample
        self.written: dict[int, int] = {}
        self.works: dict[tuple[int, str], list[Done]] = {}
        for p in bench.program.stages[0].root.parameters() if bench.program.stages else ():
            p.grad = torch.zeros_like(p) if p.requires_grad else None
        first, then = self._recorded(), self._recorded()
        self.events = {key: (first[key], then[key]) for key in first}
        self._run_works()

    def _recorded(self) -> dict[tuple[int, str], list[int]]:
        with recording(self.bench.device) as allocations:
            self._run(allocations)
        found = {}
        for mark, events in allocations.by_mark.items():
            if mark:
                phase, index = mark.split()
                found[int(index), phase] = events
        return found

    def _run(self, allocations: Allocations) -> None:
        bench, stages = self.bench, self.bench.program.stages
        held: dict[int, tuple[BenchRows, Kept, dict[str, Tensor]]] = {}
        for stage in stages:
            rows = bench.rows(stage, self.sample)
            allocations.mark(f"forward {stage.index}")
            result = self._forward(stage, rows, keep=False)
            del result
            allocations.mark("")
            if not bench.program.training:
                continue
            allocations.mark(f"keep {stage.index}")
            written, kept, moments = self._forward(stage, rows, keep=True)
            allocations.mark("")
            self.written[stage.index] = own_bytes(written, rows)
            del moments
            if stage.unread:
                allocations.mark(f"again {stage.index}")
                result = self._forward(stage, rows, keep=True, again=True)
                del result
                allocations.mark("")
            assert kept is not None
            held[stage.index] = rows, kept, written
        for stage in reversed(stages) if held else ():
            rows, kept, written = held.pop(stage.index)
            grads = bench.grads(stage, self.sample.extent)
            allocations.mark(f"backward {stage.index}")
            found = self._backward(stage, rows, kept, grads)
            allocations.mark("")
            del found, rows, kept, written

    def _forward(
        self, stage: Stage, rows: BenchRows, *, keep: bool, again: bool = False
    ) -> tuple[dict[str, Tensor], Kept | None, Tensor | None]:
        moments = None
        if stage.statistic is not None:
            with torch.no_grad():
                moments = stage.combine([stage.partial(self.sample.block, rows.own)])
        block = self.sample.block
        if not self.bench.program.training:
            with torch.no_grad():
                return stage.run(block, KEY, rows.gathered, rows.own), None, moments
        written, kept = run_forward(
            stage, block, KEY, rows.gathered, rows.own, keep=keep, again=again
        )
        return written, kept, moments

    def _backward(
        self, stage: Stage, rows: BenchRows, kept: Kept, grads: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        found = dict(run_backward(kept, grads))
        if stage.statistic is not None and stage.statistic.name in found:
            name, of = stage.statistic.name, stage.statistic.of
            values = rows.own[name]
            found[f"own:{of}"] = moments_grad(rows.own[of], values, found[name])
        return found

    def _run_works(self) -> None:
        bench, stages = self.bench, self.bench.program.stages
        held: dict[int, tuple[BenchRows, Kept]] = {}
        with Works() as works:
            for stage in stages:
                rows = bench.rows(stage, self.sample)
                works.take()
                _, kept, _ = self._forward(stage, rows, keep=bench.program.training)
                self.works[stage.index, "forward"] = works.take()
                if kept is None:
                    continue
                held[stage.index] = rows, kept
                if stage.unread:
                    works.take()
                    self._forward(stage, rows, keep=True, again=True)
                    self.works[stage.index, "again"] = works.take()
            for stage in reversed(stages) if held else ():
                rows, kept = held.pop(stage.index)
                grads = bench.grads(stage, self.sample.extent)
                works.take()
                self._backward(stage, rows, kept, grads)
                self.works[stage.index, "backward"] = works.take()

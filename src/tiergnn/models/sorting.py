"""Sorting: what a training on a GPU makes of the edges before its first step, by runs on small
blocks. A GPU's sort takes several times the edges, so it is done before there are activations.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tiergnn.models.allocations import recording
from tiergnn.models.linearity import Law, peak_of
from tiergnn.models.sample_blocks import SampleBlock
from tiergnn.models.stages import Program
from tiergnn.packed import CUT_BYTES
from tiergnn.workload import Peak, Size


class Sorting:
    """Edges without loops and out-edges of new blocks, whose memory is watched; on a CPU none."""

    def __init__(self, program: Program, samples: Sequence[SampleBlock], device: torch.device):
        self._events: dict[str, list[list[int]]] = {"loops": [], "out": []}
        self._runs = program.training and device.type == "cuda"
        self._samples = samples
        for sample in samples if self._runs else ():
            with recording(device) as allocations:
                allocations.mark("loops")
                for stage in program.stages:
                    _ = stage.edges_of(sample.block)
                allocations.mark("out")
                program.sort_out_edges(sample.block)
            for name, lists in self._events.items():
                lists.append(allocations.by_mark[name])

    def lasting(self, law: Law, name: str) -> Size:
        """What stays with a block, on which all stages have run by now: of edges without "loops",
        or of "out"-edges. That of rows of many edges, which a GPU's kernels cut, is bounded: the
        small blocks have none."""
        cut = Size(per_edge=self._num_plans(out=name == "out") * CUT_BYTES)
        if not self._runs:
            return cut
        return law.size([float(sum(events)) for events in self._events[name]]) + cut

    def _num_plans(self, *, out: bool) -> int:
        """How often a block's rows are cut into tasks on a GPU: by in-edges, or by out-edges."""
        block = self._samples[0].block
        blocks = {id(each): each for each in (block, block.without_loops)}.values()
        plans = [key for each in blocks for key in each.plans]
        return sum(backend == "gpu" and of_out == out for _, backend, of_out, _ in plans)

    def peak(self, law: Law) -> Peak:
        """The most that is held beyond what stays."""
        if not self._runs:
            return Peak()
        both = zip(self._events["loops"], self._events["out"], strict=True)
        totals = law.totals([[*first, *then] for first, then in both])
        return peak_of([size - totals[-1] for size in totals])

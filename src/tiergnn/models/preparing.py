"""Preparing: what making prepared rows takes of memory, by runs on small blocks.

They are made some columns at a time where every column comes of its own, else at once, as
``runtime/executor`` makes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from tiergnn.models.allocations import recording
from tiergnn.models.bench import KEY, Bench
from tiergnn.models.linearity import Law, peak_of
from tiergnn.models.passes import run_forward
from tiergnn.models.sample_blocks import SampleBlock
from tiergnn.models.stages import Prepared, Program
from tiergnn.workload import Peak, Size


class Preparing:
    """All prepared rows of a program made on blocks, whose memory is watched.

    ``lasting_bytes``: of every block, what stays with it once the rows are given back.
    """

    def __init__(
        self, program: Program, inputs: Mapping[str, Tensor], samples: Sequence[SampleBlock]
    ):
        self._events: dict[tuple[str, int], list[list[int]]] = {}  # by what is made, and stage
        self._beside: dict[tuple[str, int], Size] = {}  # rows that are there, or are told already
        self.lasting_bytes = [0.0] * len(samples)
        for made in program.prepared:
            narrow, given = _as_made(made, inputs)
            bench = Bench(narrow, given, learned=False)
            self._count_beside(made, narrow)
            for place, sample in enumerate(samples):
                self.lasting_bytes[place] += self._run(made, bench, sample)

    def _run(self, made: Prepared, bench: Bench, sample: SampleBlock) -> int:
        with recording(bench.device) as allocations:
            for stage in bench.program.stages:
                allocations.mark("rows")
                rows = bench.rows(stage, sample)
                allocations.mark(str(stage.index))
                run_forward(stage, sample.block, KEY, rows.gathered, rows.own, keep=False)
                allocations.mark("rows")
                del rows
        total = 0
        for stage in bench.program.stages:
            events = allocations.by_mark[str(stage.index)]
            self._events.setdefault((made.name, stage.index), []).append(events)
            total += sum(events)
        return total

    def _count_beside(self, made: Prepared, program: Program) -> None:
        """Rows that wait while a stage runs: slices of x are copies; the last rows that are made at
        once are the input itself, which is told by its name."""
        sliced = program is not made.program
        live: set[str] = set()
        for stage in program.stages:
            held = sum(program.rows[name].row_bytes for name in live if name in program.rows)
            held += program.rows["x"].row_bytes if sliced else 0
            if program.output in stage.writes and not sliced:
                held -= program.rows[program.output].row_bytes
            self._beside[made.name, stage.index] = Size(per_row=held)
            live = (live | set(stage.writes)) - set(stage.frees)

    def peak(self, law: Law) -> Peak:
        """The most that is held beside the program's inputs."""
        sizes = [
            size + self._beside[key]
            for key, events in self._events.items()
            for size in law.totals(events)
        ]
        return peak_of(sizes) if sizes else Peak()


def _as_made(made: Prepared, inputs: Mapping[str, Tensor]) -> tuple[Program, Mapping[str, Tensor]]:
    """The program and its inputs, of some columns where it is made so."""
    program = made.program
    if made.columns == program.rows[program.output].width:
        return program, inputs
    rows = {
        name: replace(kind, shape=(min(kind.width, made.columns),)) if kind.of == "nodes" else kind
        for name, kind in program.rows.items()
    }
    return replace(program, rows=rows), {**inputs, "x": inputs["x"][:, : made.columns]}

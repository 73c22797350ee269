"""Bench: a program's stages, and rows to run them on by themselves, of any number.

Legend: P rows of a block, S its sources, E its edges, D columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from tiergnn.kernels.dropout import make_key
from tiergnn.models.passes import Kept, run_forward
from tiergnn.models.sample_blocks import SampleBlock, sample_blocks
from tiergnn.models.stages import Program, Stage
from tiergnn.workload import Extent

KEY = make_key(1, 2)  # of dropout; masks do not matter


class Bench:
    """A program and rows to run its stages on, of any number; values do not matter."""

    def __init__(self, program: Program, inputs: Mapping[str, Tensor], learned: bool):
        self.program = program
        self.device = inputs["x"].device
        self.edges = [name for name in program.needs if program.rows[name].of == "edges"]
        self._inputs = inputs
        self._generator = torch.Generator(self.device).manual_seed(0)
        # Names of rows and moments that gradients flow to.
        self.graded: set[str] = {"x"} if learned else set()
        self.moments_of = {
            s.statistic.name: s.statistic.of for s in program.stages if s.statistic is not None
        }
        self.saves: dict[int, tuple[str, ...]] = {}  # by stage: rows that its backward reads
        self.parameter_bytes: dict[int, int] = {}
        self._of_edges: dict[tuple[str, int], Tensor] = {}
        for stage in program.stages:
            self._follow(stage)

    def _follow(self, stage: Stage) -> None:
        if stage.statistic is not None and stage.statistic.of in self.graded:
            self.graded.add(stage.statistic.name)
        sample = next(iter(sample_blocks(self._inputs, loops=True)))
        rows = self.rows(stage, sample)
        written, kept = run_forward(stage, sample.block, KEY, rows.gathered, rows.own, keep=True)
        assert kept is not None
        self.graded |= set(kept.ends)
        self.parameter_bytes[stage.index] = bytes_of(_parameters(kept))
        names = {
            n: StorageWeakRef(row.untyped_storage()) for n, row in (*rows.items(), *written.items())
        }
        del rows, written
        self._of_edges.clear()
        self.saves[stage.index] = tuple(n for n, ref in names.items() if not ref.expired())

    def rows(self, stage: Stage, sample: SampleBlock) -> BenchRows:
        """New rows for one run of a stage."""
        gathered = {n: self._make(n, sample.extent.sources) for n in stage.gathers}
        own = {n: self._make(n, self.count(n, sample.extent)) for n in (*stage.reads, *stage.edges)}
        if stage.statistic is not None and stage.statistic.of not in own:
            own[stage.statistic.of] = self._make(stage.statistic.of, sample.extent.rows)
        for name in stage.statistics:
            own[name] = self._moments(name)
        return BenchRows(gathered, own)

    def grads(self, stage: Stage, extent: Extent) -> dict[str, Tensor]:
        """Gradients of what a stage writes."""
        return {
            n: self._make(n, self.count(n, extent)).detach()
            for n in stage.writes
            if n in self.graded
        }

    def count(self, name: str, extent: Extent) -> int:
        return extent.edges if self.program.rows[name].of == "edges" else extent.rows

    def row_bytes(self, name: str) -> int:
        return self.program.rows[name].row_bytes

    def moment_bytes(self, name: str) -> int:
        return bytes_of([self._moments(name)])

    def example(self, name: str) -> Tensor:
        return self._make(name, 2).detach()

    def _make(self, name: str, count: int) -> Tensor:
        """Edges' inputs are the same in every run, as in steps: what is kept with them lasts."""
        if name not in self.edges or name in self.graded:
            return self._new(name, count)
        if (name, count) not in self._of_edges:
            self._of_edges[name, count] = self._new(name, count)
        return self._of_edges[name, count]

    def _new(self, name: str, count: int) -> Tensor:
        rows = self.program.rows[name]
        if name in self.program.needs:
            given = self._inputs[name].detach()
            made = given[torch.arange(count, device=self.device) % max(1, given.shape[0])]
            made = made if given.shape[0] else given.new_ones(count, *given.shape[1:])
        elif rows.dtype.is_floating_point:
            made = torch.randn(count, *rows.shape, generator=self._generator, device=self.device)
            made = made.to(rows.dtype)
        else:
            made = torch.zeros(count, *rows.shape, dtype=rows.dtype, device=self.device)
        return made.requires_grad_() if name in self.graded else made

    def _moments(self, name: str) -> Tensor:
        of = self.program.rows[self.moments_of[name]]
        dtype = torch.promote_types(of.dtype, torch.float32)
        made = torch.ones(3, of.width, dtype=dtype, device=self.device)
        return made.requires_grad_() if name in self.graded else made


@dataclass(frozen=True, slots=True)
class BenchRows:
    """What a stage is given: rows of sources, and own rows, those of edges and moments."""

    gathered: dict[str, Tensor]
    own: dict[str, Tensor]

    def items(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.gathered.items()
        yield from self.own.items()


def _parameters(kept: Kept) -> list[Tensor]:
    """The leaves of a graph: parameters, each once."""
    found: dict[int, Tensor] = {}
    waiting: list[Any] = [end.grad_fn for end in kept.ends.values()]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        if isinstance(leaf := getattr(node, "variable", None), nn.Parameter):
            found[id(leaf)] = leaf
        for follower, _ in node.next_functions:
            if follower is not None and follower not in seen:
                seen.add(follower)
                waiting.append(follower)
    return list(found.values())


def own_bytes(written: Mapping[str, Tensor], rows: BenchRows) -> int:
    """Of memory that is of the rows written, and not of those that were given."""
    given = {row.untyped_storage().data_ptr() for _, row in rows.items()}
    memory = [row.untyped_storage() for row in written.values()]
    return sum({m.data_ptr(): m.nbytes() for m in memory if m.data_ptr() not in given}.values())


def bytes_of(tensors: Iterable[Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)

"""Metering: a model's stages run on a few small blocks, and what they take as functions of a block.

Each stage runs forward and backward by itself, as executors run it (``passes``), on blocks of
different numbers of rows, sources and edges, while the allocator is watched. Each allocation is
then a linear function of the block (or of the number of tasks that a kernel cuts it into), and so
are their running sums, the largest of which are the peaks.

Legend: P rows of a block, S its sources, E its edges, D columns.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from tiergnn.errors import ConfigError
from tiergnn.models.allocations import one_thread
from tiergnn.models.bench import Bench, bytes_of
from tiergnn.models.ending import (
    Ending,
    LossWork,
    StepWork,
    meter_learned,
    meter_loss,
    meter_step,
)
from tiergnn.models.linearity import Law, peak_of
from tiergnn.models.loops import without_loops
from tiergnn.models.preparing import Preparing
from tiergnn.models.sample_blocks import sample_blocks
from tiergnn.models.slicing import Slicing
from tiergnn.models.sorting import Sorting
from tiergnn.models.stages import Program, Stage
from tiergnn.models.trace import trace
from tiergnn.models.watched import Passes
from tiergnn.models.works import terms
from tiergnn.row_kinds import RowKind
from tiergnn.workload import (
    AgainWork,
    Extent,
    Learned,
    Peak,
    Size,
    StageWork,
    Term,
    Topology,
    Workload,
)

_PAGE = 4096  # for single numbers that stay between steps: losses, scores, counts


def meter(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    *,
    training: bool = True,
    learned: bool = False,
    loops: bool = True,
    prepared: bool = False,
    ending: Ending | None = None,
) -> Workload:
    """The workload of ``model`` on the device and in the dtype of ``inputs`` (as for ``trace``).

    ``learned``: the features x are parameters. ``loops``: the graph has edges from rows to
    themselves (at most one a row, for what is counted to bound it). ``prepared``: as for ``trace``.
    ``ending`` is what follows the stages. A copy of the model is run; the model stays as it is.
    Raises ConfigError for a model that cannot be cut or copied.
    """
    x = inputs["x"]
    model = _copy(model).to(x.device, x.dtype if x.is_floating_point() else None)
    with one_thread(), _mode(model, training):
        program = trace(model, inputs, training=training, prepared=prepared)
        inputs = {**inputs, **_examples(program, x)}
        bench = Bench(program, inputs, learned)
        samples = list(sample_blocks(inputs, loops=loops))
        _begin_libraries(x.device)
        sorting = Sorting(program, samples, x.device)
        preparing = Preparing(program, inputs, samples)
        passes = [Passes(bench, sample) for sample in samples]
        law = Law([p.sample.extent for p in passes], [p.sample.loops for p in passes])
        fits = {stage.index: _Fits(law, bench, stage, passes) for stage in program.stages}
        slicing = Slicing(bench, samples)
        parameters = list(model.parameters())
        loss, step, row = LossWork((), Peak()), StepWork((), 0, 0), StepWork((), 0, 0)
        if ending is not None:
            loss = meter_loss(ending, bench.example(program.output), training=training)
        if ending is not None and training:
            step = meter_step(ending, parameters)
        if ending is not None and training and learned:
            row = meter_learned(ending, inputs["x"][0].detach(), parameters)
    return Workload(
        name=type(model).__name__,
        dtype=_name(inputs["x"].dtype),
        rows=tuple(
            RowKind(
                name=r.name,
                width=r.width,
                dtype=_name(r.dtype),
                of=r.of,
                grad=r.name in bench.graded,
            )
            for r in program.rows.values()
        ),
        inputs=program.needs,
        output=program.output,
        stages=tuple(fit.stage_work(slicing) for fit in fits.values()),
        loss=loss.work,
        loss_held=loss.held,
        step=step.work,
        step_held=step.held_bytes,
        parameter_bytes=bytes_of(parameters),
        optimizer_bytes=step.state_bytes,
        topology=Topology(
            forward=_sum(
                [
                    sorting.lasting(law, "loops"),
                    law.size(preparing.lasting_bytes),
                    *(fit.lasting_forward for fit in fits.values()),
                ]
            ),
            backward=_sum(
                [sorting.lasting(law, "out"), *(fit.lasting_backward for fit in fits.values())]
            ),
            loops=loops,
            sorting=sorting.peak(law),
            without_loops=without_loops([program]),
        ),
        preparing=preparing.peak(law),
        by_column=all(made.columnwise for made in program.prepared),
        learned=Learned(row.held_bytes, row.state_bytes),
        buffer_bytes=bytes_of(model.buffers()) + _PAGE,
    )


def _begin_libraries(device: torch.device) -> None:
    """Have libraries of the GPU take their own memory, once for each thread that calls them."""
    if device.type == "cuda":
        one = torch.ones(8, 8, device=device, requires_grad=True)
        (one @ one).sum().backward()


def _examples(program: Program, x: Tensor) -> dict[str, Tensor]:
    """Some prepared rows."""
    kinds = {made.name: program.rows[made.name] for made in program.prepared}
    return {n: x.new_ones(x.shape[0], *k.shape, dtype=k.dtype) for n, k in kinds.items()}


def _copy(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception as error:  # whatever the user's own __deepcopy__ raises
        raise ConfigError(
            f"a copy of the model is metered, and it cannot be copied: {error}",
            culprit=type(model).__name__,
            hint="parametrizations (torch.nn.utils.parametrizations) in the place of tensors "
            "that forward computes and keeps",
        ) from error


class _Fits:
    """One stage's bytes and works on all blocks, as sizes."""

    def __init__(self, law: Law, bench: Bench, stage: Stage, passes: Sequence[Passes]):
        self._law, self._bench, self._stage, self._passes = law, bench, stage, passes
        index, blocks = stage.index, [p.sample.extent for p in passes]
        declared = self._declared(stage.writes)
        rows = law.size(declared)
        moments = Size()
        if stage.statistic is not None:
            moments = Size(bench.moment_bytes(stage.statistic.name))
        new, again = self._events("forward")
        self.lasting_forward = new[-1] - again[-1]
        self.forward_held = self._peak([new, again], rows + moments)
        self.kept, self.kept_held, self.backward_held = Size(), Peak(), Peak()
        self.again: AgainWork | None = None
        self.lasting_backward = Size()
        if not bench.program.training:
            return
        owned = [min(a, p.written[index]) for a, p in zip(declared, passes, strict=True)]
        new, again = self._events("keep")
        self.kept = self._not_less_than_none(again[-1] - law.size(owned) - moments, blocks)
        self.lasting_forward += new[-1] - again[-1]
        self.kept_held = self._peak([new, again], rows + moments)
        if stage.unread:
            made = law.size(self._declared(set(stage.writes) - set(stage.unread)))
            held = self._peak(self._events("again"), made + moments)
            self.again = AgainWork(unread=stage.unread, works=self._terms("again"), held=held)
        new, again = self._events("backward")
        self.lasting_backward = new[-1] - again[-1]
        self.backward_held = self._peak([new, again], law.size(self._gradients(blocks)))

    def _declared(self, names: Iterable[str]) -> list[int]:
        """Bytes of rows, by block."""
        count, size = self._bench.count, self._bench.row_bytes
        return [sum(size(n) * count(n, p.sample.extent) for n in names) for p in self._passes]

    def _terms(self, phase: str) -> tuple[Term, ...]:
        done = [p.works.get((self._stage.index, phase), []) for p in self._passes]
        return terms(self._law, done)

    def _events(self, phase: str) -> tuple[list[Size], list[Size]]:
        """The running totals of a pass over a new block, and over one that it ran on before."""
        index = self._stage.index
        first, then = (
            self._law.totals([p.events[index, phase][again] for p in self._passes])
            for again in (0, 1)
        )
        return first, then

    def _not_less_than_none(self, size: Size, extents: Sequence[Extent]) -> Size:
        """Rows that a stage writes may lie in memory that the block holds for good: no less."""
        found = [size.at(extent) for extent in extents]
        return size if min(found) >= 0 else self._law.size([max(0, n) for n in found])

    @staticmethod
    def _peak(runs: Sequence[Sequence[Size]], less: Size) -> Peak:
        """The most held in two runs beyond ``less``, and beyond what the first left for good."""
        first, then = runs
        lasting = first[-1] - then[-1]
        return peak_of([*(size - lasting - less for size in first), *(s - less for s in then)])

    def _gradients(self, extents: Sequence[Extent]) -> list[float]:
        """Bytes of the gradients that this stage's backward is the first to write, by block."""
        bench, stage = self._bench, self._stage
        later = [s for s in bench.program.stages if s.index > stage.index]
        reached = {name for s in later for name in _reads(s)}
        first = [n for n in _reads(stage) if n in bench.graded and n not in reached]
        totals = []
        for extent in extents:
            total = 0.0
            for name in first:
                if name in bench.moments_of:
                    total += bench.moment_bytes(name)
                elif name in stage.gathers:
                    total += bench.row_bytes(name) * extent.sources
                else:
                    total += bench.row_bytes(name) * bench.count(name, extent)
            totals.append(total)
        return totals

    def stage_work(self, slicing: Slicing) -> StageWork:
        bench, stage, law = self._bench, self._stage, self._law
        of = "" if stage.statistic is None else stage.statistic.of
        return StageWork(
            index=stage.index,
            kind=stage.kind,
            op=stage.op,
            gathers=stage.gathers,
            reads=tuple(dict.fromkeys((*([of] if of else []), *stage.reads, *stage.edges))),
            writes=stage.writes,
            frees=stage.frees,
            saves=bench.saves[stage.index] if bench.program.training else (),
            columnwise=bool(stage.columns),
            before=_own_of(stage.columns[0]) if stage.columns else (),
            after=_own_of(stage.columns[1]) if stage.columns else (),
            forward=self._terms("forward"),
            backward=self._terms("backward"),
            forward_held=self.forward_held,
            kept=self.kept,
            kept_held=self.kept_held,
            backward_held=self.backward_held,
            parameter_bytes=bench.parameter_bytes[stage.index],
            moments_of=of,
            statistics=stage.statistics,
            divisible=stage.divisible,
            by_degrees=stage.by_degrees,
            slices=slicing.work(law, stage.index),
            again=self.again,
        )


def _reads(stage: Stage) -> tuple[str, ...]:
    """Names of all that gradients flow to from a stage."""
    of = () if stage.statistic is None else (stage.statistic.of,)
    return tuple(
        dict.fromkeys((*stage.gathers, *stage.reads, *stage.edges, *stage.statistics, *of))
    )


def _own_of(half: Stage) -> tuple[str, ...]:
    """The own rows and inputs of edges that a half of a stage reads of others."""
    return tuple(n for n in (*half.reads, *half.edges) if n != f"sum.s{half.index}")


def _sum(sizes: Iterable[Size]) -> Size:
    total = Size()
    for size in sizes:
        total += size
    return total


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@contextmanager
def _mode(model: nn.Module, training: bool) -> Iterator[None]:
    """The model in one mode, and as it was afterwards."""
    before = {m: m.training for m in model.modules()}
    model.train(training)
    try:
        yield
    finally:
        for m, flag in before.items():
            m.training = flag

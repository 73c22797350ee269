"""Resident: a model, and the whole graph with its features on one device, ready to walk.

What a step does is its schedule's (``planner/strategies/resident``); here is what it does it to.
This path is the oracle: whatever else runs a Program must give its numbers.

Legend: V nodes, E edges, D features, C outputs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from tiergnn.errors import ConfigError, PlanError
from tiergnn.graph.csr import Graph
from tiergnn.kernels import memory
from tiergnn.kernels.block import Block
from tiergnn.kernels.dropout import Key, step_key
from tiergnn.models.stages import Prepared
from tiergnn.models.trace import Program, trace_both
from tiergnn.planner.strategies import resident
from tiergnn.runtime.capture import MEASURED, STEP, Capture
from tiergnn.runtime.memory import PeakMeter, available_bytes, check_room, out_of_memory
from tiergnn.runtime.outline import counts_of, outline
from tiergnn.runtime.rows import Rows, aligned, bad_value, first_not_finite
from tiergnn.runtime.walk import Walk
from tiergnn.schedule.check import peaks
from tiergnn.schedule.schedule import Schedule
from tiergnn.schedule.timeline import Timeline

_WITH_GAPS = 1.5  # of what a step holds: with what an allocator keeps between its tensors
_log = logging.getLogger("tiergnn")


class Resident:
    """A model over a graph that its device holds whole.

    The model is moved to ``device`` and ``dtype`` in place. Node features are the graph's, kept in
    their stored width and decoded at every pass, or the rows of ``embedding`` [V, D], a parameter.
    ``normalize_rows`` divides each feature row by the sum of its absolute values.
    ``prepare``: rows that the features and the graph alone decide are made at the first step and
    held from then on, and the features are not where nothing else reads them; None: where there is
    room for them beside what is needed at least.
    ``capture``: on a GPU steps are recorded after the first ones and replayed from then on, where
    there is room (see ``Capture``); not where a layer is called whole, whose Python might decide.
    ``schedule`` is of one training step by the resident strategy; None: every stage keeps what its
    backward reads.
    Raises ConfigError for a model that cannot be traced, or wants inputs that the graph lacks, and
    PlanError when the device (or ``budget_bytes`` of it) cannot hold the least that is needed.
    """

    def __init__(
        self,
        model: nn.Module,
        graph: Graph,
        *,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
        embedding: nn.Parameter | None = None,
        normalize_rows: bool = False,
        budget_bytes: int | None = None,
        schedule: Schedule | None = None,
        prepare: bool | None = False,
        capture: bool = False,
    ):
        self.device, self.seed, self._graph = indexed(torch.device(device)), seed, graph
        if graph.x is None and embedding is None:
            raise ConfigError("the graph has no node features", hint="features='degree'")
        self._meter = PeakMeter(self.device)
        needed = least_bytes(graph, model, self.device, dtype, embedding)
        check_room(self.device, needed, budget_bytes)
        with out_of_memory(self.device, "loading the graph"):
            self.model = model.to(self.device, dtype)
            for held in (*self.model.parameters(), *self.model.buffers()):
                if not nn.parameter.is_lazy(held):
                    held.data = aligned(held.data)
            self.block = Block.from_graph(graph, self.device)
            self.embedding, self._x = embedding, None
            if embedding is not None:
                embedding.data = embedding.data.to(self.device, dtype)
            elif graph.x is not None:
                self._x = Rows(graph.x, self.device, dtype, normalize=normalize_rows)
            self._edges: dict[str, Tensor] = {}
            if graph.edge_weight is not None:
                assert self.block.edge_weight is not None
                self._edges["edge_weight"] = self.block.edge_weight.to(dtype)
            self._edge_attr = None
            if graph.edge_attr is not None:
                self._edge_attr = Rows(graph.edge_attr, self.device, dtype)
        self.programs: dict[bool, Program] = {}
        self._prepared: dict[str, Tensor] = {}
        self.programs = self._trace(prepare is not False and embedding is None)
        if prepare is None and not self._has_room(needed, budget_bytes):
            self.programs = self._trace(False)
        shape = counts_of(graph)
        works = {
            training: outline(program, dtype=dtype, learned=embedding is not None)
            for training, program in self.programs.items()
        }
        step = resident.training(works[True], shape) if schedule is None else schedule
        self._step = self._walk(True, step)
        self._capture = self._made_capture(budget_bytes) if capture else None
        self._evaluation = self._walk(False, resident.evaluation(works[False], shape))
        if self.device.type == "cpu":
            self._keep_memory(step, budget_bytes)

    def _keep_memory(self, step: Schedule, budget_bytes: int | None) -> None:
        """Have the allocator keep what a step takes for the next one: all of it, where there is
        room for gaps."""
        most, _ = peaks(step).get((0, "device"), (0, {}))
        room = available_bytes(self.device)
        if _WITH_GAPS * most <= min(room, room if budget_bytes is None else budget_bytes):
            memory.keep_large()
        else:
            memory.keep_small()
            memory.no_large()

    def _trace(self, prepare: bool) -> dict[bool, Program]:
        names = ["x", *self._edges, *([] if self._edge_attr is None else ["edge_attr"])]
        return trace_both(self.model, self._inputs(names, slice(0, 8)), prepared=prepare)

    def _has_room(self, needed: dict[str, int], budget_bytes: int | None) -> bool:
        """Whether prepared rows, and the four tables at most on their way, go with what is
        ``needed`` at least; it is told where they do not."""
        total = 0
        for made in self.programs[True].prepared:
            rows = made.program.rows[made.program.output]
            total += self.block.num_dst * rows.dtype.itemsize * (rows.width + 4 * made.columns)
        try:
            check_room(self.device, {**needed, "prepared rows": total}, budget_bytes)
        except PlanError as error:
            _log.info("nothing is prepared: %s", error.problem)
            return False
        return True

    @property
    def prepares(self) -> bool:
        """Whether rows are made once and held."""
        return bool(self.programs[True].prepared)

    def _made_capture(self, budget_bytes: int | None) -> Capture | None:
        opaque = any(stage.opaque for stage in self.programs[True].stages)
        if self.device.type != "cuda" or opaque:
            return None
        tensors = [*self.model.parameters(), *self.model.buffers()]
        tensors += [] if self.embedding is None else [self.embedding]
        allowed = None if budget_bytes is None else budget_bytes + self.before_bytes
        return Capture(self.device, tensors, allowed)

    def _walk(self, training: bool, schedule: Schedule) -> Walk:
        return Walk(self.programs[training], schedule, self.block, self._input)

    @property
    def before_bytes(self) -> int:
        """That the process held on a GPU before, beside any budget."""
        return self._meter.before_bytes

    @property
    def schedule(self) -> Schedule:
        """Of one training step."""
        return self._step.schedule

    def forward(self, training: bool, step: int = 0) -> Tensor:
        """The model's output [V, C] by one graph of the whole; dropout masks are of ``step``."""
        with out_of_memory(self.device, "training" if training else "evaluating"):
            self.model.train(training)
            key = step_key(self.seed, step, self.device)
            program = self.programs[training]
            return program.run(self._inputs(program.needs), self.block, key)

    def train_step(
        self, loss_of_out: Callable[[Tensor], Tensor], step: int, *, measure: bool = False
    ) -> float:
        """The schedule up to STEP: gradients add to ``.grad``. Gives the loss.

        ``measure`` notes when each action ran, for ``timeline``.
        """
        with out_of_memory(self.device, "training"):
            self._step.begin(measured=measure)
            self.model.train(True)
            if self.device.type == "cuda":  # whose sort takes room: before there are activations
                self.programs[True].sort_out_edges(self.block)
            key, loss = step_key(self.seed, step, self.device), None

            def run(key: Key) -> Tensor:
                return self._step.run(key, loss_of_out, measure=measure)

            if self._capture is not None:
                loss = self._capture.run(run, key, loss_of_out, MEASURED if measure else STEP)
            if loss is None:
                loss = run(key)
            return float(loss)

    def update(self, move: Callable[[], Any]) -> None:
        """The schedule's STEP: ``move()`` has the optimizer move the parameters."""
        with out_of_memory(self.device, "training"):
            self._step.update(move)

    @torch.no_grad()
    def infer(self) -> Tensor:
        """The output [V, C] in evaluation mode; keeps nothing for a backward."""
        with out_of_memory(self.device, "evaluating"):
            self.model.train(False)
            return self._evaluation.run(None)

    @property
    def timeline(self) -> Timeline | None:
        """When each action ran in the step that was measured last; None before any."""
        peaks = self.peak_bytes
        return self._step.timeline(peaks.get("device", peaks["host"]))

    @property
    def peak_bytes(self) -> dict[str, int]:
        """The most taken so far, tier -> bytes: see ``runtime.memory.PeakMeter``."""
        return self._meter.read()

    @property
    def held_bytes(self) -> dict[str, int]:
        """What -> bytes that are held between passes; the transposed topology once it is made."""
        block = self.block
        arrays = [block.rowptr, block.col]
        if "transposed" in vars(block):
            arrays += block.transposed
        held = {
            "topology": sum(_bytes(array) for array in arrays),
            "parameters": sum(_bytes(p) for p in self.model.parameters()),
            "features": _bytes(self.embedding) if self._x is None else self._x.held_bytes,
        }
        if self._edge_attr is not None:
            held["edge features"] = self._edge_attr.held_bytes
        if self._prepared:
            held["prepared rows"] = sum(_bytes(rows) for rows in self._prepared.values())
        return held

    def sample_memory(self) -> None:
        """Look at the memory in use now; a peak between two looks is seen on Linux only."""
        self._meter.sample()

    def not_finite(self) -> str | None:
        """The first NaN or infinity in what the model reads of the graph, in words, or None."""
        tables: dict[str, Rows | Tensor | None] = {
            "x": self._x,
            "edge_attr": self._edge_attr,
            **self._edges,
        }
        for name in self.programs[True].inputs:
            rows = tables[name]
            if rows is None:
                continue
            if isinstance(rows, Tensor):
                found = first_not_finite(rows)
            else:
                found = rows.first_not_finite()
            if found is not None:
                return bad_value(self._graph, name, *found)
        return None

    def _input(self, name: str, rows: slice = slice(None)) -> Tensor:
        """Rows of an input as the model reads them; learned rows are the parameter itself."""
        if name in self._edges:
            return self._edges[name][rows]
        if name not in ("x", "edge_attr"):
            if name not in self._prepared:
                self._prepare(next(p for p in self.programs[True].prepared if p.name == name))
            return self._prepared[name][rows]
        if name == "edge_attr":
            assert self._edge_attr is not None
            return self._edge_attr.values(rows)
        if self._x is not None:
            return self._x.values(rows)
        assert self.embedding is not None
        return self.embedding if rows == slice(None) else self.embedding[rows]

    def _inputs(self, names: Iterable[str], rows: slice = slice(None)) -> dict[str, Tensor]:
        return {name: self._input(name, rows) for name in names}

    @torch.inference_mode(False)  # passes that are differentiated read them
    @torch.no_grad()
    def _prepare(self, made: Prepared) -> None:
        """Make the rows of an input, some columns at a time where that gives the same."""
        given = self._inputs(made.program.needs)
        width = made.program.rows[made.program.output].width
        if made.columns == width:
            rows = made.program.run(given, self.block)
        else:
            x = given.pop("x")
            rows = x.new_empty(self.block.num_dst, width)
            for first in range(0, width, made.columns):
                columns = slice(first, first + made.columns)
                given.pop("x", None)  # one slice at a time
                given["x"] = x[:, columns].contiguous()
                rows[:, columns] = made.program.run(given, self.block)
        self._prepared[made.name] = rows
        all_made = len(self._prepared) == len(self.programs[True].prepared)
        if all_made and not any("x" in program.needs for program in self.programs.values()):
            assert self._x is not None
            self._x.forget()


def indexed(device: torch.device) -> torch.device:
    """``cuda`` as ``cuda:N`` of the current device, so that equal devices compare equal."""
    if device.type != "cuda" or device.index is not None:
        return device
    return torch.device("cuda", torch.cuda.current_device())


def _bytes(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.numel() * tensor.element_size()


def least_bytes(
    graph: Graph,
    model: nn.Module,
    device: torch.device,
    dtype: torch.dtype,
    embedding: nn.Parameter | None = None,
) -> dict[str, int]:
    """What -> bytes: a lower bound of what training takes on ``device``; activations come on top.

    On the CPU the graph's own arrays are read where they are and do not count.
    """
    position = 4 if graph.num_edges < 2**31 else 8
    transposed = 8 * (graph.num_nodes + 1) + graph.num_edges * (graph.col.itemsize + position)
    params = [p for p in model.parameters() if not nn.parameter.is_lazy(p)]
    params += [] if embedding is None else [embedding]
    needed = {
        "topology": transposed,
        "parameters and their gradients": 2 * dtype.itemsize * sum(p.numel() for p in params),
    }
    for name, table in (("features", graph.x), ("edge features", graph.edge_attr)):
        if table is not None:
            decoded = 0 if table.dtype == str(dtype).removeprefix("torch.") else dtype.itemsize
            needed[name] = table.num_rows * table.width * decoded
            if device.type == "cuda":
                needed[name] += table.data.nbytes
    if device.type == "cuda":
        needed["topology"] += graph.topology_bytes
    return needed

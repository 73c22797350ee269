"""Cost: the seconds that an action's work takes on a machine, and what measured runs teach of it.

Every kind of work has a class: gather, attend, matmul, stream (operations on rows in order, torch's
and ours), draw, fresh, launch, pull (rows that are copied as they lie, where a link has a rate of
its own for them) and each link. What the machine's rates say is multiplied by the
factor of the class, 1 until ``fit`` (planner/fit.py) learns a better one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from tiergnn import frozen
from tiergnn.errors import ConfigError, unknown
from tiergnn.hardware.machine import AROUND, LEAST, LINKS, Device, Link, Machine, hit_frac
from tiergnn.schedule.actions import Action, Done, Lane, Op, Work
from tiergnn.schedule.schedule import Schedule
from tiergnn.workload import PRODUCTS

FORMAT = "tiergnn-costs"
VERSION = 1
CLASSES = ("gather", "attend", "matmul", "stream", "draw", "fresh", "launch", "pull", *LINKS)
_STAGED = ("sliced", "grinnder", "hongtu")  # steps that one thread queues action by action
# Kinds of work that operations have beside their bytes, and the class of each.
_BESIDE = {
    "walk": "gather", "attend": "attend", "drop": "attend", "softmax": "attend", "draw": "draw",
    "fresh": "fresh",
}  # fmt: skip
_DRAWN = 4  # numbers for each that attention keeps or drops
_FRESH_FROM_BYTES = 32 * 2**20  # a smaller tensor gets memory that an earlier one gave back


class LinkUse(NamedTuple):
    """Bytes that an action sends over a link, and the rate at which it alone would."""

    link: str
    num_bytes: int
    Bps: float


class Share(NamedTuple):
    """Seconds of one class in an action, its factor not counted; of a link: beyond latency."""

    cost_class: str
    seconds: float
    num_bytes: int = 0
    link: str = ""  # that they go over


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds of work on ``machine``; ``factors`` (class -> factor) are 1 where none is given.

    ``replays``: steps are recorded and replayed, and launches are those of a recorded graph;
    ``queues``: one thread of the host queues all that a GPU does.
    Raises ConfigError for an unknown class or a factor that is not above 0.
    """

    machine: Machine
    factors: Mapping[str, float] = field(default_factory=dict)
    replays: bool = False
    queues: bool = False

    def __post_init__(self) -> None:
        for name, factor in self.factors.items():
            if name not in CLASSES:
                raise unknown("class of work", name, CLASSES)
            if not LEAST <= factor <= 1 / LEAST:
                raise ConfigError(f"factors.{name} is above 0, had {factor}")
        ordered = {name: self.factors[name] for name in CLASSES if name in self.factors}
        object.__setattr__(self, "factors", ordered)

    @classmethod
    def of(cls, machine: Machine) -> Costs:
        """From the machine's rates alone."""
        return cls(machine=machine)

    def of_schedule(self, schedule: Schedule) -> Costs:
        """As its steps take them: a resident step on CUDA is recorded, all but what moves the
        parameters (runtime/capture)."""
        resident = schedule.strategy == "resident" and schedule.num_ranks == 1
        trains = any(action.op == Op.STEP for action in schedule.actions)
        replays = resident and trains and self.machine.device.replayed_launch_s is not None
        queues = self.machine.device.queueing is not None and schedule.strategy in _STAGED
        return replace(self, replays=replays, queues=queues)

    def queueing_s(self, action: Action) -> float:
        """Of the host, before the device can begin."""
        queueing = self.machine.device.queueing
        if not self.queues or queueing is None:
            return 0.0
        works = action.lane is Lane.COMPUTE and action.op is not Op.COPY and action.work
        tiles = max(len(action.reads), len(action.writes)) if action.op is Op.COPY else 0
        found = queueing.action_s + tiles * queueing.tile_s
        return found + queueing.stage_s if works else found

    def factor(self, cost_class: str) -> float:
        return self.factors.get(cost_class, 1.0)

    def parts(self, action: Action | Done) -> tuple[float, tuple[LinkUse, ...]]:
        """Seconds that nothing else can lengthen, and what goes over links that may be shared.

        Raises PlanError for a link that the machine lacks.
        """
        fixed_s, uses = 0.0, []
        for share in self.shares(action):
            factor = self.factor(share.cost_class)
            if share.num_bytes:
                rate = share.num_bytes / (share.seconds * factor)
                uses.append(LinkUse(share.link, share.num_bytes, rate))
            else:
                fixed_s += share.seconds * factor
        return fixed_s, tuple(uses)

    def seconds(self, action: Action) -> float:
        """Of the action alone, sharing nothing. Raises as ``parts``."""
        fixed_s, uses = self.parts(action)
        return fixed_s + sum(use.num_bytes / use.Bps for use in uses)

    def shares(self, action: Action | Done) -> Iterator[Share]:
        """The action's seconds by class, factors not counted. Raises as ``parts``."""
        if action.op is Op.BARRIER:
            yield from self._met()
            return
        streamed = _streamed(action.work) if self.machine.device.kind == "cpu" else 0.0
        replayed = self.replays and action.op != Op.STEP
        launches = _Launches.of(self.machine.device, replayed, action.work)
        attends = any(work.kind == "attend" for work in action.work)
        waits = self.machine.device.attend_reads if attends else 1.0
        for work in action.work:
            yield from _shares(self.machine, work, action, streamed, launches, waits)

    def _met(self) -> Iterator[Share]:
        """Until all have seen that all have come; a GPU that waits in order takes nothing of it."""
        way = self.machine.links.get("peer_copy")
        if self.machine.device.kind == "cpu" and way is not None and way.latency_s:
            yield Share("peer_copy", way.latency_s)

    def save(self, path: str | Path) -> None:
        """Raises StoreError when the file cannot be written."""
        frozen.save(path, FORMAT, VERSION, self)

    @classmethod
    def load(cls, path: str | Path) -> Costs:
        """Raises StoreError for a file that cannot be read, ConfigError for anything else in it."""
        return frozen.load(cls, path, FORMAT, VERSION)


class _Launches(NamedTuple):
    """Seconds of one operation, and of one of ours over a graph."""

    plain_s: float
    graph_s: float

    @classmethod
    def of(cls, device: Device, replayed: bool, works: Sequence[Work]) -> _Launches:
        """Of an action whose operations each take so much room in a core's own cache."""
        if replayed and device.replayed_launch_s is not None:
            return cls(device.replayed_launch_s, device.replayed_launch_s)
        plain_s = device.launch_s
        graph_s = plain_s if device.graph_launch_s is None else device.graph_launch_s
        if device.cold_launch_s is None or device.cold_graph_launch_s is None:
            return cls(plain_s, graph_s)
        launched = [work for work in works if work.launches and work.kind != "fresh"]
        moved = sum(w.launches * w.span if w.kind in PRODUCTS else w.amount for w in launched)
        count = sum(work.launches for work in launched)
        warm = hit_frac(device.near_cache_bytes, moved / count) if count else 1.0
        return cls(
            warm * plain_s + (1 - warm) * device.cold_launch_s,
            warm * graph_s + (1 - warm) * device.cold_graph_launch_s,
        )


def _streamed(works: Sequence[Work]) -> float:
    """Bytes that kernels read and write in order for each byte of rows that they gather.

    They take room in the caches from the rows. A GPU's rates are set with that in them.
    """
    gathered = sum(work.amount for work in works if work.kind == "gather")
    passing = sum(w.amount for w in works if w.kind == "stream" and not w.launches)
    return passing / gathered if gathered else 0.0


def _shares(
    machine: Machine,
    work: Work,
    action: Action | Done,
    streamed: float,
    launches: _Launches,
    waits: float,
) -> Iterator[Share]:
    """``waits``: how often as long as usual rows are waited for that lie in no core's own cache."""
    device, lane = machine.device, action.lane
    link = _link_of(work, lane, device)
    if link is not None:
        way = machine.link(link)
        if way.latency_s and work.kind == "move":
            yield Share(link, work.launches * way.latency_s)
        if work.kind == "gather" and lane != Lane.HOST:
            yield Share("launch", work.launches * launches.graph_s)
        if work.amount:
            piece = work.grain if work.grain > 1 else work.amount
            if action.op is Op.COPY and way.pulled_Bps:
                yield Share("pull", work.amount / way.pulled_Bps.at(piece), work.amount, link)
            else:
                byte_s = _read_s_per_byte(device, way, work, piece)
                yield Share(link, work.amount * byte_s, work.amount, link)
        return
    if work.kind == "gather":
        yield Share("launch", work.launches * launches.graph_s)
        byte_s = gather_s_per_byte(device, work, streamed)
        near = device.near_gather_Bps or device.cached_gather_Bps
        waited_s = max(0.0, byte_s - 1 / near.at(max(1, work.grain)))
        yield Share("gather", work.amount * (byte_s + (waits - 1) * waited_s))
        return
    if work.kind in _BESIDE:
        yield Share(_BESIDE[work.kind], _beside_s(device, work))
        return
    if work.launches:
        of_ours = work.kind == "rowwise"
        yield Share("launch", work.launches * (launches.graph_s if of_ours else launches.plain_s))
    if work.kind in PRODUCTS:
        yield from _product(device, work)
    elif work.kind == "add":
        yield Share("gather", _added_s(device, work))
    else:
        yield Share("stream", _stream_s(device, work))


def _beside_s(device: Device, work: Work) -> float:
    """What an operation takes beside its bytes; nothing where the machine has no rate of it."""
    curves = {
        "attend": device.attends_per_s, "drop": device.drops_per_s,
        "softmax": device.softmaxes_per_s,
    }  # fmt: skip
    curve = curves.get(work.kind)
    if curve is not None:
        return work.amount / curve.at(work.grain)
    drawn = device.draws_per_s
    rates = {
        "walk": device.walks_per_s, "draw": drawn, "drop": drawn and drawn / _DRAWN,
        "fresh": device.fresh_Bps,
    }  # fmt: skip
    rate = rates.get(work.kind)
    small = work.kind == "fresh" and work.amount < work.launches * _FRESH_FROM_BYTES
    return 0.0 if rate is None or small else work.amount / rate


def _added_s(device: Device, work: Work) -> float:
    if device.adds_Bps is not None:
        return work.amount / device.adds_Bps.at(max(1, work.grain))
    return work.amount * gather_s_per_byte(device, work)


def _product(device: Device, work: Work) -> Iterator[Share]:
    """Arithmetic by the narrowest width, and bytes: one after the other on a CPU, at once on CUDA,
    where the longer of the two counts."""
    dtype = "float32" if work.place == "device" else work.place
    curve = device.matmul_of(dtype)
    if work.kind == "outer":
        curve = device.outer_flops.get(dtype, curve)
    flops_s = work.amount / curve.at(max(1, work.grain))
    bytes_s = work.launches * _in_order_s(device, float(work.span))
    if device.kind == "cpu" or flops_s >= bytes_s:
        yield Share("matmul", flops_s)
    if device.kind == "cpu" or flops_s < bytes_s:
        yield Share("stream", bytes_s)


def _link_of(work: Work, lane: Lane, device: Device) -> str | None:
    """The link that the work's bytes go over; None where the device does it by itself."""
    if work.kind == "move":
        return work.place
    if work.kind in PRODUCTS or work.place == "device":
        return None
    if work.kind == "stream":
        return "host_copy"
    if work.place == "peer":
        return None if device.kind == "cpu" else "peer"  # one memory has all ranks' rows
    if lane == Lane.HOST:
        return "host_gather"
    return None if device.kind == "cpu" else "zero_copy"  # a CPU's memory is the host's


def _read_s_per_byte(device: Device, way: Link, work: Work, piece: int) -> float:
    """Of rows that are read many times the device's cache has some."""
    far_s = 1 / way.Bps.at(piece)
    if way.cached_Bps is None or not work.span or not work.amount:
        return far_s
    again = max(0.0, 1 - work.span / work.amount)
    hit = again * hit_frac(device.cache_bytes, float(work.span), work.evenness)
    return hit / way.cached_Bps.at(piece) + (1 - hit) * far_s


def gather_s_per_byte(device: Device, work: Work, streamed: float = 0.0) -> float:
    """Each byte takes what the cache that has it takes: a smooth step from caches to memory.

    A CPU finds a row that is read for the first time where other operations left it.
    """
    even = work.evenness
    row = max(1, work.grain)
    span = float(work.span)
    if 0 < device.pass_bytes < row:
        span *= device.pass_bytes / row
    near = 0.0
    if device.near_gather_Bps:
        near = hit_frac(device.near_cache_bytes, span, even, streamed)
    cached = max(near, hit_frac(device.cache_bytes, span, even, streamed))
    memory_s = (1 - cached) / device.gather_Bps.at(row)
    cached_s = (cached - near) / device.cached_gather_Bps.at(row)
    near_s = near / device.near_gather_Bps.at(row) if device.near_gather_Bps else 0.0
    again_s = near_s + cached_s + memory_s
    if device.kind != "cpu" or not work.amount:
        return again_s
    left = hit_frac(device.cache_bytes, AROUND * span)
    first_s = left / device.cached_gather_Bps.at(row) + (1 - left) / device.gather_Bps.at(row)
    first = min(1.0, span / work.amount)
    return (1 - first) * again_s + first * max(first_s, again_s)


def _stream_s(device: Device, work: Work) -> float:
    """Without a launch it is what a kernel streams besides its gathers."""
    if work.launches:
        each = work.amount / work.launches
        return work.launches * _in_order_s(device, each, work.kind)
    if device.kind == "cpu":
        return _in_order_s(device, work.amount)
    return device.in_order_s(work.amount)


def _in_order_s(device: Device, num_bytes: float, kind: str = "stream") -> float:
    """Of one operation; never less than that of a smaller one, however the rates were measured."""
    own = {"rowwise": device.rowwise_Bps, "total": device.totals_Bps}.get(kind)
    curve = device.elementwise_Bps if own is None else own
    if curve is None:
        return num_bytes / device.stream_Bps
    if not num_bytes:
        return 0.0
    smaller = [size / rate for size, rate in curve.points if size < num_bytes]
    return max(num_bytes / curve.at(num_bytes), *smaller, 0.0)

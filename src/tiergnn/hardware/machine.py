"""Machine: what a plan is made for, as data: devices, memory tiers and the links between them.

It may be this host (measured by ``measure``), one of ``presets``, or a JSON file of the user's.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from tiergnn import frozen
from tiergnn.errors import ConfigError, PlanError, unknown
from tiergnn.units import format_bytes

FORMAT = "tiergnn-machine"
VERSION = 1
TIERS = ("device", "host", "disk")
LEAST = 1e-60  # of what is above 0: products of some are, too
AROUND = 8  # operations of a step between one that writes a tensor and one that reads it


@dataclass(frozen=True, slots=True)
class Curve:
    """A rate that depends on a size: (size, rate) points, sizes ascending, all positive.

    Between two points the rate is linear in the logarithm of the size; outside it is flat.
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        sizes = [size for size, _ in self.points]
        positive = all(LEAST <= v <= 1 / LEAST for point in self.points for v in point)
        if not sizes or not positive or any(a >= b for a, b in pairwise(sizes)):
            raise ConfigError(
                f"a curve needs positive (size, rate) points by ascending size, had {self.points}"
            )

    @classmethod
    def flat(cls, rate: float) -> Curve:
        return cls(((1.0, float(rate)),))

    def at(self, size: float) -> float:
        points = self.points
        index = bisect_right([at for at, _ in points], size)
        if index == 0 or index == len(points):
            return points[max(0, index - 1)][1]
        (a, low), (b, high) = points[index - 1], points[index]
        return low + (high - low) * (math.log(size / a) / math.log(b / a))


@dataclass(frozen=True, slots=True)
class Tier:
    """Memory of one kind. ``reserved_bytes`` of it are not for plans: contexts, the system."""

    capacity_bytes: int
    reserved_bytes: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.reserved_bytes <= self.capacity_bytes:
            raise ConfigError(
                f"a tier reserves between nothing and all of its {self.capacity_bytes} bytes, "
                f"had {self.reserved_bytes}"
            )

    @property
    def available_bytes(self) -> int:
        return self.capacity_bytes - self.reserved_bytes

    def __str__(self) -> str:
        reserved = f" less {format_bytes(self.reserved_bytes)} reserved"
        return format_bytes(self.capacity_bytes) + (reserved if self.reserved_bytes else "")


def _check_positive(culprit: str, *, zero: bool = False, **values: float) -> None:
    """Raise ConfigError unless all are finite and above 0 (with ``zero``: or 0)."""
    for name, value in values.items():
        if not (0 if zero else LEAST) <= value <= 1 / LEAST:
            raise ConfigError(
                f"{name} is {'0 or more' if zero else 'above 0'}, had {value}", culprit=culprit
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Queueing:
    """Seconds of the host's one thread that tells a GPU what to do, action by action."""

    action_s: float  # of any
    tile_s: float  # beside that, of each buffer of a copy
    stage_s: float  # of what runs a stage

    def __post_init__(self) -> None:
        _check_positive(
            "queueing", zero=True, action_s=self.action_s, tile_s=self.tile_s, stage_s=self.stage_s
        )


# Measured on an H200's host with 3,800 actions a step, and taken for other hosts, too.
QUEUEING = Queueing(action_s=40e-6, tile_s=25e-6, stage_s=1e-3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What computes; every device of a machine is alike. Of a CPU machine: all its cores.

    Rates of gathers are those of our aggregation kernels, less what they read and write in order:
    they are by the bytes of a row, of a table that lies in memory, in the last cache or in a nearer
    one (a core's own; 0: there is none to speak of). A kernel that walks wide rows piece by piece,
    all rows of one piece first, reads a table as narrow as ``pass_bytes``.
    """

    name: str
    kind: str  # cuda or cpu
    memory: Tier  # a CPU device's memory is the host's: the tier is a capped share of it
    cache_bytes: int  # last level: random reads of a table that fits it are faster
    stream_Bps: float  # bytes read plus bytes written in order
    gather_Bps: Curve  # rows read at random from memory, by bytes of a row
    cached_gather_Bps: Curve  # likewise where the table fits the cache
    matmul_flops: Mapping[str, Curve]  # dtype -> operations a second, by the narrowest width
    launch_s: float  # of one operation, whatever its size
    near_cache_bytes: int = 0
    near_gather_Bps: Curve | None = None
    pass_bytes: int = 0  # 0: rows are read whole
    # Operations in order, by the bytes that one reads and writes, between others of its size as in
    # a step: only small ones find in a cache what was written there. None: stream_Bps.
    elementwise_Bps: Curve | None = None
    graph_launch_s: float | None = None  # of one operation of ours; None: launch_s
    replayed_launch_s: float | None = None  # of an operation of a recorded CUDA graph
    # Between operations that fill a core's own cache, where the interpreter's code and data were;
    # None: as where they do not.
    cold_launch_s: float | None = None
    cold_graph_launch_s: float | None = None
    fresh_Bps: float | None = None  # pages that the system hands out for large new tensors
    walks_per_s: float | None = None  # rows that kernels sum, beside the rows that they gather
    draws_per_s: float | None = None  # numbers drawn for dropout, beside the pass that draws them
    # Rows weighed by attention, beside gathering them: edges times heads, by the heads of an edge;
    # likewise where it drops some, beside that (None: four draws for each); and rows times heads.
    attends_per_s: Curve | None = None
    drops_per_s: Curve | None = None
    softmaxes_per_s: Curve | None = None
    attend_reads: float = 1.0  # how often as long as a sum it waits for rows that are farther away
    totals_Bps: Curve | None = None  # torch's sums over rows, like and None: elementwise_Bps
    # Rows that torch adds to others by index, one by one, by the bytes of a row. None: gathers.
    adds_Bps: Curve | None = None
    # Products that sum over rows (gradients of weights), like matmul_flops and without any: these.
    outer_flops: Mapping[str, Curve] = field(default_factory=dict)
    rowwise_Bps: Curve | None = None  # of our own kernels, like and None: elementwise_Bps
    queueing: Queueing | None = None  # None: the host keeps ahead of the device

    def __post_init__(self) -> None:
        if self.kind not in ("cuda", "cpu"):
            raise ConfigError(f"a device is cuda or cpu, had {self.kind!r}")
        _check_positive(self.name, stream_Bps=self.stream_Bps)
        _check_positive(
            self.name,
            zero=True,
            cache_bytes=self.cache_bytes,
            near_cache_bytes=self.near_cache_bytes,
            pass_bytes=self.pass_bytes,
            launch_s=self.launch_s,
            graph_launch_s=self.graph_launch_s or 0.0,
            replayed_launch_s=self.replayed_launch_s or 0.0,
            cold_launch_s=self.cold_launch_s or 0.0,
            cold_graph_launch_s=self.cold_graph_launch_s or 0.0,
        )
        _check_positive(self.name, attend_reads=self.attend_reads)
        for name in ("fresh_Bps", "draws_per_s", "walks_per_s"):
            rate = getattr(self, name)
            _check_positive(self.name, **({} if rate is None else {name: rate}))
        if self.near_cache_bytes > self.cache_bytes:
            raise ConfigError("a nearer cache is no larger than the last", culprit=self.name)
        if self.near_cache_bytes and self.near_gather_Bps is None:
            raise ConfigError("near_cache_bytes needs near_gather_Bps", culprit=self.name)
        if not self.matmul_flops:
            raise ConfigError(
                "matmul_flops is empty", culprit=self.name, hint='{"float32": {"points": ...}}'
            )

    def in_order_s(self, num_bytes: float) -> float:
        """Seconds of a kernel that reads and writes so many bytes in order, into memory it has."""
        cached_Bps = self.stream_Bps
        if self.elementwise_Bps is not None:
            cached_Bps = max(rate for _, rate in self.elementwise_Bps.points)
        return in_order_s(num_bytes, self.cache_bytes, cached_Bps, self.stream_Bps)

    def matmul_of(self, dtype: str) -> Curve:
        """Rates of matrix products of a dtype; a dtype without any has those of float32.

        Raises PlanError where there is neither.
        """
        curve = self.matmul_flops.get(dtype) or self.matmul_flops.get("float32")
        if curve is None:
            raise PlanError(
                f"{self.name} has no rate of matrix products of {dtype}",
                hint=f"a machine file that gives it; it has {', '.join(self.matmul_flops)}",
            )
        return curve


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A way for bytes. ``Bps`` is by the bytes of one contiguous piece: a row, a block of a file.

    With ``devices`` above 1, as many devices share its rate (a PCIe switch, the host's memory).
    ``duplex_frac`` of the rate is left to each direction while the opposite link is busy too.
    ``wire`` names the link whose wire it takes, where that is not its own: peers that are reached
    over the link to the host. ``pulled_Bps`` is that of rows that are copied as they lie, where it
    is another than that of rows that sums read at random; ``cached_Bps`` is of those that the
    device's cache has from an earlier read, None where it keeps none.
    """

    Bps: Curve
    latency_s: float = 0.0
    devices: int = 1
    duplex_frac: float = 1.0
    wire: str = ""
    pulled_Bps: Curve | None = None
    cached_Bps: Curve | None = None

    def __post_init__(self) -> None:
        if self.wire and self.wire not in LINKS:
            raise unknown("link", self.wire, LINKS)
        _check_positive("a link", zero=True, latency_s=self.latency_s)
        _check_positive("a link", devices=self.devices, duplex_frac=self.duplex_frac)
        if self.duplex_frac > 1:
            raise ConfigError(f"duplex_frac is at most 1, had {self.duplex_frac}")


# The links that a machine may have. h2d and d2h copy in bulk; zero_copy is rows of pinned host
# memory that a kernel reads in place, pageable a copy from memory that is not pinned; peer is
# rows of another device's memory read in place, peer_copy a bulk copy; network joins hosts.
LINKS = (
    "h2d", "d2h", "zero_copy", "pageable", "peer", "peer_copy", "disk_read", "disk_write",
    "host_copy", "host_gather", "network",
)  # fmt: skip
OPPOSITE = {"h2d": "d2h", "d2h": "h2d", "disk_read": "disk_write", "disk_write": "disk_read"}
OF_HOST = ("disk_read", "disk_write", "host_copy", "host_gather")  # of all its devices together


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One or more equal hosts, each with ``num_devices`` equal devices; ranks are one a device.

    ``source`` says where the figures come from: "measured", "published" or "given". ``links`` keep
    the order of LINKS.
    """

    name: str
    num_devices: int
    device: Device
    host: Tier
    disk: Tier | None
    links: Mapping[str, Link]
    num_hosts: int = 1
    source: str = "given"
    date: str = ""  # of the measurement, YYYY-MM-DD

    def __post_init__(self) -> None:
        strangers = [name for name in self.links if name not in LINKS]
        if strangers:
            raise ConfigError(
                f"unknown link {strangers[0]!r}", culprit=self.name, hint=", ".join(LINKS)
            )
        if self.num_devices < 1 or self.num_hosts < 1:
            raise ConfigError(f"{self.name} has no devices")
        ordered = {name: self.links[name] for name in LINKS if name in self.links}
        object.__setattr__(self, "links", ordered)

    def link(self, name: str) -> Link:
        """Raises PlanError where the machine has none of that name."""
        if name not in self.links:
            raise PlanError(
                f"{self.name} has no {name} link",
                hint=f"a machine file that gives its rate; it has {', '.join(self.links)}",
            )
        return self.links[name]

    def tier(self, name: str) -> Tier:
        """The device's, the host's or the disk's memory; raises PlanError without a disk."""
        tier = {"device": self.device.memory, "host": self.host, "disk": self.disk}[name]
        if tier is None:
            raise PlanError(f"{self.name} has no disk tier", hint="--disk PATH")
        return tier

    def with_budgets(
        self,
        *,
        device_bytes: int | None = None,
        host_bytes: int | None = None,
        disk_bytes: int | None = None,
    ) -> Machine:
        """The machine with less to plan with; a budget above what there is gives what there is."""

        def capped(tier: Tier, budget: int | None) -> Tier:
            if budget is None or budget >= tier.available_bytes:
                return tier
            return Tier(capacity_bytes=max(0, budget))

        return replace(
            self,
            device=replace(self.device, memory=capped(self.device.memory, device_bytes)),
            host=capped(self.host, host_bytes),
            disk=None if self.disk is None else capped(self.disk, disk_bytes),
        )

    def save(self, path: str | Path) -> None:
        """Raises StoreError when the file cannot be written."""
        frozen.save(path, FORMAT, VERSION, self)

    @classmethod
    def load(cls, path: str | Path) -> Machine:
        """Raises StoreError for a file that cannot be read, ConfigError for anything else in it."""
        return frozen.load(cls, path, FORMAT, VERSION)


_SHARPNESS = 3  # of a cache's edge: it has sets, and others use it too


@lru_cache(maxsize=4096)
def hit_frac(
    cache_bytes: float, span_bytes: float, evenness: float = 1.0, streamed: float = 0.0
) -> float:
    """The share of random reads of a table of ``span_bytes`` that a cache answers.

    Read evenly it is the share f of the table that the cache holds: nearly all of a small table,
    cache / span of a large one, smooth between. Hot rows stay longer: of an uneven table the cache
    answers f / (f + evenness (1 - f)) (``graph.shape.Histogram.evenness``).

    For each byte of rows ``streamed`` bytes pass through the cache, read or written once: they stay
    as long as a row that is not read again. While a cache that was empty comes to hold the share f,
    it is asked for (-ln(1 - f) - f) / evenness + f tables of rows: the integral of 1 / its misses.
    """
    if not cache_bytes:
        return 0.0
    held = (1 + (span_bytes / cache_bytes) ** _SHARPNESS) ** (-1 / _SHARPNESS)
    if streamed and span_bytes:
        held = _shared_share(cache_bytes / span_bytes, evenness, streamed, held)
    return held / (held + evenness * (1 - held))


def _shared_share(room: float, evenness: float, streamed: float, most: float) -> float:
    """The share of a table in a cache of ``room`` tables that what is streamed lies in, too."""
    low, high = 0.0, min(most, 1 - 1e-12)
    for _ in range(30):
        f = (low + high) / 2
        alone = f / (1 - f**_SHARPNESS) ** (1 / _SHARPNESS)  # a cache that would hold this share
        passed = (-math.log1p(-f) - f) / evenness + f
        low, high = (f, high) if alone + streamed * passed < room else (low, f)
    return low


def cache_of(hit: float, span_bytes: float) -> float:
    """The cache that answers the share ``hit``, between 0 and 1, of even reads of a table."""
    return span_bytes / (hit**-_SHARPNESS - 1) ** (1 / _SHARPNESS)


def in_order_s(num_bytes: float, cache_bytes: float, cached_Bps: float, memory_Bps: float) -> float:
    """Seconds of bytes read or written in order; few of them are still in the cache."""
    hit = hit_frac(cache_bytes, num_bytes)
    return num_bytes * (hit / max(cached_Bps, memory_Bps) + (1 - hit) / memory_Bps)

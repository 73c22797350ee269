"""ExchangePlan: who sends which boundary rows to whom, stage by stage, as data.

    exchange planned row_bytes 64
    topology dgx1 stage_s 2e-05 devices gpu0 gpu1 ...
    source ...
    wire gpu0 gpu1 nvlink1 22500000000.0
    demand 0 readers 1,5 rows 40
    send 0 0>1 demand 0 rows 0:40
    send 1 1>5 demand 0 rows 0:40

A stage begins when the one before is done everywhere. Rows of a demand are numbered from 0. In
backward the stages run in reverse and each receiver gives back what it gathered for a row: its own
share and those of all that it sent the row to (``schedule.exchange_check`` proves that it is once).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tiergnn import frozen
from tiergnn.errors import ConfigError, PlanError
from tiergnn.graph.boundary import Demand
from tiergnn.hardware.topology import Topology
from tiergnn.units import format_bytes, format_rate, format_seconds

FORMAT = "tiergnn-exchange"
VERSION = 1
METHODS = ("direct", "planned")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Send:
    """Rows ``start`` to ``stop`` of a demand from one rank to another in one stage."""

    stage: int
    sender: int
    receiver: int
    demand: int
    start: int
    stop: int

    def __str__(self) -> str:
        return (
            f"send {self.stage} {self.sender}>{self.receiver} demand {self.demand} "
            f"rows {self.start}:{self.stop}"
        )

    @classmethod
    def parse(cls, text: str) -> Send:
        """Raises ConfigError for a line that is no send."""
        words = text.split()
        if len(words) != 7 or (words[0], words[3], words[5]) != ("send", "demand", "rows"):
            raise ConfigError(f"not a send: {text!r}", hint="send STAGE A>B demand D rows I:J")
        try:
            sender, receiver = map(int, words[2].split(">"))
            start, stop = map(int, words[6].split(":"))
            return cls(
                stage=int(words[1]),
                sender=sender,
                receiver=receiver,
                demand=int(words[4]),
                start=start,
                stop=stop,
            )
        except ValueError as error:
            raise ConfigError(f"not a send: {text!r}: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLoad:
    """What one way of a wire carries in one stage, and for how long."""

    stage: int
    way: str
    kind: str
    num_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangePlan:
    """Sends by stage that meet all ``demands``, on the wires that they were decided for.

    ``method`` is "direct" (each owner to each reader, in one stage) or "planned" (in stages, over
    relays). Seconds are predicted: a stage takes ``stage_s`` and its busiest wire's bytes.
    """

    topology: Topology
    demands: tuple[Demand, ...]
    row_bytes: int
    method: str
    sends: tuple[Send, ...]  # ascending

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ConfigError(f"an exchange is direct or planned, had {self.method!r}")
        if self.row_bytes < 1:
            raise ConfigError(f"row_bytes is 1 or more, had {self.row_bytes}")
        ranks = self.topology.num_devices
        for demand in self.demands:
            if max(demand.owner, *demand.readers) >= ranks:
                raise PlanError(f"{self.topology.name} has {ranks} devices", culprit=str(demand))

    @property
    def num_ranks(self) -> int:
        return self.topology.num_devices

    @property
    def num_stages(self) -> int:
        return 1 + max((send.stage for send in self.sends), default=-1)

    @property
    def num_rows(self) -> int:
        """Rows received, once for each rank that receives them."""
        return sum(send.stop - send.start for send in self.sends)

    @property
    def relayed_rows(self) -> int:
        """Rows received by ranks that do not read them: they pass them on."""
        readers = [frozenset(demand.readers) for demand in self.demands]
        return sum(
            send.stop - send.start
            for send in self.sends
            if send.receiver not in readers[send.demand]
        )

    @property
    def loads(self) -> tuple[LinkLoad, ...]:
        """By stage and way, those that carry something."""
        return loads_of(self.topology, self.sends, self.row_bytes)

    @property
    def stage_seconds(self) -> tuple[float, ...]:
        seconds = [0.0] * self.num_stages
        for load in self.loads:
            seconds[load.stage] = max(seconds[load.stage], load.seconds)
        return tuple(self.topology.stage_s + busiest for busiest in seconds)

    @property
    def seconds(self) -> float:
        """Predicted, of one exchange; backward, with every wire as fast both ways, is the same."""
        return sum(self.stage_seconds)

    @property
    def direct_seconds(self) -> float:
        """Predicted, were every row sent by its owner to every reader at once."""
        return direct(self.topology, self.demands, self.row_bytes).seconds

    @property
    def saved_frac(self) -> float:
        """The share of peer-to-peer's predicted seconds that the plan saves."""
        base = self.direct_seconds
        return 1 - self.seconds / base if base else 0.0

    @property
    def table(self) -> tuple[list[str], list[list[str]]]:
        """Headers, and rows of text: every way that carries something, stage by stage."""
        body = [
            [str(load.stage), load.way, load.kind, format_bytes(load.num_bytes),
             format_seconds(load.seconds)]
            for load in self.loads
        ]  # fmt: skip
        return ["stage", "link", "kind", "bytes", "predicted"], body

    def explain(self) -> str:
        """What was chosen and why, the stages with what bounds them, and every link's load."""
        base, ours = self.direct_seconds, self.seconds
        if self.method == "direct":
            verdict = "peer-to-peer in one stage: no plan in stages is predicted faster"
        else:
            verdict = (
                f"planned in {self.num_stages} stages: {format_seconds(ours)} predicted, "
                f"peer-to-peer {format_seconds(base)} ({self.saved_frac:.0%} less)"
            )
        rows = sum(demand.rows * len(demand.readers) for demand in self.demands)
        lines = [
            f"{verdict}",
            f"{len(self.demands)} classes, {rows} rows of {self.row_bytes} B to deliver, "
            f"{self.relayed_rows} received only to be passed on, over {self.topology.name} "
            f"({self.topology.source})",
        ]
        rates = {way: self.topology.wires[i // 2].Bps for i, way in enumerate(self.topology.ways)}
        for stage, seconds in enumerate(self.stage_seconds):
            busiest = max(
                (load for load in self.loads if load.stage == stage), key=lambda load: load.seconds
            )
            lines.append(
                f"stage {stage}: {format_seconds(seconds)}, bound by {busiest.way} "
                f"({busiest.kind}, {format_rate(rates[busiest.way])})"
            )
        headers, body = self.table
        widths = [max(map(len, column)) for column in zip(headers, *body, strict=True)]
        for row in [headers, *body]:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            lines.append("  ".join(cells).rstrip())
        return "\n".join(lines)

    def __str__(self) -> str:
        return "\n".join(
            [
                f"exchange {self.method} row_bytes {self.row_bytes}",
                str(self.topology),
                *map(str, self.demands),
                *map(str, self.sends),
            ]
        )

    @classmethod
    def parse(cls, text: str) -> ExchangePlan:
        """What ``str`` wrote. Raises ConfigError for anything else."""
        lines = text.splitlines()
        words = lines[0].split() if lines else []
        if len(words) != 4 or words[::2] != ["exchange", "row_bytes"] or not words[3].isdigit():
            raise ConfigError(
                f"not an exchange: {text[:60]!r}", hint="exchange METHOD row_bytes N, then the rest"
            )
        kinds = [line.partition(" ")[0] for line in lines]
        body = [i for i, kind in enumerate(kinds) if kind in ("demand", "send")]
        last = body[0] if body else len(lines)
        rest = lines[last:]
        return cls(
            topology=Topology.parse("\n".join(lines[1:last])),
            demands=tuple(Demand.parse(line) for line in rest if line.startswith("demand")),
            row_bytes=int(words[3]),
            method=words[1],
            sends=tuple(Send.parse(line) for line in rest if not line.startswith("demand")),
        )

    def save(self, path: str | Path) -> None:
        """Raises StoreError when the file cannot be written."""
        frozen.save(path, FORMAT, VERSION, self)

    @classmethod
    def load(cls, path: str | Path) -> ExchangePlan:
        """Raises StoreError for a file that cannot be read, ConfigError for anything else in it."""
        return frozen.load(cls, path, FORMAT, VERSION)


def direct(topology: Topology, demands: tuple[Demand, ...], row_bytes: int) -> ExchangePlan:
    """Peer-to-peer: every row from its owner to every reader, all in one stage."""
    sends = [
        Send(stage=0, sender=need.owner, receiver=reader, demand=i, start=0, stop=need.rows)
        for i, need in enumerate(demands)
        for reader in need.readers
    ]
    return ExchangePlan(
        topology=topology,
        demands=demands,
        row_bytes=row_bytes,
        method="direct",
        sends=tuple(sorted(sends)),
    )


@lru_cache(maxsize=16)
def loads_of(topology: Topology, sends: tuple[Send, ...], row_bytes: int) -> tuple[LinkLoad, ...]:
    """By stage and way, what each way of a wire carries; those that carry nothing are left out."""
    rows: dict[tuple[int, int, int], int] = defaultdict(int)
    for send in sends:
        rows[send.stage, send.sender, send.receiver] += send.stop - send.start
    carried: dict[tuple[int, int], int] = defaultdict(int)
    for (stage, sender, receiver), count in rows.items():
        for way in topology.path(sender, receiver):
            carried[stage, way] += count
    names = topology.ways
    return tuple(
        LinkLoad(
            stage=stage,
            way=names[way],
            kind=topology.wires[way // 2].kind,
            num_bytes=count * row_bytes,
            seconds=count * row_bytes / topology.wires[way // 2].Bps,
        )
        for (stage, way), count in sorted(carried.items())
    )

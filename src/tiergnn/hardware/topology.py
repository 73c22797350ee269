"""Topology: devices, the wires between them as they are laid, and the ways that bytes take.

A place is a device, or what joins wires: a PCIe switch, a socket, a network card. Bytes between two
devices take the fastest chain of wires that runs through no third device: passing rows on is a
device's work, which an exchange plans.

Legend: W devices, L ways (each wire is two: there, and back).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush
from pathlib import Path

from tiergnn import frozen
from tiergnn.errors import ConfigError

FORMAT = "tiergnn-topology"
VERSION = 1
MOST_DEVICES = 64  # sets of devices are the bits of one word


def _check_word(name: str, what: str) -> None:
    if not name.isprintable() or len(name.split()) != 1:
        raise ConfigError(f"{what} is one printable word, had {name!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """A physical link of two places: ``Bps`` each way, both ways at once."""

    a: str
    b: str
    kind: str  # nvlink, pcie, qpi, ib ...: for people
    Bps: float

    def __post_init__(self) -> None:
        for name, what in ((self.a, "a place"), (self.b, "a place"), (self.kind, "a kind")):
            _check_word(name, what)
        if self.a == self.b:
            raise ConfigError(f"a wire joins two places, had {self.a} twice")
        if not (math.isfinite(self.Bps) and self.Bps > 0):
            raise ConfigError(f"Bps is above 0, had {self.Bps}", culprit=f"{self.a}-{self.b}")

    def __str__(self) -> str:
        return f"wire {self.a} {self.b} {self.kind} {self.Bps!r}"

    @classmethod
    def parse(cls, text: str) -> Wire:
        """Raises ConfigError for a line that is no wire."""
        try:
            word, a, b, kind, rate = text.split()
            if word != "wire":
                raise ValueError(word)
            return cls(a=a, b=b, kind=kind, Bps=float(rate))
        except ValueError as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"not a wire: {text!r}", hint="wire A B KIND BPS") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """``devices`` are the ranks, in order. ``stage_s`` is what one stage of an exchange costs
    besides its bytes: launches, and waiting for each other. ``source`` says where figures come
    from. Raises ConfigError for two wires between the same places (one wire of their sum is meant),
    and where a device cannot be reached without passing through another.
    """

    name: str
    devices: tuple[str, ...]
    wires: tuple[Wire, ...]
    stage_s: float = 20e-6
    source: str = "given"

    def __post_init__(self) -> None:
        for name in (self.name, *self.devices):
            _check_word(name, "a name")
        if not 1 <= len(self.devices) <= MOST_DEVICES:
            raise ConfigError(f"wanted 1 to {MOST_DEVICES} devices, had {len(self.devices)}")
        if len(set(self.devices)) < len(self.devices):
            raise ConfigError("wanted each device once", culprit=self.name)
        if not (math.isfinite(self.stage_s) and self.stage_s >= 0):
            raise ConfigError(f"stage_s is 0 or more, had {self.stage_s}", culprit=self.name)
        if "\n" in self.source:
            raise ConfigError("a source is one line", culprit=self.name)
        pairs = {frozenset((wire.a, wire.b)) for wire in self.wires}
        if len(pairs) < len(self.wires):
            raise ConfigError(
                "wanted one wire between two places", culprit=self.name, hint="add their rates"
            )
        paths_of(self)

    @property
    def num_devices(self) -> int:
        return len(self.devices)

    @property
    def ways(self) -> tuple[str, ...]:
        """Names of the L ways: wire i there is 2 i, and back 2 i + 1."""
        return tuple(
            f"{start}>{end}" for w in self.wires for start, end in ((w.a, w.b), (w.b, w.a))
        )

    def path(self, sender: int, receiver: int) -> tuple[int, ...]:
        """The ways that bytes from one rank to another take, in turn."""
        return paths_of(self)[sender][receiver]

    def save(self, path: str | Path) -> None:
        """Raises StoreError when the file cannot be written."""
        frozen.save(path, FORMAT, VERSION, self)

    @classmethod
    def load(cls, path: str | Path) -> Topology:
        """Raises StoreError for a file that cannot be read, ConfigError for anything else in it."""
        return frozen.load(cls, path, FORMAT, VERSION)

    def __str__(self) -> str:
        head = f"topology {self.name} stage_s {self.stage_s!r} devices {' '.join(self.devices)}"
        return "\n".join([head, f"source {self.source}", *map(str, self.wires)])

    @classmethod
    def parse(cls, text: str) -> Topology:
        """What ``str`` wrote. Raises ConfigError for anything else."""
        lines = text.splitlines()
        words = lines[0].split() if lines else []
        if len(lines) < 2 or words[:1] != ["topology"] or words[2:5:2] != ["stage_s", "devices"]:
            raise ConfigError(
                f"not a topology: {text[:60]!r}",
                hint="topology NAME stage_s S devices D0 D1 ..., then source TEXT, then wires",
            )
        try:
            stage_s = float(words[3])
        except ValueError as error:
            raise ConfigError(f"stage_s is a number, had {words[3]!r}") from error
        return cls(
            name=words[1],
            stage_s=stage_s,
            devices=tuple(words[5:]),
            source=lines[1].removeprefix("source "),
            wires=tuple(map(Wire.parse, lines[2:])),
        )


@lru_cache(maxsize=64)
def paths_of(topology: Topology) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """[W][W] ways between each two devices; of equally fast ones the fewest, then the first.

    The fastest is the one with the fewest seconds a byte over all its wires.
    """
    out: dict[str, list[tuple[int, str, float]]] = {name: [] for name in topology.devices}
    for i, wire in enumerate(topology.wires):
        out.setdefault(wire.a, []).append((2 * i, wire.b, 1 / wire.Bps))
        out.setdefault(wire.b, []).append((2 * i + 1, wire.a, 1 / wire.Bps))
    devices = frozenset(topology.devices)
    return tuple(_paths_from(topology, start, out, devices) for start in topology.devices)


def _paths_from(
    topology: Topology,
    start: str,
    out: Mapping[str, list[tuple[int, str, float]]],
    devices: frozenset[str],
) -> tuple[tuple[int, ...], ...]:
    found: dict[str, tuple[int, ...]] = {}
    heap: list[tuple[float, int, tuple[int, ...], str]] = [(0.0, 0, (), start)]
    while heap:
        seconds, hops, path, place = heappop(heap)
        if place in found:
            continue
        found[place] = path
        if place in devices and place != start:
            continue
        for way, end, each in out[place]:
            if end not in found:
                heappush(heap, (seconds + each, hops + 1, (*path, way), end))
    for device in topology.devices:
        if device not in found:
            raise ConfigError(
                f"no wires lead from {start} to {device} without passing through another device",
                culprit=topology.name,
                hint="a wire of each device to a socket or a switch",
            )
    return tuple(found[device] for device in topology.devices)

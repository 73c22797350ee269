"""Placement: which rows that a part reads of others live in its caches, and which stay remote.

The halo is ranked by the edges that a row serves and taken in blocks of rows that serve alike.
Each row goes to the device's cache, to the host's, or stays remote: where its owner keeps it (a
peer, the host's store, the disk). A class costs so much a row (refreshing it, fetching it once)
and so much an edge (reading it in place), on one or more lanes that run side by side.

Legend: D rows cached on the device, H rows cached in host memory, R remote rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tiergnn.errors import ConfigError
from tiergnn.graph.shape import PartShape
from tiergnn.units import format_bytes, format_count, format_seconds

CLASSES = ("device", "host", "remote")


@dataclass(frozen=True, slots=True)
class Charge:
    """Seconds of one class on one lane: for each of its rows, and for each edge that they serve."""

    row_s: float = 0.0
    edge_s: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.row_s < np.inf and 0 <= self.edge_s < np.inf):
            raise ConfigError(
                f"seconds are 0 or more, had {self.row_s} a row, {self.edge_s} an edge"
            )


FREE = Charge()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """What can run beside other lanes; ``base_s`` is what it does wherever the rows are."""

    name: str
    base_s: float = 0.0
    device: Charge = FREE
    host: Charge = FREE
    remote: Charge = FREE

    @property
    def charges(self) -> tuple[Charge, Charge, Charge]:
        """By ``CLASSES``."""
        return (self.device, self.host, self.remote)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What to place, at what cost, in how much memory.

    ``blocks`` are (rows, edges served). The lanes run side by side when ``overlapped`` (a plan
    takes as long as the longest), else one after the other (their sum). ``hidden`` pairs (a, b)
    demand that lane a takes no longer than lane b. Memory in bytes, a row taking ``row_bytes``.
    """

    blocks: tuple[tuple[int, int], ...]
    lanes: tuple[Lane, ...]
    row_bytes: int
    device_bytes: int
    host_bytes: int
    overlapped: bool = True
    hidden: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if any(rows < 1 or edges < 0 for rows, edges in self.blocks):
            raise ConfigError("a block has 1 row or more, and serves 0 edges or more")
        if self.row_bytes < 1 or min(self.device_bytes, self.host_bytes) < 0 or not self.lanes:
            raise ConfigError(
                "a placement needs lanes, rows of 1 byte or more, budgets of 0 or more"
            )
        names = [lane.name for lane in self.lanes]
        strangers = [name for pair in self.hidden for name in pair if name not in names]
        if strangers:
            raise ConfigError(f"there is no lane {strangers[0]!r}", hint=", ".join(names))

    @property
    def capacity_rows(self) -> tuple[int, int]:
        """Rows that the caches of the device and of the host hold."""
        return self.device_bytes // self.row_bytes, self.host_bytes // self.row_bytes

    @property
    def charge_s(self) -> tuple[np.ndarray, np.ndarray]:
        """Seconds [lanes, 3 classes] of a row, and of an edge."""
        table = [[(c.row_s, c.edge_s) for c in lane.charges] for lane in self.lanes]
        both = np.array(table, np.float64)
        return both[..., 0], both[..., 1]

    def lane_s(self, rows: np.ndarray, edges: np.ndarray) -> np.ndarray:
        """Seconds [lanes] with so many rows and edges [3] of each class."""
        row_s, edge_s = self.charge_s
        return np.array([lane.base_s for lane in self.lanes]) + row_s @ rows + edge_s @ edges

    def seconds(self, lane_s: np.ndarray) -> float:
        return float(lane_s.max() if self.overlapped else lane_s.sum())

    def allows(self, rows: np.ndarray, lane_s: np.ndarray) -> bool:
        """Whether caches hold the rows and lanes that are to be hidden are, up to rounding."""
        index = {lane.name: i for i, lane in enumerate(self.lanes)}
        slack = 1e-9 * float(lane_s.max())
        hidden = all(lane_s[index[a]] <= lane_s[index[b]] + slack for a, b in self.hidden)
        return hidden and rows[0] <= self.capacity_rows[0] and rows[1] <= self.capacity_rows[1]


@dataclass(frozen=True, slots=True)
class Run:
    """``rows`` neighbours in the ranking of the halo, of one class; they serve ``edges`` edges."""

    place: str
    rows: int
    edges: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where each row of a halo lives: runs over its rows, hottest first.

    ``seconds`` is at most ``gap`` (a fraction of it) above the least possible; ``lane_s`` are
    (lane, seconds). ``solver`` says how it was found: "lp" or "milp".
    """

    runs: tuple[Run, ...]
    seconds: float
    lane_s: tuple[tuple[str, float], ...]
    row_bytes: int
    gap: float
    solver: str

    def rows(self, place: str) -> int:
        return sum(run.rows for run in self.runs if run.place == place)

    def edges(self, place: str) -> float:
        return sum(run.edges for run in self.runs if run.place == place)

    def share(self, place: str) -> float:
        """Of the halo's rows."""
        return self.rows(place) / max(1, sum(run.rows for run in self.runs))

    def edge_share(self, place: str) -> float:
        """Of the edges that the halo serves."""
        return self.edges(place) / (sum(run.edges for run in self.runs) or 1.0)

    def num_bytes(self, place: str) -> int:
        """Of the caches; remote rows take none here."""
        return 0 if place == "remote" else self.rows(place) * self.row_bytes

    def __str__(self) -> str:
        lines = [
            f"{place:7}{format_count(self.rows(place)):>14} rows {self.share(place):6.1%}  "
            f"{self.edge_share(place):6.1%} of edges  {format_bytes(self.num_bytes(place)):>10}"
            for place in CLASSES
        ]
        lanes = ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in self.lane_s)
        found = f"within {self.gap:.2%} of the least, by {self.solver}"
        return "\n".join([*lines, f"{format_seconds(self.seconds)} ({lanes}), {found}"])


def blocks_of(part: PartShape) -> tuple[tuple[int, int], ...]:
    """(rows, edges) of the halo's rows that serve alike, hottest first: the steps of ``served``."""
    steps = np.diff(np.array(part.served, np.int64).reshape(-1, 2), axis=0)
    return tuple((rows, edges) for rows, edges in steps.tolist() if rows)


def leo_question(
    part: PartShape,
    *,
    local_edge_s: float,
    remote_edge_s: float,
    host_row_s: float,
    row_bytes: int,
    device_bytes: int,
    host_bytes: int,
) -> Question:
    """LEO's program (equations 2 to 4), one flaw mended.

    The longer of TL, an edge of a local or cached row costing ``local_edge_s``, and TR, one of a
    remote row ``remote_edge_s``; with TH, ``host_row_s`` for each row of the host's cache, at most
    TR. As printed TL leaves the host's rows out, so that aggregating them would cost nothing and
    the hottest rows would go there: here TL counts them. ``device_bytes`` is what local rows leave.
    """
    near = Charge(edge_s=local_edge_s)
    return Question(
        blocks=blocks_of(part),
        lanes=(
            Lane(name="local", base_s=local_edge_s * part.local_edges, device=near, host=near),
            Lane(name="remote", remote=Charge(edge_s=remote_edge_s)),
            Lane(name="host", host=Charge(row_s=host_row_s)),
        ),
        row_bytes=row_bytes,
        device_bytes=device_bytes,
        host_bytes=host_bytes,
        hidden=(("host", "remote"),),
    )


def refreshed_question(
    part: PartShape,
    *,
    local_edge_s: float,
    refresh_row_s: float,
    remote_edge_s: float = 0.0,
    remote_row_s: float = 0.0,
    host_row_s: float = 0.0,
    host_edge_s: float = 0.0,
    row_bytes: int,
    device_bytes: int,
    host_bytes: int = 0,
    overlapped: bool = True,
) -> Question:
    """What a cache costs whose rows change in every layer, and so are pulled anew for it.

    On the link: ``refresh_row_s`` for each row cached on the device, and for remote rows either
    ``remote_edge_s`` an edge (read in place by kernels) or ``remote_row_s`` a row (fetched once and
    aggregated on the device, ``local_edge_s`` an edge). On the host's link ``host_row_s`` a row of
    its cache (its refresh) and ``host_edge_s`` an edge (rows read in place). A cache pays for rows
    that serve more than refresh / remote edges; with unique fetches it holds what does not change.
    """
    if bool(remote_edge_s) and bool(remote_row_s):
        raise ConfigError(
            "remote rows are read by edges or fetched by rows, not both",
            hint="remote_edge_s=0 or remote_row_s=0",
        )
    near = Charge(edge_s=local_edge_s)
    return Question(
        blocks=blocks_of(part),
        lanes=(
            Lane(
                name="compute",
                base_s=local_edge_s * part.local_edges,
                device=near,
                remote=near if remote_row_s else FREE,
            ),
            Lane(
                name="link",
                device=Charge(row_s=refresh_row_s),
                remote=Charge(remote_row_s, remote_edge_s),
            ),
            Lane(name="host", host=Charge(host_row_s, host_edge_s)),
        ),
        row_bytes=row_bytes,
        device_bytes=device_bytes,
        host_bytes=host_bytes,
        overlapped=overlapped,
    )

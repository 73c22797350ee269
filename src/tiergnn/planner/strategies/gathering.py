"""Gathering: what a part reads, brought to the device; and the rows that stay there.

``h0.p3.in`` are the rows of h0 that part 3 reads, its own first; ``h0.hot`` those that most parts
read of others, kept as they are stored from when they are made until their last reader.

Legend: P rows of one part, S source rows it reads.
"""

from __future__ import annotations

from collections.abc import Iterable

from tiergnn.errors import ConfigError
from tiergnn.planner.strategies.draft import Draft
from tiergnn.planner.strategies.edges import held_edges, in_edge_bytes, out_edge_bytes
from tiergnn.planner.strategies.home import Home
from tiergnn.schedule.actions import Lane, Op, Work, moved
from tiergnn.schedule.contents import Content, What
from tiergnn.workload import Extent


class Gathering:
    """``piecewise``: rows are gathered from one part after the other, so that host memory need not
    hold all of them at once."""

    def __init__(self, draft: Draft, home: Home, *, piecewise: bool) -> None:
        if draft.knobs.topology == "turns":
            raise ConfigError(
                f"{draft.strategy} brings the edges of a part, topology=turns those of the graph",
                hint="topology=host",
            )
        self._draft, self._home, self._writer = draft, home, draft.writer
        self._piecewise = piecewise
        frac = draft.knobs.hot_frac
        self._rows = draft.layout.hot_rows(frac, draft.shape) if frac else None
        self._hot: dict[str, str] = {}  # tensor -> buffer of its hot rows

    def extent(self, part: int) -> Extent:
        """A part as a block: without loops, where no stage reads them."""
        return self._edges(part)[0]

    def _edges(self, part: int) -> tuple[Extent, ...]:
        return held_edges(
            self._draft, self._draft.extent(part), self._draft.layout.parts[part].loops
        )

    def give_topology(self, part: int) -> None:
        """A part's edges, in and out, are there before the first action."""
        draft, tier = self._draft, self._draft.knobs.topology
        for name, (num_bytes, what) in self._topology(part, backward=True).items():
            suffix = "" if tier == "device" else "@host"
            draft.writer.given(
                f"{name}.p{part}{suffix}", 0, tier, "topology", num_bytes,
                holds=Content(what, "", part),
            )  # fmt: skip

    def _topology(self, part: int, *, backward: bool) -> dict[str, tuple[int, What]]:
        """Buffers of a part's edges: bytes, and in which direction."""
        draft, edges = self._draft, self._edges(part)
        held, out = in_edge_bytes(draft, edges, edges[0].sources), out_edge_bytes(draft, edges)
        found = {"topology": (held, What.TOPOLOGY)}
        return found | ({"topology.out": (out, What.OUT_EDGES)} if backward else {})

    def bring_topology(self, part: int, *, backward: bool) -> tuple[list[str], list[str]]:
        """A part's edges on the device, and which of those buffers were brought for this once."""
        draft, sizes = self._draft, self._topology(part, backward=backward)
        there = [f"{name}.p{part}" for name in sizes]
        if draft.knobs.topology == "device":
            return there, []
        brought = []
        for name, (num_bytes, what) in zip(there, sizes.values(), strict=True):
            holds = Content(what, "", part)
            buffer = draft.take(name, "topology", num_bytes, lane=Lane.H2D, holds=holds)
            work = moved(num_bytes, draft.link("h2d"))
            self.copy(Lane.H2D, part, [f"{name}@host"], buffer, work)
            brought.append(buffer)
        return brought, brought

    def bring(self, entry: str, kind: str, rows: int, holds: Content) -> str:
        """Rows in one piece from Home to a device buffer."""
        draft, name, part = self._draft, holds.of, holds.part
        buffer = draft.take(entry, kind, rows * draft.row_bytes(name), lane=Lane.H2D, holds=holds)
        work = moved(rows * draft.stored_bytes(name), draft.link("h2d"))
        self.copy(Lane.H2D, part, [self._home.read(entry)], buffer, work)
        return buffer

    def gather(self, name: str, part: int) -> str:
        """A part's own rows in one piece, and row by row those that it reads of other parts, but
        for hot ones."""
        draft, shape = self._draft, self._draft.layout.parts[part]
        buffer = draft.take(
            f"{name}.p{part}.in", "activations", shape.sources * draft.row_bytes(name),
            lane=Lane.H2D, holds=Content(What.SOURCES, name, part),
        )  # fmt: skip
        own = moved(shape.rows * draft.stored_bytes(name), draft.link("h2d"))
        self.copy(Lane.H2D, part, [self._home.read(f"{name}.p{part}")], buffer, own)
        hot = self._read(name, part)
        pulled = {q: rows - hot[q] for q, rows in enumerate(shape.halo_of) if q != part}
        pulled = {q: rows for q, rows in pulled.items() if rows}
        if self._piecewise:
            for q, rows in pulled.items():
                source = self._home.read(f"{name}.p{q}")
                work = self._pull(name, rows * draft.stored_bytes(name))
                self.copy(Lane.H2D, part, [source], buffer, work)
        elif pulled:
            sources = [self._home.read(f"{name}.p{q}") for q in pulled]
            work = self._pull(name, sum(pulled.values()) * draft.stored_bytes(name))
            self.copy(Lane.H2D, part, sources, buffer, work)
        return buffer

    def _pull(self, name: str, num_bytes: int) -> Work:
        """Rows that the device reads in place from host memory."""
        grain = max(1, self._draft.stored_bytes(name))
        return moved(num_bytes, self._draft.link("zero_copy", "h2d"), grain)

    def copy(self, lane: Lane, part: int, sources: Iterable[str], target: str, work: Work) -> None:
        self._writer.add(0, lane, Op.COPY, part=part, reads=sources, writes=[target], work=[work])

    # Hot rows

    def heat(self, name: str, *, given: bool = False) -> None:
        """Room for the hot rows of a tensor that is gathered; ``given`` ones are always there."""
        draft, rows = self._draft, self._rows
        if rows is None or not rows.count:
            return
        if not any(name in stage.gathers for stage in draft.workload.stages):
            return
        num_bytes = rows.count * draft.stored_bytes(name)
        holds = Content(What.HOT, name)
        if given:
            self._hot[name] = self._writer.given(
                f"{name}.hot", 0, "device", "cache", num_bytes, holds=holds
            )
        else:
            self._hot[name] = draft.take(f"{name}.hot", "cache", num_bytes, holds=holds)

    def keep_hot(self, name: str, part: int, rows: str) -> None:
        """The hot rows of a part that was just made."""
        if name in self._hot and self._rows is not None and self._rows.owned[part]:
            self._copy_hot(name, part, rows, self._hot[name], self._rows.owned[part])

    def add_hot(self, name: str, part: int, gathered: str) -> None:
        """Hot rows to the others that a part reads."""
        if rows := sum(self._read(name, part)):
            self._copy_hot(name, part, self._hot[name], gathered, rows)

    def cool(self, name: str) -> None:
        """Give back the room of hot rows that nobody reads again."""
        if name in self._hot:
            self._writer.release(0, self._hot.pop(name))

    def _read(self, name: str, part: int) -> tuple[int, ...]:
        """Hot rows of a tensor that a part reads, by owner."""
        if self._rows is None or name not in self._hot:
            return (0,) * self._draft.layout.num_parts
        return self._rows.read[part]

    def _copy_hot(self, name: str, part: int, source: str, target: str, rows: int) -> None:
        moved = rows * (self._draft.row_bytes(name) + self._draft.stored_bytes(name))
        self.copy(Lane.COMPUTE, part, [source], target, Work(kind="stream", amount=moved))

    def close(self) -> None:
        """Give back what is left, but for what was given."""
        for name in [name for name in self._hot if name not in self._draft.workload.inputs]:
            self.cool(name)

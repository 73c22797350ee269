"""Chunks: all edges where they lie, and as they come to the device: at once, one way after the
other, or in chunks, the in-edges of one block of rows each.

Legend: E edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tiergnn.planner.strategies.draft import Draft
from tiergnn.planner.strategies.edges import (
    csr_bytes,
    held_edges,
    in_edge_bytes,
    out_edge_bytes,
    turned_bytes,
)
from tiergnn.planner.strategies.passing import Turns
from tiergnn.schedule.actions import Lane, Op, moved
from tiergnn.schedule.contents import Content, What
from tiergnn.workload import Extent, StageWork

_DEGREE_BYTES = 16  # of a row: how many in-edges it has, with and without loops, and its id
# Of a row of a block without its edges: degrees, an empty row pointer, a number made of a degree.
_VIEW_BYTES = 32


@dataclass(frozen=True, slots=True)
class Chunk:
    """The edges of a block's rows (-1: of all) at work: their buffers on the device, and those of
    them that were brought for this once."""

    part: int
    topology: tuple[str, ...]
    brought: tuple[str, ...] = ()


def _largest(sizes: Sequence[tuple[int, ...]]) -> list[int]:
    """The places of those that no other exceeds or equals in everything."""
    found: list[int] = []
    for place in sorted(range(len(sizes)), key=lambda p: sizes[p], reverse=True):
        beyond = (all(a >= b for a, b in zip(sizes[p], sizes[place], strict=True)) for p in found)
        if not any(beyond):
            found.append(place)
    return found


class Chunks:
    """The edges of one device.

    ``sizing``: of the chunks of a topology in host memory only the largest are brought, which tells
    what is held, as each gives back all that it took, and one at most is begun meanwhile.
    """

    def __init__(self, draft: Draft, turns: Turns, *, sizing: bool = False) -> None:
        self._draft, self._writer, self._turns = draft, draft.writer, turns
        self._edges: dict[int, dict[str, tuple[int, Content]]] = {}
        self.parts: list[int | None] = [-1]  # that a slice is taken over, one after the other
        if draft.knobs.topology == "host":
            self.parts = [*(self._fullest() if sizing else draft.parts)]
        self._turn = ""  # of the edges one way or the other, which are on the device now
        self._turned = 0  # the number of the turn that asked for them last

    def _fullest(self) -> list[int | None]:
        """Of all chunks those at which most is held, with the one begun meanwhile, the first and
        the last; None: what comes next was not begun."""
        held = [
            (*(size for size, _ in self._topology(p).values()), self.extent(p).edges)
            for p in self._draft.parts
        ]
        found: list[int | None] = [0]
        pairs = [
            (*(a + b for a, b in zip(one, other, strict=True)), *one)
            for one, other in pairwise(held)
        ]
        for first in sorted(_largest(pairs)):
            found += ([] if found[-1] == first else [None, first]) + [first + 1]
        return found if found[-1] == len(held) - 1 else [*found, None, len(held) - 1]

    def give(self) -> None:
        """The edges where they lie; on the device how many each row has, for row-local code."""
        draft = self._draft
        in_chunks = draft.knobs.topology == "host"
        tier = "device" if draft.knobs.topology == "device" else "host"
        for part in draft.parts if in_chunks else (-1,):
            for name, (num_bytes, holds) in self._topology(part).items():
                home = self._home(name, part)
                self._writer.given(home, 0, tier, "topology", num_bytes, holds=holds)
        if any(stage.by_degrees for stage in draft.workload.stages):
            num_bytes = _DEGREE_BYTES * draft.whole.rows
            holds = Content(What.DEGREES)
            self._writer.given("degrees", 0, "device", "topology", num_bytes, holds=holds)

    def _home(self, name: str, part: int) -> str:
        block = "" if part < 0 else f".p{part}"
        return f"{name}{block}" + ("" if self._draft.knobs.topology == "device" else "@host")

    def close(self) -> None:
        """The edges that were brought last are not needed any more."""
        if self._turn:
            self._writer.release(0, self._turn)
        self._turn = ""

    def _topology(self, part: int) -> dict[str, tuple[int, Content]]:
        """The in-edges of a block's rows (-1: of all) and, by their sources, the same edges."""
        if part not in self._edges:
            draft, edges = self._draft, self._held(part)
            held, out = in_edge_bytes(draft, edges, edges[0].rows), out_edge_bytes(draft, edges)
            if draft.knobs.topology == "turns":
                out = turned_bytes(draft, edges)
            self._edges[part] = {
                "topology": (held, Content(What.TOPOLOGY, "", part)),
                "topology.out": (out, Content(What.OUT_EDGES, "", part)),
            }
        return self._edges[part]

    def extent(self, part: int) -> Extent:
        """A block (-1: all rows), whose sources are all rows."""
        return self._held(part)[0]

    def _held(self, part: int) -> tuple[Extent, ...]:
        """The same without loops, where no stage reads them; or, after it, too."""
        draft, whole = self._draft, self._draft.whole
        shapes = draft.layout.parts if part < 0 else draft.layout.parts[part : part + 1]
        rows, edges, loops = (
            sum(getattr(shape, of) for shape in shapes) for of in ("rows", "edges", "loops")
        )
        return held_edges(draft, Extent(rows, whole.sources, edges), loops)

    def bring(self, part: int, *, backward: bool) -> Chunk:
        """The edges of a block's rows (-1: of all) on the device; ``backward``: both ways."""
        names = ("topology", "topology.out") if backward else ("topology",)
        if self._draft.knobs.topology == "device":
            return Chunk(part, names)
        if self._draft.knobs.topology == "turns":
            return Chunk(part, (self._take_turn(names[-1]),))
        brought = tuple(self._copy(name, part) for name in names)
        return Chunk(part, brought, brought)

    @property
    def turn_bytes(self) -> int:
        """Of all in-edges, where they are not on the device between steps."""
        if self._draft.knobs.topology != "turns":
            return 0
        num_bytes, _ = self._topology(-1)["topology"]
        return num_bytes

    def _take_turn(self, name: str) -> str:
        """All edges one way, in the place of those the other way."""
        if self._turn.partition("~")[0] != name:
            if self._turned == self._turns.number - 1:
                self._turns.finish()  # which reads them
            self.close()
            self._turn = self._copy(name, -1)
        self._turned = self._turns.number
        return self._turn

    def _copy(self, name: str, part: int) -> str:
        draft, (num_bytes, holds) = self._draft, self._topology(part)[name]
        label = name if part < 0 else f"{name}.p{part}"
        buffer = draft.take(label, "topology", num_bytes, lane=Lane.H2D, holds=holds)
        self._writer.add(
            0,
            Lane.H2D,
            Op.COPY,
            part=part,
            reads=[self._home(name, part)],
            writes=[buffer],
            work=[moved(num_bytes, draft.link("h2d"))],
        )
        return buffer

    def of_rows(self, stage: StageWork, part: int) -> Chunk:
        """What row-local code of a block reads of its edges: how many each row has, or, if it asks
        for more, themselves."""
        if stage.by_degrees:
            return Chunk(part, ("degrees",))
        return self.bring(part, backward=False)

    def view_bytes(self, stage: StageWork, part: int) -> int:
        """Of a block of rows cut out of all of them, while it is at work."""
        shape = self._draft.layout.parts[part]
        if stage.by_degrees:
            return _VIEW_BYTES * shape.rows + 8
        if self._draft.knobs.topology == "host":
            return 0
        return csr_bytes(self._draft, Extent(shape.rows, shape.rows, shape.edges))

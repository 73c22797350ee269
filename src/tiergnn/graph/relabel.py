"""Ids of any kind made 0..V-1 in ascending order, however many there are.

Reading, ids are numbered by a dictionary; when that has grown to its share of the memory, a
segment ends: its ids go to the disk sorted, and a new dictionary begins. Then the sorted ids of all
segments are merged, which gives each its rank among all; and each segment's edges are read again
through the ranks of that segment alone.

Legend: U different ids of a segment, V of all.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tiergnn.graph.dictionary import (
    Names,
    Numbers,
    count_up_to,
    most_bytes,
    pack_text,
    sort_text,
    unlike_before,
)
from tiergnn.graph.formats.fields import Text
from tiergnn.graph.formats.source import Ids
from tiergnn.graph.raw import RawFile, read_raw
from tiergnn.graph.workspace import Workspace

SEGMENT_ROWS = 2**25  # at most, so that a resumed ingest has not too much to read again


class Interner:
    """Numbers ids, segment by segment. Segments are on the disk and in the journal once ended."""

    def __init__(self, workspace: Workspace, *, names: bool, memory_bytes: int):
        self._workspace, self.names = workspace, names
        self._limit_bytes = memory_bytes // 3
        self.segments = [entry["ids"] for entry in workspace.all("segment")]
        self._begin()

    def _begin(self) -> None:
        self._dictionary = Names() if self.names else Numbers()
        self._rows = 0

    def is_full(self, *more: Ids) -> bool:
        """Whether taking in ``more`` could burst the segment, which then has to end first."""
        grown = self._dictionary.num_bytes + sum(most_bytes(ids) for ids in more)
        rows = self._rows + more[0].size
        return self._rows > 0 and (grown > self._limit_bytes or rows > SEGMENT_ROWS)

    def add(self, ids: Ids) -> np.ndarray:
        """int32 [n]: numbers within this segment. Raises BadNameError."""
        self._rows += ids.size
        return self._dictionary.add(ids)  # type: ignore[arg-type]

    def end(self, **about: Any) -> None:
        """End the segment. ``about`` goes into the journal with it."""
        base = self._workspace.path / f"ids-{len(self.segments):05d}"
        values, order = self._dictionary.sorted()
        count = self._dictionary.size
        with RawFile(base.with_suffix(".order")) as out:
            out.append(order.astype(np.int32))
            out.sync()
        with RawFile(base.with_suffix(".ids")) as out:
            if isinstance(values, Text):
                offsets, data = pack_text(values)
                out.append(data)
                with RawFile(base.with_suffix(".offsets")) as ends:
                    ends.append(offsets)
                    ends.sync()
            else:
                out.append(values)
            out.sync()
        self.segments.append(count)
        self._workspace.note({"phase": "segment", "ids": count, **about})
        self._begin()

    def merge(self, memory_bytes: int, progress: Callable[[int], None]) -> int:
        """Rank the ids of all segments; V. Writes the ranks of each and the ids of all."""
        folder = self._workspace.path
        sources = [_Sorted(folder, s, count, self.names) for s, count in enumerate(self.segments)]
        block = max(64, memory_bytes // 256 // max(len(sources), 1))
        num_nodes = num_bytes = 0
        ranks = [RawFile(folder / f"ids-{s:05d}.rank") for s in range(len(sources))]
        ids = RawFile(folder / "node_ids.raw")
        offsets = RawFile(folder / "node_offsets.raw")
        offsets.append(np.zeros(1, np.int64))
        while any(source.is_left for source in sources):
            taken = _take(sources, block)
            order, is_new = _order(taken)
            rank = np.empty(order.size, np.int64)
            rank[order] = num_nodes + np.cumsum(is_new) - 1
            joined = _join(taken)
            if isinstance(joined, Text):
                first = order[is_new]
                ends, data = pack_text(Text(joined.bytes, joined.starts[first], joined.ends[first]))
                ids.append(data)
                offsets.append(num_bytes + ends[1:])
                num_bytes += int(ends[-1])
            else:
                ids.append(joined[order[is_new]])
            at = 0
            for out, part in zip(ranks, taken, strict=True):
                out.append(rank[at : at + part.size])
                at += part.size
            num_nodes += int(is_new.sum())
            progress(sum(source.done for source in sources))
        for file in (*ranks, ids, offsets):
            file.sync()
            file.close()
        return num_nodes

    def ranks(self, segment: int) -> np.ndarray:
        """int64 [U]: the rank among all of each number of a segment."""
        base = self._workspace.path / f"ids-{segment:05d}"
        count = self.segments[segment]
        out = np.empty(count, np.int64)
        order = read_raw(base.with_suffix(".order"), np.int32, 0, count)
        out[order] = read_raw(base.with_suffix(".rank"), np.int64, 0, count)
        return out


class _Sorted:
    """The ascending ids of one segment, read by blocks."""

    def __init__(self, folder: Path, segment: int, count: int, names: bool):
        base = folder / f"ids-{segment:05d}"
        self._ids, self._offsets = base.with_suffix(".ids"), base.with_suffix(".offsets")
        self._count, self._names = count, names
        self.done = 0
        self._block: Ids | None = None

    @property
    def is_left(self) -> bool:
        return self.done < self._count

    def peek(self, block: int) -> tuple[Ids, bool]:
        """The next ids, at most ``block``, and whether they are the last ones."""
        if self._block is None:
            end = min(self.done + block, self._count)
            if self._names:
                offsets = read_raw(self._offsets, np.int64, self.done, end + 1)
                data = read_raw(self._ids, np.uint8, int(offsets[0]), int(offsets[-1]))
                offsets -= offsets[0]
                self._block = Text(data, offsets[:-1], offsets[1:])
            else:
                self._block = read_raw(self._ids, np.int64, self.done, end)
        return self._block, self.done + self._block.size == self._count

    def take(self, count: int) -> Ids:
        """The first ``count`` of those that ``peek`` gave."""
        assert self._block is not None
        taken = _slice(self._block, 0, count)
        rest = _slice(self._block, count, self._block.size)
        self.done += count
        self._block = rest if rest.size else None
        return taken


def _take(sources: list[_Sorted], block: int) -> list[Ids]:
    """From every segment its next ids, none of them above an id that another may still give."""
    blocks = [source.peek(block) for source in sources]
    lasts = [_slice(ids, ids.size - 1, ids.size) for ids, is_end in blocks if not is_end]
    if not lasts:
        return [source.take(ids.size) for source, (ids, _) in zip(sources, blocks, strict=True)]
    order, _ = _order(lasts)
    limit = lasts[int(order[0])]
    return [
        source.take(_count_up_to(ids, limit))
        for source, (ids, _) in zip(sources, blocks, strict=True)
    ]


def _slice(ids: Ids, start: int, end: int) -> Ids:
    return ids.slice(start, end) if isinstance(ids, Text) else ids[start:end]


def _count_up_to(ids: Ids, limit: Ids) -> int:
    if isinstance(ids, Text):
        assert isinstance(limit, Text)
        return count_up_to(ids, limit)
    assert isinstance(limit, np.ndarray)
    return int(np.searchsorted(ids, limit[0], side="right"))


def _order(parts: list[Ids]) -> tuple[np.ndarray, np.ndarray]:
    """The order that sorts the ids of all parts, and which of the sorted differ from the last."""
    joined = _join(parts)
    if isinstance(joined, Text):
        order = sort_text(joined)
        return order, unlike_before(Text(joined.bytes, joined.starts[order], joined.ends[order]))
    order = np.argsort(joined, kind="stable")
    values = joined[order]
    is_new = np.ones(order.size, np.bool_)
    np.not_equal(values[1:], values[:-1], out=is_new[1:])
    return order, is_new


def _join(parts: list[Ids]) -> Ids:
    if not isinstance(parts[0], Text):
        return np.concatenate(parts)  # type: ignore[arg-type]
    texts = [part for part in parts if isinstance(part, Text)]
    base = np.cumsum([0] + [text.bytes.size for text in texts])
    return Text(
        np.concatenate([text.bytes for text in texts]),
        np.concatenate([text.starts + b for text, b in zip(texts, base, strict=False)]),
        np.concatenate([text.ends + b for text, b in zip(texts, base, strict=False)]),
    )

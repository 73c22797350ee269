"""Edges kept on the disk with numbers for their ids, and read again with ranks in their place.

A spool file holds, chunk after chunk: src int32 [n], dst int32 [n], position int64 [n], weight [n],
attr [n, D]. One file a segment of the interner; the journal keeps the n of its chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from tiergnn.errors import GraphError
from tiergnn.graph.dictionary import BadNameError
from tiergnn.graph.formats.source import Cursor, EdgeChunk, EdgeReader, Ids
from tiergnn.graph.raw import RawFile, read_raw
from tiergnn.graph.relabel import Interner
from tiergnn.graph.table import STORED
from tiergnn.graph.workspace import Workspace


def spool_edges(
    workspace: Workspace,
    interner: Interner,
    reader: EdgeReader,
    limit_bytes: int,
    progress: Callable[[int, int], None],
) -> None:
    """Read a source to its end into spool files. Raises GraphError at a name that cannot be one."""
    ended = [entry for entry in workspace.all("segment") if entry["kind"] == "edges"]
    if ended and ended[-1]["complete"]:
        return
    cursor: Cursor = tuple(ended[-1]["cursor"]) if ended else ()
    out, chunks = _spool(workspace, len(interner.segments)), []
    for chunk in reader.chunks(limit_bytes, cursor):
        if interner.is_full(chunk.src, chunk.dst):
            _end(interner, out, chunks, cursor, False)
            out, chunks = _spool(workspace, len(interner.segments)), []
        out.append(_add(interner, reader, chunk, chunk.src))
        out.append(_add(interner, reader, chunk, chunk.dst))
        out.append(chunk.positions().astype(np.int64, copy=False))
        if chunk.weight is not None:
            out.append(chunk.weight)
        if chunk.attr is not None:
            out.append(chunk.attr)
        chunks.append(chunk.src.size)
        cursor = chunk.end
        progress(chunk.done, reader.total)
    _end(interner, out, chunks, cursor, True)
    progress(reader.total, reader.total)


def _spool(workspace: Workspace, segment: int) -> RawFile:
    return RawFile(workspace.path / f"spool-{segment:05d}")


def _end(
    interner: Interner, out: RawFile, chunks: list[int], cursor: Cursor, complete: bool
) -> None:
    out.sync()
    out.close()
    interner.end(kind="edges", chunks=chunks, cursor=cursor, complete=complete)


def _add(interner: Interner, reader: EdgeReader, chunk: EdgeChunk, ids: Ids) -> np.ndarray:
    try:
        if isinstance(ids, np.ndarray) and ids.size and int(ids.max()) >= 2**63:
            at = int(np.argmax(ids >= 2**63))
            raise GraphError(
                f"id {ids[at]} does not fit 64 bits with a sign",
                culprit=reader.place(int(chunk.positions()[at])),
                hint="names instead of numbers",
            )
        return interner.add(ids)
    except BadNameError as error:
        where = reader.place(int(chunk.positions()[error.row]))
        raise GraphError(error.problem, culprit=where) from None


class SpoolReader:
    """The spooled edges, their ids ranked 0..V-1: an EdgeReader."""

    names = False

    def __init__(self, workspace: Workspace, interner: Interner, reader: EdgeReader):
        self._folder, self._interner, self._reader = workspace.path, interner, reader
        self._segments: list[tuple[int, list[int]]] = []
        for segment, entry in enumerate(workspace.all("segment")):
            if entry["kind"] == "edges":
                self._segments.append((segment, entry["chunks"]))
        self.total = sum(sum(chunks) for _, chunks in self._segments)
        self.weight, self.attr = reader.weight, reader.attr

    def place(self, position: int) -> str:
        return self._reader.place(position)

    def chunks(self, limit_bytes: int, start: Cursor = ()) -> Iterator[EdgeChunk]:
        """The chunks as they were spooled: their size was bounded then."""
        first, skip = start or (0, 0)
        done = sum(sum(chunks) for _, chunks in self._segments[:first])
        for s in range(first, len(self._segments)):
            segment, sizes = self._segments[s]
            ranks = self._interner.ranks(segment)
            spool = _Reader(self._folder / f"spool-{segment:05d}")
            for c, count in enumerate(sizes):
                done += count
                if s == first and c < skip:
                    spool.skip(count * self._row_bytes)
                    continue
                yield EdgeChunk(
                    src=ranks[spool.read(np.int32, count)],
                    dst=ranks[spool.read(np.int32, count)],
                    where=spool.read(np.int64, count),
                    weight=spool.read(self.weight.dtype, count) if self.weight else None,
                    attr=self._read_attr(spool, count),
                    end=(s, c + 1),
                    done=done,
                )

    def _read_attr(self, spool: _Reader, count: int) -> np.ndarray | None:
        if self.attr is None:
            return None
        dtype, width = self.attr
        return spool.read(STORED[dtype], count * width).reshape(count, width)

    @property
    def _row_bytes(self) -> int:
        weight = self.weight.dtype.itemsize if self.weight else 0
        attr = STORED[self.attr[0]].itemsize * self.attr[1] if self.attr else 0
        return 4 + 4 + 8 + weight + attr


class _Reader:
    """Arrays of a file, one after the other."""

    def __init__(self, path: Path):
        self._path, self._at = path, 0

    def read(self, dtype: np.dtype | type, count: int) -> np.ndarray:
        data = read_raw(self._path, np.uint8, self._at, self._at + count * np.dtype(dtype).itemsize)
        self._at += data.size
        return data.view(dtype)

    def skip(self, num_bytes: int) -> None:
        self._at += num_bytes

"""METIS `.graph` files: line v lists the neighbours of node v, counting from 1.

The format: the METIS 5 manual, section 4.5.1. Legend: V nodes, m edges, each of them on two lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numba
import numpy as np

from tiergnn.errors import ConfigError, GraphError
from tiergnn.graph.formats.lines import LineFile
from tiergnn.graph.formats.options import Options
from tiergnn.graph.formats.source import Cursor, EdgeChunk, Source, Weight

_SUFFIXES = (".graph", ".metis", ".graph.gz", ".metis.gz")
_NOT_WHOLE, _RANGE, _NO_WEIGHT, _TOO_MANY = 1, 2, 3, 4
# Where parsing stands: node (from 0), words read of its line, in a comment, neighbour that waits
# for its weight, line, neighbours so far, and two sums of hashes, which end at 0 when every edge
# stands both ways.
_NODE, _WORD, _COMMENT, _WAITING, _LINE, _COUNT, _SUM, _OTHER_SUM = range(8)
_NUM_BUCKETS = 2**16


def sniff(path: Path) -> bool:
    return path.is_file() and path.name.lower().endswith((*_SUFFIXES, ".mesh"))


def open_metis(path: Path, options: Options, scratch: Path) -> Source:
    """Both directions are in the file, or it is refused. Weights of nodes are noted, not kept."""
    options.refuse_columns("metis")
    if options.weight not in ("auto", "none"):
        raise ConfigError(
            f"weight={options.weight!r} names a column, and a METIS graph has none",
            hint="weight='none' leaves edge weights out",
        )
    if path.name.lower().endswith(".mesh"):
        raise GraphError(
            "a METIS mesh lists the corners of elements, not the neighbours of nodes",
            culprit=str(path),
            hint="m2gmetis, which comes with METIS, makes a .graph of it",
        )
    header = _read_header(path)
    notes = []
    if header.before:
        notes.append(f"{path}: not read: weights and sizes of nodes")
    return Source(
        format="metis",
        edges=MetisEdges(path, header, options),
        num_nodes=header.num_nodes,
        counted_by=f"the header of {path.name}",
        notes=notes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    num_nodes: int
    num_edges: int
    before: int  # numbers on a line before its neighbours
    has_weights: bool  # after each neighbour
    start: int  # byte after the header
    line: int  # number of the line there


def _read_header(path: Path) -> Header:
    rest, start, line = LineFile(path).begin(b"%")
    first = rest.partition(b"\n")[0]
    words = first.split()
    where = f"{path}, line {line}"
    if not 2 <= len(words) <= 4 or not all(word.isdigit() for word in words):
        raise GraphError(
            "wanted a header of nodes, edges and perhaps format and number of node weights, "
            f"had {first[:80].decode(errors='replace')!r}",
            culprit=where,
        )
    kind = words[2].decode().zfill(3) if len(words) > 2 else "000"
    if len(kind) != 3 or not set(kind) <= set("01"):
        raise GraphError(f"the format must be three digits 0 or 1, is {kind}", culprit=where)
    has_sizes, has_node_weights, has_weights = (digit == "1" for digit in kind)
    num_weights = int(words[3]) if len(words) > 3 else 1
    return Header(
        num_nodes=int(words[0]),
        num_edges=int(words[1]),
        before=int(has_sizes) + num_weights * has_node_weights,
        has_weights=has_weights,
        start=start + len(first) + 1,
        line=line + 1,
    )


class MetisEdges:
    """The neighbours of each node: an EdgeReader."""

    names = False
    attr = None

    def __init__(self, path: Path, header: Header, options: Options):
        self._path, self._header = path, header
        self._file = LineFile(path)
        self.total = self._file.total_bytes
        self.weight: Weight | None = None
        if header.has_weights and options.weight != "none":
            self.weight = Weight(np.dtype(np.float64), narrows=True)

    def place(self, position: int) -> str:
        return f"{self._path}, line {position}"

    def chunks(self, limit_bytes: int, start: Cursor = ()) -> Iterator[EdgeChunk]:
        at, *state = start or self._begin()
        state = np.array(state, np.int64)
        yield from self._read(limit_bytes, at, state)
        self._check(state, limit_bytes)

    def _begin(self) -> Cursor:
        return (self._header.start, 0, 0, 0, 0, self._header.line, 0, 0, 0)

    def _read(self, limit_bytes: int, at: int, state: np.ndarray) -> Iterator[EdgeChunk]:
        """Chunks from byte ``at`` on; ``state`` goes on with them."""
        header = self._header
        for block in self._file.blocks(max(2**12, limit_bytes // 24), at, 2, ends=b"\n\t "):
            room = block.data.size // 2 + 1  # a neighbour takes two bytes
            src, dst, weight, line = (np.empty(room, np.int64) for _ in range(4))
            found, fault, value = _parse(
                block.data, header.num_nodes, header.before, header.has_weights,
                state, src, dst, weight, line,
            )  # fmt: skip
            if fault:
                raise self._error(fault, int(value), int(state[_LINE]))
            _add_hashes(src[:found], dst[:found], state)
            state[_COUNT] += found
            yield EdgeChunk(
                src=src[:found],
                dst=dst[:found],
                weight=weight[:found].astype(np.float64) if self.weight else None,
                where=line[:found],
                end=(block.end, *state.tolist()),
                done=block.done_bytes,
            )

    def _check(self, state: np.ndarray, limit_bytes: int) -> None:
        """Raise GraphError unless what was read to the end is what the header says."""
        header, count = self._header, int(state[_COUNT])
        if state[_NODE] < header.num_nodes:
            raise GraphError(
                f"the header says {header.num_nodes} nodes, the file has lines for "
                f"{state[_NODE]} of them",
                culprit=str(self._path),
                hint="a node without neighbours has an empty line of its own",
            )
        if count != 2 * header.num_edges:
            raise GraphError(
                f"the header says {header.num_edges} edges, so {2 * header.num_edges} neighbours, "
                f"the file has {count}",
                culprit=str(self._path),
                hint="every edge stands on the lines of both its nodes",
            )
        if state[_SUM] or state[_OTHER_SUM]:
            raise self._one_sided(limit_bytes)

    def _one_sided(self, limit_bytes: int) -> GraphError:
        """What to say of an edge that does not stand both ways; reads the file twice more.

        Pairs fall into buckets, and one bucket that does not add up is looked at.
        """
        at, *state = self._begin()
        sums = np.zeros(_NUM_BUCKETS, np.int64)
        for chunk in self._read(limit_bytes, at, np.array(state, np.int64)):
            _add_buckets(chunk.src, chunk.dst, sums)
        bucket = int(np.flatnonzero(sums)[0])
        found: dict[tuple[int, int], list[int]] = {}  # pair -> times there and back, a line
        for chunk in self._read(limit_bytes, at, np.array(state, np.int64)):
            src, dst = chunk.src, chunk.dst
            for i in np.flatnonzero(_buckets(src, dst) == bucket).tolist():
                u, v = int(src[i]) + 1, int(dst[i]) + 1
                pair = found.setdefault((min(u, v), max(u, v)), [0, 0, int(chunk.positions()[i])])
                pair[int(u > v)] += 1
        (u, v), (there, back, line) = next(
            item for item in found.items() if item[1][0] != item[1][1] and item[0][0] < item[0][1]
        )
        return GraphError(
            f"node {v} stands {_times(there)} on the line of node {u}, and {u} {_times(back)} on "
            f"that of {v}: the graphs of METIS have no directions",
            culprit=self.place(line),
            hint="every edge on the lines of both its nodes; for a graph with directions, one "
            "edge a line, as an edge list or CSV",
        )

    def _error(self, fault: int, value: int, line: int) -> GraphError:
        nodes = self._header.num_nodes
        problem = {
            _NOT_WHOLE: f"wanted whole numbers, had {chr(value)!r}",
            _RANGE: f"neighbour {value} is not in 1..{nodes}",
            _NO_WEIGHT: f"neighbour {value} has no edge weight, and the header promises one",
            _TOO_MANY: f"the header says {nodes} nodes, here is a line for one more",
        }[fault]
        return GraphError(problem, culprit=self.place(line))


def _times(count: int) -> str:
    return {0: "not at all", 1: "once"}.get(count, f"{count} times")


@numba.njit(cache=True, nogil=True)
def _mixed(u, v, salt):
    """64 bits of the pair {u, v}: two rounds of splitmix64."""
    low, high = np.uint64(min(u, v)), np.uint64(max(u, v))
    h = np.uint64(salt)
    for word in (low, high):
        h = (h ^ word) + np.uint64(0x9E3779B97F4A7C15)
        h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        h = h ^ (h >> np.uint64(31))
    return h


@numba.njit(cache=True, nogil=True)
def _add_hashes(src, dst, state):
    """Each pair's hashes, added one way and taken away the other; loops have one way only."""
    for i in range(src.size):
        if src[i] != dst[i]:
            sign = np.int64(1) if src[i] < dst[i] else np.int64(-1)
            state[_SUM] += sign * np.int64(_mixed(src[i], dst[i], 1))
            state[_OTHER_SUM] += sign * np.int64(_mixed(src[i], dst[i], 2))


@numba.njit(cache=True, nogil=True)
def _buckets(src, dst):
    out = np.empty(src.size, np.int64)
    for i in range(src.size):
        out[i] = np.int64(_mixed(src[i], dst[i], 3) >> np.uint64(48))
    return out


@numba.njit(cache=True, nogil=True)
def _add_buckets(src, dst, sums):
    """As ``_add_hashes``, by bucket."""
    bucket = _buckets(src, dst)
    for i in range(src.size):
        if src[i] != dst[i]:
            sign = np.int64(1) if src[i] < dst[i] else np.int64(-1)
            sums[bucket[i]] += sign * np.int64(_mixed(src[i], dst[i], 1))


@numba.njit(cache=True, nogil=True)
def _parse(data, num_nodes, before, has_weights, state, src, dst, weight, line):
    """(neighbours found, fault, value). ``state`` goes on where the block before it ended."""
    found, i = 0, 0
    while i < data.size:
        c = data[i]
        if c == 10:
            if state[_WAITING] > 0:
                return found, _NO_WEIGHT, state[_WAITING]
            if state[_COMMENT] == 0 and (state[_NODE] < num_nodes or state[_WORD] > 0):
                state[_NODE] += 1
            state[_WORD] = 0
            state[_COMMENT] = 0
            state[_LINE] += 1
            i += 1
            continue
        if state[_COMMENT] == 1 or c == 32 or c == 9 or c == 13:
            i += 1
            continue
        if c == 37 and state[_WORD] == 0:
            state[_COMMENT] = 1
            continue
        value = np.int64(0)
        while i < data.size and data[i] > 32:
            digit = np.int64(data[i]) - 48
            if digit < 0 or digit > 9 or value > 10**17:
                return found, _NOT_WHOLE, np.int64(data[i])
            value = value * 10 + digit
            i += 1
        if state[_NODE] >= num_nodes:
            return found, _TOO_MANY, value
        state[_WORD] += 1
        if state[_WORD] <= before:
            continue
        if state[_WAITING] == 0:
            if value < 1 or value > num_nodes:
                return found, _RANGE, value
            state[_WAITING] = value
            if has_weights:
                continue
            value = 1
        src[found] = state[_NODE]
        dst[found] = state[_WAITING] - 1
        weight[found] = value
        line[found] = state[_LINE]
        found += 1
        state[_WAITING] = 0
    return found, 0, 0

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
# for its weight, line.
_NODE, _WORD, _COMMENT, _WAITING, _LINE = range(5)


def sniff(path: Path) -> bool:
    return path.is_file() and path.name.lower().endswith((*_SUFFIXES, ".mesh"))


def open_metis(path: Path, options: Options, scratch: Path) -> Source:
    """Both directions are in the file already. Weights of nodes are noted, not kept."""
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
        header = self._header
        at, count, *state = start or (header.start, 0, 0, 0, 0, 0, header.line)
        state = np.array(state, np.int64)
        for block in self._file.blocks(max(2**12, limit_bytes // 24), at, 2, ends=b"\n\t "):
            room = block.data.size // 2 + 1  # a neighbour takes two bytes
            src, dst, weight, line = (np.empty(room, np.int64) for _ in range(4))
            found, fault, value = _parse(
                block.data, header.num_nodes, header.before, header.has_weights,
                state, src, dst, weight, line,
            )  # fmt: skip
            if fault:
                raise self._error(fault, int(value), int(state[_LINE]))
            count += found
            yield EdgeChunk(
                src=src[:found],
                dst=dst[:found],
                weight=weight[:found].astype(np.float64) if self.weight else None,
                where=line[:found],
                end=(block.end, count, *state.tolist()),
                done=block.done_bytes,
            )
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

    def _error(self, fault: int, value: int, line: int) -> GraphError:
        nodes = self._header.num_nodes
        problem = {
            _NOT_WHOLE: f"wanted whole numbers, had {chr(value)!r}",
            _RANGE: f"neighbour {value} is not in 1..{nodes}",
            _NO_WEIGHT: f"neighbour {value} has no edge weight, and the header promises one",
            _TOO_MANY: f"the header says {nodes} nodes, here is a line for one more",
        }[fault]
        return GraphError(problem, culprit=self.place(line))


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

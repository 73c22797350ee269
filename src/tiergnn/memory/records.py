"""Where rows lie in a file, and which of its sectors a request moves.

A *record* is a run of rows that starts at a sector and has one checksum; in a packed file every
row is a record of its own and starts where the last one ends. A *fill* is what one thread moves at
a time through its slab: some ranges of the file, in whole sectors.

Legend: N rows of one request, Q ranges of the file, C records.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tiergnn.memory.file import SECTOR_BYTES

_LEAST_RECORD_BYTES = 64 * 2**10  # a smaller one costs more calls than bytes
_MOST_RECORD_BYTES = 256 * 2**10
_WASTE_FRAC = 0.005  # of a record, that a longer one need not better
GAP_BYTES = 64 * 2**10  # reading on over so much is as fast as another request
_LEAST_FILL_BYTES = 64 * 2**10
_PIECE_ROWS = 2**20  # of an index, planned at once


def _up(num_bytes: int) -> int:
    return -(-num_bytes // SECTOR_BYTES) * SECTOR_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """Row i is in record i // rows_per_record; records are record_bytes apart."""

    num_rows: int
    row_bytes: int
    rows_per_record: int
    record_bytes: int
    offset_bytes: int = 0

    @classmethod
    def own(cls, num_rows: int, row_bytes: int) -> Records:
        """Records of whole sectors, 64 to 256 KiB where rows are smaller, with little unused."""
        if num_rows == 0 or row_bytes == 0:
            return cls(num_rows=num_rows, row_bytes=row_bytes, rows_per_record=1, record_bytes=0)
        least = max(1, _LEAST_RECORD_BYTES // row_bytes)
        counts = np.arange(least, max(least, _MOST_RECORD_BYTES // row_bytes) + 1)
        sizes = -(-counts * row_bytes // SECTOR_BYTES) * SECTOR_BYTES
        waste = 1 - counts * row_bytes / sizes
        good = np.flatnonzero(waste <= max(_WASTE_FRAC, waste.min()))[0]
        count, size = int(counts[good]), int(sizes[good])
        return cls(num_rows=num_rows, row_bytes=row_bytes, rows_per_record=count, record_bytes=size)

    @classmethod
    def packed(cls, num_rows: int, row_bytes: int, offset_bytes: int) -> Records:
        return cls(
            num_rows=num_rows,
            row_bytes=row_bytes,
            rows_per_record=1,
            record_bytes=row_bytes,
            offset_bytes=offset_bytes,
        )

    @property
    def num_records(self) -> int:
        return -(-self.num_rows // self.rows_per_record)

    @property
    def dense(self) -> bool:
        """Whether rows follow each other from record to record without a gap."""
        return self.rows_per_record * self.row_bytes == self.record_bytes

    @property
    def end_bytes(self) -> int:
        """Where the last row ends in the file."""
        if self.num_rows == 0:
            return self.offset_bytes
        last = np.array([self.num_rows - 1])
        return int(self.address(last)[0]) + self.row_bytes

    @property
    def file_bytes(self) -> int:
        """What a file of its own takes, in whole sectors: the last record may be shorter."""
        return _up(self.end_bytes)

    def address(self, rows: np.ndarray) -> np.ndarray:
        """int64 [N]: where rows start in the file."""
        record, within = np.divmod(rows, self.rows_per_record)
        return self.offset_bytes + record * self.record_bytes + within * self.row_bytes

    def rows_of(self, record: int) -> tuple[int, int]:
        """The rows of a record, the end exclusive."""
        first = record * self.rows_per_record
        return first, min(first + self.rows_per_record, self.num_rows)

    def sectors(self, first: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The sectors from the start of records ``first`` to the end of records ``last``."""
        start = self.offset_bytes + first * self.record_bytes
        end = self.offset_bytes + (last + 1) * self.record_bytes
        start = start // SECTOR_BYTES * SECTOR_BYTES
        return start, np.minimum(-(-end // SECTOR_BYTES) * SECTOR_BYTES, _up(self.end_bytes))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Fill:
    """Rows ``low`` to ``high`` of a request, and the sectors in which they lie.

    ``rows``: which rows of the table these are, ascending, perhaps twice. Range q of the file,
    from ``start[q]`` to ``end[q]``, goes to the slab's bytes from ``at[q]`` on.
    """

    low: int
    high: int
    rows: np.ndarray | range
    start: np.ndarray
    end: np.ndarray
    at: np.ndarray

    @property
    def num_bytes(self) -> int:
        return int(self.at[-1] + self.end[-1] - self.start[-1])

    @property
    def consecutive(self) -> bool:
        return isinstance(self.rows, range)

    def to_slab(self, address: np.ndarray) -> np.ndarray:
        """Places in the file, ascending, as places in the slab."""
        if self.start.size == 1:
            return address - self.start[0]
        range_of = np.searchsorted(self.start, address, side="right") - 1
        return address - self.start[range_of] + self.at[range_of]

    def starts(self, records: Records) -> np.ndarray:
        """int64 [N]: where the rows start in the slab."""
        rows = self.rows
        if isinstance(rows, range):
            rows = np.arange(rows.start, rows.stop)
        return self.to_slab(records.address(rows))

    def records(self, records: Records) -> np.ndarray:
        """int64 [C]: the records of its rows, ascending, each once."""
        k = records.rows_per_record
        if isinstance(self.rows, range):
            return np.arange(self.rows[0] // k, self.rows[-1] // k + 1)
        record = self.rows // k
        return record[np.concatenate(([True], record[1:] != record[:-1]))]

    def is_whole(self, records: Records) -> bool:
        """Whether it has all rows of all its records; only of rows that stand once."""
        touched = self.records(records)
        first, last = records.rows_of(int(touched[-1]))
        count = (touched.size - 1) * records.rows_per_record + last - first
        return self.high - self.low == count


def fills_of_slice(
    records: Records, first: int, last: int, *, slab_bytes: int, num_threads: int, cut: bool
) -> Iterator[Fill]:
    """Fills of rows first to last, as many as there are threads or more, cut between records.

    ``cut``: what is left of a record at either end is a fill of its own.
    """
    k = records.rows_per_record
    room = slab_bytes - 2 * SECTOR_BYTES
    total = -(-(last - first) // k) * records.record_bytes
    room = min(room, max(_LEAST_FILL_BYTES, -(-total // num_threads)))
    step = max(1, room // records.record_bytes) * k
    low = first
    while low < last:
        high = min((low // k) * k + step, last)
        if cut and low % k:
            high = min((low // k + 1) * k, last)
        elif cut and high == last and high % k and high != records.num_rows and high // k * k > low:
            high = high // k * k
        start, end = records.sectors(np.array([low // k]), np.array([(high - 1) // k]))
        yield Fill(
            low=low, high=high, rows=range(low, high), start=start, end=end, at=np.zeros(1, int)
        )
        low = high


def fills_of_index(
    records: Records, rows: np.ndarray, *, slab_bytes: int, num_threads: int, gap_bytes: int
) -> Iterator[Fill]:
    """Fills of ascending ``rows`` [N]; ranges nearer than ``gap_bytes`` are moved as one."""
    low = 0
    while low < rows.size:
        high = min(low + _PIECE_ROWS, rows.size)
        if high < rows.size:  # a row is not in two pieces
            at = int(np.searchsorted(rows, rows[high]))
            high = at if at > low else int(np.searchsorted(rows, rows[high], side="right"))
        yield from _fills_of_piece(records, rows, low, high, slab_bytes, num_threads, gap_bytes)
        low = high


def _fills_of_piece(
    records: Records,
    rows: np.ndarray,
    low: int,
    high: int,
    slab_bytes: int,
    num_threads: int,
    gap_bytes: int,
) -> Iterator[Fill]:
    record = rows[low:high] // records.rows_per_record
    start, end = records.sectors(record, record)
    span = records.record_bytes + 2 * SECTOR_BYTES
    limit = max(span, slab_bytes // 2)  # of a range
    opens = np.ones(record.size, np.bool_)
    opens[1:] = start[1:] > end[:-1] + gap_bytes
    # A run of near records that is longer than the limit is cut by where they start in it.
    run_start = start[np.flatnonzero(opens)][np.cumsum(opens) - 1]
    piece = (start - run_start) // max(SECTOR_BYTES, limit - span)
    opens[1:] |= (piece[1:] != piece[:-1]) & (record[1:] != record[:-1])
    first = np.flatnonzero(opens)
    range_start, range_end = start[first], end[np.append(first[1:], record.size) - 1]
    before = np.cumsum(range_end - range_start) - (range_end - range_start)
    total = int(before[-1] + range_end[-1] - range_start[-1])
    target = min(slab_bytes - limit, max(_LEAST_FILL_BYTES, total // (4 * num_threads)))
    fill = before // max(1, target)
    edges = np.flatnonzero(np.concatenate(([True], fill[1:] != fill[:-1], [True])))
    row_edges = np.append(first, record.size)
    for a, b in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        from_row, to_row = low + int(row_edges[a]), low + int(row_edges[b])
        yield Fill(
            low=from_row,
            high=to_row,
            rows=rows[from_row:to_row],
            start=range_start[a:b],
            end=range_end[a:b],
            at=before[a:b] - before[a],
        )

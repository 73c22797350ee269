"""Hot rows: those that most parts read of others, few of which serve many reads.

Legend: V nodes, K parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tiergnn.errors import ConfigError
from tiergnn.frozen import check_counts
from tiergnn.graph.random_parts import readers

if TYPE_CHECKING:
    from tiergnn.graph.partition import Partition
    from tiergnn.graph.shape import GraphShape, Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class HotRows:
    """``frac`` of all rows, less those that no other part reads: ``owned[q]`` of them are part q's,
    ``read[p][q]`` of these part p reads."""

    frac: float
    owned: tuple[int, ...]
    read: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        check_counts(self, "owned")
        for part, read in enumerate(self.read):
            if len(read) != len(self.owned):
                raise ConfigError(
                    f"read[{part}]: wanted one for each of {len(self.owned)} parts, had {len(read)}"
                )
            for count, most in zip(read, self.owned, strict=True):
                if not 0 <= count <= most:
                    raise ConfigError(
                        f"read[{part}]: wanted 0 to what each part owns, {self.owned}, had {read}"
                    )

    @property
    def count(self) -> int:
        return sum(self.owned)


def hot_mask(partition: Partition, frac: float) -> np.ndarray:
    """bool [V]: whether a row is one of the ``frac`` of all that most other parts read; of rows
    that as many read the first ones are. Rows that no other part reads never are."""
    num_nodes = partition.part_of.size
    times = np.bincount(partition.halos[0], minlength=num_nodes)
    wanted = min(int(frac * num_nodes), int(np.count_nonzero(times)))
    by_times = np.bincount(times)
    reached = np.cumsum(by_times[::-1])[::-1]  # rows that so many parts read, or more
    least = int(np.searchsorted(-reached, -wanted, side="right")) - 1 if wanted else by_times.size
    mask = times > least
    left = wanted - int(np.count_nonzero(mask))
    mask[np.flatnonzero(times == least)[:left]] = True
    return mask


def hot_rows(partition: Partition, frac: float) -> HotRows:
    """Counted: one number a node, and the halos of all parts."""
    num_parts, mask = partition.num_parts, hot_mask(partition, frac)
    gid, ptr = partition.halos
    read = []
    for part in range(num_parts):
        halo = gid[ptr[part] : ptr[part + 1]]
        owners = partition.part_of[halo[mask[halo]]]
        read.append(tuple(np.bincount(owners, minlength=num_parts).tolist()))
    owned = np.bincount(partition.part_of[mask], minlength=num_parts)
    return HotRows(frac=frac, owned=tuple(owned.tolist()), read=tuple(read))


def expected_hot(shape: GraphShape, layout: Layout, frac: float) -> HotRows:
    """Of parts drawn at random, on average; no more than a layout's parts read."""
    num_parts = layout.num_parts
    rows = readers(
        np.array(shape.out_degrees.degrees, np.float64),
        np.array(shape.out_degrees.counts, np.float64),
        shape.num_nodes,
        num_parts,
        shape.self_loops,
    )
    wanted = min(float(int(frac * shape.num_nodes)), float(rows[1:].sum()))
    before = np.cumsum(rows[::-1])[::-1] - rows  # rows that more parts read
    taken = np.clip(wanted - before, 0, rows)
    taken[0] = 0
    reads = float(taken @ np.arange(num_parts)) / max(1, num_parts * (num_parts - 1))
    owned = [min(part.rows, round(wanted / num_parts)) for part in layout.parts]
    read = tuple(
        tuple(
            0 if p == q else min(part.halo_of[q], owned[q], round(reads)) for q in range(num_parts)
        )
        for p, part in enumerate(layout.parts)
    )
    return HotRows(frac=frac, owned=tuple(owned), read=read)

"""Random topologies and demands for tests of exchanges, and a slow search for the best plan."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from tiergnn.graph.boundary import Demand
from tiergnn.hardware.topology import Topology, Wire


def random_topology(rng: np.random.Generator, num_devices: int | None = None) -> Topology:
    """Devices on switches under a root, some of them wired to each other besides."""
    num_devices = int(rng.integers(1, 9)) if num_devices is None else num_devices
    num_switches = int(rng.integers(1, 4))
    rates = (1e3, 2e3, 5e3, 2e4)
    wires = [
        Wire(
            a=f"d{i}", b=f"s{rng.integers(num_switches)}", kind="pcie", Bps=float(rng.choice(rates))
        )
        for i in range(num_devices)
    ]
    wires += [
        Wire(a=f"s{i}", b="root", kind="pcie", Bps=float(rng.choice(rates)))
        for i in range(num_switches)
    ]
    wires += [
        Wire(a=f"d{a}", b=f"d{b}", kind="nvlink", Bps=float(rng.choice(rates)))
        for a, b in combinations(range(num_devices), 2)
        if rng.random() < 0.4
    ]
    return Topology(
        name="random",
        devices=tuple(f"d{i}" for i in range(num_devices)),
        wires=tuple(wires),
        stage_s=float(rng.choice((0.0, 1e-3, 0.1))),
    )


def random_demands(
    rng: np.random.Generator, num_ranks: int, count: int, most_rows: int = 30
) -> tuple[Demand, ...]:
    """Classes of random sets of readers, some of them none at all."""
    found: dict[tuple[int, tuple[int, ...]], int] = {}
    for _ in range(count if num_ranks > 1 else 0):
        owner = int(rng.integers(num_ranks))
        others = [rank for rank in range(num_ranks) if rank != owner]
        held = rng.random(len(others)) < rng.choice((0.2, 0.5, 1.0))
        readers = tuple(rank for rank, read in zip(others, held, strict=True) if read)
        if readers:
            found[owner, readers] = int(rng.integers(1, most_rows + 1))
    return tuple(
        Demand(owner=owner, readers=readers, rows=rows)
        for (owner, readers), rows in sorted(found.items())
    )

"""Exchanges to run in tests: random boundaries with plans, and one rank of a group of processes."""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed as dist

from tests.exchanges import random_demands, random_topology
from tiergnn.graph.boundary import Boundary
from tiergnn.planner.exchange import plan_exchange
from tiergnn.runtime.exchange import Routes, exchange
from tiergnn.schedule.exchange import ExchangePlan
from tiergnn.schedule.exchange_check import check_exchange

WIDTH = 3


def random_case(seed: int, num_ranks: int | None = None) -> tuple[ExchangePlan, Boundary, list]:
    """A proven plan, the rows that it moves, and float64 rows of every rank."""
    rng = np.random.default_rng(seed)
    wired = random_topology(rng, num_ranks)
    ranks = wired.num_devices
    demands = random_demands(rng, ranks, int(rng.integers(0, 10)), 9)
    demands = tuple(
        sorted(demands, key=lambda need: (need.owner, sum(1 << r for r in need.readers)))
    )
    held = [sum(need.rows for need in demands if need.owner == r) for r in range(ranks)]
    free = [rng.permutation(count + int(rng.integers(0, 4))) for count in held]
    num_rows = [len(lids) for lids in free]
    rows = []
    for need in demands:
        taken, free[need.owner] = np.split(free[need.owner], [need.rows])
        rows.append(np.sort(taken))
    boundary = Boundary(
        num_parts=ranks,
        owner=np.array([need.owner for need in demands], np.int32),
        readers=np.array([sum(1 << r for r in need.readers) for need in demands], np.uint64),
        ptr=np.cumsum([0, *(need.rows for need in demands)]).astype(np.int64),
        row=np.concatenate([*rows, np.empty(0, np.int64)]).astype(np.int32),
    )
    if rng.random() < 0.3:
        boundary = boundary.within(3)
    method = str(rng.choice(("best", "planned", "direct")))
    plan = plan_exchange(wired, boundary.demands, 24, method=method, seed=seed)
    check_exchange(plan)
    x = [torch.from_numpy(rng.normal(size=(count, WIDTH))) for count in num_rows]
    return plan, boundary, x


def dense(boundary: Boundary, x: list[torch.Tensor], rank: int) -> torch.Tensor:
    """What a rank reads, of all rows gathered everywhere: by owner, then ascending."""
    start = np.cumsum([0, *(len(rows) for rows in x)])
    owner = np.repeat(boundary.owner, np.diff(boundary.ptr))
    readers = np.repeat(boundary.readers, np.diff(boundary.ptr))
    place = start[owner] + boundary.row
    read = place[[bool(int(bits) >> rank & 1) for bits in readers]]
    return torch.cat(x)[torch.from_numpy(np.sort(read).astype(np.int64))]


def upstream(halo: torch.Tensor, rank: int) -> torch.Tensor:
    """A gradient that depends on the rank and on the place."""
    made = torch.Generator().manual_seed(rank)
    return torch.randn(halo.shape, generator=made, dtype=halo.dtype)


def wanted(boundary: Boundary, x: list[torch.Tensor]) -> tuple[list, list]:
    """Values of all halos and gradients of all rows, by the dense all-gather."""
    leaves = [rows.clone().requires_grad_() for rows in x]
    halos = [dense(boundary, leaves, rank) for rank in range(len(x))]
    sum(((h * upstream(h, rank)).sum() for rank, h in enumerate(halos)), x[0].sum() * 0).backward()
    grads = [torch.zeros_like(rows) if rows.grad is None else rows.grad for rows in leaves]
    return halos, grads


def one_rank(rank: int, num_ranks: int, path: str, seeds: list[int], queue) -> None:
    """A process of a gloo group: runs the exchanges and reports the largest differences."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=num_ranks)
    try:
        worst = 0.0
        for seed in seeds:
            plan, boundary, x = random_case(seed, num_ranks)
            halos, grads = wanted(boundary, x)
            own = x[rank].clone().requires_grad_()
            got = exchange(Routes(plan, boundary, rank), own)
            (got * upstream(got, rank)).sum().backward()
            assert torch.equal(got, halos[rank])
            assert own.grad is not None
            difference = (own.grad - grads[rank]).abs()
            worst = max(worst, float(difference.max()) if difference.numel() else 0.0)
        queue.put((rank, worst))
    except BaseException as error:
        queue.put((rank, error))  # the test fails on it at once
        raise
    finally:
        dist.destroy_process_group()

"""Exchanges as they run: values and gradients of a dense all-gather, the same bits again."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.data import data_dir
from tests.runtime.exchanging import one_rank, random_case, upstream, wanted
from tests.transport.processes import FORKSERVER
from tiergnn.errors import PlanError
from tiergnn.graph.boundary import boundary_of
from tiergnn.graph.csr import from_edges
from tiergnn.graph.partition import partition
from tiergnn.hardware.topologies import topology
from tiergnn.planner.exchange import plan_exchange
from tiergnn.runtime.exchange import Routes, exchange_virtual
from tiergnn.schedule.exchange_check import check_exchange


def run(routes: list[Routes], x: list[torch.Tensor]) -> tuple[list, list]:
    leaves = [rows.clone().requires_grad_() for rows in x]
    halos = exchange_virtual(routes, leaves)
    sum(((h * upstream(h, rank)).sum() for rank, h in enumerate(halos)), x[0].sum() * 0).backward()
    return halos, [rows.grad for rows in leaves]


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_two_hundred_exchanges_equal_the_dense_all_gather(first):
    staged = relayed = 0
    for seed in range(first, first + 50):
        plan, boundary, x = random_case(seed)
        routes = [Routes(plan, boundary, rank) for rank in range(plan.num_ranks)]
        halos, grads = run(routes, x)
        want, want_grads = wanted(boundary, x)
        for rank in range(plan.num_ranks):
            assert routes[rank].num_halo == want[rank].shape[0]
            assert torch.equal(halos[rank], want[rank]), seed
            torch.testing.assert_close(grads[rank], want_grads[rank], rtol=1e-12, atol=1e-12)
        staged += plan.num_stages > 1
        relayed += plan.relayed_rows > 0
    assert staged > 5
    assert relayed > 0


def test_float32_gradients_repeat_bit_for_bit():
    plan, boundary, x = random_case(7, 8)
    routes = [Routes(plan, boundary, rank) for rank in range(8)]
    low = [rows.float() for rows in x]
    first, again = run(routes, low)[1], run(routes, low)[1]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_halos_are_those_of_a_partition():
    edges = np.load(data_dir("cora") / "edge_index.npz")["edge_index"]
    graph = from_edges(edges[0], edges[1], 2708)
    parts = partition(graph, 8)
    boundary = boundary_of(parts)
    plan = plan_exchange(topology("dgx1"), boundary.demands, 64)
    check_exchange(plan)
    x = [torch.from_numpy(parts.own(rank).astype(np.int64))[:, None] for rank in range(8)]
    routes = [Routes(plan, boundary, rank) for rank in range(8)]
    for rank, halo in enumerate(exchange_virtual(routes, x)):
        assert halo[:, 0].tolist() == parts.halo(rank).gid.tolist()


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_processes_over_gloo(num_ranks, tmp_path):
    queue = FORKSERVER.Queue()
    seeds = list(range(900, 908))
    assert num_ranks == 2 or any(random_case(s, num_ranks)[0].num_stages > 1 for s in seeds)
    processes = [
        FORKSERVER.Process(
            target=one_rank, args=(rank, num_ranks, str(tmp_path / "meet"), seeds, queue)
        )
        for rank in range(num_ranks)
    ]
    for process in processes:
        process.start()
    try:
        found = dict(queue.get(timeout=60) for _ in processes)
    finally:
        for process in processes:
            process.join(timeout=10)
            process.kill()
    assert set(found) == set(range(num_ranks))
    assert all(isinstance(worst, float) and worst < 1e-12 for worst in found.values()), found


def test_a_plan_of_other_demands_is_refused():
    plan, boundary, _ = random_case(3, 4)
    other = random_case(4, 4)[1]
    assert Routes(plan, boundary, 0).num_ranks == 4
    with pytest.raises(PlanError, match="demands of these parts"):
        Routes(plan, other, 0)

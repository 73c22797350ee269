"""Policies against each other, against closed forms, and against every possible choice."""

from __future__ import annotations

import time
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiergnn.errors import PlanError
from tiergnn.memory.policy import Belady, Hotness, Lru, Policy, next_uses, simulate

traces = st.lists(st.integers(0, 8), max_size=60)


def counts(trace) -> np.ndarray:
    return np.bincount(np.asarray(trace, np.int64), minlength=9)


@settings(max_examples=50, deadline=None)
@given(trace=traces, capacity=st.integers(0, 9), data=st.data())
def test_belady_is_never_worse_than_lru_or_hotness(trace, capacity, data):
    over = data.draw(st.lists(st.booleans(), min_size=len(trace), max_size=len(trace)))
    best = simulate(Belady(trace, over), trace, capacity, over)
    for other in (Lru(), Hotness(counts(trace))):
        found = simulate(other, trace, capacity, over)
        assert best.reads <= found.reads
        assert best.hits <= len(trace)
        assert found.reads + found.hits >= len(trace) - sum(over)


@settings(max_examples=50, deadline=None)
@given(trace=st.lists(st.integers(0, 4), max_size=12), capacity=st.integers(0, 3))
def test_belady_reads_the_least_of_all_choices(trace, capacity):
    @cache
    def least(at: int, held: frozenset[int]) -> int:
        if at == len(trace):
            return 0
        entry = trace[at]
        if entry in held:
            return least(at + 1, held)
        choices = [held]
        if capacity:
            choices += [held | {entry}] if len(held) < capacity else []
            choices += [(held - {out}) | {entry} for out in held]
        return 1 + min(least(at + 1, choice) for choice in choices)

    assert simulate(Belady(trace), trace, capacity).reads == least(0, frozenset())


@pytest.mark.parametrize("capacity", [4, 8, 12])
def test_a_cyclic_scan_larger_than_the_cache(capacity):
    """LRU reads all; Belady keeps all but one of its entries from round to round."""
    parts, rounds = 16, 20
    trace = list(range(parts)) * rounds
    assert simulate(Lru(), trace, capacity).reads == parts * rounds
    best = simulate(Belady(trace), trace, capacity).reads
    assert best <= parts + (parts - capacity + 1) * (rounds - 1)
    assert best <= 0.75 * parts * rounds + parts
    if capacity >= 8:
        assert best <= 0.75 * parts * rounds
    hot = simulate(Hotness(counts(trace)), trace, capacity).reads
    assert hot == parts + (parts - capacity) * (rounds - 1)


def test_lru_evicts_what_was_not_used_for_longest():
    policy = Lru()
    for entry in (3, 1, 2):
        policy.access(entry)
        policy.insert(entry)
    policy.access(3)
    assert policy.victim() == 1
    policy.remove(1)
    assert policy.victim() == 2


def test_hotness_keeps_the_hottest_and_lets_others_pass():
    found = simulate(Hotness([1, 9, 5, 2]), [0, 3, 1, 2, 0, 1, 2, 3, 1], 2)
    assert (found.hits, found.reads) == (3, 6)


def test_overwritten_entries_are_not_read_and_not_kept():
    # 0 is written before it is read again: worth nothing until then.
    trace, over = [0, 1, 2, 0, 1, 2, 0], [False, False, False, True, False, False, False]
    assert next_uses(np.array(trace), over).tolist()[:3] == [np.iinfo(np.int64).max, 4, 5]
    found = simulate(Belady(trace, over), trace, 2, over)
    assert (found.reads, found.writes) == (4, 1)
    assert found.hits == 2


def test_a_cycle_goes_on():
    trace = np.array([4, 2, 4, 7])
    assert next_uses(trace, cycle=True).tolist() == [2, 5, 4, 7]
    policy = Belady(trace, cycle=True)
    rounds = np.tile(trace, 5)
    assert simulate(policy, rounds, 3).reads == 3
    whole = simulate(Belady(np.tile([0, 1, 2, 3], 10)), np.tile([0, 1, 2, 3], 10), 2).reads
    cyclic = simulate(Belady([0, 1, 2, 3], cycle=True), np.tile([0, 1, 2, 3], 10), 2).reads
    assert cyclic == whole


def test_an_access_that_the_trace_does_not_know():
    policy = Belady([1, 2])
    policy.access(1)
    with pytest.raises(PlanError, match="access 1 is of entry 3, the trace says 2"):
        policy.access(3)
    policy = Belady([1])
    policy.access(1)
    with pytest.raises(PlanError, match="that there is none"):
        policy.access(1)


@pytest.mark.parametrize("make", [lambda t: Lru(), Belady, lambda t: Hotness(np.bincount(t))])
def test_long_traces_take_no_quadratic_time(make):
    def seconds(length: int) -> float:
        trace = np.random.default_rng(0).integers(0, length // 4, length)
        policy: Policy = make(trace)
        start = time.process_time()
        simulate(policy, trace, length // 8)
        return time.process_time() - start

    # Sixteen times as long; a scan of the cache at every miss would take 256 times as long.
    assert seconds(64_000) < 64 * max(seconds(4_000), 2e-3)

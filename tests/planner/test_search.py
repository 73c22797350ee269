"""The search: every plan of small chains by brute force, large chains in time, refusals."""

from __future__ import annotations

import math
import time
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiergnn.errors import ConfigError, PlanError
from tiergnn.planner import pareto
from tiergnn.planner.pareto import undominated
from tiergnn.planner.search import (
    Budgets,
    Choice,
    Point,
    Stage,
    curve,
    fastest,
    frontier,
    least,
    point_of,
)

GiB = 2**30


# --- Pareto sets -------------------------------------------------------------------------------


def by_pairs(costs: np.ndarray) -> set[tuple]:
    below = (costs[:, None] <= costs[None]).all(axis=2)
    strictly = below & (costs[:, None] < costs[None]).any(axis=2)
    return set(map(tuple, costs[~strictly.any(axis=0)].tolist()))


@given(
    st.integers(0, 2**32),
    st.integers(1, 300),
    st.integers(1, 6),
    st.sampled_from([2, 5, 30, 10**6]),
)
@settings(max_examples=50, deadline=None)
def test_undominated_is_what_pairs_say(seed, num, dims, top):
    costs = np.random.default_rng(seed).integers(0, top, (num, dims)).astype(float)
    kept = undominated(costs)
    found = [tuple(row) for row in costs[kept].tolist()]
    assert set(found) == by_pairs(costs)
    assert found == sorted(set(found))
    for place, row in zip(kept, found, strict=True):  # of equal points the first
        assert [tuple(other) for other in costs.tolist()].index(row) == place


def test_undominated_splits_at_every_depth(monkeypatch):
    monkeypatch.setattr(pareto, "_SMALL", 8)
    monkeypatch.setattr(pareto, "_LEAF", 3)
    rng = np.random.default_rng(0)
    for dims in range(2, 7):
        for top in (2, 4, 1000):
            costs = rng.integers(0, top, (200, dims)).astype(float)
            assert {tuple(r) for r in costs[undominated(costs)].tolist()} == by_pairs(costs)


def test_undominated_of_nothing_and_of_many():
    assert undominated(np.zeros((0, 3))).size == 0
    assert undominated(np.ones((5, 2))).tolist() == [0]
    plane = np.random.default_rng(0).random((20_000, 3))
    plane[:, 2] = 3 - plane[:, 0] - plane[:, 1]
    start = time.process_time()
    assert undominated(plane).size == 20_000
    assert time.process_time() - start < 1


# --- small chains, by brute force --------------------------------------------------------------


def chain(seed: int, most_stages: int = 4, most_choices: int = 4) -> list[Stage]:
    """Small whole numbers, so that equal sums are equal; some tiers unused, some turns excluded."""
    rng = np.random.default_rng(seed)
    used = rng.random((4, 3)) < 0.6  # which of lasting, kept, forward, backward hold what tier

    def held(kind: int) -> tuple[int, ...]:
        return tuple((rng.integers(0, 12, 3) * used[kind]).tolist())

    stages, before = [], 0
    for i in range(rng.integers(1, most_stages + 1)):
        num = int(rng.integers(1, most_choices + 1))
        choices = tuple(
            Choice(
                name=f"c{c}",
                seconds=float(rng.integers(0, 10)),
                lasting=held(0),
                kept=held(1),
                forward=held(2),
                backward=held(3),
            )
            for c in range(num)
        )
        turns = ()
        if i and rng.random() < 0.6:
            table = rng.choice([0.0, 0.0, 1.0, 3.0, math.inf], (before, num))
            turns = tuple(map(tuple, table.tolist()))
        stages.append(Stage(name=f"s{i}", choices=choices, turn_s=turns))
        before = num
    return stages


def cost(stages: list[Stage], picks: tuple[int, ...]) -> tuple[float, ...]:
    """Seconds and peaks by walking forward and backward, phase by phase."""
    chosen = [stage.choices[pick] for stage, pick in zip(stages, picks, strict=True)]
    seconds = sum(choice.seconds for choice in chosen)
    for i, stage in enumerate(stages):
        seconds += stage.turn_s[picks[i - 1]][picks[i]] if stage.turn_s else 0.0
    peaks = []
    for tier in range(3):
        held = sum(choice.lasting[tier] for choice in chosen)
        peak = held
        for choice in chosen:
            held += choice.kept[tier]
            peak = max(peak, held + choice.forward[tier])
        for choice in reversed(chosen):
            peak = max(peak, held + choice.backward[tier])
            held -= choice.kept[tier]
        peaks.append(peak)
    return (seconds, *peaks)


def every_cost(stages: list[Stage]) -> np.ndarray:
    picks = product(*(range(len(stage.choices)) for stage in stages))
    costs = np.array([cost(stages, pick) for pick in picks])
    return costs[np.isfinite(costs[:, 0])]


def of(point: Point) -> tuple[float, ...]:
    return (point.seconds, *point.tier_bytes)


@pytest.mark.parametrize("seed", range(200))
def test_frontier_is_that_of_all_plans(seed):
    stages = chain(seed)
    costs = every_cost(stages)
    found = frontier(stages)
    assert {of(point) for point in found} == (by_pairs(costs) if len(costs) else set())
    assert len(found) == len({of(point) for point in found})
    assert [point.seconds for point in found] == sorted(point.seconds for point in found)
    for point in found:
        assert cost(stages, point.picks) == of(point)
        assert point_of(stages, point.picks) == point


@pytest.mark.parametrize("seed", range(60))
def test_budgets_keep_what_fits(seed):
    stages = chain(1000 + seed)
    costs = every_cost(stages)
    rng = np.random.default_rng(seed)
    most = [int(m) if rng.random() < 0.7 else None for m in rng.integers(0, 50, 3)]
    budgets = Budgets(*most)
    fits = costs[(costs[:, 1:] <= budgets.most).all(axis=1)]
    found = frontier(stages, budgets=budgets)
    assert {of(point) for point in found} == (by_pairs(fits) if len(fits) else set())
    for goal, column in (("seconds", 0), ("device", 1), ("host", 2), ("disk", 3)):
        point = least(stages, budgets, goal)
        if not len(fits):
            assert point is None
            continue
        assert point is not None
        assert of(point)[column] == fits[:, column].min()
        assert cost(stages, point.picks) == of(point)
        assert all(np.array(point.tier_bytes) <= budgets.most)
    if len(fits):
        assert fastest(stages, budgets).seconds == fits[:, 0].min()
        assert of(fastest(frontier(stages), budgets)) == of(found[0])
    else:
        check_refusal(stages, costs, budgets)


def check_refusal(stages: list[Stage], costs: np.ndarray, budgets: Budgets) -> None:
    """What the error asks for is enough, and a byte less is not."""
    with pytest.raises(PlanError) as refused:
        fastest(stages, budgets)
    with pytest.raises(PlanError, match=str(refused.value).splitlines()[0].split(" needs")[0]):
        fastest(frontier(stages), budgets)
    hint = refused.value.hint
    if not len(costs):
        assert "excluded" in refused.value.problem
        return
    assert "largest: stage s" in str(refused.value)
    assert hint is not None
    ways = [way.split(" and ") for way in hint.split(", or ")]
    for way in ways:
        grown, fewer = budgets, budgets
        for change in way:
            tier = change.split()[1]
            num_bytes = int(change.split("(")[1].split()[0])
            grown, fewer = grown.but(tier, num_bytes), grown.but(tier, num_bytes - 1)
        assert (costs[:, 1:] <= grown.most).all(axis=1).any()
        assert not (costs[:, 1:] <= fewer.most).all(axis=1).any()


def test_refusals_were_seen():
    """The instances above refuse by one budget, by several, and by excluded pairs alike."""
    kinds = set()
    for seed in range(60):
        stages, rng = chain(1000 + seed), np.random.default_rng(seed)
        most = [int(m) if rng.random() < 0.7 else None for m in rng.integers(0, 50, 3)]
        try:
            fastest(stages, Budgets(*most))
        except PlanError as error:
            hint = error.hint or ""
            kinds.add("several" if " and " in hint else "one" if hint else "excluded")
    assert {"one", "several"} <= kinds


def test_a_thinned_frontier_is_near_every_plan():
    stages, thin = large(0, 2)[:3], 0.5
    costs = every_cost(stages)
    exact, thinned = frontier(stages), frontier(stages, thin=thin)
    assert len(thinned) < 0.7 * len(exact)
    points = np.array([of(point) for point in thinned])
    near = (points[:, None] <= costs[None] * (1 + thin)).all(axis=2)
    assert near.any(axis=0).all()
    for point in thinned:
        assert point_of(stages, point.picks) == point


# --- what keeping and recomputing mean ---------------------------------------------------------


def test_transients_do_not_add_up_and_kept_rows_do():
    keep = Choice(name="keep", seconds=1.0, kept=(10, 0, 0), backward=(5, 0, 0))
    again = Choice(name="recompute", seconds=1.5, forward=(10, 0, 0), backward=(15, 0, 0))
    stages = [Stage(name=f"s{i}", choices=(keep, again)) for i in range(3)]
    found = {point.names: of(point)[:2] for point in frontier(stages)}
    assert found["keep", "keep", "keep"] == (3.0, 35)
    assert min(bytes_ for _, bytes_ in found.values()) == 15
    plan = fastest(stages, Budgets(device=34))
    assert plan.seconds == 3.5
    assert plan.device_bytes == 25  # the first two kept, or one of them: 20 + 5 or 10 + 15
    assert plan.names == ("keep", "recompute", "keep") or plan.names.count("recompute") == 1


def test_an_impossible_budget_names_the_way_out():
    wide = Choice(name="resident", seconds=1.0, lasting=(3 * GiB, 0, 0), kept=(2 * GiB, 0, 0))
    host = Choice(name="host", seconds=4.0, lasting=(GiB, 2 * GiB, 0), forward=(GiB, 0, 0))
    stages = [Stage(name=name, choices=(wide, host)) for name in ("layer 1", "layer 2")]
    with pytest.raises(PlanError) as refused:
        fastest(stages, Budgets(device=3 * GiB - 1, host=64 * GiB))
    assert str(refused.value) == (
        f"device tier needs 3.0 GiB ({3 * GiB} bytes) at the least, "
        f"has 3.0 GiB ({3 * GiB - 1} bytes)\n"
        f"  at: largest: stage layer 1 (host), held all step, 1.0 GiB ({GiB} bytes)\n"
        f"  try: a device budget of 3.0 GiB ({3 * GiB} bytes)"
    )
    assert fastest(stages, Budgets(device=3 * GiB, host=64 * GiB)).names == ("host", "host")


# --- large chains ------------------------------------------------------------------------------


def large(seed: int, tiers: int, *, whole: bool = False, turns: bool = False) -> list[Stage]:
    """30 stages of 16 choices, seconds and bytes drawn alike."""
    rng = np.random.default_rng(seed)
    top = 100 if whole else 2**34

    def held() -> tuple[int, ...]:
        return tuple(int(rng.integers(0, top)) if tier < tiers else 0 for tier in range(3))

    return [
        Stage(
            name=f"s{i}",
            choices=tuple(
                Choice(
                    name=f"c{c}",
                    seconds=float(rng.integers(1, 100)) if whole else rng.random(),
                    kept=held(),
                    forward=held(),
                    backward=held(),
                )
                for c in range(16)
            ),
            turn_s=tuple(map(tuple, rng.random((16, 16)).tolist())) if turns and i else (),
        )
        for i in range(30)
    ]


def tight(stages: list[Stage], tiers: int, share: float) -> Budgets:
    """So much of the way from the least that can be kept to what random choices keep."""
    kept = np.array([[choice.kept for choice in stage.choices] for stage in stages])
    low, mean = kept.min(axis=1).sum(axis=0), kept.mean(axis=1).sum(axis=0)
    work = kept.max(axis=(0, 1))
    return Budgets(*(low + share * (mean - low) + work).astype(int).tolist()[:tiers])


@pytest.mark.parametrize("whole", [True, False])
def test_30_stages_of_16_choices(whole):
    stages = large(0, 1, whole=whole)
    start = time.process_time()
    found = frontier(stages)
    assert time.process_time() - start < 2
    assert 200 < len(found) < 2_000
    seconds, held = found.seconds, found.held[:, 0]
    assert (np.diff(seconds) > 0).all()
    assert (np.diff(held) < 0).all()
    for index in (0, len(found) // 2, len(found) - 1):
        assert point_of(stages, found[index].picks) == found[index]
    budgets = Budgets(device=int(held[len(found) // 3]))
    assert fastest(stages, budgets).seconds == found[len(found) // 3].seconds


def test_30_stages_with_turns():
    stages = large(1, 1, turns=True)
    start = time.process_time()
    found = frontier(stages)
    assert time.process_time() - start < 4  # 256 pairs of choices a stage
    point = found[len(found) // 2]
    assert fastest(stages, Budgets(device=point.device_bytes)).seconds == point.seconds


@pytest.mark.parametrize(
    ("tiers", "share", "seed", "turns"),
    [(2, 0.3, 3, False), (2, 0.5, 0, False), (3, 0.5, 3, False), (2, 0.3, 3, True)],
)
def test_30_stages_within_budgets_of_several_tiers(tiers, share, seed, turns):
    stages = large(seed, tiers, turns=turns)
    budgets = tight(stages, tiers, share)
    start = time.process_time()
    plan = fastest(stages, budgets)
    assert time.process_time() - start < 2
    assert all(np.array(plan.tier_bytes) <= budgets.most)
    assert point_of(stages, plan.picks) == plan


def test_fastest_within_two_budgets_is_on_the_frontier():
    stages = large(0, 2)[:9]
    budgets = tight(stages, 2, 0.4)
    found = frontier(stages, budgets=budgets)
    assert len(found) > 10
    assert fastest(stages, budgets).seconds == found[0].seconds


def test_the_curve_over_one_tier():
    stages = large(0, 2)[:10]
    budgets = tight(stages, 2, 0.6)
    points = curve(stages, budgets, "host", 8)
    exact = frontier(stages, budgets=budgets)
    for point in points:
        fits = exact.held[:, 1] <= point.host_bytes
        assert point.seconds == exact.seconds[fits].min()
    held = [point.host_bytes for point in points]
    assert held == sorted(held, reverse=True)
    assert held[-1] == exact.held[:, 1].min()
    assert points[0].seconds == exact.seconds[0]
    with pytest.raises(ConfigError, match="unknown tier 'ram'"):
        curve(stages, budgets, "ram")


def test_too_many_states_are_refused_with_the_way_out(monkeypatch):
    monkeypatch.setattr("tiergnn.planner.chain._MOST_STATES", 1_000)
    with pytest.raises(PlanError, match="more than 1,000 states"):
        frontier(large(0, 3))


def test_chains_that_are_none():
    choice = Choice(name="a", seconds=1.0)
    with pytest.raises(ConfigError, match="one stage or more"):
        frontier([])
    with pytest.raises(ConfigError, match="one choice or more"):
        frontier([Stage(name="s", choices=())])
    with pytest.raises(ConfigError, match="turn_s needs 1 rows of 1, had rows of \\[2\\]"):
        frontier(
            [Stage(name="s", choices=(choice,))] * 1
            + [Stage(name="t", choices=(choice,), turn_s=((0.0, 0.0),))]
        )
    with pytest.raises(ConfigError, match="turn_s are 0 or more"):
        frontier(
            [
                Stage(name="s", choices=(choice,)),
                Stage(name="t", choices=(choice,), turn_s=((-1.0,),)),
            ]
        )
    with pytest.raises(ConfigError, match="thin is 0 or more"):
        frontier([Stage(name="s", choices=(choice,))], thin=-1)
    with pytest.raises(ConfigError, match="bytes are 0 or more"):
        Choice(name="a", seconds=1.0, kept=(1, 2))
    with pytest.raises(ConfigError, match="budgets are 0 bytes or more"):
        Budgets(host=-1)
    with pytest.raises(ConfigError, match="takes nan seconds"):
        Choice(name="a", seconds=math.nan)

"""Plans and workloads with one field changed: each is one of our errors, or does what it says."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.planner.strategies.cases import WORKLOADS, Case, graph_case, machine
from tiergnn.errors import TiergnnError
from tiergnn.planner.plan import Plan
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.planner.strategies.known import STRATEGIES
from tiergnn.workload import Workload

RANKED = Knobs(ranks=3)
KNOBS = {
    "resident": Knobs(recompute=(1,)),
    "hongtu": Knobs(parts=3),
    "grinnder": Knobs(parts=3, hot_frac=0.1, storage="bfloat16"),
    "sliced": Knobs(parts=2, slices=2, tier="disk"),
    "uva": RANKED,
    "mgg": RANKED,
    "leo": Knobs(ranks=3, device_cache_frac=0.1, host_cache_frac=0.2),
    "halo": RANKED,
    "nfp": RANKED,
}
MODELS = ("gcn", "gin", "gat", "late moments")
GONE = object()
OTHERS = (
    -1, 0, 2**63, 10**400, 1.5, 1e300, float("nan"), float("inf"), True, "", "nope", [], [[]], [0],
    {}, {"nope": 1}, None, GONE,
)  # fmt: skip
NAMES = (
    "", "nope", "x", "h0", "h1", "h2", "h3", "s1", "s2", "s3", "rows", "graph", "statistic",
    "nodes", "edges", "gat of 2 heads", "sum of in-edges", "gather", "walk", "matmul", "stream",
    "float16", "int8", "alone", "beside", "host", "disk", "turns", "buckets", "cpu", "network",
    *STRATEGIES,
)  # fmt: skip
PLANS_EACH, WORKLOADS_EACH = 20, 30
_WHOLE: dict[int, Case] = {}


def case(parts: int) -> Case:
    if parts not in _WHOLE:
        _WHOLE[parts] = graph_case(40, 160, parts, 20, seed=3, hot_frac=0.1)
    return _WHOLE[parts]


def plan_of(strategy: str, model: str) -> Plan:
    knobs = KNOBS[strategy]
    graph = case(max(knobs.parts, knobs.ranks))
    return Plan(
        strategy=strategy,
        knobs=knobs,
        workload=WORKLOADS[model],
        shape=graph.shape,
        layout=graph.layout,
        machine=machine(),
        factors={"gather": 1.25},
        notes=("made by hand",),
    )


def places(data: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key, value in data.items() if isinstance(data, dict) else enumerate(data):
        yield (*way, key)
        if isinstance(value, dict | list):
            yield from places(value, (*way, key))


def kind_of(way: tuple[Any, ...]) -> tuple[Any, ...]:
    """Of a place: its way without numbers, so that long lists count once."""
    return tuple("*" if isinstance(step, int) else step for step in way)


def alike(at: Any) -> list[Any]:
    """Values of the same type, which only what is said around them can rule out."""
    if isinstance(at, bool):
        return [not at]
    if isinstance(at, int):
        return [-1, 0, 1, 2, 2**40, 2**62, at + 1, at - 1, at * 1000]
    if isinstance(at, float):
        return [-1.0, 0.0, 1e-300, 1e-59, 1e59, -at, at / 2, at * 1e6]
    if isinstance(at, str):
        return [*NAMES]
    if isinstance(at, list):
        more = [[name] for name in NAMES] + [[*at, name] for name in NAMES]
        words = not at or isinstance(at[0], str)
        return [[], at[1:], at[:-1], [*at, *at[-1:]], at[::-1], *(more if words else ())]
    return [None, {}, GONE]


def value_at(data: Any, way: tuple[Any, ...]) -> Any:
    for step in way:
        data = data[step]
    return data


def changed(text: str, way: tuple[Any, ...], value: Any) -> str:
    data = json.loads(text)
    *before, last = way
    at = value_at(data, tuple(before))
    if value is GONE:
        del at[last]
    else:
        at[last] = value
    return json.dumps(data)


def drawn(text: str, count: int, seed: int) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Changes: first of every kind of place, then of any."""
    draw, data = random.Random(seed), json.loads(text)
    every = list(places(data))
    kinds: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for way in every:
        kinds.setdefault(kind_of(way), []).append(way)
    for _ in range(count):
        way = draw.choice(kinds[draw.choice(list(kinds))])
        values = alike(value_at(data, way)) if draw.random() < 0.8 else OTHERS
        yield way, draw.choice(values)


def use(plan: Plan) -> None:
    """All that is asked of a plan: its schedule proven, its clock, its bytes, its text."""
    assert plan.seconds >= 0
    assert str(plan)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_plan_with_a_field_changed(strategy, tmp_path):
    number = list(STRATEGIES).index(strategy)
    made = plan_of(strategy, MODELS[number % len(MODELS)])
    use(made)
    path = tmp_path / "p.json"
    made.save(path)
    good, refused = path.read_text(), 0
    for way, value in drawn(good, PLANS_EACH, seed=number):
        path.write_text(changed(good, way, value))
        try:
            use(Plan.load(path))
        except TiergnnError:
            refused += 1
        except Exception as error:
            raise AssertionError(f"{way}: {value!r}") from error
    assert refused > PLANS_EACH // 4


@pytest.mark.parametrize("model", MODELS)
def test_a_workload_with_a_field_changed(model, tmp_path):
    path = tmp_path / "w.json"
    WORKLOADS[model].save(path)
    good, refused = path.read_text(), 0
    names = list(STRATEGIES)
    for place, (way, value) in enumerate(drawn(good, WORKLOADS_EACH, seed=len(model))):
        path.write_text(changed(good, way, value))
        name = names[place % len(names)]
        knobs = KNOBS[name]
        graph = case(max(knobs.parts, knobs.ranks))
        try:
            work = Workload.load(path)
            STRATEGIES[name](work, graph.shape, graph.layout, machine(), knobs)
        except TiergnnError:
            refused += 1
        except Exception as error:
            raise AssertionError(f"{name}: {way}: {value!r}") from error
    assert refused > WORKLOADS_EACH // 4

"""Trees of tensors and plain values survive JSON and a table of tensors unchanged."""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tiergnn.errors import ConfigError
from tiergnn.training.optimizers import OPTIMIZERS, SCHEDULERS, make_scheduler
from tiergnn.training.tree import decode, encode

_LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=4),
    st.sampled_from([torch.float32, torch.device("cpu")]),
    st.lists(st.floats(width=32, allow_nan=False), max_size=3).map(torch.tensor),
)
_KEYS = st.one_of(st.text(max_size=3), st.integers(), st.sampled_from(["$tensor", "$tuple", "a.b"]))
TREES = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(_KEYS, inner, max_size=3),
        st.dictionaries(_KEYS, inner, max_size=3).map(OrderedDict),
    ),
    max_leaves=12,
)


def same(a: object, b: object) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def through(tree: object) -> object:
    tensors: dict[str, torch.Tensor] = {}
    text = json.dumps(encode(tree, tensors), allow_nan=False)
    copies = {name: tensor.clone() for name, tensor in tensors.items()}
    return decode(json.loads(text), copies)


@given(TREES)
@settings(max_examples=150, deadline=None)
def test_any_tree_comes_back(tree):
    assert same(tree, through(tree))


def test_what_json_lacks_comes_back():
    tree = {"nan": math.nan, "inf": -math.inf, "milestones": Counter({30: 1, 80: 2}), 3: (1, [2])}
    back = through(tree)
    assert math.isnan(back.pop("nan"))
    tree.pop("nan")
    assert same(tree, back)
    assert through(np.float64(0.1)) == 0.1


def test_colliding_paths_stay_apart():
    tree = {"a.b": torch.tensor(1.0), "a": {"b": torch.tensor(2.0)}}
    assert same(tree, through(tree))


def test_a_function_is_refused_with_its_path():
    with pytest.raises(ConfigError, match=r"cannot keep a builtins\.function") as error:
        encode({"param_groups": [{"hook": lambda: 0}]}, {})
    assert "param_groups.0.hook" in str(error.value)


def _steps(optimizer, scheduler, params, count):
    for k in range(count):

        def closure(k=k):
            optimizer.zero_grad()
            loss = sum(((p - 0.3 * k) ** 2).sum() * (1 + p.numel()) for p in params)
            loss.backward()
            return loss

        loss = optimizer.step(closure)
        if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            scheduler.step(float(loss.detach()))
        elif scheduler is not None:
            scheduler.step()


SCHEDULES = {
    **{name: (lambda o, name=name: make_scheduler(name, o, 12, "min")) for name in SCHEDULERS},
    "none": lambda o: None,
    "multistep": lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [2, 4]),
    "lambda": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda e: 1 / (1 + e)),
    "sequence": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o,
        [torch.optim.lr_scheduler.ConstantLR(o), torch.optim.lr_scheduler.ExponentialLR(o, 0.9)],
        [3],
    ),
    "warm restarts": lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_any_schedule_goes_on(name, schedule):
    _goes_on(name, SCHEDULES[schedule])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_any_optimizer_goes_on(name):
    _goes_on(name, lambda o: None)


def _goes_on(name, schedule):
    """Five steps, through the tree, three more: the bits of eight steps."""
    start = [torch.linspace(-1, 1, 6).reshape(2, 3), torch.tensor([0.5])]

    def make():
        params = [torch.nn.Parameter(value.clone()) for value in start]
        optimizer = OPTIMIZERS[name](params, lr=0.05)
        return params, optimizer, schedule(optimizer)

    params, optimizer, scheduler = make()
    _steps(optimizer, scheduler, params, 5)
    state = {"o": optimizer.state_dict(), "s": scheduler and scheduler.state_dict()}
    values = [p.detach().clone() for p in params]
    state = through(state)
    _steps(optimizer, scheduler, params, 3)

    again, optimizer2, scheduler2 = make()
    for p, value in zip(again, values, strict=True):
        p.data.copy_(value)
    optimizer2.load_state_dict(state["o"])
    if scheduler2 is not None:
        scheduler2.load_state_dict(state["s"])
    _steps(optimizer2, scheduler2, again, 3)
    assert all(torch.equal(a, b) for a, b in zip(params, again, strict=True))
    assert not torch.equal(params[0], start[0])

"""The arena: places without overlap, exact accounts, refusals beforehand."""

from __future__ import annotations

import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tiergnn.errors import PlanError
from tiergnn.memory.device import Arena
from tiergnn.memory.lives import ALIGN_BYTES, Life, lay_out

KIB = 1024


@st.composite
def lives(draw):
    found = []
    for index in range(draw(st.integers(0, 30))):
        start = draw(st.integers(0, 40))
        lasting = draw(st.integers(0, 9)) == 0
        end = None if lasting else start + draw(st.integers(1, 20))
        size = draw(st.sampled_from([0, 1, 512, 700, 4096, 10_000]))
        found.append(Life(name=f"b{index}", num_bytes=size, reserved=start, released=end))
    return found


@settings(max_examples=50, deadline=None)
@given(lives=lives())
def test_no_two_that_live_at_once_overlap(lives):
    layout = lay_out(lives)
    for i, a in enumerate(lives):
        place = layout.places[a.name]
        assert place.offset % ALIGN_BYTES == 0
        assert place.offset + a.num_bytes <= layout.num_bytes
        for b in lives[:i]:
            ends = [10**6 if life.released is None else life.released for life in (a, b)]
            starts = [-1 if life.released is None else life.reserved for life in (a, b)]
            apart = starts[0] >= ends[1] or starts[1] >= ends[0]
            other = layout.places[b.name].offset
            low, high = (
                max(place.offset, other),
                min(place.offset + a.num_bytes, other + b.num_bytes),
            )
            assert apart or low >= high
    assert layout.num_bytes >= layout.live_bytes


@settings(max_examples=50, deadline=None)
@given(lives=lives())
def test_who_lay_there_before_is_waited_for(lives):
    """In the order of the steps no reservation waits; each waits for all who overlapped earlier."""
    layout = lay_out(lives)
    arena = Arena(layout, capacity_bytes=layout.num_bytes)
    steps = [(life.reserved, 1, life) for life in lives if life.released is not None]
    steps += [(life.released, 0, life) for life in lives if life.released is not None]
    lasting = [life for life in lives if life.released is None]
    most = 0
    for _ in range(2):  # the second step of the same schedule
        held = {}
        for life in lasting:
            if life.name not in arena._held:
                arena.reserve(life.name).fill_(0)
            held[life.name] = life
        for _, starts, life in sorted(steps, key=lambda step: step[:2]):
            if starts:
                arena.reserve(life.name)[:] = len(held) + 1
                held[life.name] = life
            else:
                arena.release(life.name)
                del held[life.name]
            assert arena.held_bytes == sum(life.num_bytes for life in held.values())
            most = max(most, arena.held_bytes)
        arena.restart()
    assert arena.peak_bytes == max(most, sum(life.num_bytes for life in lasting))


def test_double_buffers_take_what_lives_at_once():
    """Two buffers that take turns, of three sizes: no byte more than the fullest moment."""
    steps = []
    for turn in range(40):
        for kind, size in enumerate((100 * KIB, 37 * KIB, 3 * KIB)):
            start = 10 * turn + kind
            steps.append(
                Life(name=f"{kind}.{turn}", num_bytes=size, reserved=start, released=start + 17)
            )
    layout = lay_out(steps)
    assert layout.num_bytes <= 1.05 * layout.live_bytes


def test_a_reservation_waits_for_its_place():
    layout = lay_out(
        [
            Life(name="a", num_bytes=1000, reserved=0, released=2),
            Life(name="b", num_bytes=1000, reserved=3, released=4),
        ]
    )
    assert layout.places["b"].waits_for == ("a",)
    arena = Arena(layout, capacity_bytes=1024)
    arena.reserve("a")
    got: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: got.append(arena.reserve("b")))
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    arena.release("a")
    thread.join(10)
    assert got[0].numel() == 1000


def test_who_waits_is_let_go_when_the_run_stops():
    layout = lay_out(
        [
            Life(name="a", num_bytes=8, reserved=0, released=2),
            Life(name="b", num_bytes=8, reserved=3, released=4),
        ]
    )
    arena = Arena(layout, capacity_bytes=1024)
    arena.reserve("a")
    threading.Timer(0.1, arena.stop, ("another lane failed",)).start()
    with pytest.raises(PlanError, match="another lane failed"):
        arena.reserve("b")


def test_too_much_is_refused_before_anything_runs():
    layout = lay_out(
        [
            Life(name="x", num_bytes=100 * KIB, reserved=0),
            Life(name="h0.p3", num_bytes=300 * KIB, reserved=1, released=5),
        ]
    )
    with pytest.raises(PlanError, match=r"device needs 400\.0 KiB .* has 350\.0 KiB") as caught:
        Arena(layout, capacity_bytes=350 * KIB)
    assert "largest: h0.p3, 300.0 KiB" in str(caught.value)
    assert caught.value.short == ("device", 400 * KIB)
    assert Arena(layout, capacity_bytes=400 * KIB).num_bytes == 400 * KIB


def test_a_million_bytes_of_buffers_as_rows():
    layout = lay_out([Life(name="h0", num_bytes=10 * 37 * 4, reserved=0, released=9)])
    arena = Arena(layout, capacity_bytes=10**6)
    arena.reserve("h0")
    rows = arena.rows("h0", 10, 37, torch.float32)
    rows[:] = 3.0
    assert arena.rows("h0", 10, 37, torch.float32).sum() == 3.0 * 370
    assert arena.rows("h0", 20, 37, torch.bfloat16).shape == (20, 37)
    with pytest.raises(PlanError, match="11 rows of 37 float32 take 1628"):
        arena.rows("h0", 11, 37, torch.float32)


def test_misuse_is_told():
    layout = lay_out([Life(name="a", num_bytes=8, reserved=0, released=1)])
    arena = Arena(layout, capacity_bytes=1024)
    for call, words in (
        (lambda: arena.reserve("z"), "no place"),
        (lambda: arena.release("a"), "not reserved"),
        (lambda: arena.rows("a", 1, 1, torch.int8), "not reserved"),
    ):
        with pytest.raises(PlanError, match=words):
            call()
    arena.reserve("a")
    with pytest.raises(PlanError, match="already"):
        arena.reserve("a")
    with pytest.raises(PlanError, match="held at the end of a step: a"):
        arena.restart()
    with pytest.raises(PlanError, match="two lives"):
        lay_out([Life(name="a", num_bytes=8, reserved=i, released=i + 1) for i in (0, 3)])
    with pytest.raises(PlanError, match="released at step 3"):
        Life(name="a", num_bytes=8, reserved=3, released=3)


def test_many_buffers_are_laid_out_fast():
    draw = torch.Generator().manual_seed(0)
    sizes = torch.randint(1, 10**6, (20_000,), generator=draw).tolist()
    steps = [
        Life(name=f"b{i}", num_bytes=size, reserved=i, released=i + 1 + size % 50)
        for i, size in enumerate(sizes)
    ]
    layout = lay_out(steps)
    assert layout.num_bytes < 1.25 * layout.live_bytes

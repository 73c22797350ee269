"""Memory that lanes give back while a GPU is at work: who may have it, and when."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tiergnn.runtime.pending import Pending, Turn

LANES = ("compute", "h2d", "d2h")


class Stream:
    """Notes which ends of actions it was told to wait for."""

    def __init__(self):
        self.waits = []


class End:
    def __init__(self, index):
        self.index = index

    def wait(self, stream):
        stream.waits.append(self.index)


class Value:
    """Goes to the allocator when nobody holds it."""

    def __init__(self, name, dropped):
        self.name, self.dropped = name, dropped

    def __del__(self):
        self.dropped.append(self.name)


def turns():
    streams = {lane: Stream() for lane in LANES}
    return {lane: Turn(lane, streams[lane], 0) for lane in LANES}


def leave(pending, of, dropped, name, owner, by, index, num_bytes=10):
    turn = Turn(by, of[by].stream, index)
    pending.leave(Value(name, dropped), num_bytes, of[owner], turn, End(index))


def test_what_a_lane_gives_back_itself_is_free_at_once():
    pending, of, dropped = Pending(), turns(), []
    leave(pending, of, dropped, "a", "compute", "compute", 3)
    assert dropped == ["a"]


def test_what_another_gave_back_is_free_when_the_owner_comes_after_it():
    pending, of, dropped = Pending(), turns(), []
    leave(pending, of, dropped, "a", "compute", "d2h", 3)
    leave(pending, of, dropped, "b", "compute", "d2h", 5)
    leave(pending, of, dropped, "c", "h2d", "d2h", 4)
    pending.passed("compute", "d2h", 2)
    pending.passed("compute", "h2d", 9)
    assert dropped == []
    pending.passed("compute", "d2h", 3)
    assert dropped == ["a"]
    pending.passed("compute", "d2h", 9)
    assert dropped == ["a", "b"]


def test_owners_wait_for_the_oldest_where_room_is_short():
    pending, of, dropped = Pending(), turns(), []
    for index, name in enumerate("abc"):
        leave(pending, of, dropped, name, "h2d", "compute", index)
    pending.make_room(30)
    assert dropped == []
    pending.make_room(15)
    assert dropped == ["a", "b"]
    assert of["h2d"].stream.waits == [0, 1]
    pending.make_room(-5)
    assert dropped == ["a", "b", "c"]
    pending.make_room(-5)  # nothing is left to wait for


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("leave"), st.sampled_from(LANES), st.sampled_from(LANES)),
            st.tuples(st.just("pass"), st.sampled_from(LANES), st.sampled_from(LANES)),
            st.tuples(st.just("room"), st.integers(0, 60), st.just("")),
        ),
        max_size=40,
    )
)
def test_nothing_is_free_before_its_owner_comes_after_who_gave_it_back(steps):
    pending, of, dropped = Pending(), turns(), []
    given_back, passed = {}, {}
    for index, (what, one, other) in enumerate(steps):
        if what == "leave":
            given_back[index] = one, other
            leave(pending, of, dropped, index, one, other, index)
        elif what == "pass":
            passed[one, other] = index
            pending.passed(one, other, index)
        else:
            pending.make_room(one)
            held = [i for i in given_back if i not in dropped]
            assert 10 * len(held) <= one
        for name in dropped:
            owner, by = given_back[name]
            waited = name in of[owner].stream.waits
            assert owner == by or waited or passed.get((owner, by), -1) >= name
    for name, (owner, by) in given_back.items():
        if owner == by or passed.get((owner, by), -1) >= name:
            assert name in dropped

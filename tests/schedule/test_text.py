"""Schedules as text and as JSON, both ways; what cannot be read back is refused by line."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.schedule.legal import random_legal, whole
from tiergnn.errors import PlanError
from tiergnn.schedule.actions import (
    KINDS,
    WORKS,
    Action,
    Buffer,
    Lane,
    Op,
    Work,
    participants,
    tag_of,
)
from tiergnn.schedule.contents import Content, What
from tiergnn.schedule.schedule import Schedule

# Words that could be taken for something else: numbers, marks of actions, heads of lines.
WORDS = st.one_of(
    st.sampled_from(["s1", "r0", "buffer", "7", "h1.p3@host", "given", "*", "x/y", "ü", "-1"]),
    st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=6),
).filter(lambda word: word not in ("tag", "reads", "writes", "after", "work", "<--"))
COUNTS = st.integers(0, 2**50)  # the most of a buffer
WORK = st.builds(
    Work,
    kind=st.sampled_from(WORKS),
    amount=COUNTS,
    grain=COUNTS,
    span=COUNTS,
    place=st.sampled_from(["device", "host", "peer", "h2d", "float32"]),
    launches=st.integers(0, 9),
    evenness=st.floats(0, 1) | st.floats(0, 1e300),
)
BUFFER = st.builds(
    Buffer,
    name=WORDS,
    rank=st.integers(0, 99),
    tier=st.sampled_from(["device", "host", "disk"]),
    kind=st.sampled_from(KINDS),
    num_bytes=COUNTS,
    given=st.booleans(),
    lasting=st.booleans(),
    own=st.booleans(),
    holds=st.none()
    | st.builds(
        Content,
        what=st.sampled_from(What),
        of=st.sampled_from(["", "h1", "edge_weight", "s2"]),
        part=st.integers(-1, 99),
        owner=st.integers(-1, 99),
        columns=st.none() | st.tuples(st.integers(0, 99), st.integers(0, 99)),
        rows=st.none() | st.tuples(st.integers(0, 99), st.integers(0, 99)),
    ),
)
NUMBERS = st.integers(-1, 10**6)
NAMES = st.lists(WORDS, max_size=3).map(tuple)
ACTION = st.builds(
    Action,
    index=st.integers(0, 10**6),
    rank=st.integers(0, 99),
    lane=st.sampled_from(Lane),
    op=st.sampled_from(Op),
    stage=NUMBERS,
    part=NUMBERS,
    slice=NUMBERS,
    tag=st.just("") | WORDS,
    reads=NAMES,
    writes=NAMES,
    after=st.lists(st.integers(0, 99), max_size=3).map(tuple),
    work=st.lists(WORK, max_size=2).map(tuple),
)
SCHEDULE = st.builds(
    Schedule,
    strategy=WORDS,
    num_ranks=st.integers(1, 64),
    buffers=st.lists(BUFFER, max_size=3).map(tuple),
    actions=st.lists(ACTION, max_size=3).map(tuple),
)


@settings(max_examples=100, deadline=None)
@given(value=BUFFER | ACTION)
def test_a_line_is_read_back(value):
    assert type(value).parse(str(value)) == value


@settings(max_examples=60, deadline=None)
@given(schedule=SCHEDULE | st.integers(0, 999).map(random_legal))
def test_a_schedule_is_read_back(schedule):
    assert Schedule.parse(str(schedule)) == schedule
    assert Schedule.from_json(json.loads(json.dumps(schedule.to_json()))) == schedule


def test_the_mark_is_read_over():
    schedule = whole()
    text = schedule.text(here=5)
    assert text.count("<-- here") == 1
    assert text.splitlines()[1 + len(schedule.buffers) + 5].endswith("<-- here")
    assert Schedule.parse(text) == schedule


@pytest.mark.parametrize(
    "line",
    [
        "buffer x rank 0 tier host kind features bytes",
        "buffer x rank 0 tier host kind poetry bytes 1",
        "buffer x rank 0 tier host kind features bytes -1",
        "buffer x rank a tier host kind features bytes 1",
        "buffer x rank 0 tier host kind features bytes 1 given given",
        "buffer work rank 0 tier host kind features bytes 1",
        "0 r0 compute",
        "0 0 compute ZERO",
        "a r0 compute ZERO",
        "0 r0 gpu ZERO",
        "0 r0 compute JUMP",
        "0 r0 compute ZERO s1 s2",
        "0 r0 compute ZERO q1",
        "0 r0 compute ZERO after",
        "0 r0 compute ZERO after x",
        "0 r0 compute ZERO reads a reads b",
        "0 r0 compute ZERO tag a b",
        "0 r0 compute ZERO work stream",
        "0 r0 compute ZERO work stream 1/2@device*1",
        "0 r0 compute ZERO work song 1/2/3@device*1",
        "0 r0 compute ZERO work stream 1/2/3@*1",
    ],
)
def test_a_wrong_line_is_named(line):
    good = "buffer a rank 0 tier host kind features bytes 1 given lasting"
    with pytest.raises(PlanError) as caught:
        Schedule.parse("\n".join(["tiergnn schedule 1 test ranks 1", good, line, good]))
    assert "line 3 of the schedule" in str(caught.value)


@pytest.mark.parametrize(
    "head", ["", "tiergnn schedule 2 a ranks 1", "tiergnn schedule 1 a ranks x"]
)
def test_a_wrong_head(head):
    with pytest.raises(PlanError, match="STRATEGY ranks N"):
        Schedule.parse(head)


@pytest.mark.parametrize(
    "data",
    [[], {}, {"format": "tiergnn-schedule", "version": 2, "lines": []}, {"lines": "x"}]
    + [{"format": "tiergnn-schedule", "version": 1} | extra for extra in ({}, {"lines": [1]})],
)
def test_wrong_json(data):
    with pytest.raises(PlanError, match="wanted"):
        Schedule.from_json(data)


def test_names_that_could_not_be_read_back_are_refused():
    buffer = whole().buffers[0]
    for name in ("", "two words", "reads", "a\nb", "a\u00a0b"):
        with pytest.raises(PlanError, match="one printable word"):
            replace(buffer, name=name)
    with pytest.raises(PlanError, match="one printable word"):
        replace(whole(), strategy="my plan")
    with pytest.raises(PlanError, match="one printable word"):
        replace(whole().actions[0], tag="my tag")


def test_what_moves():
    action = replace(
        whole().actions[0],
        work=(
            Work(kind="move", amount=1, place="h2d"),
            Work(kind="gather", amount=10, place="host"),
            Work(kind="gather", amount=100, place="peer"),
            Work(kind="gather", amount=1000),
            Work(kind="stream", amount=10000, place="host"),
        ),
    )
    assert action.moved_bytes == 111


def test_who_meets():
    assert tag_of("sync", [0, 1, 2], 3) == "sync"
    assert tag_of("sync", [2, 0], 3) == "sync@0,2"
    assert participants("sync", 3) == (0, 1, 2)
    assert participants("sync@0,2", 3) == (0, 2)
    for tag in ("sync@", "sync@x", "sync@2,0", "sync@0,0", "sync@3", "sync@-1"):
        with pytest.raises(ValueError):
            participants(tag, 3)


@pytest.mark.parametrize(
    "text",
    ["rows", "rows:h1:3", "stones:h1:p1", "rows:h1:p1:p2", "rows:h1:q1:p2", "rows:h1:c0-2:r0-2"],
)
def test_contents_that_are_none(text):
    with pytest.raises(PlanError, match="not what a buffer holds"):
        Content.parse(text)
    with pytest.raises(PlanError, match="not what a buffer holds"):
        Buffer.parse(f"buffer a rank 0 tier host kind cache bytes 1 holds {text}")

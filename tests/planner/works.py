"""Works of every kind, drawn at random, and actions that do them."""

from __future__ import annotations

from hypothesis import strategies as st

from tiergnn.schedule.actions import Action, Lane, Op, Work

GB = 10**9


def action(*work: Work, lane: Lane = Lane.COMPUTE) -> Action:
    return Action(index=0, rank=0, lane=lane, op=Op.FORWARD, work=work)


def gather(amount: int = GB, **values) -> Work:
    return Work(kind="gather", amount=amount, **({"grain": 256, "span": 10**9} | values))


works = st.one_of(
    st.builds(
        gather,
        amount=st.integers(0, 10**12),
        grain=st.integers(1, 8192),
        span=st.integers(0, 10**12),
        launches=st.integers(0, 9),
        evenness=st.floats(1e-3, 1),
    ),
    st.builds(
        Work,
        kind=st.sampled_from(["matmul", "outer"]),
        amount=st.integers(0, 10**15),
        grain=st.integers(0, 4096),
        span=st.integers(0, 10**12),
        place=st.sampled_from(["device", "float32", "float64"]),
    ),
    st.builds(
        Work,
        kind=st.sampled_from(["stream", "rowwise", "total"]),
        amount=st.integers(0, 10**12),
        place=st.sampled_from(["device", "host"]),
        launches=st.integers(0, 9),
    ),
    st.builds(
        Work,
        kind=st.sampled_from(["walk", "attend", "drop", "softmax", "draw", "fresh"]),
        amount=st.integers(0, 10**12),
        grain=st.integers(1, 4096),
        launches=st.integers(0, 9),
    ),
    st.builds(
        Work,
        kind=st.just("move"),
        amount=st.integers(0, 10**12),
        grain=st.integers(1, 10**8),
        place=st.sampled_from(["h2d", "d2h", "disk_read"]),
    ),
)

"""The external sort and what it stands on: radix sorts, cuts, dictionaries."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiergnn.graph import runs as runs_module
from tiergnn.graph.dictionary import BadNameError, Names, Numbers, sort_text
from tiergnn.graph.formats.fields import Text
from tiergnn.graph.radix import pack, reverse, sort_keys, sort_with_order, unpack
from tiergnn.graph.runs import Column, Runs

KEYS = st.lists(
    st.one_of(st.integers(0, 5), st.integers(0, 2**64 - 1), st.just(3 << 32 | 7)), max_size=60
)


@given(KEYS)
@settings(max_examples=50, deadline=None)
def test_radix_sorts_are_stable(values):
    keys = np.array(values, np.uint64)
    want = np.argsort(keys, kind="stable")
    found, order = sort_with_order(keys.copy())
    assert np.array_equal(order, want)
    assert np.array_equal(found, keys[want])
    assert np.array_equal(sort_keys(keys.copy()), keys[want])


def test_keys_of_edges_order_by_destination_then_source():
    src = np.array([2**32 - 1, 0, 5, 5])
    dst = np.array([0, 2**32 - 1, 1, 2])
    keys = pack(src, dst)
    assert np.argsort(keys).tolist() == np.lexsort((src, dst)).tolist()
    assert [side.tolist() for side in unpack(keys, np.dtype(np.int64))] == [
        src.tolist(),
        dst.tolist(),
    ]
    assert np.array_equal(reverse(keys), pack(dst, src))


def _text(names: list[str]) -> Text:
    data = [name.encode() for name in names]
    ends = np.cumsum([len(d) for d in data])
    return Text(
        np.frombuffer(b"".join(data), np.uint8), ends - np.array([len(d) for d in data]), ends
    )


@given(st.lists(st.text(min_size=1, max_size=20).filter(lambda name: "\0" not in name)))
@settings(max_examples=50, deadline=None)
def test_names_are_numbered_and_sorted(names):
    dictionary = Names()
    numbers = dictionary.add(_text(names)).tolist() if names else []
    seen = list(dict.fromkeys(names))
    assert numbers == [seen.index(name) for name in names]
    text, order = dictionary.sorted()
    ascending = sorted(seen, key=str.encode)
    assert [text[i] for i in range(text.size)] == ascending
    assert [seen[i] for i in order] == ascending


def test_names_share_prefixes_and_grow():
    names = [f"http://example.org/a/long/way/{i % 5000:04d}" for i in range(12000)]
    dictionary = Names()
    numbers = np.concatenate(
        [dictionary.add(_text(names[i : i + 700])) for i in range(0, 12000, 700)]
    )
    assert dictionary.size == 5000
    assert np.array_equal(numbers, np.arange(12000) % 5000)
    order = sort_text(_text(["b", "a" * 9, "a" * 8, "a", "ab"]))
    assert order.tolist() == [3, 2, 1, 4, 0]


@pytest.mark.parametrize(
    ("name", "why"), [("", "empty"), ("a\0b", "NUL"), ("x" * 2000, "longer than")]
)
def test_names_that_are_none(name, why):
    with pytest.raises(BadNameError, match=why) as caught:
        Names().add(_text(["fine", name]))
    assert caught.value.row == 1


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=50), st.integers(1, 20))
@settings(max_examples=50, deadline=None)
def test_numbers_are_numbered_and_sorted(values, step):
    dictionary = Numbers()
    ids = np.array(values, np.int64)
    numbers = [n for i in range(0, ids.size, step) for n in dictionary.add(ids[i : i + step])]
    seen = list(dict.fromkeys(values))
    assert numbers == [seen.index(value) for value in values]
    ascending, order = dictionary.sorted()
    assert ascending.tolist() == sorted(seen)
    assert [seen[i] for i in order] == sorted(seen)


def test_numbers_grow():
    ids = np.random.default_rng(0).permutation(20_000) * 977 - 5_000_000
    dictionary = Numbers()
    assert np.array_equal(dictionary.add(ids), np.arange(20_000))
    assert np.array_equal(dictionary.add(ids[::-1]), np.arange(20_000)[::-1])


NODES = 6
EDGES = st.lists(st.tuples(st.integers(0, NODES - 1), st.integers(0, NODES - 1)), max_size=80)


@given(EDGES, st.integers(1, 30), st.integers(1, 40), st.integers(1, 8), st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_cuts_cover_everything_in_order(tmp_path_factory, edges, run, most, span, fence):
    """Whatever the runs, the fences and the limits: one stable sort of it all."""
    folder = tmp_path_factory.mktemp("runs")
    keys = pack(
        np.array([e[0] for e in edges], np.int64), np.array([e[1] for e in edges], np.int64)
    )
    columns = [Column("position", np.dtype(np.int64), 1), Column("two", np.dtype(np.float32), 2)]
    position = np.arange(keys.size)
    two = np.stack([position, -position], axis=1).astype(np.float32)
    before, runs_module.FENCE = runs_module.FENCE, fence
    try:
        runs = Runs(folder / "runs", columns)
        sizes = [
            runs.add(keys[i : i + run].copy(), (position[i : i + run], two[i : i + run]))
            for i in range(0, keys.size, run)
        ]
        runs.close()
        runs = Runs(folder / "runs", columns, sizes)  # as another process takes it up
        assert runs.num_rows == keys.size
        got_keys, got_position, got_two, low = [], [], [], 0
        for cut in runs.cuts(most, span, 0, NODES << 32):
            assert cut.low == low
            low = cut.high
            assert cut.num_rows <= most or cut.is_one_key
            assert ((cut.high - 1) >> 32) - (cut.low >> 32) < span
            pieces = runs.pieces(cut, most) if cut.num_rows > most else [cut]
            for piece in pieces:
                assert piece.num_rows <= most
                found, (a, b) = runs.load(piece)
                order = np.argsort(found, kind="stable")
                got_keys += found[order].tolist()
                got_position += a[order, 0].tolist()
                got_two += b[order].tolist()
        assert low == NODES << 32
        runs.close()
    finally:
        runs_module.FENCE = before
    want = np.argsort(keys, kind="stable")
    assert got_keys == keys[want].tolist()
    assert got_position == want.tolist()
    assert got_two == two[want].tolist()


def test_cuts_reach_the_last_key(tmp_path):
    """Ids up to 2**32 - 1: the end of the keys is one more than 64 bits hold."""
    runs = Runs(tmp_path / "runs")
    runs.add(np.array([2**64 - 1, 0, 2**63], np.uint64))
    cuts = list(runs.cuts(1, 2**31, 0, 2**64))
    assert [runs.load(cut)[0].tolist() for cut in cuts if cut.num_rows] == [
        [0], [2**63], [2**64 - 1],
    ]  # fmt: skip
    assert cuts[-1].high == 2**64
    runs.close()

"""What every row store holds: a new one is a subclass with ``make``.

Legend: R rows of the table, D columns, N rows of one request.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tiergnn.errors import ConfigError, StoreError
from tiergnn.memory.store import RowStore

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
WHOLE = [torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool]
WIDTHS = [1, 3, 37, 63]
SHARED = settings(
    max_examples=25,
    deadline=None,
    # Every example makes a table of its own; a subclass is not another executor.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
)


def rand(num_rows: int, width: int, dtype: torch.dtype = torch.float32, seed: int = 0):
    """Values that ``dtype`` holds exactly."""
    draw = torch.Generator().manual_seed(seed)
    if not dtype.is_floating_point:
        return torch.randint(0, 2, (num_rows, width), generator=draw).to(dtype)
    return torch.randn(num_rows, width, generator=draw, dtype=torch.float64).to(dtype)


class RowStoreContract:
    """Subclasses say how to make a store: ``make(num_rows, width, dtype)``."""

    reads_once = True  # whether a row asked for twice is read once

    @pytest.fixture
    def make(self, tmp_path):
        raise NotImplementedError

    @pytest.mark.parametrize("width", WIDTHS)
    @pytest.mark.parametrize("dtype", [*FLOATS, *WHOLE], ids=str)
    def test_what_was_written_is_read(self, make, dtype, width):
        store, values = make(1000, width, dtype), rand(1000, width, dtype)
        store.write(slice(None), values)
        out = torch.empty(1000, width, dtype=dtype)
        store.read(slice(0, 1000), out)
        assert torch.equal(out, values)
        index = torch.tensor([999, 0, 5, 5, 998, 0])
        some = torch.empty(6, width, dtype=dtype)
        store.gather(index, some)
        assert torch.equal(some, values[index])

    def test_a_new_table_is_zeros(self, make):
        store, out = make(300, 37, torch.float32), torch.empty(300, 37)
        store.read(slice(None), out)
        assert not out.any()

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
    def test_narrow_rows_are_decoded_and_rounded_to_the_nearest(self, make, dtype):
        store, values = make(257, 37, dtype), rand(257, 37, torch.float32)
        store.write(slice(None), values)
        out, double = torch.empty(257, 37), torch.empty(3, 37, dtype=torch.float64)
        store.read(slice(None), out)
        assert torch.equal(out, values.to(dtype).float())
        store.gather(torch.tensor([256, 3, 3]), double)
        assert torch.equal(double, values.to(dtype).double()[[256, 3, 3]])

    def test_float16_refuses_what_it_cannot_hold(self, make):
        store = make(5, 3, torch.float16)
        values = torch.ones(5, 3)
        values[3, 1] = 70000.0
        with pytest.raises(ConfigError, match="had 70000 in column 1"):
            store.write(slice(None), values)
        values[3, 1] = float("inf")
        store.write(slice(None), values)
        out = torch.empty(5, 3)
        store.read(slice(None), out)
        assert torch.equal(out, values)

    @pytest.mark.parametrize(("num_rows", "width"), [(0, 37), (9, 0), (0, 0)])
    def test_empty_tables(self, make, num_rows, width):
        store = make(num_rows, width, torch.float32)
        empty = torch.empty(num_rows, width)
        store.write(slice(None), empty)
        store.read(slice(None), empty)
        store.gather(torch.empty(0, dtype=torch.int64), torch.empty(0, width))
        store.accumulate(slice(None), empty)
        assert store.counters.read_bytes == store.counters.write_bytes == 0
        store.close()

    def test_slices_at_the_ends(self, make):
        store, want = make(1300, 63, torch.float32), torch.zeros(1300, 63)
        for first, last in ((0, 1), (1299, 1300), (0, 0), (1300, 1300), (650, 1300), (17, 644)):
            values = rand(last - first, 63, seed=last)
            store.write(slice(first, last), values)
            want[first:last] = values
            out = torch.empty(last - first, 63)
            store.read(slice(first, last), out)
            assert torch.equal(out, values)
        out = torch.empty(1300, 63)
        store.read(slice(None), out)
        assert torch.equal(out, want)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    def test_values_of_any_strides(self, make, dtype):
        store, wide = make(500, 37, dtype), torch.randint(-9, 9, (500, 111)).float()
        store.write(slice(None), wide[:, 37:74])
        across = torch.empty(37, 500).t()
        store.read(slice(None), across)
        assert torch.equal(across, wide[:, 37:74])
        store.write(slice(0, 250), wide.flip(1)[::2, 1::3])
        index = torch.arange(249, -1, -1)
        out = torch.empty(250, 100)
        store.gather(index, out[:, 50:87])
        assert torch.equal(out[:, 50:87], wide.flip(1)[::2, 1::3].flip(0))
        column = torch.empty(250, 37)[:, ::1].t().contiguous().t()
        store.gather(index, column)
        assert torch.equal(column, out[:, 50:87])
        store.accumulate(index, column)
        store.accumulate(slice(0, 250), wide.flip(1)[::2, 1::3])
        store.read(slice(0, 250), column)
        assert torch.equal(column, (3 * wide.flip(1)[::2, 1::3]).to(dtype).float())

    @pytest.mark.parametrize("dtype", FLOATS, ids=str)
    def test_sums_are_wide_and_in_order(self, make, dtype):
        store, start = make(40, 37, dtype), rand(40, 37, dtype)
        store.write(slice(None), start)
        index = torch.randint(0, 40, (3000,), generator=torch.Generator().manual_seed(1))
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        values = rand(3000, 37, wide, seed=2)
        want = start.to(wide).numpy().copy()
        np.add.at(want, index.numpy(), values.numpy())
        store.accumulate(index, values)
        out = torch.empty(40, 37, dtype=dtype)
        store.read(slice(None), out)
        assert torch.equal(out, torch.from_numpy(want).to(dtype))
        store.accumulate(slice(3, 17), values[:14])
        again = torch.empty(40, 37, dtype=dtype)
        store.read(slice(None), again)
        want = out.clone()
        want[3:17] = (out[3:17].to(wide) + values[:14]).to(dtype)
        assert torch.equal(again, want)

    def test_ones_of_bfloat16_add_up(self, make):
        store = make(3, 3, torch.bfloat16)
        store.accumulate(torch.ones(7000, dtype=torch.int64), torch.ones(7000, 3))
        out = torch.empty(3, 3)
        store.read(slice(None), out)
        assert out.tolist() == [[0.0] * 3, [7008.0] * 3, [0.0] * 3]

    def test_counters(self, make):
        store = make(100, 3, torch.float32)
        store.write(slice(0, 50), torch.ones(50, 3))
        store.read(slice(0, 10), torch.empty(10, 3))
        store.gather(torch.tensor([4, 4, 4, 90]), torch.empty(4, 3))
        counted = store.counters.read()
        assert (counted["write_calls"], counted["write_bytes"]) == (1, 600)
        read_once = 2 if self.reads_once else 4
        assert (counted["read_calls"], counted["read_bytes"]) == (2, 12 * (10 + read_once))

    @pytest.mark.parametrize(
        "rows", [slice(0, 11), slice(-1, 4), slice(3, 2), slice(0, 4, 2)], ids=str
    )
    def test_slices_that_do_not_fit_are_refused(self, make, rows):
        with pytest.raises(ConfigError, match="slice of rows 0 to 10"):
            make(10, 3, torch.float32).read(rows, torch.empty(4, 3))

    def test_requests_that_do_not_fit_are_refused(self, make):
        store = make(10, 3, torch.float32)
        with pytest.raises(ConfigError, match=r"wanted a tensor \[4, 3\], had \[4, 2\]"):
            store.read(slice(0, 4), torch.empty(4, 2))
        with pytest.raises(ConfigError, match="has rows 0 to 9, was asked for 10"):
            store.gather(torch.tensor([3, 10]), torch.empty(2, 3))
        with pytest.raises(ConfigError, match="was asked for -1"):
            store.accumulate(torch.tensor([-1]), torch.empty(1, 3))
        with pytest.raises(ConfigError, match="int32 or int64"):
            store.gather(torch.tensor([True]), torch.empty(1, 3))
        with pytest.raises(ConfigError, match="no int64 rows"):
            store.write(slice(0, 1), torch.zeros(1, 3, dtype=torch.int64))
        with pytest.raises(ConfigError, match="sums are of floats"):
            make(10, 3, torch.int64).accumulate(slice(0, 1), torch.zeros(1, 3, dtype=torch.int64))

    def test_a_closed_store_answers_nothing(self, make):
        store = make(10, 3, torch.float32)
        store.close()
        store.close()
        with pytest.raises(StoreError, match="closed"):
            store.read(slice(0, 1), torch.empty(1, 3))

    def test_threads_on_rows_of_their_own(self, make):
        store, want = make(4000, 37, torch.float32), rand(4000, 37)
        errors: list[BaseException] = []

        def work(first: int) -> None:
            try:
                for start in range(first, 4000, 400):  # pieces that share records with others
                    rows = slice(start, start + 100)
                    store.write(rows, want[rows])
                    out = torch.empty(100, 37)
                    store.read(rows, out)
                    assert torch.equal(out, want[rows])
                    store.accumulate(torch.arange(start, start + 100), torch.zeros(100, 37))
                    store.gather(torch.arange(start + 99, start - 1, -1), out)
                    assert torch.equal(out.flip(0), want[rows])
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(100 * i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not errors
        out = torch.empty(4000, 37)
        store.read(slice(None), out)
        assert torch.equal(out, want)

    @SHARED
    @given(data=st.data())
    def test_any_requests_are_those_of_a_tensor(self, make, data):
        num_rows, width = data.draw(st.sampled_from([(7, 3), (700, 37), (3000, 63)]))
        dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16]))
        run_random(make(num_rows, width, dtype), data)


def run_random(store: RowStore, data: Any, steps: int = 12) -> torch.Tensor:
    """Random requests against a tensor; gives what the table holds at the end."""
    want = torch.zeros(store.num_rows, store.width)
    for step in range(data.draw(st.integers(1, steps))):
        kind = data.draw(st.sampled_from(["read", "write", "gather", "sum", "sum slice"]))
        if kind in ("read", "write", "sum slice"):
            first = data.draw(st.integers(0, store.num_rows))
            last = data.draw(st.integers(first, store.num_rows))
            rows: Any = slice(first, last)
            count = last - first
        else:
            count = data.draw(st.integers(0, 40))
            draw = torch.Generator().manual_seed(data.draw(st.integers(0, 2**16)))
            rows = torch.randint(0, store.num_rows, (count,), generator=draw)
        values = rand(count, store.width, seed=step)
        if kind == "read":
            store.read(rows, out := torch.empty(count, store.width))
            assert torch.equal(out, want[rows])
        elif kind == "gather":
            store.gather(rows, out := torch.empty(count, store.width))
            assert torch.equal(out, want[rows])
        elif kind == "write":
            store.write(rows, values)
            want[rows] = values.to(store.dtype).float()
        elif kind == "sum slice":
            store.accumulate(rows, values)
            want[rows] = (want[rows] + values).to(store.dtype).float()
        else:
            store.accumulate(rows, values)
            sums = want.numpy().copy()
            np.add.at(sums, rows.numpy(), values.numpy())
            touched = torch.unique(rows)
            want[touched] = torch.from_numpy(sums)[touched].to(store.dtype).float()
    store.read(slice(None), out := torch.empty(store.num_rows, store.width))
    assert torch.equal(out, want)
    return want

"""Tasks cover every edge once, in order, whatever the degrees."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tiergnn.kernels import tasks
from tiergnn.kernels.tasks import (
    DENSE_DEGREE,
    MOST,
    MOST_DENSE,
    MOST_MERGED,
    Tasks,
    cut_rows,
    launches,
    packed,
    placed,
)
from tiergnn.packed import packed_bytes

DEGREES = st.lists(
    st.one_of(st.integers(0, 5), st.integers(0, 3 * MOST), st.just(200 * MOST)), max_size=30
)


def as_rowptr(degrees: list[int]) -> torch.Tensor:
    return torch.tensor([0, *torch.tensor(degrees, dtype=torch.int64).cumsum(0).tolist()])


def arrays_of(made: Tasks) -> list[torch.Tensor]:
    merged = [] if made.merge is None else arrays_of(made.merge)
    return [made.row, made.start, made.size, made.order, *merged]


def edges_by_row(tasks: Tasks) -> dict[int, list[tuple[int, int]]]:
    """The pieces start..stop of each row, in the order in which they are merged."""
    own = [
        (row, (start, start + size))
        for row, start, size in zip(
            tasks.row.tolist(), tasks.start.tolist(), tasks.size.tolist(), strict=True
        )
    ]
    pieces = {row: [piece] for row, piece in own[tasks.num_parts :]}
    assert len(pieces) == len(own) - tasks.num_parts  # a whole row is one task
    if tasks.merge is not None:
        order = tasks.order.tolist()
        for row, merged in edges_by_row(tasks.merge).items():
            parts = [own[order[place]] for first, last in merged for place in range(first, last)]
            assert {name for name, _ in parts} == {row}
            assert row not in pieces
            pieces[row] = [piece for _, piece in parts]
    return pieces


@settings(max_examples=40, deadline=None)
@given(degrees=DEGREES, most=st.sampled_from([None, 1, 2, 4, 64]))
def test_every_edge_belongs_to_one_task_in_order(degrees, most):
    rowptr = as_rowptr(degrees)
    pieces = edges_by_row(cut_rows(rowptr, most=most))
    assert sorted(pieces) == list(range(len(degrees)))
    for row, found in pieces.items():
        ends = rowptr[row].item(), rowptr[row + 1].item()
        assert (found[0][0], found[-1][1]) == ends
        assert all(a[1] == b[0] for a, b in pairwise(found))


@settings(max_examples=40, deadline=None)
@given(degrees=DEGREES)
def test_tasks_are_even(degrees):
    most = MOST_DENSE if sum(degrees) >= DENSE_DEGREE * len(degrees) else MOST
    tasks = cut_rows(as_rowptr(degrees))
    while tasks is not None:
        parts = tasks.size[: tasks.num_parts]
        assert parts.numel() == 0 or (parts.max() <= most and parts.min() >= most // 2)
        at = 0
        for first, last, longest in tasks.spans:
            assert first == at < last
            size = tasks.size[first:last]
            assert size.max() <= longest <= max(most, 4)
            assert first < tasks.num_parts or size.min() > longest // 1.5 or longest <= 4
            assert first < tasks.num_parts or tasks.row[first:last].diff().ge(0).all()
            at = last
        assert at == tasks.num_tasks
        longest = [span.longest for span in tasks.spans]
        assert longest == sorted(longest, reverse=True)
        tasks, most = tasks.merge, MOST_MERGED


@settings(max_examples=40, deadline=None)
@given(degrees=DEGREES)
def test_a_gpu_sorts_rows_as_a_cpu_counts_them(degrees):
    rowptr = as_rowptr(degrees)
    here = cut_rows(rowptr)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "_by_counting", tasks._by_sorting)
        there = cut_rows(rowptr)
    assert here.spans == there.spans
    assert all(map(torch.equal, arrays_of(here), arrays_of(there)))


@settings(max_examples=60, deadline=None)
@given(degrees=DEGREES)
def test_tasks_fit_the_room_that_counts_give_them(degrees):
    """Of packed tasks, and of a copy of their memory, everything is where it was."""
    rowptr = as_rowptr(degrees)
    made, (num_rows, num_edges) = cut_rows(rowptr), (len(degrees), sum(degrees))
    there = packed(made, num_rows, num_edges)
    assert there.memory is not None
    assert there.memory.numel() == packed_bytes(num_rows, num_edges)
    copy = placed(there, there.memory.clone())
    there.memory.zero_()
    assert copy.spans == made.spans
    assert all(map(torch.equal, arrays_of(copy), arrays_of(made)))


def test_the_room_is_little_more_than_tasks_take():
    for degrees in ([16] * 4096, [MOST + 1] * 4096, [0] * 4096, [100_000] * 100):
        made = cut_rows(as_rowptr(degrees))
        taken = sum(array.numel() * array.element_size() for array in arrays_of(made))
        assert 0 <= packed_bytes(len(degrees), sum(degrees)) - taken <= sum(degrees) / 7 + 4096


def test_indices_are_as_narrow_as_they_can_be():
    narrow = cut_rows(as_rowptr([3, 0, 700]))
    assert {narrow.row.dtype, narrow.start.dtype, narrow.size.dtype} == {torch.int32}
    wide = cut_rows(torch.tensor([0, 2**31, 2**31 + 3]), most=2**20)
    assert wide.start.dtype == torch.int64
    assert wide.start[-1] == 2**31
    assert wide.start[wide.num_parts - 1] + wide.size[wide.num_parts - 1] == 2**31


def test_parts_stand_by_the_share_of_their_row_before_them():
    tasks = cut_rows(as_rowptr([4 * MOST, 2 * MOST, 1]), most=MOST)
    assert tasks.row.tolist() == [0, 1, 0, 0, 1, 0, 2]
    assert tasks.order.tolist() == [0, 2, 3, 5, 1, 4]
    assert tasks.start.tolist()[:6] == [MOST * k for k in (0, 4, 1, 2, 5, 3)]


def test_a_hub_is_merged_in_levels():
    tasks = cut_rows(as_rowptr([1, MOST * MOST_MERGED * 3]), most=MOST)
    assert tasks.num_parts == MOST_MERGED * 3
    assert tasks.merge is not None
    assert tasks.merge.num_parts == 3
    assert tasks.merge.merge is not None
    assert tasks.merge.merge.merge is None
    assert tasks.merge.merge.row.tolist() == [1]


@pytest.mark.parametrize("edge", [4, 100])
def test_launches_join_neighbouring_spans(edge):
    tasks = cut_rows(as_rowptr([0, 1, 2, 3, 4, 9, 60, 100, 200, 900]), most=MOST)
    found = launches(tasks, lambda longest: longest > edge)
    assert [shape for _, shape in found] == [True, False]
    (high, _), (low, _) = found
    assert high.first == 0
    assert high.last == low.first
    assert low.last == tasks.num_tasks
    assert (high.longest, tasks.size[low.first :].max() <= low.longest) == (MOST, True)

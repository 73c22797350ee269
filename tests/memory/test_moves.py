"""Rows added to rows of several tables at once."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tiergnn.memory import moves
from tiergnn.memory.moves import Addend, add_all


def addends(seed, dtype, *, tables, width):
    """Tables of which some rows, or all, are added to, in a place or two."""
    draw, found = torch.Generator().manual_seed(seed), []
    for _ in range(tables):
        count = int(torch.randint(0, 40, (1,), generator=draw))
        target = torch.randn(count, width, generator=draw, dtype=dtype)
        rows = torch.randperm(count, generator=draw)[: count // 2 + 1].sort().values
        cut = len(rows) // 3
        for slot in (rows[:cut], rows[cut:]) if seed % 3 else (None,):
            num = count if slot is None else len(slot)
            values = torch.randn(num, width, generator=draw, dtype=dtype)
            found.append(Addend(target, slot, values))
    return found


@pytest.mark.parametrize("piece_bytes", [1, 100, 2**20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), tables=st.integers(0, 5), width=st.integers(0, 9))
def test_each_row_gets_what_is_for_it(piece_bytes, dtype, seed, tables, width):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moves, "_ADDED_BYTES", piece_bytes)
        found = addends(seed, dtype, tables=tables, width=width)
        wanted = {id(a.target): a.target.clone() for a in found}
        for target, slot, values in found:
            if slot is None:
                wanted[id(target)] += values
            else:
                wanted[id(target)][slot] += values
        add_all(found)
    assert all(torch.equal(a.target, wanted[id(a.target)]) for a in found)


def test_rows_of_a_view_are_added_to_where_they_lie():
    memory, values = torch.zeros(3, 4), torch.ones(2, 4)
    add_all([Addend(memory[1:], None, values), Addend(memory[:1], torch.tensor([0]), values[:1])])
    assert memory.tolist() == torch.ones(3, 4).tolist()

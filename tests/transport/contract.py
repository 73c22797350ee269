"""What every transport holds, as checks that each rank runs; whatever back end, whatever size."""

from __future__ import annotations

import time

import pytest
import torch

from tiergnn.errors import ConfigError
from tiergnn.transport.transport import Transport

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.uint8)


def counts(size: int, seed: int) -> list[list[int]]:
    """[giver][taker] -> rows; about a third are 0, and so are all of giver seed % (2 size)."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.randint(0, 9, (size, size), generator=generator)
    table[torch.rand(size, size, generator=generator) < 0.3] = 0
    if seed % (2 * size) < size:
        table[seed % size] = 0
    return table.tolist()


def rows_of(giver: int, taker: int, num_rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """What giver gives to taker: numbers that no other pair has."""
    first = (giver * 16 + taker) % 100
    return (torch.arange(num_rows * width).view(num_rows, width) % 100 + first).to(dtype)


def exchanged(t: Transport, seed: int, dtype: torch.dtype, width: int, **options) -> None:
    table = counts(t.size, seed)
    give, take = table[t.rank], [row[t.rank] for row in table]
    parts = [rows_of(t.rank, taker, n, width, dtype) for taker, n in enumerate(give)]
    got = t.exchange(torch.cat(parts), give, take if seed % 2 else None, **options)
    wanted = torch.cat([rows_of(giver, t.rank, n, width, dtype) for giver, n in enumerate(take)])
    assert torch.equal(got, wanted), (seed, dtype, t.rank)


def check_exchange(t: Transport) -> None:
    for seed in range(8):
        exchanged(t, seed, DTYPES[seed % len(DTYPES)], 1 + 36 * (seed % 2))


def check_exchange_of_flat_rows_into_room_of_the_caller(t: Transport) -> None:
    out = torch.full((3 * t.size,), -1.0)
    rows = t.room((3 * t.size,), torch.float32)
    rows.copy_(torch.arange(3.0 * t.size) + 100 * t.rank)
    got = t.exchange(rows, [3] * t.size, [3] * t.size, out=out)
    assert got.data_ptr() == out.data_ptr()
    first = 3.0 * t.rank
    wanted = torch.cat([torch.arange(first, first + 3) + 100 * r for r in range(t.size)])
    assert torch.equal(out, wanted)


def check_rows_may_be_written_again(t: Transport) -> None:
    rows = torch.empty(t.size, 1000)
    for turn in range(10):
        rows.fill_(turn * 100 + t.rank)
        got = t.exchange(rows, [1] * t.size)
        rows.fill_(-1)
        assert got.mean(1).tolist() == [turn * 100 + r for r in range(t.size)]


def check_nothing_at_all(t: Transport) -> None:
    got = t.exchange(torch.empty(0, 7), [0] * t.size, [0] * t.size)
    assert got.shape == (0, 7)
    t.all_reduce([torch.empty(0), torch.empty(3, 0)])
    t.all_reduce([])


def check_two_triangles_and_an_isolated_node(t: Transport) -> None:
    """Ranks 0 and 1 exchange halos, rank 2 has no neighbours, the others own nothing."""
    give = [0] * t.size
    if t.size > 1 and t.rank < 2:
        give[1 - t.rank] = 2
    rows = torch.full((sum(give), 5), float(t.rank))
    for step in range(3):
        got = t.exchange(rows, give, give, tag=f"EXCHANGE s{step}")
        assert got.sum() == (10 * (1 - t.rank) if sum(give) else 0)
        loss = got.sum().reshape(1)
        t.all_reduce([loss])
        assert loss.item() == (10 if t.size > 1 else 0)


def check_sum_has_the_bits_of_the_order_of_ranks(t: Transport) -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        each = [
            [torch.randn(shape, generator=torch.Generator().manual_seed(50 + r)).to(dtype)
             for shape in ((), (3,), (37, 11))]
            for r in range(t.size)
        ]  # fmt: skip
        wide = torch.float32 if dtype.itemsize == 2 else dtype
        wanted = [part.to(wide) for part in each[0]]
        for parts in each[1:]:
            wanted = [total + part.to(wide) for total, part in zip(wanted, parts, strict=True)]
        for _ in range(2):
            mine = [part.clone() for part in each[t.rank]]
            t.all_reduce(mine)
            for got, total in zip(mine, wanted, strict=True):
                assert torch.equal(got, total.to(dtype)), dtype


def check_sum_of_mixed_dtypes_and_leaves(t: Transport) -> None:
    weight = torch.full((5,), float(t.rank), requires_grad=True)
    number = torch.tensor([t.rank], dtype=torch.int64)
    t.all_reduce([weight, number])
    total = t.size * (t.size - 1) // 2
    assert weight.tolist() == [total] * 5
    assert weight.requires_grad
    assert number.item() == total


def check_broadcast(t: Transport) -> None:
    for root in range(t.size):
        held = torch.full((3, 4), float(t.rank))
        t.broadcast(held, root)
        assert (held == root).all()
    with pytest.raises(ConfigError, match="unknown root"):
        t.broadcast(torch.zeros(1), t.size)


def check_gather(t: Transport) -> None:
    said = t.gather({"rank": t.rank, "names": ["é"] * (t.rank * 500)})
    assert [len(each["names"]) for each in said] == [500 * r for r in range(t.size)]
    assert t.gather(None) == [None] * t.size


def check_allocate(t: Transport) -> None:
    h = t.allocate("h1", (t.rank * 3, 5), torch.float32)
    assert h.own.shape == (t.rank * 3, 5)
    assert not h.own.any()
    again = t.allocate("h1", (t.rank * 3, 5), torch.float32)
    assert again.own.data_ptr() == h.own.data_ptr()
    with pytest.raises(ConfigError, match="was allocated as"):
        t.allocate("h1", (t.rank * 3, 6), torch.float32)
    if not t.reads_in_place:
        assert h.peers == ()
        return
    assert h.peers[t.rank].data_ptr() == h.own.data_ptr()
    for turn in range(20):
        h.own.fill_(turn * 10 + t.rank)
        t.barrier(tag="in")
        for rank, rows in enumerate(h.peers):
            assert rows.shape == (rank * 3, 5)
            assert (rows == turn * 10 + rank).all()
        t.barrier(tag="out")
    grads = [t.allocate(f"g{i}", (4,), torch.float64) for i in range(5)]
    assert len({each.own.data_ptr() for each in grads}) == 5


def check_barrier_holds_back(t: Transport) -> None:
    """Nobody passes before the last one has come, under load and on every turn."""
    for turn in range(3):
        if t.rank == turn % t.size:
            time.sleep(0.05)
        torch.rand(60, 60) @ torch.rand(60, 60)
        came = time.monotonic()
        t.barrier()
        went = time.monotonic()
        assert went >= max(t.gather(came))  # one clock for all of a host


def check_begun_operations_overlap_and_keep_their_order(t: Transport) -> None:
    began = []
    for seed in range(4):
        table = counts(t.size, seed)
        give, take = table[t.rank], [row[t.rank] for row in table]
        rows = torch.cat([rows_of(t.rank, r, n, 3, torch.float32) for r, n in enumerate(give)])
        began.append((t.begin(t.exchange, rows, give, take, channel="peer"), take))
    total = torch.ones(4)
    t.all_reduce([total])  # meanwhile, on the other channel
    assert total.tolist() == [t.size] * 4
    exchanged(t, 9, torch.float32, 2, channel="peer")  # after what was begun there
    for handle, take in began:
        assert handle.done()
        wanted = [rows_of(r, t.rank, n, 3, torch.float32) for r, n in enumerate(take)]
        assert torch.equal(handle.wait(), torch.cat(wanted))


def check_unknown_channel(t: Transport) -> None:
    with pytest.raises(ConfigError, match="unknown channel 'pear'"):
        t.barrier(channel="pear")


def check_own_mistakes_are_told_before_anything_moves(t: Transport) -> None:
    some = [1] * t.size
    with pytest.raises(ConfigError, match="contiguous rows to give"):
        t.exchange(torch.zeros(t.size + 1, 2), some)
    with pytest.raises(ConfigError, match="counts of rows"):
        t.exchange(torch.zeros(t.size + 1, 2), [*some, 1])
    with pytest.raises(ConfigError, match="wanted room"):
        t.exchange(torch.zeros(t.size, 2), some, some, out=torch.zeros(t.size, 3))
    t.barrier()


CHECKS = {name: check for name, check in globals().items() if name.startswith("check_")}


def run_check(t: Transport, name: str) -> None:
    CHECKS[name](t)


def run_all(t: Transport) -> None:
    for name, check in CHECKS.items():
        t.at(name)
        try:
            check(t)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error

"""What every transport holds, as checks that each rank runs; whatever back end, size and device."""

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


def exchanged(
    t: Transport, device: str, seed: int, dtype: torch.dtype, width: int, **options
) -> None:
    table = counts(t.size, seed)
    give, take = table[t.rank], [row[t.rank] for row in table]
    parts = [rows_of(t.rank, taker, n, width, dtype) for taker, n in enumerate(give)]
    got = t.exchange(torch.cat(parts).to(device), give, take if seed % 2 else None, **options)
    wanted = torch.cat([rows_of(giver, t.rank, n, width, dtype) for giver, n in enumerate(take)])
    assert torch.equal(got.cpu(), wanted), (seed, dtype, t.rank)


def check_exchange(t: Transport, device: str) -> None:
    for seed in range(8):
        exchanged(t, device, seed, DTYPES[seed % len(DTYPES)], 1 + 36 * (seed % 2))


def check_exchange_of_flat_rows_into_room_of_the_caller(t: Transport, device: str) -> None:
    out = torch.full((3 * t.size,), -1.0, device=device)
    rows = t.room((3 * t.size,), torch.float32, device=device)
    rows.copy_(torch.arange(3.0 * t.size) + 100 * t.rank)
    got = t.exchange(rows, [3] * t.size, [3] * t.size, out=out)
    assert got.data_ptr() == out.data_ptr()
    first = 3.0 * t.rank
    wanted = torch.cat([torch.arange(first, first + 3) + 100 * r for r in range(t.size)])
    assert torch.equal(out.cpu(), wanted)


def check_rows_may_be_written_again(t: Transport, device: str) -> None:
    rows = torch.empty(t.size, 1000, device=device)
    for turn in range(10):
        rows.fill_(turn * 100 + t.rank)
        got = t.exchange(rows, [1] * t.size)
        rows.fill_(-1)
        assert got.unique(dim=1).flatten().tolist() == [turn * 100 + r for r in range(t.size)]


def check_nothing_at_all(t: Transport, device: str) -> None:
    got = t.exchange(torch.empty(0, 7, device=device), [0] * t.size, [0] * t.size)
    assert got.shape == (0, 7)
    t.all_reduce([torch.empty(0, device=device), torch.empty(3, 0, device=device)])
    t.all_reduce([])


def check_two_triangles_and_an_isolated_node(t: Transport, device: str) -> None:
    """Ranks 0 and 1 exchange halos, rank 2 has no neighbours, the others own nothing."""
    give = [0] * t.size
    if t.size > 1 and t.rank < 2:
        give[1 - t.rank] = 2
    rows = torch.full((sum(give), 5), float(t.rank), device=device)
    for step in range(3):
        got = t.exchange(rows, give, give, tag=f"EXCHANGE s{step}")
        assert got.sum() == (10 * (1 - t.rank) if sum(give) else 0)
        loss = got.sum().reshape(1)
        t.all_reduce([loss])
        assert loss.item() == (10 if t.size > 1 else 0)


def check_sum_has_the_bits_of_the_order_of_ranks(t: Transport, device: str) -> None:
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
            mine = [part.to(device, copy=True) for part in each[t.rank]]
            t.all_reduce(mine)
            for got, total in zip(mine, wanted, strict=True):
                assert torch.equal(got.cpu(), total.to(dtype)), dtype


def check_sum_of_mixed_dtypes_and_leaves(t: Transport, device: str) -> None:
    weight = torch.full((5,), float(t.rank), requires_grad=True, device=device)
    number = torch.tensor([t.rank], dtype=torch.int64, device=device)
    t.all_reduce([weight, number])
    total = t.size * (t.size - 1) // 2
    assert weight.tolist() == [total] * 5
    assert weight.requires_grad
    assert number.item() == total


def check_broadcast(t: Transport, device: str) -> None:
    for root in range(t.size):
        held = torch.full((3, 4), float(t.rank), device=device)
        t.broadcast(held, root)
        assert (held == root).all()
    with pytest.raises(ConfigError, match="unknown root"):
        t.broadcast(torch.zeros(1, device=device), t.size)


def check_gather(t: Transport, device: str) -> None:
    said = t.gather({"rank": t.rank, "names": ["é"] * (t.rank * 500)})
    assert [len(each["names"]) for each in said] == [500 * r for r in range(t.size)]
    assert t.gather(None) == [None] * t.size


def check_allocate(t: Transport, device: str) -> None:
    h = t.allocate("h1", (t.rank * 3, 5), torch.float32, device)
    assert h.own.shape == (t.rank * 3, 5)
    assert not h.own.any()
    again = t.allocate("h1", (t.rank * 3, 5), torch.float32, device)
    assert again.own.data_ptr() == h.own.data_ptr()
    with pytest.raises(ConfigError, match="was allocated as"):
        t.allocate("h1", (t.rank * 3, 6), torch.float32, device)
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
    grads = [t.allocate(f"g{i}", (4,), torch.float64, device) for i in range(5)]
    assert len({each.own.data_ptr() for each in grads}) == 5


def check_what_peers_read_is_whole(t: Transport, device: str) -> None:
    """Rows that take their time to be written are read after that, and not when written again."""
    width = 2**14 if device == "cpu" else 2**20
    rows = torch.arange(float(width), device=device)
    for turn in range(3):
        made = rows
        for _ in range(20):
            made = made + 1
        got = t.exchange((made + t.rank).expand(t.size, width).contiguous(), [1] * t.size)
        last = got[:, -1].tolist()
        assert last == [width + 19.0 + r for r in range(t.size)], turn
    if not t.reads_in_place:
        return
    held = t.allocate("long", (width,), torch.float32, device)
    for turn in range(5):
        held.own.copy_(rows)
        for _ in range(20):
            held.own.add_(1)
        held.own.add_(turn + t.rank)
        t.barrier(tag="in")
        seen = torch.stack([peer[-2:] for peer in held.peers])
        t.barrier(tag="out")
        held.own.fill_(-1)
        assert seen[:, 1].tolist() == [width + 19.0 + turn + r for r in range(t.size)]


def check_barrier_holds_back(t: Transport, device: str) -> None:
    """Nobody passes before the last one has come, under load and on every turn."""
    for turn in range(3):
        if t.rank == turn % t.size:
            time.sleep(0.05)
        torch.rand(60, 60) @ torch.rand(60, 60)
        came = time.monotonic()
        t.barrier()
        went = time.monotonic()
        assert went >= max(t.gather(came))  # one clock for all of a host


def check_begun_operations_overlap_and_keep_their_order(t: Transport, device: str) -> None:
    began = []
    for seed in range(4):
        table = counts(t.size, seed)
        give, take = table[t.rank], [row[t.rank] for row in table]
        rows = torch.cat([rows_of(t.rank, r, n, 3, torch.float32) for r, n in enumerate(give)])
        rows = rows.to(device)
        began.append((t.begin(t.exchange, rows, give, take, channel="peer"), take))
    total = torch.ones(4, device=device)
    t.all_reduce([total])  # meanwhile, on the other channel
    assert total.tolist() == [t.size] * 4
    exchanged(t, device, 9, torch.float32, 2, channel="peer")  # after what was begun there
    for handle, take in began:
        assert handle.done()
        wanted = [rows_of(r, t.rank, n, 3, torch.float32) for r, n in enumerate(take)]
        assert torch.equal(handle.wait().cpu(), torch.cat(wanted))


def check_unknown_channel(t: Transport, device: str) -> None:
    with pytest.raises(ConfigError, match="unknown channel 'pear'"):
        t.barrier(channel="pear")


def check_own_mistakes_are_told_before_anything_moves(t: Transport, device: str) -> None:
    some, rows = [1] * t.size, torch.zeros(t.size, 2, device=device)
    with pytest.raises(ConfigError, match="contiguous rows to give"):
        t.exchange(torch.zeros(t.size + 1, 2, device=device), some)
    with pytest.raises(ConfigError, match="counts of rows"):
        t.exchange(torch.zeros(t.size + 1, 2, device=device), [*some, 1])
    with pytest.raises(ConfigError, match="wanted room"):
        t.exchange(rows, some, some, out=torch.zeros(t.size, 3, device=device))
    t.barrier()


CHECKS = {name: check for name, check in globals().items() if name.startswith("check_")}


def run_check(t: Transport, name: str, device: str = "cpu") -> None:
    CHECKS[name](t, device)


def run_all(t: Transport, device: str = "cpu") -> None:
    for name, check in CHECKS.items():
        t.at(name)
        try:
            check(t, device)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error

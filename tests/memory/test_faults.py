"""Disks that fail: retried within bounds, told with the file's name, damage found and located."""

from __future__ import annotations

import errno
import os
import resource
import subprocess

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.memory.contract import SHARED, rand
from tiergnn.errors import ConfigError, PlanError, StoreError
from tiergnn.memory.disk import DiskRows
from tiergnn.memory.engine import Engine
from tiergnn.memory.faults import FaultPlan, Faulty
from tiergnn.memory.file import SECTOR_BYTES
from tiergnn.memory.records import Records
from tiergnn.memory.scratch import Scratch
from tiergnn.memory.store import Damaged

WIDTH, ROWS = 37, 3000  # 444 KB: seven records of 64 KiB


@pytest.fixture
def engines():
    made = []

    def make(plan: FaultPlan | None = None, **options) -> Engine:
        options = {"num_threads": 1, "slab_bytes": 2**18} | options
        made.append(Engine(calls=Faulty(plan or FaultPlan()).calls, **options))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


def table(path, engine, **options) -> DiskRows:
    return DiskRows.create(
        path / "h1.p3.rows", ROWS, WIDTH, torch.float32, engine=engine, **options
    )


def whole(store) -> torch.Tensor:
    store.read(slice(None), out := torch.empty(store.num_rows, store.width))
    return out


@SHARED
@given(seed=st.integers(0, 10**6), direct=st.booleans())
def test_passing_faults_change_nothing(tmp_path_factory, seed, direct):
    """EIO and short I/O now and then, as often in a row as the retries bear."""
    drawn = FaultPlan.drawn(seed, num_calls=400, faults=("eio", "short", "short"), frac=0.4)
    plan = FaultPlan(
        reads={call: fault for call, fault in drawn.reads.items() if call % 4},
        writes={call: fault for call, fault in drawn.writes.items() if call % 4},
    )
    engine = Engine(num_threads=1, slab_bytes=2**17, calls=Faulty(plan).calls)
    store = table(tmp_path_factory.mktemp("disk"), engine, direct=direct)
    values = rand(ROWS, WIDTH)
    store.write(slice(None), values)
    store.accumulate(slice(10, 2000), values[10:2000])
    values[10:2000] *= 2
    index = torch.randint(0, ROWS, (50,), generator=torch.Generator().manual_seed(seed))
    store.gather(index, out := torch.empty(50, WIDTH))
    assert torch.equal(out, values[index])
    assert torch.equal(whole(store), values)
    store.close()
    engine.close()


def test_errors_that_last_name_the_file(tmp_path, engines):
    plan = FaultPlan(reads=dict.fromkeys(range(4), "eio"))
    store = table(tmp_path, engines(plan))
    with pytest.raises(StoreError, match=r"after 3 retries: Input/output error") as caught:
        whole(store)
    assert caught.value.culprit == str(tmp_path / "h1.p3.rows")
    assert "another one" in (caught.value.hint or "")
    assert store.counters.retries == 3
    assert not whole(store).any()  # the disk came back
    store.close()


def test_a_full_disk_is_told_with_numbers(tmp_path, engines):
    store = table(tmp_path, engines(FaultPlan(writes={1: "enospc"})))
    with pytest.raises(StoreError, match=r"the disk needs .* free: No space left on device"):
        store.write(slice(None), rand(ROWS, WIDTH))
    store.close()


@pytest.mark.parametrize("where", ["read", "write"])
def test_flipped_bits(tmp_path, engines, where):
    """On the way they are read again; on the disk they are damage, which says which rows."""
    plan = FaultPlan(reads={0: "flip"}) if where == "read" else FaultPlan(writes={0: "flip"})
    store, values = table(tmp_path, engines(plan)), rand(ROWS, WIDTH)
    store.write(slice(None), values)
    per_record = Records.own(ROWS, 4 * WIDTH).rows_per_record
    if where == "read":
        assert torch.equal(whole(store), values)
        assert store.counters.retries == 1
        return
    with pytest.raises(Damaged) as caught:
        whole(store)
    lost = caught.value
    assert 0 <= lost.first < lost.last <= ROWS
    assert lost.last - lost.first == per_record
    assert str(tmp_path / "h1.p3.rows") in str(lost)
    with pytest.raises(Damaged):
        store.gather(torch.tensor([lost.first]), torch.empty(1, WIDTH))
    with pytest.raises(Damaged):
        store.accumulate(torch.tensor([lost.first]), torch.zeros(1, WIDTH))
    # An executor makes these rows again, whole; the rest was never lost.
    store.write(slice(lost.first, lost.last), values[lost.first : lost.last])
    assert torch.equal(whole(store), values)
    store.close()


def test_every_flipped_byte_of_a_file_is_found(tmp_path, engines):
    store, values = table(tmp_path, engines()), rand(ROWS, WIDTH)
    store.write(slice(None), values)
    draw = torch.Generator().manual_seed(3)
    per_record = Records.own(ROWS, 4 * WIDTH).rows_per_record
    for row in torch.randint(0, ROWS, (20,), generator=draw).tolist():
        first, last = (
            row // per_record * per_record,
            min(ROWS, (row // per_record + 1) * per_record),
        )
        address = int(Records.own(ROWS, 4 * WIDTH).address(torch.tensor([row]).numpy())[0])
        with open(store.path, "r+b") as file:
            file.seek(address + 17)
            old = file.read(1)
            file.seek(address + 17)
            file.write(bytes([old[0] ^ 1]))
        with pytest.raises(Damaged) as caught:
            store.read(slice(row, row + 1), torch.empty(1, WIDTH))
        assert (caught.value.first, caught.value.last) == (first, last)
        store.write(slice(first, last), values[first:last])
    assert torch.equal(whole(store), values)
    store.close()


def test_calls_of_the_system_may_be_short(tmp_path, engines, monkeypatch):
    """As above, but with os.preadv itself."""
    store, values = table(tmp_path, engines()), rand(ROWS, WIDTH)
    store.write(slice(None), values)
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda *call: min(5000, real(*call)))
    assert torch.equal(whole(store), values)
    monkeypatch.setattr(os, "preadv", lambda *call: min(100, real(*call)))
    with pytest.raises(StoreError, match="move nothing"):
        whole(store)
    store.close()


def test_a_file_cut_short(tmp_path, engines):
    store = table(tmp_path, engines())
    store.write(slice(None), rand(ROWS, WIDTH))
    os.truncate(store.path, 10 * SECTOR_BYTES + 100)
    with pytest.raises(StoreError, match=f"ends at byte {10 * SECTOR_BYTES + 100}"):
        whole(store)
    store.close()


def test_a_disk_that_is_too_small_says_so_at_once(tmp_path, engines):
    """By the limit on file sizes, as a file system's own limit would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**17, hard))
    try:
        with pytest.raises(StoreError, match=r"needs 436\.0 KiB") as caught:
            table(tmp_path, engines())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "ulimit -f" in (caught.value.hint or "")
    assert list(tmp_path.iterdir()) == []


def test_a_small_file_system_is_full(tmp_path, engines):
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(folder)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting needs root")
    try:
        with Scratch(folder, engine=engines()) as scratch:
            assert "memory, not a disk" in scratch.finding().value
            with pytest.raises(StoreError, match="No space left on device") as caught:
                scratch.table("h1.p3", ROWS, WIDTH, torch.float32)
            assert "h1.p3" in str(caught.value)
            assert scratch.held_bytes == 0
            small = scratch.table("h1.p4", 1000, WIDTH, torch.float32)
            small.write(slice(None), values := rand(1000, WIDTH))
            assert torch.equal(whole(small), values)
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("where", ["open", "first read"])
def test_a_file_system_without_direct_io(tmp_path, engines, monkeypatch, where):
    real_open, real_read = os.open, os.preadv

    def refuse_open(path, flags, *rest, **more):
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real_open(path, flags, *rest, **more)

    def refuse_read(handle, buffers, offset):
        import fcntl

        if fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real_read(handle, buffers, offset)

    if where == "open":
        monkeypatch.setattr(os, "open", refuse_open)
    else:
        monkeypatch.setattr(os, "preadv", refuse_read)
    with Scratch(tmp_path, engine=engines()) as scratch:
        found = scratch.finding()
        assert found.status == "warn"
        assert "buffered" in found.value
        store = scratch.table("h1", ROWS, WIDTH, torch.float32)
        assert not store.direct
        store.write(slice(None), values := rand(ROWS, WIDTH))
        assert torch.equal(whole(store), values)


def test_rows_of_others_are_read_only(tmp_path, engines):
    values = rand(500, WIDTH)
    path = tmp_path / "x.bin"
    path.write_bytes(b"\0" * 128 + values.numpy().tobytes())
    engine = engines()
    store = DiskRows.open(path, 500, WIDTH, torch.float32, engine=engine, offset_bytes=128)
    assert torch.equal(whole(store), values)
    index = torch.tensor([499, 0, 3, 3, 250])
    store.gather(index, out := torch.empty(5, WIDTH))
    assert torch.equal(out, values[index])
    with pytest.raises(StoreError, match="reading only"):
        store.write(slice(0, 1), values[:1])
    store.close()
    assert path.exists()
    with pytest.raises(StoreError, match="end at byte"):
        DiskRows.open(path, 501, WIDTH, torch.float32, engine=engine, offset_bytes=128)
    with pytest.raises(ConfigError, match="multiple of 4"):
        DiskRows.open(path, 1, WIDTH, torch.float32, engine=engine, offset_bytes=127)
    with pytest.raises(StoreError, match="cannot open"):
        DiskRows.open(tmp_path / "none", 1, 1, torch.float32, engine=engine)


def test_rows_wider_than_a_slab_are_refused_beforehand(tmp_path, engines):
    with pytest.raises(PlanError, match="slab_bytes="):
        DiskRows.create(tmp_path / "w", 2, 2**17, torch.float32, engine=engines())
    with pytest.raises(PlanError, match="slabs of a multiple"):
        Engine(slab_bytes=1000)


@settings(max_examples=50, deadline=None)
@given(num_rows=st.integers(1, 10**6), row_bytes=st.integers(1, 300_000))
def test_records_waste_little(num_rows, row_bytes):
    records = Records.own(num_rows, row_bytes)
    used = records.rows_per_record * row_bytes
    assert records.record_bytes % SECTOR_BYTES == 0
    assert used <= records.record_bytes
    assert 1 - used / records.record_bytes <= (0.01 if row_bytes <= 2048 else 0.06)
    assert records.end_bytes <= records.file_bytes < records.end_bytes + SECTOR_BYTES


def test_faults_are_known():
    with pytest.raises(ConfigError, match="eio, enospc, short, flip"):
        FaultPlan(reads={0: "fire"})


def test_many_small_ranges_up_to_the_end_of_a_file(tmp_path, engines):
    """Far apart, so that each is a range: read in compiled code, the last one short."""
    rows, width, step = 2000, 1001, 40  # 4,004 bytes a row, 160 KB from one to the next
    values = rand(rows, width)
    path = tmp_path / "x.bin"
    path.write_bytes(values.numpy().tobytes())
    store = DiskRows.open(path, rows, width, torch.float32, engine=engines())
    index = torch.arange(rows - 1, -1, -step)
    store.gather(index, out := torch.empty(index.numel(), width))
    assert torch.equal(out, values[index])
    assert store.io.read_calls == index.numel()
    assert store.io.read_bytes <= 3 * SECTOR_BYTES * index.numel()
    os.truncate(path, 4004 * 1500)
    with pytest.raises(StoreError, match=f"ends at byte {4004 * 1500}"):
        store.gather(index, out)
    store.close()


def test_near_rows_are_one_read_and_far_ones_are_not_read_between(tmp_path, engines):
    values = rand(20_000, 64)
    path = tmp_path / "x.bin"
    path.write_bytes(values.numpy().tobytes())
    store = DiskRows.open(path, 20_000, 64, torch.float32, engine=engines())
    index = torch.tensor([3, 40, 3, 200, 15_000, 15_001, 3])
    store.gather(index, out := torch.empty(7, 64))
    assert torch.equal(out, values[index])
    assert store.io.read_calls == 2
    assert store.io.read_bytes <= 18 * SECTOR_BYTES
    assert store.counters.read_bytes == 5 * 256
    store.close()

"""Random rows of a file larger than is held: ours against a memory map's fancy index, cold.

The file holds float16 rows of 256 bytes. Before each round the system forgets its pages (of our own
file alone). Both readers get the same rows in the same order, duplicates among them. The memory
map is read as users read it, once more with the advice that its reads are random, and as where
memory is short: with a quarter of the file in memory at most (of ours nothing is).
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import torch

from provenance import RESULTS, provenance
from tiergnn.memory import disk
from tiergnn.memory.disk import DiskRows
from tiergnn.memory.engine import Engine
from tiergnn.memory.hot import HotRows
from tiergnn.memory.scratch import Scratch

WIDTH = 128  # of float16: 256 bytes a row


def make(path: Path, num_rows: int) -> None:
    draw = np.random.default_rng(0)
    with open(path, "wb") as file:
        for start in range(0, num_rows, 2**20):
            count = min(2**20, num_rows - start)
            bits = draw.integers(0, 0x7C00, (count, WIDTH), dtype=np.uint16)  # finite float16
            bits.tofile(file)
        file.flush()
        os.fsync(file.fileno())


def forget(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(handle)


def read_ahead(folder: Path) -> int | None:
    """What the system reads at a miss of a memory map, where it says so."""
    device = os.stat(folder).st_dev
    path = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/queue/read_ahead_kb")
    return int(path.read_text()) * 1024 if path.exists() else None


def timed(path: Path, work: Callable[[], Any]) -> tuple[float, Any]:
    forget(path)
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def of_map(path: Path, num_rows: int, index: np.ndarray, *, random: bool) -> np.ndarray:
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as memory:
        if random:
            memory.madvise(mmap.MADV_RANDOM)
        rows = np.frombuffer(memory, np.float16).reshape(num_rows, WIDTH)
        out = rows[index]
        del rows
    return out


def of_capped_map(
    path: Path, num_rows: int, index: np.ndarray, cap_bytes: int, limit_s: float
) -> float:
    """Rows a second of a map of which at most ``cap_bytes`` stay in memory, as in a container.

    The rows are uniform, so it does not matter which pages go: windows of the file take turns.
    """
    libc, page = ctypes.CDLL(None, use_errno=True), mmap.PAGESIZE
    window = min(64 * 2**20, path.stat().st_size // (8 * page) * page)
    forget(path)
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as memory:
        flat = np.frombuffer(memory, np.uint8)
        rows = flat.view(np.float16).reshape(num_rows, WIDTH)
        resident = np.empty(-(-flat.size // page), np.uint8)
        seconds, done, next_window = 0.0, 0, 0
        while done < index.size and seconds < limit_s:
            start = time.perf_counter()
            rows[index[done : done + 500]]
            seconds += time.perf_counter() - start
            done += min(500, index.size - done)
            while True:
                address = ctypes.c_void_p(flat.ctypes.data)
                vector = ctypes.c_void_p(resident.ctypes.data)
                assert libc.mincore(address, ctypes.c_size_t(flat.size), vector) == 0
                if int((resident & 1).sum()) * page <= cap_bytes:
                    break
                length = min(window, flat.size - next_window)
                memory.madvise(mmap.MADV_DONTNEED, next_window, length)
                os.posix_fadvise(file.fileno(), next_window, length, os.POSIX_FADV_DONTNEED)
                next_window = next_window + window if next_window + window < flat.size else 0
        del rows, flat
    return done / seconds


def compare(
    path: Path, num_rows: int, index: np.ndarray, engine: Engine, repeats: int
) -> dict[str, Any]:
    """Seconds are medians of rounds in which both take turns; the slow map is read once."""
    wanted, rows = np.unique(index).size, torch.from_numpy(index)
    out = torch.empty(index.size, WIDTH, dtype=torch.float16)
    store = DiskRows.open(path, num_rows, WIDTH, torch.float16, engine=engine)
    taken: dict[str, list[float]] = {"ours": [], "map": [], "map_random": []}
    for round_ in range(repeats):
        taken["ours"].append(timed(path, lambda: store.gather(rows, out))[0])
        for name in ("map", "map_random") if round_ == 0 else ("map",):
            random = name == "map_random"
            seconds, found = timed(path, lambda r=random: of_map(path, num_rows, index, random=r))
            taken[name].append(seconds)
            assert np.array_equal(found, out.numpy())
    counted, moved = store.counters.read(), store.io.read()
    store.close()
    assert counted["read_bytes"] == repeats * wanted * WIDTH * 2, "a duplicate was read twice"
    capped = of_capped_map(path, num_rows, index, path.stat().st_size // 4, 4.0)
    medians = {name: float(np.median(seconds)) for name, seconds in taken.items()}
    return {
        "rows": index.size,
        "different_rows": wanted,
        "asked_bytes": counted["read_bytes"] // repeats,
        "disk_bytes": moved["read_bytes"] // repeats,
        "disk_calls": moved["read_calls"] // repeats,
        "direct": store.direct,
        **{f"{name}_s": seconds for name, seconds in medians.items()},
        "map_capped_rows_per_s": capped,
        "times_map_capped": index.size / medians["ours"] / capped,
        **{f"times_{name}": medians[name] / medians["ours"] for name in ("map", "map_random")},
    }


def hot(path: Path, num_rows: int, num_reads: int, engine: Engine) -> dict[str, Any]:
    """Skewed reads: three in four are of a twentieth of the rows, which are in memory."""
    draw = np.random.default_rng(2)
    warm = draw.permutation(num_rows)[: num_rows // 20]
    index = np.where(
        draw.random(num_reads) < 0.75,
        warm[draw.integers(0, warm.size, num_reads)],
        draw.integers(0, num_rows, num_reads),
    )
    out = torch.empty(num_reads, WIDTH, dtype=torch.float16)
    store = DiskRows.open(path, num_rows, WIDTH, torch.float16, engine=engine)
    cache = HotRows(store, torch.from_numpy(warm))
    before = store.io.read()
    seconds, _ = timed(path, lambda: cache.gather(torch.from_numpy(index), out))
    counted, below = cache.counters.read(), store.io.read()
    result = {
        "rows": num_reads,
        "seconds": seconds,
        "hits": counted["hits"],
        "misses": counted["misses"],
        "held_bytes": cache.held_bytes,
        "disk_bytes": below["read_bytes"] - before["read_bytes"],
    }
    cache.close()
    store.close()
    return result


def tables(folder: Path, num_bytes: int, engine: Engine) -> dict[str, Any]:
    """Whole tables of our own, written and read, with checksums and without."""
    num_rows = num_bytes // 256
    count = min(2**19, num_rows)
    values = torch.randn(count, 64)
    result: dict[str, Any] = {"bytes": num_rows * 256}
    with Scratch(folder, engine=engine) as scratch:
        for name, check in (("checked", crc32), ("unchecked", lambda memory: 0)):
            disk.crc32 = check
            table = scratch.table(name, num_rows, 64, torch.float32)
            start = time.perf_counter()
            for first in range(0, num_rows - count + 1, count):
                table.write(slice(first, first + count), values)
            middle = time.perf_counter()
            for first in range(0, num_rows - count + 1, count):
                table.read(slice(first, first + count), values)
            result[f"{name}_write_Bps"] = table.counters.write_bytes / (middle - start)
            result[f"{name}_read_Bps"] = table.counters.read_bytes / (time.perf_counter() - middle)
            table.close()
        disk.crc32 = crc32
        memory = bytes(2**26)
        start = time.perf_counter()
        crc32(memory)
        result["crc_Bps_one_thread"] = len(memory) / (time.perf_counter() - start)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=3.0)
    parser.add_argument("--reads", type=int, nargs="+", default=[10_000, 100_000, 400_000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--folder", type=Path, help="where to work (a disk)")
    parser.add_argument("--out", default="row-reads", help="name of the results file")
    options = parser.parse_args()
    num_rows = int(options.gigabytes * 1e9) // (2 * WIDTH)
    record: dict[str, Any] = {
        **provenance(),
        "file_bytes": num_rows * 2 * WIDTH,
        "row_bytes": 2 * WIDTH,
        "threads": options.threads,
        "read_ahead_bytes": read_ahead(options.folder or Path(tempfile.gettempdir())),
        "rows": [],
    }
    engine = Engine(num_threads=options.threads)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "x.bin"
        make(path, num_rows)
        draw = np.random.default_rng(1)
        tiny = DiskRows.open(path, num_rows, WIDTH, torch.float16, engine=engine)
        few = torch.arange(0, num_rows, num_rows // 20)
        tiny.gather(few, torch.empty(few.numel(), WIDTH, dtype=torch.float16))  # compiles
        tiny.close()
        for reads in options.reads:
            row = compare(
                path, num_rows, draw.integers(0, num_rows, reads), engine, options.repeats
            )
            print(
                f"{reads:>9,} rows ({row['different_rows']:,} different): "
                f"ours {row['rows'] / row['ours_s']:>9,.0f} rows/s "
                f"({row['disk_bytes'] / 1e6:,.0f} MB in {row['disk_calls']:,} reads), "
                f"map held to a quarter {row['map_capped_rows_per_s']:>7,.0f} "
                f"({row['times_map_capped']:.1f}x), "
                f"map {row['rows'] / row['map_s']:>8,.0f} ({row['times_map']:.1f}x), "
                f"with MADV_RANDOM {row['rows'] / row['map_random_s']:>8,.0f} "
                f"({row['times_map_random']:.1f}x)",
                flush=True,
            )
            record["rows"].append(row)
        found = record["hot_rows"] = hot(path, num_rows, options.reads[-1], engine)
        print(
            f"{found['rows']:>9,} skewed rows, {found['held_bytes'] / 1e6:.0f} MB of hot ones in "
            f"memory: {found['rows'] / found['seconds']:,.0f} rows/s, {found['hits']:,} hits, "
            f"{found['misses']:,} misses, {found['disk_bytes'] / 1e6:,.0f} MB read",
            flush=True,
        )
        path.unlink()
        record["tables"] = tables(Path(folder), int(options.gigabytes * 1e9) // 3, engine)
        print(json.dumps(record["tables"]))
    engine.close()
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{options.out}.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()

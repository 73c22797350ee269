"""Presets: the machines of the papers and two of ours, as data, with where each figure comes from.

*Published*: a vendor's specification, times an efficiency that is ours where a comment says so.
*Measured*: on the machine itself (the H200 and the two cores, November 2026). A kernel's share of
the published bandwidth is taken from the H200, where both are known: copies 0.87 of it, rows
gathered at random as ``_GATHER`` says.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tiergnn.errors import ConfigError, unknown
from tiergnn.hardware.machine import QUEUEING, Curve, Device, Link, Machine, Tier

GB = 1e9  # rates are decimal, capacities binary
GIB = 2**30
MIB = 2**20
_CONTEXT = (
    GIB // 2
)  # what a CUDA context, its libraries and the allocator's rounding take: measured
_SYSTEM = 4 * GIB  # of the host: the system, Python and torch in each process
_STREAM_FRAC = 0.87  # measured on the H200: 4,165 of 4,800 GB/s

# Rows that our kernels gather from memory, and from the cache, as a share of the published rate of
# memory, by the bytes of a row. Set so that the H200's measured sums over the Reddit, products and
# uniform shapes (benchmarks/results/kernels_gpu.json) come out: within 15% from rows of 128 B on,
# 25% at 64 B; 16 B is extrapolated by the 32 B that a read takes at least.
_GATHER = ((16, 0.093), (64, 0.373), (128, 0.79), (1024, 0.79))
_CACHED_GATHER = ((16, 0.65), (64, 2.6), (128, 2.9), (1024, 2.9))
# Rows of pinned host memory that a kernel reads in place, as a share of a bulk copy's 55.4 GB/s:
# measured on the H200 with kernels that keep many rows on their way (aggregations of the products
# shape, 16 and 64 columns: 41 and 51 GB/s). One row a program, waiting for it, reaches 3.8 and 15.
_ZERO_COPY = ((16, 0.19), (64, 0.74), (256, 0.92), (4096, 0.92))
_DISK_DUPLEX = 2 / 3  # of each rate, while a disk reads and writes at once (assumed)


def _gpu(
    name: str,
    memory_bytes: int,
    *,
    memory_Bps: float,
    cache_bytes: int,
    flops: dict[str, float],
    launch_s: float = 5e-6,
) -> Device:
    """A device from its data sheet; ``flops`` are its peaks by dtype.

    Half of the peak is taken for large products, and the narrower share of it that an H200 gets.
    """
    return Device(
        name=name,
        kind="cuda",
        memory=Tier(memory_bytes, _CONTEXT),
        cache_bytes=cache_bytes,
        stream_Bps=_STREAM_FRAC * memory_Bps,
        gather_Bps=_scaled(_GATHER, memory_Bps),
        cached_gather_Bps=_scaled(_CACHED_GATHER, memory_Bps),
        matmul_flops={
            dtype: Curve(((4, peak / 32), (16, peak / 10), (64, peak / 4), (256, peak / 2)))
            for dtype, peak in flops.items()
        },
        launch_s=launch_s,
        pass_bytes=128,  # our kernels walk wide rows by cache lines
        graph_launch_s=30e-6,
    )


def _scaled(points: tuple[tuple[int, float], ...], rate: float) -> Curve:
    return Curve(tuple((float(size), frac * rate) for size, frac in points))


def _pcie(copy_Bps: float, *, devices: int = 1, duplex_frac: float = 0.87) -> dict[str, Link]:
    """Links to the host at the bulk rate that PCIe reaches in practice.

    Measured on the H200: 55.4 of PCIe 5.0's 63 GB/s, 48 each way when both are busy; pageable
    memory 6.6 GB/s, whatever the generation: the host copies it first.
    """
    bulk = Link(Bps=Curve.flat(copy_Bps), latency_s=10e-6, devices=devices, duplex_frac=duplex_frac)
    return {
        "h2d": bulk,
        "d2h": bulk,
        "zero_copy": Link(Bps=_scaled(_ZERO_COPY, copy_Bps), latency_s=2e-6, devices=devices),
        "pageable": Link(Bps=Curve.flat(min(6.6 * GB, copy_Bps)), latency_s=20e-6, devices=devices),
    }


def _host(copy_Bps: float, *, devices: int = 1) -> dict[str, Link]:
    """Work of the host's own cores, which all devices share: copies, and rows gathered at about
    half of that."""
    rows = ((64, 0.15), (256, 0.4), (1024, 0.5), (4096, 0.6))
    return {
        "host_copy": Link(Bps=Curve.flat(copy_Bps), devices=devices),
        "host_gather": Link(Bps=_scaled(rows, copy_Bps), devices=devices),
    }


def _peers(copy_Bps: float, *, devices: int = 1) -> dict[str, Link]:
    """Other devices' memory: rows read in place reach less than copies when they are narrow.

    The shares by width are those of zero-copy reads over PCIe (measured); over NVLink they are
    *assumed* alike, for want of a measurement.
    """
    return {
        "peer": Link(Bps=_scaled(_ZERO_COPY, copy_Bps), latency_s=2e-6, devices=devices),
        "peer_copy": Link(Bps=Curve.flat(copy_Bps), latency_s=10e-6, devices=devices),
    }


def _disk(
    read_Bps: float, write_Bps: float, small_reads: float, *, devices: int = 1
) -> dict[str, Link]:
    """Blocks of 4 KiB at ``small_reads`` a second, full rate from 1 MiB on; for all devices."""
    points = ((4096, min(small_reads * 4096, read_Bps)), (MIB, read_Bps))
    written = ((4096, write_Bps / 10), (MIB, write_Bps))
    read = Link(Bps=Curve(points), latency_s=100e-6, devices=devices, duplex_frac=_DISK_DUPLEX)
    return {"disk_read": read, "disk_write": replace(read, Bps=Curve(written), latency_s=50e-6)}


# Published peaks (NVIDIA's data sheets), operations a second. float32 as torch does it by default:
# without TF32.
_A100 = {"float32": 19.5e12, "float64": 9.7e12, "bfloat16": 312e12, "float16": 312e12}
_V100 = {"float32": 15.7e12, "float64": 7.8e12, "float16": 125e12}
_T4 = {"float32": 8.1e12, "float64": 0.25e12, "float16": 65e12}
_A5000 = {"float32": 27.8e12, "float64": 0.43e12, "bfloat16": 111e12, "float16": 111e12}
_H200 = {"float32": 67e12, "float64": 34e12, "bfloat16": 989e12, "float16": 989e12}


def _a100x8(name: str, memory_Bps: float, peers: dict[str, Link]) -> Machine:
    return Machine(
        name=name,
        num_devices=8,
        # Published: 80 GB of HBM2e, 40 MB L2.
        device=_gpu(
            "NVIDIA A100 80GB", 80 * GIB, memory_Bps=memory_Bps, cache_bytes=40 * MIB, flops=_A100
        ),
        host=Tier(512 * GIB, _SYSTEM),  # assumed: the paper gives none
        disk=Tier(2048 * GIB),  # assumed
        # Published: PCIe 4.0 x16 is 31.5 GB/s; 0.8 of it reached; two devices share a switch's
        # uplink (assumed, as in common servers of eight).
        links=_pcie(25 * GB, devices=2)
        | peers
        | _host(100 * GB, devices=8)
        | _disk(3 * GB, 2 * GB, 400e3, devices=8),
        source="published",
    )


def _a100x8_pcie() -> Machine:
    # Published: 1,935 GB/s. Peers' bytes take the same PCIe: 0.7 of its rate (assumed: two hops).
    return _a100x8("a100x8-pcie", 1935 * GB, _peers(18 * GB, devices=2))


def _a100x8_nvswitch() -> Machine:
    # Published: 2,039 GB/s; (LEO) 400 GB/s between any two devices, not said whether each way. 0.8
    # of it is reached (assumed).
    return _a100x8("a100x8-nvswitch", 2039 * GB, _peers(0.8 * 400 * GB))


def _v100(name: str, num_devices: int, links: dict[str, Link]) -> Machine:
    return Machine(
        name=name,
        num_devices=num_devices,
        # Published: 32 GB HBM2 at 900 GB/s, 6 MB L2.
        device=_gpu(
            "NVIDIA V100 32GB", 32 * GIB, memory_Bps=900 * GB, cache_bytes=6 * MIB, flops=_V100
        ),
        host=Tier(256 * GIB, _SYSTEM),  # assumed; a DGX-1 has 512 GB (published)
        disk=Tier(1024 * GIB),  # assumed
        links=links
        | _host(80 * GB, devices=num_devices)
        | _disk(2 * GB, 1 * GB, 200e3, devices=num_devices),
        source="published",
    )


def _v100x4_pcie() -> Machine:
    # Published: PCIe 3.0 x16 is 15.75 GB/s; 0.8 of it reached; two devices a switch (assumed).
    links = _pcie(12.5 * GB, devices=2) | _peers(10 * GB, devices=2)
    return _v100("v100x4-pcie", 4, links)


def _dgx1() -> Machine:
    # Published: a hybrid cube mesh of NVLink 2.0, six links of 25 GB/s each way a device. A device
    # reaches four others directly, over one or two links, and three in two hops: what a device
    # sends to all the others at once is taken as two links' worth, 0.9 of it reached.
    machine = _v100("dgx1", 8, _pcie(12.5 * GB, devices=2) | _peers(0.9 * 50 * GB))
    return replace(machine, host=Tier(512 * GIB, _SYSTEM))


def _t4x8() -> Machine:
    return Machine(
        name="t4x8",
        num_devices=8,
        # Published: 16 GB GDDR6 at 320 GB/s, 4 MB L2, PCIe 3.0 x16. As APT's machine.
        device=_gpu("NVIDIA T4", 16 * GIB, memory_Bps=320 * GB, cache_bytes=4 * MIB, flops=_T4),
        host=Tier(384 * GIB, _SYSTEM),  # assumed: a cloud instance with eight of them
        disk=Tier(900 * GIB),  # assumed
        links=_pcie(12 * GB, devices=2)
        | _peers(8 * GB, devices=2)  # no NVLink: through the host's bridges
        | _host(80 * GB, devices=8)
        | _disk(2 * GB, 1 * GB, 200e3, devices=8),
        source="published",
    )


def _a5000_nvme() -> Machine:
    return Machine(
        name="a5000-nvme",
        num_devices=1,
        # Published: 24 GB GDDR6 at 768 GB/s, 6 MB L2, PCIe 4.0 x16.
        device=_gpu(
            "NVIDIA RTX A5000", 24 * GIB, memory_Bps=768 * GB, cache_bytes=6 * MIB, flops=_A5000
        ),
        host=Tier(128 * GIB, _SYSTEM),  # published (GriNNder)
        disk=Tier(2048 * GIB),  # assumed capacity
        # Published (GriNNder): the disk reads 12 GB/s; writes are taken as fast as reads.
        links=_pcie(25 * GB) | _host(40 * GB) | _disk(12 * GB, 12 * GB, 1e6),
        source="published",
    )


def _h200() -> Machine:
    bulk = _pcie(55.4 * GB, duplex_frac=48 / 55.4)  # measured: 55.4, 48 each way at once
    return Machine(
        name="h200",
        num_devices=1,
        device=replace(
            # Published: 4,800 GB/s, 60 MB L2, peaks. Measured: 139.8 GiB, and the rates below.
            _gpu(
                "NVIDIA H200",
                int(139.8 * GIB),
                memory_Bps=4800 * GB,
                cache_bytes=60 * 10**6,
                flops=_H200,
            ),
            stream_Bps=4165 * GB,  # measured: copies, reads and writes counted
            queueing=QUEUEING,
        ),
        host=Tier(128 * GIB, _SYSTEM),  # measured, as is the disk
        disk=Tier(64 * GIB),
        links=bulk
        | {
            "d2h": replace(bulk["d2h"], Bps=Curve.flat(55.2 * GB)),
            # Measured: 67,000 reads of 4 KiB a second, 64 KiB 1.36 GB/s, 16 MiB 1.4 and 2.2 GB/s.
            "disk_read": Link(
                Bps=Curve(((4096, 67e3 * 4096), (65536, 1.36 * GB), (16 * MIB, 1.4 * GB))),
                latency_s=100e-6,
                duplex_frac=_DISK_DUPLEX,
            ),
            "disk_write": Link(
                Bps=Curve(((65536, 1.1 * GB), (16 * MIB, 2.2 * GB))),
                latency_s=100e-6,
                duplex_frac=_DISK_DUPLEX,
            ),
        }
        | _host(60 * GB),
        source="measured",
        date="2026-11-29",
    )


def _cpu2() -> Machine:
    """Two cores of a virtual machine. Measured, quiet: November 2026."""
    return Machine(
        name="cpu2",
        num_devices=1,
        device=Device(
            name="2 cores of an AMD EPYC",
            kind="cpu",
            memory=Tier(23 * GIB, GIB),
            cache_bytes=14 * MIB,  # what two of many cores get of a 32 MiB cache
            stream_Bps=20 * GB,
            gather_Bps=Curve(((16, 2 * GB), (64, 6 * GB), (256, 16 * GB), (1024, 29 * GB))),
            cached_gather_Bps=Curve(
                ((16, 12 * GB), (64, 40 * GB), (256, 80 * GB), (1024, 95 * GB))
            ),
            matmul_flops={
                "float32": Curve(((4, 6e9), (16, 80e9), (64, 180e9), (256, 210e9))),
                "float64": Curve(((4, 3e9), (16, 20e9), (64, 60e9), (256, 105e9))),
                "bfloat16": Curve(((4, 40e9), (16, 150e9), (64, 400e9), (256, 650e9))),
            },
            launch_s=4e-6,
            near_cache_bytes=MIB,
            near_gather_Bps=Curve(
                ((16, 13 * GB), (64, 50 * GB), (256, 135 * GB), (1024, 130 * GB))
            ),
            elementwise_Bps=Curve(((MIB, 120 * GB), (8 * MIB, 30 * GB), (64 * MIB, 20 * GB))),
            graph_launch_s=40e-6,
            fresh_Bps=2.9 * GB,
        ),
        host=Tier(23 * GIB, GIB),
        disk=Tier(60 * GIB),
        links={
            # Measured: 0.5 to 1.6 GB/s from 128 KiB on, 30,000 reads of 4 KiB a second.
            "disk_read": Link(
                Bps=Curve(((4096, 0.12 * GB), (131072, 0.8 * GB), (8 * MIB, 1.2 * GB))),
                latency_s=100e-6,
            ),
            "disk_write": Link(
                Bps=Curve(((131072, 0.5 * GB), (8 * MIB, 1.0 * GB))), latency_s=100e-6
            ),
            "h2d": Link(Bps=Curve.flat(10 * GB)),  # copies of its own memory
            "d2h": Link(Bps=Curve.flat(10 * GB)),
            # Two processes over gloo: 1.0 to 1.4 GB/s.
            "peer_copy": Link(Bps=Curve.flat(1.2 * GB), latency_s=50e-6),
        }
        | _host(10 * GB),
        source="measured",
        date="2026-11-29",
    )


PRESETS = {
    "a100x8-pcie": _a100x8_pcie,
    "a100x8-nvswitch": _a100x8_nvswitch,
    "v100x4-pcie": _v100x4_pcie,
    "t4x8": _t4x8,
    "dgx1": _dgx1,
    "a5000-nvme": _a5000_nvme,
    "h200": _h200,
    "cpu2": _cpu2,
}


def preset(name: str) -> Machine:
    """Raises ConfigError for an unknown name."""
    if name not in PRESETS:
        raise unknown("machine", name, PRESETS)
    return PRESETS[name]()


def resolve(text: str | Path) -> Machine:
    """A preset by its name, or a machine from a JSON file.

    Raises ConfigError for what is neither, StoreError for a file that cannot be read.
    """
    name = str(text)
    if name in PRESETS:
        return preset(name)
    path = Path(text)
    if path.suffix == ".json" or path.exists():
        return Machine.load(path)
    error = unknown("machine", name, PRESETS)
    raise ConfigError(error.problem, hint=f"{error.hint}, or the path of a machine's JSON file")

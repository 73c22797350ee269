"""Measure: this host as a Machine, in under 20 s, and remembered for the next time.

Nothing is larger than a quarter of the free memory. On a host with CUDA devices the first one is
measured, all being taken as alike; the host's own cores are measured for what the host lane does.
"""

from __future__ import annotations

import datetime
import logging
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path

import numba
import numpy as np
import torch
import torch.distributed as dist

from tiergnn import frozen
from tiergnn.errors import ConfigError
from tiergnn.hardware.caches import read_caches
from tiergnn.hardware.capacities import cuda_tier, disk_tier, free_host_bytes, host_tier
from tiergnn.hardware.clock import Clock
from tiergnn.hardware.disk_blocks import measure_disk
from tiergnn.hardware.effort import CPU, CUDA, Effort
from tiergnn.hardware.machine import OF_HOST, QUEUEING, Device, Link, Machine, Tier, in_order_s
from tiergnn.hardware.measure_attention import measure_attention
from tiergnn.hardware.measure_compute import (
    measure_adds,
    measure_draws,
    measure_elementwise,
    measure_fresh,
    measure_launch,
    measure_matmul,
    measure_rowwise,
    measure_stream,
    measure_totals,
    memory_kept,
)
from tiergnn.hardware.measure_links import device_links, host_links, peer_links
from tiergnn.hardware.measure_rows import measure_gathers
from tiergnn.hardware.readings import read_cpu, read_package
from tiergnn.hardware.remembered import recall, remember
from tiergnn.version import __version__

_log = logging.getLogger("tiergnn")
_REPEAT_S = 14.0  # for so long figures are measured in several rounds
_BUSY = 1.5  # processes that want each thread
_CUDA_PASS_BYTES = 128  # our CUDA kernels walk wide rows one cache line of columns at a time


def measure(
    folder: str | Path = ".",
    *,
    refresh: bool = False,
    device: str | None = None,
    effort: Effort | None = None,
) -> Machine:
    """This host: remembered rates, unless ``refresh``, and the capacities of now.

    folder: where graphs and runs will be: its disk is timed. ``device``: cpu or cuda (None: cuda
    where there is one). ``effort``: how thoroughly (None: as the kind of device wants it).
    Where torch.distributed is initialised every rank must call it, with the same arguments: the
    first measures its host, all together their collectives, and all get the same machine.
    Warns, once, where the result cannot be remembered. Raises ConfigError for a device that is not
    there. Blocks for up to 20 s.
    """
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if kind not in ("cpu", "cuda") or (kind == "cuda" and not torch.cuda.is_available()):
        raise ConfigError(f"no device {kind!r} to measure", hint="cpu, or cuda where torch has it")
    effort = effort or (CUDA if kind == "cuda" else CPU)
    if not (dist.is_available() and dist.is_initialized()):
        return _alone(folder, kind, effort, refresh)
    return _together(folder, kind, effort, refresh)


def known(folder: str | Path = ".", device: str | None = None) -> Machine | None:
    """This host as it was measured before, with the capacities of now; None where it never was."""
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    machine = recall(fingerprint(folder, kind, CUDA if kind == "cuda" else CPU))
    return None if machine is None else _with_capacities(machine, folder)


def _alone(folder: str | Path, kind: str, effort: Effort, refresh: bool) -> Machine:
    marks = fingerprint(folder, kind, effort)
    machine = None if refresh else recall(marks)
    if machine is None:
        machine = _measured(folder, kind, effort)
        remember(marks, machine)
    return _with_capacities(machine, folder)


def _together(folder: str | Path, kind: str, effort: Effort, refresh: bool) -> Machine:
    """The first rank's machine and the collectives of all, which are not remembered."""
    where = (
        torch.device(kind, torch.cuda.current_device()) if kind == "cuda" else torch.device(kind)
    )
    first = dist.get_rank() == 0
    machine = _alone(folder, kind, effort, refresh) if first else None
    machine = _broadcast(machine, where)
    hosts = _same_names(socket.gethostname(), where)
    clock = Clock(device=where, budget_s=effort.budget_s)
    links = peer_links(clock, effort, num_hosts=hosts)
    return replace(
        machine,
        num_hosts=hosts,
        num_devices=max(1, dist.get_world_size() // hosts),
        links=dict(machine.links) | links,
    )


def _broadcast(machine: Machine | None, where: torch.device) -> Machine:
    """The first rank's machine on all ranks, as JSON."""
    text = frozen.dumps(machine) if machine is not None else b""
    length = torch.tensor(len(text), device=where)
    dist.broadcast(length, 0)
    data = torch.zeros(int(length), dtype=torch.uint8)
    if machine is not None:
        data = torch.from_numpy(np.frombuffer(text, np.uint8).copy())
    data = data.to(where)
    dist.broadcast(data, 0)
    return frozen.loads(Machine, bytes(data.cpu().numpy().tobytes()))


def _same_names(name: str, where: torch.device) -> int:
    """How many different hosts the ranks are on."""
    own = np.zeros(64, np.uint8)
    text = name.encode()[:64]
    own[: len(text)] = np.frombuffer(text, np.uint8)
    names = [torch.zeros(64, dtype=torch.uint8, device=where) for _ in range(dist.get_world_size())]
    dist.all_gather(names, torch.from_numpy(own).to(where))
    return len({bytes(n.cpu().numpy().tobytes()) for n in names})


def _measured(folder: str | Path, kind: str, effort: Effort) -> Machine:
    host_effort = (effort if kind == "cpu" else CPU).within(free_host_bytes())
    _warn_of_others(read_cpu().threads)
    until_s = time.perf_counter() + _REPEAT_S
    cpu_clock = Clock(
        device=torch.device("cpu"),
        budget_s=host_effort.budget_s,
        until_s=until_s,
        processor_time=host_effort.processor_time,
    )
    links = host_links(cpu_clock, host_effort)
    if kind == "cuda":
        index = torch.cuda.current_device()
        device_effort = effort.within(torch.cuda.mem_get_info(index)[0])
        clock = Clock(device=torch.device("cuda", index), budget_s=effort.budget_s, until_s=until_s)
        device = _cuda_device(clock, device_effort)
        # Pinned memory is the host's: what is copied is within both.
        pinned = replace(
            device_effort, copy_bytes=min(device_effort.copy_bytes, host_effort.copy_bytes)
        )
        links |= device_links(clock, pinned)
        num_devices = torch.cuda.device_count()
        torch.cuda.empty_cache()
    else:
        device = _cpu_device(cpu_clock, host_effort)
        # A CPU's device memory is the host's: a copy between the two is a copy.
        links |= {"h2d": links["host_copy"], "d2h": links["host_copy"]}
        num_devices = 1
    disk = measure_disk(folder)
    if isinstance(disk, str):
        _log.warning("the disk under %s is left out: %s", folder, disk)
    else:
        links["disk_read"] = Link(Bps=disk.read, latency_s=disk.read_latency_s)
        links["disk_write"] = Link(Bps=disk.write, latency_s=disk.read_latency_s)
    for name in OF_HOST:
        if name in links:
            links[name] = replace(links[name], devices=num_devices)
    return Machine(
        name=f"{num_devices} x {device.name}" if kind == "cuda" else device.name,
        num_devices=num_devices,
        device=device,
        host=host_tier(),
        disk=None if isinstance(disk, str) else disk_tier(folder),
        links=links,
        source="measured",
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
    )


def _warn_of_others(threads: int) -> None:
    try:
        load = os.getloadavg()[0]
    except OSError:  # a system that does not say
        return
    if load > _BUSY * threads:
        _log.warning(
            "others keep this machine busy (load %.1f on %d threads): rates may come out low; "
            "measure again when it is quiet (tiergnn machine --refresh)",
            load,
            threads,
        )


def _cpu_device(clock: Clock, effort: Effort) -> Device:
    caches = read_caches()
    with memory_kept():
        return _device(
            clock,
            effort,
            name=f"{torch.get_num_threads()} threads of {read_cpu().model}",
            memory=host_tier(),
            near_bytes=caches.near_bytes,
            cache_bytes=caches.last_bytes,
            pass_bytes=0,
        )


def _cuda_device(clock: Clock, effort: Effort) -> Device:
    found = torch.cuda.get_device_properties(clock.device)
    return _device(
        clock,
        effort,
        name=found.name,
        memory=_cuda_memory(clock.device),
        near_bytes=0,
        cache_bytes=found.L2_cache_size,
        pass_bytes=_CUDA_PASS_BYTES,
    )


def _device(
    clock: Clock,
    effort: Effort,
    *,
    name: str,
    memory: Tier,
    near_bytes: int,
    cache_bytes: int,
    pass_bytes: int,
) -> Device:
    """All of it several times, so that what disturbs one time is seen in the others; of a device
    that takes long, once."""
    found = _rates(clock, effort, name, memory, near_bytes, cache_bytes, pass_bytes)
    for _ in range(1, clock.rounds):
        if not clock.late:
            found = _rates(clock, effort, name, memory, near_bytes, cache_bytes, pass_bytes)
    return found


def _rates(
    clock: Clock,
    effort: Effort,
    name: str,
    memory: Tier,
    near_bytes: int,
    cache_bytes: int,
    pass_bytes: int,
) -> Device:
    """What the clock has found so far, and now."""
    launch = measure_launch(clock, effort)
    stream_Bps, elementwise = measure_stream(clock, effort), measure_elementwise(clock, effort)
    cached_Bps = max(rate for _, rate in elementwise.points)
    call_s = launch.graph_s if launch.replayed_s is None else launch.replayed_s
    rows = measure_gathers(
        clock,
        effort,
        near_bytes=near_bytes,
        cache_bytes=cache_bytes,
        other_s=lambda num_bytes: (
            call_s + in_order_s(num_bytes, cache_bytes, cached_Bps, stream_Bps)
        ),
        pass_bytes=pass_bytes,
    )
    # A CPU computes and then moves, as costs have it; CUDA does both at once.
    bytes_s = (lambda n: 0.0) if clock.is_cuda else (lambda n: n / elementwise.at(n))
    products = measure_matmul(clock, effort, bytes_s)
    attention = measure_attention(clock, effort, cache_bytes)
    return Device(
        name=name,
        kind=clock.device.type,
        memory=memory,
        cache_bytes=rows.cache_bytes,
        stream_Bps=stream_Bps,
        gather_Bps=rows.memory,
        cached_gather_Bps=rows.cached,
        matmul_flops=products.of_rows,
        walks_per_s=rows.walks_per_s,
        launch_s=launch.plain_s,
        near_cache_bytes=rows.near_bytes,
        near_gather_Bps=rows.near,
        pass_bytes=pass_bytes,
        elementwise_Bps=elementwise,
        graph_launch_s=launch.graph_s,
        replayed_launch_s=launch.replayed_s,
        cold_launch_s=launch.cold_plain_s,
        cold_graph_launch_s=launch.cold_graph_s,
        fresh_Bps=measure_fresh(clock, effort),
        draws_per_s=measure_draws(clock, effort),
        attends_per_s=attention.attends,
        drops_per_s=attention.drops,
        softmaxes_per_s=attention.softmaxes,
        attend_reads=attention.reads_factor,
        totals_Bps=measure_totals(clock, effort),
        adds_Bps=measure_adds(clock, effort),
        outer_flops=products.outer,
        rowwise_Bps=measure_rowwise(clock, effort, launch.among_rows_s),
        queueing=QUEUEING if clock.is_cuda else None,
    )


def _cuda_memory(device: torch.device) -> Tier:
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    return cuda_tier(total_bytes, free_bytes, torch.cuda.memory_reserved(device))


def _with_capacities(machine: Machine, folder: str | Path) -> Machine:
    """What is free now, whenever the rates were measured."""
    host = host_tier()
    memory = host
    if machine.device.kind == "cuda":
        memory = _cuda_memory(torch.device("cuda", torch.cuda.current_device()))
    return replace(
        machine,
        device=replace(machine.device, memory=memory),
        host=host,
        disk=None if machine.disk is None else disk_tier(folder),
    )


def fingerprint(folder: str | Path, kind: str, effort: Effort) -> Mapping[str, str]:
    """All that a measurement depends on."""
    marks = {
        "tiergnn": __version__,
        "torch": torch.__version__,
        "numba": numba.__version__,
        "cpu": read_cpu().model,
        "threads": str(torch.get_num_threads()),
        "waiting": os.environ.get("OMP_WAIT_POLICY", ""),
        "huge pages": os.environ.get("THP_MEM_ALLOC_ENABLE", ""),
        "host": socket.gethostname(),
        "disk": str(_mount(Path(folder))),
        "effort": repr(effort),
        "figures": " ".join(field.name for field in fields(Device)),
        "kind": kind,
    }
    if kind == "cuda":
        count = torch.cuda.device_count()
        marks["devices"] = ", ".join(torch.cuda.get_device_name(i) for i in range(count))
        marks["triton"] = str(read_package("triton").version)
        marks["cuda"] = str(torch.version.cuda)
    return marks


def _mount(folder: Path) -> Path:
    folder = folder.resolve()
    while not os.path.ismount(folder) and folder != folder.parent:
        folder = folder.parent
    return folder

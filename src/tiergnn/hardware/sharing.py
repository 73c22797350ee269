"""Sharing: a host whose ranks outnumber its devices, as a machine with a device for each. Pure.

Ranks on a CPU share its cores, its caches and its memory; ranks on one GPU share that. All of them
compute at once, so each gets its part of every rate.
"""

from __future__ import annotations

from dataclasses import replace

from tiergnn.hardware.capacities import PROCESS_BYTES
from tiergnn.hardware.machine import Curve, Device, Link, Machine, Tier

_MEETING_S = 1e-4  # until ranks of one host have all seen that they have all come
_CORES = ("host_copy", "host_gather")
_NETWORK = Link(Bps=Curve.flat(1.25e9), latency_s=5e-5)  # 10 Gbit/s


def shared(machine: Machine, num_ranks: int, *, num_hosts: int = 1) -> tuple[Machine, list[str]]:
    """``num_ranks`` ranks over hosts like ``machine``, one a device, and what was assumed.

    A machine that has the devices, and the links between them, stays as it is.
    """
    each = -(-num_ranks // num_hosts)
    sharers = -(-each // machine.num_devices)
    notes = []
    device, links = machine.device, dict(machine.links)
    if sharers > 1:
        device = _share(device, sharers)
        what = device.name if device.kind == "cuda" else "this machine's processors"
        notes.append(f"{sharers} ranks share {what}")
    if each > 1:
        # What the host's own cores move is shared by all its ranks, a wire by those of a device.
        links = {
            name: replace(link, devices=max(link.devices, each if name in _CORES else sharers))
            for name, link in links.items()
        }
        if "peer" not in links and "peer_copy" not in links:
            links |= _peers(device, links, sharers, notes)
    if num_hosts > 1 and "network" not in links:
        links["network"] = _NETWORK
        notes.append("the network was not measured: 10 Gbit/s are assumed")
    found = replace(
        machine,
        name=f"{num_ranks} ranks on {machine.name}" if sharers > 1 else machine.name,
        num_devices=each if num_hosts > 1 else max(each, machine.num_devices),
        num_hosts=num_hosts,
        device=device,
        host=_less(machine.host, PROCESS_BYTES * (each - 1)),
        links=links,
    )
    return found, notes


def _share(device: Device, sharers: int) -> Device:
    memory = device.memory
    if device.kind == "cpu":
        memory = _less(memory, PROCESS_BYTES * (sharers - 1))
    return replace(
        device,
        memory=Tier(memory.capacity_bytes // sharers, memory.reserved_bytes // sharers),
        # A core's own cache stays its own; the last one is everybody's.
        cache_bytes=max(device.near_cache_bytes, device.cache_bytes // sharers),
        stream_Bps=device.stream_Bps / sharers,
        gather_Bps=_slower(device.gather_Bps, sharers),
        cached_gather_Bps=_slower(device.cached_gather_Bps, sharers),
        near_gather_Bps=None
        if device.near_gather_Bps is None
        else _slower(device.near_gather_Bps, sharers),
        elementwise_Bps=None
        if device.elementwise_Bps is None
        else _slower(device.elementwise_Bps, sharers),
        fresh_Bps=None if device.fresh_Bps is None else device.fresh_Bps / sharers,
        draws_per_s=None if device.draws_per_s is None else device.draws_per_s / sharers,
        rowwise_Bps=None if device.rowwise_Bps is None else _slower(device.rowwise_Bps, sharers),
        attends_per_s=None
        if device.attends_per_s is None
        else _slower(device.attends_per_s, sharers),
        matmul_flops={name: _slower(curve, sharers) for name, curve in device.matmul_flops.items()},
        outer_flops={name: _slower(curve, sharers) for name, curve in device.outer_flops.items()},
    )


def _peers(
    device: Device, links: dict[str, Link], sharers: int, notes: list[str]
) -> dict[str, Link]:
    in_place = Link(Bps=device.gather_Bps)
    if device.kind == "cpu":
        # Into an outbox and out of it.
        copy = Link(Bps=Curve.flat(links["host_copy"].Bps.at(1e9) / 2), devices=sharers)
    elif sharers > 1:
        copy = Link(Bps=Curve.flat(device.stream_Bps / 2))
    else:
        copy = links["h2d"]
        in_place = links.get("zero_copy", copy)
        notes.append("links between GPUs were not measured: the host's are assumed")
    return {"peer": in_place, "peer_copy": replace(copy, latency_s=_MEETING_S)}


def _slower(curve: Curve, sharers: int) -> Curve:
    return Curve(tuple((size, rate / sharers) for size, rate in curve.points))


def _less(tier: Tier, num_bytes: int) -> Tier:
    return replace(tier, reserved_bytes=min(tier.capacity_bytes, tier.reserved_bytes + num_bytes))

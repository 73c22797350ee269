"""Which back end the ranks of a job use: what was asked for, or the best that works here."""

from __future__ import annotations

import os
from dataclasses import dataclass

from tiergnn.errors import ConfigError, StoreError, unknown
from tiergnn.hardware.finding import Finding
from tiergnn.transport.segment import Segment, map_segment

NAMES = ("virtual", "shared", "gloo", "nccl", "ipc", "symmetric")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Where the ranks are, and what works there. ``num_devices``: GPUs of each host."""

    num_ranks: int
    one_host: bool = True
    on_gpu: bool = False
    num_devices: int = 0
    peer_access: bool = False  # between all GPUs of a host
    shared_memory: bool = True
    nccl: bool = False
    gloo: bool = True

    @property
    def alone(self) -> bool:
        """Whether each rank has a GPU of its own. Across hosts torchrun sees to that."""
        return self.num_devices >= self.num_ranks or not self.one_host


@dataclass(frozen=True, slots=True)
class Choice:
    name: str
    why: str


def pick(setting: Setting, asked: str | None = None) -> Choice:
    """The back end and, in one line, why. Raises ConfigError where what is asked for cannot be."""
    if asked is None:
        return _best(setting)
    if asked not in NAMES:
        raise unknown("transport", asked, NAMES)
    problem = _problem(asked, setting)
    if problem:
        best = _best(setting)
        raise ConfigError(
            f"transport {asked}: {problem}", hint=f"transport {best.name}: {best.why}"
        )
    return Choice(asked, "asked for")


def _best(setting: Setting) -> Choice:
    if setting.num_ranks == 1 and setting.one_host:
        return Choice("virtual", "one rank")
    if not setting.on_gpu:
        return _on_cpu(setting)
    order = ("symmetric", "ipc", "nccl") if setting.alone else ("ipc", "symmetric")
    reasons = {
        "symmetric": "GPUs of one host that read each other's memory",
        "ipc": "GPUs of one host that read each other's memory"
        if setting.alone
        else "several ranks share a GPU",
        "nccl": "GPUs that cannot read each other's memory"
        if setting.one_host
        else "GPUs of several hosts",
    }
    for name in order:
        if not _problem(name, setting):
            return Choice(name, reasons[name])
    return Choice("gloo", f"rows go through host memory: {_problem(order[-1], setting)}")


def _on_cpu(setting: Setting) -> Choice:
    problem = _problem("shared", setting)
    if problem:
        return Choice("gloo", problem)
    return Choice("shared", "CPU ranks of one host")


def _problem(name: str, setting: Setting) -> str:
    """Why a back end cannot be had; empty where it can."""
    in_place = name in ("shared", "ipc", "symmetric", "virtual")
    checks = (
        (in_place and not setting.one_host, "the ranks are on several hosts"),
        (in_place and not setting.shared_memory, "processes here cannot open each other's memory"),
        (name in ("nccl", "ipc", "symmetric") and not setting.on_gpu, "the ranks are on CPUs"),
        (name == "nccl" and not setting.nccl, "this torch has no NCCL"),
        (name == "nccl" and not setting.alone, "NCCL wants a GPU for each rank"),
        (
            name in ("ipc", "symmetric") and setting.num_devices > 1 and not setting.peer_access,
            "the GPUs cannot read each other's memory",
        ),
        (name in ("gloo", "nccl") and not setting.gloo, "this torch has no gloo"),
    )
    return next((problem for wrong, problem in checks if wrong), "")


def probe(num_ranks: int, *, one_host: bool = True, on_gpu: bool = False) -> Setting:
    """What works for ranks like this process."""
    import torch
    import torch.distributed as dist

    devices = torch.cuda.device_count() if on_gpu else 0
    pairs = [(a, b) for a in range(devices) for b in range(devices) if a != b]
    available = dist.is_available()
    return Setting(
        num_ranks=num_ranks,
        one_host=one_host,
        on_gpu=on_gpu,
        num_devices=devices,
        peer_access=all(torch.cuda.can_device_access_peer(a, b) for a, b in pairs),
        shared_memory=_memory_opens(),
        nccl=available and dist.is_nccl_available(),
        gloo=available and dist.is_gloo_available(),
    )


def findings() -> tuple[Finding, ...]:
    """How ranks of this host would reach each other, for ``doctor``."""
    import torch

    settings = [("on processors", probe(2))]
    if torch.cuda.is_available():
        num_ranks = max(2, torch.cuda.device_count())
        settings.append(("on GPUs", probe(num_ranks, on_gpu=True)))
    found = []
    for name, setting in settings:
        best = _best(setting)
        works = [other for other in NAMES[1:] if not _problem(other, setting)]
        others = ", ".join(other for other in works if other != best.name)
        value = f"{best.name}: {best.why}" + (f"; also {others}" if others else "")
        data = (("transport", best.name), ("works", " ".join(works)))
        found.append(Finding(group="ranks", name=name, value=value, data=data))
    return tuple(found)


def _memory_opens() -> bool:
    """Whether a segment can be opened by its address."""
    if not hasattr(os, "memfd_create"):
        return False
    try:
        segment = Segment(1)
        map_segment(segment.address)
    except (StoreError, OSError):
        return False
    segment.close()
    return True

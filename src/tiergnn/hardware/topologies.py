"""Topologies known by name: how the machines of the papers are wired, and where figures are from.

Rates are published ones each way; where less is reached, it is 0.8 of them for PCIe, as in
``presets``, and 0.9 for NVLink (assumed).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from tiergnn.errors import ConfigError, unknown
from tiergnn.hardware.topology import Topology, Wire

GB = 1e9
_NVLINK2 = 0.9 * 25 * GB  # one link of NVLink 2.0, published
_NVLINK3_DEVICE = 0.9 * 300 * GB  # twelve links of NVLink 3.0, published
_PCIE3 = 12.5 * GB  # 0.8 of 15.75, x16
_PCIE4 = 25 * GB  # 0.8 of 31.5, x16
_QPI = 2 * 19.2 * GB  # two links of 9.6 GT/s: all that is published, which favours peer-to-peer
_UPI = 3 * 20.8 * GB  # three links of 10.4 GT/s, likewise
_EDR = 12.5 * GB  # InfiniBand EDR, 100 Gb/s

# Links between V100s of a DGX-1: 1 or 2 of NVLink 2.0; each device has six.
_CUBE_MESH = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2,
    (2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip


def _nvlinks(devices: list[int], prefix: str = "gpu", first: int = 0) -> list[Wire]:
    return [
        Wire(
            a=f"{prefix}{first + a}",
            b=f"{prefix}{first + b}",
            kind=f"nvlink{links}",
            Bps=links * _NVLINK2,
        )
        for (a, b), links in _CUBE_MESH.items()
        if a in devices and b in devices
    ]


def _pcie(rate: float, sockets: Mapping[int, list[int]]) -> list[Wire]:
    """Two devices a switch, and the switches of a socket's devices."""
    wires = []
    for socket, devices in sockets.items():
        for device in devices:
            wires.append(Wire(a=f"gpu{device}", b=f"switch{device // 2}", kind="pcie", Bps=rate))
            if device % 2:
                wires.append(
                    Wire(a=f"switch{device // 2}", b=f"cpu{socket}", kind="pcie", Bps=rate)
                )
    return wires


def _names(count: int) -> tuple[str, ...]:
    return tuple(f"gpu{i}" for i in range(count))


_SOCKETS = {0: [0, 1, 2, 3], 1: [4, 5, 6, 7]}


def _dgx1() -> Topology:
    return Topology(
        name="dgx1",
        devices=_names(8),
        wires=(
            *_nvlinks(list(range(8))),
            *_pcie(_PCIE3, _SOCKETS),
            Wire(a="cpu0", b="cpu1", kind="qpi", Bps=_QPI),
        ),
        source="NVIDIA DGX-1 (V100) white paper: hybrid cube mesh, NVLink 2.0 of 25 GB/s a link "
        "each way, 0.9 reached; PCIe 3.0 x16, two devices a switch, 0.8 reached; two QPI of "
        "19.2 GB/s each way",
    )


def _pcie8() -> Topology:
    return Topology(
        name="pcie8",
        devices=_names(8),
        wires=(*_pcie(_PCIE4, _SOCKETS), Wire(a="cpu0", b="cpu1", kind="upi", Bps=_UPI)),
        source="PCIe 4.0 x16 of 31.5 GB/s, 0.8 reached, two devices a switch (assumed, as in "
        "common servers of eight); three UPI of 20.8 GB/s between two sockets",
    )


def _nvswitch8() -> Topology:
    return Topology(
        name="nvswitch8",
        devices=_names(8),
        wires=tuple(
            Wire(a=name, b="nvswitch", kind="nvlink12", Bps=_NVLINK3_DEVICE) for name in _names(8)
        ),
        source="NVIDIA DGX A100: twelve NVLink 3.0 a device, 300 GB/s each way, 0.9 reached, all "
        "into switches that block nothing",
    )


def _two_hosts() -> Topology:
    wires = []
    for host in (0, 1):
        first = 4 * host
        wires += _nvlinks([0, 1, 2, 3], first=first)
        wires += _pcie(_PCIE3, {host: list(range(first, first + 4))})
        wires.append(Wire(a=f"cpu{host}", b=f"nic{host}", kind="pcie", Bps=_PCIE3))
    wires.append(Wire(a="nic0", b="nic1", kind="ib", Bps=_EDR))
    return Topology(
        name="2x4-nic",
        devices=_names(8),
        wires=tuple(wires),
        source="two hosts of four V100, each wired as one half of a DGX-1 (NVLink 2.0, PCIe 3.0), "
        "one InfiniBand EDR card of 12.5 GB/s a host that its four devices share",
    )


TOPOLOGIES: Mapping[str, Callable[[], Topology]] = MappingProxyType(
    {"dgx1": _dgx1, "pcie8": _pcie8, "nvswitch8": _nvswitch8, "2x4-nic": _two_hosts}
)


def topology(name: str | Path) -> Topology:
    """A topology by its name, or from a JSON file.

    Raises ConfigError for what is neither, StoreError for a file that cannot be read.
    """
    text = str(name)
    if text in TOPOLOGIES:
        return TOPOLOGIES[text]()
    if text.endswith(".json") or Path(text).exists():
        return Topology.load(text)
    error = unknown("topology", text, TOPOLOGIES)
    raise ConfigError(error.problem, hint=f"{error.hint}, or the path of a topology's JSON file")

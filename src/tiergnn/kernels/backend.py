"""Which implementation of an op runs: by device, unless the caller or TIERGNN_BACKEND decides."""

from __future__ import annotations

import importlib
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import ModuleType

import torch

from tiergnn.errors import ConfigError, unknown
from tiergnn.threads import open_after_fork

BACKENDS = ("reference", "cpu", "gpu")
_log = logging.getLogger("tiergnn")
_chosen: str | None = None  # of the whole process: backward runs on threads of torch's own
_open: dict[object, str] = {}  # blocks of ``use``, the latest last
_lock = threading.Lock()
_here = threading.local()  # .name: the choice of a thread for itself
open_after_fork(_lock)
_announced: set[tuple[str, str]] = set()


@contextmanager
def use(name: str) -> Iterator[None]:
    """Run every op inside the block by the backend ``name``: reference, cpu or gpu.

    The choice is the process's, for all threads: that of the latest block that is open. The
    backward of an op runs by the backend of its forward, wherever it is called. Raises ConfigError
    for an unknown name.
    """
    if name not in BACKENDS:
        raise unknown("backend", name, BACKENDS)
    own = object()
    _settle(own, name)
    try:
        yield
    finally:
        _settle(own, None)


@contextmanager
def use_here(name: str) -> Iterator[None]:
    """``use`` for ops that this thread calls, whatever the process has chosen: others go on."""
    before = getattr(_here, "name", None)
    _here.name = name
    try:
        yield
    finally:
        _here.name = before


def _settle(block: object, name: str | None) -> None:
    """Open a block, or close it (None); blocks of several threads may end in any order."""
    global _chosen
    with _lock:
        if name is None:
            del _open[block]
        else:
            _open[block] = name
        _chosen = next(reversed(_open.values()), None)


def choose(device: torch.device) -> str:
    """The backend for tensors on ``device``; each choice is logged once a process.

    ``use_here`` wins over ``use``, that over the environment variable TIERGNN_BACKEND, and that
    over the device: the CPU has Numba kernels, CUDA has Triton kernels, any other device runs
    plain torch. Raises ConfigError for a backend that is unknown or cannot read the device's
    memory.
    """
    # A compiled function is every thread's.
    own = None if torch.compiler.is_compiling() else getattr(_here, "name", None)
    name = own or _chosen
    reason = "as the caller asked"
    if name is None:
        name = os.environ.get("TIERGNN_BACKEND") or None
        reason = "as TIERGNN_BACKEND asks"
        if name is not None and name not in BACKENDS:
            raise unknown("backend in TIERGNN_BACKEND", name, BACKENDS)
    if name is None:
        name, reason = _by_device(device.type)
    if name == "cpu" and device.type != "cpu":
        raise ConfigError(
            f"backend 'cpu' reads host memory, the tensors are on {device}",
            hint="'gpu' or 'reference', or move the model and the graph to the CPU",
        )
    if name == "gpu" and device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        raise ConfigError(
            f"backend 'gpu' reads the memory of a GPU, the tensors are on {device}",
            hint="'cpu' or 'reference', or TRITON_INTERPRET=1 from the start, for tests",
        )
    if not torch.compiler.is_compiling() and (name, device.type) not in _announced:
        _announced.add((name, device.type))
        slow = name == "reference" and reason.startswith("since")
        _log.log(
            logging.WARNING if slow else logging.INFO,
            "kernels on %s run by the %s backend, %s",
            device.type,
            name,
            reason,
        )
    return name


def _by_device(kind: str) -> tuple[str, str]:
    if kind == "cpu":
        return "cpu", "which suits the device"
    if kind == "cuda":
        if find_spec("triton") is not None:
            return "gpu", "which suits the device"
        return "reference", "since triton is not installed: slow; pip install 'tiergnn[gpu]'"
    return "reference", "since no faster one knows this device"


def load(op: str, name: str) -> ModuleType:
    """The module of one op for one backend, imported when first needed."""
    return importlib.import_module(f"tiergnn.kernels.{op}.{name}")

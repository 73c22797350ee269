"""What an allocator gave and took back while something ran, in order: every byte of torch's memory.

The autograd profiler reports each allocation, those inside an operation too; NumPy's are not seen,
so kernels take their work arrays from torch.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd.profiler import record_function

from tiergnn.errors import ConfigError

_MARK = "tiergnn mark "


class Allocations:
    """Bytes given (above 0) and taken back (below 0), by the mark that they followed.

    ``by_mark`` is filled when the recording ends.
    """

    def __init__(self) -> None:
        self.by_mark: dict[str, list[int]] = {}

    def mark(self, name: str) -> None:
        """What follows is listed under ``name``, each of which is given once."""
        with record_function(_MARK + name):
            pass


@contextmanager
def recording(device: torch.device) -> Iterator[Allocations]:
    """Record the allocations of this thread (and of its backward passes) on ``device``: see
    ``one_thread``.

    One recording at a time in a process. Raises ConfigError where a profiler runs already.
    """
    found = Allocations()
    with _one, _no_garbage():
        _start()
        try:
            yield found
        finally:
            lists = _profiler()._disable_profiler_legacy()
    marks = found.by_mark
    current: list[int] = []
    for event in _in_order(lists):
        if event.kind() == "push" and event.name().startswith(_MARK):
            current = marks.setdefault(event.name().removeprefix(_MARK), [])
        elif event.kind() == "memory_alloc":
            cuda = device.type == "cuda"
            num_bytes = event.cuda_memory_usage() if cuda else event.cpu_memory_usage()
            if num_bytes:
                current.append(num_bytes)


_one = threading.RLock()


@contextmanager
def one_thread() -> Iterator[None]:
    """Inside, torch and our kernels use this thread only, whose memory alone is seen."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _no_garbage() -> Iterator[None]:
    """Inside, memory is given back where the code does so, and not whenever garbage is found.

    What was left lately, by an earlier recording as a rule, is given back before. Objects that are
    old by now are let be: to look through all of torch's takes longer than what is recorded.
    """
    collecting = gc.isenabled()
    gc.collect(1)
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _profiler() -> Any:
    """Where torch keeps the profiler that lists every allocation; its stubs leave it out."""
    return torch.autograd


def _start() -> None:
    from torch._C._profiler import _ExperimentalConfig

    profiler = _profiler()
    config = profiler.ProfilerConfig(profiler.ProfilerState.CPU, False, True, False, False, False,
                                     _ExperimentalConfig())  # fmt: skip
    try:
        profiler._enable_profiler_legacy(config)
    except RuntimeError as error:
        raise ConfigError(
            f"memory cannot be metered while a profiler runs: {error}",
            hint="plan before the profiler starts",
        ) from error


def _in_order(lists: Any) -> list[Any]:
    """The events of all threads; those of one thread come in order already."""
    if len(lists) == 1:
        return list(lists[0])
    return sorted((event for events in lists for event in events), key=lambda e: e.start_us())

"""What an allocator gave and took back while something ran, in order: every byte of torch's memory.

The autograd profiler reports each allocation, those inside an operation too; NumPy's are not seen,
so kernels take their work arrays from torch. On a GPU it reports what the allocator rounded them up
to, a block that happened to be free: what was asked for is in the allocator's own history.
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

    One recording at a time in a process. On a GPU it takes the place of a history of the allocator
    (``torch.cuda.memory``) that is being kept. Raises ConfigError where a profiler runs already.
    """
    found = Allocations()
    on_gpu = device.type == "cuda"
    with _one, _no_garbage():
        if on_gpu:
            _remember("all")
        _start()
        try:
            yield found
        finally:
            lists = _profiler()._disable_profiler_legacy()
            asked = _asked(device) if on_gpu else []
            if on_gpu:
                _remember(None)
    marks = found.by_mark
    current: list[int] = []
    events = _in_order(lists)
    if on_gpu:
        given = [e.cuda_memory_usage() > 0 for e in events if _is_of(e, on_gpu)]
        assert given == [num_bytes > 0 for num_bytes in asked], (len(given), len(asked))
    sizes = iter(asked)
    for event in events:
        if event.kind() == "push" and event.name().startswith(_MARK):
            current = marks.setdefault(event.name().removeprefix(_MARK), [])
        elif _is_of(event, on_gpu):
            current.append(next(sizes) if on_gpu else event.cpu_memory_usage())


def _is_of(event: Any, on_gpu: bool) -> bool:
    """Whether an event gave or took back memory of the device."""
    if event.kind() != "memory_alloc":
        return False
    return bool(event.cuda_memory_usage() if on_gpu else event.cpu_memory_usage())


def _remember(what: str | None) -> None:
    """Have the allocator of GPUs keep its history, or nothing any more."""
    memory: Any = torch.cuda.memory
    memory._record_memory_history(what, context=None, clear_history=True)


def _asked(device: torch.device) -> list[int]:
    """Bytes that were asked for (above 0) and taken back (below 0), in order."""
    memory: Any = torch.cuda.memory
    place = torch.cuda.current_device() if device.index is None else device.index
    signs = {"alloc": 1, "free_completed": -1}
    history = memory._snapshot()["device_traces"][place]
    return [signs[e["action"]] * e["size"] for e in history if e["action"] in signs]


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

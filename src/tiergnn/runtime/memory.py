"""Memory of a run: the least it needs, what there is, the most it took, and what to do if short."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
import torch

from tiergnn.errors import PlanError
from tiergnn.hardware.cgroup import read_cgroup
from tiergnn.kernels.memory import give_back
from tiergnn.units import format_bytes

_HINT = "dtype='bfloat16' (--dtype bfloat16), a narrower model, or a device with more memory"


def available_bytes(device: torch.device) -> int:
    """What a new run may take on ``device``: free device memory, or available host memory."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # What torch has reserved and does not use is ours as well.
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    available = psutil.virtual_memory().available
    group = read_cgroup()
    if group.limit_bytes is None or group.used_bytes is None:
        return available
    return min(available, max(0, group.limit_bytes - group.used_bytes))


def held_before(device: torch.device) -> int:
    """Bytes of a GPU that this process holds as a run begins, whose budget and peak do not count
    them. Garbage is collected first, nothing is kept in reserve, and the peak begins anew."""
    if device.type != "cuda":
        return 0
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def check_room(
    device: torch.device, needed: Mapping[str, int], budget_bytes: int | None = None
) -> None:
    """Raise PlanError when ``needed`` (what -> bytes, a lower bound) exceeds what there is.

    ``budget_bytes`` is what the caller allows; None allows all that is available.
    """
    total = sum(needed.values())
    room = available_bytes(device)
    had = format_bytes(room)
    if budget_bytes is not None and budget_bytes < room:
        room = budget_bytes
        had = f"{format_bytes(room)} (device_memory)"
    if total <= room:
        return
    largest = max(needed, key=lambda what: needed[what])
    raise PlanError(
        f"{device} needs at least {format_bytes(total)} ({total:,} bytes), has {had}",
        culprit=f"largest: {largest}, {format_bytes(needed[largest])}",
        hint=_HINT,
    )


@contextmanager
def out_of_memory(device: torch.device, doing: str) -> Iterator[None]:
    """Turn an allocation that fails inside the block into a PlanError that says what to do."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise _short(device, doing, str(error)) from error
    except MemoryError as error:
        raise _short(device, doing, str(error)) from error
    except RuntimeError as error:
        # The CPU allocator of torch has no class of its own for this.
        if "can't allocate memory" not in str(error):
            raise
        raise _short(device, doing, str(error)) from error


def _short(device: torch.device, doing: str, message: str) -> PlanError:
    wanted = re.search(r"allocate ([0-9.]+ ?[A-Za-z]+)", message)
    more = f"{wanted[1]} more" if wanted else "more"
    if device.type == "cuda":
        used = format_bytes(torch.cuda.memory_allocated(device))
        had = format_bytes(torch.cuda.get_device_properties(device).total_memory)
        state = f"with {used} of {had} in use"
    else:
        state = f"with {format_bytes(psutil.virtual_memory().available)} available"
    return PlanError(
        f"{device} ran out of memory while {doing}: wanted {more}, {state}", hint=_HINT
    )


class PeakMeter:
    """The most memory taken since it was made, by tier.

    "device", on CUDA only: the peak of torch's allocator, less what it held at the start. "host":
    the peak of the process's resident memory less what was resident at the start; pages of
    memory-mapped files that were read count, since they take memory while they are there. What lay
    idle of earlier work is given back at the start: taken again, it would not show.
    """

    def __init__(self, device: torch.device):
        give_back()
        self._device = device
        self._process = psutil.Process()
        # Linux resets the peak when asked; elsewhere the peak is that of the samples.
        try:
            Path("/proc/self/clear_refs").write_text("5")
            self._status: Path | None = Path("/proc/self/status")
        except OSError:
            self._status = None
        self._baseline = self._process.memory_info().rss
        self._sampled = self._baseline
        self.before_bytes = held_before(device)

    def sample(self) -> None:
        """Look at resident memory once; needed only where the system keeps no peak."""
        if self._status is None:
            self._sampled = max(self._sampled, self._process.memory_info().rss)

    def read(self) -> dict[str, int]:
        """tier -> bytes."""
        self.sample()
        peak = self._sampled
        if self._status is not None:
            line = re.search(r"VmHWM:\s+(\d+) kB", self._status.read_text())
            assert line is not None
            peak = int(line[1]) * 1024
        peaks = {"host": max(0, peak - self._baseline)}
        if self._device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(self._device)
            peaks["device"] = max(0, peak - self.before_bytes)
        return peaks


@contextmanager
def device_budget(
    device: torch.device, budget_bytes: int | None, before_bytes: int = 0
) -> Iterator[None]:
    """Hold torch's CUDA allocator to a budget inside the block, beside what the process held before
    the run; elsewhere this does nothing."""
    if budget_bytes is None or device.type != "cuda":
        yield
        return
    total = torch.cuda.get_device_properties(device).total_memory
    # What setting up left would count against the budget: in cycles, and what the allocator keeps.
    gc.collect()
    torch.cuda.empty_cache()
    allowed = (budget_bytes + before_bytes) / total
    torch.cuda.set_per_process_memory_fraction(min(1.0, allowed), device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)

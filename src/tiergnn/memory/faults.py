"""Disks that fail on purpose, for tests: calls of the system that do what a plan says."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tiergnn.errors import unknown
from tiergnn.memory.file import Calls

FAULTS = ("eio", "enospc", "short", "flip")


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """Call number -> fault, of reads and of writes, counted from 0 on.

    "eio" and "enospc" raise, "short" moves less than it should, "flip" changes one bit of what is
    read, or of what lies on the disk.
    """

    reads: Mapping[int, str] = field(default_factory=dict)
    writes: Mapping[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for fault in (*self.reads.values(), *self.writes.values()):
            if fault not in FAULTS:
                raise unknown("fault", fault, FAULTS)

    @classmethod
    def drawn(cls, seed: int, *, num_calls: int, faults: Sequence[str], frac: float) -> FaultPlan:
        """``frac`` of the first ``num_calls`` calls fail, each with one of ``faults``."""
        draw = random.Random(seed)
        plans: tuple[dict[int, str], dict[int, str]] = ({}, {})
        for plan in plans:
            for call in range(num_calls):
                if draw.random() < frac:
                    plan[call] = draw.choice(faults)
        return cls(reads=plans[0], writes=plans[1])


class Faulty:
    """The two calls of the system under a plan: ``Engine(calls=Faulty(plan).calls)``.

    ``counts`` says how many of each there were; another ``plan`` may take over between them.
    """

    def __init__(self, plan: FaultPlan):
        self.plan = plan
        self._lock = threading.Lock()
        self.counts = {"read": 0, "write": 0}

    @property
    def calls(self) -> Calls:
        return Calls(preadv=self._read, pwritev=self._write)

    def _fault(self, action: str, faults: Mapping[int, str]) -> str | None:
        with self._lock:
            number = self.counts[action]
            self.counts[action] += 1
        fault = faults.get(number)
        if fault in ("eio", "enospc"):
            code = errno.EIO if fault == "eio" else errno.ENOSPC
            raise OSError(code, os.strerror(code))
        return fault

    def _read(self, handle: int, buffers: Sequence[Any], offset: int) -> int:
        fault = self._fault("read", self.plan.reads)
        count = os.preadv(handle, buffers, offset)
        if fault == "short" and count > 1:
            count //= 3 if count > 2 else 2
            buffers[0][count:] = bytes(len(buffers[0]) - count)
        if fault == "flip" and count:
            buffers[0][count // 2] ^= 16
        return count

    def _write(self, handle: int, buffers: Sequence[Any], offset: int) -> int:
        fault = self._fault("write", self.plan.writes)
        if fault == "short":
            return os.pwritev(handle, [buffers[0][: len(buffers[0]) // 2 // 4096 * 4096]], offset)
        if fault == "flip":
            buffers[0][len(buffers[0]) // 2] ^= 16
        return os.pwritev(handle, buffers, offset)

"""Clock: seconds of calls, from short runs repeated within a budget of time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch

K = TypeVar("K")
Call = Callable[[], object]
_TOO_SLOW = 4
_MOST_RUNS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Times calls on ``device``: each case for about ``budget_s``, spread over some rounds.

    What else the machine does only ever adds time. So a round gives the lower quartile of its runs
    (the fastest one may be luck), and the fastest round counts: others had company throughout.
    After ``until_s`` (of time.perf_counter) a case gets a single round. With ``processor_time``
    seconds are those of the processor, over the threads that torch uses: on a machine that others
    use they show more of what a kernel takes, and nothing of what waits for a disk or a device.
    """

    device: torch.device
    budget_s: float
    rounds: int = 3
    until_s: float = math.inf
    processor_time: bool = False

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    def seconds(self, call: Call) -> float:
        """Of one call."""
        return self.times({"": lambda: call})[""]

    def times(self, cases: Mapping[K, Callable[[], Call]]) -> dict[K, float]:
        """Seconds of each case's call, which is made anew for every round, one at a time."""
        best: dict[K, float] = {}
        slow: set[K] = set()
        for _ in range(self.rounds):
            for key, make in cases.items():
                late = key in best and time.perf_counter() > self.until_s
                if key not in slow and not late:
                    taken, too_slow = self._round(make())
                    best[key] = min(taken, best.get(key, taken))
                    slow |= {key} if too_slow else set()
        return best

    def _round(self, call: Call) -> tuple[float, bool]:
        """The lower quartile; and whether the call is too slow to be run any more."""
        budget_s = self.budget_s / self.rounds
        first = self.once(call)
        if first > _TOO_SLOW * self.budget_s:  # or it was compiled just now
            second = self.once(call)
            return second, second > self.budget_s
        runs: list[float] = []
        start = time.perf_counter()
        while not runs or (time.perf_counter() - start < budget_s and len(runs) < _MOST_RUNS):
            runs.append(self.once(call))
        return sorted(runs)[len(runs) // 4], False

    def once(self, call: Call) -> float:
        """Seconds of one run, the device's work counted."""
        if self.is_cuda:
            torch.cuda.synchronize(self.device)
        start = self._now_s()
        call()
        if self.is_cuda:
            torch.cuda.synchronize(self.device)
        return max(self._now_s() - start, 1e-9)

    def _now_s(self) -> float:
        if self.processor_time:
            return time.process_time() / torch.get_num_threads()
        return time.perf_counter()

"""Clock: seconds of calls, from short runs repeated within a budget of time."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import torch

K = TypeVar("K", bound=Hashable)
Call = Callable[[], object]
_TOO_SLOW = 4
_LEAST_RUNS, _MOST_RUNS = 3, 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Times calls on ``device``: each case for about ``budget_s``, spread over some rounds.

    A round gives the middle one of its runs, and the middle round counts: steps, too, take what
    they usually take, where neighbours of a virtual machine use its caches and its memory. Cases
    with a name, ``of``, get one round a call, and what earlier calls found counts with it: what is
    measured several times from beginning to end has its rounds far apart, and company, which stays
    for seconds, in few of them.
    After ``until_s`` (of time.perf_counter) a case gets a single round. With ``processor_time``
    seconds are those of the processor, over the threads that torch uses: on a machine that others
    use they show more of what a kernel takes, and nothing of what waits for a disk or a device.
    """

    device: torch.device
    budget_s: float
    rounds: int = 3
    until_s: float = math.inf
    processor_time: bool = False
    found: dict[Hashable, list[float]] = field(
        default_factory=lambda: defaultdict(list), repr=False, compare=False
    )  # rounds by name and case

    @property
    def late(self) -> bool:
        return time.perf_counter() > self.until_s

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    def of_device(self, call: Call, times: int = 1) -> Call:
        """A call whose seconds are those of the device alone: of a GPU it is recorded, ``times``
        in a row, and replayed. On a CPU the call itself."""
        return Replayed(call, times) if self.is_cuda else call

    def seconds(self, call: Call, of: str = "") -> float:
        """Of one call."""
        return self.times({"": lambda: call}, of)[""]

    def times(
        self, cases: Mapping[K, Callable[[], Call]], of: str = "", *, once: bool = False
    ) -> dict[K, float]:
        """Seconds of each case's call, which is made anew for every round, one at a time.

        With ``once`` what earlier calls found of a name is enough.
        """
        found = {key: self.found[of, key] if of else [] for key in cases}
        slow: set[K] = {key for key, rounds in found.items() if once and rounds}
        for _ in range(1 if of else self.rounds):
            for key, make in cases.items():
                if key not in slow and not (found[key] and self.late):
                    taken, too_slow = self._round(make())
                    found[key].append(taken)
                    slow |= {key} if too_slow else set()
        return {key: _middle(rounds) for key, rounds in found.items()}

    def _round(self, call: Call) -> tuple[float, bool]:
        """The middle one of its runs; and whether the call is too slow to be run any more."""
        budget_s = self.budget_s / self.rounds
        first = self.once(call)
        if first > _TOO_SLOW * self.budget_s:  # or it was compiled just now
            second = self.once(call)
            return second, second > self.budget_s
        runs: list[float] = []
        start = time.perf_counter()
        while len(runs) < _LEAST_RUNS or (
            time.perf_counter() - start < budget_s and len(runs) < _MOST_RUNS
        ):
            runs.append(self.once(call))
        return _middle(runs), False

    def once(self, call: Call) -> float:
        """Seconds of one run, the device's work counted."""
        if isinstance(call, Replayed):
            return max(call(), 1e-9)
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


class Replayed:
    """Calls of a GPU that are recorded once they have run: no host is waited for within."""

    def __init__(self, call: Call, times: int = 1):
        self._call, self._times = call, times
        self._graph: torch.cuda.CUDAGraph | None = None
        self._marks: list[torch.cuda.Event] = []

    def __call__(self) -> float:
        """Seconds of one of them, on the device."""
        if self._graph is None:
            self._graph = self._recorded()
        self._graph.replay()
        start, end = self._marks
        end.synchronize()
        return start.elapsed_time(end) / 1e3 / self._times

    def _recorded(self) -> torch.cuda.CUDAGraph:
        self._call()  # so that nothing is compiled meanwhile
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        self._marks = [torch.cuda.Event(enable_timing=True, external=True) for _ in range(2)]
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._marks[0].record()
            for _ in range(self._times):
                self._call()
            self._marks[1].record()
        return graph


def _middle(seconds: list[float]) -> float:
    """Of an even number the better of both: most of what disturbs adds time."""
    return sorted(seconds)[(len(seconds) - 1) // 2]

"""A rank among virtual ones whose transport is written down, and the same rank alone with that."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from tests.runtime.staging import close
from tiergnn.transport.alone import Absent, Alone
from tiergnn.transport.virtual import Virtual, World


class Record:
    """What came of a rank's operations, in order: by kind and tag."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], deque[Any]] = defaultdict(deque)

    def add(self, kind: str, what: str, value: Any) -> None:
        self._found[kind, what].append(value)

    def next(self, kind: str, what: str) -> Any:
        return self._found[kind, what].popleft()

    def of(self, kind: str, what: str) -> list[Any]:
        return list(self._found[kind, what])

    def given_bytes(self, rank: int) -> int:
        """That came in exchanges, but from the rank itself."""
        given = [
            each for (kind, _), all_ in self._found.items() if kind == "given" for each in all_
        ]
        return sum(rows.nbytes for each in given for r, rows in enumerate(each) if r != rank)

    def again(self) -> Record:
        """The same, from its beginning."""
        copy = Record()
        for key, values in self._found.items():
            copy._found[key] = deque(values)
        return copy

    @property
    def is_used_up(self) -> bool:
        return not any(self._found.values())


class Recorder(Virtual):
    def __init__(self, world: World, rank: int, record: Record, **options: Any) -> None:
        self._record, self._here = record, threading.local()
        super().__init__(world, rank, **options)

    def barrier(self, *, channel: str = "main", tag: str = "barrier") -> None:
        super().barrier(channel=channel, tag=tag)
        if tag == "close":
            return
        held = {name: [rows.clone() for rows in m.peers] for name, m in self._allocated.items()}
        self._record.add("rows", tag, held)

    def gather(self, message: Any, *, channel: str = "main", tag: str = "gather") -> list[Any]:
        said = super().gather(message, channel=channel, tag=tag)
        if not tag.startswith("allocate"):
            self._record.add("said", tag, said)
        return said

    def exchange(self, rows: Tensor, *given: Any, tag: str = "exchange", **options: Any) -> Tensor:
        got = super().exchange(rows, *given, tag=tag, **options)
        each = [part.clone() for part in got.split(self._here.counts)]
        self._record.add("given", tag, each)
        return got

    def all_reduce(
        self, tensors: Sequence[Tensor], *, channel: str = "main", tag: str = "all_reduce"
    ) -> None:
        before = [tensor.clone() for tensor in tensors]
        super().all_reduce(tensors, channel=channel, tag=tag)
        self._record.add("sums", tag, (before, [tensor.clone() for tensor in tensors]))

    def _counts(self, *given: Any) -> list[int]:
        self._here.counts = super()._counts(*given)
        return self._here.counts


class Recorded(Absent):
    def __init__(self, record: Record) -> None:
        self._record = record

    def say(self, own: Any, what: str, size: int) -> list[Any]:
        if what.startswith("allocate"):
            return super().say(own, what, size)
        return self._record.next("said", what)

    def give(self, like: Tensor, what: str, size: int) -> list[Tensor] | None:
        return self._record.next("given", what)


class Replay(Alone):
    """The rank alone, where others' rows are those of the record whenever ranks have met."""

    def __init__(self, rank: int, size: int, record: Record, **options: Any) -> None:
        # Others' rows in host memory change at once, whatever still reads them on the device.
        super().__init__(rank, size, Recorded(record), waits=True, **options)
        self._record = record

    def barrier(self, *, channel: str = "main", tag: str = "barrier") -> None:
        super().barrier(channel=channel, tag=tag)
        if tag == "close":
            return
        for name, rows in self._record.next("rows", tag).items():
            for rank, (here, there) in enumerate(
                zip(self._allocated[name].peers, rows, strict=True)
            ):
                if rank != self.rank:
                    here.copy_(there)

    def all_reduce(
        self, tensors: Sequence[Tensor], *, channel: str = "main", tag: str = "all_reduce"
    ) -> None:
        super().all_reduce(tensors, channel=channel, tag=tag)
        own, sums = self._record.next("sums", tag)
        for tensor, before, after in zip(tensors, own, sums, strict=True):
            close(tensor, before, 1e-10)
            tensor.detach().copy_(after)

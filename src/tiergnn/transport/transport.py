"""Transport: how the ranks of a job reach each other's rows and meet.

All ranks call the same operations in the same order on each channel; channels are independent, and
one thread at a time uses each. Operations that ``begin`` run on the channel's own thread.

Legend: N ranks, R rows to give, T rows to take, W elements of a row.
"""

from __future__ import annotations

import json
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor

from tiergnn.errors import ConfigError, unknown
from tiergnn.transport.waiting import Waiting, Watch

CHANNELS = ("main", "peer")
_START_S = 120.0  # for all to come: importing torch on a busy machine takes a while


@dataclass(frozen=True, slots=True)
class Allocated:
    """``peers[r]`` is rank r's tensor, to be read in place, ``peers[rank]`` is ``own``.

    Empty where rows of others cannot be read in place.
    """

    own: Tensor
    peers: tuple[Tensor, ...]


class Handle:
    """An operation that was begun."""

    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def done(self) -> bool:
        return self._future.done()

    def wait(self) -> Any:
        """Block until it has ended; gives or raises what the operation would have."""
        return self._future.result()


class Transport(ABC):
    """One rank's end. ``debug``: ranks compare what they are about to exchange, and a mismatch is
    told before anything moves. Whatever goes wrong on any rank raises RankError on all."""

    name: ClassVar[str]
    reads_in_place: ClassVar[bool]
    in_order = False  # who meets is told to a GPU's stream, and no host waits

    def __init__(
        self,
        watch: Watch,
        rank: int,
        *,
        channels: Sequence[str] = CHANNELS,
        timeout_s: float = 30.0,
        debug: bool = False,
        why: str = "asked for",
    ) -> None:
        self.rank, self.size = rank, watch.num_ranks
        self.channels, self.debug, self.why = tuple(channels), debug, why
        self.watch = watch
        self.waiting = Waiting(watch, rank, timeout_s)
        self._threads: dict[str, ThreadPoolExecutor] = {}
        self._begun: dict[str, Future[Any]] = {}
        self._inside = threading.local()  # has a channel on that channel's own thread
        self._allocated: dict[str, Allocated] = {}
        self._closed = False
        watch.join(rank)
        watch.note(rank, "start")
        wait_s = max(_START_S, timeout_s)
        self.waiting.until(watch.joined, lambda: self._absent(), "start", wait_s=wait_s)

    def __str__(self) -> str:
        return f"{self.name}, {self.size} ranks ({self.why})"

    # What a back end does

    @abstractmethod
    def _swap(
        self,
        rows: Tensor,
        give: Sequence[int],
        take: Sequence[int] | None,
        out: Tensor | None,
        channel: str,
        what: str,
        everyone: bool,
    ) -> Tensor:
        """``exchange``; with ``everyone``, all rows go to each rank and give says so."""

    def _meet(self, channel: str, what: str) -> None:
        nothing, zeros = torch.empty(0, dtype=torch.uint8), [0] * self.size
        self._swap(nothing, zeros, zeros, None, channel, what, False)

    @abstractmethod
    def _share(self, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Allocated:
        """A new zeroed tensor that peers may read; called by all at once, shapes may differ."""

    @abstractmethod
    def _end(self) -> None:
        """Give back what the back end holds, after all ranks have come to ``close``."""

    def room(
        self,
        shape: Sequence[int],
        dtype: torch.dtype,
        channel: str = "main",
        device: str = "cpu",
    ) -> Tensor:
        """Memory for the rows of the channel's next exchange, which spares it a copy."""
        self._known(channel)
        return torch.empty(tuple(shape), dtype=dtype, device=device)

    # What ranks call

    def at(self, action: str) -> None:
        """Say what this rank does now, for the message if it fails. Cheap."""
        self.watch.note(self.rank, action)

    def fail(self, cause: str, *, hint: str = "") -> NoReturn:
        """End the job on all ranks. Raises RankError."""
        self.waiting.fail(cause, what=self.watch.action_of(self.rank), hint=hint)

    def allocate(
        self,
        name: str,
        shape: Sequence[int],
        dtype: torch.dtype,
        device: str = "cpu",
        *,
        rows: Sequence[int] | None = None,
    ) -> Allocated:
        """Zeroed memory of a name, the same on all ranks and in the same order, each its own number
        of rows (``rows``: of all, if known). Asked for again it is given again, until ``close``."""
        shape = tuple(shape)
        if rows is not None and rows[self.rank] != shape[0]:
            raise ConfigError(f"{name} was to have {rows[self.rank]} rows, {shape[0]} were wanted")
        if name in self._allocated:
            have = self._allocated[name]
            if (tuple(have.own.shape), have.own.dtype) != (shape, dtype):
                told = f"{name} was allocated as {_form(have.own)}, now wanted as "
                hint = "a name of its own for memory of another shape"
                raise ConfigError(f"{told}{dtype} {list(shape)}", hint=hint)
            return have
        what = f"allocate {name}"
        said = self.gather([what, str(dtype), list(shape[1:])], tag=what)
        self._alike(said, what)
        self._allocated[name] = made = self._share(shape, dtype, device)
        return made

    def barrier(self, *, channel: str = "main", tag: str = "barrier") -> None:
        """Return when all ranks have come. What they wrote before is seen after."""
        self._run(channel, tag, lambda: self._checked_meet(channel, tag))

    def exchange(
        self,
        rows: Tensor,
        give: Sequence[int],
        take: Sequence[int] | None = None,
        *,
        out: Tensor | None = None,
        channel: str = "main",
        tag: str = "exchange",
    ) -> Tensor:
        """rows [R, ...], give[r] of them for rank r in order of ranks -> [T, ...], by rank.

        take[r] are the rows expected of rank r (None: as many as it gives); ``out`` is where they
        go. Sizes may be 0. ``rows`` may be written again when it returns.
        """
        self._rightly(rows, give, take, out)

        def swap() -> Tensor:
            if self.debug:
                self._agree(channel, tag, rows, give, take)
            return self._swap(rows, give, take, out, channel, tag, False)

        return self._run(channel, tag, swap)

    def all_reduce(
        self, tensors: Sequence[Tensor], *, channel: str = "main", tag: str = "all_reduce"
    ) -> None:
        """Sum each tensor over ranks, in place, in the order of ranks: all get the same bits.

        Halves are summed in float32 and rounded once.
        """
        self._run(channel, tag, lambda: self._sum(tensors, channel, tag))

    def broadcast(
        self, tensor: Tensor, root: int = 0, *, channel: str = "main", tag: str = "broadcast"
    ) -> None:
        """Rank ``root``'s values to all, in place."""
        if not 0 <= root < self.size:
            raise unknown("root", root, range(self.size))

        def spread() -> None:
            flat = tensor.detach().reshape(-1)
            mine = flat if self.rank == root else flat[:0]
            take = [flat.numel() if r == root else 0 for r in range(self.size)]
            if self.debug:
                give = [mine.numel()] * self.size
                self._agree(channel, tag, mine, give, take)
            got = self._all(mine, take, channel, tag)
            if self.rank != root:
                tensor.detach().copy_(got.view_as(tensor))

        self._run(channel, tag, spread)

    def gather(self, message: Any, *, channel: str = "main", tag: str = "gather") -> list[Any]:
        """Every rank's small message, by rank. Messages are JSON: nothing of a peer is executed."""
        return self._run(channel, tag, lambda: self._messages(message, channel, tag))

    def begin(self, operation: Callable[..., Any], *args: Any, **options: Any) -> Handle:
        """Start ``barrier``, ``exchange``, ``all_reduce``, ``broadcast`` or ``gather`` on its
        channel, after what was begun there before, and after what this thread enqueued on its GPU;
        what it reads must stay as it is until it ends.
        """
        channel = options.get("channel", "main")
        self._known(channel)
        if channel not in self._threads:
            device = torch.cuda.current_device() if torch.cuda.is_initialized() else None
            self._threads[channel] = ThreadPoolExecutor(
                1, f"tiergnn-{channel}", initializer=self._enter, initargs=(channel, device)
            )
        queued = torch.cuda.Event() if torch.cuda.is_initialized() else None
        if queued is not None:
            queued.record()

        def run() -> Any:
            if queued is not None:
                queued.wait()
            return operation(*args, **options)

        self._begun[channel] = future = self._threads[channel].submit(run)
        return Handle(future)

    def close(self) -> None:
        """Meet a last time and end. Twice is as once."""
        if self._closed:
            return
        self.barrier(tag="close")
        self._closed = True
        for threads in self._threads.values():
            threads.shutdown()
        self.watch.leave(self.rank)
        self._end()
        self._allocated.clear()

    # Within

    def _enter(self, channel: str, device: int | None) -> None:
        """Begin a channel's own thread: threads begin on the first GPU, wherever the rank is."""
        self._inside.channel = channel
        if device is not None:
            torch.cuda.set_device(device)

    def _absent(self) -> int:
        states = [r for r in range(self.size) if r != self.rank and not self.watch.action_of(r)]
        return states[0] if states else self.rank

    def _known(self, channel: str) -> None:
        if channel not in self.channels:
            raise unknown("channel", channel, self.channels)

    def _run(self, channel: str, tag: str, operation: Callable[[], Any]) -> Any:
        self._known(channel)
        begun = self._begun.get(channel)
        if begun is not None and not hasattr(self._inside, "channel"):
            begun.exception()  # what was begun before comes first
        self.at(tag)
        return operation()

    def _checked_meet(self, channel: str, what: str) -> None:
        if self.debug:
            zeros = [0] * self.size
            self._agree(channel, what, torch.empty(0, dtype=torch.uint8), zeros, zeros)
        self._meet(channel, what)

    def _all(self, rows: Tensor, take: Sequence[int] | None, channel: str, what: str) -> Tensor:
        return self._swap(rows, [len(rows)] * self.size, take, None, channel, what, True)

    def _messages(self, message: Any, channel: str, what: str) -> list[Any]:
        data = json.dumps(message).encode()
        rows = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        lengths = torch.tensor([len(data)], dtype=torch.int64)
        counts = self._all(lengths, [1] * self.size, channel, what).tolist()
        got = self._all(rows, counts, channel, what)
        return [json.loads(part.numpy().tobytes()) for part in got.split(counts)]

    def _agree(
        self,
        channel: str,
        what: str,
        rows: Tensor,
        give: Sequence[int],
        take: Sequence[int] | None,
    ) -> None:
        """Compare what all are about to do; every rank finds the same fault."""
        form = [what, str(rows.dtype), list(rows.shape[1:])]
        said = self._messages(
            [form, list(give), None if take is None else list(take)], channel, what
        )
        self._alike([each[0] for each in said], what)
        for taker, (_, _, wants) in enumerate(said):
            for giver, (_, gives, _) in enumerate(said):
                if wants is not None and wants[giver] != gives[taker]:
                    self._mismatch(taker, giver, wants[giver], gives[taker], what)

    def _mismatch(self, taker: int, giver: int, wants: int, gives: int, what: str) -> NoReturn:
        self.waiting.fail(
            f"wanted {wants} rows of rank {giver}, which gave {gives}",
            what=what,
            rank=taker,
            hint="one partition on all ranks: the counts come from it",
        )

    def _alike(self, said: list[Any], what: str) -> None:
        """All must say the same; who differs from the most is named."""
        texts = [json.dumps(each) for each in said]
        usual = max(texts, key=texts.count)
        odd = next((rank for rank, text in enumerate(texts) if text != usual), None)
        if odd is not None:
            action, dtype, row = said[odd]
            others = json.loads(usual)
            self.waiting.fail(
                f"was at {action} with {dtype} rows of {row}, wanted {others[0]} with {others[1]} "
                f"rows of {others[2]} as rank {texts.index(usual)}",
                what=what,
                rank=odd,
                hint="the same plan on all ranks",
            )

    def _rightly(
        self, rows: Tensor, give: Sequence[int], take: Sequence[int] | None, out: Tensor | None
    ) -> None:
        for counts in (give, take):
            if counts is not None and (len(counts) != self.size or min(counts) < 0):
                raise ConfigError(f"wanted {self.size} counts of rows, had {list(counts)}")
        if sum(give) != len(rows) or not rows.is_contiguous():
            raise ConfigError(
                f"wanted {sum(give)} contiguous rows to give, had {_form(rows)}",
                hint="rows sorted by the rank that they go to",
            )
        if out is not None and (
            out.dtype != rows.dtype
            or out.shape[1:] != rows.shape[1:]
            or not out.is_contiguous()
            or (take is not None and len(out) != sum(take))
        ):
            raise ConfigError(
                f"wanted room for {list(take or ())} rows like {_form(rows)}, had {_form(out)}"
            )

    def _sum(self, tensors: Sequence[Tensor], channel: str, what: str) -> None:
        groups: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
        for tensor in tensors:
            groups.setdefault((tensor.dtype, tensor.device), []).append(tensor.detach())
        for group in groups.values():
            flat = torch.cat([tensor.reshape(-1) for tensor in group])
            total = self._sum_flat(flat, channel, what)
            for tensor, part in zip(group, total.split([t.numel() for t in group]), strict=True):
                tensor.copy_(part.view_as(tensor))

    def _sum_flat(self, flat: Tensor, channel: str, what: str) -> Tensor:
        """Each rank sums a slice of all, in the order of ranks, and gives it to all."""
        most, more = divmod(len(flat), self.size)
        counts = [most + (rank < more) for rank in range(self.size)]
        mine = counts[self.rank]
        take = [mine] * self.size
        if self.debug:
            self._agree(channel, what, flat, counts, take)
        parts = self._swap(flat, counts, take, None, channel, what, False).view(self.size, mine)
        wide = torch.float32 if flat.dtype in (torch.bfloat16, torch.float16) else flat.dtype
        total = parts[0].to(wide, copy=True)
        for part in parts[1:]:
            total += part.to(wide)
        return self._all(total.to(flat.dtype), counts, channel, what)


def rows_bytes(rows: Tensor) -> int:
    """Bytes of one row."""
    return math.prod(rows.shape[1:]) * rows.element_size()


def _form(tensor: Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"

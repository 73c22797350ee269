"""The walk of a staged schedule: its compute lane in the caller's thread, every other in its own;
or, where none works on host memory, those of copies in the caller's, too.

An action begins when those that it comes ``after``, and the earlier ones of its lane, are done. On
a GPU every lane has a stream: actions are queued on it in the same order, events stand for their
ends, and only what works on host memory waits for one. What an action does, others know
(``transfers``, ``visits``); nothing is decided here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from tiergnn.errors import PlanError, TiergnnError
from tiergnn.kernels.dropout import Key
from tiergnn.memory.lanes import Lanes, Ticket
from tiergnn.runtime.buffers import Buffers
from tiergnn.runtime.pending import Turn
from tiergnn.runtime.staging import FIRST
from tiergnn.runtime.visits import Share
from tiergnn.runtime.walk import around
from tiergnn.schedule.actions import Action, Lane, Op
from tiergnn.schedule.schedule import Schedule
from tiergnn.schedule.timeline import Span, Timeline

_HOST_LANES = (Lane.HOST, Lane.DISK_READ, Lane.DISK_WRITE)
_ROOM = (Op.RESERVE, Op.RELEASE)
_DEVICE_LANES = {str(lane) for lane in (Lane.H2D, Lane.D2H)}


class Stopped(Exception):  # noqa: N818 - a wish, no error
    """A step was given up between two actions, because its owner wished so."""


class Watcher(Protocol):
    """Who is told how a walk goes on."""

    def at(self, action: Action) -> None: ...
    def failed(self, error: BaseException) -> None: ...


class Moves(Protocol):
    """What carries rows between buffers; gives the bytes that it moved."""

    def copy(self, action: Action) -> int: ...
    def zero(self, action: Action) -> None: ...
    def accumulate(self, action: Action) -> Any: ...


class Computes(Protocol):
    """What runs stages, on the compute lane, and gives the bytes that it moved, if any. ``begin`` a
    step, take its ``loss`` at the end."""

    def begin(self, key: Key | None, share: Share | None) -> None: ...
    def loss(self) -> Tensor: ...
    def forward(self, action: Action) -> Any: ...
    def recompute(self, action: Action) -> Any: ...
    def backward(self, action: Action) -> Any: ...
    def moments(self, action: Action) -> Any: ...
    def commit(self, action: Action) -> Any: ...
    def take_loss(self, action: Action) -> Any: ...


class StagedWalk:
    """One rank's actions of a schedule, to be walked once a step. ``more`` does further kinds of
    actions; ``watch`` is told of each before it is done, and of the first error at once.
    ``streams`` has those of lanes, which schedules of a run share; missing ones are added.
    ``in_order``: where ranks meet, a GPU waits for the others and not the host.

    Raises PlanError for a schedule that asks for what this executor does not do.
    """

    def __init__(
        self,
        schedule: Schedule,
        buffers: Buffers,
        transfers: Moves,
        visits: Computes,
        *,
        rank: int = 0,
        more: Mapping[Op, Callable[[Action], Any]] | None = None,
        watch: Watcher | None = None,
        streams: dict[str, torch.cuda.Stream] | None = None,
        in_order: bool = False,
    ):
        self.schedule, self._rank = schedule, rank
        self._buffers, self._visits, self._watch = buffers, visits, watch
        self._does: dict[Op, Callable[[Action], Any]] = {
            Op.RESERVE: lambda action: buffers.reserve(
                action.writes, by_host=action.lane in _HOST_LANES
            ),
            Op.RELEASE: lambda action: buffers.release(action.writes),
            Op.COPY: transfers.copy,
            Op.ZERO: transfers.zero,
            Op.ACCUMULATE: transfers.accumulate,
            Op.FORWARD: visits.forward,
            Op.RECOMPUTE: visits.recompute,
            Op.BACKWARD: visits.backward,
            Op.MOMENTS: visits.moments,
            Op.COMMIT: visits.commit,
            Op.LOSS: visits.take_loss,
            **(more or {}),
        }
        own = [action for action in schedule.actions if action.rank == rank]
        lanes = {str(a.lane) for a in own} - {str(Lane.COMPUTE)}
        cuda = buffers.device.type == "cuda"
        # What a GPU does is only queued: without work on host memory one thread queues it all. A
        # CPU has all its cores copy, and then compute; only waits for other ranks have a thread.
        peer = {str(Lane.PEER)}
        of_device = _DEVICE_LANES | (peer if in_order or not cuda else set[str]())
        waiting = set[str]() if in_order else peer
        self._queued = lanes - waiting if lanes <= of_device else set[str]()
        self._lanes = sorted(lanes - self._queued)
        self._steps = [action for action in own if action.op is not Op.STEP]
        for action in self._steps:
            if action.op not in self._does:
                raise PlanError(
                    f"a staged walk does not {action.op}", culprit=str(action), hint="grinnder"
                )
            for name in (*action.reads, *action.writes):
                if action.op is Op.COPY and buffers.holds(name) is None:
                    raise PlanError(
                        f"nothing says what {name} holds",
                        culprit=str(action),
                        hint="a schedule that tiergnn wrote",
                    )
        self._after = _awaited(self._steps)
        self._lane_of = {action.index: str(action.lane) for action in self._steps}
        self._waited_for = {i for after in self._after.values() for i in after}
        streams = {} if streams is None else streams
        for lane in sorted(lanes - streams.keys()) if cuda else ():
            streams[lane] = torch.cuda.Stream(buffers.device, priority=FIRST)
        self._streams = {lane: streams[lane] for lane in lanes if cuda}
        self._main: torch.cuda.Stream | None = None  # of the caller, for the compute lane
        self.stopped: Callable[[], bool] = lambda: False  # asked before every action
        self._spans: list[Span] = []
        self._ends: dict[int, torch.cuda.Event] = {}  # that other lanes wait for
        self._times: dict[int, tuple[torch.cuda.Event, torch.cuda.Event]] = {}  # begun, done
        self._begun: torch.cuda.Event | None = None  # with the clock at 0
        self._recording = False

    @property
    def queued(self) -> bool:
        """Whether a GPU does everything, as one thread queues it."""
        return self._buffers.device.type == "cuda" and not self._lanes

    def run(self, key: Key | None, share: Share | None) -> Tensor:
        """Everything before STEP; the loss. Gradients of parameters are added to their ``.grad``.

        A failure, Ctrl-C among them, leaves nothing held and no lane at work, and says where in the
        schedule it happened.
        """
        self._spans, self._ends, self._times = [], {}, {}
        self._visits.begin(key, share)
        self._recording = self.queued and torch.cuda.is_current_stream_capturing()
        self._buffers.begin(recording=self._recording)
        self._fork()
        begun = time.perf_counter()
        try:
            with (
                torch.cuda.stream(self._main),
                Lanes(self._lanes, on_error=self._fail) as lanes,
            ):
                self._walk(lanes, begun)
                lanes.drain()
            for stream in self._streams.values():
                assert self._main is not None
                self._main.wait_stream(stream)
            return self._visits.loss()
        except BaseException:
            self._buffers.abandon(recording=self._recording)
            raise
        finally:
            self._visits.begin(None, None)

    def _fork(self) -> None:
        """Have the streams of all lanes come after what the caller's was told."""
        device = self._buffers.device
        if device.type != "cuda":
            return
        self._main = torch.cuda.current_stream(device)
        self._begun = self._mark(self._main)
        for stream in self._streams.values():
            stream.wait_stream(self._main)
        if not self._recording:
            self._begun.synchronize()

    def _fail(self, error: BaseException) -> None:
        """Let go who waits, on this rank and on others."""
        self._buffers.stop(error)
        if self._watch is not None:
            self._watch.failed(error)

    def _walk(self, lanes: Lanes, begun: float) -> None:
        tickets: dict[int, Ticket] = {}
        for action in self._steps:
            if self.stopped() and not self._recording:
                raise Stopped
            waits = [tickets[i] for i in self._after[action.index] if i in tickets]
            if action.lane is not Lane.COMPUTE and action.lane not in self._queued:
                tickets[action.index] = lanes.submit(
                    str(action.lane),
                    partial(self._do, action, begun),
                    after=waits,
                    label=action.label,
                )
                continue
            for ticket in waits:
                ticket.wait()
            self._do(action, begun)

    def _do(self, action: Action, begun: float) -> None:
        stream = self._streams.get(str(action.lane))
        self._await(action, stream)
        start_s = time.perf_counter()
        try:
            if self._watch is not None:
                self._watch.at(action)
            moved = self._queue(action, stream)
        except Exception as error:
            if not isinstance(error, TiergnnError):
                error.add_note(around(self.schedule, action.index))
            raise
        self._spans.append(
            Span(
                index=action.index,
                rank=action.rank,
                lane=action.lane,
                label=action.label,
                start_s=start_s - begun,
                end_s=time.perf_counter() - begun,
                moved_bytes=moved,
            )
        )

    def _await(self, action: Action, stream: torch.cuda.Stream | None) -> None:
        """Have a lane's stream, or a lane that works on host memory, wait for what was queued."""
        if self._buffers.device.type != "cuda":
            return
        for i in self._after[action.index]:
            if action.lane in _HOST_LANES:
                self._ends[i].synchronize()
            else:
                self._ends[i].wait(stream or self._main)
                self._buffers.passed(str(action.lane), self._lane_of[i], i)

    def _queue(self, action: Action, stream: torch.cuda.Stream | None) -> int:
        """Do an action, or queue it on its lane's stream; gives the bytes that it moves."""
        if self._main is None:
            return self._does[action.op](action) or 0
        mine, index = stream or self._main, action.index
        self._buffers.at(Turn(str(action.lane), mine, index))
        # To look up, each time, which stream is the current one takes the host longest.
        torch.cuda.set_stream(mine)
        try:
            start = None if action.op in _ROOM else self._mark(mine)
            moved = self._does[action.op](action) or 0
            end = None if start is None else self._mark(mine)
            if start is not None and end is not None:
                self._times[index] = start, end
            if index in self._waited_for:
                # What a recording marks for the clock is nothing that its other lanes wait for.
                if end is None or self._recording:
                    end = torch.cuda.Event()
                    end.record(mine)
                self._ends[index] = end
        finally:
            torch.cuda.set_stream(self._main)
        return moved

    def _mark(self, stream: torch.cuda.Stream) -> torch.cuda.Event:
        """An event of a stream, for the clock; of a recorded step at each time that it runs."""
        event = torch.cuda.Event(enable_timing=True, external=self._recording)
        event.record(stream)
        return event

    def timeline(self) -> Timeline | None:
        """When each action of the last step ran; of a GPU, by its events."""
        if not self._spans:
            return None
        peaks = self._buffers.peak_bytes
        return Timeline(
            source="measured",
            spans=tuple(self._as_run(sorted(self._spans, key=lambda span: span.index))),
            peak_bytes=tuple((self._rank, tier, num_bytes) for tier, num_bytes in peaks.items()),
        )

    def _as_run(self, spans: Iterable[Span]) -> Iterator[Span]:
        """When a GPU did what was queued; to make room takes it no time."""
        before: dict[str, float] = {}
        for span in spans:
            if self._begun is None or span.lane in _HOST_LANES:
                yield span
                continue
            lane = str(span.lane)
            start_s = end_s = before.get(lane, 0.0)
            if span.index in self._times:
                start, end = self._times[span.index]
                end.synchronize()
                start_s = self._begun.elapsed_time(start) / 1000
                end_s = self._begun.elapsed_time(end) / 1000
            before[lane] = end_s
            yield replace(span, start_s=start_s, end_s=end_s)

    def answers(self) -> Iterator[Tensor]:
        """The lasting rows that the last step left, by parts; each is let go of when it is given,
        so that rows of all parts are not held twice, nor while the next steps train."""
        own = [b for b in self.schedule.buffers if b.rank == self._rank]
        lasting = [b for b in own if b.lasting and not b.given and b.holds]
        lasting.sort(key=lambda buffer: buffer.holds.part if buffer.holds else 0)
        if self._buffers.device.type == "cuda":
            torch.cuda.synchronize(self._buffers.device)
        for buffer in lasting:
            yield self._buffers.take(buffer.name)

    @property
    def peak_bytes(self) -> dict[str, int]:
        """tier -> the most bytes held so far."""
        return self._buffers.peak_bytes

    def close(self) -> None:
        """Give host memory back."""
        self._buffers.abandon()

    def update(self, move: Callable[[], Any]) -> None:
        """The schedule's STEP: ``move()`` has the optimizer move the parameters."""
        move()


def _awaited(steps: Sequence[Action]) -> dict[int, list[int]]:
    """What each action has to wait for: of every other lane the last that it comes after, unless
    its own lane waited for that before."""
    lane_of = {action.index: str(action.lane) for action in steps}
    seen: dict[tuple[str, str], int] = {}
    found: dict[int, list[int]] = {}
    for action in steps:
        own, last = str(action.lane), dict[str, int]()
        for i in action.after:
            if i in lane_of and lane_of[i] != own:
                last[lane_of[i]] = max(i, last.get(lane_of[i], -1))
        new = {lane: i for lane, i in last.items() if i > seen.get((own, lane), -1)}
        seen |= {(own, lane): i for lane, i in new.items()}
        found[action.index] = sorted(new.values())
    return found


def peaks_of(
    peaks: Iterable[Mapping[str, int]],
    device: torch.device | None = None,
    before_bytes: int = 0,
) -> dict[str, int]:
    """The most of several walks, tier -> bytes: counted as reserved; of a GPU, by its allocator,
    less what it held before."""
    found: dict[str, int] = {}
    for peak in peaks:
        for tier, num_bytes in peak.items():
            found[tier] = max(found.get(tier, 0), num_bytes)
    if device is not None and device.type == "cuda":
        found["device"] = max(0, torch.cuda.max_memory_allocated(device) - before_bytes)
    return {tier: num_bytes for tier, num_bytes in found.items() if num_bytes}


@contextmanager
def buffers_put_back(model: nn.Module) -> Iterator[None]:
    """Where what is inside fails or is stopped, the model's buffers are as they were before."""
    alike: dict[Any, list[Tensor]] = {}
    for buffer in model.buffers():
        alike.setdefault((buffer.dtype, buffer.device), []).append(buffer)
    # One copy of many small buffers: a GPU's host is slower than all of them.
    before = [(some, torch.cat([buffer.flatten() for buffer in some])) for some in alike.values()]
    try:
        yield
    except BaseException:
        with torch.no_grad():
            for some, values in before:
                sizes = [buffer.numel() for buffer in some]
                for buffer, kept in zip(some, values.split(sizes), strict=True):
                    buffer.copy_(kept.view_as(buffer))
        raise

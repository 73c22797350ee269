"""Starting the ranks of a job on this host, and ending all of them when one fails.

Processes are spawned, never forked: a fork of a process that has used CUDA or threads is broken.
Across hosts torchrun starts the ranks (``place.place_of_torchrun``).
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from tiergnn.errors import ConfigError, RankError
from tiergnn.threads import bind, num_processors
from tiergnn.transport.board import Board, board_bytes
from tiergnn.transport.failure import Failure
from tiergnn.transport.pick import Choice, pick, probe
from tiergnn.transport.place import Place, watch_of
from tiergnn.transport.running import Target, leave, run_rank
from tiergnn.transport.segment import Segment, open_segment
from tiergnn.transport.transport import CHANNELS
from tiergnn.transport.virtual import Virtual, World
from tiergnn.transport.waiting import LEAVE_FRAC, TERM_FRAC, told

_LOOK_S = 0.1
_GUARD = "the call under `if __name__ == '__main__':`"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def launch(
    target: Target,
    num_ranks: int,
    args: Sequence[Any] = (),
    *,
    transport: str | None = None,
    on_gpu: bool = False,
    timeout_s: float = 30.0,
    debug: bool = False,
    channels: tuple[str, ...] = CHANNELS,
    context: BaseContext | None = None,
    look: Callable[[], None] = lambda: None,
) -> int:
    """Run ``target(transport, *args)`` as ``num_ranks`` ranks, each a process (threads: "virtual").

    Returns 0, or 128 and the number of the signal that stopped all of them; Ctrl-C, SIGTERM and
    SIGHUP are passed on to the ranks. Raises RankError with the first failure; no rank outlives
    it, ``timeout_s`` after others began to wait for the one that failed. ``target`` must be
    importable. Raises ConfigError where the transport that was asked for cannot work.
    ``context``: of multiprocessing, "spawn" unless another that forks no process in use.
    ``look`` is called ten times a second, and once at the end; what it raises ends the job.
    """
    if num_ranks < 1:
        raise ConfigError(f"wanted at least 1 rank, had {num_ranks}")
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise ConfigError(
            "a script that starts ranks is run again by each of them, up to this call", hint=_GUARD
        )
    choice = pick(probe(num_ranks, on_gpu=on_gpu), transport)
    if choice.name == "virtual":
        return _in_threads(target, num_ranks, args, choice, timeout_s, debug, channels, look)
    segment = Segment(board_bytes(num_ranks, len(channels)))
    board = Board.on(segment, num_ranks, channels)
    board.join(num_ranks)
    store = _store(choice)
    place = Place(
        rank=0,
        size=num_ranks,
        local_rank=0,
        transport=choice.name,
        why=choice.why,
        board=segment.address,
        store=f"127.0.0.1:{store.port}" if store is not None else "",
        timeout_s=timeout_s,
        debug=debug,
        channels=channels,
        launched=True,
    )
    try:
        return _Job(place, board, target, args, context, look, bound=not on_gpu).run()
    finally:
        segment.close()


def _store(choice: Choice) -> Any:
    if choice.name not in ("gloo", "nccl", "symmetric"):
        return None
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # pyright: ignore[reportPrivateImportUsage]


class _Job:
    """The processes of one launch."""

    def __init__(
        self,
        place: Place,
        board: Board,
        target: Target,
        args: Sequence[Any],
        context: BaseContext | None,
        look: Callable[[], None],
        *,
        bound: bool,
    ) -> None:
        self._place, self._board, self._look = place, board, look
        start: Any = context or multiprocessing.get_context("spawn")
        self._given = _given(target, args)
        self._processes = [
            start.Process(
                target=_rank_main,
                args=(replace(place, rank=rank, local_rank=rank), self._given.address, bound),
                name=f"tiergnn-rank-{rank}",
            )
            for rank in range(place.size)
        ]
        self._signum: int | None = None
        self._unsent = False

    def run(self) -> int:
        with self._listening():
            try:
                for process in self._processes:
                    process.start()
                self._watch()
            finally:
                self._kill()
                self._given.close()
        self._look()
        codes = [process.exitcode for process in self._processes]
        if self._signum is not None and any(codes):
            return 128 + self._signum
        failure = self._board.failure()
        if failure is not None:
            raise self._told(failure)
        return 0

    def _watch(self) -> None:
        """Return when all have ended, or have been given their time to after a failure."""
        ended_by: float | None = None
        asked = False
        while alive := [process for process in self._processes if process.is_alive()]:
            wait([process.sentinel for process in alive], _LOOK_S)
            self._look()
            now, timeout_s = time.monotonic(), self._place.timeout_s
            if self._unsent:
                self._unsent = False
                self._send(self._signum or signal.SIGTERM)
                ended_by = ended_by or now + timeout_s
            self._note_ends()
            if ended_by is None and self._board.failure() is not None:
                ended_by = now + timeout_s * LEAVE_FRAC * 1.5
            if ended_by is not None and now > ended_by:
                if asked:
                    return
                asked, ended_by = True, now + timeout_s * TERM_FRAC
                self._send(signal.SIGTERM)
        self._note_ends()  # of those that ended since

    def _note_ends(self) -> None:
        """A rank that ended otherwise than well, and did not say why, is a failure."""
        if self._signum is not None:
            return
        for rank, process in enumerate(self._processes):
            if process.exitcode and self._board.failure() is None:
                cause, hint = _how(process.exitcode)
                last = self._board.action_of(rank)
                if not last and process.exitcode > 0:
                    last, hint = "start", f"what it printed; of a script, {_GUARD}"
                by = self._place.size
                self._board.fail(Failure(rank=rank, by=by, action=last, cause=cause, hint=hint))

    def _told(self, failure: Failure) -> RankError:
        """Of a rank that was found dead by another, the launcher knows more."""
        code = self._processes[failure.rank].exitcode
        if failure.cause == "died" and code:
            cause, hint = _how(code)
            return RankError(
                f"rank {failure.rank} {cause}", culprit=failure.action, hint=hint or None
            )
        return failure.error()

    def _send(self, signum: int) -> None:
        for process in self._processes:
            if process.is_alive() and process.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signum)

    def _kill(self) -> None:
        for process in self._processes:
            if process.pid is not None:
                process.kill()
                process.join()

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        """Signals are passed on by the loop. Only the main thread gets them."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def note(signum: int, frame: FrameType | None) -> None:
            self._signum, self._unsent = signum, True

        before = {number: signal.getsignal(number) for number in _SIGNALS}
        heard = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
        for number in heard:
            signal.signal(number, note)
        try:
            yield
        finally:
            for number in heard:
                signal.signal(number, before[number] or signal.SIG_DFL)


def _given(target: Target, args: Sequence[Any]) -> Segment:
    """What ranks are to do, where they find it. A pipe would take it as well, but who writes more
    to one than it holds waits for ever for a reader that has died."""
    text = pickle.dumps((target, tuple(args)))
    segment = Segment(len(text))
    segment.memory[: len(text)] = text
    return segment


def _rank_main(place: Place, given: str, bound: bool) -> None:
    """A spawned rank, from its start to its end; ``given`` is the address of what it does.
    ``bound``: it keeps to its share of the processors, where their number is not the user's."""
    memory, num_bytes, handle = open_segment(given)
    os.close(handle)
    target, args = pickle.loads(memory[:num_bytes])
    memory.close()
    # A group of its own: Ctrl-C on a terminal comes to the launcher alone, which passes it on once.
    os.setpgrp()
    # Ranks of one host meet on its loopback, whatever its name resolves to.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, num_processors() // place.size))
        if bound:
            bind(place.rank, place.size)
    leave(run_rank(place, watch_of(place), None, target, *args))


def _how(code: int) -> tuple[str, str]:
    """Cause and hint of an exit code."""
    if code >= 0:
        return f"ended with exit code {code}", "again with TIERGNN_DEBUG=1, which prints where"
    name = signal.Signals(-code).name
    if name == "SIGKILL":
        return f"was killed by {name}", "dmesg says whether memory ran out: fewer bytes a rank then"
    return f"was killed by {name}", ""


# Virtual ranks


def _in_threads(
    target: Target,
    num_ranks: int,
    args: Sequence[Any],
    choice: Choice,
    timeout_s: float,
    debug: bool,
    channels: tuple[str, ...],
    look: Callable[[], None],
) -> int:
    world = World(num_ranks, channels)

    def run(rank: int) -> None:
        try:
            ours = Virtual(world, rank, timeout_s=timeout_s, debug=debug, why=choice.why)
            target(ours, *args)
            ours.close()
        except BaseException as error:
            if num_ranks == 1 and not isinstance(error, Exception):
                raise
            _failed(world.board, rank, error)

    if num_ranks == 1:
        run(0)
    else:
        # Daemons: one that hangs cannot be ended, and must not keep this process.
        threads = [
            threading.Thread(target=run, args=(rank,), name=f"tiergnn-rank-{rank}", daemon=True)
            for rank in range(num_ranks)
        ]
        for thread in threads:
            thread.start()
        _join(threads, world.board, timeout_s, look)
    look()
    failure = world.board.failure()
    if failure is not None:
        raise failure.error()
    return 0


def _failed(board: Board, rank: int, error: BaseException) -> None:
    if isinstance(error, RankError):
        return  # told already
    cause, hint, kind = told(error)
    action = board.action_of(rank)
    board.fail(Failure(rank=rank, by=rank, action=action, cause=cause, hint=hint, kind=kind))
    if os.environ.get("TIERGNN_DEBUG"):
        sys.excepthook(type(error), error, error.__traceback__)


def _join(
    threads: Sequence[threading.Thread],
    board: Board,
    timeout_s: float,
    look: Callable[[], None],
) -> None:
    """Until all have ended, or after a failure the rest of the time: also what is raised waits for
    them, since ranks that go on write to what another job may take up by then."""
    last_s = timeout_s * (LEAVE_FRAC + TERM_FRAC)
    try:
        failed_at = None
        while any(thread.is_alive() for thread in threads):
            for thread in threads:
                thread.join(_LOOK_S / len(threads))
            look()
            if failed_at is None and board.failure() is not None:
                failed_at = time.monotonic()
            if failed_at and time.monotonic() - failed_at > last_s:
                return
    except BaseException:  # Ctrl-C, or of ``look``
        launcher = board.num_ranks
        board.fail(Failure(rank=0, by=launcher, action=board.action_of(0), cause="was interrupted"))
        ends = time.monotonic() + last_s
        for thread in threads:
            thread.join(max(0.0, ends - time.monotonic()))
        raise

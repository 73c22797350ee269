"""How far a job with phases is: a bar on a terminal, a plain line a tenth of a phase elsewhere."""

from __future__ import annotations

import sys
from contextlib import suppress
from time import monotonic
from types import TracebackType
from typing import IO, TYPE_CHECKING

from tiergnn.units import format_seconds

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_LINE_S = 2.0  # least seconds between two plain lines of one phase


class Phases:
    """Called with (phase, done, total); entered and left around the job. Writes to stderr."""

    def __init__(self, *, quiet: bool = False, file: IO[str] | None = None):
        self._file = sys.stderr if file is None else file
        self._quiet = quiet
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._phase = ""
        self._began = self._told = 0.0

    def __enter__(self) -> Phases:
        if not self._quiet and self._file.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f} %"),
                TimeRemainingColumn(),
                console=Console(file=self._file),
            )
            bar.start()
            self._bar = bar
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._phase and error is None:
            self._end_line()

    def __call__(self, phase: str, done: int, total: int) -> None:
        if self._quiet:
            return
        if self._bar is not None:
            if phase != self._phase:
                self._task = self._bar.add_task(phase, total=total)
            assert self._task is not None
            self._bar.update(self._task, completed=done, total=total)
            self._phase = phase
            return
        now = monotonic()
        if phase != self._phase:
            if self._phase:
                self._end_line()
            self._phase, self._began, self._told = phase, now, now
        elif now - self._told >= _LINE_S and 0 < done < total:
            self._print(f"{phase}: {100 * done // total} %")
            self._told = now

    def _end_line(self) -> None:
        took = format_seconds(monotonic() - self._began)
        self._print(f"{self._phase}: done in {took}")

    def _print(self, line: str) -> None:
        # Whoever read the lines may have left (`| head`): the job goes on untold.
        with suppress(BrokenPipeError):
            print(line, file=self._file, flush=True)

"""What a run tells while it trains: a JSON line an epoch, TensorBoard, and people."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from tiergnn.errors import ConfigError
from tiergnn.files import from_json, json_bytes, unwritable, write_whole
from tiergnn.units import format_seconds

Record = dict[str, Any]


class JsonLog:
    """``log.jsonl``: one line an epoch. Opening writes the history anew, so none is there twice."""

    def __init__(self, path: Path, history: list[Record]):
        self.path = path
        write_whole(path, b"".join(map(json_bytes, history)))
        try:
            self._file = open(path, "ab")  # noqa: SIM115 - closed by close()
        except OSError as error:
            raise unwritable(path, error) from error

    def epoch(self, record: Record) -> None:
        try:
            self._file.write(json_bytes(record))
            self._file.flush()
        except OSError as error:
            raise unwritable(self.path, error) from error

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()


class Tail:
    """What another process writes into ``log.jsonl``, told to ``shown`` as it comes.

    The log counts from when it is written anew, and from the epoch after ``done``.
    """

    def __init__(self, path: Path, done: int, shown: Bar | Lines | Callback | None):
        self.path, self.epoch = path, done
        self._shown, self._before = shown, _identity(path)
        self._read_bytes = 0

    def look(self) -> None:
        """Read on, and tell what is new."""
        if _identity(self.path) in (None, self._before):
            return
        with open(self.path, "rb") as file:
            file.seek(self._read_bytes)
            whole, _, _ = file.read().rpartition(b"\n")
        for line in whole.splitlines(keepends=True):
            self._read_bytes += len(line)
            record = from_json(line)
            if record["epoch"] > self.epoch:
                self.epoch = record["epoch"]
                if self._shown is not None:
                    self._shown.epoch(record)
        self._read_bytes += bool(whole)  # the line's end that was parted from the last

    def close(self) -> None:
        if self._shown is not None:
            self._shown.close()


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file is at a path now; None for none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


class TensorBoard:
    """Scalars of every epoch, for ``tensorboard --logdir RUN``."""

    def __init__(self, path: Path, history: list[Record]):
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError as error:
            raise ConfigError(
                "tensorboard=True needs the tensorboard package, which is not installed",
                hint="pip install 'tiergnn[tensorboard]'",
            ) from error
        # What was written after the checkpoint that a run resumes from is dropped by the reader.
        self._writer = SummaryWriter(str(path), purge_step=len(history) + 1)

    def epoch(self, record: Record) -> None:
        for name, value in record.items():
            if isinstance(value, Mapping):
                for metric, number in value.items():
                    if number is not None:
                        self._writer.add_scalar(f"{name}/{metric}", number, record["epoch"])
            elif name != "epoch":
                self._writer.add_scalar(name, value, record["epoch"])

    def close(self) -> None:
        self._writer.close()


class Bar:
    """A progress bar, on a terminal."""

    def __init__(self, epochs: int, done: int, metric: str):
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._metric = metric
        self._progress = Progress(
            TextColumn("epoch {task.completed}/{task.total}"),
            BarColumn(),
            TextColumn("{task.fields[news]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._progress.start()
        self._task = self._progress.add_task("", total=epochs, completed=done, news="")

    def epoch(self, record: Record) -> None:
        self._progress.update(
            self._task, completed=record["epoch"], news=describe(record, self._metric)
        )

    def close(self) -> None:
        self._progress.stop()


class Lines:
    """About ten plain lines a run, where there is no terminal."""

    def __init__(self, epochs: int, metric: str, file: IO[str]):
        self._epochs, self._metric, self._file = epochs, metric, file

    def epoch(self, record: Record) -> None:
        epoch, every = record["epoch"], max(1, self._epochs // 10)
        if epoch % every == 0 or epoch in (1, self._epochs):
            news = describe(record, self._metric)
            # Whoever read the lines may have left (`| head`): the run goes on untold.
            with contextlib.suppress(BrokenPipeError):
                print(f"epoch {epoch}/{self._epochs}  {news}", file=self._file, flush=True)

    def close(self) -> None:
        """Nothing is held."""


class Callback:
    """The caller's own function gets every record."""

    def __init__(self, function: Callable[[Record], None]):
        self.epoch = function

    def close(self) -> None:
        """Nothing is held."""


def show(
    progress: bool | Callable[[Record], None], epochs: int, done: int, metric: str
) -> Bar | Lines | Callback | None:
    """Who tells people: a bar on a terminal, plain lines elsewhere, the caller, or nobody."""
    if callable(progress):
        return Callback(progress)
    if not progress:
        return None
    if sys.stderr.isatty():
        return Bar(epochs, done, metric)
    return Lines(epochs, metric, sys.stderr)


def describe(record: Record, metric: str) -> str:
    """``loss 1.2345  val accuracy 0.812  31.0 ms``."""
    news = f"loss {record['loss']:.4f}"
    for split in ("train", "val", "test"):
        value = record.get(split, {}).get(metric)
        if value is not None:
            news += f"  {split} {value:.4f}"
    return f"{news}  {format_seconds(record['seconds'])}"

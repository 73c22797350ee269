"""RunRecord: what a run folder tells of a run, read without torch and without its checkpoints."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiergnn.errors import StoreError, shell_word
from tiergnn.files import from_json, read_json
from tiergnn.planner.plan import Plan
from tiergnn.schedule.timeline import Timeline
from tiergnn.training.folder import RunFolder

_RESULT = {"best_epoch", "metrics", "peak_bytes", "epochs", "finished"}
_EPOCH = {"epoch", "loss", "lr", "seconds"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A run, finished or not. ``history``: the records of ``log.jsonl``, one an epoch."""

    path: Path
    model: str  # a ready model's name and options, or the text of the user's own module
    graph: str
    options: Mapping[str, Any]
    versions: Mapping[str, str]
    history: tuple[Mapping[str, Any], ...]
    result: Mapping[str, Any] | None  # None until the run has finished
    plan: Plan | None = None  # what it was made by, when there was one
    timeline: Timeline | None = None  # of the last epoch that was measured

    @classmethod
    def read(cls, path: str | Path) -> RunRecord:
        """Raises StoreError when the folder is not a run, or a file of it is damaged."""
        folder, record = RunFolder.open(path)
        file = folder.path / "result.json"
        result = read_json(file) if file.exists() else None
        if result is not None and not (isinstance(result, dict) and result.keys() >= _RESULT):
            raise StoreError(
                "result.json is not the result of a run",
                culprit=str(file),
                hint="`tiergnn resume` of the finished run writes it anew",
            )
        return cls(
            path=folder.path,
            model=_model(record["model"]),
            graph=record["graph"]["path"] or "in memory",
            options=record["options"],
            versions=record["versions"],
            history=_history(folder.log),
            result=result,
            plan=folder.read_plan(),
            timeline=folder.read_timeline(),
        )

    @property
    def epochs(self) -> int:
        return len(self.history)

    @property
    def best_epoch(self) -> int | None:
        """The epoch whose weights were kept; None while the run goes on."""
        return None if self.result is None else self.result["best_epoch"]

    @property
    def metrics(self) -> dict[str, Mapping[str, float | None]]:
        """split -> name -> value, of the best epoch, or of the newest one while the run goes on."""
        if self.result is not None:
            return self.result["metrics"]
        evaluated = [record for record in self.history if "eval_seconds" in record]
        return splits_of(evaluated[-1]) if evaluated else {}

    @property
    def seconds_per_epoch(self) -> float | None:
        """Median of the steps after the first, which compiles kernels."""
        seconds = [record["seconds"] for record in self.history]
        return statistics.median(seconds[1:] or seconds) if seconds else None

    @property
    def peak_bytes(self) -> Mapping[str, int]:
        """Tier -> bytes; empty while the run goes on."""
        return {} if self.result is None else self.result["peak_bytes"]

    @property
    def peak_of(self) -> dict[str, str]:
        """Tier -> what was measured there: "process" (its code included), or "tensors" alone."""
        staged = self.plan is not None and self.plan.strategy != "resident"
        return {
            tier: "process" if tier == "host" and not staged else "tensors"
            for tier in self.peak_bytes
        }

    @property
    def measured_over_predicted(self) -> float | None:
        """Seconds of an epoch over those of the plan; None without either."""
        measured, predicted = self.seconds_per_epoch, self.plan and self.plan.seconds
        return measured / predicted if measured is not None and predicted else None

    @property
    def status(self) -> str:
        asked = self.options["epochs"]
        if self.result is None or self.result["epochs"] != self.epochs:
            command = f"tiergnn resume {shell_word(self.path)}"
            return f"not finished: {self.epochs} epochs done; {command} goes on"
        if self.result["finished"] == "patience":
            return f"finished after {self.epochs} of {asked} epochs: validation had stopped rising"
        return f"finished: {self.epochs} epochs"


def splits_of(record: Mapping[str, Any]) -> dict[str, Mapping[str, float | None]]:
    """split -> metric -> value of one epoch's record."""
    return {name: value for name, value in record.items() if isinstance(value, dict)}


def _model(record: Mapping[str, Any]) -> str:
    ready = record["ready"]
    if ready is None:
        return record["text"]
    options = ", ".join(f"{name}={value}" for name, value in ready["options"].items())
    return f"{ready['name']}({ready['in_channels']} -> {ready['out_channels']}; {options})"


def _history(path: Path) -> tuple[Mapping[str, Any], ...]:
    """Every whole line; a run that was killed may have left part of one at the end."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise StoreError(f"cannot read {path.name}: {error.strerror}", culprit=str(path)) from error
    records = []
    for number, line in enumerate(lines[:-1], 1):
        try:
            record = from_json(line)
        except ValueError:
            record = None
        if not isinstance(record, dict) or not record.keys() >= _EPOCH:
            raise StoreError(
                f"line {number} is not the record of an epoch: changed or damaged",
                culprit=str(path),
                hint="`tiergnn resume` writes the log anew from its checkpoint",
            )
        records.append(record)
    return tuple(records)

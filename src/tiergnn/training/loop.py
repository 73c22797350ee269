"""The loop: one epoch is one full-graph step, and an evaluation of every split.

Legend: V nodes, C outputs.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from tiergnn.errors import ConfigError, Interrupted, PlanError
from tiergnn.runtime.executor import Resident
from tiergnn.runtime.memory import device_budget
from tiergnn.runtime.ranked import Ranked
from tiergnn.runtime.staged import Staged
from tiergnn.runtime.staged_walk import Stopped
from tiergnn.training.assemble import Held
from tiergnn.training.checkpoint import Checkpoint, Checkpoints, check_fits
from tiergnn.training.folder import RunFolder
from tiergnn.training.log import JsonLog, Record, TensorBoard, show
from tiergnn.training.optimizers import (
    make_optimizer,
    make_scheduler,
    needs_closure,
    wants_metric,
)
from tiergnn.training.options import Options
from tiergnn.training.outputs import judged_output
from tiergnn.training.peers import Peers
from tiergnn.training.randomness import get_random, random_state, set_random
from tiergnn.training.scoring import Scores, Scoring
from tiergnn.training.stop import StopSignals
from tiergnn.units import format_bytes

LR, WEIGHT_DECAY = 0.01, 0.0
_MEASURE_EVERY = 16  # epochs; the second and the last are measured, too
_CHECKPOINT_S = 30.0  # between checkpoints when no number of epochs is given
_EMBEDDING = "features.embedding"  # the name of learned feature rows among the weights
_log = logging.getLogger("tiergnn")


@dataclass(slots=True)
class Progress:
    """How far a run has come; all of it is in every checkpoint."""

    epoch: int = 0
    best_epoch: int = 0
    best_value: float | None = None
    finished: str | None = None  # why it ended: "epochs" or "patience"
    history: list[Record] = field(default_factory=list)


def take_up(progress: Progress, epochs: int) -> Progress:
    """A run's progress when it is to go on to ``epochs``. Raises ConfigError when it is past."""
    done = progress.epoch
    if epochs < done:
        raise ConfigError(f"the run has done {done} epochs, more than {epochs}")
    if progress.finished == "epochs" and epochs > done:
        progress.finished = None
    elif progress.finished:
        way = "a larger total goes on: epochs=N (--epochs)"
        if progress.finished == "patience":
            way = "its patience was at an end"
        _log.warning("nothing to do: the run is finished, after %d epochs; %s", done, way)
    return progress


class Trainer:
    """Trains what a Resident holds, by ``options``; into a folder after ``keep_in``. ``planned``:
    by a plan, which bounds what is held."""

    def __init__(
        self,
        resident: Held,
        scoring: Scoring,
        options: Options,
        peers: Peers | None = None,
        *,
        planned: bool = False,
    ):
        self._planned = planned
        self.resident, self.scoring, self.options = resident, scoring, options
        self.peers = peers or Peers()
        self.progress = Progress()
        self._loss: Callable[..., Tensor] = scoring.loss
        if isinstance(resident, Staged):
            self._loss = scoring.by_parts(resident.parts.gids, resident.device)
        elif isinstance(resident, Ranked):
            self._loss = scoring.by_parts({resident.rank: resident.rows}, resident.device)
        self._judging = "val" if scoring.judged("val") else None
        if options.patience is not None and self._judging is None:
            raise ConfigError(
                "patience needs a validation split with labels, and there is none",
                hint='split="random:0.6/0.2/0.2", or no patience',
            )
        embedding = resident.embedding
        self._params = list(resident.model.parameters())
        self._params += [] if embedding is None else [embedding]
        self.optimizer = make_optimizer(
            options.optimizer,
            resident.model,
            [] if embedding is None else [embedding],
            LR if options.lr is None else options.lr,
            WEIGHT_DECAY if options.weight_decay is None else options.weight_decay,
        )
        self.scheduler = make_scheduler(
            options.scheduler, self.optimizer, options.epochs, scoring.mode
        )
        self._plateau = "metric"
        if wants_metric(self.scheduler):
            self._plateau = _plateau_value(self.scheduler.mode, scoring)
        self.folder: RunFolder | None = None
        self._checkpoints: Checkpoints | None = None
        self._best: dict[str, Tensor] = {}

    def keep_in(self, folder: RunFolder) -> None:
        """Write the log and the checkpoints to this folder."""
        self.folder, self._checkpoints = folder, Checkpoints(folder.checkpoints)

    def restore(self) -> None:
        """Take up the folder's newest sound checkpoint. Raises ConfigError, StoreError."""
        found, source = None, ""
        if self._checkpoints is not None:
            saved, source = self._checkpoints.load(), str(self._checkpoints.folder)
            found = {"weights": saved.weights, "best": saved.best, **saved.state}
        found = self.peers.state_of_first(found, "load checkpoint")
        load_weights(self.resident, found["weights"], source)
        self.optimizer.load_state_dict(found["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(found["scheduler"])
        self.progress = take_up(Progress(**found["progress"]), self.options.epochs)
        self._best = found["best"]
        self._random_state = found["random"]

    def fit(self, progress: bool | Callable[[Record], None]) -> None:
        """Train to the end; afterwards the model has its best weights.

        torch's global random state is the run's own inside, and is put back at the end.
        Raises ConfigError, PlanError, StoreError, Interrupted.
        """
        device, state = self.resident.device, self.progress
        with (
            random_state(device, self.options.seed),
            device_budget(device, self.options.device_memory_bytes, self.resident.before_bytes),
            StopSignals() as stop,
            ExitStack() as closing,
        ):
            if state.epoch:
                set_random(device, self._random_state)
            else:
                self._save()  # so that a run can be resumed from its first second on
            if not isinstance(self.resident, Resident) and not needs_closure(self.optimizer):
                self.resident.stop_when(lambda: stop.signum is not None)
            listeners = self._listeners(progress)
            for listener in listeners:
                closing.callback(listener.close)
            clock = time.monotonic()
            while state.finished is None:
                try:
                    record = self._epoch(state.epoch + 1)
                except Stopped:  # within an epoch that takes long; it is done again on resume
                    self.optimizer.zero_grad(set_to_none=True)
                    signum = self._wished(stop)
                    self._save()
                    assert signum is not None
                    raise self._interrupted(signum) from None
                for listener in listeners:
                    listener.epoch(record)
                due = time.monotonic() - clock > _CHECKPOINT_S
                if self.options.checkpoint_every is not None:
                    due = state.epoch % self.options.checkpoint_every == 0
                signum = self._wished(stop)
                if due or state.finished or signum is not None:
                    self._save()
                    clock = time.monotonic()
                if signum is not None and state.finished is None:
                    raise self._interrupted(signum)
        load_weights(self.resident, self._best, "the best weights")

    def _wished(self, stop: StopSignals) -> int | None:
        """The signal that some rank was sent, the same on all of them."""
        words = self.peers.words(stop.signum, "end of epoch")
        return next((word for word in words if word is not None), None)

    def _interrupted(self, signum: int) -> Interrupted:
        where = None if self.folder is None else str(self.folder.path)
        return Interrupted(self.progress.epoch, where, signum)

    def _epoch(self, epoch: int) -> Record:
        """One step and, when it is due, one evaluation; its record, also kept in the history."""
        start = time.perf_counter()
        lr = self.optimizer.param_groups[0]["lr"]
        loss = self._step(epoch)
        if self.resident.device.type == "cuda":
            torch.cuda.synchronize(self.resident.device)
        stepped = time.perf_counter()
        record: Record = {"epoch": epoch, "loss": loss, "lr": float(lr)}
        record["seconds"] = stepped - start
        state = self.progress
        state.epoch = epoch
        last = epoch == self.options.epochs
        if epoch % self.options.eval_every == 0 or last:
            record |= self._scores()
            record["eval_seconds"] = time.perf_counter() - stepped
            self._judge(epoch, record)
        self._schedule(record)
        state.history.append(record)
        if last:
            state.finished = "epochs"
        patience = self.options.patience
        if patience is not None and "eval_seconds" in record:
            state.finished = "patience" if epoch - state.best_epoch >= patience else state.finished
        self._check_budget()
        return record

    def _scores(self) -> dict[str, Scores]:
        """Of every split, made where all judged rows of the output are, which are not kept."""
        out = judged_output(self.resident, self.scoring)
        scores = None if out is None else self.scoring.scores(out)
        return self.peers.of_first(scores, "scores")

    def _step(self, step: int) -> float:
        """One optimizer step, by the gradient of the whole graph; the loss before it."""
        losses = []

        def closure() -> float:
            self.optimizer.zero_grad(set_to_none=True)
            loss = self.resident.train_step(self._loss, step, measure=self._measures(step))
            if not math.isfinite(loss):
                cause = self.resident.not_finite()
                raise ConfigError(
                    f"the training loss became {loss} in epoch {step}"
                    + (f": {cause}" if cause else ""),
                    hint="finite numbers in the graph (numpy.nan_to_num), or dtype='float64' where "
                    "they are too large for the model's dtype"
                    if cause
                    else "a smaller lr, clip=1.0, or features of moderate size",
                )
            if self.options.clip is not None:
                clip_norm(self._params, self.options.clip)
            losses.append(loss)
            return loss

        if not needs_closure(self.optimizer):
            closure()
        if needs_closure(self.optimizer):
            self.optimizer.step(closure)  # pyright: ignore[reportArgumentType]
        else:
            self.resident.update(self.optimizer.step)
        return losses[0]

    def _measures(self, step: int) -> bool:
        """Whether to note when each action runs, which takes a little time itself."""
        return step in (2, self.options.epochs) or step % _MEASURE_EVERY == 0

    def _judge(self, epoch: int, record: Record) -> None:
        """Keep the weights when validation is better than ever; without validation, always."""
        value = None
        if self._judging is not None:
            value = record[self._judging][self.scoring.metric_name]
        best, mode = self.progress.best_value, self.scoring.mode
        if value is not None and math.isnan(value):
            value = None
        # While the metric is undefined (one class only) the newest weights are kept.
        better = best is None
        if value is not None and best is not None:
            better = value > best if mode == "max" else value < best
        if better:
            self.progress.best_value = value
            self.progress.best_epoch = epoch
            self._best = weights_of(self.resident)

    def _schedule(self, record: Record) -> None:
        if self.scheduler is None:
            return
        if not wants_metric(self.scheduler):
            try:
                self.scheduler.step()
            except ValueError as error:
                raise ConfigError(
                    f"the scheduler refuses epoch {record['epoch']}: {error}",
                    hint="a schedule as long as the run",
                ) from error
            return
        split = self._judging or "train"
        if split not in record:
            return  # this epoch was not evaluated: there is nothing to tell
        name = self.scoring.metric_name if self._plateau == "metric" else "loss"
        if record[split][name] is not None:
            self.scheduler.step(record[split][name])

    def _check_budget(self) -> None:
        """On the CPU no allocator holds a run without a plan to its budget, so its peak is looked
        at: that of the process, its code included."""
        budget = self.options.device_memory_bytes
        self.resident.sample_memory()
        if budget is None or self.resident.device.type == "cuda" or self._planned:
            return
        assert isinstance(self.resident, Resident)
        peak = self.resident.peak_bytes["host"]
        if peak > budget:
            raise PlanError(
                f"training took {format_bytes(peak)}, device_memory allows {format_bytes(budget)}",
                hint=f"device_memory of {format_bytes(1.1 * peak)}, a narrower model, or a plan "
                "within that memory, which host memory may help: tiergnn.plan(graph, model, "
                "device_memory=...)",
            )

    def _save(self) -> None:
        if self._checkpoints is None:
            return
        self.peers.at("write checkpoint")
        state, weights = self.progress, weights_of(self.resident)
        self._checkpoints.save(
            Checkpoint(
                epoch=state.epoch,
                weights=weights,
                best_epoch=state.best_epoch,
                best=self._best or weights,
                state={
                    "progress": {name: getattr(state, name) for name in Progress.__slots__},
                    "optimizer": self.optimizer.state_dict(),
                    "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
                    "random": get_random(self.resident.device),
                },
            )
        )

    def _listeners(self, progress: bool | Callable[[Record], None]) -> list[Any]:
        history, listeners = self.progress.history, []
        if self.folder is not None:
            listeners.append(JsonLog(self.folder.log, history))
            if self.options.tensorboard:
                listeners.append(TensorBoard(self.folder.tensorboard, history))
        shown = show(progress, self.options.epochs, len(history), self.scoring.metric_name)
        return listeners if shown is None else [*listeners, shown]


class Weighted(Protocol):
    """What has weights: a model, and learned feature rows or none."""

    model: nn.Module
    embedding: nn.Parameter | None


def weights_of(resident: Weighted) -> dict[str, Tensor]:
    """A copy on the CPU of the model's state_dict, and of learned feature rows.

    Raises ConfigError when the state_dict holds what is not a tensor.
    """
    weights = {}
    for name, value in resident.model.state_dict().items():
        if not isinstance(value, Tensor):
            raise ConfigError(
                f"the model's state_dict holds a {type(value).__name__}, not a tensor, at {name!r}",
                hint="keep it in a buffer: register_buffer(name, tensor)",
            )
        weights[name] = value.detach().to("cpu", copy=True)
    if resident.embedding is not None:
        weights[_EMBEDDING] = resident.embedding.detach().to("cpu", copy=True)
    return weights


def load_weights(resident: Weighted, weights: dict[str, Tensor], source: str) -> None:
    """Put ``weights_of`` back. Raises ConfigError when names or shapes differ."""
    check_fits(weights, weights_of(resident), source)
    weights = dict(weights)
    if resident.embedding is not None:
        resident.embedding.data.copy_(weights.pop(_EMBEDDING))
    resident.model.load_state_dict(weights)


def clip_norm(params: list[nn.Parameter], limit: float) -> float:
    """Scale all gradients so that their norm together is at most ``limit``; the norm before."""
    return float(torch.nn.utils.clip_grad_norm_(params, limit))


def _plateau_value(mode: str, scoring: Scoring) -> str:
    """What a ReduceLROnPlateau is told: the metric when both agree which way is better."""
    if mode == scoring.mode:
        return "metric"
    if mode == "min":
        return "loss"
    raise ConfigError(
        f"the scheduler waits for a maximum, and less {scoring.metric_name} is better",
        hint="ReduceLROnPlateau(optimizer, mode='min')",
    )

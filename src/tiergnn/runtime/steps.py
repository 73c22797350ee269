"""Steps: walks of one model's schedules, on a GPU on one stream and recorded where they can be."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from tiergnn.kernels.dropout import Key
from tiergnn.models.trace import Program
from tiergnn.planner.plan import Plan
from tiergnn.runtime.capture import Capture
from tiergnn.runtime.staged_walk import StagedWalk, Stopped
from tiergnn.runtime.visits import Share
from tiergnn.schedule.recording import LONGEST_S


class Steps:
    """Of one model on ``device``. On a GPU all walks are told on one stream, and what they hold
    goes from one to the next; ``streams`` are those of their lanes, by name."""

    def __init__(self, device: torch.device):
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.streams: dict[str, torch.cuda.Stream] = {}
        self._capture: Capture | None = None
        self._warm: weakref.WeakSet[StagedWalk] = weakref.WeakSet()

    def record(self, model: nn.Module, program: Program, walk: StagedWalk, plan: Plan) -> None:
        """Record training steps after the first ones and replay them from then on: where a GPU does
        everything, in a step that is not too long to wait for, and no layer is called whole, whose
        Python might decide."""
        opaque = any(stage.opaque for stage in program.stages)
        if walk.queued and not opaque and plan.seconds <= LONGEST_S:
            tensors = [*model.parameters(), *model.buffers()]
            self._capture = Capture(self._device, tensors, stream=self._stream)

    @property
    def refused(self) -> str | None:
        """Why steps are not replayed; None where they are, or will be."""
        if self._capture is None:
            return "not everything is done by a GPU, or a step is long"
        return self._capture.refused or None

    @property
    def replays(self) -> bool:
        """Whether a step is recorded now."""
        return self._capture is not None and self._capture.recorded

    def train(self, walk: StagedWalk, key: Key, share: Share | None, of: object) -> Tensor:
        """The loss; a record is of one ``share`` and of what ``of`` says."""
        with self._on_stream():
            if self._capture is None:
                return walk.run(key, share)
            if walk.stopped():
                raise Stopped
            loss = self._capture.run(lambda key: walk.run(key, share), key, (share, of))
            if loss is None:
                self._capture.forget()
                loss = walk.run(key, share)
            return loss

    def evaluate(self, walk: StagedWalk) -> None:
        """A pass whose answers the walk gives; on a GPU they may lie where the next replay writes.

        What a walk makes once and keeps it makes in its first pass, which must not share memory
        with a record: one that is there is given up for it.
        """
        with self._on_stream():
            if self._capture is None or walk not in self._warm:
                self.close()
                walk.run(None, None)
                self._warm.add(walk)
                return
            with self._capture.sharing():
                walk.run(None, None)

    @contextmanager
    def _on_stream(self) -> Iterator[None]:
        if self._stream is None:
            yield
            return
        outside = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(outside)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            outside.wait_stream(self._stream)

    def close(self) -> None:
        """Give back what a record holds."""
        if self._capture is not None:
            self._capture.forget()

"""Capture: a training step recorded as a CUDA graph, so that all of its launches are one.

A recorded step does again what it did when it was recorded, under another dropout key: it reads
parameters where they lie, and leaves the loss and the gradients where it left them. What it takes
on its way stays reserved for it, beside what an evaluation takes. The same kernels run in the same
order, so that every number has the same bits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from tiergnn.kernels.dropout import Key, step_key
from tiergnn.runtime.memory import available_bytes

EAGER = 2  # steps that run as they are first: kernels are compiled, and what is made once is made
_log = logging.getLogger("tiergnn")


class Capture:
    """Of one model's step on a CUDA device; ``tensors`` are its parameters and buffers.

    ``budget_bytes``: the most that the process may hold on the device; None: all that there is.
    """

    def __init__(
        self, device: torch.device, tensors: Iterable[Tensor], budget_bytes: int | None = None
    ):
        self._device, self._budget_bytes = device, budget_bytes
        self._tensors = list(tensors)
        self._params = [t for t in self._tensors if isinstance(t, nn.Parameter)]
        self._seen = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._recorded: tuple[object, ...] = ()
        self._key: Key | None = None
        self._loss: Tensor | None = None
        self._grads: list[Tensor | None] = []
        self.refused = ""  # why nothing is recorded

    def run(self, step: Callable[[Key], Tensor], key: Key, of: object) -> Tensor | None:
        """The loss of ``step(key)``, its gradients in ``.grad``; None where it is not to be
        replayed: run it as it is.

        ``of`` is what the step's loss is made by: a step that is another is not replayed.
        """
        if self.refused or any(param.grad is not None for param in self._params):
            return None  # gradients that are added to are not where the record has them
        state = of, *((t.data_ptr(), t.requires_grad) for t in self._tensors)
        if self._graph is None or state != self._recorded:
            self._seen += 1
            if self._seen <= EAGER or not self._has_room() or not self._record(step, state):
                return None
        assert self._graph is not None
        assert self._key is not None
        self._key.copy_(key)
        self._graph.replay()
        for param, grad in zip(self._params, self._grads, strict=True):
            param.grad = grad
        return self._loss

    def _has_room(self) -> bool:
        """Whether twice what a step or an evaluation took so far goes beside what is held."""
        held = torch.cuda.memory_allocated(self._device)
        peak = torch.cuda.max_memory_allocated(self._device)
        room = available_bytes(self._device) + held
        room = room if self._budget_bytes is None else min(room, self._budget_bytes)
        if held + 2 * (peak - held) > room:
            self._refuse("it would keep as much again reserved, for which there is no room")
        return not self.refused

    def _record(self, step: Callable[[Key], Tensor], state: tuple[object, ...]) -> bool:
        """Nothing is computed meanwhile. What cannot be recorded changes nothing either."""
        self._graph, self._loss, self._grads = None, None, []
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.current_stream(self._device)
        try:
            with torch.cuda.device(self._device):
                self._key = step_key(0, 0, self._device)
                with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                    self._loss = step(self._key)
        except RuntimeError as error:  # it waits for the device, or memory is short
            torch.cuda.set_stream(stream)  # which a failed recording leaves as its own
            self._loss = None
            self._refuse((str(error) or type(error).__name__).splitlines()[0])
        else:
            self._graph, self._recorded = graph, state
            self._grads = [param.grad for param in self._params]
        for param in self._params:
            param.grad = None
        return not self.refused

    def _refuse(self, reason: str) -> None:
        self.refused = reason
        _log.info("steps are not recorded as a CUDA graph: %s", reason)

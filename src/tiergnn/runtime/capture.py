"""Capture: a training step recorded as a CUDA graph, so that all of its launches are one.

A recorded step does again what it did when it was recorded, under another dropout key: it reads
parameters where they lie, and leaves the loss and the gradients where it left them. What it takes
on its way stays reserved for it, beside what an evaluation takes or shared with it. The same
kernels run in the same order, so that every number has the same bits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from tiergnn.kernels.addresses import Page, not_kept, recording
from tiergnn.kernels.dropout import Key, step_key
from tiergnn.runtime.memory import available_bytes

EAGER = 2  # steps that run as they are first: kernels are compiled, and what is made once is made
STEP, MEASURED = "step", "measured step"  # what is recorded: as it is, noting when actions run
_log = logging.getLogger("tiergnn")


@dataclass
class _Record:
    graph: torch.cuda.CUDAGraph
    page: Page  # of addresses that it reads
    loss: Tensor
    grads: list[Tensor | None]


class Capture:
    """Of one model's step on a CUDA device; ``tensors`` are its parameters and buffers. Records of
    a step as it is and of one that is measured share memory: what is taken on the way once.

    ``budget_bytes``: the most that the process may hold on the device; None: all that there is.
    ``stream`` is the one that steps run on, where what they hold goes from one to the next: then
    a record takes the place of that, and needs no room of its own. None: any.
    """

    def __init__(
        self,
        device: torch.device,
        tensors: Iterable[Tensor],
        budget_bytes: int | None = None,
        stream: torch.cuda.Stream | None = None,
    ):
        self._device, self._budget_bytes, self._stream = device, budget_bytes, stream
        self._tensors = list(tensors)
        self._params = [t for t in self._tensors if isinstance(t, nn.Parameter)]
        self._seen = 0
        self._records: dict[str, _Record] = {}
        self._pool: Any = None  # of the memory that records keep
        self._of: tuple[object, ...] = ()  # what they are of
        self._key: Key | None = None
        self._failed: dict[str, str] = {}

    @property
    def refused(self) -> str:
        """Why steps are not recorded; "" where they are, or will be."""
        return self._failed.get(STEP, "")

    def run(
        self, step: Callable[[Key], Tensor], key: Key, of: object, what: str = STEP
    ) -> Tensor | None:
        """The loss of ``step(key)``, its gradients in ``.grad``; None where it is not to be
        replayed: run it as it is.

        ``of`` is what the step's loss is made by: a step that is another is not replayed. ``what``
        is STEP, or MEASURED for one whose record notes more.
        """
        if self.refused or what in self._failed:
            return None
        if any(param.grad is not None for param in self._params):
            return None  # gradients that are added to are not where the record has them
        state = of, *((t.data_ptr(), t.requires_grad) for t in self._tensors)
        if state != self._of:
            self.forget()
            self._of = state
        if what not in self._records:
            self._seen += 1
            ready = self._seen > EAGER and self._has_room(what)
            if not ready or not self._record(step, what):
                return None
        record = self._records[what]
        assert self._key is not None
        self._key.copy_(key)
        record.graph.replay()
        for param, grad in zip(self._params, record.grads, strict=True):
            param.grad = grad
        return record.loss

    @property
    def recorded(self) -> bool:
        """Whether there is something to replay."""
        return STEP in self._records

    def forget(self) -> None:
        """Give back what records hold; they are made again when they are wanted."""
        self._records.clear()
        self._pool = None

    @contextmanager
    def sharing(self) -> Iterator[None]:
        """What the calling thread takes inside is memory that records keep, between replays."""
        if self._pool is None:
            yield
            return
        with torch.cuda.use_mem_pool(self._pool, self._device), not_kept():
            yield

    def _has_room(self, what: str) -> bool:
        """Whether twice what a step or an evaluation took so far goes beside what is held."""
        if self._stream is not None:
            return True
        held = torch.cuda.memory_allocated(self._device)
        peak = torch.cuda.max_memory_allocated(self._device)
        room = available_bytes(self._device) + held
        room = room if self._budget_bytes is None else min(room, self._budget_bytes)
        if held + 2 * (peak - held) > room:
            self._refuse(what, "it would keep as much again reserved, for which there is no room")
        return what not in self._failed

    def _record(self, step: Callable[[Key], Tensor], what: str) -> bool:
        """Nothing is computed meanwhile. What cannot be recorded changes nothing either."""
        if not self._records:
            self._pool = SimpleNamespace(id=torch.cuda.graph_pool_handle())  # as pools are passed
            with torch.cuda.device(self._device):
                self._key = step_key(0, 0, self._device)
        graph, pool, mode = torch.cuda.CUDAGraph(), self._pool.id, "thread_local"
        stream = torch.cuda.current_stream(self._device)
        generator = torch.cuda.default_generators[self._device.index]
        drawn = generator.clone_state()
        assert self._key is not None
        try:
            with torch.cuda.device(self._device), recording(self._device) as page:
                with torch.cuda.graph(graph, pool, self._stream, capture_error_mode=mode):
                    loss = step(self._key)
                page.fill()
        except RuntimeError as error:  # it waits for the device, or memory is short
            torch.cuda.set_stream(stream)  # which a failed recording leaves as its own
            _end(self._device, pool)
            generator.graphsafe_set_state(drawn)  # it waits for the end of the recording
            self._refuse(what, _cause(error))
            _log.debug("where it failed", exc_info=error)
            if not self._records:
                self._pool = None
        else:
            grads = [param.grad for param in self._params]
            self._records[what] = _Record(graph, page, loss, grads)
        for param in self._params:
            param.grad = None
        return what in self._records

    def _refuse(self, what: str, reason: str) -> None:
        self._failed[what] = reason
        _log.info("a %s is not recorded as a CUDA graph: %s", what, reason)


def _cause(error: BaseException) -> str:
    """What failed first: the end of a recording that failed is an error, too."""
    while isinstance(error.__context__, RuntimeError):
        error = error.__context__
    return (str(error) or type(error).__name__).splitlines()[0]


def _end(device: torch.device, pool: Any) -> None:
    """Have the allocator know that a recording is over: one that failed does not say so, and
    nothing that is free could be given back any more."""
    with suppress(AttributeError, RuntimeError):
        end: Any = getattr(torch._C, "_cuda_endAllocateToPool")  # noqa: B009 - private
        end(device.index, pool)

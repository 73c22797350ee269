"""What follows the stages of a training step: the loss of the labelled rows, the optimizer's step.

Legend: V rows of the output, N labelled ones, C columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tiergnn.models.allocations import recording
from tiergnn.models.linearity import Law, peak_of
from tiergnn.models.passes import starts
from tiergnn.models.works import Works, terms
from tiergnn.workload import Extent, Peak, Size, Term

_COUNTS = ((1201, 307), (2003, 1511), (907, 601), (3001, 401), (1511, 1409), (4001, 3203))
_LEARNED = (20_000, 50_000)
_STEPS = 8  # until an optimizer's state has grown to its size: LBFGS keeps the last 100 directions


@dataclass(frozen=True)
class Ending:
    """``loss(V, N)`` gives what makes a scalar of the output [V, C], of which N rows are labelled.

    ``optimizer(parameters)`` makes the optimizer; ``update(optimizer, parameters, closure)`` moves
    the parameters by their gradients, as the trainer does.
    """

    loss: Callable[[int, int], Callable[[Tensor], Any]]
    optimizer: Callable[[list[nn.Parameter]], Optimizer]
    update: Callable[[Optimizer, list[nn.Parameter], Callable[[], float]], None]


class LossWork(NamedTuple):
    work: tuple[Term, ...]
    held: Peak


class StepWork(NamedTuple):
    work: tuple[Term, ...]
    held_bytes: int
    state_bytes: int


def meter_loss(ending: Ending, example: Tensor, *, training: bool) -> LossWork:
    """The loss and its gradient in the output, rows like those of ``example`` [P, ...].

    What it holds is beyond the output and the gradient of it, of V (sources) and N (rows) nodes.
    """
    events, done, extents = [], [], []
    for num_rows, num_labelled in _COUNTS:
        out = torch.rand(num_rows, *example.shape[1:], device=example.device).to(example.dtype)
        out = out.log_softmax(1) if out.dim() > 1 else out
        of_out = ending.loss(num_rows, num_labelled)
        extents.append(Extent(num_labelled, num_rows, 0))

        def once(out: Tensor = out, of_out: Callable[[Tensor], Any] = of_out) -> Any:
            if not training:
                with torch.no_grad():
                    return of_out(out)
            found: dict[str, Tensor] = {}
            loss = of_out(starts({"out": out.requires_grad_()}, found)["out"])
            loss.backward()
            return loss.detach(), found

        once()
        with recording(out.device) as allocations:
            allocations.mark("loss")
            result = once()
            allocations.mark("")
            del result
        events.append(allocations.by_mark["loss"])
        with Works() as works:
            once()
            done.append(works.take())
    law = Law(extents, [0] * len(extents))
    gradient = Size(per_source=example[0].numel() * example.element_size())
    less = gradient if training else Size()
    held = peak_of([total - less for total in law.totals(events)])
    return LossWork(terms(law, done), held)


def meter_step(ending: Ending, parameters: Iterable[nn.Parameter]) -> StepWork:
    """The optimizer's step on parameters of these shapes: what it holds meanwhile, and for good.

    A step that computes the loss again (LBFGS) holds both all the time that it does.
    """
    copies = [nn.Parameter(p.detach().clone()) for p in parameters if p.requires_grad]
    if not copies:
        return StepWork((), 0, 0)
    optimizer = ending.optimizer(copies)
    device = copies[0].device
    generator = torch.Generator(device).manual_seed(0)
    called = 0
    for p in copies:
        p.grad = torch.zeros_like(p)

    def closure() -> float:
        nonlocal called
        called += 1
        for p in copies:
            assert p.grad is not None
            p.grad.normal_(generator=generator)
        return 1.0

    held = 0
    for _ in range(_STEPS):
        before, called = _state_bytes(optimizer), 0
        with recording(device) as allocations:
            allocations.mark("step")
            ending.update(optimizer, copies, closure)
            allocations.mark("")
        totals = list(accumulate(allocations.by_mark["step"], initial=0))
        held = max(held, max(totals) + before - _state_bytes(optimizer))
    state_bytes = _state_bytes(optimizer)
    if called > 1:
        state_bytes, held = state_bytes + held, 0
    with Works() as works:
        ending.update(optimizer, copies, closure)
        done = works.take()
    law = Law([Extent(0, 0, 0)], [0])  # a step depends on no block
    return StepWork(terms(law, [done]), held, state_bytes)


def meter_learned(ending: Ending, row: Tensor, parameters: Sequence[nn.Parameter]) -> StepWork:
    """Of one more learned row like ``row`` [D]: what its step holds, and its state, in bytes."""
    few, many = (
        meter_step(ending, [*parameters, nn.Parameter(row.expand(count, -1).clone())])
        for count in _LEARNED
    )
    more = _LEARNED[1] - _LEARNED[0]
    return StepWork(
        (),
        -((few.held_bytes - many.held_bytes) // more),
        -((few.state_bytes - many.state_bytes) // more),
    )


def _state_bytes(optimizer: Optimizer) -> int:
    seen: dict[int, int] = {}
    waiting: list[Any] = list(optimizer.state.values())
    while waiting:
        value = waiting.pop()
        if isinstance(value, Tensor):
            storage = value.untyped_storage()
            seen[storage.data_ptr()] = storage.nbytes()
        elif isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list | tuple):
            waiting += value
    return sum(seen.values())

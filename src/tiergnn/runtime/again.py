"""Again: a pass begun anew where rows on the disk were not what was written there.

All that a pass leaves on the disk comes of the graph's rows, by the same key with the same bits. So
it is made again from these, within the schedule that was proved: a part made again by itself would
need room that nobody planned, while other lanes are at work.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from torch import Tensor, nn

from tiergnn.memory.store import Damaged
from tiergnn.runtime.staged_walk import buffers_put_back

Result = TypeVar("Result")
_TRIES = 3
_log = logging.getLogger("tiergnn")


def until_sound(
    walk: Callable[[], Result], model: nn.Module, mend: Callable[[Damaged], None]
) -> Result:
    """What ``walk`` gives. ``mend`` writes what it can before another try; what a try that failed
    added to gradients and moved of the model's buffers is taken back.

    Raises Damaged where rows are lost at every try.
    """
    before = [(p, None if p.grad is None else _copied(p.grad)) for p in model.parameters()]
    for tries_left in reversed(range(_TRIES)):
        try:
            with buffers_put_back(model):
                return walk()
        except Damaged as error:
            if not tries_left:
                raise
            _log.warning("%s\n  at: %s\n  they are made again", error.problem, error.culprit)
            mend(error)
            for parameter, grad in before:
                parameter.grad = None if grad is None else grad.to(parameter.device)
    raise AssertionError("unreachable")


def _copied(grad: Tensor) -> Tensor:
    """In host memory, of which a plan of rows on the disk has more than of the device's."""
    return grad.detach().to("cpu", copy=True)

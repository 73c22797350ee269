"""torch's own random numbers: for first weights, and for models that draw some themselves.

Dropout does not use them (see ``kernels.dropout``): a run depends on them only where a model does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def random_state(device: torch.device, seed: int) -> Iterator[None]:
    """Inside, torch's random numbers start from ``seed``; outside, nothing has changed."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


def get_random(device: torch.device) -> dict[str, Tensor]:
    """The state of the CPU's generator, and of the device's."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random(device: torch.device, state: dict[str, Tensor]) -> None:
    """Take up a state of ``get_random``; that of a device is left out where there is none."""
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)

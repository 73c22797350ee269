"""Outputs: what a run's model says of nodes: of all of them, or of those that are judged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tiergnn.runtime.executor import Resident
from tiergnn.runtime.ranked import Ranked
from tiergnn.runtime.staged import Staged
from tiergnn.training.assemble import Held
from tiergnn.training.scoring import Scoring

if TYPE_CHECKING:
    from tiergnn.training.crew import Crew


def device_of(held: Held | Crew) -> torch.device:
    """Where outputs are: those of all nodes, when in parts, in host memory."""
    return held.device if isinstance(held, Resident) else torch.device("cpu")


def whole_output(held: Held | Crew) -> Tensor | None:
    """The model's output for every node, by node; None but on the first rank."""
    out = held.infer()
    return held.whole(out) if isinstance(held, Ranked) else out


def judged_output(held: Held | Crew, scoring: Scoring) -> Tensor | None:
    """That of the nodes that are judged, or of all where it is there anyway."""
    return held.infer(scoring.judged_nodes) if isinstance(held, Staged) else whole_output(held)


def checked_output(held: Held | Crew, scoring: Scoring, num_nodes: int) -> Tensor:
    """Likewise of a run that one process sees whole. Raises ConfigError where it does not suit the
    labels of the graph's ``num_nodes`` nodes."""
    out = judged_output(held, scoring)
    assert out is not None
    scoring.check_output(out, len(scoring.judged_nodes) if isinstance(held, Staged) else num_nodes)
    return out

"""Peers: what the ranks of a run tell each other besides rows: words, wishes to stop, state.

Every method is called by all ranks in the same order. Whoever trains alone agrees with itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tiergnn.training.tree import decode, encode
from tiergnn.transport.transport import Transport


class Peers:
    """The ranks of a run, of which this is ``rank``. The first one writes, prints and scores."""

    def __init__(self, transport: Transport | None = None):
        self._transport = transport
        self.rank = 0 if transport is None else transport.rank
        self.size = 1 if transport is None else transport.size

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def at(self, action: str) -> None:
        """Say what this rank is about, for the message if it fails there."""
        if self._transport is not None:
            self._transport.at(action)

    def words(self, word: Any, about: str) -> list[Any]:
        """What every rank says, by rank: JSON."""
        if self._transport is None:
            return [word]
        return self._transport.gather(word, tag=about)

    def of_first(self, word: Any, about: str) -> Any:
        """What the first rank says; the words of others do not count."""
        return self.words(word if self.is_first else None, about)[0]

    def state_of_first(self, state: Any, about: str) -> Any:
        """The first rank's tree of tensors and plain values, on the CPU; others give None."""
        if self._transport is None:
            return state
        tensors: dict[str, Tensor] = {}
        tree = encode(state, tensors) if self.is_first else None
        forms = {name: [str(t.dtype), list(t.shape)] for name, t in tensors.items()}
        tree, forms = self.of_first([tree, forms], about)
        for name, (dtype, shape) in forms.items():
            if self.is_first:
                tensors[name] = tensors[name].cpu().contiguous()
            else:
                tensors[name] = torch.empty(shape, dtype=getattr(torch, dtype[len("torch.") :]))
            self._transport.broadcast(tensors[name], tag=about)
        return decode(tree, tensors)

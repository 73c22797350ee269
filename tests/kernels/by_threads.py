"""One call on several numbers of threads, cut into pieces however little memory it takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from tiergnn import threads
from tiergnn.kernels import threads as by_bytes

_CASES = ((1, 2**20), (2, 2**8), (3, 2**12), (2, 2**8))  # threads, bytes of a piece


def assert_same_bits(make: Callable[[], Sequence[Tensor | None]]) -> None:
    """``make()`` gives equal tensors whatever the threads and pieces, and was in pieces."""
    before, spread = torch.get_num_threads(), threads.spread
    runs: list[list[Tensor]] = []
    whole: list[tuple[int, int]] = []

    def watched(work: Callable[[int, int], None], num_tasks: int, *given: int, **least: int):
        pieces = []

        def noted(first: int, last: int) -> None:
            pieces.append((first, last))
            work(first, last)

        spread(noted, num_tasks, *given, **least)
        whole.extend(piece for piece in pieces if piece == (0, num_tasks) and num_tasks > 1)

    try:
        for count, piece_bytes in _CASES:
            torch.set_num_threads(count)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(by_bytes, "_PIECE_BYTES", piece_bytes)
                patch.setattr(threads, "spread", watched)
                whole.clear()
                runs.append([tensor for tensor in make() if tensor is not None])
            assert bool(whole) == (count == 1)
    finally:
        torch.set_num_threads(before)
    for run in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], run, strict=True))

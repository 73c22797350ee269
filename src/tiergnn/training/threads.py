"""The number of threads that a run computes on: part of what its bits depend on."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_log = logging.getLogger("tiergnn")


@contextmanager
def on_threads(count: int | None, *, told: bool = True) -> Iterator[int]:
    """Inside, torch computes on ``count`` threads (None: as many as now); outside, as before.

    torch's sums and MKL's products are cut into a share a thread, so another number gives other
    last bits. One warning says when ``count`` is not the number outside, if it is to
    be ``told``.
    """
    before = torch.get_num_threads()
    if told and count is not None and count != before:
        _log.warning(
            "computing on %d threads, as the run was begun, for the same bits; torch had %d here",
            count,
            before,
        )
    # Also where it is the number already: once it was set, MKL never takes fewer of itself.
    torch.set_num_threads(before if count is None else count)
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)

"""Processes of ranks that start fast: off a server that has imported torch and not used it."""

from __future__ import annotations

import multiprocessing

FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(["torch", "tiergnn.transport.launch"])

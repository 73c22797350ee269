"""Processes of ranks that start fast: off a server that has imported what they need, and used none
of it. Python has one such server for all of a process."""

from __future__ import annotations

import multiprocessing

FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(["tiergnn.training.task", "torch_geometric.nn"])

"""Processes of ranks that start fast: off a server that has imported what they need, and used none
of it. Python has one such server for all of a process."""

from __future__ import annotations

import multiprocessing

# For ranks on GPUs, which a fork of a process that has looked for one cannot use.
FRESH = multiprocessing.get_context("spawn")
FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(["tiergnn.training.task", "torch_geometric.nn"])

"""Every back end against the contract."""

from __future__ import annotations

import pytest

from tests.transport.contract import CHECKS, run_all, run_check
from tests.transport.processes import FORKSERVER
from tiergnn.transport.launch import launch


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("name", CHECKS)
def test_virtual(name, size, debug):
    assert launch(run_check, size, (name,), transport="virtual", debug=debug) == 0


@pytest.mark.parametrize(
    ("transport", "size", "debug"),
    [("shared", 2, False), ("shared", 3, True), ("gloo", 2, False), ("gloo", 3, True)],
)
def test_processes(transport, size, debug):
    assert launch(run_all, size, transport=transport, debug=debug, context=FORKSERVER) == 0


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["shared", "gloo"])
@pytest.mark.parametrize("size", [1, 4, 8])
def test_more_processes(transport, size):
    assert launch(run_all, size, transport=transport, timeout_s=120, context=FORKSERVER) == 0

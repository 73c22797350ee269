"""Phases: a bar on a terminal, plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

import io

import pytest

from tiergnn.cli import progress
from tiergnn.cli.progress import Phases


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def told(file, *, quiet=False):
    with Phases(quiet=quiet, file=file) as phases:
        for phase in ("read", "sort"):
            for done in range(0, 101, 25):
                phases(phase, done, 100)
    return file.getvalue()


def test_a_terminal_gets_a_bar():
    shown = told(Terminal())
    assert "read" in shown
    assert "100 %" in shown
    assert "\x1b[" in shown


def test_elsewhere_each_phase_ends_with_a_line():
    lines = told(io.StringIO()).splitlines()
    assert [line.partition(" in ")[0] for line in lines] == ["read: done", "sort: done"]


def test_long_phases_say_how_far_they_are(monkeypatch):
    clock = iter(range(0, 1000, 3))
    monkeypatch.setattr(progress, "monotonic", lambda: float(next(clock)))
    lines = told(io.StringIO()).splitlines()
    assert lines[:3] == ["read: 25 %", "read: 50 %", "read: 75 %"]


@pytest.mark.parametrize("file", [Terminal(), io.StringIO()], ids=["terminal", "file"])
def test_quiet_says_nothing(file):
    assert told(file, quiet=True) == ""


def test_a_failure_is_not_called_done():
    file = io.StringIO()

    def fail() -> None:
        with Phases(file=file) as phases:
            phases("read", 0, 10)
            raise ValueError

    with pytest.raises(ValueError):
        fail()
    assert file.getvalue() == ""

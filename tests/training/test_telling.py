"""What a run tells a terminal, a file and TensorBoard while it trains."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import tiergnn as tg
from tests.training.models import community
from tests.training.stopping import crash
from tiergnn.errors import ConfigError

QUIET = {"progress": False}


@pytest.fixture(scope="module")
def small():
    return community(150)


def test_what_a_terminal_and_a_file_are_told(small, tmp_path, capsys):
    tg.train(small, "gcn", epochs=20, out=tmp_path / "r")
    told = capsys.readouterr()
    assert told.out == ""  # stdout is the caller's
    shown = told.err.splitlines()
    assert len(shown) == 11
    assert shown[0].startswith("epoch 1/20  loss ")
    assert "val 0." in shown[0]
    tg.train(small, "gcn", epochs=2, **QUIET)
    assert capsys.readouterr().err == ""


def test_a_bar_on_a_terminal(small, monkeypatch):
    import io

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    tg.train(small, "gcn", epochs=3)
    assert "epoch 3/3" in sys.stderr.getvalue()


def test_tensorboard_scalars_go_on_after_a_resume(small, tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    options = {"epochs": 4, "checkpoint_every": 2, "tensorboard": True, "out": tmp_path / "r"}
    crash(3, graph=small, model="gcn", **options)
    run = tg.resume(tmp_path / "r", graph=small, **QUIET)
    events = accumulator.EventAccumulator(str(tmp_path / "r" / "tensorboard"))
    events.Reload()
    scalars = events.Scalars("loss")
    assert [event.step for event in scalars] == [1, 2, 3, 4]
    np.testing.assert_allclose([event.value for event in scalars], run.losses, rtol=1e-6)
    assert "val/accuracy" in events.Tags()["scalars"]


def test_tensorboard_that_is_not_installed(small, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard.writer", None)
    with pytest.raises(ConfigError, match=r"pip install 'tiergnn\[tensorboard\]'"):
        tg.train(small, "gcn", epochs=1, out=tmp_path / "r", tensorboard=True, **QUIET)

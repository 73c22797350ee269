"""The choice of backend: explicit, logged once, never silently another one."""

from __future__ import annotations

import logging
import threading

import pytest
import torch

from tests.kernels.blocks import ragged
from tiergnn.errors import ConfigError
from tiergnn.kernels import backend
from tiergnn.kernels.aggregate import aggregate

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """No choice made or announced yet."""
    monkeypatch.delenv("TIERGNN_BACKEND", raising=False)
    monkeypatch.setattr(backend, "_announced", set())


def test_by_device(monkeypatch):
    monkeypatch.setattr(backend, "find_spec", lambda name: object())
    assert backend.choose(CPU) == "cpu"
    assert backend.choose(CUDA) == "gpu"
    assert backend.choose(torch.device("meta")) == "reference"


def test_cuda_without_triton_says_so(monkeypatch, caplog):
    monkeypatch.setattr(backend, "find_spec", lambda name: None)
    assert backend.choose(CUDA) == "reference"
    assert backend.choose(CUDA) == "reference"
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "triton is not installed" in record.message
    assert "pip install 'tiergnn[gpu]'" in record.message


def test_each_choice_is_logged_once(caplog):
    with caplog.at_level(logging.INFO, "tiergnn"):
        for _ in range(3):
            backend.choose(CPU)
            with backend.use("reference"):
                backend.choose(CPU)
    assert [r.message for r in caplog.records] == [
        "kernels on cpu run by the cpu backend, which suits the device",
        "kernels on cpu run by the reference backend, as the caller asked",
    ]


def test_use_wins_over_the_environment(monkeypatch):
    monkeypatch.setenv("TIERGNN_BACKEND", "reference")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert backend.choose(CPU) == "reference"
    with backend.use("cpu"):
        assert backend.choose(CPU) == "cpu"
        with backend.use("gpu"):
            assert backend.choose(CPU) == "gpu"
        assert backend.choose(CPU) == "cpu"
    assert backend.choose(CPU) == "reference"


def test_blocks_of_several_threads_may_end_in_any_order():
    first, second = backend.use("reference"), backend.use("cpu")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert backend.choose(CPU) == "cpu"
    second.__exit__(None, None, None)
    assert backend._chosen is None


def test_a_thread_may_choose_for_itself():
    said = []
    with backend.use("gpu"), backend.use_here("reference"):
        assert backend.choose(CPU) == "reference"
        with backend.use_here("cpu"):
            assert backend.choose(CPU) == "cpu"
        assert backend.choose(CPU) == "reference"
    with backend.use_here("reference"):
        other = threading.Thread(target=lambda: said.append(backend.choose(CPU)))
        other.start()
        other.join()
    assert said == ["cpu"]
    assert backend.choose(CPU) == "cpu"


def test_unknown_names_are_answered_with_the_known_ones(monkeypatch):
    with pytest.raises(ConfigError, match="reference, cpu, gpu"), backend.use("cuda"):
        pass
    monkeypatch.setenv("TIERGNN_BACKEND", "gpuu")
    with pytest.raises(ConfigError, match="unknown backend in TIERGNN_BACKEND 'gpuu'"):
        backend.choose(CPU)


def test_the_cpu_backend_cannot_read_a_gpu():
    with backend.use("cpu"), pytest.raises(ConfigError, match="the tensors are on cuda"):
        backend.choose(CUDA)


def test_the_gpu_backend_cannot_read_the_host(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with backend.use("gpu"), pytest.raises(ConfigError, match="or TRITON_INTERPRET=1"):
        backend.choose(CPU)


def test_backward_runs_where_forward_ran(monkeypatch):
    used = []
    load = backend.load
    monkeypatch.setattr(backend, "load", lambda op, name: used.append(name) or load(op, name))
    x = torch.ones(2, 2, requires_grad=True)
    with backend.use("reference"):
        out = aggregate(ragged([1, 2], 2), x, reduce="mean")
    out.sum().backward()
    assert used == ["reference", "reference"]

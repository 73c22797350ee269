"""The same bits whatever is around a run: how its kernels were compiled, threads, memory."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import tiergnn as tg
from tests.training.models import community, net, same_bits, weights
from tiergnn.training.checkpoint import Checkpoint, Checkpoints
from tiergnn.training.threads import on_threads

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "tiergnn"

TRAIN = """
import hashlib
import sys
import tiergnn as tg
from tests.training.models import community, weights

graph = community(2_000)
for name in sys.argv[1:]:
    spec = {"name": name, "hidden_channels": 8, "dropout": 0.5}
    spec |= {"aggr": "max"} if name == "sage" else {"heads": 2}
    run = tg.train(graph, spec, epochs=5, seed=3, progress=False)
    bits = b"".join(w.tobytes() for w in weights(run.model)) + repr(run.losses).encode()
    print(name, hashlib.sha256(bits).hexdigest())
"""


@pytest.mark.parametrize(
    "names",
    [("gat",), pytest.param(("gat", "gatv2", "sage"), marks=pytest.mark.slow)],
    ids=" ".join,
)
def test_kernels_just_compiled_and_from_the_cache_give_the_same_bits(names, tmp_path):
    """What fastmath makes of a function depends on what else is compiled with it."""
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    told = [
        subprocess.run(
            [sys.executable, "-c", TRAIN, *names],
            capture_output=True, text=True, timeout=300, cwd=ROOT, env=env, check=True,
        ).stdout
        for _ in range(2)
    ]  # fmt: skip
    assert list(tmp_path.rglob("*.nbc"))
    assert told[0] == told[1] != ""


def test_no_kernel_lets_the_compiler_reorder_or_fuse():
    for path in SRC.rglob("*.py"):
        text = path.read_text()
        for word in ("fastmath=", "flags=(", "parallel=True"):
            assert word not in text, f"{path.name}: {word}"


def bits(run):
    return run.losses, weights(run.model), run.metrics


def same(a, b):
    return a[0] == b[0] and same_bits(a[1], b[1]) and a[2] == b[2]


MODELS = {
    "gat elu": {"name": "gat", "hidden_channels": 8, "heads": 2, "act": "elu", "dropout": 0.5},
    "gatv2 layer": {"name": "gatv2", "hidden_channels": 8, "heads": 2, "norm": "layer"},
    "gin": {"name": "gin", "hidden_channels": 16, "train_eps": True},
    "sage batch": {"name": "sage", "hidden_channels": 16, "norm": "batch", "act": "tanh"},
}


@pytest.fixture(scope="module")
def graph():
    return community(9_001, degree=4.0)


@pytest.mark.parametrize("name", MODELS)
def test_a_run_takes_up_the_number_of_threads_that_it_was_begun_on(graph, tmp_path, caplog, name):
    """Killed, resumed, evaluated and asked on other numbers of threads: the unbroken run's bits."""

    def crash(record):
        if record["epoch"] == 3:
            raise RuntimeError("crash")

    spec, options = MODELS[name], {"epochs": 5, "seed": 3, "clip": 1.0}
    with on_threads(2):
        unbroken = tg.train(graph, spec, progress=False, **options)
        want, predictions = bits(unbroken), unbroken.predict()
        options |= {"out": tmp_path / "r", "checkpoint_every": 1}
        with pytest.raises(RuntimeError, match="crash"):
            tg.train(graph, spec, progress=crash, **options)
    assert json.loads((tmp_path / "r" / "run.json").read_text())["threads"] == 2
    for number in (1, 3):
        out = tmp_path / str(number)
        shutil.copytree(tmp_path / "r", out)
        caplog.clear()
        with on_threads(None):
            torch.set_num_threads(number)
            run = tg.resume(out, graph=graph, progress=False)
            assert caplog.text.count("computing on 2 threads, as the run was begun") == 1
            assert same(bits(run), want)
            assert np.array_equal(run.predict(), predictions)
            assert np.array_equal(tg.predict(out, graph=graph), predictions)
            scores = tg.evaluate(out, graph=graph)
            assert torch.get_num_threads() == number
        for split in ("val", "test"):
            told = run.metrics[split]
            assert {key: scores[split][key] for key in told} == told


def test_a_run_keeps_its_threads_where_fewer_processors_are_left(tmp_path):
    """MKL left to itself takes no more threads than there are processors."""
    script = """
import hashlib, os
import torch
os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])
torch.set_num_threads(2)
import tiergnn as tg
from tests.training.models import community, weights
run = tg.train(community(9_001), "gcn", epochs=3, progress=False)
print(hashlib.sha256(b"".join(w.tobytes() for w in weights(run.model))).hexdigest())
"""
    with on_threads(2):
        run = tg.train(community(9_001), "gcn", epochs=3, progress=False)
    want = hashlib.sha256(b"".join(w.tobytes() for w in weights(run.model))).hexdigest()
    told = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert told.stdout.strip() == want


@pytest.mark.parametrize("offset", [4, 8, 12, 20, 40])
def test_bits_do_not_depend_on_where_features_and_weights_lie(offset):
    """Rows of a larger array, rows and weights read in place from a file."""
    graph = community(1_001)
    assert graph.x is not None
    got = []
    for place in (0, offset):
        model = net(graph, "sage", hidden=5)  # narrow: MKL then looks at addresses
        for parameter in model.parameters():
            parameter.data = torch.from_numpy(at(parameter.detach().numpy(), place))
        moved = replace(graph, x=replace(graph.x, data=at(graph.x.data, place)))
        assert moved.x.data.ctypes.data % 64 == place
        got.append(bits(tg.train(moved, model, epochs=3, progress=False)))
    assert same(*got)


def at(array, offset):
    """The same values at an address that is ``offset`` past one that 64 divides."""
    memory = np.empty(array.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    moved = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    moved[...] = array
    return moved


def test_what_a_checkpoint_gives_back_lies_as_torch_lays_it(tmp_path):
    """Of odd sizes, so that a file has them at odd places."""
    state = {f"{n}": torch.arange(n, dtype=torch.float32) for n in (1, 3, 5, 7)}
    saved = Checkpoint(epoch=1, weights=state, best_epoch=1, best=state, state={"s": state})
    Checkpoints(tmp_path).save(saved)
    back = Checkpoints(tmp_path).load()
    for tensors in (back.weights, back.best, back.state["s"]):
        assert all(torch.equal(tensors[name], tensor) for name, tensor in state.items())
        assert all(tensor.data_ptr() % 64 == 0 for tensor in tensors.values())

"""Whole runs over disks that fail: retried, made again with the same bits, or told by the file."""

from __future__ import annotations

import logging
import shutil

import pytest
import torch

from tests.runtime.staging import Pair, least_host, random_graph
from tests.runtime.test_sliced import make
from tiergnn.errors import StoreError
from tiergnn.hardware.machine import Machine
from tiergnn.memory.faults import FaultPlan
from tiergnn.memory.store import Damaged
from tiergnn.planner.strategies.knobs import Knobs

KNOBS = {"whole": {}, "buckets": {"gradients": "buckets"}, "hot rows": {"hot_frac": 0.2}}


def pair_of(way, scratch) -> Pair:
    """A run with about the least host memory that it needs."""
    graph, knobs = random_graph(60, 240, 5), Knobs(parts=4, tier="disk", **KNOBS[way])
    if way not in _machines:
        pair = least_host("deep", graph, knobs, scratch=scratch)
        _machines[way] = pair.staged.plan.machine
        pair.staged.close()
    return Pair.make("deep", graph, "grinnder", knobs, there=_machines[way], scratch=scratch)


_machines: dict[str, Machine] = {}


def run(way, scratch, *, epochs=2) -> list[torch.Tensor]:
    """Losses, gradients, the model's buffers and an evaluation of a run on the disk."""
    pair = pair_of(way, scratch)
    try:
        return results_of(pair, epochs)
    finally:
        pair.staged.close()
        assert list(scratch.iterdir()) == []


def results_of(pair: Pair, epochs: int = 2) -> list[torch.Tensor]:
    found = []
    for epoch in range(epochs):
        pair.staged.model.zero_grad()
        found.append(torch.tensor(pair.staged.train_step(pair.share, epoch)))
        found += [p.grad.clone() for p in pair.staged.model.parameters() if p.grad is not None]
        pair.move()
    found += [buffer.clone() for buffer in pair.staged.model.buffers()]
    return [*found, pair.staged.infer()]


def same(one, other) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


@pytest.mark.parametrize("way", KNOBS)
def test_passing_faults_change_no_bit(way, failing, tmp_path):
    """EIO and short calls, as often in a row as the retries bear; bits that flip on the way."""
    want = run(way, tmp_path)
    drawn = FaultPlan.drawn(3, num_calls=2000, faults=("eio", "short", "flip"), frac=0.3)
    faulty = failing(
        FaultPlan(
            reads={call: fault for call, fault in drawn.reads.items() if call % 3 == 0},
            writes={call: f for call, f in drawn.writes.items() if call % 3 == 0 and f != "flip"},
        )
    )
    assert same(run(way, tmp_path), want)
    assert min(faulty.counts.values()) > 60


@pytest.mark.parametrize(("way", "tries"), [("whole", 6), ("buckets", 3), ("hot rows", 3)])
def test_what_a_disk_damages_is_made_again(way, tries, failing, tmp_path, caplog):
    """Some write in turn, of features, rows, gradients and what an evaluation leaves: the same
    bits, and a word with the file's name."""
    faulty = failing(FaultPlan())
    want = run(way, tmp_path, epochs=1)
    writes = faulty.counts["write"]
    told = 0
    for number in range(0, writes, max(1, writes // tries)):
        failing(FaultPlan(writes={number: "flip"}))
        caplog.clear()
        assert same(run(way, tmp_path, epochs=1), want), number
        told += any("are not what was written there" in text for text in caplog.messages)
        assert all(str(tmp_path) in text for text in caplog.messages if "made again" in text)
    assert told >= tries // 2  # what nobody reads again may be lost


def test_what_is_damaged_of_slices_is_made_again(failing, tmp_path, caplog):
    """Some columns of features among it, which are written first."""
    found = []
    for plan in (FaultPlan(), FaultPlan(writes={0: "flip"}), FaultPlan(writes={4: "flip"})):
        failing(plan)
        pair = make("gcn", "disk", 2, 3, tmp_path, size=(60, 240))
        found.append(results_of(pair))
        pair.staged.close()
    assert same(found[0], found[1])
    assert same(found[0], found[2])
    assert sum("made again" in text for text in caplog.messages) >= 1


def test_gradients_that_were_there_stay(failing, tmp_path):
    """What a try that failed added to them is taken back."""
    found = []
    for plan in (FaultPlan(), FaultPlan(writes={20: "flip"})):
        failing(plan)
        pair = pair_of("whole", tmp_path)
        for parameter in pair.staged.model.parameters():
            parameter.grad = torch.ones_like(parameter)
        pair.staged.train_step(pair.share, 0)
        found.append([p.grad for p in pair.staged.model.parameters()])
        pair.staged.close()
    assert same(*found)


def test_a_disk_that_damages_all_is_given_up(failing, tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    failing(FaultPlan(writes=dict.fromkeys(range(10_000), "flip")))
    with pytest.raises(Damaged, match="are not what was written there") as caught:
        run("whole", tmp_path)
    assert str(tmp_path) in (caught.value.culprit or "")
    assert "another one" in (caught.value.hint or "")
    assert sum("made again" in text for text in caplog.messages) == 2


@pytest.mark.parametrize("where", ["reads", "writes"])
@pytest.mark.parametrize("fault", ["eio", "enospc"])
def test_errors_that_last_are_told_and_leave_a_run_that_goes_on(fault, where, failing, tmp_path):
    """One StoreError with the file's name; when the disk is back, the step is as if new."""
    want = run("whole", tmp_path)
    faulty = failing(FaultPlan())
    pair = pair_of("whole", tmp_path)
    begun = faulty.counts[where.removesuffix("s")]
    faults = dict.fromkeys(range(begun + 5, begun + 9), fault)  # the retries, too
    faulty.plan = FaultPlan(**{where: faults})
    with pytest.raises(StoreError) as caught:
        pair.staged.train_step(pair.share, 0)
    assert str(tmp_path) in (caught.value.culprit or "")
    said = "Input/output error" if fault == "eio" else "No space left on device"
    assert said in caught.value.problem
    faulty.plan = FaultPlan()
    assert same(results_of(pair), want)
    pair.staged.close()
    assert list(tmp_path.iterdir()) == []


def test_a_scratch_folder_that_disappears(tmp_path):
    pair = pair_of("whole", tmp_path)
    pair.staged.train_step(pair.share, 0)
    for folder in tmp_path.iterdir():
        shutil.rmtree(folder)
    with pytest.raises(StoreError, match="the scratch folder has disappeared") as caught:
        pair.staged.train_step(pair.share, 1)
    assert str(tmp_path) in (caught.value.culprit or "")
    pair.staged.close()

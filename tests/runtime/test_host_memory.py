"""One piece of host memory for all schedules of a run."""

from __future__ import annotations

import torch

from tests.runtime.staging import Pair, random_graph
from tiergnn.kernels import memory as allocator
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.runtime.host_memory import HostMemory


def test_a_smaller_piece_is_the_same_and_a_larger_one_takes_its_place():
    memory = HostMemory(torch.device("cpu"))
    first = memory.of(10_000)
    assert memory.of(5_000) is first
    larger = memory.of(20_000)
    assert larger.numel() >= 20_000
    assert memory.of(10_000) is larger
    memory.close()
    assert memory.of(100).numel() < 10_000


def test_steps_and_evaluations_take_turns_in_it(monkeypatch):
    """However often they do: the larger one's bytes are all that is ever taken."""
    taken = []
    made = HostMemory.of

    def of(self, num_bytes):
        pages = made(self, num_bytes)
        taken.append(pages.data_ptr())
        return pages

    monkeypatch.setattr(HostMemory, "of", of)
    pair = Pair.make("gcn", random_graph(40, 150, 0), "grinnder", Knobs(parts=3))
    pair.compare(1e-10, 2)
    pair.staged.infer()
    pair.staged.train_step(pair.share, 2)
    pair.staged.close()
    assert len(taken) == 5
    assert len(set(taken)) <= 2  # an evaluation may need more than a step


def test_the_allocator_keeps_what_slices_and_blocks_give_back_and_large_tensors_go(monkeypatch):
    told = []
    monkeypatch.setattr(allocator, "_tell_glibc", lambda *calls: told.append(calls))
    allocator.keep_small()
    allocator.no_large()
    want, told[:] = list(told), []
    Pair.make("gcn", random_graph(40, 150, 0), "sliced", Knobs(parts=3, slices=2)).staged.close()
    assert told[:2] == want  # what comes then is the resident run's

"""What a block keeps from call to call is that of the call: by memory, by version, by thread."""

from __future__ import annotations

from threading import Thread

import torch

from tests.kernels.blocks import ragged, rand
from tiergnn.kernels import backend
from tiergnn.kernels.aggregate import aggregate, aggregate_grad
from tiergnn.kernels.table import RowTable


def grad_of_ones(block, weight):
    """Sums over out-edges of the weights, by plain torch."""
    total = torch.zeros(block.num_src).index_add(0, block.col.long(), weight)
    return total[:, None].expand(-1, 2)


def grad(block, weight):
    x = torch.ones(block.num_src, 2, requires_grad=True)
    return torch.autograd.grad(aggregate(block, x, weight_E=weight).sum(), x)[0]


def test_weights_that_change_are_seen():
    block, weight = ragged([3, 0, 5, 1], 9), rand(9).float()
    with backend.use("cpu"):
        grads = []
        for _ in range(2):
            grads.append(grad(block, weight))
            assert torch.equal(grad(block, weight), grads[-1])
            weight.mul_(2)
        other = grad(block, weight.clone())
    assert torch.equal(grads[1], 2 * grads[0])
    assert torch.equal(other, 4 * grads[0])


def test_weights_are_told_apart_by_their_memory():
    """Views of one memory at one address, and a tensor that is given another memory."""
    block, memory = ragged([3, 0, 5, 1], 9), rand(18).float()
    swapped = memory[:9].clone()
    with backend.use("cpu"):
        for weight in (memory[:9], memory[::2], memory[:9], memory[9:], swapped):
            assert torch.equal(grad(block, weight), grad(block, weight.clone()))
        swapped.data = memory[9:].clone()
        assert torch.equal(grad(block, swapped), grad(block, swapped.clone()))


def test_weights_made_in_inference_mode_are_read_anew():
    """Of these torch counts no changes."""
    block = ragged([3, 0, 5, 1], 9)
    with backend.use("cpu"), torch.inference_mode():
        weight = rand(9).float()
        for _ in range(2):
            got = aggregate_grad(block, torch.ones(4, 2), mean=False, weight_E=weight)
            torch.testing.assert_close(got, grad_of_ones(block, weight))
            weight.mul_(2)


def test_threads_that_share_a_block():
    """Each has the weights and the places of its own call, whoever else makes them anew."""
    block, rows = ragged([3] * 400, 400), rand(400, 3)
    weights = [rand(block.num_edges, seed=seed).float() for seed in range(3)]
    want = [grad_of_ones(block, weight) for weight in weights]
    sums = aggregate(block, rows)
    wrong = []

    def work(turn):
        for _ in range(40):
            got = aggregate_grad(block, torch.ones(400, 2), mean=False, weight_E=weights[turn])
            if not torch.allclose(got, want[turn], rtol=1e-5, atol=1e-5):
                wrong.append(("weights", turn))
            table = RowTable((rows[: 9 + turn], rows[9 + turn :]))
            if not torch.equal(aggregate(block, table), sums):
                wrong.append(("places", turn))

    threads = [Thread(target=work, args=(turn,)) for turn in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong

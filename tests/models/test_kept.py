"""What an operation makes of a block alone, or of it and weights, is made once."""

from __future__ import annotations

import gc

import torch

from tiergnn.kernels.block import Block
from tiergnn.models import operation
from tiergnn.models.operation import kept


def block():
    return Block(rowptr=torch.tensor([0, 1, 2]), col=torch.tensor([1, 0]), num_src=2)


def test_of_a_block_it_stays_as_long_as_the_block():
    edges, calls = block(), []
    for _ in range(2):
        kept(edges, ("a",), None, lambda: calls.append(1))
    assert len(calls) == 1
    del edges
    gc.collect()
    edges = block()
    kept(edges, ("a",), None, lambda: calls.append(1))
    assert len(calls) == 2


def test_of_weights_it_is_made_again_when_they_change_and_goes_with_them():
    edges, weights = block(), [torch.ones(2), torch.ones(2)]

    def made(of, times):
        return kept(edges, ("w",), weights[of], lambda: weights[of] * times)

    first = made(0, 2)
    assert made(0, 3) is first
    weights[0] += 1
    assert made(0, 3).tolist() == [6, 6]
    of_other = made(1, 4)
    weights[0] = torch.zeros(2)
    gc.collect()
    assert made(1, 5) is of_other
    weights[1] = torch.zeros(2)
    gc.collect()
    assert not operation._made[edges]

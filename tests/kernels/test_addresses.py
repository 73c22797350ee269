"""Pages of addresses: what a record's kernels read, once it is whole."""

from __future__ import annotations

import pytest
import torch

from tiergnn.kernels.addresses import Page, addresses_of, not_kept, recording

CPU = torch.device("cpu")


def test_a_page_has_every_set_once():
    page = Page(CPU, numbers=8)
    first, second, again = page.of((3, 2**62)), page.of((5,)), page.of((3, 2**62))
    page.fill()
    assert first.tolist() == again.tolist() == [3, 2**62]
    assert second.tolist() == [5]
    assert first.data_ptr() == again.data_ptr()


def test_a_full_page_is_refused_and_keeps_what_it_has():
    page = Page(CPU, numbers=3)
    kept = page.of((1, 2))
    with pytest.raises(RuntimeError, match="more than 3 tensors"):
        page.of((3, 4))
    page.fill()
    assert kept.tolist() == [1, 2]


def test_pages_are_for_what_is_recorded():
    """Nothing is recorded here: addresses are copied, and kept."""
    with recording(CPU):
        one = addresses_of((7, 8), CPU)
    assert one.tolist() == [7, 8]
    assert addresses_of((7, 8), CPU) is one


def test_what_is_of_no_later_use_is_not_kept():
    with not_kept():
        one = addresses_of((9, 10), CPU)
    other = addresses_of((9, 10), CPU)
    assert one.tolist() == other.tolist() == [9, 10]
    assert one is not other


@pytest.mark.gpu
def test_a_record_reads_tensors_that_are_elsewhere():
    """Memory inside a record is its own: what was copied for other tensors does not name it."""
    from tiergnn.kernels.gather import gather
    from tiergnn.kernels.table import RowTable

    device = torch.device("cuda")
    index = torch.tensor([0, 5, 3, 2], device=device, dtype=torch.int32)
    given = torch.randn(6, 4, device=device)

    places = RowTable([given[:3], given[3:]]).places(index)

    def step():
        return gather(RowTable([given[:3] * 2, given[3:] * 3]), places)

    want = step()
    graph = torch.cuda.CUDAGraph()
    with recording(device) as page:
        with torch.cuda.graph(graph):
            made = step()
        page.fill()
    graph.replay()
    assert torch.equal(made, want)
    given.normal_()
    graph.replay()
    assert torch.equal(made, step())

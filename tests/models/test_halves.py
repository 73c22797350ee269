"""A graph stage as two: its bits one after the other, and sums over any classes of its edges."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.models.graphs import assert_close, given, rows
from tests.models.nets import NETS, WIDTH, inputs_of
from tiergnn.graph.odd import ODD
from tiergnn.kernels.dropout import step_key
from tiergnn.models import functional as ops
from tiergnn.models.edges import edges_of
from tiergnn.models.passes import run_backward, run_forward
from tiergnn.models.trace import trace

KEY = step_key(5, 7)
SUMS = ("gcn", "sage", "gin", "data", "weighted", "dropped", "deep", "appnp", "sgc")


@pytest.fixture(scope="module")
def data():
    """A graph with loops, duplicates and rows without in-edges."""
    return given(ODD["weighted"]())


class LooplessMean(nn.Module):
    """Means over in-edges that are no loops, with and without weights."""

    def __init__(self, weighted=False):
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, 5), nn.Linear(5, 4)
        self.weighted = weighted

    def forward(self, x, edge_index, edge_weight):
        weight = edge_weight * 2 if self.weighted else None
        h = self.first(x).tanh()
        return self.last(ops.propagate(h, edge_index, weight, reduce="mean", skip_loops=True) + h)


MODELS = {
    **NETS, "loopless": LooplessMean, "loopless weighted": lambda: LooplessMean(weighted=True)
}  # fmt: skip


class Run:
    """Every stage of a model by itself, on rows that it was given or that earlier stages wrote."""

    def __init__(self, name, data):
        torch.manual_seed(0)
        self.net = MODELS[name]().double()
        edges = edges_of(data.edge_index, data.num_nodes)
        self.block = edges.block
        x = rows(data.num_nodes, WIDTH)
        inputs = {
            "x": x,
            "edge_weight": edges.rows(data.weight),
            "edge_attr": edges.rows(data.attr),
        }
        if not name.startswith("loopless"):
            inputs = inputs_of(name, *inputs.values())
        self.program = trace(self.net, inputs, training=True)
        self.values = {n: value.requires_grad_() for n, value in inputs.items()}

    def stages(self):
        """Each graph stage; its rows are in ``values``."""
        for stage in self.program.stages:
            if stage.statistic is not None:
                part = stage.partial(self.block, self.values)
                self.values[stage.statistic.name] = stage.combine([part]).detach().requires_grad_()
            if stage.kind == "graph":
                yield stage
            written = stage.run(self.block, KEY, self.values)
            self.values |= {
                n: row.detach().requires_grad_(row.requires_grad) for n, row in written.items()
            }

    def given(self, stage):
        names = (*stage.gathers, *stage.reads, *stage.edges, *stage.statistics)
        return {n: self.values[n] for n in names}

    def parameter_grads(self):
        found = {n: p.grad for n, p in self.net.named_parameters() if p.grad is not None}
        self.net.zero_grad()
        return found


def grads_for(written):
    draw = torch.Generator().manual_seed(3)
    return {
        n: torch.randn(row.shape, generator=draw, dtype=row.dtype)
        for n, row in written.items()
        if row.requires_grad
    }


def sides(grads, stage):
    """Gradients by what they are of: rows that a stage gathered, or its own."""
    return {
        ("gathered", n) if n in stage.gathers else ("own", n.removeprefix("own:")): grad
        for n, grad in grads.items()
    }


def whole(run, stage):
    """What a stage writes, gradients of what it is given, and of parameters."""
    own = run.given(stage)
    written, kept = run_forward(stage, run.block, KEY, own, dict(own), keep=True)
    assert kept is not None
    found = dict(run_backward(kept, grads_for(written)))
    return written, found, run.parameter_grads()


@pytest.mark.parametrize("name", MODELS)
def test_halves_give_the_bits_of_the_stage(name, data):
    run = Run(name, data)
    seen = 0
    for stage in run.stages():
        seen += 1
        want, want_grads, want_parameters = whole(run, stage)
        first, second = stage.halves
        assert (first.kind, second.kind) == ("graph", "rows")
        assert first.gathers == stage.gathers
        assert not second.gathers
        assert second.writes == stage.writes
        assert set(first.writes) <= set(second.reads)
        assert first.writes[0] == f"sum.s{stage.index}"
        assert {*first.reads, *second.reads} - set(first.writes) == set(stage.reads)
        assert set(first.frees) | set(second.frees) == {*stage.frees, *first.writes}
        own = run.given(stage)
        made, kept = run_forward(first, run.block, KEY, own, dict(own), keep=True)
        for n, row in made.items():
            kind = run.program.between[n]
            assert row.shape[1:] == kind.shape
            assert row.dtype == kind.dtype
        written, then = run_forward(second, run.block, KEY, {}, own | made, keep=True)
        assert kept is not None
        assert then is not None
        assert written.keys() == want.keys()
        for n, row in written.items():
            assert torch.equal(row, want[n])
            assert row.requires_grad == want[n].requires_grad
        found = sides(run_backward(then, grads_for(written)), second)
        handed = {n: found.pop(("own", n)) for n in first.writes if ("own", n) in found}
        for place, grad in sides(run_backward(kept, handed), first).items():
            found[place] = found[place] + grad if place in found else grad
        wanted = sides(want_grads, stage)
        assert found.keys() == wanted.keys()
        for place, grad in wanted.items():
            if place[1] in stage.edges:  # read by several operations of both halves
                assert_close(found[place], grad, 1e-12)
            else:
                assert torch.equal(found[place], grad), place
        parameters = run.parameter_grads()
        assert parameters.keys() == want_parameters.keys()
        assert all(torch.equal(parameters[n], p) for n, p in want_parameters.items())
    assert seen


@pytest.mark.parametrize("num_classes", [1, 3])
@pytest.mark.parametrize("name", [*SUMS, "loopless", "loopless weighted"])
def test_sums_add_up_over_classes_of_edges(name, num_classes, data):
    """Random classes, empty ones among them; means are those over all of a row's edges."""
    run = Run(name, data)
    draw = torch.Generator().manual_seed(num_classes)
    class_of = torch.randint(num_classes + 1, (run.block.num_edges,), generator=draw)
    seen = 0
    for stage in run.stages():
        if not stage.sums:
            continue
        seen += 1
        want, want_grads, want_parameters = whole(run, stage)
        part, rest = stage.sums
        assert part.writes == (f"sum.s{stage.index}",)
        own = run.given(stage)
        total, passes = None, []
        for number in range(num_classes + 2):  # the last one is empty
            edges = torch.nonzero(class_of == number).flatten()
            mine = {n: own[n][edges] if n in stage.edges else own[n] for n in own}
            mine |= {n: own[n][edges] for n in part.reads if run.program.rows[n].of == "edges"}
            made, kept = run_forward(part, run.block.only(edges), KEY, mine, dict(mine), keep=True)
            (made,) = made.values()
            passes.append((edges, kept))
            total = made.detach() if total is None else total + made.detach()
        assert total is not None
        given_rest = own | {part.writes[0]: total.requires_grad_()}
        written, then = run_forward(rest, run.block, KEY, {}, given_rest, keep=True)
        for n, row in written.items():
            assert_close(row, want[n], 1e-10)
        assert then is not None
        found = sides(run_backward(then, grads_for(written)), rest)
        grad = found.pop(("own", part.writes[0]))
        for edges, kept in passes:
            back = run_backward(kept, {part.writes[0]: grad})
            for place, grad_of in sides(back, part).items():
                if grad_of.shape[0] != own[place[1]].shape[0]:  # of the class's edges
                    grad_of = torch.zeros_like(own[place[1]]).index_copy(0, edges, grad_of)
                found[place] = found[place] + grad_of if place in found else grad_of
        wanted = sides(want_grads, stage)
        assert found.keys() == wanted.keys()
        for place, value in wanted.items():
            assert_close(found[place], value, 1e-10)
        parameters = run.parameter_grads()
        assert parameters.keys() == want_parameters.keys()
        for n, p in want_parameters.items():
            assert_close(parameters[n], p, 1e-10)
    assert seen


def test_what_is_no_sum_over_edges_has_no_sums(data):
    for name in ("gat", "gatv2", "own layer", "basic pna"):
        stages = list(Run(name, data).stages())
        assert stages
        assert not any(stage.sums for stage in stages)
    most, total = Run("stacked", data).stages()
    assert not most.sums
    assert total.sums


@pytest.mark.parametrize("name", MODELS)
def test_what_is_run_again_for_its_backward_has_its_gradients_to_the_bit(name, data):
    """Without products that only others read, of the stage and of what comes after its sum."""
    run = Run(name, data)
    for stage in run.stages():
        own = run.given(stage)
        want, want_grads, want_parameters = whole(run, stage)
        again, kept = run_forward(stage, run.block, KEY, own, dict(own), keep=True, again=True)
        assert kept is not None
        assert again.keys() == want.keys()
        for n, row in again.items():
            made = row.untyped_storage().nbytes() >= row.nbytes
            assert made == (n not in stage.unread)
            assert not made or torch.equal(row, want[n])
        found = dict(run_backward(kept, grads_for(want)))
        assert found.keys() == want_grads.keys()
        assert all(torch.equal(found[n], grad) for n, grad in want_grads.items())
        grads = run.parameter_grads()
        assert grads.keys() == want_parameters.keys()
        assert all(torch.equal(grads[n], grad) for n, grad in want_parameters.items())
        assert not stage.columns or set(stage.columns[1].unread) >= set(stage.unread)


@pytest.mark.parametrize(
    ("name", "unread"),
    [
        ("gcn", [(), ("h1",), ("h2",), ()]),  # the first is a scaling, the last a softmax
        ("sage", [(), ("h2", "h2a"), ()]),  # the first ends in relu, whose backward reads it
        ("gat", [(), (), ()]),  # scores are made of the product
    ],
)
def test_only_products_that_only_others_read_are_left_out(name, unread, data):
    assert [stage.unread for stage in Run(name, data).program.stages] == unread

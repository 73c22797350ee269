"""Training against a plain PyG loop, and everything that steers it."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tiergnn as tg
from tests.training.models import community, net, same_bits, weights
from tiergnn.errors import ConfigError
from tiergnn.graph.csr import from_edges
from tiergnn.graph.table import Table

QUIET = {"progress": False}


@pytest.fixture(scope="module")
def graph():
    return community(150)


def plain_loop(graph, model, optimizer, epochs, *, clip=None, criterion=F.cross_entropy):
    """What a PyG user writes: full-batch training on a Data. Losses and gradient norms."""
    data = graph.to_pyg()
    data.x = data.x.double()
    losses, norms = [], []
    mask = data.train_mask
    for _ in range(epochs):
        model.train()
        optimizer.zero_grad()
        loss = criterion(model(data.x, data.edge_index)[mask], data.y[mask])
        loss.backward()
        if clip is not None:
            norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), clip)))
        optimizer.step()
        losses.append(loss.item())
    return losses, norms


@pytest.mark.parametrize("kind", ["gcn", "sage", "gat"])
def test_losses_gradients_and_weights_of_a_plain_loop(graph, kind):
    theirs, ours = (net(graph, kind).double() for _ in range(2))
    optimizer = torch.optim.Adam(theirs.parameters(), lr=0.02, weight_decay=5e-4)
    losses, _ = plain_loop(graph, theirs, optimizer, 8)
    run = tg.train(
        graph,
        ours,
        epochs=8,
        lr=0.02,
        weight_decay=5e-4,
        split={"train": graph.splits["train"]},  # nothing to choose by: the last weights are kept
        **QUIET,
    )
    np.testing.assert_allclose(run.losses, losses, rtol=1e-10)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-10, atol=1e-12)


def test_clipping_is_by_the_norm_of_all_gradients(graph):
    theirs, ours = (net(graph).double() for _ in range(2))
    optimizer = torch.optim.SGD(theirs.parameters(), lr=1.0)
    losses, norms = plain_loop(graph, theirs, optimizer, 5, clip=0.05)
    assert min(norms) > 0.05
    run = tg.train(graph, ours, epochs=5, optimizer="sgd", lr=1.0, clip=0.05, **QUIET)
    np.testing.assert_allclose(run.losses, losses, rtol=1e-10)


def test_it_learns_and_keeps_the_best_weights(graph):
    model = net(graph, hidden=16, dropout=0.3)
    run = tg.train(graph, model, epochs=40, **QUIET)
    val = [record["val"]["accuracy"] for record in run.history]
    assert run.best_epoch == 1 + val.index(max(val))  # ties: the first
    assert run.metrics == {s: run.history[run.best_epoch - 1][s] for s in ("train", "val", "test")}
    assert run.metrics["val"]["accuracy"] > 0.5
    assert run.evaluate() == run.metrics
    assert run.model is model
    predicted = run.predict(kind="labels")
    test = graph.splits["test"]
    assert np.mean(predicted[test] == graph.y[test]) == run.metrics["test"]["accuracy"]
    probabilities = run.predict(kind="probabilities")
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
    assert np.array_equal(run.predict().argmax(1), predicted)
    assert run.evaluate("all").keys() == {"all"}
    with pytest.raises(ConfigError, match="train, val, test, all"):
        run.evaluate("tset")
    with pytest.raises(ConfigError, match="logits, probabilities, labels"):
        run.predict(kind="label")


def test_records_of_every_epoch(graph):
    run = tg.train(graph, net(graph), epochs=4, eval_every=3, lr=0.05, **QUIET)
    assert [record["epoch"] for record in run.history] == [1, 2, 3, 4]
    assert ["val" in record for record in run.history] == [False, False, True, True]
    assert all(record["lr"] == 0.05 and record["seconds"] > 0 for record in run.history)
    assert run.seconds_per_epoch == sorted(r["seconds"] for r in run.history[1:])[1]
    assert run.peak_bytes["host"] >= 0
    assert run.finished == "epochs"
    assert json.loads(json.dumps(run.as_dict()))["losses"] == run.losses


def test_patience_stops_early(graph):
    steps = []

    def falling(out, y):
        steps.append(1)
        return 1.0 / len(steps)

    run = tg.train(
        graph, net(graph), epochs=50, metric=falling, metric_mode="max", patience=3, **QUIET
    )
    assert (run.best_epoch, len(run.history), run.finished) == (1, 4, "patience")
    low = tg.train(
        graph, net(graph), epochs=5, metric=falling, metric_mode="min", patience=3, **QUIET
    )
    assert (low.best_epoch, low.finished) == (5, "epochs")
    with pytest.raises(ConfigError, match="patience needs a validation split"):
        tg.train(graph, net(graph), split={"train": [1, 2]}, patience=3, **QUIET)


def test_schedulers_step_once_an_epoch(graph):
    def lrs(scheduler, **options):
        run = tg.train(
            graph, net(graph), epochs=6, optimizer="sgd", lr=0.1, scheduler=scheduler,
            **options, **QUIET,
        )  # fmt: skip
        return [record["lr"] for record in run.history]

    cosine = [0.05 * (1 + math.cos(math.pi * k / 6)) for k in range(6)]
    assert lrs("cosine") == pytest.approx(cosine)
    assert lrs(lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.1)) == pytest.approx(
        [0.1, 0.1, 0.01, 0.01, 0.001, 0.001]
    )
    assert max(lrs("onecycle")) <= 0.1 + 1e-12
    worse = iter(range(1000))

    def falling(out, y):
        return -float(next(worse))

    def plateau(optimizer):
        return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", 0.1, patience=1)

    got = lrs(plateau, metric=falling, metric_mode="max")
    assert got == pytest.approx([0.1, 0.1, 0.1, 0.01, 0.01, 0.001])
    with pytest.raises(ConfigError, match="mode='min'"):
        lrs(plateau, metric="loss")
    # A schedule that is shorter than the run is refused where it ends.
    with pytest.raises(ConfigError, match="refuses epoch 4"):
        lrs(lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=3))


@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_plateau_hears_the_loss_when_it_waits_for_a_minimum(graph, mode):
    heard = []

    class Plateau(torch.optim.lr_scheduler.ReduceLROnPlateau):
        def step(self, metrics, epoch=None):
            heard.append(metrics)
            super().step(metrics)

    run = tg.train(graph, net(graph), epochs=3, scheduler=lambda o: Plateau(o, mode), **QUIET)
    name = {"min": "loss", "max": "accuracy"}[mode]
    assert heard == [record["val"][name] for record in run.history]


OPTIMIZERS = {
    "name": lambda model: "sgd",
    "callable": lambda model: lambda params: torch.optim.SGD(params, lr=0.01),
    "object": lambda model: torch.optim.SGD(model.parameters(), lr=0.01),
}


def test_an_optimizer_by_name_callable_or_object(graph):
    got = []
    for make in OPTIMIZERS.values():
        model = net(graph)
        tg.train(graph, model, epochs=3, optimizer=make(model), **QUIET)
        got.append(weights(model))
    assert same_bits(got[0], got[1])
    assert same_bits(got[0], got[2])


def test_lbfgs_may_look_at_the_loss_again(graph):
    run = tg.train(graph, net(graph), epochs=4, optimizer="lbfgs", lr=1.0, **QUIET)
    assert run.losses[-1] < 0.5 * run.losses[0]


def test_a_loss_that_is_not_finite_stops_before_it_spoils_the_weights(graph):
    model = net(graph)
    before = weights(model)
    with pytest.raises(ConfigError, match="became nan in epoch 1"):
        tg.train(graph, model, epochs=3, criterion=lambda o, y: o.sum() * float("nan"), **QUIET)
    assert same_bits(before, weights(model))


def test_what_is_not_finite_in_the_graph_is_named(graph):
    """The model is not to blame, nor the learning rate."""
    x = graph.x.decode()
    for value in (float("nan"), float("inf")):
        spoilt = x.copy()
        spoilt[20:, 3] = value
        for options in ({}, {"normalize_features": "row"}, {"dtype": "float64"}):
            with pytest.raises(ConfigError, match="became nan in epoch 1: x") as caught:
                tg.train(from_like(graph, spoilt), "gcn", epochs=1, **options, **QUIET)
            assert f"x[20, 3], of node 20, is {value}" in str(caught.value)
            assert "lr" not in (caught.value.hint or "")
    large = x.astype(np.float64)
    large[7:, 2] = 1e300  # finite as it is stored
    with pytest.raises(ConfigError, match=r"x\[7, 2\], of node 7, is inf"):
        tg.train(from_like(graph, large), "gcn", epochs=1, dtype="float32", **QUIET)

    edge = 11
    words = (
        f"of edge {graph.col[edge]} -> {np.searchsorted(graph.rowptr, edge, 'right') - 1}, is nan"
    )
    weight = np.ones(graph.num_edges, np.float32)
    weight[edge:] = float("nan")
    spoilt = replace(graph, edge_weight=weight)
    with pytest.raises(ConfigError, match=rf"edge_weight\[11\], {words}"):
        tg.train(spoilt, "gcn", epochs=1, **QUIET)
    assert tg.train(spoilt, "sage", epochs=1, **QUIET).losses[0] > 0  # which reads no weights
    attr = Table.from_array(np.stack([np.ones_like(weight), weight], 1))
    spec = {"name": "gat", "edge_dim": 2}
    with pytest.raises(ConfigError, match=rf"edge_attr\[11, 1\], {words}"):
        tg.train(replace(graph, edge_attr=attr), spec, epochs=1, **QUIET)


def test_without_features_degrees_or_learned_rows_stand_in(graph, caplog):
    bare = replace(graph, x=None)
    spec = {"name": "gcn", "hidden_channels": 8}
    for features, width in (("auto", 3), ("constant", 1), ("onehot", 150), ("embedding:6", 6)):
        run = tg.train(bare, spec, epochs=2, features=features, **QUIET)
        assert run.history[0]["loss"] > 0, (features, width)
        assert width in [p.shape[1] for p in run.model.parameters() if p.dim() == 2]
    assert caplog.text.count("degrees stand in") == 2  # once to size the model, once to run it


def test_learned_rows_are_trained(graph):
    bare = replace(graph, x=None)
    run = tg.train(
        bare, {"name": "gcn", "hidden_channels": 8}, epochs=30, features="embedding:8", lr=0.05,
        **QUIET,
    )  # fmt: skip
    assert run.losses[-1] < 0.3 * run.losses[0]
    frozen = tg.train(
        bare, {"name": "gcn", "hidden_channels": 8}, epochs=30, features="constant", **QUIET
    )
    assert run.losses[-1] < frozen.losses[-1]


def test_learned_rows_do_not_decay(graph):
    """A row that no label comes near has no gradient: only decay could move it."""
    far = from_edges([0, 1], [1, 0], 4, y=np.array([0, 1, -1, -1]), splits={"train": [0, 1]})
    rows = []
    for decay in (0.0, 0.1):
        run = tg.train(
            far, {"name": "gcn", "hidden_channels": 4, "dropout": 0.0}, epochs=5,
            features="embedding:3", weight_decay=decay, lr=0.1, **QUIET,
        )  # fmt: skip
        rows.append(run._resident.embedding.detach().clone())
    assert torch.equal(rows[0][2:], rows[1][2:])
    assert not torch.equal(rows[0][:2], rows[1][:2])


def test_rows_are_normalised_when_asked(graph):
    x = np.abs(graph.x.data) * 7
    x[3] = 0
    scaled = from_like(graph, x)
    total = x.sum(1, keepdims=True)
    normal = from_like(graph, (x / np.where(total > 0, total, 1)).astype(np.float32))
    a = tg.train(scaled, net(graph), epochs=3, normalize_features="row", **QUIET)
    b = tg.train(normal, net(graph), epochs=3, **QUIET)
    c = tg.train(scaled, net(graph), epochs=3, **QUIET)
    np.testing.assert_allclose(a.losses, b.losses, rtol=1e-5)
    assert abs(a.losses[0] - c.losses[0]) > 1e-3


def from_like(graph, x):
    data = graph.to_pyg()
    src, dst = data.edge_index.numpy()
    return from_edges(
        src, dst, graph.num_nodes, x=x, y=graph.y, num_classes=5, splits=dict(graph.splits)
    )


def test_a_ready_model_starts_from_the_seed(graph):
    spec = {"name": "gat", "hidden_channels": 4, "heads": 2, "dropout": 0.5}
    runs = [tg.train(graph, spec, epochs=3, seed=seed, **QUIET) for seed in (1, 1, 2)]
    assert runs[0].losses == runs[1].losses != runs[2].losses
    assert tg.train(graph, "gcn", epochs=1, **QUIET).losses[0] > 0
    for bad in (3, {"hidden_channels": 3}):
        with pytest.raises(ConfigError, match="a mapping with a name"):
            tg.train(graph, bad, **QUIET)


def test_a_pyg_data_is_a_graph(graph):
    run = tg.train(graph.to_pyg(), net(graph), epochs=2, **QUIET)
    np.testing.assert_allclose(
        run.losses, tg.train(graph, net(graph), epochs=2, **QUIET).losses, rtol=1e-6
    )


def test_the_callers_random_numbers_are_left_alone(graph):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    tg.train(graph, "gcn", epochs=2, features="embedding:4", **QUIET)
    assert torch.equal(before, torch.get_rng_state())


def test_a_graph_without_labels_or_training_split(graph):
    with pytest.raises(ConfigError, match="no labels"):
        tg.train(replace(graph, y=None, task=None), net(graph), split="random:.6/.2/.2", **QUIET)
    with pytest.raises(ConfigError, match=r"random:0\.6/0\.2/0\.2"):
        tg.train(replace(graph, splits={}), net(graph), **QUIET)
    assert tg.train(replace(graph, splits={}), net(graph), epochs=1, split="random:.6/.2/.2",
                    **QUIET).history[0]["test"]["accuracy"] >= 0  # fmt: skip


def test_empty_splits_and_lone_classes_are_not_applicable(graph):
    y = np.where(np.arange(150) < 100, 0, 1)
    two = replace(
        graph, y=y, num_classes=2,
        splits={"train": np.arange(90, 110), "val": np.arange(5), "test": np.arange(0)},
    )  # fmt: skip
    run = tg.train(two, net(two), epochs=3, metric="roc_auc", **QUIET)
    assert run.metrics["val"]["roc_auc"] is None
    assert run.metrics["val"]["accuracy"] is not None
    assert set(run.metrics["test"].values()) == {None}
    assert run.best_epoch == 3  # validation could not choose: the last
    none = replace(two, splits={**two.splits, "val": np.arange(0)})
    assert tg.train(none, net(two), epochs=3, **QUIET).best_epoch == 3


def test_models_that_do_not_fit_the_graph_are_refused(graph):
    narrow = net(replace(graph, num_classes=None, y=np.zeros((150, 2)), task="real"))
    with pytest.raises(ConfigError, match="out_channels=5"):
        tg.train(graph, narrow, **QUIET)
    for device in ("tpu", "cuda:99", "meta"):
        with pytest.raises(ConfigError, match="device"):
            tg.train(graph, net(graph), device=device, **QUIET)
    with pytest.raises(ConfigError, match="out='runs/NAME'"):
        tg.train(graph, net(graph), tensorboard=True, **QUIET)

"""Staged and resident runs of one model over one graph, side by side."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from tests.models.nets import CLASSES, EDGE_WIDTH, NETS, WIDTH
from tests.planner.strategies.cases import machine
from tiergnn.errors import PlanError
from tiergnn.graph.csr import Graph, from_edges
from tiergnn.graph.partition import Partition
from tiergnn.graph.shape import layout_of, shape_of
from tiergnn.hardware.machine import Tier
from tiergnn.models.meter import meter
from tiergnn.planner.plan import Plan
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.runtime.executor import Resident
from tiergnn.runtime.staged import Staged

OF_EDGES = ("data", "weighted", "dropped", "basic gatv2")  # nets that read weights or features


def random_graph(
    num_nodes: int, num_edges: int, seed: int, *, dtype: Any = np.float64, edges=False
):
    """Loops, repeats and nodes without edges among them."""
    draw = np.random.default_rng(seed)
    src, dst = draw.integers(0, num_nodes, (2, num_edges))
    given = {}
    if edges:
        given["edge_weight"] = (draw.random(num_edges) + 0.1).astype(dtype)
        given["edge_attr"] = draw.standard_normal((num_edges, EDGE_WIDTH)).astype(dtype)
    return from_edges(
        src,
        dst,
        num_nodes=num_nodes,
        x=draw.standard_normal((num_nodes, WIDTH)).astype(dtype),
        y=draw.integers(0, CLASSES, num_nodes),
        splits={"train": np.sort(draw.permutation(num_nodes)[: num_nodes // 2 + 1])},
        **given,
    )


@cache
def workload(name: str, dtype: torch.dtype, training: bool, prepared: bool = False):
    inputs = {"x": torch.ones(16, WIDTH, dtype=dtype)}
    if name in OF_EDGES:
        inputs["edge_weight"] = torch.ones(16, dtype=dtype)
        inputs["edge_attr"] = torch.ones(16, EDGE_WIDTH, dtype=dtype)
    torch.manual_seed(0)
    return meter(NETS[name]().to(dtype), inputs, training=training, prepared=prepared)


def plan_of(
    name: str, strategy: str, knobs: Knobs, graph: Graph, parts: Partition, dtype, there,
    prepared: bool = False,
):  # fmt: skip
    return Plan(
        strategy=strategy,
        knobs=knobs,
        workload=workload(name, dtype, True, prepared),
        shape=shape_of(graph),
        layout=layout_of(parts, graph, hot_frac=knobs.hot_frac),
        machine=there,
    )


@dataclass
class Pair:
    """A model staged, and a copy of it resident."""

    staged: Staged
    resident: Resident
    graph: Graph
    parts: Partition

    @classmethod
    def make(
        cls, name, graph, strategy, knobs, *, dtype=torch.float64, seed=0, there=None, scratch=None,
        device="cpu", owners=None, prepared=False, capture=False,
    ):  # fmt: skip
        torch.manual_seed(seed)
        model = NETS[name]().to(dtype)
        if owners is None:
            draw = np.random.default_rng(seed)
            owners = draw.integers(0, knobs.parts, graph.num_nodes).astype(np.int32)
        parts = Partition(graph=graph, part_of=owners, num_parts=knobs.parts)
        there = there or machine(1)
        plan = plan_of(name, strategy, knobs, graph, parts, dtype, there, prepared)
        other = copy.deepcopy(model)
        staged = Staged(
            model, graph, plan, labelled=graph.splits["train"], dtype=dtype, parts=parts,
            evaluated=workload(name, dtype, False, prepared), scratch=scratch, device=device,
            capture=capture,
        )  # fmt: skip
        return cls(staged, Resident(other, graph, dtype=dtype, device=device), graph, parts)

    def share(self, out, part):
        """A part's share of the mean cross entropy."""
        ids = torch.from_numpy(self.graph.splits["train"])
        gid = self.staged.parts.gids[part]
        mine = torch.isin(gid, ids)
        y = torch.from_numpy(self.graph.y)[gid][mine].to(out.device)
        return F.cross_entropy(out[mine.to(out.device)], y, reduction="sum") / len(ids)

    def whole(self, out):
        ids = torch.from_numpy(self.graph.splits["train"])
        y = torch.from_numpy(self.graph.y)[ids].to(out.device)
        return F.cross_entropy(out[ids.to(out.device)], y)

    def models(self):
        return self.staged.model, self.resident.model

    def step(self, epoch: int) -> tuple[float, float]:
        for model in self.models():
            model.zero_grad()
        ours = self.staged.train_step(self.share, epoch)
        return ours, self.resident.train_step(self.whole, epoch)

    def move(self, lr: float = 0.05) -> None:
        for model in self.models():
            with torch.no_grad():
                for p in model.parameters():
                    if p.grad is not None:
                        p -= lr * p.grad

    def compare(self, rel: float, epochs: int = 5) -> None:
        """Losses, gradients, buffers and predictions of some epochs."""
        for epoch in range(epochs):
            ours, theirs = self.step(epoch)
            assert abs(ours - theirs) <= rel * max(1.0, abs(theirs))
            for mine, other in zip(*(m.parameters() for m in self.models()), strict=True):
                close(mine.grad, other.grad, rel)
            self.move()
        for mine, other in zip(*(m.buffers() for m in self.models()), strict=True):
            close(mine, other, rel)
        close(self.staged.infer(), self.resident.infer(), 10 * rel)


def close(got, want, rel: float) -> None:
    """Equal to ``rel`` of the largest value; no gradient is as good as zeros."""
    if got is None or want is None:
        other = got if want is None else want
        assert other is None or not other.any()
        return
    got, want = got.detach().cpu().double(), want.detach().cpu().double()
    assert got.shape == want.shape
    if want.numel():
        worst = float((got - want).abs().max())
        assert worst <= rel * max(1.0, float(want.abs().max())), worst


def least_host(name, graph, knobs, *, seed=0, scratch, extra: int = 0):
    """A machine with the least host memory that a plan through the disk needs, and some more."""
    there = machine(1)
    host = 1
    for _ in range(12):
        try:
            return Pair.make(
                name, graph, "grinnder", knobs, seed=seed, scratch=scratch,
                there=replace(there, host=Tier(host + extra)),
            )  # fmt: skip
        except PlanError as error:
            if error.short is None or error.short[0] != "host":
                raise
            host = error.short[1] - extra
    raise AssertionError("the least was not enough")

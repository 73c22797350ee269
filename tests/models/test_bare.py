"""Row-local code on rows whose edges are elsewhere: by their ids and degrees it does the same."""

from __future__ import annotations

import pytest
import torch

from tests.models.graphs import given, rows
from tests.models.nets import NETS, WIDTH, inputs_of
from tiergnn.graph.odd import ODD
from tiergnn.kernels.block import Block
from tiergnn.kernels.dropout import step_key
from tiergnn.models.edges import edges_of
from tiergnn.models.trace import trace

KEY = step_key(5, 7)
# The graph stages whose row-local code weighs each row's edges, loops by their weights among them.
ASKING = {"data": [1, 2], "weighted": [1], "dropped": [1], "appnp": [1, 2, 3]}


def some_rows(block: Block, chosen: torch.Tensor) -> Block:
    degrees = torch.stack([block.in_degree, block.without_loops.in_degree], dim=1)
    counts = {"num_graph_nodes": block.num_dst, "num_graph_edges": block.num_edges}
    return Block.bare(degrees[chosen], chosen, **counts)


@pytest.mark.parametrize("name", NETS)
def test_row_local_code_by_degrees(name):
    """Some rows, in another order, on a graph with loops, duplicates and rows without in-edges."""
    data = given(ODD["weighted"]())
    torch.manual_seed(0)
    net, edges = NETS[name]().double(), edges_of(data.edge_index, data.num_nodes)
    block = edges.block
    values = inputs_of(
        name, rows(data.num_nodes, WIDTH), edges.rows(data.weight), edges.rows(data.attr)
    )
    program = trace(net, values, training=True)
    chosen = torch.randperm(data.num_nodes)[: data.num_nodes // 2]
    bare = some_rows(block, chosen)
    asking = []
    with torch.no_grad():
        for stage in program.stages:
            if stage.statistic is not None:
                part = stage.partial(block, values)
                values[stage.statistic.name] = stage.combine([part])
            code, own = stage, dict(values)
            if stage.sums:
                code = stage.sums[1]
                own |= stage.sums[0].run(block, KEY, values)
            if stage.by_degrees:
                some = {n: own[n][chosen] for n in code.reads}
                some |= {n: own[n] for n in code.statistics}
                want, got = code.run(block, KEY, {}, own), code.run(bare, KEY, {}, some)
                for written, row in got.items():
                    torch.testing.assert_close(row, want[written][chosen], rtol=1e-12, atol=1e-12)
            elif stage.sums:
                asking.append(stage.index)
            values |= stage.run(block, KEY, values)
    assert asking == ASKING.get(name, [])


def test_a_bare_block_knows_its_degrees_alone():
    data = given(ODD["weighted"]())
    block = edges_of(data.edge_index, data.num_nodes).block
    chosen = torch.tensor([3, 0])
    bare = some_rows(block, chosen)
    assert (bare.num_dst, bare.num_src, bare.num_edges) == (2, 2, 0)
    assert (bare.num_graph_nodes, bare.num_graph_edges) == (block.num_dst, block.num_edges)
    assert torch.equal(bare.in_degree, block.in_degree[chosen])
    bare = bare.without_loops
    assert torch.equal(bare.in_degree, block.without_loops.in_degree[chosen])
    assert torch.equal(bare.without_loops.in_degree, bare.in_degree)

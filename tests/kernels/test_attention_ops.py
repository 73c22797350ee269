"""Attention as ops: derivatives, memory, torch.compile, schemas, and what they refuse."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.kernels.test_attention import BACKENDS, FUSED, KEY, OPS, gat_inputs
from tiergnn.errors import ConfigError
from tiergnn.graph.generate import rmat
from tiergnn.kernels import backend
from tiergnn.kernels.attention import Options, gat_attention, gatv2_attention
from tiergnn.kernels.block import Block
from tiergnn.kernels.dropout import threshold


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("kind", OPS)
def test_gradcheck(name, kind):
    op, make = OPS[kind]
    block = Block.from_graph(rmat(7, 25, seed=5))
    tensors = {k: t.requires_grad_() for k, t in make(block, 2, 3, edges=True).items()}

    def call(*values: Tensor) -> Tensor:
        return op(block, **dict(zip(tensors, values, strict=True)), p=0.3, key=KEY)

    with backend.use(name):
        assert torch.autograd.gradcheck(call, tuple(tensors.values()), fast_mode=True)


class Largest(TorchDispatchMode):
    """The most elements of any tensor that is made."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, Tensor):
                self.numel = max(self.numel, tensor.numel())
        return out


def largest_tensor(name: str, kind: str, block: Block, heads: int, width: int) -> int:
    """The most elements of a tensor that one backend makes, forward and backward, with dropout."""
    op, make = OPS[kind]
    device = block.device
    tensors = make(block, heads, width, edges=False)
    tensors = {k: t.float().to(device).requires_grad_() for k, t in tensors.items()}
    with backend.use(name):
        op(block, **tensors).sum().backward()  # what is made once and kept
    module = backend.load("attention", name)
    options = Options(0.2, True, threshold(0.5), 2.0, KEY.to(device), site=0, head=0)
    given = [*(t.detach() for t in tensors.values()), *((None,) * (2 if kind == "gat" else 3))]
    forward = getattr(module, f"{kind}_forward")
    with Largest() as largest:
        out, state = forward(block, *given, options, **({"train": True} if kind == "gat" else {}))
        needs = tuple(t is not None for t in given)
        getattr(module, f"{kind}_backward")(block, out, out, state, *given, options, needs)
    return largest.numel


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("kind", OPS)
def test_nothing_grows_with_edges_times_heads(name, kind):
    heads, width = 4, 8
    block = Block.from_graph(rmat(200, 20_000, seed=1))
    largest = largest_tensor(name, kind, block, heads, width)
    assert block.num_dst * heads * width <= largest < block.num_edges * heads / 4


@pytest.mark.parametrize("name", FUSED)
def test_a_second_derivative_is_refused(name):
    block = Block.from_graph(rmat(5, 12, seed=1))
    tensors = {k: t.requires_grad_() for k, t in gat_inputs(block, 1, 2, edges=False).items()}
    with backend.use(name):
        out = gat_attention(block, **tensors)
    (grad,) = torch.autograd.grad(out.square().sum(), tensors["h_SKF"], create_graph=True)
    with pytest.raises(ConfigError, match="attention is differentiable once"):
        grad.sum().backward()


@pytest.mark.parametrize("kind", OPS)
@pytest.mark.parametrize("p", [0.0, 0.5])
def test_torch_compile_sees_ops(kind, p):
    """No graph break, and the same numbers, forward and backward; nothing is asked of edges."""
    op, make = OPS[kind]
    block = Block.from_graph(rmat(20, 90, seed=4))
    tensors = make(block, 3, 5, edges=True)

    def loss(**given: Tensor) -> Tensor:
        return op(block, **given, p=p, key=KEY).square().sum()

    def grads(call) -> list[Tensor]:
        given = {k: t.clone().requires_grad_("edge" not in k) for k, t in tensors.items()}
        call(**given).backward()
        return [t.grad for t in given.values() if t.requires_grad]

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    for got, want in zip(grads(compiled), grads(loss), strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("kind", OPS)
def test_ops_keep_their_word(kind):
    """Schemas and fake kernels, with gradients asked for and not."""
    op, make = OPS[kind]
    block = Block.from_graph(rmat(20, 90, seed=4))
    library = torch.ops.tiergnn
    called = library.gat_attention if kind == "gat" else library.gatv2_attention
    for edges in (False, True):
        tensors = {k: t.float().requires_grad_() for k, t in make(block, 2, 3, edges=edges).items()}
        seen = []

        class Recorder(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None, seen=seen):
                if func.namespace == "tiergnn":
                    seen.append((func, args))
                return func(*args, **(kwargs or {}))

        with Recorder():
            op(block, **tensors, p=0.3, key=KEY).sum().backward()
        assert called.default in {func for func, _ in seen}
        assert len(seen) >= 2
        for func, args in seen:
            torch.library.opcheck(func, args, test_utils=("test_schema", "test_faketensor"))


BLOCK = Block(rowptr=torch.tensor([0, 1, 2]), col=torch.tensor([0, 2]), num_src=3)
GOOD = {
    "h_SKF": torch.zeros(3, 2, 4),
    "score_src_SK": torch.zeros(3, 2),
    "score_dst_PK": torch.zeros(2, 2),
}
GOOD_V2 = {
    "x_src_SKF": torch.zeros(3, 2, 4),
    "x_dst_PKF": torch.zeros(2, 2, 4),
    "att_KF": torch.zeros(2, 4),
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"h_SKF": torch.zeros(3, 8)}, r"h needs floats \[S, K, F\], has float32 \[3, 8\]"),
        ({"h_SKF": torch.zeros(3, 2, 4).int()}, r"h needs floats .* has int32"),
        ({"h_SKF": torch.zeros(2, 2, 4)}, r"h needs shape \[3, 2, 4\], has float32 \[2, 2, 4\]"),
        ({"score_src_SK": torch.zeros(2, 2)}, r"score_src needs shape \[3, 2\]"),
        ({"score_dst_PK": torch.zeros(3, 2)}, r"score_dst needs shape \[2, 2\]"),
        ({"score_edge_EK": torch.zeros(2, 3)}, r"score_edge needs shape \[2, 2\]"),
        ({"score_loop_PK": torch.zeros(2, 2)}, "score_loop needs score_edge and self_loop=True"),
        ({"p": 0.5}, "needs a key"),
        ({"p": 1.5, "key": KEY}, "0 <= p <= 1"),
        ({"h_SKF": torch.zeros(3, 2, 4, device="meta")}, "the graph is on cpu, h on meta"),
    ],
)
def test_gat_refuses(changes, message):
    with pytest.raises(ConfigError, match=message):
        gat_attention(BLOCK, **{**GOOD, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_dst_PKF": torch.zeros(3, 2, 4)}, r"x_dst needs shape \[2, 2, 4\]"),
        ({"att_KF": torch.zeros(8)}, r"att needs shape \[2, 4\]"),
        ({"edge_attr_ED": torch.zeros(2, 3)}, "edge_attr and edge_weight go together"),
        (
            {"edge_attr_ED": torch.zeros(2, 3), "edge_weight_DKF": torch.zeros(2, 2, 4)},
            r"edge_attr needs shape \[2, 2\]",
        ),
    ],
)
def test_gatv2_refuses(changes, message):
    with pytest.raises(ConfigError, match=message):
        gatv2_attention(BLOCK, **{**GOOD_V2, **changes})

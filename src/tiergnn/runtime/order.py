"""Numbers in one order: torch's own that follow the number of threads, done so that they do not.

Our kernels sum in a fixed order. On the CPU these of torch's follow the threads, and are replaced
while a model runs, its loss is taken and its optimizer steps: full sums, means and norms, which are
split among threads, and so the gradient of a single number (a bias, an epsilon); thin gradients of
a Linear (fewer than 16 columns out) and those of LayerNorm's weight and bias; and curved functions
of elements (``even``). What no table here names stays torch's: products of other shapes, of which
MKL rounds some by the number of threads, changes in place, and recurrent cells.

Legend: N rows, D columns in, F columns out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from tiergnn.models.rowlocal import words
from tiergnn.runtime.even import CURVED, PAIRED, even

_RUN = 1024
_THIN = 16
_ARITHMETIC = words(
    "add div divide mul multiply sub subtract true_divide __rsub__ __rdiv__ __rtruediv__"
)
_LOSSES = words(
    "binary_cross_entropy gaussian_nll_loss huber_loss kl_div l1_loss mse_loss poisson_nll_loss "
    "smooth_l1_loss soft_margin_loss"
)


def fixed_sum(values: Tensor) -> Tensor:
    """The sum of all elements, a scalar, in one fixed order; differentiable."""
    values = values.reshape(-1)
    while values.numel() > _RUN:
        short = -values.numel() % _RUN
        # Each row of a matrix is summed by one thread.
        values = F.pad(values, (0, short)).reshape(-1, _RUN).sum(dim=1)
    return values.sum()


class FixedOrder(TorchFunctionMode):
    """While entered, what torch computes on the CPU does not follow the number of threads."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name not in _NAMES or not _on_cpu(args, kwargs):
            return func(*args, **kwargs)
        if name in _REPLACED:
            return _REPLACED[name](*args, **kwargs)
        if name in CURVED or (name in PAIRED and len(args) == 2):
            floating = args and isinstance(args[0], Tensor) and args[0].is_floating_point()
            return (even if floating and "out" not in kwargs else _call)(func, *args, **kwargs)
        if name in _ARITHMETIC:
            return func(*_spread_numbers(args), **kwargs)
        if name in _LOSSES:
            return _reduced(func, *args, **kwargs)
        if len(args) == 1 and not kwargs and _shared(args[0]):
            return _FULL[name](args[0])
        return func(*args, **kwargs)


def _call(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return func(*args, **kwargs)


def _on_cpu(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    tensors = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, Tensor)]
    return bool(tensors) and all(tensor.device.type == "cpu" for tensor in tensors)


def _shared(values: Tensor) -> bool:
    return values.is_floating_point() and values.numel() > _RUN


def _spread_numbers(args: tuple[Any, ...]) -> list[Any]:
    """Tensors of one element that have a gradient, as full tensors whose gradients are summed."""
    shapes = [arg.shape for arg in args if isinstance(arg, Tensor)]
    shape = torch.broadcast_shapes(*shapes)
    return [
        _Spread.apply(arg, shape)
        if isinstance(arg, Tensor) and arg.numel() == 1 < shape.numel() and arg.requires_grad
        else arg
        for arg in args
    ]


class _Spread(torch.autograd.Function):
    """One number expanded to a shape; its gradient is a sum in fixed order."""

    @staticmethod
    def forward(ctx: Any, number: Tensor, shape: torch.Size) -> Tensor:
        ctx.shape = number.shape
        return number.expand(shape)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        grad: Tensor = grads[0]
        return fixed_sum(grad).reshape(ctx.shape), None


def _reduced(func: Callable[..., Tensor], input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """A loss with its reduction in fixed order, where it is asked for by name."""
    reduction = kwargs.get("reduction", "mean")
    legacy = kwargs.get("size_average") is not None or kwargs.get("reduce") is not None
    if legacy or len(args) > 1 or reduction not in ("mean", "sum", "batchmean"):
        return func(input, *args, **kwargs)
    each = func(input, *args, **kwargs | {"reduction": "none"})
    total = fixed_sum(each)
    if reduction == "sum":
        return total
    return total / (each.numel() if reduction == "mean" else input.shape[0])


def _mean(values: Tensor) -> Tensor:
    return fixed_sum(values) / values.numel()


def _var(values: Tensor) -> Tensor:
    mean = _spread_numbers((_mean(values), values))[0]
    return fixed_sum((values - mean).square()) / (values.numel() - 1)


def _norm(values: Tensor) -> Tensor:
    """The root of the sum of squares; at 0 its gradient is 0, as torch's."""
    squares = fixed_sum(values.square())
    return torch.where(squares > 0, torch.where(squares > 0, squares, 1).sqrt(), 0)


def _dot(input: Tensor, tensor: Tensor) -> Tensor:
    return fixed_sum(input * tensor)


def _bce(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: None = None,
    reduce: None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """Binary cross-entropy of logits: (1 - y) x + (1 + (w - 1) y) softplus(-x)."""
    if size_average is not None or reduce is not None or input.shape != target.shape:
        return F.binary_cross_entropy_with_logits(
            input, target, weight, size_average, reduce, reduction, pos_weight
        )
    # Beyond 40 float64 has softplus(x) == x, to the last bit.
    each = even(F.softplus, -input, threshold=40)
    if pos_weight is not None:
        each = each * (1 + (pos_weight - 1) * target)
    each = each + (1 - target) * input
    each = each if weight is None else each * weight
    if reduction == "none":
        return each
    total = fixed_sum(each)
    return total if reduction == "sum" else total / each.numel()


def _cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: None = None,
    ignore_index: int = -100,
    reduce: None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    given = (input, target, weight, size_average, ignore_index, reduce)
    soft = target.is_floating_point() or label_smoothing > 0
    if not soft or reduction == "none" or reduce is not None or size_average is not None:
        return F.cross_entropy(*given, reduction, label_smoothing)
    each = F.cross_entropy(*given, "none", label_smoothing)
    total = fixed_sum(each)
    if reduction == "sum":
        return total
    if target.is_floating_point():
        return total / (input.numel() // input.shape[1] if input.dim() > 1 else 1)
    known = target != ignore_index
    if weight is None:
        return total / known.sum()
    return total / fixed_sum(torch.where(known, weight[torch.where(known, target, 0)], 0.0))


def _prelu(input: Tensor, weight: Tensor) -> Tensor:
    if weight.numel() > 1:
        return F.prelu(input, weight)
    return torch.where(input > 0, input, _spread_numbers((input, weight.reshape(())))[1] * input)


def _glu(input: Tensor, dim: int = -1) -> Tensor:
    values, gates = input.chunk(2, dim)
    return values * even(torch.sigmoid, gates)


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    thin = weight.dim() == 2 and weight.shape[0] < _THIN
    if not thin or not weight.requires_grad or not torch.is_grad_enabled():
        return F.linear(input, weight, bias)
    return _ThinLinear.apply(input, weight, bias)  # pyright: ignore[reportReturnType]


def _layer_norm(
    input: Tensor,
    normalized_shape: list[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    out = F.layer_norm(input, normalized_shape, None, None, eps)
    out = out if weight is None else out * _spread_numbers((weight, out))[0]
    return out if bias is None else out + _spread_numbers((bias, out))[0]


class _ThinLinear(torch.autograd.Function):
    """x W^T + b, whose weight gradient is a product with 16 columns, the last ones 0."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_FD: Tensor, bias_F: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight_FD)
        return F.linear(x, weight_FD, bias_F)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight_FD = ctx.saved_tensors
        width, columns = weight_FD.shape
        grad = grads[0]
        grad_NF = grad.reshape(-1, width)
        grad_x = grad @ weight_FD if ctx.needs_input_grad[0] else None
        wide = F.pad(grad_NF, (0, _THIN - width))
        grad_weight = (wide.t() @ x.reshape(-1, columns))[:width]
        grad_bias = None
        if ctx.needs_input_grad[2]:
            grad_bias = wide.sum(dim=0)[:width]  # a lone column would be one full sum
        return grad_x, grad_weight, grad_bias


_FULL: dict[str, Callable[[Tensor], Tensor]] = {
    "linalg_norm": _norm,
    "linalg_vector_norm": _norm,
    "mean": _mean,
    "norm": _norm,
    "std": lambda values: _var(values).sqrt(),
    "sum": fixed_sum,
    "var": _var,
}
_REPLACED: dict[str, Callable[..., Tensor]] = {
    "binary_cross_entropy_with_logits": _bce,
    "cross_entropy": _cross_entropy,
    "dot": _dot,
    "glu": _glu,
    "layer_norm": _layer_norm,
    "linear": _linear,
    "prelu": _prelu,
}
_NAMES = CURVED | PAIRED | _ARITHMETIC | _LOSSES | _REPLACED.keys() | _FULL.keys()

"""Which code is row-local: out row i depends on row i of its inputs and on nothing else of theirs.

Two locks. An operation must be on the list of those that can be row-local, and it must be so in the
use at hand: it is run on random rows and on some of them, which have to come out the same. So
``softmax(dim=-1)`` passes, and ``softmax(dim=0)``, ``mean(0)`` or ``x @ x.t()`` do not.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

_ELEMENTWISE = """
    abs absolute acos acosh add addcdiv addcmul and asin asinh atan atan2 atanh bfloat16
    bitwise_and bitwise_not bitwise_or bitwise_xor bool ceil celu clamp clamp_max clamp_min clip
    clone contiguous copysign cos cosh deg2rad detach digamma div divide double elu eq erf erfc
    erfinv exp exp2 expm1 float floor floor_divide floordiv fmax fmin fmod frac full_like ge gelu
    glu greater greater_equal gt half hardshrink hardsigmoid hardswish hardtanh heaviside hypot int
    inv invert isclose isfinite isinf isnan le leaky_relu lerp less less_equal lgamma log log10
    log1p log2 log_sigmoid logaddexp logical_and logical_not logical_or logical_xor logit
    logsigmoid long lt masked_fill maximum minimum mish mod mul multiply nan_to_num ne neg negative
    new_full new_ones new_zeros not_equal ones_like or pos positive pow prelu rad2deg reciprocal
    relu relu6 remainder round rpow rsqrt rsub rtruediv selu sgn sigmoid sign silu sin sinc sinh
    softplus softshrink softsign sqrt square sub subtract tan tanh tanhshrink threshold to
    true_divide truediv trunc type type_as where xlogy xor zeros_like
"""
_ALONG = """
    all amax amin aminmax any argmax argmin argsort cosine_similarity count_nonzero cummax cummin
    cumprod cumsum layer_norm log_softmax logcumsumexp logsumexp max mean median min nanmean nansum
    norm normalize pairwise_distance prod rms_norm softmax softmin sort std std_mean sum topk var
    var_mean vector_norm
"""
_SHAPE = """
    broadcast_to cat chunk column_stack concat concatenate expand expand_as flatten flip gather
    getitem hstack index_select movedim moveaxis narrow pad permute repeat reshape reshape_as roll
    select split squeeze stack swapaxes swapdims t take_along_dim tensor_split tile transpose unbind
    unflatten unsqueeze view view_as
"""
_PRODUCTS = "addmm baddbmm bilinear bmm einsum embedding linear matmul mm mv"


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


ALLOWED = words(_ELEMENTWISE + _ALONG + _SHAPE + _PRODUCTS)
"""Names of torch functions, Tensor methods and operators that can be row-local."""

# Methods and functions that draw from torch's generator: the draw would not be the graph's.
RANDOM = words(
    """
    alpha_dropout bernoulli dropout1d dropout2d dropout3d exponential feature_alpha_dropout
    feature_dropout gumbel_softmax multinomial normal poisson rand rand_like randint randint_like
    randn randn_like random randperm rrelu uniform
    """
)

# These would pass on few rows and cut many: their dimension 0 is looked at.
_SLICING = words("split chunk tensor_split narrow unbind select")

_ACTIVATIONS = words(
    """
    CELU ELU GELU GLU Hardshrink Hardsigmoid Hardswish Hardtanh LeakyReLU LogSigmoid LogSoftmax Mish
    PReLU ReLU ReLU6 SELU SiLU Sigmoid Softmax Softmin Softplus Softshrink Softsign Tanh Tanhshrink
    Threshold
    """
)
MODULES: tuple[type[nn.Module], ...] = (
    nn.Identity,
    nn.Linear,
    nn.Bilinear,
    nn.Embedding,
    nn.LayerNorm,
    nn.RMSNorm,
    nn.GroupNorm,
    nn.Flatten,
    nn.Unflatten,
    nn.Conv1d,
    nn.AvgPool1d,
    nn.MaxPool1d,
    nn.CosineSimilarity,
    nn.PairwiseDistance,
    nn.LSTM,
    nn.GRU,
    nn.RNN,
    nn.LSTMCell,
    nn.GRUCell,
    nn.RNNCell,
    *(getattr(nn, name) for name in sorted(_ACTIVATIONS)),
)
"""torch.nn modules that can be row-local; others are refused by name."""


class NotRowLocalError(Exception):
    """An operation that is not row-local as it is used."""


@dataclass(frozen=True)
class Sample:
    """How many rows (or edges) a probe has, and which of them its smaller run keeps."""

    count: int
    kept: Tensor  # int64, fewer than count and in another order

    def fresh(self, value: Any, generator: torch.Generator) -> Any:
        """Random floats of the value's shape; anything but floats as it is."""
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        draw = torch.randn(value.shape, generator=generator, dtype=torch.float32)
        return draw.to(value.device, value.dtype)


def sample(count: int, kept: int) -> Sample:
    """A Sample of ``count`` rows that keeps ``kept`` of them, the same ones every time."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(count))
    return Sample(count, order[:kept])


def name_of(target: Any) -> str:
    """``torch.relu_``, ``operator.add``, ``"relu"`` -> the name that the lists above use."""
    name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
    return name.strip("_") if name.startswith("__") else name.rstrip("_")


def check_listed(target: Any) -> None:
    """Raise NotRowLocalError unless the function or method is one that can be row-local."""
    name = name_of(target)
    if not isinstance(target, str):
        home = getattr(target, "__module__", None) or "torch"
        if home.split(".")[0] not in ("torch", "_operator", "operator"):
            raise NotRowLocalError(f"{home}.{name} is not known to work on each row by itself")
    if name not in ALLOWED:
        raise NotRowLocalError(f"{name} is not known to work on each row by itself")


def check_indices(target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raise NotRowLocalError when an index, a slice or a split touches dimension 0, the rows."""
    name = name_of(target)
    if target is operator.getitem:
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        first = index[0] if index else None
        behind = sum(i is not None and i is not ... for i in index)
        if not (first is ... and behind < args[0].dim()) and not _is_whole(first):
            raise NotRowLocalError("indexing dimension 0 picks rows")
    elif name in _SLICING:
        position = 1 if name in ("narrow", "select", "unbind") else 2
        dim = kwargs.get("dim", args[position] if len(args) > position else 0)
        if dim in (0, -args[0].dim()):
            raise NotRowLocalError(f"{name} along dimension 0 cuts the rows apart")


def _is_whole(index: Any) -> bool:
    return (
        isinstance(index, slice)
        and index.start in (None, 0)
        and index.stop is None
        and index.step in (None, 1)
    )


def check_probe(full: Any, part: Any, rows: Sample) -> Any:
    """Which leaves of a result are row-local: the same nesting of True and of reasons why not.

    ``full`` came from ``rows.count`` rows, ``part`` from those that the sample keeps.
    """
    if isinstance(full, (tuple, list)):
        return tuple(check_probe(f, p, rows) for f, p in zip(full, part, strict=True))
    if not isinstance(full, Tensor):
        return f"it gives a {type(full).__name__}, no rows"
    if full.dim() == 0 or full.shape[0] != rows.count:
        shape = ["V" if n == rows.count else n for n in full.shape]
        return f"it turns V rows into [{', '.join(map(str, shape))}]"
    if part.shape != (len(rows.kept), *full.shape[1:]):
        return f"fewer rows give {list(part.shape)}"
    want = full[rows.kept.to(full.device)]
    if not full.is_floating_point():
        same = torch.equal(want, part)
    else:
        bound = 1e-8 if full.dtype == torch.float64 else 1e-2
        same = torch.allclose(want, part, rtol=bound, atol=bound, equal_nan=True)
    return True if same else "a row comes out otherwise when others are left out"

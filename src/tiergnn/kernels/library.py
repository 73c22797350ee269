"""Ops that torch knows: opaque to torch.compile, with fake kernels and gradients.

An operator's schema holds tensors and plain values. A Block goes by its ``handle``, and the backend
by its name, so that backward runs where forward ran.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_LIBRARY = torch.library.Library("tiergnn", "FRAGMENT")


def define(
    name: str,
    signature: str,
    *,
    run: Callable[..., Any],
    fake: Callable[..., Any],
    keep: Callable[[Any, tuple[Any, ...], Any], None],
    backward: Callable[..., Any],
) -> Callable[..., Any]:
    """Register ``tiergnn::name`` and return it.

    ``run`` is the op on real tensors of any device, ``fake`` makes empty outputs of its shapes.
    ``keep(ctx, inputs, output)`` saves what ``backward(ctx, *grads)`` reads, a Block too: it must
    live until then. backward returns a gradient, or None, for every input.
    """
    _LIBRARY.define(name + signature, tags=(torch.Tag.pt2_compliant_tag,))
    _LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    full_name = f"tiergnn::{name}"
    torch.library.register_fake(full_name, fake, lib=_LIBRARY)
    torch.library.register_autograd(full_name, backward, setup_context=keep, lib=_LIBRARY)
    return getattr(torch.ops.tiergnn, name).default

"""Domains: what the arguments of the ready models may be, one domain for each name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import wraps
from numbers import Integral, Real
from typing import Any, ParamSpec

from tiergnn.errors import ConfigError, unknown
from tiergnn.models.layers import AGGREGATIONS
from tiergnn.models.stack import ACTIVATIONS, JUMPS, NORMS

Given = ParamSpec("Given")
_DEEPEST = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """``wanted`` is said where a value is not in it; ``known`` are names, of which it is one."""

    holds: Callable[[Any], bool]
    wanted: str = ""
    known: tuple[str, ...] = ()
    hint: str | None = None

    def check(self, name: str, value: Any) -> Any:
        """The value, NumPy's whole numbers as Python's. Raises ConfigError for one not in it."""
        if self.holds(value):
            whole = isinstance(value, Integral) and not isinstance(value, bool)
            return int(value) if whole else value
        if self.known:
            raise unknown(name, value, self.known)
        raise ConfigError(f"{name} must be {self.wanted}, had {value!r}", hint=self.hint)


def _whole(least: int, most: int | None = None, hint: str | None = None) -> Domain:
    def holds(value: Any) -> bool:
        whole = isinstance(value, Integral) and not isinstance(value, bool)
        return whole and least <= int(value) and (most is None or int(value) <= most)

    span = f"from {least}" if most is None else f"in {least}..{most}"
    return Domain(holds=holds, wanted=f"a whole number {span}", hint=hint)


def _name(known: Iterable[str]) -> Domain:
    names = tuple(known)
    return Domain(holds=lambda value: isinstance(value, str) and value in names, known=names)


def _or_none(domain: Domain) -> Domain:
    return replace(domain, holds=lambda value: value is None or domain.holds(value))


def _is_share(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and 0 <= float(value) <= 1


_DEEPER = "a module of your own may be deeper; each layer is traced, about 0.1 s"
_COUNT, _OWN_COUNT = _whole(1), _or_none(_whole(1))
_SHARE = Domain(holds=_is_share, wanted="a number in 0..1")
_FLAG = Domain(holds=lambda value: isinstance(value, bool), wanted="True or False")
DOMAINS: dict[str, Domain] = {
    "in_channels": _whole(-1, hint="-1 takes the width of the first input"),
    "out_channels": _whole(0),
    "hidden_channels": _COUNT,
    "num_layers": _whole(1, _DEEPEST, _DEEPER),
    "K": _whole(0, _DEEPEST, _DEEPER),
    "heads": _COUNT,
    "out_heads": _COUNT,
    "edge_dim": _OWN_COUNT,
    "dropout": _SHARE,
    "input_dropout": _or_none(_SHARE),
    "attention_dropout": _or_none(_SHARE),
    "edge_dropout": _SHARE,
    "alpha": _SHARE,
    "act": _name(ACTIVATIONS),
    "norm": _name(NORMS),
    "jk": _name(JUMPS),
    "aggr": _name(AGGREGATIONS),
    "residual": _FLAG,
    "improved": _FLAG,
    "add_self_loops": _FLAG,
    "train_eps": _FLAG,
}


def checked(make: Callable[Given, None]) -> Callable[Given, None]:
    """The constructor of a ready model, which raises ConfigError for arguments out of their
    domains."""
    signature = inspect.signature(make)

    @wraps(make)
    def made(*args: Given.args, **kwargs: Given.kwargs) -> None:
        given = signature.bind(*args, **kwargs)
        for name, value in given.arguments.items():
            if name in DOMAINS:
                given.arguments[name] = DOMAINS[name].check(name, value)
        make(*given.args, **given.kwargs)

    return made

"""Options: everything that decides a run besides its graph and its model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any, Literal

from tiergnn.errors import ConfigError, unknown
from tiergnn.units import parse_bytes

_MOST = 3.4e38  # of a step: float32 holds no more
DTYPES = ("float32", "float64", "bfloat16")
# Options that may be Python objects: a run's record can name them, not keep them.
OBJECTS = ("optimizer", "scheduler", "criterion", "metric")


def is_number(value: Any) -> bool:
    """Whether it is one, and no bool."""
    return isinstance(value, Real) and not isinstance(value, bool)


def check_count(name: str, value: Any) -> None:
    """Raises ConfigError for what is no whole number from 1 on."""
    if type(value) is not int or value < 1:
        raise ConfigError(f"{name} must be a whole number from 1, had {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What ``api.train`` takes, checked. Raises ConfigError."""

    epochs: int = 200
    optimizer: Any = "adam"  # name, callable(params), torch.optim.Optimizer
    lr: float | None = None
    weight_decay: float | None = None
    scheduler: Any = None  # name, callable(optimizer)
    criterion: Any = None  # name, callable(out_rows, y_rows)
    class_weight: Any = None  # "balanced", one number a class
    split: Any = None  # spec, mapping of names to ids or masks
    metric: Any = None  # name, callable(out_rows, y_rows)
    metric_mode: Literal["max", "min"] | None = None
    patience: int | None = None
    clip: float | None = None
    eval_every: int = 1
    features: str = "auto"
    prepare: bool | None = None  # what the graph and its features decide: None, if it fits
    capture: bool = True  # steps as one CUDA graph, where that can be
    normalize_features: str | None = None
    seed: int = 0
    device: str = "auto"
    dtype: str | None = None
    device_memory: str | int | None = None
    checkpoint_every: int | None = None
    tensorboard: bool = False
    transport: str | None = None  # how ranks reach each other; None: the best that works
    timeout: float = 120.0  # seconds in which a job with a failed rank ends

    def __post_init__(self) -> None:
        for name in ("epochs", "eval_every", "patience", "checkpoint_every"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        for name in ("lr", "clip", "timeout"):
            value = getattr(self, name)
            if value is not None and not (is_number(value) and 0 < value <= _MOST):
                raise ConfigError(f"{name} must be a number above 0, had {value!r}")
        decay = self.weight_decay
        if decay is not None and not (is_number(decay) and 0 <= decay <= _MOST):
            raise ConfigError(f"weight_decay must be a number from 0, had {decay!r}")
        for names, kind, wanted in (
            (("features", "device"), str, "a name"),
            (("dtype", "transport"), str | None, "a name or None"),
            (("capture", "tensorboard"), bool, "True or False"),
            (("prepare",), bool | None, "True, False or None"),
        ):
            for name in names:
                if not isinstance(getattr(self, name), kind):
                    raise ConfigError(f"{name} must be {wanted}, had {getattr(self, name)!r}")
        if type(self.seed) is not int or not 0 <= self.seed < 2**64:
            raise ConfigError(f"seed must be a whole number in 0..2**64-1, had {self.seed!r}")
        if not isinstance(self.optimizer, str):
            for name in ("lr", "weight_decay"):
                if getattr(self, name) is not None:
                    raise ConfigError(
                        f"{name} goes with the name of an optimizer, not with an optimizer object",
                        hint=f"set {name} where the optimizer is made",
                    )
        if self.metric_mode not in (None, "max", "min"):
            raise unknown("metric_mode", self.metric_mode, ("max", "min"))
        if callable(self.metric) and self.metric_mode is None:
            raise ConfigError(
                "a metric of your own needs metric_mode", hint='metric_mode="max" or "min"'
            )
        if not callable(self.metric) and self.metric_mode is not None:
            raise ConfigError("metric_mode goes with a metric of your own, not with a name")
        if self.dtype is not None and self.dtype not in DTYPES:
            raise unknown("dtype", self.dtype, DTYPES)
        if self.normalize_features not in (None, "row"):
            raise unknown("normalize_features", self.normalize_features, ("row",))
        if self.class_weight is not None and callable(self.criterion):
            raise ConfigError(
                "class_weight goes with the criteria we make, not with your own",
                hint="give the weights to your criterion",
            )
        if self.device_memory is not None:
            parse_bytes(self.device_memory)

    @property
    def device_memory_bytes(self) -> int | None:
        return None if self.device_memory is None else parse_bytes(self.device_memory)

    def to_json(self) -> dict[str, Any]:
        """Plain values; an object is ``{"object": its name}`` and a split mapping its names."""
        out: dict[str, Any] = {}
        for option in fields(self):
            value = getattr(self, option.name)
            if option.name in OBJECTS and value is not None and not isinstance(value, str):
                value = {"object": _name_of(value)}
            elif option.name == "split" and isinstance(value, Mapping):
                value = {"given": sorted(value)}
            elif option.name == "class_weight" and not isinstance(value, str | None):
                value = [float(weight) for weight in value]
            out[option.name] = value
        return out

    @classmethod
    def from_json(cls, record: Mapping[str, Any], given: Mapping[str, Any]) -> Options:
        """The recorded options, with the objects of ``given`` where objects were recorded.

        Raises ConfigError when an object is missing, or is given where none was recorded.
        """
        values = dict(record)
        for name in OBJECTS:
            kept = values[name]
            new = given.get(name)
            if isinstance(kept, Mapping):
                if new is None:
                    raise ConfigError(
                        f"this run was made with {name} {kept['object']}, "
                        "which a folder cannot keep",
                        hint=f"give it again: {name}=...",
                    )
                values[name] = new
            elif new is not None:
                raise ConfigError(
                    f"this run was made with {name} {kept!r}; another would not continue it",
                    hint=f"leave {name} out, or train a new run",
                )
        return cls(**values)


def _name_of(value: Any) -> str:
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"

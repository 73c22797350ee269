"""Optimizers and schedulers by name, and how each wants to be stepped."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer, lr_scheduler

from tiergnn.errors import ConfigError, unknown

OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "adadelta": torch.optim.Adadelta,
    "adagrad": torch.optim.Adagrad,
    "adam": torch.optim.Adam,
    "adamax": torch.optim.Adamax,
    "adamw": torch.optim.AdamW,
    "asgd": torch.optim.ASGD,
    "lbfgs": torch.optim.LBFGS,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "rmsprop": torch.optim.RMSprop,
    "sgd": torch.optim.SGD,
}
FUSED = ("adagrad", "adam", "adamw", "sgd")  # whose step is one kernel on a GPU
SCHEDULERS = ("cosine", "exponential", "linear", "onecycle", "plateau", "step")
FIXED_LENGTH = ("cosine", "linear", "onecycle", "step")  # made for a number of epochs


def make_optimizer(
    choice: Any, model: nn.Module, extra: Iterable[nn.Parameter], lr: float, weight_decay: float
) -> Optimizer:
    """The optimizer of the model's parameters and ``extra`` ones. Raises ConfigError.

    ``extra`` are learned rows of nodes: a named optimizer doesn't decay them. A row has a gradient
    only from the labels near it, and where that is small decay wears it away.
    An optimizer object must hold parameters of the model only; its state moves to their device.
    """
    extra = list(extra)
    params = [p for p in [*model.parameters(), *extra] if p.requires_grad]
    if isinstance(choice, Optimizer):
        return _adopt(choice, params, extra)
    if not params:
        raise ConfigError("the model has no parameter to train")
    if isinstance(choice, str):
        if choice not in OPTIMIZERS:
            raise unknown("optimizer", choice, OPTIMIZERS)
        options: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay}
        if choice in FUSED and all(p.is_cuda for p in params):
            options["fused"] = True
        if choice == "lbfgs":
            if weight_decay:
                raise ConfigError("lbfgs has no weight_decay", hint="another optimizer")
            options |= {"line_search_fn": "strong_wolfe"}
            del options["weight_decay"]
        elif extra and weight_decay:
            own = [p for p in params if all(p is not e for e in extra)]
            groups: list[dict[str, Any]] = [{"params": own}]
            return OPTIMIZERS[choice]([*groups, {"params": extra, "weight_decay": 0.0}], **options)
        return OPTIMIZERS[choice](params, **options)
    if not callable(choice):
        raise ConfigError(
            f"optimizer must be a name, callable(params) or an Optimizer, had {choice!r}"
        )
    made = choice(params)
    if not isinstance(made, Optimizer):
        raise ConfigError(
            f"optimizer(params) must give a torch.optim.Optimizer, gave {type(made).__name__}"
        )
    return made


def _adopt(optimizer: Optimizer, params: list[nn.Parameter], extra: list[nn.Parameter]):
    if extra:
        raise ConfigError(
            "features='embedding:...' adds parameters that this optimizer object does not hold",
            hint="an optimizer's name, or callable(params)",
        )
    known = {id(p) for p in params}
    held = [p for group in optimizer.param_groups for p in group["params"]]
    if any(id(p) not in known for p in held if p.requires_grad):
        raise ConfigError(
            "the optimizer holds parameters that are not the model's",
            hint="make it from this model's parameters()",
        )
    optimizer.load_state_dict(optimizer.state_dict())  # its state to where the parameters are now
    return optimizer


def needs_closure(optimizer: Optimizer) -> bool:
    """Whether ``step`` must be able to compute the loss again (LBFGS)."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def make_scheduler(
    choice: Any, optimizer: Optimizer, epochs: int, mode: Literal["max", "min"]
) -> Any:
    """A scheduler or None; ``mode`` "max" or "min" is which validation metric is better.

    Raises ConfigError.
    """
    if choice is None:
        return None
    if isinstance(choice, str):
        peaks = [group["lr"] for group in optimizer.param_groups]
        cycles = bool({"momentum", "betas"} & optimizer.defaults.keys())
        makers: dict[str, Callable[[], Any]] = {
            "cosine": lambda: lr_scheduler.CosineAnnealingLR(optimizer, epochs),
            "exponential": lambda: lr_scheduler.ExponentialLR(optimizer, 0.99),
            "linear": lambda: lr_scheduler.LinearLR(optimizer, 1.0, 0.0, epochs),
            "onecycle": lambda: lr_scheduler.OneCycleLR(
                optimizer, peaks, total_steps=epochs, cycle_momentum=cycles
            ),
            "plateau": lambda: lr_scheduler.ReduceLROnPlateau(optimizer, mode=mode),
            "step": lambda: lr_scheduler.StepLR(optimizer, max(1, epochs // 3)),
        }
        if choice not in makers:
            raise unknown("scheduler", choice, SCHEDULERS)
        return makers[choice]()
    if not callable(choice):
        raise ConfigError(
            f"scheduler must be a name or callable(optimizer), had {choice!r}",
            hint="scheduler=lambda optimizer: StepLR(optimizer, 50)",
        )
    made = choice(optimizer)
    if not (hasattr(made, "step") and hasattr(made, "state_dict")):
        raise ConfigError(f"scheduler(optimizer) must give a scheduler, gave {made!r}")
    return made


def wants_metric(scheduler: Any) -> bool:
    return isinstance(scheduler, lr_scheduler.ReduceLROnPlateau)

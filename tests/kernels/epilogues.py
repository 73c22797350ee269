"""Epilogues to test on: which parts are there, and a plain oracle of torch's own operations."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.kernels.blocks import rand
from tiergnn.kernels import backend
from tiergnn.kernels.dropout import dropout, make_key

KEY, SITE = make_key(0xDEADBEEF, 0x12345678), 7
FLOWING = ("other", "shift", "gain", "bias")  # what has gradients beside the rows


@dataclass(frozen=True, kw_only=True)
class Case:
    """``parts``: those there are, of ``FLOWING``, loop, scale, post (*: one number for all)."""

    parts: str = ""
    act: str = "none"
    slope: float = 0.0
    p: float = 0.0
    with_gid: bool = field(default=False)

    def __str__(self) -> str:
        p = f" p{self.p}" if self.p else ""
        return f"{self.parts} {self.act}{p}{' gid' * self.with_gid}".strip()

    def terms(self, num_rows: int, width: int) -> dict[str, Tensor]:
        """float64. Numbers of rows are of both signs, one is 0 in post."""
        made: dict[str, Tensor] = {}
        for seed, part in enumerate(self.parts.split(), 1):
            name = part.rstrip("*")
            if name == "other":
                made[name] = rand(num_rows, width, seed=seed)
            elif name in FLOWING:
                made[name] = rand(width, seed=seed)
            else:
                made[name] = rand(*((1,) if "*" in part else (num_rows, 1)), seed=seed)
        if "post" in made and made["post"].numel() > 2:
            made["post"][2] = 0
        if self.with_gid:
            made["gid"] = 2**33 + 3 * torch.arange(num_rows)
        return made

    @property
    def options(self) -> dict:
        return {"act": self.act, "slope": self.slope, "p": self.p, "key": KEY, "site": SITE}


CASES = [
    Case(),
    Case(parts="bias"),
    Case(parts="other"),
    Case(parts="other loop*"),
    Case(parts="other loop scale bias", act="relu", p=0.4),
    Case(parts="other scale bias post", act="relu", p=0.4, with_gid=True),
    Case(parts="scale post"),
    Case(parts="shift gain bias", act="relu"),
    Case(parts="shift gain"),
    Case(parts="other loop scale shift gain bias post", act="elu", slope=1.0, p=0.3),
    Case(parts="other* gain post*", act="leaky_relu", slope=0.2, p=0.3),
    Case(parts="bias post", act="elu", slope=0.7),
    Case(parts="bias", act="leaky_relu", slope=0.01, p=0.5, with_gid=True),
    Case(parts="other bias", p=0.5),
    Case(act="relu", p=0.9),
    Case(parts="shift post", act="relu", p=1.0),
]


def oracle(x: Tensor, case: Case, *, gid=None, **terms: Tensor) -> Tensor:
    """Differentiable, step by step, in the dtype of x."""
    if "other" in terms:
        x = x + terms["other"] * terms.get("loop", 1)
    x = (x * terms.get("scale", 1) - terms.get("shift", 0)) * terms.get("gain", 1)
    x = x + terms.get("bias", 0)
    if case.act != "none":
        slope = {"leaky_relu": (case.slope,), "elu": (case.slope,)}.get(case.act, ())
        x = getattr(F, case.act)(x, *slope)
    with backend.use("reference"):
        kept = dropout(torch.ones_like(x).cpu(), case.p, KEY, SITE, gid)
    return x * kept * terms.get("post", 1)

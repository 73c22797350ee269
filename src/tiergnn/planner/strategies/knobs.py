"""Knobs: what of a strategy can be chosen, in one frozen value that all strategies share.

A strategy reads the knobs that concern it (its ``USES``) and refuses any other that is set.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from tiergnn.errors import ConfigError, unknown

_MOST = 2**16  # of parts, ranks, slices, pieces
_STORAGE = ("float64", "float32", "float16", "bfloat16")
_CHOICES = {
    "tier": ("host", "disk"),
    "topology": ("device", "turns", "host"),
    "gradients": ("whole", "buckets"),
    "exchange": ("narrower", "inputs", "outputs"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """``parts`` of rows on one device, ``ranks`` of one part each on several.

    ``recompute`` names stages whose forward is run again in backward instead of keeping what it
    leaves. ``storage`` is the dtype of rows in host memory, on disk and between ranks (None: as
    computed). ``tier`` is where rows of parts or slices lie; "disk" with what of host memory is
    left as its cache; ``topology`` is where the edges lie: "turns" brings all in-edges and all
    out-edges, each when passes begin to take that way. ``gradients`` "whole" adds to the rows
    of all parts at once, "buckets" writes what each part gives to each other part and adds when
    its turn comes. ``hot_frac`` of all rows stay on the device, the most read first. ``slices``
    cut the columns of the widest tensor, and others into slices that are no wider.

    The caches of ``leo`` are fractions of all rows of the graph, a rank (at most what it reads of
    others). ``asynchronous`` refreshes them beside other work, ``pipeline`` reads the classes of
    sources side by side; rows are brought in ``pieces``, one of which is summed while the next one
    comes (0: as many as end soonest). ``exchange`` chooses what refreshes caches: sums of the stage
    before (inputs: the rest of that stage is computed again for cached rows), its outputs, or what
    is narrower. ``managed`` leaves caching to unified memory, and is simulated alone.
    ``keep_inputs``: rows of others of inputs, which never change, stay with a rank of ``halo`` from
    before the first step on; without, each pass brings them again.
    Raises ConfigError for values that no plan can have.
    """

    parts: int = 1
    ranks: int = 1
    recompute: tuple[int, ...] = ()
    storage: str | None = None
    tier: str = "host"
    topology: str = "device"
    gradients: str = "whole"
    hot_frac: float = 0.0
    slices: int = 1
    device_cache_frac: float = 0.0
    host_cache_frac: float = 0.0
    asynchronous: bool = True
    pipeline: bool = True
    exchange: str = "narrower"
    managed: bool = False
    pieces: int = 0
    keep_inputs: bool = True

    def __post_init__(self) -> None:
        for name in ("parts", "ranks", "slices"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} needs at least 1, had {getattr(self, name)}")
        if self.pieces < 0:
            raise ConfigError(f"pieces are 0 or more, had {self.pieces}")
        for name in ("parts", "ranks", "slices", "pieces"):
            if getattr(self, name) > _MOST:
                raise ConfigError(f"{name}: wanted at most {_MOST}, had {getattr(self, name)}")
        for name in ("hot_frac", "device_cache_frac", "host_cache_frac"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"{name} is a fraction from 0 to 1, had {getattr(self, name)}")
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise unknown(name, getattr(self, name), known)
        if self.storage is not None and self.storage not in _STORAGE:
            raise unknown("storage", self.storage, _STORAGE)
        if any(stage < 0 for stage in self.recompute):
            raise ConfigError(f"stages are counted from 0, had {self.recompute}")

    def check(self, strategy: str, uses: Iterable[str]) -> None:
        """Raises ConfigError for a knob that is set and that a strategy does not read."""
        if strangers := sorted(set(self.changed).difference(uses)):
            raise ConfigError(
                f"{strategy} has no knob {strangers[0]}", hint="one of " + ", ".join(sorted(uses))
            )

    @property
    def changed(self) -> tuple[str, ...]:
        """The knobs that do not stand as they do without a choice."""
        return tuple(f.name for f in fields(self) if getattr(self, f.name) != f.default)

    def __str__(self) -> str:
        shown = ((name, getattr(self, name)) for name in self.changed)
        words = (f"{n}={v:.3g}" if isinstance(v, float) else f"{n}={v}" for n, v in shown)
        return " ".join(words) or "defaults"

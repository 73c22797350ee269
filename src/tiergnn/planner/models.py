"""Workloads of the classic models, counted by hand: for plans without torch, given widths alone.

The stages are those that ``models/trace`` cuts of the ready models; ``models/meter`` measures what
is counted here. ``classic("gcn", 100, 47, hidden=256, layers=3)``.

Legend: P rows of one part, S source rows it reads, E edges, K heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from tiergnn.errors import ConfigError, unknown
from tiergnn.workload import DTYPE_BYTES, Peak, RowKind, Size, StageWork, Term, Workload


@dataclass(frozen=True, slots=True)
class _Op:
    """One row-local operation: ``wide`` elements of a row go in, ``out`` come out."""

    name: str
    wide: int
    out: int
    parameters: int = 0
    keeps: int = 0  # elements of a row that stay for backward


def _linear(a: int, b: int, *, bias: bool = True) -> _Op:
    return _Op("linear", a, b, a * b + b * bias, keeps=a)


def _map(width: int, *, keeps: bool = False, parameters: int = 0) -> _Op:
    return _Op("map", width, width, parameters, keeps=width if keeps else 0)


@dataclass(slots=True)
class _Sketch:
    """A model as it is put together, stage by stage."""

    dtype: str
    rows: list[RowKind] = field(default_factory=list)
    stages: list[StageWork] = field(default_factory=list)
    parameters: int = 0

    @property
    def size(self) -> int:
        return DTYPE_BYTES[self.dtype]

    def row(self, name: str, width: int, *, grad: bool = True) -> str:
        self.rows.append(RowKind(name=name, width=width, dtype=self.dtype, grad=grad))
        return name

    def width(self, name: str) -> int:
        return next(row.width for row in self.rows if row.name == name)

    def stage(
        self,
        kind: str,
        op: str,
        ops: Sequence[_Op],
        *,
        gathers: tuple[str, ...] = (),
        reads: tuple[str, ...] = (),
        writes: tuple[str, ...],
        own_keeps: int = 0,
        saves: tuple[str, ...] = (),
        moments_of: str = "",
        parameters: int = 0,
    ) -> None:
        """Append a stage whose row-local code is ``ops`` after its graph operation, if any."""
        index = len(self.stages) + (0 if any(s.index == 0 for s in self.stages) else kind != "rows")
        size = self.size
        graded = any(self._grad(name) for name in (*gathers, *reads))
        first_linear = next((o for o in ops if o.name == "linear"), None)
        forward, backward = [], []
        for name in gathers:
            grain = self.width(name) * size
            forward.append(_gather(grain, Size(per_source=grain)))
            if self._grad(name):
                backward.append(_gather(grain, Size(per_row=grain)))
        for o in ops:
            if o.name == "linear":
                amount = 2.0 * o.wide * o.out
                narrow = min(o.wide, o.out)
                forward.append(_matmul(amount, narrow))
                both = 2 if graded or o is not first_linear or kind == "graph" else 1
                backward.append(replace(_matmul(amount * both, narrow), launches=both))
            else:
                moved = 2.0 * o.out * size
                forward.append(Term(kind="stream", amount=Size(per_row=moved)))
                backward.append(Term(kind="stream", amount=Size(per_row=1.5 * moved)))
        count = sum(o.parameters for o in ops) + parameters
        keeps = (sum(o.keeps for o in ops) + own_keeps) * size
        widest = max([o.wide + o.out for o in ops] + [sum(map(self.width, gathers)), 0]) * size
        self.stages.append(
            StageWork(
                index=index,
                kind=kind,
                op=op,
                gathers=gathers,
                reads=reads,
                writes=writes,
                frees=(),
                saves=saves,
                columnwise=True,
                forward=tuple(forward),
                backward=tuple(backward),
                forward_held=Peak((Size(per_row=widest),)),
                kept=Size(per_row=keeps),
                kept_held=Peak((Size(per_row=keeps + widest),)),
                backward_held=Peak((Size(fixed=count * size, per_row=widest),)),
                parameter_bytes=count * size,
                moments_of=moments_of,
                statistics=(f"s{index}",) if moments_of else (),
            )
        )
        self.parameters += count

    def _grad(self, name: str) -> bool:
        return next(row.grad for row in self.rows if row.name == name)

    def finish(self, name: str, output: str) -> Workload:
        last: dict[str, int] = {}
        for stage in self.stages:
            last |= dict.fromkeys((*stage.gathers, *stage.reads, *stage.statistics), stage.index)
        stages = tuple(
            replace(s, frees=tuple(n for n, index in last.items() if index == s.index))
            for s in self.stages
        )
        size, classes = self.size, self.width(output)
        total = self.parameters * size
        logits = float(classes * size)
        return Workload(
            name=name,
            dtype=self.dtype,
            rows=tuple(self.rows),
            inputs=("x",),
            output=output,
            stages=stages,
            loss=(Term(kind="stream", amount=Size(per_row=6 * logits), launches=6),),
            loss_held=Peak((Size(per_row=2 * logits),)),
            step=(Term(kind="stream", amount=Size(fixed=7.0 * total), launches=4),),
            step_held=2 * total,
            parameter_bytes=total,
            optimizer_bytes=2 * total,
        )


def _gather(row_bytes: int, table: Size) -> Term:
    return Term(kind="gather", amount=Size(per_edge=float(row_bytes)), grain=row_bytes, table=table)


def _matmul(amount: float, narrow: int) -> Term:
    return Term(kind="matmul", amount=Size(per_row=amount), grain=narrow)


def _gcn(sketch: _Sketch, widths: Sequence[int], heads: int) -> str:
    """Layers of two scalings around a sum; the product on the side where rows are narrower."""

    def before(i: int) -> list[_Op]:
        a, b = widths[i], widths[i + 1]
        ops = [_map(a)]
        if b <= a:
            ops.append(_linear(a, b, bias=False))
        return [*ops, _map(min(a, b))]

    def after(i: int) -> list[_Op]:
        a, b = widths[i], widths[i + 1]
        ops = [_map(min(a, b)), _map(min(a, b))]
        if b > a:
            ops.append(_linear(a, b, bias=False))
        return [*ops, _map(b, parameters=b)]

    name = sketch.row("h0", min(widths[0], widths[1]))
    sketch.stage("rows", "rows", before(0), reads=("x",), writes=(name,))
    for i in range(len(widths) - 1):
        ops, last = after(i), i == len(widths) - 2
        if not last:
            ops += [_map(widths[i + 1], keeps=True), *before(i + 1)]
        out = sketch.row(f"h{i + 1}", widths[-1] if last else min(widths[i + 1 : i + 3]))
        sketch.stage("graph", "sum of in-edges", ops, gathers=(name,), reads=(name,), writes=(out,))
        name = out
    return name


def _gin(sketch: _Sketch, widths: Sequence[int], heads: int) -> str:
    """Sums into two linear layers with a BatchNorm between them."""
    name, hidden = "x", widths[1]
    for i, (a, b) in enumerate(pairwise(widths)):
        last = i == len(widths) - 2
        summed = sketch.row(f"h{2 * i + 1}", hidden)
        ops = [_map(a), _map(a), _linear(a, hidden)]
        sketch.stage(
            "graph", "sum of in-edges", ops, gathers=(name,), reads=(name,), writes=(summed,)
        )
        out = sketch.row(f"h{2 * i + 2}", b)
        ops = [_map(hidden, parameters=2 * hidden), _map(hidden, keeps=True), _linear(hidden, b)]
        if not last:
            ops += [_map(b, keeps=True), _map(b)]
        sketch.stage(
            "statistic", "moments of all rows", ops, reads=(summed,), writes=(out,),
            saves=(summed,), moments_of=summed,
        )  # fmt: skip
        name = out
    return name


def _sage(sketch: _Sketch, widths: Sequence[int], heads: int) -> str:
    """Means beside a product of own rows."""

    def before(i: int, *, own: str) -> tuple[list[_Op], tuple[str, ...], str]:
        """Operations, what they write, and what the layer reads of own rows."""
        a, b = widths[i], widths[i + 1]
        if b >= a:
            return [], (), own
        return [_linear(a, b)], (sketch.row(f"h{i}", b),), own

    ops, written, own = before(0, own="x")
    gathered = "x"
    if written:
        sketch.stage("rows", "rows", ops, reads=("x",), writes=written, saves=("x",))
        gathered = written[0]
    for i in range(len(widths) - 1):
        a, b = widths[i], widths[i + 1]
        last, narrow = i == len(widths) - 2, b < a
        ops = [_map(min(a, b))]
        if not narrow:
            ops.append(_linear(a, b))
        if own:
            ops.append(_linear(a, b, bias=False))
        else:
            ops.append(_map(b))
        reads = () if own == gathered and narrow else ((own,) if own else (f"{gathered}a",))
        if own == gathered:
            reads = (own,)
        writes: tuple[str, ...]
        if last:
            writes = (sketch.row(f"h{i + 1}", b),)
        elif widths[i + 2] < b:  # both products of the next layer run here
            c = widths[i + 2]
            ops += [_map(b, keeps=True), _map(b), _linear(b, c), _linear(b, c, bias=False)]
            writes = (sketch.row(f"h{i + 1}", c), sketch.row(f"h{i + 1}a", c))
        else:
            ops += [_map(b, keeps=True), _map(b)]
            writes = (sketch.row(f"h{i + 1}", b),)
        sketch.stage(
            "graph", "mean of in-edges", ops, gathers=(gathered,), reads=reads, writes=writes
        )
        gathered, own = writes[0], "" if len(writes) == 2 else writes[0]
    return gathered


def _gat(sketch: _Sketch, widths: Sequence[int], heads: int) -> str:
    """Attention by heads of ``widths[i]`` each; the last layer has one head."""

    def before(i: int, wide: int) -> tuple[list[_Op], int, int]:
        last = i == len(widths) - 2
        count = 1 if last else heads
        out = count * widths[i + 1]
        ops = [_map(wide), _linear(wide, out, bias=False), _map(out, parameters=2 * out)]
        return ops, out, count

    ops, out, count = before(0, widths[0])
    name, score = sketch.row("h0", out), sketch.row("h0a", count)
    sketch.stage("rows", "rows", ops, reads=("x",), writes=(name, score))
    for i in range(len(widths) - 1):
        last, wide = i == len(widths) - 2, out
        op = f"gat of {count} head" + "s" * (count > 1)
        ops = [_map(wide, parameters=wide)]
        if not last:
            more, out, count = before(i + 1, wide)
            ops += [_map(wide, keeps=True), *more]
        writes = (sketch.row(f"h{i + 1}", out if not last else wide),)
        if not last:
            writes += (sketch.row(f"h{i + 1}a", count),)
        sketch.stage(
            "graph", op, ops, gathers=(name, score), reads=(name,), writes=writes,
            own_keeps=wide, saves=(name, score),
        )  # fmt: skip
        name, score = writes[0], writes[-1]
    return name


CLASSIC: dict[str, Callable[[_Sketch, Sequence[int], int], str]] = {
    "gcn": _gcn,
    "gin": _gin,
    "sage": _sage,
    "gat": _gat,
}


def classic(
    model: str,
    num_features: int,
    num_classes: int,
    *,
    hidden: int,
    layers: int,
    heads: int = 8,
    dtype: str = "float32",
) -> Workload:
    """The workload of a ready model with Adam; ``hidden`` is the width of a head of "gat".

    Raises ConfigError for an unknown model, or widths below 1.
    """
    if model not in CLASSIC:
        raise unknown("model", model, CLASSIC)
    widths = [num_features, *[hidden] * (layers - 1), num_classes]
    if layers < 1 or min(widths) < 1 or heads < 1:
        raise ConfigError(f"widths, heads and layers are at least 1, had {widths}, {heads}")
    sketch = _Sketch(dtype)
    sketch.row("x", num_features, grad=False)
    output = CLASSIC[model](sketch, widths, heads)
    return sketch.finish(model, output)

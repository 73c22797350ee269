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
from tiergnn.planner.model_slices import slice_work
from tiergnn.row_kinds import DTYPE_BYTES, RowKind
from tiergnn.workload import Peak, Size, StageWork, Term, Topology, Workload


@dataclass(frozen=True, slots=True)
class _Op:
    """One row-local operation: ``wide`` elements of a row go in, ``out`` come out.

    ``moved`` and ``back`` are what an element-wise one reads and writes, in rows of ``out``.
    """

    name: str
    wide: int
    out: int
    parameters: int = 0
    keeps: int = 0  # elements of a row that stay for backward
    moved: float = 2
    back: float = 2
    through: bool = True  # whether a gradient of its input is wanted


def _linear(a: int, b: int, *, bias: bool = True, keeps: bool = True) -> _Op:
    """``keeps`` False: its input is kept already, or is a row of the graph's."""
    return _Op("linear", a, b, a * b + b * bias, keeps=a if keeps else 0)


def _pass(
    width: int,
    *,
    other: bool = False,
    act: bool = False,
    parameters: int = 0,
    loop: bool = False,
    gain: bool = False,
) -> _Op:
    """An epilogue: rows and what is added are read once and written once.

    Back, the gradient is read and written, with the result where that was activated and the rows
    where a gain is learned; with a loop alone nothing but the gradient of what was added is made.
    The result is kept by what reads it, or is a row by name.
    """
    moved, back = 2 + other, 2 + act + gain
    return _Op("pass", width, width, parameters, moved=moved, back=back if act or not loop else 2)


def _handed(width: int) -> _Op:
    """A row that two products read: their gradients are added up."""
    return _Op("handed", width, width, moved=0, back=3)


def _bias(width: int) -> _Op:
    return _Op("bias", width, width, width, back=1)


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
    ) -> None:
        """Append a stage whose row-local code is ``ops`` after its graph operation, if any."""
        index = len(self.stages)
        if kind != "rows" and not any(stage.index == 0 for stage in self.stages):
            index += 1  # stages count from 1 where nothing comes before the first graph operation
        size = self.size
        graded = any(self._grad(name) for name in (*gathers, *reads))
        forward, backward = [], []
        for name in gathers:
            grain = self.width(name) * size
            forward += [_gather(grain, Size(per_source=grain)), _written(grain)]
            if self._grad(name):
                backward += [_gather(grain, Size(per_row=grain)), _written(grain)]
        for o in ops:
            if o.name == "linear":
                amount, narrow = 2.0 * o.wide * o.out, min(o.wide, o.out)
                forward.append(_matmul(amount, narrow))
                products = 2 if graded and o.through else 1
                backward.append(replace(_matmul(amount * products, narrow), launches=products))
            else:
                if o.moved:
                    forward.append(_stream(o.moved * o.out * size))
                if graded or o.parameters:
                    backward.append(_stream(o.back * o.out * size))
            graded = graded or o.parameters > 0
        count = sum(o.parameters for o in ops)
        # Scores, or the very rows that are summed.
        joined = len(gathers) > 1 or (op.startswith("sum") and reads == gathers)
        keeps = (sum(o.keeps for o in ops) + own_keeps) * size
        widest = max([o.wide for o in ops] + [sum(map(self.width, gathers))]) * size
        last = ops[-1].out * size
        if not graded:
            self.rows = [replace(r, grad=False) if r.name in writes else r for r in self.rows]
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
                columnwise=kind == "graph",
                forward=tuple(forward),
                backward=tuple(backward) if graded else (),
                forward_held=Peak((Size(per_row=widest),)),
                kept=Size(per_row=keeps if graded else 0),
                kept_held=Peak((Size(per_row=keeps + last), Size(per_row=widest))),
                backward_held=Peak((Size(fixed=count * size, per_row=last),)),
                parameter_bytes=count * size,
                moments_of=moments_of,
                statistics=(f"s{index}",) if moments_of else (),
                divisible=op.startswith(("sum", "mean")),
                by_degrees=not op.startswith("gat"),
                before=reads if kind == "graph" and joined else (),
                after=reads if kind == "graph" and not joined else (),
                slices=slice_work(op, self.width(gathers[0]), size) if gathers else None,
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
            topology=Topology(without_loops=_WITHOUT_LOOPS.get(name, "")),
        )


def _gather(row_bytes: int, table: Size) -> Term:
    return Term(kind="gather", amount=Size(per_edge=float(row_bytes)), grain=row_bytes, table=table)


def _matmul(amount: float, narrow: int) -> Term:
    return Term(kind="matmul", amount=Size(per_row=amount), grain=narrow)


def _stream(num_bytes: float) -> Term:
    return Term(kind="stream", amount=Size(per_row=num_bytes))


def _written(row_bytes: int) -> Term:
    """What a graph operation writes besides its gathers: no operation of its own."""
    amount = Size(per_row=float(row_bytes))
    return Term(kind="stream", amount=amount, launches=0)


def _gcn(sketch: _Sketch, widths: Sequence[int], heads: int) -> str:
    """Layers of two scalings around a sum; the product on the side where rows are narrower."""

    def product(i: int) -> list[_Op]:
        a, b = widths[i], widths[i + 1]
        return [_linear(a, b, bias=False)] if b <= a else []

    def after(i: int, last: bool) -> list[_Op]:
        """Both scalings, the loop, and what stands before the next layer's product."""
        a, b = widths[i], widths[i + 1]
        if b <= a:
            return [_pass(b, other=True, act=not last, parameters=b)]
        end = _bias(b) if last else _pass(b, act=True, parameters=b)
        return [_pass(a, other=True), _linear(a, b, bias=False), end]

    name = sketch.row("h0", min(widths[0], widths[1]))
    before = [_pass(widths[0]), *product(0)]
    sketch.stage("rows", "rows", before, reads=("x",), writes=(name,))
    for i in range(len(widths) - 1):
        last = i == len(widths) - 2
        ops = after(i, last) + ([] if last else product(i + 1))
        out = sketch.row(f"h{i + 1}", widths[-1] if last else min(widths[i + 1 : i + 3]))
        sketch.stage("graph", "sum of in-edges", ops, gathers=(name,), reads=(name,), writes=(out,))
        name = out
    return name


def _gin(sketch: _Sketch, widths: Sequence[int], heads: int) -> str:
    """Sums into two linear layers with a BatchNorm between them."""
    name, hidden = "x", widths[1]
    for i, (a, b) in enumerate(pairwise(widths)):
        last = i == len(widths) - 2
        hidden = b if len(widths) == 2 else hidden
        summed = sketch.row(f"h{2 * i + 1}", hidden)
        ops = [_pass(a, other=True, loop=True), _linear(a, hidden)]
        sketch.stage(
            "graph", "sum of in-edges", ops, gathers=(name,), reads=(name,), writes=(summed,)
        )
        out = sketch.row(f"h{2 * i + 2}", b)
        moments = _Op("moments", hidden, hidden, moved=1, back=2)
        norm = _pass(hidden, act=True, gain=True, parameters=2 * hidden)
        ops = [moments, norm, _linear(hidden, b)]
        if not last:
            ops.append(_pass(b, act=True))
        sketch.stage(
            "statistic", "moments of all rows", ops, reads=(summed,), writes=(out,),
            saves=(summed,), moments_of=summed,
        )  # fmt: skip
        name = out
    return name


def _sage(sketch: _Sketch, widths: Sequence[int], heads: int) -> str:
    """Means beside a product of own rows; that of the means on the side where it is narrower."""
    gathered, own = "x", "x"
    if widths[1] < widths[0]:
        gathered = sketch.row("h0", widths[1])
        ops = [_linear(widths[0], widths[1], bias=False, keeps=False)]
        sketch.stage("rows", "rows", ops, reads=("x",), writes=(gathered,), saves=("x",))
    for i in range(len(widths) - 1):
        a, b = widths[i], widths[i + 1]
        last, narrow = i == len(widths) - 2, b < a
        # One bias and one sum of the two products, wherever those run.
        ops = [_pass(b, other=True, act=not last, parameters=b * narrow)]
        if not narrow:
            ops.insert(0, replace(_linear(a, b), through=gathered != "x"))
        saves: tuple[str, ...] = ()
        if own:
            product = _linear(a, b, bias=False, keeps=False)
            ops.insert(0, replace(product, through=own != "x"))
            saves = (own,)
        reads = (own or f"{gathered}a",)
        writes = (sketch.row(f"h{i + 1}", b if last else min(widths[i + 1 : i + 3])),)
        if not last and widths[i + 2] < b:  # both products of the next layer run here
            c = widths[i + 2]
            products = _linear(b, c, bias=False), _linear(b, c, bias=False, keeps=False)
            ops += [_handed(b), *products]
            writes += (sketch.row(f"h{i + 1}a", c),)
        sketch.stage(
            "graph", "mean of in-edges", ops, gathers=(gathered,), reads=reads, writes=writes,
            saves=saves,
        )  # fmt: skip
        gathered, own = writes[0], "" if len(writes) == 2 else writes[0]
    return gathered


def _gat(sketch: _Sketch, widths: Sequence[int], heads: int) -> str:
    """Attention by heads of ``widths[i]`` each; the last layer has one head."""

    def before(i: int, wide: int) -> tuple[list[_Op], int, int]:
        count = 1 if i == len(widths) - 2 else heads
        out = count * widths[i + 1]
        product = _linear(wide, out, bias=False)
        scores = _Op("linear", wide, 2 * count, 2 * out, through=i > 0)
        split = _Op("split", 2 * count, 2 * count)
        return [_handed(wide) if i else _pass(wide), product, scores, split], out, count

    ops, out, count = before(0, widths[0])
    name, score, own = sketch.row("h0", out), sketch.row("h0a", count), sketch.row("h0b", count)
    sketch.stage("rows", "rows", ops, reads=("x",), writes=(name, score, own), saves=(name,))
    for i in range(len(widths) - 1):
        last, wide, attending = i == len(widths) - 2, out, count
        op = f"gat of {count} head" + "s" * (count > 1)
        ops = [_Op("steep", wide, wide, moved=1.5, back=4.5)]  # sums that it keeps, and scores
        if last:
            ops.append(_bias(wide))
        else:
            more, out, count = before(i + 1, wide)
            ops += [_pass(wide, act=True, parameters=wide), *more]
        writes = (sketch.row(f"h{i + 1}", wide if last else out),)
        saves = (name, score, own)
        if not last:
            saves += writes
            writes += tuple(sketch.row(f"h{i + 1}{letter}", count) for letter in "ab")
        sketch.stage(
            "graph", op, ops, gathers=(name, score), reads=(own,), writes=writes,
            own_keeps=2 * wide + 4 * attending, saves=saves,
        )  # fmt: skip
        name, (score, own) = writes[0], writes[1:] or ("", "")
    return name


_WIDEST = 2**28  # numbers of a row: 64 bits count the bytes of what is made of them
_WITHOUT_LOOPS = {"gcn": "alone", "gat": "alone"}
_DEEPEST = 512  # layers, as of the ready models

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

    Raises ConfigError for an unknown model, and widths or layers that none has.
    """
    if model not in CLASSIC:
        raise unknown("model", model, CLASSIC)
    for name, given in (("hidden", hidden), ("layers", layers), ("heads", heads)):
        if type(given) is not int:
            raise ConfigError(f"{name} must be a whole number, had {given!r}")
    if not 1 <= layers <= _DEEPEST:
        raise ConfigError(f"layers are 1 to {_DEEPEST}, had {layers}")
    widths = [num_features, *[hidden] * (layers - 1), num_classes]
    if min(widths) < 1 or heads < 1:
        raise ConfigError(f"widths and heads are at least 1, had {widths}, {heads}")
    if max(*widths, hidden * heads) > _WIDEST:
        raise ConfigError(f"a row has at most {_WIDEST:,} numbers, had {max(widths):,} a head")
    sketch = _Sketch(dtype)
    sketch.row("x", num_features, grad=False)
    output = CLASSIC[model](sketch, widths, heads)
    return sketch.finish(model, output)

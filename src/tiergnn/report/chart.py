"""Line charts as inline SVG: no script, no network, nothing to install."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 58, 16, 34, 40  # margins round the plot
MAX_POINTS = 600  # more than the pixels across say nothing
_LEAST = 1e-290  # below it, numbers run out of digits


@dataclass(frozen=True, slots=True)
class Series:
    """A named curve; a y that is None or not finite breaks the line."""

    name: str
    x: tuple[float, ...]
    y: tuple[float | None, ...]

    def points(self) -> list[tuple[float, float | None]]:
        """At most about MAX_POINTS of the curve, first and last included."""
        step = max(1, math.ceil(len(self.x) / MAX_POINTS))
        kept = list(range(0, len(self.x), step))
        if kept and kept[-1] != len(self.x) - 1:
            kept.append(len(self.x) - 1)
        return [(self.x[i], _finite(self.y[i])) for i in kept]


def line_chart(
    title: str, series: Sequence[Series], *, x_label: str, mark: tuple[float, str] | None = None
) -> str:
    """An ``<svg>`` of the curves with axes, a legend and, at ``mark``, a labelled vertical line.

    Colours are the page's CSS variables ``--c0`` ... ``--c5``. Curves without a finite point are
    left out.
    """
    drawn = [(s, s.points()) for s in series]
    drawn = [(s, points) for s, points in drawn if any(y is not None for _, y in points)]
    if not drawn:
        return f'<p class="quiet">{escape(title)}: nothing was recorded.</p>'
    xs = [x for _, points in drawn for x, y in points if y is not None]
    ys = [y for _, points in drawn for _, y in points if y is not None]
    x_axis = _across(min(xs), max(xs))
    y_axis = _up(min(ys), max(ys))
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
        f'<text class="title" x="{LEFT}" y="16">{escape(title)}</text>',
        *_frame(x_axis, y_axis, x_label),
    ]
    for i, (one, points) in enumerate(drawn):
        placed = [None if y is None else (x_axis.place(x), y_axis.place(y)) for x, y in points]
        parts.append(_curve(one.name, placed, i))
    if mark is not None and x_axis.low <= mark[0] <= x_axis.high:
        parts.append(_marked(x_axis.place(mark[0]), mark[1]))
    parts.append(_legend([one.name for one, _ in drawn]))
    return "".join([*parts, "</svg>"])


def frontier_chart(
    title: str, points: Sequence[tuple[float, float, str]], *, x_label: str, chosen: int | None
) -> str:
    """An ``<svg>`` of a frontier: (x, y, tooltip) points joined by steps, ``chosen`` filled.

    Along a step x grows and y stays: with more of x there is no better y until the next point.
    """
    if not points:
        return f'<p class="quiet">{escape(title)}: nothing was found.</p>'
    xs, ys = [x for x, _, _ in points], [y for _, y, _ in points]
    x_axis, y_axis = _over(min(xs), max(xs)), _up(min(ys), max(ys))
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
        f'<text class="title" x="{LEFT}" y="16">{escape(title)}</text>',
        *_frame(x_axis, y_axis, x_label),
    ]
    placed = sorted((x_axis.place(x), y_axis.place(y)) for x, y, _ in points)
    steps = "".join(f"H{x:.1f}V{y:.1f}" for x, y in placed[1:])
    first_x, first_y = placed[0]
    parts.append(
        f'<path class="curve" d="M{first_x:.1f} {first_y:.1f}{steps}" stroke="var(--c0)"/>'
    )
    for i, (x, y, tip) in enumerate(points):
        colour, radius = ("var(--c1)", 5.5) if i == chosen else ("var(--c0)", 3.5)
        parts.append(
            f'<circle cx="{x_axis.place(x):.1f}" cy="{y_axis.place(y):.1f}" r="{radius}" '
            f'fill="{colour}"><title>{escape(tip)}</title></circle>'
        )
    return "".join([*parts, "</svg>"])


def _frame(x_axis: _Axis, y_axis: _Axis, x_label: str) -> list[str]:
    parts = []
    for tick in y_axis.ticks:
        y = y_axis.place(tick)
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="tick" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>'
        )
    below = f'y="{HEIGHT - BOTTOM + 16}" text-anchor="middle"'
    parts += [
        f'<text class="tick" x="{x_axis.place(tick):.1f}" {below}>{tick:g}</text>'
        for tick in x_axis.ticks
    ]
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        f'<text class="tick" x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">'
        f"{escape(x_label)}</text>"
    )
    return parts


def _marked(x: float, label: str) -> str:
    """A dashed vertical line; its label stands on the side with more room."""
    left = x > WIDTH * 0.7
    anchor = "end" if left else "start"
    return (
        f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        f'<text class="tick" x="{x + (-4 if left else 4):.1f}" y="{TOP + 10}" '
        f'text-anchor="{anchor}">{escape(label)}</text>'
    )


def _finite(y: float | None) -> float | None:
    return y if y is not None and math.isfinite(y) else None


def _curve(name: str, points: Sequence[tuple[float, float] | None], index: int) -> str:
    """A path that lifts its pen where a value is missing; a lone point is a dot."""
    colour = f"var(--c{index % 6})"
    title = f"<title>{escape(name)}</title>"
    known = [point for point in points if point is not None]
    if len(known) == 1:
        x, y = known[0]
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}">{title}</circle>'
    commands: list[str] = []
    pen = "M"
    for point in points:
        if point is not None:
            commands.append(f"{pen}{point[0]:.1f} {point[1]:.1f}")
        pen = "M" if point is None else "L"
    return f'<path class="curve" d="{"".join(commands)}" stroke="{colour}">{title}</path>'


def _legend(names: Sequence[str]) -> str:
    """Names with a stroke of their colour, right-aligned on the title's line."""
    parts: list[str] = []
    x = float(WIDTH - RIGHT)
    for i, name in reversed(list(enumerate(names))):
        x -= 7.0 * len(name) + 8
        parts.append(
            f'<text class="tick" x="{x:.1f}" y="16">{escape(name)}</text>'
            f'<line x1="{x - 18:.1f}" x2="{x - 5:.1f}" y1="12" y2="12" '
            f'stroke="var(--c{i % 6})" stroke-width="3"/>'
        )
        x -= 26
    return "".join(parts)


@dataclass(frozen=True, slots=True)
class _Axis:
    """Values from ``low`` to ``high`` laid out from pixel ``start`` to ``stop``."""

    low: float
    high: float
    ticks: tuple[float, ...]
    start: float
    stop: float

    def place(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.stop - self.start)


def _across(low: float, high: float) -> _Axis:
    """The x axis: bounds as given, ticks on whole numbers."""
    low, high = _apart(low, high)
    step = max(_step(low, high), 1.0)
    ticks = (i * step for i in range(math.ceil(low / step), math.floor(high / step) + 1))
    return _Axis(low, high, tuple(ticks), LEFT, WIDTH - RIGHT)


def _over(low: float, high: float) -> _Axis:
    """An x axis whose bounds are moved out to the next ticks."""
    axis = _up(low, high)
    return _Axis(axis.low, axis.high, axis.ticks, LEFT, WIDTH - RIGHT)


def _up(low: float, high: float) -> _Axis:
    """The y axis: bounds moved out to the next ticks."""
    low, high = _apart(low, high)
    step = _step(low, high)
    first, last = math.floor(low / step), math.ceil(high / step)
    ticks = tuple(i * step for i in range(first, last + 1))
    return _Axis(ticks[0], ticks[-1], ticks, HEIGHT - BOTTOM, TOP)


def _apart(low: float, high: float) -> tuple[float, float]:
    """Bounds that ticks of six digits can tell apart, and floating point their parts."""
    size = max(abs(low), abs(high))
    if high - low > max(1e-5 * size, _LEAST):
        return low, high
    beyond = 0.1 * size if size > _LEAST else 0.5
    return low - beyond, high + beyond


def _step(low: float, high: float) -> float:
    """1, 2 or 5 times a power of ten: four to eight steps between the bounds."""
    unit = 10.0 ** math.floor(math.log10((high - low) / 4))
    return unit * max(factor for factor in (1, 2, 5) if (high - low) / (unit * factor) >= 3.5)

"""Line charts as inline SVG: no script, no network, nothing to install."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 58, 16, 34, 40  # margins round the plot
MAX_POINTS = 600  # more than the pixels across say nothing


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

    Colours are the page's CSS variables ``--c0`` ... ``--c5``. Curves without a finite point are left out.
    """
    drawn = [(s, s.points()) for s in series]
    drawn = [(s, points) for s, points in drawn if any(y is not None for _, y in points)]
    if not drawn:
        return f'<p class="quiet">{escape(title)}: nothing was recorded.</p>'
    xs = [x for _, points in drawn for x, y in points if y is not None]
    ys = [y for _, points in drawn for _, y in points if y is not None]
    x_axis, y_axis = _axis(min(xs), max(xs), whole=True), _axis(min(ys), max(ys))

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - x_axis.low) / (x_axis.high - x_axis.low)
        up = (y - y_axis.low) / (y_axis.high - y_axis.low)
        return (
            LEFT + across * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM),
        )

    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
        f'<text class="title" x="{LEFT}" y="16">{escape(title)}</text>',
    ]
    for tick in y_axis.ticks:
        _, y = place(x_axis.low, tick)
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="tick" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>'
        )
    for tick in x_axis.ticks:
        x, _ = place(tick, y_axis.low)
        parts.append(
            f'<text class="tick" x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" '
            f'text-anchor="middle">{tick:g}</text>'
        )
    parts.append(
        f'<text class="tick" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}" '
        f'text-anchor="middle">{escape(x_label)}</text>'
    )
    if mark is not None and x_axis.low <= mark[0] <= x_axis.high:
        x, _ = place(mark[0], y_axis.low)
        left = x > WIDTH * 0.7
        parts.append(
            f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
            f'<text class="tick" x="{x + (-4 if left else 4):.1f}" y="{TOP + 10}" '
            f'text-anchor="{"end" if left else "start"}">{escape(mark[1])}</text>'
        )
    for i, (one, points) in enumerate(drawn):
        parts.append(_curve(one.name, [(x, y) and (x, y) for x, y in points], place, i))
    parts.append(_legend([one.name for one, _ in drawn]))
    return "".join([*parts, "</svg>"])


def _finite(y: float | None) -> float | None:
    return y if y is not None and math.isfinite(y) else None


def _curve(name, points, place, index: int) -> str:
    """A path that lifts its pen where a value is missing; a lone point is a dot."""
    commands: list[str] = []
    pen_down, last_x, last_y = False, 0.0, 0.0
    drawn = 0
    for x, y in points:
        if y is None:
            pen_down = False
            continue
        last_x, last_y = place(x, y)
        commands.append(f"{'L' if pen_down else 'M'}{last_x:.1f} {last_y:.1f}")
        pen_down = True
        drawn += 1
    colour = f"var(--c{index % 6})"
    title = f"<title>{escape(name)}</title>"
    if drawn == 1:
        return f'<circle cx="{last_x:.1f}" cy="{last_y:.1f}" r="3" fill="{colour}">{title}</circle>'
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
    low: float
    high: float
    ticks: tuple[float, ...]


def _axis(low: float, high: float, *, whole: bool = False) -> _Axis:
    """Round bounds round [low, high] with four to seven ticks; ``whole`` keeps the bounds as given."""
    if low == high:
        low, high = low - (abs(low) * 0.1 or 0.5), high + (abs(high) * 0.1 or 0.5)
    step = 10.0 ** math.floor(math.log10((high - low) / 4))
    step *= next(factor for factor in (10, 5, 2, 1) if (high - low) / (step * factor) >= 3.5)
    if whole:
        step = max(step, 1.0)
    first, last = math.floor(low / step), math.ceil(high / step)
    ticks = tuple(round(i * step, 12) for i in range(first, last + 1))
    if whole:
        return _Axis(low, high, tuple(t for t in ticks if low <= t <= high))
    return _Axis(ticks[0], ticks[-1], ticks)

"""Timelines and memories as inline SVG: who did what when, and what lay where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from tiergnn.report.chart import LEFT, RIGHT, WIDTH
from tiergnn.schedule.timeline import Span, Timeline
from tiergnn.units import format_bytes, format_seconds

_ROW, _GAP, _HEAD, _FOOT = 18, 6, 34, 26
_NAMES = 110  # pixels that the lanes' names take
_LEAST = 0.4  # narrower spans are drawn as wide as this, or joined with their neighbours


def timeline_chart(title: str, timelines: Sequence[Timeline]) -> str:
    """An ``<svg>``: one row a (rank, lane) that did something, in each timeline; one scale for all.

    Spans have their action's label as a tooltip; spans that touch below a pixel are joined. Colours
    say what an action was (its first word), by the page's CSS variables ``--c0`` ... ``--c5``.
    """
    rows = [(one, key) for one in timelines for key in sorted(one.busy_s())]
    if not rows:
        return f'<p class="quiet">{escape(title)}: nothing was recorded.</p>'
    longest = max(one.seconds for one in timelines) or 1.0
    ops = list(dict.fromkeys(_op(span) for one in timelines for span in one.spans))
    height = _HEAD + len(rows) * (_ROW + _GAP) + _FOOT
    scale = (WIDTH - _NAMES - RIGHT) / longest
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">',
        f'<text class="title" x="8" y="16">{escape(title)}</text>',
        *_legend(ops),
    ]
    ranks = {span.rank for one in timelines for span in one.spans}
    for i, (one, (rank, lane)) in enumerate(rows):
        y = _HEAD + i * (_ROW + _GAP)
        name = f"{lane} r{rank}" if len(ranks) > 1 else lane
        parts.append(
            f'<text class="tick" x="{_NAMES - 8}" y="{y + 13}" text-anchor="end">'
            f"{escape(name)}, {escape(one.source)}</text>"
        )
        mine = [span for span in one.spans if (span.rank, span.lane) == (rank, lane)]
        parts += [_bar(run, y, scale, ops) for run in _joined(mine, scale)]
    base = height - _FOOT + 14
    parts.append(f'<text class="tick" x="{_NAMES}" y="{base}">0</text>')
    parts.append(
        f'<text class="tick" x="{WIDTH - RIGHT}" y="{base}" text-anchor="end">'
        f"{format_seconds(longest)}</text>"
    )
    return "".join([*parts, "</svg>"])


def memory_chart(title: str, held: Mapping[str, Mapping[str, int]]) -> str:
    """An ``<svg>``: one bar a tier, of the bytes of each kind (tier -> kind -> bytes)."""
    held = {tier: kinds for tier, kinds in held.items() if sum(kinds.values())}
    if not held:
        return f'<p class="quiet">{escape(title)}: nothing was recorded.</p>'
    names = list(dict.fromkeys(kind for kinds in held.values() for kind in kinds))
    most = max(sum(kinds.values()) for kinds in held.values())
    height = _HEAD + len(held) * (_ROW + _GAP + 10) + 8
    scale = (WIDTH - _NAMES - RIGHT - LEFT) / most
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">',
        f'<text class="title" x="8" y="16">{escape(title)}</text>',
        *_legend(names),
    ]
    for i, (tier, kinds) in enumerate(held.items()):
        y, x = _HEAD + i * (_ROW + _GAP + 10), float(_NAMES)
        parts.append(
            f'<text class="tick" x="{_NAMES - 8}" y="{y + 13}" text-anchor="end">'
            f"{escape(tier)}</text>"
        )
        for kind, num_bytes in kinds.items():
            wide = num_bytes * scale
            tip = f"{kind}: {format_bytes(num_bytes)}"
            parts.append(_rect(x, y, wide, _colour(names.index(kind)), tip))
            x += wide
        total = format_bytes(sum(kinds.values()))
        parts.append(f'<text class="tick" x="{x + 6:.1f}" y="{y + 13}">{total}</text>')
    return "".join([*parts, "</svg>"])


def _op(span: Span) -> str:
    return span.label.partition(" ")[0]


def _joined(spans: Sequence[Span], scale: float) -> list[list[Span]]:
    """Spans of one kind that follow each other within less than a pixel, as one run."""
    runs: list[list[Span]] = []
    for span in sorted(spans, key=lambda one: one.start_s):
        last = runs[-1] if runs else None
        near = last is not None and (span.start_s - last[-1].end_s) * scale < _LEAST
        thin = (span.end_s - span.start_s) * scale < 1.0
        if last is not None and near and thin and _op(last[-1]) == _op(span):
            last.append(span)
        else:
            runs.append([span])
    return runs


def _bar(run: Sequence[Span], y: float, scale: float, ops: Sequence[str]) -> str:
    start, end = run[0].start_s, run[-1].end_s
    tip = run[0].label if len(run) == 1 else f"{_op(run[0])}, {len(run)} times"
    tip += f": {format_seconds(end - start)} from {format_seconds(start)}"
    moved = sum(span.moved_bytes for span in run)
    tip += f", {format_bytes(moved)}" if moved else ""
    x, wide = _NAMES + start * scale, max(_LEAST, (end - start) * scale)
    return _rect(x, y, wide, _colour(ops.index(_op(run[0]))), tip)


def _rect(x: float, y: float, wide: float, colour: str, tip: str) -> str:
    return (
        f'<rect x="{x:.2f}" y="{y}" width="{wide:.2f}" height="{_ROW}" style="{colour}">'
        f"<title>{escape(tip)}</title></rect>"
    )


def _colour(index: int) -> str:
    """Six colours; the next six are paler."""
    pale = ";opacity:.55" if index >= 6 else ""
    return f"fill:var(--c{index % 6}){pale}"


def _legend(names: Sequence[str]) -> list[str]:
    parts, x = [], float(_NAMES)
    for i, name in enumerate(names):
        parts.append(
            f'<rect x="{x:.1f}" y="21" width="9" height="9" style="{_colour(i)}"/>'
            f'<text class="tick" x="{x + 12:.1f}" y="29">{escape(name)}</text>'
        )
        x += 6.2 * len(name) + 26
    return parts

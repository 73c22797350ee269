"""One run as one HTML page: everything inline, so that it can be mailed and opened anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from tiergnn.report.chart import line_chart
from tiergnn.report.lanes import memory_chart, timeline_chart
from tiergnn.report.record import RunRecord
from tiergnn.report.text import cost_rows, curves_of, metric_rows, setting_rows
from tiergnn.version import __version__

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2430; --quiet: #667085; --line: #d8dde5; --page: #fff;
  --c0: #0b6bcb; --c1: #c2570c; --c2: #18794e; --c3: #8e4ec6; --c4: #b42318; --c5: #6f6a1f; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --quiet: #98a2b3; --line: #344054;
  --page: #14181f; --c0: #5eb0ff; --c1: #ff9d57; --c2: #4cc38a; --c3: #c99cf0; --c4: #ff8a80;
  --c5: #d6cf6a; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page);
  max-width: 1000px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
.quiet { color: var(--quiet); }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(420px, 100%), 1fr));
  gap: 1.5rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .2rem 1.2rem .2rem 0; border-bottom: 1px solid var(--line);
  overflow-wrap: break-word; vertical-align: top; white-space: pre-wrap; }
th { font-weight: 600; } th, td:first-child { white-space: nowrap; }
svg { width: 100%; height: auto; } svg text { fill: var(--ink); font: 12px system-ui, sans-serif; }
svg text { paint-order: stroke; stroke: var(--page); stroke-width: 3px; }
svg .title { font-weight: 600; font-size: 13px; } svg .tick { fill: var(--quiet); font-size: 11px; }
svg .grid { stroke: var(--line); } svg .curve { fill: none; stroke-width: 1.8; }
svg .mark { stroke: var(--quiet); stroke-dasharray: 3 3; }
"""


def run_page(record: RunRecord) -> str:
    """The whole page. Every string of the run is escaped; nothing is fetched."""
    best = record.best_epoch
    mark = None if best is None else (float(best), f"best: {best}")
    charts = [
        f"<div>{line_chart(title, curves, x_label='epoch', mark=mark)}</div>"
        for title, curves in curves_of(record)
    ]
    title = f"{record.path.name}: {record.model.splitlines()[0].partition('(')[0]}"
    header, rows = metric_rows(record.metrics)
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="quiet">{escape(record.status)}</p>',
        f"<h2>Metrics {'of the newest epoch' if best is None else f'of epoch {best}'}</h2>",
        table_html(header, rows),
        "<h2>Curves</h2>",
        f'<div class="charts">{"".join(charts)}</div>',
        "<h2>Cost</h2>",
        table_html(("what", "how much"), cost_rows(record)),
        *_lanes(record),
        "<h2>Settings</h2>",
        table_html(("option", "value"), setting_rows(record)),
        f'<p class="quiet">Written by tiergnn {escape(__version__)} from '
        f"{escape(str(record.path))}.</p>",
    ]
    return page(title, body)


def _lanes(record: RunRecord) -> list[str]:
    """What ran when in one training step, and what a plan says of it and of memory."""
    plan = record.plan
    timelines = [] if plan is None else [plan.timeline]
    timelines += [] if record.timeline is None else [record.timeline]
    body = []
    if timelines:
        body += [
            "<h2>One training step</h2>",
            f"<div>{timeline_chart('what ran when', timelines)}</div>",
        ]
    if plan is not None:
        body += [
            "<h2>Memory, as planned</h2>",
            f"<div>{memory_chart('bytes at the fullest moment of each tier', plan.held)}</div>",
        ]
    return body


def page(title: str, body: Sequence[str]) -> str:
    """The frame of a page around its pieces, with all styles inline."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body>{''.join(body)}</body></html>\n"
    )


def table_html(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'

"""A plan as one HTML page: what lies where, when what runs, and what the other plans would do."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from tiergnn.planner.choose import Trial, comparison
from tiergnn.planner.plan import Plan
from tiergnn.report.chart import frontier_chart
from tiergnn.report.lanes import memory_chart, timeline_chart
from tiergnn.report.page import page, table_html
from tiergnn.units import format_bytes, format_seconds

_HEAD = ("strategy", "knobs", "predicted seconds", "busiest lane", "device", "host", "disk")


def plan_page(plan: Plan, frontier: Sequence[Trial]) -> str:
    """The whole page; nothing is fetched. ``frontier``: plans that no other beats, or none."""
    title = f"{plan.strategy} on {plan.machine.name}: {format_seconds(plan.seconds)} a step"
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="quiet">{escape(plan.workload.name)} on {escape(plan.shape.name or "a graph")}: '
        f"{plan.shape.num_nodes:,} nodes, {plan.shape.num_edges:,} edges. Seconds are predicted; "
        f"bytes are upper bounds.</p>",
        "<h2>When what runs</h2>",
        f"<div>{timeline_chart('one training step', [plan.timeline])}</div>",
        "<h2>What lies where</h2>",
        f"<div>{memory_chart('bytes at the fullest moment of each tier', plan.held)}</div>",
        "<h2>In words</h2>",
        f'<pre class="scroll">{escape(plan.explain())}</pre>',
    ]
    if frontier:
        points = [
            (
                held.get("device", 0) / 2**30,
                trial.seconds,
                f"{trial.strategy} {trial.knobs}: {format_seconds(trial.seconds)}, "
                f"{format_bytes(held.get('device', 0))} on the device",
            )
            for trial in frontier
            if trial.plan is not None
            for held in [trial.plan.peak_bytes]
        ]
        chosen = next(
            (
                i
                for i, trial in enumerate(frontier)
                if (trial.strategy, trial.knobs) == (plan.strategy, plan.knobs)
            ),
            None,
        )
        body += [
            "<h2>Plans that no other beats</h2>",
            "<div>"
            + frontier_chart(
                "predicted seconds by device memory", points, x_label="GiB", chosen=chosen
            )
            + "</div>",
            table_html(_HEAD, comparison(frontier)),
        ]
    return page(title, body)

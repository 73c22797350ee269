"""One run as text, and the rows and curves that its page shows too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tiergnn.report.chart import Series
from tiergnn.report.record import RunRecord, splits_of
from tiergnn.report.table import pairs, table
from tiergnn.units import format_bytes, format_seconds

_PEAK_OF = {"process": "the process, its code included", "tensors": "tensors"}
Metrics = Mapping[str, Mapping[str, float | None]]


def run_text(record: RunRecord) -> str:
    """What a run was, what it reached and what it took."""
    when = "newest epoch" if record.best_epoch is None else f"epoch {record.best_epoch}"
    rows = [("run", str(record.path)), ("status", record.status), ("metrics of", when)]
    parts = [
        pairs([*rows, *cost_rows(record)]),
        metric_table(record.metrics),
        pairs(setting_rows(record)),
    ]
    return "\n\n".join(part for part in parts if part)


def metric_table(metrics: Metrics) -> str:
    """A line a split, a column a metric; empty without metrics."""
    header, rows = metric_rows(metrics)
    return table(header, rows) if rows else ""


def metric_rows(metrics: Metrics) -> tuple[list[str], list[list[str]]]:
    """Header and rows of text; what a split does not define is n/a."""
    names = list(dict.fromkeys(name for values in metrics.values() for name in values))
    rows = [
        [split, *(_number(values.get(name)) for name in names)] for split, values in metrics.items()
    ]
    return ["split", *names], rows


def cost_rows(record: RunRecord) -> list[tuple[str, str]]:
    """Seconds and bytes: measured, and what a plan predicted of them."""
    rows = []
    if record.seconds_per_epoch is not None:
        rows.append(("training an epoch", format_seconds(record.seconds_per_epoch)))
        evaluated = [r["eval_seconds"] for r in record.history if "eval_seconds" in r]
        if evaluated:
            rows.append(("evaluating", format_seconds(sorted(evaluated)[len(evaluated) // 2])))
    for tier, num_bytes in record.peak_bytes.items():
        rows.append((f"peak, {tier}: {_PEAK_OF[record.peak_of[tier]]}", format_bytes(num_bytes)))
    if record.plan is not None:
        rows.append(("predicted, an epoch", format_seconds(record.plan.seconds)))
        if record.measured_over_predicted is not None:
            rows.append(("measured over predicted", f"{record.measured_over_predicted:.2f}"))
        planned = record.plan.peak_bytes.items()
        rows += [(f"predicted peak, {tier}: tensors", format_bytes(n)) for tier, n in planned]
    return rows


def setting_rows(record: RunRecord) -> list[tuple[str, str]]:
    """The model, the graph and every option that was not left alone, then versions."""
    options = {n: v for n, v in record.options.items() if v is not None and v is not False}
    return [
        ("model", record.model),
        ("graph", record.graph),
        *((name, _option(value)) for name, value in options.items()),
        ("versions", ", ".join(f"{name} {version}" for name, version in record.versions.items())),
    ]


def curves_of(record: RunRecord) -> list[tuple[str, list[Series]]]:
    """(title, curves): the loss of every split, each metric of every split, the learning rate."""
    charts: dict[str, list[Series]] = {"loss": []}
    evaluated = [r for r in record.history if "eval_seconds" in r]
    x = tuple(float(r["epoch"]) for r in evaluated)
    for split, values in splits_of(evaluated[-1]).items() if evaluated else ():
        for metric in values:
            y = tuple(r.get(split, {}).get(metric) for r in evaluated)
            if any(value is not None for value in y):
                charts.setdefault(metric, []).append(Series(split, x, y))
    # Last, so that a split has one colour in every chart.
    x = tuple(float(r["epoch"]) for r in record.history)
    charts["loss"].append(Series("training step", x, tuple(r["loss"] for r in record.history)))
    charts["learning rate"] = [Series("lr", x, tuple(r["lr"] for r in record.history))]
    return list(charts.items())


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.4f}"


def _option(value: Any) -> str:
    """An object was recorded by its name, a given split by its parts."""
    if isinstance(value, Mapping):
        return ", ".join(str(item) for item in value.values())
    return str(value)

"""The tables of `rank_alone_gpu.py`: epochs by cell, ratios, and LEO's switches beside the paper's.

``python benchmarks/rank_alone_table.py FILE.json`` writes the page anew.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from provenance import sentence
from tiergnn.units import format_bytes

Row = dict[str, Any]

# What is divided by what, and the paper's figure: of GIN where it says so.
SWITCHES = (
    ("device cache of 25% beside none", "mgg", "leo 0.25", "3.12 (20%)"),
    ("host cache of 15% besides", "leo 0.25", "leo 0.25+0.15", "1.22"),
    ("+cache (without a pipeline)", "mgg serial", "leo 0.25 serial", "1.83 (GIN)"),
    ("+pipeline (without a cache)", "mgg serial", "mgg", "1.40 (GIN)"),
    ("both", "mgg serial", "leo 0.25", "2.56 (GIN)"),
    ("asynchronous refresh beside synchronous, 25%", "leo 0.25 sync", "leo 0.25", "1.38"),
    ("asynchronous refresh beside synchronous, all", "leo 1 sync", "leo 1", "1.38"),
)
NOT_SWITCHES = (
    "Task grain (block, warp, thread) and mapping (one class a task, or mixed) are no switches of "
    "the executor: each class of sources is a launch of its own, so that no program has edges of "
    "two classes, and its tiles follow from the width of rows and the lengths of tasks."
)


def page(record: dict[str, Any]) -> str:
    rows = [row for row in record["rows"] if "failed" not in row]
    failed = [f"- {row['cell']} {row['way']}: failed" for row in record["rows"] if "failed" in row]
    gpu = record.get("gpu", "no GPU: to try the script")
    meet = "hold the host up" if record["waits"] else "only stand in order on the device"
    lines = [
        f"# Rank {record['rank']} of {record['ranks']}, alone on one device",
        "",
        f"{gpu}. {sentence(record)} The other ranks' rows lie in host memory behind the link "
        f"(copies in {record['rates_Bps']['h2d'] / 1e9:.1f} GB/s); they are never late, and read "
        f"nothing of this rank; meetings {meet}. Predicted: the simulator, on a machine whose "
        "peers are behind that link; fitted: by what the measured actions of all rows taught, and "
        "the median of what steps of a model take beyond their actions. Bound: every row of others "
        "that a pass reads once, but those of inputs, over the link's rate.",
        *(["", *failed] if failed else []),
        *_worst(rows),
    ]
    for cell in dict.fromkeys(row["cell"] for row in rows):
        lines += ["", f"## {cell}", "", *_cell([row for row in rows if row["cell"] == cell])]
    lines += ["", "## Times as fast, geometric means over cells", "", *_means(rows)]
    lines += ["", "## LEO's switches", "", *_switches(rows), "", NOT_SWITCHES]
    return "\n".join(lines) + "\n"


def _worst(rows: list[Row]) -> list[str]:
    off = sorted(abs(row["fitted_s"] / row["epoch_s"] - 1) for row in rows if "fitted_s" in row)
    if not off:
        return []
    within = sum(each <= 0.15 for each in off)
    told = f"Fitted, {within} of {len(off)} are within 15%; {off[len(off) // 2]:.0%} in the median"
    return ["", f"{told}, {off[-1]:.0%} at worst."]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def _cell(rows: list[Row]) -> list[str]:
    seconds = {row["way"]: row["epoch_s"] for row in rows}
    head = (
        "way", "ms an epoch", "predicted", "off", "fitted", "off", "read of others", "bound, ms",
        "share of the bound", "link busy at its rate", "busiest lane", "over mgg", "over uva",
    )  # fmt: skip
    return _table(
        head,
        [
            [
                row["way"],
                f"{1e3 * row['epoch_s']:.2f}",
                f"{1e3 * row['predicted_s']:.2f}",
                f"{row['predicted_s'] / row['epoch_s'] - 1:+.0%}",
                *_fitted(row),
                format_bytes(row["moved_bytes"]["read"]),
                f"{1e3 * row['bound_s']:.2f}",
                f"{row['share_of_bound']:.0%}",
                f"{row['share_of_link']:.0%}",
                f"{row['busiest_frac']:.0%}",
                *(_times(seconds.get(other), row["epoch_s"]) for other in ("mgg", "uva")),
            ]
            for row in rows
        ],
    )


def _fitted(row: Row) -> list[str]:
    seconds = row.get("fitted_s")
    if seconds is None:
        return ["", ""]
    return [f"{1e3 * seconds:.2f}", f"{seconds / row['epoch_s'] - 1:+.0%}"]


def _times(other: float | None, own: float) -> str:
    return "" if other is None else f"{other / own:.2f}"


def _ratios(rows: list[Row], over: str, under: str) -> dict[str, float]:
    """By cell, where both were measured."""
    seconds = {(row["cell"], row["way"]): row["epoch_s"] for row in rows}
    cells = dict.fromkeys(row["cell"] for row in rows)
    return {
        cell: seconds[cell, over] / seconds[cell, under]
        for cell in cells
        if (cell, over) in seconds and (cell, under) in seconds
    }


def _mean(ratios: dict[str, float], model: str = "") -> str:
    chosen = [ratio for cell, ratio in ratios.items() if cell.endswith(model)]
    return f"{statistics.geometric_mean(chosen):.2f}" if chosen else ""


def _means(rows: list[Row]) -> list[str]:
    found = []
    for way in dict.fromkeys(row["way"] for row in rows):
        ratios = [_ratios(rows, over, way) for over in ("mgg", "uva")]
        each = [_mean(of, model) for of in ratios for model in ("", "gcn", "gin")]
        found.append([way, *each])
    head = ("way", *(f"over {over}{m}" for over in ("mgg", "uva") for m in ("", ", GCN", ", GIN")))
    return _table(head, found)


def _switches(rows: list[Row]) -> list[str]:
    found = []
    for what, over, under, paper in SWITCHES:
        ratios = _ratios(rows, over, under)
        if ratios:
            each = ", ".join(f"{cell} {ratio:.2f}" for cell, ratio in ratios.items())
            found.append([what, _mean(ratios), _mean(ratios, "gin"), paper, each])
    return _table(("switch", "times as fast", "GIN", "paper", "by cell"), found)


if __name__ == "__main__":
    source = Path(sys.argv[1])
    source.with_suffix(".md").write_text(page(json.loads(source.read_text())))

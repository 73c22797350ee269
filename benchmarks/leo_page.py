"""The page of ``leo_modelled``: its record as Markdown."""

from __future__ import annotations

from math import exp, log
from statistics import fmean
from typing import Any

from leo_figures import figures
from leo_tables import EXPLAINED, PROOFS_EXPLAINED


def page(record: dict[str, Any]) -> str:
    lines = [
        "# LEO's comparison, modelled",
        "",
        f"*Modelled*, not measured, by `{record['command']}` at commit {record['commit']} on "
        f"{record['date']}: schedules of the strategies on the simulator's clock. Columns that say "
        "measured are those of our own first proofs on an H200; the paper's ratios are its claims.",
        "",
        "## Ratios beside the paper's",
        "Geometric means over the seven graphs (and models and machines, unless one is named).",
        "",
        "| ratio | paper | modelled | from, to | deviation | busiest lanes, above / below |",
        "|---|---|---|---|---|---|",
    ]
    for row in record["ratios"]:
        lines.append(
            f"| {row['what']} | {row['paper']:.2f} | {row['modelled']:.2f} | "
            f"{row['least']:.2f}, {row['most']:.2f} | {row['deviation']:+.0%} | "
            f"{row['bound'][0]} / {row['bound'][1]} |"
        )
    found = figures(record["epochs"])
    lines += ["", "### Why they deviate", EXPLAINED, ""]
    lines += [
        f"- **{row['what']}** ({row['deviation']:+.0%}): {row['why'].format(**found)}"
        for row in record["ratios"]
        if abs(row["deviation"]) > 0.3
    ]
    lines += [
        "",
        "## What assumptions are worth",
        "",
        "| | DGL (uva) / leo | MGG / leo |",
        "|---|---|---|",
        *(f"| {row['what']} | {row['uva']:.2f} | {row['mgg']:.2f} |" for row in record["assumed"]),
    ]
    lines += epoch_table(record["epochs"])
    lines += proof_table(record["proof"])
    lines += staging_table(record["staged"])
    return "\n".join(lines) + "\n"


def epoch_table(rows: list[dict[str, Any]]) -> list[str]:
    forms = ("uva", "mgg", "leo", "leo, managed", "halo", "nfp")
    lines = [
        "",
        "## Epochs, modelled: milliseconds, and the lane that is busiest",
        "A star: refused on this machine for want of memory, and clocked as if there were enough.",
        "",
        "| machine | graph | model | " + " | ".join(forms) + " |",
        "|---|---|---|" + "---|" * len(forms),
    ]
    for row in rows:
        cells = []
        for form in forms:
            cell = row[form]
            star = "*" if cell["refused"] else ""
            cells.append(f"{cell['seconds'] * 1e3:.1f}{star} {cell['bottleneck']}")
        lines.append(
            f"| {row['machine']} | {row['graph']} | {row['model']} | " + " | ".join(cells) + " |"
        )
    return lines


def proof_table(rows: list[dict[str, Any]]) -> list[str]:
    forms = ("uva", "mgg", "25%", "40%", "pulled")
    lines = [
        "",
        "## A check of the model: the first proof on one H200",
        "Rank 0 of 8, the other ranks' rows in pinned host memory, one forward aggregation. "
        "Milliseconds: modelled / measured: error. The shares of remote edges that a cache "
        "leaves are those counted on the graphs; boundary rows are expected of the degrees.",
        "",
        "| graph, width | " + " | ".join(forms) + " |",
        "|---|" + "---|" * len(forms),
    ]
    errors: dict[str, list[float]] = {form: [] for form in forms}
    for row in rows:
        cells = []
        for form in forms:
            ours, theirs = row[form]["modelled_ms"], row[form]["measured_ms"]
            errors[form].append(abs(log(ours / theirs)))
            cells.append(f"{ours:.3g} / {theirs:.3g}: {ours / theirs - 1:+.0%}")
        lines.append(f"| {row['graph']}, {row['width']} | " + " | ".join(cells) + " |")
    means = [f"{exp(fmean(errors[form])) - 1:.0%}" for form in forms]
    lines.append("| typical error | " + " | ".join(means) + " |")
    return lines


def staging_table(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "",
        "## A check of the model: staging through host memory on one H200",
        "One aggregation, from pinned host memory to pinned host memory.",
        "",
        PROOFS_EXPLAINED,
        "",
        "| graph | form | GB in, out | modelled ms | measured ms | error |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        form = "16 row parts" if row["form"] == "parts" else f"{row['form']} slices"
        lines.append(
            f"| {row['graph']} | {form} | {row['in_GB']:.1f}, {row['out_GB']:.1f} | "
            f"{row['modelled_ms']:.0f} | {row['measured_ms']:.0f} | "
            f"{row['modelled_ms'] / row['measured_ms'] - 1:+.0%} |"
        )
    return lines

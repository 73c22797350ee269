"""``doctor``: what this machine offers, and how to get what it lacks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tiergnn.cli.output import EXIT_UNEXPECTED, JSON, Output

if TYPE_CHECKING:
    from tiergnn.hardware.finding import Report

_SIGNS = {"ok": " ", "warn": "!", "fail": "X"}


def doctor(
    folder: Annotated[
        Path, typer.Option(help="Where graphs and runs will be; its disk is timed, 256 MiB.")
    ] = Path("."),
    json: JSON = False,
) -> None:
    """What this machine offers, and for each shortfall the line that mends it.

    Devices, memory, limits, disk, library versions, and how ranks would reach each other. Exit
    code 1 when something that is needed does not work, else 0. How fast it is, in numbers, says:
    tiergnn machine

    Example: tiergnn doctor --folder data
    """
    from tiergnn.hardware.finding import Report
    from tiergnn.hardware.probe import probe
    from tiergnn.transport.pick import findings

    found = Report((*probe(folder), *findings()))
    Output(json=json).result(found.to_json(), describe(found))
    if found.status == "fail":
        raise typer.Exit(EXIT_UNEXPECTED)


def describe(report: Report) -> str:
    """Findings by group; ``!`` works but less or slower, ``X`` does not work."""
    width = max(len(finding.name) for finding in report)
    lines: list[str] = []
    for group, findings in report.groups().items():
        lines.append(group)
        for finding in findings:
            sign = _SIGNS[finding.status]
            lines.append(f"{sign} {finding.name:<{width}}  {finding.value}")
            if finding.remedy:
                lines.append(f"  {'':<{width}}  -> {finding.remedy}")
    short = report.shortfalls
    broken = sum(finding.status == "fail" for finding in short)
    lines.append(
        "everything is well"
        if not short
        else f"{len(short)} of {len(report.findings)} marked: {broken} do not work (X), "
        f"{len(short) - broken} work with less or slower (!)"
    )
    return "\n".join(lines)

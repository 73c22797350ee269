"""The results of `ranks.py` in sum, and as a page."""

from __future__ import annotations

import statistics
from typing import Any

from scipy.stats import binomtest

from provenance import sentence
from ranks_jobs import ONE_RANK, PREPARED, RESIDENT

_ALONE = (RESIDENT, PREPARED, ONE_RANK)
_ALIKE = 1.02
_CHANCE = 0.05
_BY = {"epoch": "the epochs", "processor": "the processor's"}
_OF = {"epoch": "", "processor": " of the busiest rank's processor"}
PAPER = "85.9 / 88.2 / 94.7%"


def choice(row: dict[str, Any]) -> dict[str, Any]:
    """What the planner picks in a cell, what was shortest, and what the pick costs beyond it;
    ``told_apart``: the shortest was shorter in more of the rounds than chance has it, in one case
    of 20."""
    ways = {name: way for name, way in row["ways"].items() if way["predicted s"] is not None}
    picked = min(ways, key=lambda name: ways[name]["predicted s"])
    shortest = min(ways, key=lambda name: ways[name]["measured s"])
    regret = ways[picked]["measured s"] / ways[shortest]["measured s"] - 1
    pairs = list(zip(ways[picked]["epochs s"], ways[shortest]["epochs s"], strict=True))
    shorter = sum(best < took for took, best in pairs)
    chance = binomtest(shorter, len(pairs), alternative="greater").pvalue
    return {
        "picked": picked,
        "shortest": shortest,
        "regret": regret,
        "told_apart": picked != shortest and bool(chance < _CHANCE),
    }


def summary(record: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for row in record["speedup"]:
        taken = {name: way["measured s"] for name, way in row["ways"].items()}
        ranked = {name: s for name, s in taken.items() if name not in _ALONE}
        for name, seconds in ranked.items():
            found[f"{row['cell']}: one rank over {name}"] = taken[ONE_RANK] / seconds
            found[f"{row['cell']}: resident over {name}"] = taken[RESIDENT] / seconds
    choices = [choice(row) for row in record["choices"]]
    if choices:
        errors = [
            abs(way["predicted s"] / way["measured s"] - 1)
            for row in record["choices"]
            for way in row["ways"].values()
        ]
        others = [row["processors of others"] for row in record["choices"]]
        found |= {
            "cells": len(choices),
            "most processors of others": max(others),
            "picked the shortest": sum(c["picked"] == c["shortest"] for c in choices),
            "picked it or one not told apart": sum(not c["told_apart"] for c in choices),
            "picked one within 2% of it": sum(c["regret"] < _ALIKE - 1 for c in choices),
            "mean regret": statistics.mean(c["regret"] for c in choices),
            "worst regret": max(c["regret"] for c in choices),
            "median error of seconds": statistics.median(errors),
        }
    return found


def page(record: dict[str, Any]) -> str:
    lines = ["# Ranks on the CPU", "", sentence(record), ""]
    lines += [record["note"], ""] if record["note"] else []
    lines += _speedups(record["speedup"], record["by"]) if record["speedup"] else []
    lines += _choices(record) if record["choices"] else []
    lines += _reads(record["reads"]) if record["reads"] else []
    return "\n".join(lines)


def _speedups(rows: list[dict[str, Any]], by: str) -> list[str]:
    lines = [
        "## Two ranks on two cores, measured",
        "",
        "Training epochs in turns, the median; each rank computes on one thread. `resident` is one "
        "device on one thread; *prepared* holds the sums of inputs, made once, which ranks add up "
        "anew in every epoch. Processor: that of the busiest rank, which other processes take "
        f"nothing of; ratios are of {_BY[by]}. Others: the processors that they used.",
        "",
        "| graph, model, ranks | way | ms an epoch | processor ms | one rank over it | "
        "resident over it | others |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        taken = {name: way["measured s"] for name, way in row["ways"].items()}
        for name, seconds in taken.items():
            over = " | ".join(f"{taken[base] / seconds:.2f}" for base in (ONE_RANK, RESIDENT))
            way = row["ways"][name]
            lines.append(
                f"| {row['cell']} | {name} | {1e3 * way['epoch s']:.0f} | "
                f"{1e3 * way['processor s']:.0f} | {over} | {row['processors of others']:.1f} |"
            )
    return [*lines, ""]


def _choices(record: dict[str, Any]) -> list[str]:
    names = list(record["choices"][0]["same"])
    total = record["summary"]
    lines = [
        "## What the planner picks, measured beside predicted",
        "",
        f"The shortest epoch is picked in {total['picked the shortest']} of {total['cells']} "
        f"cells (one within 2% of it in {total['picked one within 2% of it']}; it or one from "
        f"which it is not told apart in {total['picked it or one not told apart']}: it was not "
        "shorter in more of the rounds than one case of 20 has by chance); mean regret "
        f"{total['mean regret']:.1%}, worst {total['worst regret']:.1%}. Milliseconds of a "
        f"training epoch{_OF[record['by']]}: the median of epochs in turns, and in brackets what "
        "is predicted by rates probed on this machine "
        f"({total['median error of seconds']:.0%} off in the median). Bold is the shortest, "
        "* the pick. `leo` has the caches that the planner gives it: without any it is `mgg`, and "
        "timed once. Other processes used up to "
        f"{total['most processors of others']:.1f} processors meanwhile.",
        "",
        f"| graph, model, ranks | {' | '.join(names)} | regret |",
        "|---|" + "---|" * (len(names) + 1),
    ]
    for row in record["choices"]:
        made = choice(row)
        told = []
        for name in names:
            if row["same"][name] != name:
                told.append(f"as {row['same'][name]}")
                continue
            way = row["ways"][name]
            text = f"{1e3 * way['measured s']:.1f}"
            text = f"**{text}**" if name == made["shortest"] else text
            star = "*" if name == made["picked"] else ""
            told.append(f"{text}{star} ({1e3 * way['predicted s']:.1f})")
        lines.append(f"| {row['cell']} | {' | '.join(told)} | {made['regret']:.1%} |")
    return [*lines, ""]


def _reads(rows: list[dict[str, Any]]) -> list[str]:
    ways = list(rows[0]["parts"][0]["bytes over the halo's"])
    lines = [
        "## Rows of others in 8 parts, counted",
        "",
        "Remote reads (edges whose source another part owns) that caches of 25% of all rows on the "
        f"device, and of 15% more in host memory, answer; LEO has {PAPER} for both together on "
        "three graphs (in 8 blocks of nodes). Then the bytes that a layer of 64 columns moves "
        "forward over all links, over those of each needed row once; caches are refreshed from "
        "outputs.",
        "",
        "| graph | parts | halo rows over nodes | by the device's | by both | "
        + " | ".join(ways)
        + " |",
        "|---|---|---|---|---|" + "---|" * len(ways),
    ]
    for row in rows:
        for of in row["parts"]:
            over = of["bytes over the halo's"]
            bytes_ = " | ".join(f"{over[way]:.2f}" for way in ways)
            lines.append(
                f"| {row['graph']} | {of['method']} | {of['halo rows over nodes']:.2f} | "
                f"{of['removed by device']:.1%} | {of['removed by device and host']:.1%} | "
                f"{bytes_} |"
            )
    return [*lines, ""]

"""``plan`` and ``simulate``: will it fit, how fast, and how would it do elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tiergnn.cli import options as opt
from tiergnn.cli.output import JSON, Output, made_for
from tiergnn.cli.results import write_page
from tiergnn.units import parse_bytes

if TYPE_CHECKING:
    from tiergnn.planner.choose import Trial
    from tiergnn.planner.plan import Plan

Html = Annotated[
    Path | None, typer.Option("--html", help="Write a page with timeline, memory and frontier.")
]
_BESIDE_WORKLOAD = ("split", "device", "prepare")  # options that a workload does not settle
_HEAD = ("strategy", "knobs", "seconds", "busiest", "device", "host", "disk")


def plan(
    graph: Annotated[
        str,
        typer.Argument(help="A graph folder, a shape's JSON file, or products, papers100M, ..."),
    ],
    model: Annotated[
        str,
        typer.Option("--model", "-m", help="A ready model by name, or a workload's JSON file."),
    ],
    hidden: opt.Hidden = None,
    layers: opt.Layers = None,
    dropout: opt.Dropout = None,
    input_dropout: opt.InputDropout = None,
    attention_dropout: opt.AttentionDropout = None,
    edge_dropout: opt.EdgeDropout = None,
    heads: opt.Heads = None,
    out_heads: opt.OutHeads = None,
    norm: opt.Norm = None,
    residual: opt.Residual = None,
    jk: opt.Jump = None,
    act: opt.Act = None,
    aggr: opt.Aggr = None,
    hops: opt.Hops = None,
    alpha: opt.Alpha = None,
    improved: opt.Improved = None,
    self_loops: opt.SelfLoops = None,
    train_eps: opt.TrainEps = None,
    edge_dim: opt.EdgeDim = None,
    device_memory: opt.DeviceMemory = None,
    host_memory: Annotated[
        str | None,
        typer.Option(help="The most to hold in host memory: 32GiB; without a unit it is bytes."),
    ] = None,
    disk: Annotated[
        Path | None, typer.Option(help="A folder whose disk may hold what memory cannot.")
    ] = None,
    machine: Annotated[
        str | None,
        typer.Option(
            help="h200, a100x8-pcie, ... or a file of `tiergnn machine --out`.",
            show_default="this one",
        ),
    ] = None,
    ranks: Annotated[
        int,
        typer.Option(help="Devices that train together; with --frontier fewer, too.", min=1),
    ] = 1,
    partition: opt.Parts = None,
    strategy: Annotated[
        list[str] | None, typer.Option(help=f"Try only this. {opt.STRATEGIES}")
    ] = None,
    storage: Annotated[
        list[str] | None,
        typer.Option(help="A dtype that rows may have off the device: bfloat16. Not exact."),
    ] = None,
    hot_frac: opt.HotFrac = None,
    optimizer: opt.Optimizer = None,
    split: opt.Split = None,
    features: opt.Features = None,
    prepare: opt.Prepare = None,
    device: opt.Device = None,
    dtype: opt.Dtype = None,
    frontier: Annotated[
        bool, typer.Option("--frontier", help="All plans that no other beats in time and bytes.")
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the plan here.")] = None,
    schedule: Annotated[
        Path | None, typer.Option(help="Write the plan's schedule here, as text.")
    ] = None,
    save_workload: Annotated[
        Path | None, typer.Option(help="Write what the model takes here: a --model elsewhere.")
    ] = None,
    html: Html = None,
    json: JSON = False,
) -> None:
    """Will it fit, how fast, and what is the best way? Nothing is trained.

    Every strategy is tried within the budgets: its schedule is written, proven and clocked on this
    machine's rates (measured once, in under 20 s) or another's. Seconds are predicted, bytes are
    upper bounds.

    Example: tiergnn plan data/cora --model sage --hidden 256 --layers 3 --device-memory 8GiB
    """
    from tiergnn.planner.choose import best, undominated
    from tiergnn.training.options import Options
    from tiergnn.training.planning import Budgets, question

    given = {
        "hidden_channels": hidden,
        "num_layers": layers,
        "dropout": dropout,
        "input_dropout": input_dropout,
        "attention_dropout": attention_dropout,
        "edge_dropout": edge_dropout,
        "heads": heads,
        "out_heads": out_heads,
        "norm": norm,
        "residual": residual,
        "jk": jk,
        "act": act,
        "aggr": aggr,
        "K": hops,
        "alpha": alpha,
        "improved": improved,
        "add_self_loops": self_loops,
        "train_eps": train_eps,
        "edge_dim": edge_dim,
    }
    architecture = {name: value for name, value in given.items() if value is not None}
    chosen: dict[str, Any] = {
        "optimizer": optimizer,
        "split": split,
        "features": features,
        "prepare": prepare,
        "device": device,
        "dtype": dtype,
    }
    chosen = {name: value for name, value in chosen.items() if value is not None}
    if model.endswith(".json"):
        _refuse_settled({**architecture, **chosen})
    asked = question(
        graph,
        model if model.endswith(".json") else {"name": model, **architecture},
        Options(**chosen),
        machine=machine,
        budgets=Budgets(
            device_bytes=None if device_memory is None else parse_bytes(device_memory),
            host_bytes=None if host_memory is None else parse_bytes(host_memory),
            disk=disk,
        ),
        ranks=ranks,
        parts=partition,
        storage=tuple(storage or ()),
        hot_frac=hot_frac,
        thorough=frontier,
    )
    if save_workload is not None:
        saved = replace(asked.workload, prepared_form=asked.prepared)
        saved.save(made_for(save_workload))
    trials = asked.trials(strategy or ())
    found = best(trials, has_disk=asked.machine.disk is not None)
    if out is not None:
        found.save(made_for(out))
    if schedule is not None:
        _write(schedule, found.schedule.text())
    points = undominated(trials)
    if html is not None:
        from tiergnn.report.plans import plan_page

        write_page(html, plan_page(found, points))
    shown = points if frontier else trials
    value = _as_dict(found) | {
        "trials": [_trial(trial) for trial in trials],
        "frontier": [_trial(trial) for trial in points],
    }
    told = [str(found), "", *_compared(shown)]
    if frontier:
        told += ["", _drawn(points)]
    Output(json=json).result(value, "\n".join(told))


def simulate(
    plan: Annotated[Path, typer.Argument(help="A plan, made by `tiergnn plan --out`.")],
    machine: Annotated[
        str | None,
        typer.Option(
            help="Another machine: h200, a100x8-pcie, ... or a machine's JSON file.",
            show_default="the plan's",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the predicted timeline here, as JSON.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write a page with timeline and memory.")
    ] = None,
    json: JSON = False,
) -> None:
    """The clock of a plan, lane by lane, on its machine or on another.

    Example: tiergnn simulate plan.json --machine a100x8-pcie
    """
    from tiergnn.hardware.presets import resolve
    from tiergnn.planner.critical import critical_path
    from tiergnn.planner.plan import Plan
    from tiergnn.report.table import table
    from tiergnn.units import format_bytes, format_seconds

    made = Plan.load(plan)
    found = made if machine is None else made.on(resolve(machine))
    timeline = found.timeline
    if out is not None:
        timeline.save(made_for(out))
    if html is not None:
        from tiergnn.report.plans import plan_page

        write_page(html, plan_page(found, []))
    path = critical_path(timeline, found.schedule)
    moved = timeline.moved_bytes()
    busy = timeline.busy_s()
    rows = [
        (f"r{rank}", lane, format_seconds(seconds), f"{seconds / timeline.seconds:.0%}")
        for (rank, lane), seconds in sorted(busy.items())
    ]
    lines = [
        str(found),
        *(() if machine is None else ("  note: budgets of the plan's machine are left aside",)),
        "",
        table(("rank", "lane", "busy", "of the step"), rows),
        "bytes moved: "
        + (", ".join(f"{lane} {format_bytes(n)}" for lane, n in moved.items() if n) or "none"),
    ]
    if path.bound is not None:
        rank, lane = path.bound
        lines.append(f"the step is as long as it is because of {lane} on rank {rank}")
    value = _as_dict(found) | {
        "busy_s": [{"rank": r, "lane": lane, "seconds": s} for (r, lane), s in busy.items()],
        "moved_bytes": moved,
    }
    Output(json=json).result(value, "\n".join(lines))


def _refuse_settled(given: Iterable[str]) -> None:
    """What a workload has already: ConfigError for the first of the options given, if it is one."""
    from tiergnn.errors import ConfigError

    settled = [name for name in given if name not in _BESIDE_WORKLOAD]
    if settled:
        raise ConfigError(
            f"a workload has its {settled[0]} already",
            hint="--save-workload with that option makes another",
        )


def _as_dict(plan: Plan) -> dict[str, Any]:
    return {
        "strategy": plan.strategy,
        "knobs": str(plan.knobs),
        "machine": plan.machine.name,
        "predicted_s": plan.seconds,
        "bottleneck": plan.bottleneck,
        "peak_bytes": plan.peak_bytes,
        "held": plan.held,
        "notes": plan.notes,
    }


def _trial(trial: Trial) -> dict[str, Any]:
    knobs = trial.knobs
    asked = {"strategy": trial.strategy, "knobs": trial.text, "ranks": knobs.ranks}
    reason = None if trial.refused is None else trial.refused.problem
    if trial.least is not None:
        least, held = trial.least
        return asked | {"at_least_s": least, "peak_bytes": dict(held), "not_written": reason}
    if trial.plan is None:
        return asked | {"refused": reason}
    return asked | {
        "predicted_s": trial.seconds,
        "bottleneck": trial.plan.bottleneck,
        "peak_bytes": trial.plan.peak_bytes,
    }


def _compared(trials: Sequence[Trial]) -> list[str]:
    from tiergnn.planner.choose import comparison
    from tiergnn.report.table import table

    lines = [table(_HEAD, comparison(trials))]
    if any(trial.least for trial in trials):
        lines.append(">=: what it takes at least, more than another; it was not looked at further")
    for trial in trials:
        if trial.refused is not None and trial.least is None:
            first = trial.refused.problem.splitlines()[0]
            lines.append(f"refused: {trial.strategy} {trial.text}: {first}")
    return lines


def _drawn(points: Sequence[Trial]) -> str:
    """Seconds against device bytes, as bars that a terminal and a file show alike."""
    from tiergnn.units import format_bytes, format_seconds

    most = max(trial.seconds for trial in points)
    lines = ["seconds (bar) by device memory, of the plans that no other beats:"]
    by_device = sorted(points, key=lambda trial: _device_bytes(trial))
    for trial in by_device:
        bar = "#" * max(1, round(40 * trial.seconds / most)) if most else ""
        lines.append(
            f"{format_bytes(_device_bytes(trial)):>10} {bar:<40} {format_seconds(trial.seconds)} "
            f"{trial.strategy} {trial.text}"
        )
    return "\n".join(lines)


def _device_bytes(trial: Trial) -> int:
    return 0 if trial.plan is None else trial.plan.peak_bytes.get("device", 0)


def _write(path: Path, text: str) -> None:
    from tiergnn.files import write_whole

    write_whole(made_for(path), text.encode())

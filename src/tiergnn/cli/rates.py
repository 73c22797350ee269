"""``machine``: this machine, or one of the presets, as the planner sees it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tiergnn.cli.output import JSON, Output, made_for
from tiergnn.errors import ConfigError
from tiergnn.units import format_bytes, format_rate, format_seconds

if TYPE_CHECKING:
    from tiergnn.hardware.machine import Curve, Device, Machine


def machine(
    preset: Annotated[
        str | None,
        typer.Option(help="A known machine, or a machine's JSON file, instead of this one."),
    ] = None,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Measure again what was measured before.")
    ] = False,
    folder: Annotated[
        Path, typer.Option(help="Where graphs and runs will be; its disk is timed, 256 MiB.")
    ] = Path("."),
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda; CUDA where there is a device.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the machine as JSON, to edit or to plan for.")
    ] = None,
    json: JSON = False,
) -> None:
    """Capacities and rates of this machine, measured in under 20 s and remembered.

    They are what plans are made from. A file written with --out may be edited, and given wherever a
    machine is asked for.

    Example: tiergnn machine --out here.json
    """
    from tiergnn import frozen
    from tiergnn.hardware.machine import FORMAT, VERSION
    from tiergnn.hardware.presets import resolve

    if preset is not None:
        if refresh or device is not None:
            raise ConfigError(
                f"{preset} is not measured: --refresh and --device are of this machine",
                hint="leave out --preset, or the others",
            )
        found = resolve(preset)
    else:
        from tiergnn.hardware.measure import measure

        found = measure(folder, refresh=refresh, device=device)
    if out is not None:
        found.save(made_for(out))
    value = {"format": FORMAT, "version": VERSION} | frozen.encode(found)
    text = describe(found) + (f"\nwritten to {out}" if out is not None else "")
    Output(json=json).result(value, text)


def describe(found: Machine) -> str:
    """The machine as a table."""
    when = f", {found.date}" if found.date else ""
    devices = f"{found.num_devices} x {found.device.name}" if found.num_devices > 1 else ""
    hosts = f", {found.num_hosts} hosts" if found.num_hosts > 1 else ""
    lines = [
        f"{found.name} ({found.source}{when}{hosts})",
        *_table(
            [
                ("devices", devices or found.device.name),
                ("device memory", str(found.device.memory)),
                ("host memory", str(found.host)),
                ("disk", "none" if found.disk is None else str(found.disk)),
            ]
        ),
        "device",
        *_table(_device(found.device)),
        "links",
    ]
    rows = []
    for name, link in found.links.items():
        marks = [_curve(link.Bps)]
        if link.latency_s:
            marks.append(f"latency {format_seconds(link.latency_s)}")
        if link.devices > 1:
            marks.append(f"shared by {link.devices} devices")
        if link.duplex_frac < 1:
            marks.append(f"{link.duplex_frac:.0%} of it beside the opposite way")
        rows.append((name, "; ".join(marks)))
    return "\n".join([*lines, *_table(rows)])


def _device(device: Device) -> list[tuple[str, str]]:
    rows = [
        ("cache", format_bytes(device.cache_bytes)),
        ("copy", format_rate(device.stream_Bps)),
    ]
    if device.elementwise_Bps is not None:
        rows.append(("element by element", _curve(device.elementwise_Bps)))
    if device.rowwise_Bps is not None:
        rows.append(("  by our kernels", _curve(device.rowwise_Bps)))
    if device.totals_Bps is not None:
        rows.append(("  sums over rows", _curve(device.totals_Bps)))
    if device.adds_Bps is not None:
        rows.append(("  rows added by index", _curve(device.adds_Bps)))
    if device.fresh_Bps is not None:
        rows.append(("fresh pages", format_rate(device.fresh_Bps)))
    if device.draws_per_s is not None:
        rows.append(("numbers drawn", f"{device.draws_per_s / 1e9:,.3g} billion/s"))
    rows.append(("random rows", _curve(device.gather_Bps)))
    rows.append(("  in cache", _curve(device.cached_gather_Bps)))
    if device.near_gather_Bps is not None:
        near = format_bytes(device.near_cache_bytes)
        rows.append((f"  in the nearest {near}", _curve(device.near_gather_Bps)))
    if device.walks_per_s is not None:
        rows.append(("  rows summed", f"{device.walks_per_s / 1e6:,.3g} million/s"))
    heads = (
        ("attention", device.attends_per_s),
        ("  drops", device.drops_per_s),
        ("  rows", device.softmaxes_per_s),
    )
    for name, of_edges in heads:
        if of_edges is not None:
            points = ", ".join(f"{n:.0f}: {rate / 1e9:,.3g}" for n, rate in of_edges.points)
            rows.append((name, f"{points} billion/s by heads"))
    for dtype, curve in device.matmul_flops.items():
        points = ", ".join(f"{size:.0f}: {rate / 1e9:,.3g}" for size, rate in curve.points)
        rows.append((f"{dtype} products", f"{points} GFLOP/s by width"))
    launch = format_seconds(device.launch_s)
    if device.graph_launch_s is not None:
        launch += f"; of a graph operation {format_seconds(device.graph_launch_s)}"
    if device.cold_graph_launch_s is not None:
        launch += f", {format_seconds(device.cold_graph_launch_s)} between large ones"
    if device.replayed_launch_s is not None:
        launch += f"; replayed {format_seconds(device.replayed_launch_s)}"
    rows.append(("launch", launch))
    return rows


def _curve(curve: Curve) -> str:
    if len(curve.points) == 1:
        return format_rate(curve.points[0][1])
    return ", ".join(f"{_size(size)} {format_rate(rate)}" for size, rate in curve.points)


def _size(num_bytes: float) -> str:
    """Short: sizes of rows and blocks are whole."""
    return format_bytes(num_bytes).replace(".0 ", " ") + ":"


def _table(rows: list[tuple[str, str]]) -> list[str]:
    width = max(len(name) for name, _ in rows)
    return [f"  {name:<{width}}  {value}" for name, value in rows]

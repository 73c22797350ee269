"""A partition as people and programs read it: table, summary, JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tiergnn.units import format_count

if TYPE_CHECKING:
    from tiergnn.graph.partition import Balance, Partition

_SHOWN_PARTS = 64  # rows of the table that ``text`` prints


def table(partition: Partition) -> tuple[list[str], list[list[str]]]:
    """Headers and rows of text; see ``Partition.table``."""
    columns = {
        "nodes": partition.num_nodes,
        "in-edges": partition.num_edges,
        "cut": partition.num_cut,
        "halo": partition.num_halo,
        **{name: partition.split_sizes(name) for name in partition.main_splits()},
    }
    rows = [
        [str(part), *(format_count(int(load[part])) for load in columns.values())]
        for part in range(partition.num_parts)
    ]
    totals = {name: int(load.sum()) for name, load in columns.items()}
    rows.append(["all", *(format_count(total) for total in totals.values())])
    shares = [
        f"{int(load.max()) * partition.num_parts / totals[name]:.3f}" if totals[name] else "-"
        for name, load in columns.items()
    ]
    rows.append(["max/mean", *shares])
    return ["part", *columns], rows


def summary(partition: Partition) -> list[tuple[str, str]]:
    """(name, value) pairs; see ``Partition.summary``."""
    seed = f", seed {partition.seed}" if partition.method in ("metis", "switching") else ""
    why = f" (auto: {partition.reason})" if partition.reason else ""
    cut = f"{format_count(partition.edge_cut)} ({partition.edge_cut_frac:.1%} of edges)"
    lines = [
        ("method", f"{partition.method}{seed}{why}"),
        ("parts", format_count(partition.num_parts)),
        ("edge cut", cut),
        ("expansion ratio", f"{partition.expansion_ratio:.3f}"),
    ]
    for balance in partition.balances():
        lines.append((f"imbalance of {balance.name}", f"{balance.found:.3f}{_verdict(balance)}"))
    return lines


def _verdict(balance: Balance) -> str:
    if balance.asked is None:
        return ""
    verdict = "NOT MET"
    if balance.holds:
        verdict = "holds" if balance.found <= balance.asked else "holds to the whole node"
    return f" (asked {balance.asked:g}: {verdict})"


def text(partition: Partition) -> str:
    """Summary and table; of many parts the first and the last ones."""
    headers, rows = table(partition)
    if partition.num_parts > _SHOWN_PARTS:
        gap = ["..."] * len(headers)
        rows = [*rows[: _SHOWN_PARTS // 2], gap, *rows[-_SHOWN_PARTS // 2 - 2 :]]
    widths = [max(len(row[i]) for row in [headers, *rows]) for i in range(len(headers))]
    lines = [f"{name}: {value}" for name, value in summary(partition)]
    lines += [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in [headers, *rows]
    ]
    return "\n".join(lines)


def to_json(partition: Partition) -> dict[str, Any]:
    """Plain JSON values; see ``Partition.to_json``."""
    return {
        "method": partition.method,
        "reason": partition.reason,
        "seed": partition.seed,
        "num_parts": partition.num_parts,
        "num_nodes": partition.graph.num_nodes,
        "num_edges": partition.graph.num_edges,
        "edge_cut": partition.edge_cut,
        "edge_cut_frac": partition.edge_cut_frac,
        "expansion_ratio": partition.expansion_ratio,
        "balance": {
            balance.name: {"asked": balance.asked, "found": balance.found, "holds": balance.holds}
            for balance in partition.balances()
        },
        "parts": {
            "nodes": partition.num_nodes.tolist(),
            "in_edges": partition.num_edges.tolist(),
            "cut": partition.num_cut.tolist(),
            "halo": partition.num_halo.tolist(),
            "splits": {
                name: partition.split_sizes(name).tolist() for name in partition.graph.splits
            },
        },
    }

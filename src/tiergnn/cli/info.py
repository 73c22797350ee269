"""``info``: what a graph folder holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tiergnn.cli.output import JSON, Output
from tiergnn.report.table import pairs, table
from tiergnn.units import format_bytes

if TYPE_CHECKING:
    from tiergnn.graph.partition import Partition
    from tiergnn.graph.summary import Degrees, Summary

_TOPOLOGY = ("rowptr", "col")
_SHOWN_CLASSES = 12
_SPLITS = {"train": 0, "val": 1, "test": 2}  # as people think of them; others follow
_SHOWN = 300  # characters of a note


def info(
    graph: Annotated[Path, typer.Argument(help="A graph folder, made by `tiergnn ingest`.")],
    verify: Annotated[
        bool | None,
        typer.Option(
            "--verify/--no-verify",
            help="Compare every array with its checksum.",
            show_default="when the folder is at most 4 GiB",
        ),
    ] = None,
    json: JSON = False,
) -> None:
    """Counts, degrees, arrays and bytes, labels, splits and partitions of a graph folder.

    Reads the whole topology once; features stay on the disk unless they are verified.

    Example: tiergnn info data/cora --verify
    """
    from tiergnn.graph.csr import Graph
    from tiergnn.graph.partition import Partition
    from tiergnn.graph.partition_folder import list_partitions
    from tiergnn.graph.summary import Summary

    opened = Graph.open(graph, verify=verify)
    summary = Summary.of(opened)
    notes = _notes(graph)
    partitions = {name: Partition.open(opened, name) for name in list_partitions(opened)}
    facts = {
        "graph": graph,
        **asdict(summary),
        "num_bytes": summary.num_bytes,
        "notes": notes,
        "partitions": {name: made.to_json() for name, made in partitions.items()},
    }
    told = f"graph           {graph}\n{describe(summary)}"
    if notes:
        cut = [note if len(note) <= _SHOWN else f"{note[:_SHOWN]} ..." for note in notes]
        told += "\n\nnoted at ingest:\n  " + "\n  ".join(cut)
    if partitions:
        told += f"\n\n{_partitions(partitions)}"
    Output(json=json).result(facts, told)


def describe(summary: Summary) -> str:
    """The summary as people read it."""
    s = summary
    rows: list[tuple[str, object]] = [
        ("nodes", s.num_nodes),
        ("edges", f"{s.num_edges:,} {'with every reverse' if s.symmetric else 'directed'}"),
        ("in-degree", _degrees(s.in_degree)),
        ("out-degree", _degrees(s.out_degree)),
        ("isolated nodes", s.isolated),
        ("self-loops", s.self_loops),
        ("repeated edges", s.repeats),
        ("node ids", s.node_ids),
        ("task", _task(s)),
    ]
    if s.class_counts:
        counts = [f"{n:,}" for n in s.class_counts[:_SHOWN_CLASSES]]
        more = "" if len(s.class_counts) <= _SHOWN_CLASSES else " ..."
        rows.append(("nodes a class", ", ".join(counts) + more))
    topology = sum(s.arrays[name].num_bytes for name in _TOPOLOGY)
    rows.append(
        (
            "bytes",
            f"{format_bytes(s.num_bytes)}: topology {format_bytes(topology)}, "
            f"rows of nodes and edges {format_bytes(s.num_bytes - topology)}",
        )
    )
    parts = [pairs(rows)]
    if s.splits:
        parts.append(table(("split", "nodes", "of all"), _splits(s)))
    parts.append(table(("array", "dtype", "shape", "bytes"), _arrays(s)))
    return "\n\n".join(parts)


def _splits(s: Summary) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    names = sorted(s.splits, key=lambda name: _SPLITS.get(name.partition(".")[0], len(_SPLITS)))
    for alike in _together(names):
        counts = [s.splits[name] for name in alike]
        shares = (f"{100 * n / max(s.num_nodes, 1):.1f}" for n in (min(counts), max(counts)))
        rows.append((_called(alike), _range(counts), f"{' to '.join(dict.fromkeys(shares))} %"))
    return rows


def _arrays(s: Summary) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for alike in _together(s.arrays):
        arrays = [s.arrays[name] for name in alike]
        shape = " x ".join(map(_range, zip(*(a.shape for a in arrays), strict=True)))
        dtypes = ", ".join(dict.fromkeys(a.dtype for a in arrays))
        rows.append((_called(alike), dtypes, shape, format_bytes(sum(a.num_bytes for a in arrays))))
    return rows


def _together(names: Iterable[str]) -> list[list[str]]:
    """train.0, train.1, train.2 and so on in one list, any other name in one of its own."""
    lists: dict[str, list[str]] = {}
    for name in names:
        stem, dot, number = name.rpartition(".")
        lists.setdefault(f"{stem}." if dot and number.isdigit() else name, []).append(name)
    found: list[list[str]] = []
    for alike in lists.values():
        alike.sort(key=lambda name: (len(name), name))
        found += [alike] if len(alike) > 2 else [[name] for name in alike]
    return found


def _called(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    return f"{names[0]} ... {names[-1].rpartition('/')[2]} ({len(names)})"


def _range(counts: Sequence[int]) -> str:
    return " to ".join(dict.fromkeys(f"{n:,}" for n in (min(counts), max(counts))))


def _notes(graph: Path) -> list[str]:
    """What ingest kept of its messages: files and columns not read, the names of classes."""
    from tiergnn.graph.folder import read_manifest

    source = read_manifest(graph).get("source")
    notes = source.get("notes") if isinstance(source, dict) else None
    return [str(note) for note in notes] if isinstance(notes, list) else []


def _partitions(partitions: Mapping[str, Partition]) -> str:
    rows = [
        (
            name,
            made.num_parts,
            f"{made.edge_cut:,} ({made.edge_cut_frac:.1%})",
            f"{made.expansion_ratio:.3f}",
            ", ".join(f"{b.name} {b.found:.3f}" for b in made.balances()),
        )
        for name, made in partitions.items()
    ]
    header = ("partition", "parts", "edges cut", "expansion", "largest load over mean")
    return table(header, rows)


def _degrees(d: Degrees) -> str:
    return f"{d.min:,} smallest, {d.median:g} median, {d.mean:.1f} mean, {d.max:,} largest"


def _task(s: Summary) -> str:
    if s.task is None:
        return "none: no labels"
    known = f"{s.num_labelled:,} of {s.num_nodes:,} nodes labelled"
    if s.task == "real":
        return f"real targets, {known}"
    kind = "classes" if s.task == "class" else "labels, any of them a node"
    return f"{s.num_classes} {kind}, {known}"

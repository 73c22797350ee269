"""What may not be given together: options of an ingest, its source and a table of nodes."""

from __future__ import annotations

from pathlib import Path

from tiergnn.errors import ConfigError, GraphError
from tiergnn.graph.formats.node_table import NodeTable
from tiergnn.graph.formats.options import Options
from tiergnn.graph.formats.source import Source


def refuse_mixes(src: Path, options: Options, source: Source, nodes: NodeTable | None) -> None:
    """Rows by position go with dense ids, or with a table of nodes that says whose they are."""
    relabels = options.relabels or source.edges.names
    if options.one_based and relabels:
        raise ConfigError(
            "one_based=True is for dense ids; names and relabelled ids begin nowhere",
            hint="leave one_based out",
        )
    if source.edges.names and options.num_nodes is not None:
        raise ConfigError(
            f"num_nodes={options.num_nodes} is for dense ids, and these are names: "
            "the nodes are those that the files name",
            hint="nodes=FILE, a table with one row a node, adds nodes without edges",
        )
    if nodes is not None and source.has_rows:
        raise ConfigError(
            f"{src} holds rows of nodes by position already",
            hint="leave nodes=FILE out, or give the edges alone",
        )
    if nodes is not None and nodes.names != source.edges.names:
        kinds = ("numbers", "names")
        raise GraphError(
            f"ids of edges are {kinds[source.edges.names]}, "
            f"those in {nodes.path} are {kinds[nodes.names]}",
            hint="ids='names' takes both as text; node_id=COLUMN says where the ids are",
        )
    if relabels and source.has_rows:
        raise ConfigError(
            "rows of nodes go by position, so ids must be positions, too: "
            + ("these ids are names" if source.edges.names else f"had ids={options.ids!r}"),
            hint="ids='dense', or nodes=FILE, a table that says whose each row is",
        )


def refuse_unread(options: Options, source: Source, nodes: NodeTable | None) -> None:
    """Raise ConfigError for an option about rows that nobody gave."""
    has_x = source.x is not None or (nodes is not None and nodes.width > 0)
    has_y = source.y is not None or (nodes is not None and nodes.has_labels)
    unread = [("features", name) for name in ("feature_dtype", "feature_scale") if not has_x]
    unread += [("labels", name) for name in ("task", "num_classes") if not has_y]
    for rows, name in unread:
        if getattr(options, name) is not None:
            raise ConfigError(
                f"{name}={getattr(options, name)!r} is given, and there are no {rows}",
                hint=f"{rows}=FILE, or leave {name} out",
            )

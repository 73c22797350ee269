"""What a run folder recorded, as objects again; what it could not keep is given anew."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from torch import nn

from tiergnn.errors import ConfigError, StoreError
from tiergnn.graph.csr import Graph
from tiergnn.schedule.timeline import Timeline
from tiergnn.training.assemble import as_graph, build, fingerprint
from tiergnn.training.folder import RunFolder
from tiergnn.training.options import Options

_log = logging.getLogger("tiergnn")


def recorded_options(
    folder: RunFolder, recorded: Mapping[str, Any], given: Mapping[str, Any]
) -> Options:
    values = dict(recorded)
    if isinstance(values["split"], Mapping):
        values["split"] = folder.splits()
    return Options.from_json(values, given)


def recorded_graph(record: Mapping[str, Any], graph: Any, *, must_match: bool) -> Graph:
    """The graph given, else the recorded folder; refused when it must match and does not."""
    kept = record["graph"]
    if graph is None and kept["path"] is None:
        raise ConfigError(
            "this run was trained on a graph in memory, which a folder cannot keep",
            hint="give it again in Python: tg.resume(RUN, graph=...), likewise evaluate and "
            "predict; or graph.save(DIR) first and train on DIR",
        )
    found = as_graph(kept["path"] if graph is None else graph)
    if must_match or graph is None:
        now = fingerprint(found)
        if changed := sorted(
            n for n in {*now, *kept["arrays"]} if now.get(n) != kept["arrays"].get(n)
        ):
            raise ConfigError(
                f"the graph is not the one that was trained on: {', '.join(changed)} differ",
                culprit=kept["path"],
                hint="the graph as it was, or a new run",
            )
    return found


def recorded_model(
    record: Mapping[str, Any], model: nn.Module | None, options: Options
) -> nn.Module:
    """The module given, else the ready model that was recorded, with its first weights."""
    kept = record["model"]
    if model is None:
        if kept["ready"] is None:
            raise ConfigError(
                "this run trained a model of your own, which a folder cannot keep",
                hint="build it again and give it in Python: tg.resume(RUN, model=...), "
                "likewise evaluate and predict",
            )
        return build(kept["ready"], options.seed)
    return model


def compare_text(record: Mapping[str, Any], model: nn.Module) -> None:
    """Say when a model prints otherwise than the one trained: options that no weight tells of.

    For after it was traced, when lazy layers have their sizes.
    """
    text = record["model"]["text"]
    if repr(model) != text:
        _log.warning("the model reads\n%r\nand was trained as\n%s", model, text)


def recorded_timeline(folder: RunFolder) -> Timeline | None:
    """Nothing is computed by it, so a damaged one is left out."""
    try:
        return Timeline.load(folder.timeline) if folder.timeline.exists() else None
    except (ConfigError, StoreError) as error:
        _log.warning("left out: %s", error)
        return None

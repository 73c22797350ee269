"""What a run folder recorded, as objects again; what it could not keep is given anew."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from torch import nn

from tiergnn import frozen
from tiergnn.errors import ConfigError, StoreError
from tiergnn.files import from_json
from tiergnn.graph.csr import Graph
from tiergnn.planner.plan import Plan
from tiergnn.schedule.timeline import Timeline
from tiergnn.training.assemble import as_graph, build, fingerprint
from tiergnn.training.folder import RunFolder
from tiergnn.training.options import Options

_log = logging.getLogger("tiergnn")


def recorded_options(
    folder: RunFolder, recorded: Mapping[str, Any], given: Mapping[str, Any]
) -> Options:
    """The options of a run, with the objects that are given again.

    Raises ConfigError for what is given, StoreError for what is recorded.
    """
    file = str(folder.path / "run.json")
    known = {option.name for option in fields(Options)}
    if strangers := sorted(recorded.keys() - known):
        raise StoreError(
            f"run.json holds an option that this tiergnn does not know: {strangers[0]}",
            culprit=file,
            hint="the tiergnn that wrote it (run.json names its version)",
        )
    # Runs of before rows were prepared go on without.
    values = Options(prepare=False).to_json() | dict(recorded)
    plain: dict[str, Any] = {n: v for n, v in values.items() if not isinstance(v, Mapping)}
    mode: dict[str, Any] = {"metric_mode": None} if isinstance(values["metric"], Mapping) else {}
    try:
        Options(**plain | mode)
    except (ConfigError, TypeError) as error:
        told = error.problem if isinstance(error, ConfigError) else str(error)
        raise StoreError(f"run.json holds options that are none: {told}", culprit=file) from error
    if isinstance(values["split"], Mapping):
        values["split"] = folder.splits()
        if sorted(values["split"]) != recorded["split"].get("given"):
            raise StoreError(
                f"splits.npz holds {', '.join(sorted(values['split'])) or 'nothing'}, the run was "
                f"made with {', '.join(recorded['split'].get('given', []))}",
                culprit=str(folder.path / "splits.npz"),
                hint="the file as it was",
            )
    return Options.from_json(values, given)


def plan_crc32(plan: Plan | None, file: Path | None = None) -> int | None:
    """Of a plan's values: the same before it is saved and after it is loaded; of those alone that
    are in the ``file`` that it was loaded from: an older version had fewer fields."""
    if plan is None:
        return None
    plain = frozen.loads(Plan, frozen.dumps(plan))
    if file is None:
        return zlib.crc32(frozen.dumps(plain))
    said = frozen.encode_as(plain, from_json(file.read_bytes()))
    return zlib.crc32(frozen.dumps(said))


def recorded_plan(folder: RunFolder, record: Mapping[str, Any]) -> Plan | None:
    """The plan that a run was made by, or None. Raises StoreError when it is gone or another."""
    plan = folder.read_plan()
    if "plan" not in record or plan_crc32(plan, folder.plan) == record["plan"]:
        return plan
    if plan is None:
        problem = "the run was made by a plan, and its plan.json is gone"
    elif record["plan"] is None:
        problem = "the run was made without a plan, and there is a plan.json"
    else:
        problem = "plan.json is not the plan that the run was made by"
    raise StoreError(
        problem, culprit=str(folder.plan), hint="the folder as train left it, or a new run"
    )


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
                culprit=kept["path"] if found.path is None else str(found.path),
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
        return folder.read_timeline()
    except StoreError as error:
        _log.warning("left out: %s", error)
        return None

"""Ranks on the CPU: their speed beside one rank's, what the planner picks, what caches save.

``speedup``: 2 ranks of one thread each beside one rank of one thread, on 20 million edges.
``choices``: every strategy of ranks is timed on a graph and a model, in turns, beside what the
planner predicts of it on this machine as probed: does it pick the shortest epoch, and what does a
wrong pick cost? ``reads``: rows of others that caches take from the links, and the bytes that every
strategy moves a layer, counted from partitions and schedules: nothing is timed.

What is made on the way (graphs in parts, the machine as probed, plans, cells as they are measured)
lies in --folder, so that a call can do a part: what is there is not made or measured again, and
nothing is begun after --limit-s. --page writes the results from what there is.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from provenance import RESULTS, ROOT, provenance
from ranks_graphs import graph_of
from ranks_jobs import ONE_RANK, PREPARED, RESIDENT, Race, races
from ranks_page import page, summary
from ranks_reads import reads
from tiergnn import frozen
from tiergnn.graph.csr import Graph
from tiergnn.graph.partition import partition
from tiergnn.graph.partition_folder import list_partitions, save_partition
from tiergnn.graph.shape import expected_layout
from tiergnn.hardware.machine import Machine
from tiergnn.hardware.measure import measure
from tiergnn.hardware.sharing import shared
from tiergnn.planner.plan import Plan
from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.planner.strategies.known import RANKED
from tiergnn.training.options import Options
from tiergnn.training.planning import question
from tiergnn.transport.launch import launch

MODELS: dict[str, dict[str, Any]] = {
    "gcn": {"name": "gcn", "hidden_channels": 32, "num_layers": 2},
    "sage": {"name": "sage", "hidden_channels": 32, "num_layers": 2},
    "gin": {"name": "gin", "hidden_channels": 32, "num_layers": 2},
    "gat": {"name": "gat", "hidden_channels": 8, "heads": 4, "num_layers": 2},
}
SPEEDUPS = ("rmat-1000000-20000000 gcn 2", "rmat-1000000-20000000 sage 2")
CHOICES = (
    "amazon_photo gcn 2",
    "coauthor_cs sage 2",
    "snap_ego_twitter_und gin 2",
    "snap_ego_twitter_und gat 2",
    "snap_ego_twitter_und gcn 4",
    "reddit/32 gcn 2",
    "reddit/32 sage 2",
    "products/32 gcn 2",
    "products/32 gat 2",
    "products/32 sage 4",
    "com-orkut/64 gin 2",
    "com-orkut/64 sage 2",
)
READS = ("amazon_photo", "snap_ego_twitter_und", "reddit/32", "products/32", "com-orkut/64")
TIMEOUT_S = 200.0


class Cell(NamedTuple):
    """A model on a graph over ranks."""

    graph: str
    model: str
    ranks: int

    @classmethod
    def parse(cls, text: str) -> Cell:
        graph, model, ranks = text.split()
        return cls(graph, model, int(ranks))

    def __str__(self) -> str:
        return f"{self.graph} {self.model} {self.ranks}"


class Place:
    """The folder of what is made on the way."""

    def __init__(self, folder: Path):
        self.folder = folder
        (folder / "cells").mkdir(parents=True, exist_ok=True)

    def machine(self) -> Machine:
        """This host as it was probed for these runs, once."""
        path = self.folder / "machine.json"
        if not path.exists():
            measure(self.folder, device="cpu", refresh=True).save(path)
        return replace(Machine.load(path), disk=None)

    def graph(self, name: str) -> Graph:
        return graph_of(name, self.folder)

    def parts(self, graph: Graph, num_parts: int) -> Path:
        """The partition that a run would take, saved beside the graph."""
        assert graph.path is not None
        names = _of_ranks(graph, num_parts)
        if not names:
            method = "block" if "-" in graph.path.name else "auto"  # R-MAT has no communities
            save_partition(partition(graph, num_parts, method))
            names = _of_ranks(graph, num_parts)
        return graph.path / "partitions" / names[0]

    def file(self, cell: Cell, kind: str) -> Path:
        return self.folder / "cells" / f"{str(cell).replace('/', '-').replace(' ', '-')}.{kind}"

    def plans(self, cell: Cell, *, anew: bool = False) -> dict[str, Plan]:
        """The fastest plan of each strategy, as the planner has it; and of one rank."""
        folder = self.file(cell, "plans")
        if anew or not folder.exists():
            graph = self.graph(cell.graph)
            self.parts(graph, cell.ranks)
            machine = shared(self.machine(), cell.ranks)[0]
            asked = question(
                graph, MODELS[cell.model], Options(device="cpu"), machine=machine, ranks=cell.ranks
            )
            best: dict[str, Plan] = {}
            for trial in asked.trials(list(RANKED)):
                plan, known = trial.plan, best.get(trial.strategy)
                if plan is not None and (known is None or plan.seconds < known.seconds):
                    best[plan.strategy] = plan
            alone = expected_layout(asked.shape, 1)
            best[ONE_RANK] = replace(best["halo"], knobs=Knobs(), layout=alone)
            folder.mkdir(exist_ok=True)
            for name, plan in best.items():
                plan.save(folder / f"{name}.json")
        return {path.stem: Plan.load(path) for path in sorted(folder.glob("*.json"))}

    def same(self, cell: Cell) -> dict[str, str]:
        """strategy -> the first one whose plan does the same: leo without caches is mgg."""
        plans, first = self.plans(cell), dict[Any, str]()
        return {
            name: first.setdefault((plan.schedule.actions, plan.schedule.buffers), name)
            for name, plan in ((name, plans[name]) for name in RANKED)
        }

    def ways(self, cell: Cell, what: str) -> list[str]:
        """What takes turns."""
        different = list(dict.fromkeys(self.same(cell).values()))
        return different if what == "choices" else [RESIDENT, PREPARED, ONE_RANK, *different]

    def raced(self, cell: Cell) -> dict[str, Any] | None:
        """What was measured of a cell, None where nothing was yet."""
        path = self.file(cell, "json")
        return json.loads(path.read_text()) if path.exists() else None

    def reads(self, name: str) -> dict[str, Any]:
        path = self.folder / "cells" / f"{name.replace('/', '-')}.reads"
        if not path.exists():
            path.write_text(json.dumps(reads(name, self.graph(name))))
        return json.loads(path.read_text())

    def job(self, cell: Cell, plans: list[str], rounds: int) -> Race:
        graph = self.graph(cell.graph)
        return Race(
            graph=str(graph.path),
            parts=str(self.parts(graph, cell.ranks)),
            folder=str(self.file(cell, "plans")),
            model=MODELS[cell.model],
            plans=plans,
            rounds=rounds,
            results=str(self.file(cell, "json")),
        )


def _of_ranks(graph: Graph, num_parts: int) -> list[str]:
    return [name for name in list_partitions(graph) if name.endswith(f"-{num_parts}")]


def record_of(place: Place, args: argparse.Namespace) -> dict[str, Any]:
    """The results, of what there is in the folder."""
    record = provenance() | {"machine measured": frozen.encode(place.machine())}
    record |= {"by": args.by, "note": args.note}
    for what, cells in (("speedup", args.speedups), ("choices", args.choices)):
        rows = []
        for cell in map(Cell.parse, cells):
            found = place.raced(cell)
            if found is None:
                continue
            plans = place.plans(cell)
            row = {"cell": str(cell), "processors of others": found["processors_of_others"]}
            row["same"] = place.same(cell) if what == "choices" else {}
            row["ways"] = {
                name: {
                    "measured s": measured[f"{args.by}_s"],
                    "epoch s": measured["epoch_s"],
                    "processor s": measured["processor_s"],
                    "epochs s": measured["epochs_s"],
                    "predicted s": plans[name].seconds if name in plans else None,
                    "knobs": str(plans[name].knobs) if name in plans else "",
                }
                for name, measured in found["rows"].items()
            }
            rows.append(row)
        record[what] = rows
    record["reads"] = [place.reads(name) for name in args.reads]
    return record | {"summary": summary(record)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--what", nargs="*", default=["speedup", "choices"], help="to be timed")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "ranks")
    parser.add_argument("--speedups", nargs="*", default=list(SPEEDUPS))
    parser.add_argument("--choices", nargs="*", default=list(CHOICES))
    parser.add_argument("--reads", nargs="*", default=list(READS))
    parser.add_argument("--rounds", type=int, default=5, help="epochs of each that count")
    parser.add_argument(
        "--by", choices=("epoch", "processor"), default="epoch",
        help="what is compared: seconds on the clock, or those of the busiest rank's processor, "
        "which others on the machine take nothing of",
    )  # fmt: skip
    parser.add_argument("--note", default="", help="said on the page")
    parser.add_argument("--machine", type=Path, help="this host as a file, not probed")
    parser.add_argument("--limit-s", type=float, default=1e9, help="after it no cell is begun")
    parser.add_argument("--prepare", action="store_true", help="graphs and plans, nothing timed")
    parser.add_argument("--anew", action="store_true", help="plans, and cells that were timed")
    parser.add_argument("--page", action="store_true", help="write the results")
    parser.add_argument("--out", type=Path, default=RESULTS / "ranks-cpu.json")
    args = parser.parse_args()
    until_s, place = time.monotonic() + args.limit_s, Place(args.folder)
    if args.machine is not None:
        Machine.load(args.machine).save(args.folder / "machine.json")
    for what in args.what:
        cells = [
            Cell.parse(text) for text in (args.speedups if what == "speedup" else args.choices)
        ]
        if args.prepare:
            for cell in cells:
                plans = place.plans(cell, anew=args.anew)
                print(cell, {name: round(p.seconds, 4) for name, p in plans.items()}, flush=True)
            continue
        left = [cell for cell in cells if args.anew or not place.file(cell, "json").exists()]
        for ranks in sorted({cell.ranks for cell in left}):
            jobs = [
                place.job(cell, place.ways(cell, what), args.rounds)
                for cell in left
                if cell.ranks == ranks
            ]
            launch(races, ranks, (jobs, until_s), transport="shared", timeout_s=TIMEOUT_S)
    if args.page:
        record = record_of(place, args)
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(record, indent=1) + "\n")
        args.out.with_suffix(".md").write_text(page(record))


if __name__ == "__main__":
    main()

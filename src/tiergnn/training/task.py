"""Task: what the ranks of a run are told to do, and the rank's side of it.

The graph and its partition are folders that every rank opens; of a job over hosts, the partition
comes from the first rank. The first rank writes the run folder; what the process that started the
ranks wants to know besides comes back in a file.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as tensors_to_bytes
from torch import nn

from tiergnn.errors import ConfigError
from tiergnn.files import json_bytes, write_whole
from tiergnn.graph.csr import Graph
from tiergnn.graph.partition import Partition
from tiergnn.graph.partition_folder import open_partition
from tiergnn.planner.plan import Plan
from tiergnn.runtime.ranked import Ranked
from tiergnn.schedule.timeline import Span, Timeline
from tiergnn.training.assemble import pick_device, resident
from tiergnn.training.folder import RunFolder
from tiergnn.training.loop import Trainer
from tiergnn.training.options import Options
from tiergnn.training.outputs import whole_output
from tiergnn.training.peers import Peers
from tiergnn.training.scoring import scoring_of
from tiergnn.training.splits import choose_splits
from tiergnn.training.threads import on_threads
from tiergnn.transport.transport import Transport
from tiergnn.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """``graph`` and ``parts`` are folders, ``folder`` the run's, ``answer`` a file to be written.

    ``threads``: as many on every rank; None: what the first rank has.
    """

    graph: str
    parts: str
    model: nn.Module
    options: Options
    plan: Plan
    evaluated: Workload
    folder: str = ""
    answer: str = ""
    threads: int | None = None
    resuming: bool = False
    built: bool = False  # each rank built its model itself: the first one's weights count
    progress: bool = False  # the first rank tells people, where nobody else does

    def to_bytes(self) -> bytes:
        """For ranks on this host, which are us. Raises ConfigError for what cannot be handed over.

        Plain pickle: tensors travel in it, and not through shared memory.
        """
        try:
            return pickle.dumps(self)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ConfigError(
                f"ranks are other processes, and this run cannot be sent there: {error}",
                hint="models, criteria, metrics, optimizers and schedulers defined at the top of a "
                "module, or by name",
            ) from error


def train_rank(transport: Transport, given: bytes | Task) -> None:
    """One rank of a training run."""
    task: Task = pickle.loads(given) if isinstance(given, bytes) else given
    _be_quiet(transport)
    trainer = fit(transport, task)
    peers, held = trainer.peers, trainer.resident
    assert isinstance(held, Ranked)
    peaks = fullest(peers.words(held.peak_bytes, "peaks"))
    if peers.is_first:
        said = {"peak_bytes": peaks, "transport": str(transport)}
        write_whole(Path(task.answer), json_bytes(said))
    held.close()


def infer_rank(transport: Transport, given: bytes | Task) -> None:
    """One rank of an evaluation: the output for every node, in the answer."""
    task: Task = pickle.loads(given) if isinstance(given, bytes) else given
    _be_quiet(transport)
    peers = Peers(transport)
    with on_threads(peers.of_first(task.threads or torch.get_num_threads(), "threads"), told=False):
        graph = Graph.open(task.graph, verify=False)
        held = _held(transport, peers, task, graph)
        out = whole_output(held)
    if out is not None:
        write_whole(Path(task.answer), tensors_to_bytes({"out": out.contiguous()}))
    held.close()


def fit(transport: Transport, task: Task) -> Trainer:
    """Train to the end as one rank; afterwards all ranks hold the best weights."""
    peers = Peers(transport)
    graph = Graph.open(task.graph, verify=False)
    options = task.options
    splits = choose_splits(graph, options.split, options.seed)
    with on_threads(peers.of_first(task.threads or torch.get_num_threads(), "threads"), told=False):
        held = _held(transport, peers, task, graph)
        scoring = scoring_of(graph, splits, torch.device("cpu"), options)
        peers.at("evaluate untrained")
        scoring.check_output(held.infer(), len(held.rows))
        trainer = Trainer(held, scoring, options, peers, planned=True)
        if peers.is_first:
            trainer.keep_in(RunFolder(Path(task.folder)))
        if task.resuming:
            trainer.restore()
        trainer.fit(task.progress and peers.is_first)
    whole = joined_timeline(peers, held.timeline)
    if whole is not None:
        whole.save(RunFolder(Path(task.folder)).timeline)
    return trainer


def fullest(peaks: list[dict[str, int]]) -> dict[str, int]:
    """tier -> the most bytes that any rank held there."""
    tiers = dict.fromkeys(tier for each in peaks for tier in each)
    return {tier: max(each.get(tier, 0) for each in peaks) for tier in tiers}


def joined_timeline(peers: Peers, timeline: Timeline | None) -> Timeline | None:
    """On the first rank, the last measured step of all ranks, each by its own clock."""
    own = None
    if timeline is not None:
        spans = [
            [s.index, s.rank, s.lane, s.label, s.start_s, s.end_s, s.moved_bytes]
            for s in timeline.spans
        ]
        own = [spans, [list(peak) for peak in timeline.peak_bytes]]
    said = peers.words(own, "timelines")
    if not peers.is_first or any(each is None for each in said):
        return None
    names = ("index", "rank", "lane", "label", "start_s", "end_s", "moved_bytes")
    spans = [Span(**dict(zip(names, span, strict=True))) for each, _ in said for span in each]
    return Timeline(
        source="measured",
        spans=tuple(sorted(spans, key=lambda span: span.index)),
        peak_bytes=tuple((rank, tier, size) for _, each in said for rank, tier, size in each),
    )


def _held(transport: Transport, peers: Peers, task: Task, graph: Graph) -> Ranked:
    """This rank's executor; ranks on GPUs take the devices of their host in turn."""
    options = task.options
    kind = pick_device(options.device).type
    if kind == "cuda":
        local = int(os.environ.get("LOCAL_RANK", transport.rank)) % torch.cuda.device_count()
        torch.cuda.set_device(local)
        options = replace(options, device=f"cuda:{local}")
    parts = _parts(peers, graph, task)
    weights = dict(task.model.state_dict()) if task.built else None
    if peers.of_first(task.built, "whose weights"):
        task.model.load_state_dict(peers.state_of_first(weights, "first weights"))
    peers.at("trace the model")
    made = resident(
        graph,
        task.model,
        options,
        task.plan,
        transport=transport,
        parts=parts,
        evaluated=task.evaluated,
    )
    assert isinstance(made, Ranked)
    return made


def _parts(peers: Peers, graph: Graph, task: Task) -> Partition:
    """The partition's folder where every rank can open it, else what the first rank reads there."""
    if all(peers.words(Path(task.parts).exists(), "find the partition")):
        return open_partition(graph, Path(task.parts))
    owners = None
    if peers.is_first:
        owners = torch.from_numpy(np.array(open_partition(graph, Path(task.parts)).part_of))
    owners = peers.state_of_first({"part_of": owners}, "share the partition")["part_of"]
    return Partition(graph=graph, part_of=owners.numpy(), num_parts=peers.size)


def _be_quiet(transport: Transport) -> None:
    """What ranks would all say, one says. Virtual ranks are threads of who started them."""
    if transport.name == "virtual":
        return
    level = os.environ.get("TIERGNN_LOG", "WARNING").upper() if transport.rank == 0 else "ERROR"
    logging.basicConfig(format="%(message)s", level=level)


def read_answer(path: Path) -> dict[str, Any]:
    return json.loads(path.read_bytes())

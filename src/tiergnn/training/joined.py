"""Joined: processes that torchrun has started. The first runs the command, the others serve it.

What they are told goes through torchrun's store, as JSON: a ready model by its name, the graph
by a path that all of them can open.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from tiergnn import frozen
from tiergnn.errors import ConfigError
from tiergnn.planner.plan import Plan
from tiergnn.training.assemble import build
from tiergnn.training.options import Options
from tiergnn.training.task import Task, infer_rank, train_rank
from tiergnn.transport.place import Meeting, meet_of_torchrun, place_of_torchrun
from tiergnn.transport.running import run_rank
from tiergnn.workload import Workload

TARGETS: dict[str, Callable[..., None]] = {"train": train_rank, "infer": infer_rank}
_LOOK_S = 0.1
_here: Joined | None = None


class Joined:
    """This process among those of torchrun, which do one piece of work together."""

    def __init__(self, meeting: Meeting) -> None:
        self._meeting = meeting
        self.rank, self.size = meeting.rank, meeting.size
        self.num_hosts = meeting.num_hosts
        self._told = False

    def run(self, name: str, task: Task, spec: Any, *, on_gpu: bool) -> int:
        """On the first: have all of them do it. 0, or 128 and the signal that stopped them.

        Raises RankError, and ConfigError where it cannot be handed over.
        """
        if spec is None:
            raise ConfigError(
                "ranks that torchrun started get models by name only",
                hint="a ready model on the command line, or tiergnn.train with a plan of several "
                "ranks, which starts them itself",
            )
        if task.plan.knobs.ranks != self.size:
            raise ConfigError(
                f"the plan is for {task.plan.knobs.ranks} ranks, torchrun started {self.size}",
                hint="--nproc-per-node, or a plan for as many",
            )
        self._tell(json.dumps({"do": name, **_to_json(task, spec)}))
        options = task.options
        here = place_of_torchrun(
            self._meeting,
            transport=options.transport,
            on_gpu=on_gpu,
            timeout_s=options.timeout,
        )
        code = run_rank(*here, TARGETS[name], task)
        failure = here[1].failure()
        if failure is not None:
            raise failure.error()
        return code

    def serve(self) -> int:
        """On the others: do what the first one says; gives the exit code."""
        store = self._meeting.store
        while not store.check(["task"]):
            time.sleep(_LOOK_S)
        text = store.get("task").decode()
        if not text:
            return 0
        content = json.loads(text)
        here = place_of_torchrun(self._meeting)
        code = run_rank(*here, TARGETS[content.pop("do")], _from_json(content))
        failure = here[1].failure()
        # The first one tells what went wrong, unless it was that which died.
        if failure is not None and failure.rank == 0 and failure.by == self.rank:
            print(failure.error(), file=sys.stderr, flush=True)
        return code

    def dismiss(self) -> None:
        """On the first: there is nothing to do together (any more)."""
        if not self._told:
            self._tell("")

    def _tell(self, text: str) -> None:
        self._told = True
        self._meeting.store.set("task", text)


def join() -> Joined:
    """Meet the others that torchrun started; ``here`` gives it from then on."""
    global _here
    _here = Joined(meet_of_torchrun())
    return _here


def here() -> Joined | None:
    """What this process has joined; None where it is on its own."""
    return _here


def ranks_here(asked: int | None) -> int | None:
    """How many ranks a command is for: as many as torchrun started, else what was asked for."""
    if _here is None:
        return asked
    if asked not in (None, _here.size):
        raise ConfigError(
            f"wanted {asked} ranks, torchrun started {_here.size}",
            hint="--nproc-per-node N and no --ranks",
        )
    return _here.size


def hosts_here() -> int:
    return 1 if _here is None else _here.num_hosts


def _to_json(task: Task, spec: Any) -> dict[str, Any]:
    return {
        "graph": task.graph,
        "parts": task.parts,
        "spec": spec,
        "options": task.options.to_json(),
        "plan": frozen.dumps(task.plan).decode(),
        "evaluated": frozen.dumps(task.evaluated).decode(),
        "threads": task.threads,
        "resuming": task.resuming,
    }


def _from_json(content: dict[str, Any]) -> Task:
    options = Options(**content["options"])
    return Task(
        graph=content["graph"],
        parts=content["parts"],
        model=build(content["spec"], options.seed),
        options=options,
        plan=frozen.loads(Plan, content["plan"].encode()),
        evaluated=frozen.loads(Workload, content["evaluated"].encode()),
        threads=content["threads"],
        resuming=content["resuming"],
        built=True,
    )

"""Names: that a schedule speaks of ranks, tiers, buffers, lanes and actions that there are, and
that each action finds what it names in a tier that it can reach.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tiergnn.errors import PlanError
from tiergnn.hardware.machine import TIERS, Machine
from tiergnn.schedule.actions import TOGETHER, Action, Lane, Op
from tiergnn.schedule.fault import fault
from tiergnn.schedule.schedule import Schedule

# From which tiers to which a COPY on a lane moves rows; on the others anywhere but the disk.
_WAYS: dict[Lane, tuple[frozenset[str], frozenset[str]]] = {
    Lane.H2D: (frozenset({"host", "device"}), frozenset({"device"})),  # device: pages by the host
    Lane.D2H: (frozenset({"device"}), frozenset({"host"})),
    Lane.DISK_READ: (frozenset({"disk"}), frozenset({"host", "device"})),
    Lane.DISK_WRITE: (frozenset({"host", "device"}), frozenset({"disk"})),
    Lane.HOST: (frozenset({"host"}), frozenset({"host"})),
}
_MEMORY = frozenset({"host", "device"})
_ROOM = frozenset({Op.RESERVE, Op.RELEASE})
_MEETS = TOGETHER | {Op.SEND, Op.RECV}


def check_names(schedule: Schedule, machine: Machine) -> None:
    """Raises PlanError at the first name that is wrong."""
    ranks = machine.num_devices * machine.num_hosts
    if not 1 <= schedule.num_ranks <= ranks:
        raise PlanError(
            f"wanted {schedule.num_ranks} ranks, had {ranks} devices on {machine.name}",
            hint=f"a plan for 1 to {ranks} ranks, or another --machine",
        )
    if len(schedule.buffer_of) != len(schedule.buffers):
        counts = Counter(buffer.name for buffer in schedule.buffers)
        twice = counts.most_common(1)[0][0]
        raise PlanError(
            f"wanted buffers with names of their own, had {twice} twice",
            culprit=str(schedule.buffer_of[twice]),
            hint="a name for each time that it is reserved",
        )
    for buffer in schedule.buffers:
        if not 0 <= buffer.rank < schedule.num_ranks:
            raise PlanError(
                f"wanted {buffer.name} on a rank below {schedule.num_ranks}, had {buffer.rank}",
                culprit=str(buffer),
                hint=f"the schedule is of {schedule.num_ranks} ranks",
            )
        if buffer.tier not in TIERS:
            raise PlanError(
                f"wanted a tier, had {buffer.tier!r}", culprit=str(buffer), hint=", ".join(TIERS)
            )
        machine.tier(buffer.tier)
    for place, action in enumerate(schedule.actions):
        for problem, hint in _misnamed(schedule, place, action):
            raise fault(schedule, place, problem, hint)


def _misnamed(schedule: Schedule, place: int, action: Action) -> Iterator[tuple[str, str]]:
    if action.index != place:
        yield f"wanted index {place}, had {action.index}", "an action's index is its place"
    if not 0 <= action.rank < schedule.num_ranks:
        yield (
            f"wanted a rank below {schedule.num_ranks}, had {action.rank}",
            f"the schedule is of {schedule.num_ranks} ranks",
        )
    if not isinstance(action.lane, Lane):
        yield f"unknown lane {action.lane!r}", ", ".join(Lane)
    if not isinstance(action.op, Op):
        yield f"unknown operation {action.op!r}", ", ".join(Op)
    for name in (*action.reads, *action.writes):
        if name not in schedule.buffer_of:
            yield f"unknown buffer {name}: wanted one that is declared", "declare it at the head"
    yield from _misplaced(schedule, action)
    for i in action.after:
        if not 0 <= i < len(schedule.actions):
            yield f"{action.label} waits for action {i}, which is not there", "name earlier actions"
        elif schedule.actions[i].rank != action.rank:
            yield (
                f"wanted {action.label} of rank {action.rank} to wait for actions of its own, had "
                f"{i} of rank {schedule.actions[i].rank}",
                "ranks wait for each other in a BARRIER, EXCHANGE, REDUCE or SEND and RECV",
            )


def _misplaced(schedule: Schedule, action: Action) -> Iterator[tuple[str, str]]:
    if action.op in _ROOM:
        return
    if action.op == Op.COPY:
        sources, targets = _WAYS.get(action.lane, (_MEMORY, _MEMORY))
        ends = [("from", name, sources) for name in action.reads]
        ends += [("to", name, targets) for name in action.writes]
        for way, name, tiers in ends:
            tier = schedule.buffer_of[name].tier
            if tier not in tiers:
                yield (
                    f"wanted COPY on lane {action.lane} {way} the {' or '.join(sorted(tiers))}, "
                    f"had {name}, which is on the {tier}",
                    "the lane of the link that it takes, or the replica in the other tier",
                )
        return
    in_place = action.lane == Lane.HOST or any(
        work.place == "host" or work.kind == "move" for work in action.work
    )
    for name in (*action.reads, *action.writes):
        tier = schedule.buffer_of[name].tier
        if tier == "disk" or (tier == "host" and not in_place and action.op not in _MEETS):
            yield (
                f"wanted {name} on the device for {action.label}, had it on the {tier}",
                "COPY it there first"
                + (", or give it work at `host`: rows read in place" if tier == "host" else ""),
            )

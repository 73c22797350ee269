"""Meetings: the actions of several ranks that happen together, found by their tags.

Who takes part is in the tag (``participants``). Each of them has one BARRIER, EXCHANGE or REDUCE
with the tag, all on the same lane (ranks speak to each other over one channel a lane). A SEND and a
RECV with one tag, of two ranks, meet likewise: SEND waits for its RECV.
"""

from __future__ import annotations

from collections.abc import Sequence

from tiergnn.schedule.actions import TOGETHER, Action, Op, participants
from tiergnn.schedule.fault import fault
from tiergnn.schedule.schedule import Schedule

PAIR = frozenset({Op.SEND, Op.RECV})


def meetings(schedule: Schedule) -> tuple[tuple[int, ...], ...]:
    """The actions that start together, as tuples of places in the schedule, each of two or more.

    Raises PlanError where a partner is missing or one too many, or what meets does not match.
    """
    by_tag: dict[str, list[Action]] = {}
    for action in schedule.actions:
        if action.op not in TOGETHER and action.op not in PAIR:
            continue
        if not action.tag:
            raise fault(
                schedule,
                action.index,
                f"wanted a tag on {action.op}, which several ranks do together, had none",
                "give all of them one tag",
            )
        by_tag.setdefault(action.tag, []).append(action)
    found = []
    for tag, actions in by_tag.items():
        if all(action.op in PAIR for action in actions):
            _check_pair(schedule, tag, actions)
        else:
            _check_joint(schedule, tag, actions)
        if len(actions) > 1:
            found.append(tuple(action.index for action in actions))
    return tuple(found)


def _check_pair(schedule: Schedule, tag: str, actions: list[Action]) -> None:
    sends = sum(action.op == Op.SEND for action in actions)
    if len(actions) != 2 or sends != 1:
        raise fault(
            schedule,
            actions[0].index,
            f"wanted one SEND and one RECV with tag {tag}, had {sends} and {len(actions) - sends}",
            "a tag of its own for each message, and both its ends",
        )
    if actions[0].rank == actions[1].rank:
        raise fault(
            schedule,
            actions[1].index,
            f"wanted the RECV of tag {tag} on another rank, had both ends on rank "
            f"{actions[1].rank}",
            "COPY moves rows within a rank",
        )


def _check_joint(schedule: Schedule, tag: str, actions: list[Action]) -> None:
    first = actions[0]
    try:
        wanted = participants(tag, schedule.num_ranks)
    except ValueError as error:
        raise fault(
            schedule,
            first.index,
            f"wanted a tag that says who takes part, had {error}",
            "NAME for all ranks, NAME@0,2 for some",
        ) from error
    seen: set[int] = set()
    for action in actions:
        if (action.op, action.lane) != (first.op, first.lane):
            raise fault(
                schedule,
                action.index,
                f"wanted {first.op} on lane {first.lane} of every rank with tag {tag}, as rank "
                f"{first.rank} does, had {action.op} on lane {action.lane} of rank {action.rank}",
                "a tag of its own for each joint action",
            )
        if action.rank in seen or action.rank not in wanted:
            times = "twice" if action.rank in seen else "though the tag leaves it out"
            raise fault(
                schedule,
                action.index,
                f"wanted each of the ranks {_listed(wanted)} once in {first.op} {tag}, "
                f"had rank {action.rank} {times}",
                "a tag of its own for each joint action",
            )
        seen.add(action.rank)
    missing = [rank for rank in wanted if rank not in seen]
    if missing:
        raise fault(
            schedule,
            first.index,
            f"wanted the ranks {_listed(wanted)} in {first.op} {tag}, had no such action on rank "
            f"{_listed(missing)}: the others would wait for it forever",
            f"add it there, or name who takes part: {tag.partition('@')[0]}@{_listed(seen)}",
        )


def _listed(ranks: Sequence[int] | set[int]) -> str:
    return ",".join(map(str, sorted(ranks)))

"""Order: which actions happen before which, whatever the lanes' speeds.

An action starts when all earlier ones of its rank and lane are done, those in ``after`` are, and,
where it meets others, all of them could start too. It ends by itself: that one rank has left a
meeting does not say that another has. A clock for each action holds, for every (rank, lane), how
many of its actions are done by then, so that one comparison tells whether one action happens
before another (vector clocks: Fidge, Mattern, 1988).

Legend: A actions, C chains (lanes of ranks that have actions).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from tiergnn.errors import PlanError
from tiergnn.schedule.actions import TOGETHER, Op
from tiergnn.schedule.fault import fault
from tiergnn.schedule.meeting import meetings
from tiergnn.schedule.schedule import Schedule

Ints = NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class Order:
    """``walk`` lists all actions, each after all that happen before it; ties by their index."""

    walk: tuple[int, ...]
    chain: Ints  # [A]: number of the lane of a rank that the action is on
    place: Ints  # [A]: its place there, from 1
    done: Ints  # [A, C]: actions of each chain that are surely done when it is; itself counts

    def before(self, a: int, b: int) -> bool:
        """Whether a is always done when b starts."""
        return a != b and bool(self.done[b, self.chain[a]] >= self.place[a])


def waits(schedule: Schedule) -> list[list[int]]:
    """For each action, what it waits for by itself: its predecessor on its lane and ``after``."""
    last: dict[tuple[int, str], int] = {}
    found: list[list[int]] = []
    for action in schedule.actions:
        lane = (action.rank, action.lane)
        found.append([*([last[lane]] if lane in last else []), *action.after])
        last[lane] = action.index
    return found


def order_of(schedule: Schedule) -> Order:
    """The order of a schedule whose indices, ranks and ``after`` are in range.

    Raises PlanError where actions wait for each other in a circle or meetings do not match.
    """
    groups = meetings(schedule)
    needs = waits(schedule)
    num = len(needs)
    leader = list(range(num))
    members: dict[int, Sequence[int]] = {}
    for group in groups:
        members[group[0]] = group
        for i in group:
            leader[i] = group[0]
    walk = _walk(schedule, needs, leader, members)
    for action in schedule.actions:
        late = [i for i in action.after if i >= action.index]
        if late:
            raise fault(
                schedule,
                action.index,
                f"wanted every action that {action.label} waits for issued before it, "
                f"had {late[0]} after it",
                "write the schedule in an order in which it can be issued",
            )
    return _clocked(schedule, needs, walk, leader, members)


def _walk(
    schedule: Schedule,
    needs: list[list[int]],
    leader: list[int],
    members: dict[int, Sequence[int]],
) -> list[int]:
    """Groups in an order in which they can start, as their first members."""
    num = len(needs)
    waiting = [0] * num
    gives: list[list[int]] = [[] for _ in range(num)]
    for i, earlier in enumerate(needs):
        for j in earlier:
            waiting[leader[i]] += 1
            gives[leader[j]].append(leader[i])
    ready = [i for i in range(num) if leader[i] == i and waiting[i] == 0]
    heapify(ready)
    walk = []
    while ready:
        i = heappop(ready)
        walk.append(i)
        for j in gives[i]:
            waiting[j] -= 1
            if waiting[j] == 0:
                heappush(ready, j)
    if len(walk) < num - sum(len(group) - 1 for group in members.values()):
        raise _circle(schedule, needs, leader, members, set(walk))
    return walk


def _circle(
    schedule: Schedule,
    needs: list[list[int]],
    leader: list[int],
    members: dict[int, Sequence[int]],
    walked: set[int],
) -> PlanError:
    """The error for actions that wait for each other, with the circle that they make."""
    at = next(i for i in leader if i not in walked)
    trail: list[tuple[int, int]] = []  # (action that waits, action that it waits for)
    seen: dict[int, int] = {}
    while at not in seen:
        seen[at] = len(trail)
        step = next(
            (i, j) for i in members.get(at, (at,)) for j in needs[i] if leader[j] not in walked
        )
        trail.append(step)
        at = leader[step[1]]
    circle = trail[seen[at] :]
    actions = schedule.actions
    where = min(i for i, _ in circle)
    told = ", ".join(f"{i} {actions[i].label} (rank {actions[i].rank}) for {j}" for i, j in circle)
    if any(j >= i for i, j in circle):
        return fault(
            schedule,
            where,
            f"wanted dependencies without a circle, had actions that wait for each other: {told}",
            "drop one of these from its `after`",
        )
    met = {actions[i].op for group in circle for i in members.get(leader[group[0]], ())}
    if not met & TOGETHER:
        return fault(
            schedule,
            where,
            f"wanted every SEND met by its RECV, had crossed sends that block each other: {told}",
            "let one rank receive first, or put sends and receives on lanes of their own",
        )
    meet = " and ".join(sorted(op.value for op in met & (TOGETHER | {Op.SEND, Op.RECV})))
    return fault(
        schedule,
        where,
        f"wanted all ranks to meet in one order, had {meet} in different orders, so that all wait "
        f"forever: {told}",
        "issue joint actions in the same order on every rank",
    )


def _clocked(
    schedule: Schedule,
    needs: list[list[int]],
    walk: list[int],
    leader: list[int],
    members: dict[int, Sequence[int]],
) -> Order:
    numbers: dict[tuple[int, str], int] = {}
    counts: list[int] = []
    num = len(needs)
    chain, place = [0] * num, [0] * num
    for i, action in enumerate(schedule.actions):
        number = numbers.setdefault((action.rank, action.lane), len(numbers))
        if number == len(counts):
            counts.append(0)
        counts[number] += 1
        chain[i], place[i] = number, counts[number]
    done = np.zeros((num, max(1, len(counts))), np.int32)
    full: list[int] = []
    for first in walk:
        group = members.get(first, (first,))
        row = done[first]
        for i in group:
            for j in reversed(needs[i]):  # the latest first, which often knows of the others
                if row[chain[j]] < place[j]:
                    np.maximum(row, done[j], out=row)
        for i in group[1:]:
            done[i] = row
        for i in group:
            done[i, chain[i]] = place[i]
        full += group
    return Order(
        walk=tuple(full),
        chain=np.array(chain, np.int32),
        place=np.array(place, np.int32),
        done=done,
    )

"""Every interleaving of a tiny schedule, walked state by state: what may happen, by definition.

A state is which actions have started and which have ended. An action starts when its lane's
earlier ones and those in ``after`` have ended, together with all that it meets; it ends whenever.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiergnn.schedule.actions import TOGETHER, Op
from tiergnn.schedule.schedule import Schedule

ROOM = (Op.RESERVE, Op.RELEASE)
MEETS = TOGETHER | {Op.SEND, Op.RECV}


@dataclass(frozen=True)
class Truth:
    """``before`` holds (i, j) where i has ended in every state in which j has started."""

    stuck: bool
    before: frozenset[tuple[int, int]]
    peaks: dict[tuple[int, str], int]
    together: int  # the most held in the host tier by all ranks at once


def interleavings(schedule: Schedule) -> Truth:
    actions = schedule.actions
    num = len(actions)
    needs = [
        {
            j
            for j in range(num)
            if j in actions[i].after
            or (j < i and (actions[j].rank, actions[j].lane) == (actions[i].rank, actions[i].lane))
        }
        for i in range(num)
    ]
    groups = [
        frozenset(j for j in range(num) if j == i or (a.op in MEETS and actions[j].tag == a.tag))
        for i, a in enumerate(actions)
    ]
    seen = set()
    todo = [(frozenset(), frozenset())]
    before = {(i, j) for i in range(num) for j in range(num) if i != j}
    peaks: dict[tuple[int, str], int] = {}
    together, stuck = 0, False
    while todo:
        state = todo.pop()
        if state in seen:
            continue
        seen.add(state)
        started, ended = state
        before -= {(i, j) for j in started for i in range(num) if i not in ended}
        held = _held(schedule, started, ended)
        for place, num_bytes in held.items():
            peaks[place] = max(peaks.get(place, 0), num_bytes)
        together = max(together, sum(n for (_, tier), n in held.items() if tier == "host"))
        moves = [(started, ended | {i}) for i in started - ended]
        for group in {groups[i] for i in range(num) if i not in started}:
            if all(needs[i] <= ended for i in group):
                moves.append((started | group, ended))
        stuck |= not moves and len(ended) < num
        todo += moves
    return Truth(stuck, frozenset(before), peaks, together)


def _held(schedule: Schedule, started: frozenset, ended: frozenset) -> dict[tuple[int, str], int]:
    held: dict[tuple[int, str], int] = {}
    for buffer in schedule.buffers:
        here = buffer.given
        for action in schedule.actions:
            if action.op in ROOM and buffer.name in action.writes:
                if action.op == Op.RESERVE:
                    here = action.index in started
                elif action.index in ended:
                    here = False
                    break
        place = (buffer.rank, buffer.tier)
        held[place] = held.get(place, 0) + (buffer.num_bytes if here else 0)
    return held


def sound(schedule: Schedule, truth: Truth) -> bool:
    """Whether lifetimes and races hold on every interleaving, pair by pair."""
    if truth.stuck:
        return False
    ordered = truth.before
    for buffer in schedule.buffers:
        name = buffer.name
        touching = [a for a in schedule.actions if name in (*a.reads, *a.writes)]
        room = [a.index for a in touching if a.op == Op.RESERVE]
        gone = [a.index for a in touching if a.op == Op.RELEASE]
        uses = [a for a in touching if a.op not in ROOM]
        writers = [a.index for a in uses if name in a.writes]
        if len(room) != (not buffer.given) or len(gone) != (not buffer.lasting):
            return False
        if any((r, a.index) not in ordered for r in room for a in (*uses, *_at(schedule, gone))):
            return False
        if any((a.index, g) not in ordered for g in gone for a in uses):
            return False
        for action in uses:
            i = action.index
            for j in writers:
                if i != j and (i, j) not in ordered and (j, i) not in ordered:
                    return False
            reads = name in action.reads and not buffer.given
            if reads and not any((j, i) in ordered for j in writers):
                return False
    return True


def _at(schedule: Schedule, indices: list[int]) -> list:
    return [schedule.actions[i] for i in indices]

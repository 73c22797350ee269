"""Walk: that every buffer is used between its room and its release, written before it is read, and
never by two actions at once; that gradients are whole when a STEP reads them.

Of each buffer the last write and, on each lane, the last read since are compared with what comes
next: what is ordered with those is ordered with all before (FastTrack: Flanagan, Freund, 2009).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tiergnn.errors import PlanError
from tiergnn.schedule.actions import Action, Buffer, Op
from tiergnn.schedule.fault import fault
from tiergnn.schedule.order import Order
from tiergnn.schedule.schedule import Schedule

_ROOM = frozenset({Op.RESERVE, Op.RELEASE})
_MAKES = frozenset({Op.BACKWARD, Op.ACCUMULATE, Op.REDUCE})
_GIVEN = -1


@dataclass(slots=True)
class _Life:
    """What has been done to a buffer so far; indices of actions, None where nothing has."""

    buffer: Buffer
    reserved: int | None = None
    written: int | None = None
    released: int | None = None
    reads: dict[int, int] = field(default_factory=dict)  # chain -> last read since the last write
    summed: frozenset[int] = frozenset()  # ranks over which its content is a sum
    stepped: int | None = None  # the STEP that read it


class Walk:
    """One walk over the actions, in an order that every interleaving allows."""

    def __init__(self, schedule: Schedule, order: Order):
        self.schedule, self.order = schedule, order
        self.lives = {buffer.name: _Life(buffer) for buffer in schedule.buffers}
        for life in self.lives.values():
            if life.buffer.given:
                life.reserved = life.written = _GIVEN
        self.steps = [action for action in schedule.actions if action.op == Op.STEP]
        training = (Op.BACKWARD, Op.STEP)
        self.training = frozenset(a.rank for a in schedule.actions if a.op in training)
        self.reduces: dict[str, list[Action]] = {}
        for action in schedule.actions:
            if action.op == Op.REDUCE:
                self.reduces.setdefault(action.tag, []).append(action)
        self.sums: dict[str, frozenset[int]] = {}

    def run(self) -> None:
        """Raises PlanError at the first action that may go wrong, or a leak."""
        for i in self.order.walk:
            action = self.schedule.actions[i]
            if action.op in _ROOM:
                self._room(action)
                continue
            reads = action.reads
            if action.op == Op.ACCUMULATE:
                reads = tuple(dict.fromkeys((*reads, *action.writes)))
            for name in reads:
                self._read(action, self.lives[name])
            if action.op == Op.STEP:
                self._step(action)
            summed = self._summed(action)
            for name in action.writes:
                self._write(action, self.lives[name], summed)
        for life in self.lives.values():
            self._end(life)

    def _room(self, action: Action) -> None:
        if action.reads:
            raise self._fault(
                action, f"wanted no reads of {action.op}, had {action.reads[0]}", "drop them"
            )
        for name in action.writes:
            life = self.lives[name]
            if life.buffer.rank != action.rank:
                raise self._fault(
                    action,
                    f"wanted {name} of rank {life.buffer.rank} reserved and released there, "
                    f"had {action.op} on rank {action.rank}",
                    "let its own rank do it",
                )
            if action.op == Op.RESERVE:
                self._reserve(action, life)
            else:
                self._release(action, life)

    def _reserve(self, action: Action, life: _Life) -> None:
        name = life.buffer.name
        if life.buffer.given:
            raise self._fault(
                action,
                f"{name} is reserved though it is given: it is there before the first action",
                "drop this RESERVE",
            )
        if life.reserved is not None:
            raise self._fault(
                action,
                f"double reserve of {name}: action {life.reserved} did it before",
                "a buffer with a name of its own for each time",
            )
        life.reserved = action.index

    def _release(self, action: Action, life: _Life) -> None:
        name = life.buffer.name
        if life.buffer.lasting:
            raise self._fault(
                action, f"{name} is released though it is lasting", "drop this RELEASE"
            )
        if life.released is not None:
            raise self._fault(
                action,
                f"double free of {name}: action {life.released} released it before",
                "release it once",
            )
        self._there(action, life, "released")
        for i in self._uses(life):
            if not self._before(i, action):
                raise self._unordered(i, action, f"{name} may be released while it is in use")
        life.released = action.index

    def _read(self, action: Action, life: _Life) -> None:
        name = life.buffer.name
        if life.buffer.kind == "workspace" and name not in action.writes:
            raise self._fault(
                action,
                f"wanted {name} as scratch within one action, had a workspace that "
                f"{action.label} reads from an earlier one",
                "a buffer of another kind for what outlives an action",
            )
        self._there(action, life, "read")
        if life.buffer.kind == "workspace":
            return
        if life.written is None:
            wrote = self._later(action, name, writes=True)
            when = "nothing does" if wrote is None else f"action {wrote} does, not surely before"
            raise self._fault(
                action,
                f"wanted {name} written before {action.label} reads it, had unwritten memory: "
                f"{when}",
                "write it first" if wrote is None else f"let this action come after {wrote}",
            )
        if not self._before(life.written, action):
            raise self._unordered(
                life.written, action, f"{name} may be read while it is being written"
            )
        life.reads[int(self.order.chain[action.index])] = action.index

    def _write(self, action: Action, life: _Life, summed: frozenset[int]) -> None:
        name = life.buffer.name
        self._there(action, life, "written")
        if life.written is not None and not self._before(life.written, action):
            raise self._unordered(life.written, action, f"two writers race for {name}")
        for i in life.reads.values():
            if i != action.index and not self._before(i, action):
                raise self._unordered(
                    i, action, f"{name} may be written over while it is being read"
                )
        if life.stepped is not None and action.op != Op.ZERO:
            raise self._fault(
                action,
                f"wanted the gradient {name} whole before the STEP at {life.stepped} reads it, had "
                f"{action.label} adding to it afterwards",
                "let the STEP wait for this action",
            )
        life.written, life.summed = action.index, summed
        life.reads.clear()

    def _there(self, action: Action, life: _Life, verb: str) -> None:
        """A buffer has its room, for certain."""
        name = life.buffer.name
        if life.reserved is None:
            later = self._later(action, name)
            had = "no RESERVE of it" if later is None else f"its RESERVE at {later}, not before"
            raise self._fault(
                action,
                f"wanted {name} reserved before it is {verb}, had {had}",
                "reserve it first" if later is None else f"let this action come after {later}",
            )
        if not self._before(life.reserved, action):
            raise self._unordered(
                life.reserved, action, f"{name} may be {verb} before it is reserved"
            )
        if life.released is not None:
            raise self._fault(
                action,
                f"use after free: {name} is {verb} though action {life.released} releases it"
                + ("" if self._before(life.released, action) else ", maybe before"),
                "release it after its last use",
            )

    def _step(self, action: Action) -> None:
        gradients = [
            self.lives[name] for name in action.reads if self.lives[name].buffer.kind == "gradients"
        ]
        if not gradients:
            raise self._fault(
                action,
                "wanted the gradients of its parameters among what a STEP reads, had none",
                "name buffers of kind gradients in its reads",
            )
        for life in gradients:
            name = life.buffer.name
            many = self.schedule.num_ranks > 1 and not life.buffer.own
            if many and not self.training <= life.summed:
                over = ",".join(map(str, sorted(life.summed)))
                had = f"summed over {over} alone" if over else "never reduced"
                raise self._fault(
                    action,
                    f"wanted the gradient {name} summed over the ranks "
                    f"{','.join(map(str, sorted(self.training)))} before this STEP, had it {had} "
                    f"since action {life.written} wrote it",
                    "REDUCE it on all of them, or mark it `own` where no other rank holds its "
                    "parameters",
                )
            life.stepped = action.index

    def _summed(self, action: Action) -> frozenset[int]:
        """The ranks over which what an action writes is a sum."""
        if action.op == Op.REDUCE:
            if action.tag not in self.sums:
                self.sums[action.tag] = self._reduced(self.reduces[action.tag])
            return self.sums[action.tag]
        if action.op == Op.COPY and action.reads:
            return frozenset.intersection(*(self.lives[name].summed for name in action.reads))
        return frozenset()

    def _reduced(self, actions: list[Action]) -> frozenset[int]:
        """The ranks that a REDUCE sums over: once each, and as many bytes of each."""
        ranks: set[int] = set()
        sizes = [sum(self.lives[name].buffer.num_bytes for name in a.reads) for a in actions]
        for action, num_bytes in zip(actions, sizes, strict=True):
            if not action.reads or num_bytes != sizes[0]:
                raise self._fault(
                    action,
                    f"wanted {sizes[0]} bytes summed by REDUCE {action.tag} on every rank, had "
                    f"{num_bytes} on rank {action.rank}",
                    "name in its reads what it sums, alike on all ranks",
                )
            shares = [self.lives[name].summed or frozenset({action.rank}) for name in action.reads]
            for over in shares:
                if over & ranks:
                    raise self._fault(
                        action,
                        f"wanted each rank's share once in the sum, had those of "
                        f"{','.join(map(str, sorted(over & ranks)))} reduced twice by {action.tag}",
                        "drop one of the two REDUCE",
                    )
            ranks.update(*shares)
        return frozenset(ranks)

    def _end(self, life: _Life) -> None:
        name = life.buffer.name
        if life.reserved is None:
            raise PlanError(
                f"wanted {name} reserved, had it only declared",
                culprit=str(life.buffer),
                hint="reserve it, or drop it",
            )
        if life.buffer.kind == "gradients" and not life.reads:
            self._used(life)
        if life.released is None and not life.buffer.lasting:
            problem = f"leak: {name} is never released"
            hint = "RELEASE it after its last use, or mark it `lasting`"
            if life.reserved == _GIVEN:
                raise PlanError(problem, culprit=str(life.buffer), hint=hint)
            raise fault(self.schedule, life.reserved, problem, hint)

    def _used(self, life: _Life) -> None:
        """Gradients that wait through a STEP of their rank unread are gradients left out of it."""
        if life.written is None or life.written == _GIVEN:
            return
        last = self.schedule.actions[life.written]
        for step in self.steps:
            waits = step.rank == last.rank and self.order.before(last.index, step.index)
            gone = life.released is not None and self.order.before(life.released, step.index)
            if last.op in _MAKES and waits and not gone:
                raise self._fault(
                    step,
                    f"wanted the gradient {life.buffer.name} used, had nothing read what {last.op} "
                    f"at {last.index} wrote of it",
                    "name it in what this STEP reads, or release it before",
                )

    def _uses(self, life: _Life) -> Iterator[int]:
        if life.written is not None:
            yield life.written
        yield from life.reads.values()

    def _before(self, i: int, action: Action) -> bool:
        return i == _GIVEN or self.order.before(i, action.index)

    def _later(self, action: Action, name: str, *, writes: bool = False) -> int | None:
        """The first other action that reserves (or writes) a buffer, for the text of a fault."""
        for other in self.schedule.actions:
            wanted = other.op not in _ROOM if writes else other.op == Op.RESERVE
            if wanted and name in other.writes and other is not action:
                return other.index
        return None

    def _unordered(self, i: int, action: Action, problem: str) -> PlanError:
        """The error for two actions that nothing orders."""
        other = self.schedule.actions[i]
        had = f"{problem}: nothing orders {i} {other.label} before {action.label}"
        if other.rank == action.rank:
            return self._fault(action, had, f"add {i} to its `after`")
        return self._fault(
            action,
            f"{had}: a missing barrier between rank {other.rank} and rank {action.rank}",
            f"a BARRIER of both that comes after {i} and before this action",
        )

    def _fault(self, action: Action, problem: str, hint: str) -> PlanError:
        return fault(self.schedule, action.index, problem, hint)

"""Ways: where a strategy of one device puts what does not fit, and which tier that relieves.

A place is a set of ways, walked from the nearest to the farthest. One that no way in it helps past
an earlier refusal is not tried: at the same cut it would be refused for the same tier.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

from tiergnn.planner.strategies.knobs import Knobs
from tiergnn.planner.strategies.known import KNOBS, PREPARING, TURNING
from tiergnn.workload import Workload

if TYPE_CHECKING:
    from tiergnn.planner.choose import Choosing, Rivals, Trial

_BLOCKS = 2  # of rows for each slice of columns: about as much is at hand of either at once
_TOLERANCE = 1.05  # of what two cuts tell of a third
_LYING = 0.9  # of what is held off the device: rows that lie there; the rest passes through
_FITTING = 2  # cuts that fit: the fewest, and twice as many
_HOT = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # shares of all rows that may stay on the device


@dataclass(frozen=True, slots=True)
class Way:
    """A knob turned, and the tiers that then hold less; the others hold as much or more."""

    knob: str
    value: Any
    relieves: tuple[str, ...]


Place = tuple[Way, ...]
_TURNS = Way("topology", "turns", ("device",))


class Short(NamedTuple):
    """The tiers that were short at a cut (its number), and what each would have held."""

    cut: int
    needs: dict[str, int]


def ways_of(asked: Choosing, name: str, workload: Workload) -> list[Way]:
    """Those of a strategy on a machine, the cheapest first."""
    graph = tuple(s.index for s in workload.stages if s.kind == "graph")
    ways = [
        *([_TURNS] if name in TURNING else []),
        Way("topology", "host", ("device",)),
        Way("recompute", graph, ("host", "disk")),
        Way("gradients", "buckets", ("host",)),
    ]
    if asked.machine.disk is not None:
        ways.append(Way("tier", "disk", ("host",)))
    return [way for way in ways if way.knob in KNOBS[name]]


def staged(asked: Choosing, name: str, rivals: Rivals) -> Iterator[Trial]:
    """Trials of a strategy, with prepared rows where it has them; without, where none then fits."""
    if asked.prepared is not None and name in PREPARING:
        any_fits = False
        for trial in _staged(asked, name, asked.prepared, rivals):
            any_fits |= trial.fits
            yield trial
        if any_fits:
            return
    yield from _staged(asked, name, asked.workload, rivals)


def _staged(asked: Choosing, name: str, workload: Workload, rivals: Rivals) -> Iterator[Trial]:
    """Trials of a strategy, place by place, as rows are computed and in each dtype of storage.

    A farther place is slower: it is tried where none nearer fits, or all of them when ``thorough``.
    Edges that take turns are brought twice a step, which may pay for a coarser cut: they are tried
    at those, too.
    Where none fits at all, the finest cut in parts of the farthest tells how much would do. The
    fastest is tried with hot rows as well, as many as the device has room for.
    """
    search, tried = _Search(asked, name, workload, rivals), set()
    fitting: list[Trial] = []
    ways = ways_of(asked, name, workload)
    places = [
        place
        for count in range(len(ways) + 1)
        for place in combinations(ways, count)
        if len({way.knob for way in place}) == count  # of a knob's values one
    ]
    for dtype in (None, *asked.storage):
        stored = () if dtype is None else (Way("storage", dtype, ("host", "disk")),)
        turning: frozenset[Way] | None = None  # the place that fits, with edges in turns
        coarser: int | None = None  # than that the cut is to be
        for place in places:
            if turning is not None and turning != frozenset(place):
                continue
            fits = False
            for trial in search.at((*stored, *place), coarser):
                if trial.fits:
                    fits = True
                    fitting.append(trial)
                tried.add(trial.knobs)
                yield trial
            if asked.thorough:
                continue
            if turning is not None or (fits and "topology" in {way.knob for way in place}):
                break
            if fits:
                turning = frozenset((*place, _TURNS))
                coarser = search.coarsest((*stored, *place))
    if not fitting:
        dtypes = [Way("storage", dtype, ()) for dtype in asked.storage[-1:]]
        finest = search.cuts((*dtypes, *ways))[-1]
        if finest not in tried:
            yield asked.trial(name, finest, workload)
    elif asked.hot_frac is None and "hot_frac" in KNOBS[name]:
        yield from _hot(asked, fitting, rivals)


def _hot(asked: Choosing, fitting: list[Trial], rivals: Rivals) -> Iterator[Trial]:
    """The fastest with as many rows of every tensor that is gathered as there is room for."""
    workload = asked.workload
    names = {name for stage in workload.stages for name in stage.gathers}
    row_bytes = sum(workload.row_kind(name).row_bytes for name in names)

    def heated(trial: Trial) -> Knobs | None:
        room = asked.machine.tier("device").available_bytes - trial.peak_bytes["device"]
        shares = [share for share in _HOT if share * asked.shape.num_nodes * row_bytes <= room]
        may = shares and trial.knobs.parts > 1
        return replace(trial.knobs, hot_frac=shares[-1]) if may else None

    name, open_to = fitting[0].strategy, _maybe_fastest(fitting)
    if len(open_to) > 1:
        lost = [asked.lost(name, knobs, rivals) for knobs in map(heated, open_to) if knobs]
        beaten = [trial for trial in lost if trial is not None]
        if len(beaten) == len(lost):  # whichever is the fastest
            yield from beaten[:1]
            return
        open_to = [_clocked(asked, trial) for trial in open_to]
    if knobs := heated(min(open_to, key=lambda trial: trial.seconds)):
        yield asked.trial(name, knobs, rivals=rivals)


def _maybe_fastest(fitting: list[Trial]) -> list[Trial]:
    """Those that the clock may find to be the fastest; of equals the first."""
    clocked = min(fitting, key=lambda trial: trial.seconds)
    return [
        trial
        for trial in fitting
        if trial is clocked or (trial.least and trial.least.seconds <= clocked.seconds)
    ]


def _clocked(asked: Choosing, trial: Trial) -> Trial:
    """A trial whatever beats it."""
    tried = trial.tried
    return asked.trial(tried.strategy, tried.knobs, tried.workload) if trial.least else trial


@dataclass(slots=True)
class _Search:
    """What was refused so far: (place, number of the cut) -> the tiers that were short; and what
    fits."""

    asked: Choosing
    name: str
    workload: Workload
    rivals: Rivals
    refused: dict[tuple[Place, int], frozenset[str]] = field(default_factory=dict)
    fits: set[tuple[frozenset[Way], int]] = field(default_factory=set)

    def coarsest(self, place: Place) -> int:
        """The number of the coarsest cut at which a place fits."""
        return min(cut for there, cut in self.fits if there == frozenset(place))

    def at(self, place: Place, coarser: int | None = None) -> Iterator[Trial]:
        """The coarsest cuts that fit and finer ones (of those before number ``coarser``), or else
        the last refusal."""
        cuts, last, fitting = self.cuts(place)[:coarser], None, 0
        before: Short | None = None
        i = 0
        while i < len(cuts) and fitting < _FITTING:
            if self._hopeless(place, i):
                i, before = i + 1, None
                continue
            if self._needless(place, i):
                fitting, i = fitting + 1, i + 1
                continue
            trial = self.asked.trial(self.name, cuts[i], self.workload, self.rivals)
            if trial.fits:
                self.fits.add((frozenset(place), i))
                fitting, i = fitting + 1, i + 1
                yield trial
                continue
            last, error = trial, trial.refused
            if error is None or error.short is None:  # no matter of room
                break
            now = Short(i, dict((error.short, *error.also_short)))
            reach = {tier: self._next(place, before, now, tier, len(cuts)) for tier in now.needs}
            for cut in range(i, len(cuts)):
                if tiers := frozenset(tier for tier in reach if cut < reach[tier]):
                    self.refused[place, cut] = tiers
            i, before = max(reach.values()), now
        if not fitting and last is not None:
            yield last

    def cuts(self, place: Place) -> list[Knobs]:
        """Parts, or slices with blocks of rows: each time twice as many."""
        base = replace(Knobs(), **{way.knob: way.value for way in place})
        if "hot_frac" in KNOBS[self.name]:
            base = replace(base, hot_frac=self.asked.hot_frac or 0.0)
        if self.name == "sliced":
            return [
                replace(base, slices=n, parts=_BLOCKS * n)
                for n in _doubling(4, self.asked.most_slices)
            ]
        most = min(self.asked.most_parts, max(2, self.asked.shape.num_nodes))
        return [replace(base, parts=n) for n in _doubling(2, most)]

    def _hopeless(self, place: Place, cut: int) -> bool:
        """Whether a place within this one was refused at the cut for a tier that stays as full."""
        for (earlier, at), tiers in self.refused.items():
            if at == cut and set(earlier) <= set(place):
                relieved = {tier for way in set(place) - set(earlier) for tier in way.relieves}
                if tiers - relieved:
                    return True
        return False

    def _needless(self, place: Place, cut: int) -> bool:
        """Whether all fits in host memory at the cut: a disk, whose cache would hold all that it
        holds, only adds reads."""
        nearer = frozenset(way for way in place if way.knob != "tier")
        return len(nearer) < len(place) and (nearer, cut) in self.fits

    def _next(self, place: Place, before: Short | None, now: Short, tier: str, count: int) -> int:
        """The coarsest cut at which a tier that was short may hold all; ``count`` where none may.

        What is held halves at best with each cut: the sources of a part are among those of its
        halves. Of slices all halves but what does not depend on them, which two cuts tell. Off the
        device, rows of all parts lie there, but for what host memory takes from the disk.
        """
        needs, room = now.needs[tier], self.asked.machine.tier(tier).available_bytes
        on_disk = any(way.knob == "tier" for way in place)
        rest = 0.0
        if tier == "disk":
            rest = _LYING * (needs - self.asked.machine.host.available_bytes)
        elif tier == "host" and not on_disk:
            rest = _LYING * needs
        elif before is not None and tier in before.needs:
            if needs >= before.needs[tier]:
                return count
            if self.name == "sliced":
                times = 2 ** (now.cut - before.cut)
                rest = (times * needs - before.needs[tier]) / (times - 1)
        rest = max(0.0, rest)
        for finer in range(now.cut + 1, count):
            if rest + (needs - rest) / 2 ** (finer - now.cut) <= room * _TOLERANCE:
                return finer
        return count


def _doubling(first: int, last: int) -> Iterator[int]:
    while first <= last:
        yield first
        first *= 2

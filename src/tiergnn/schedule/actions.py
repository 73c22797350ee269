"""Actions and buffers: one step of a schedule, and what steps read and write. Text both ways.

    buffer h1.p3 rank 0 tier device kind activations bytes 1048576
    12 r0 compute FORWARD s1 p3 reads x.p3 writes h1.p3 after 9 11 work gather 4096/64/8192@device*1

An action runs when those in ``after`` and all earlier ones of its rank and lane are done.
``after`` names actions of the own rank; ranks wait for each other by meeting (``meeting``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from tiergnn.errors import PlanError
from tiergnn.schedule.contents import Content
from tiergnn.units import format_bytes


class Lane(StrEnum):
    """What can run side by side on one rank."""

    COMPUTE = "compute"
    H2D = "h2d"
    D2H = "d2h"
    PEER = "peer"
    DISK_READ = "disk_read"
    DISK_WRITE = "disk_write"
    HOST = "host"


class Op(StrEnum):
    """What an action does.

    RESERVE and RELEASE make room for buffers and give it back. COPY moves rows from one buffer to
    another, between tiers or within one; its lane says over which link. FORWARD, RECOMPUTE and
    BACKWARD run a stage on a part, AGGREGATE and UPDATE the two halves of a stage when its columns
    are sliced. MOMENTS and COMMIT are the two halves of a statistic. ACCUMULATE adds rows of one
    buffer to those of another, which it reads too; ZERO clears one. LOSS is what it is called;
    STEP reads the parameters' gradients and moves the parameters. BARRIER, EXCHANGE (every rank's
    rows to all that need them) and REDUCE (gradients summed over ranks) are done by all ranks of
    their ``tag`` together; SEND and RECV by two. What meets starts together.
    """

    RESERVE = "RESERVE"
    RELEASE = "RELEASE"
    COPY = "COPY"
    ZERO = "ZERO"
    ACCUMULATE = "ACCUMULATE"
    FORWARD = "FORWARD"
    RECOMPUTE = "RECOMPUTE"
    BACKWARD = "BACKWARD"
    AGGREGATE = "AGGREGATE"
    UPDATE = "UPDATE"
    MOMENTS = "MOMENTS"
    COMMIT = "COMMIT"
    LOSS = "LOSS"
    STEP = "STEP"
    BARRIER = "BARRIER"
    EXCHANGE = "EXCHANGE"
    REDUCE = "REDUCE"
    SEND = "SEND"
    RECV = "RECV"


TOGETHER = frozenset({Op.BARRIER, Op.EXCHANGE, Op.REDUCE})
KINDS = (
    "topology", "features", "parameters", "gradients", "optimizer", "activations", "saved",
    "workspace", "cache", "staging",
)  # fmt: skip
WORKS = (
    "gather", "walk", "attend", "drop", "softmax", "add", "move", "matmul", "outer", "stream",
    "rowwise", "total", "draw", "fresh",
)  # fmt: skip
_MOST_BYTES = 2**50  # of a buffer: 64 bits hold sums of thousands
_MOST = 2**62  # of a work's numbers: products of them are finite
_MARKS = ("given", "lasting", "own")
_LISTS = ("tag", "reads", "writes", "after", "work")
_NUMBERS = {"s": "stage", "p": "part", "c": "slice"}


def _word(text: str) -> bool:
    """Whether a name can stand in a line of a schedule and be read back."""
    return text.isprintable() and len(text.split()) == 1 and text not in (*_LISTS, "<--")


def tag_of(name: str, ranks: Iterable[int], num_ranks: int) -> str:
    """The tag under which these ranks meet: ``sync1`` for all, ``sync1@0,2`` for ranks 0 and 2."""
    listed = sorted(ranks)
    return name if listed == list(range(num_ranks)) else f"{name}@{','.join(map(str, listed))}"


def participants(tag: str, num_ranks: int) -> tuple[int, ...]:
    """Who meets under a tag. Raises ValueError where it names no ranks of the schedule."""
    _, mark, text = tag.partition("@")
    if not mark:
        return tuple(range(num_ranks))
    ranks = tuple(map(int, text.split(",")))
    if sorted(set(ranks)) != list(ranks) or not 0 <= ranks[0] <= ranks[-1] < num_ranks:
        raise ValueError(f"{tag!r}, which lists no ascending ranks below {num_ranks}")
    return ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """Memory with a name: a tier of one rank's, for one purpose.

    ``given`` buffers hold their content before the first action (the graph's files, parameters);
    ``lasting`` ones are still there after the last. All others a schedule reserves and releases,
    once each. A ``workspace`` is scratch of the actions that write it: none reads it.
    ``own`` marks gradients that are whole on their rank alone (no other rank holds the parameters,
    or all compute the same), so that no REDUCE sums them. ``holds`` says of what the content is,
    where an executor has to know.
    """

    name: str
    rank: int
    tier: str
    kind: str
    num_bytes: int
    given: bool = False
    lasting: bool = False
    own: bool = False
    holds: Content | None = None

    def __post_init__(self) -> None:
        if not _word(self.name) or not _word(self.tier):
            raise PlanError(f"not a name of one printable word: {self.name!r} in {self.tier!r}")
        if self.kind not in KINDS:
            raise PlanError(
                f"unknown kind {self.kind!r} of buffer {self.name}", hint=", ".join(KINDS)
            )
        if not 0 <= self.num_bytes <= _MOST_BYTES:
            raise PlanError(
                f"wanted a buffer {self.name} of 0 bytes to {format_bytes(_MOST_BYTES)}, had "
                f"{self.num_bytes:.4g}"
            )

    def __str__(self) -> str:
        marks = "".join(f" {mark}" for mark in _MARKS if getattr(self, mark))
        holds = "" if self.holds is None else f" holds {self.holds}"
        return (
            f"buffer {self.name} rank {self.rank} tier {self.tier} kind {self.kind} "
            f"bytes {self.num_bytes}{marks}{holds}"
        )

    @classmethod
    def parse(cls, text: str) -> Buffer:
        """Raises PlanError for a line that is no buffer."""
        words = text.split()
        holds = None
        if len(words) > 11 and words[-2] == "holds":
            words, holds = words[:-2], Content.parse(words[-1])
        marks = words[10:]
        if (
            len(words) < 10
            or words[0:10:2] != ["buffer", "rank", "tier", "kind", "bytes"]
            or len(set(marks) & set(_MARKS)) < len(marks)
        ):
            raise PlanError(
                f"not a buffer: {text!r}",
                hint="buffer NAME rank R tier T kind K bytes N, then any of "
                + ", ".join(_MARKS)
                + ", then holds WHAT",
            )
        try:
            rank, num_bytes = int(words[3]), int(words[9])
        except ValueError as error:
            raise PlanError(f"not a buffer: {text!r}: {error}") from error
        return cls(
            name=words[1],
            rank=rank,
            tier=words[5],
            kind=words[7],
            num_bytes=num_bytes,
            given="given" in marks,
            lasting="lasting" in marks,
            own="own" in marks,
            holds=holds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A part of what an action takes, in numbers.

    kind "gather": ``amount`` bytes read at random as rows of ``grain`` bytes from a table of
    ``span`` bytes that lies at ``place`` (device, host, peer), ``evenness`` saying how evenly its
    rows are read (``graph.shape.Histogram.evenness``); "walk": ``amount`` rows that a kernel makes
    of those that it gathers; "attend": ``amount`` of those weighed by attention, of ``grain`` heads
    an edge, "drop": likewise, each of which it keeps or drops, "softmax": ``amount`` rows times
    heads whose weights it makes add up to 1; "add": ``amount`` bytes as rows of ``grain`` bytes
    that torch adds to a table of ``span`` bytes;
    "move": ``amount`` bytes over the link ``place`` in pieces of ``grain`` bytes (1: in one piece);
    "matmul": ``amount`` operations of dtype ``place`` ("device": float32), ``grain`` the narrowest
    of a product's sizes and ``span`` the bytes that one reads and writes, "outer": likewise of one
    that sums over rows; "stream": ``amount`` bytes in order at ``place`` (``launches`` 0: by a
    kernel that gathers besides), "rowwise": by our own kernels, "total": by torch's sums over rows;
    "draw": ``amount`` numbers drawn for dropout; "fresh": ``amount`` bytes of ``launches`` new
    tensors that torch's allocator is asked for.
    """

    kind: str
    amount: int
    grain: int = 1
    span: int = 0
    place: str = "device"
    launches: int = 1
    evenness: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in WORKS:
            raise PlanError(f"unknown kind of work {self.kind!r}", hint=", ".join(WORKS))
        if not self.place.isidentifier():
            raise PlanError(f"not a place of work: {self.place!r}")
        numbers = (self.amount, self.grain, self.span, self.launches)
        if min(numbers) < 0 or max(numbers) > _MOST:
            raise PlanError(f"wanted work of 0 to {_MOST:.4g}, had {self.kind} of {numbers}")
        if not (math.isfinite(self.evenness) and self.evenness >= 0):
            raise PlanError(f"wanted an evenness of 0 or more, had {self.evenness}")

    def __str__(self) -> str:
        even = "" if self.evenness == 1.0 else f"~{self.evenness!r}"
        return (
            f"{self.kind} {self.amount}/{self.grain}/{self.span}{even}@{self.place}*{self.launches}"
        )

    @classmethod
    def parse(cls, kind: str, text: str) -> Work:
        """Raises ValueError for text that is no work."""
        numbers, _, rest = text.partition("@")
        numbers, _, even = numbers.partition("~")
        amount, grain, span = map(int, numbers.split("/"))
        place, _, launches = rest.partition("*")
        return cls(
            kind=kind,
            amount=amount,
            grain=grain,
            span=span,
            place=place,
            launches=int(launches),
            evenness=float(even or 1.0),
        )


@lru_cache(maxsize=1 << 16)
def moved(num_bytes: int, link: str, grain: int = 1, launches: int = 1) -> Work:
    """Bytes over a link; one object for the many actions that do alike."""
    return Work(kind="move", amount=num_bytes, grain=grain, place=link, launches=launches)


class Done(NamedTuple):
    """Of an action what its seconds depend on."""

    rank: int
    lane: Lane
    op: Op
    work: tuple[Work, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One step: ``index`` is its place in the schedule, in the order in which steps are issued.

    ``stage``, ``part`` and ``slice`` say of what (-1: of none); ``tag`` is shared by the actions of
    several ranks that happen together.
    """

    index: int
    rank: int
    lane: Lane
    op: Op
    stage: int = -1
    part: int = -1
    slice: int = -1
    tag: str = ""
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    after: tuple[int, ...] = ()
    work: tuple[Work, ...] = ()

    def __post_init__(self) -> None:
        if self.tag and not _word(self.tag):
            raise PlanError(f"not a tag of one printable word: {self.tag!r}")

    @property
    def label(self) -> str:
        """``FORWARD s1 p3``."""
        text = str(self.op)
        if self.stage >= 0:
            text += f" s{self.stage}"
        if self.part >= 0:
            text += f" p{self.part}"
        return f"{text} c{self.slice}" if self.slice >= 0 else text

    @property
    def done(self) -> Done:
        return Done(self.rank, self.lane, self.op, self.work)

    @property
    def moved_bytes(self) -> int:
        """Bytes over links: those of moves, and rows that a kernel reads in place elsewhere."""
        return sum(
            work.amount
            for work in self.work
            if work.kind == "move" or (work.kind == "gather" and work.place in ("host", "peer"))
        )

    def __str__(self) -> str:
        words = [str(self.index), f"r{self.rank}", str(self.lane), self.label]
        if self.tag:
            words += ["tag", self.tag]
        for name, values in (("reads", self.reads), ("writes", self.writes), ("after", self.after)):
            if values:
                words += [name, *map(str, values)]
        if self.work:
            words += ["work", *map(str, self.work)]
        return " ".join(words)

    @classmethod
    def parse(cls, text: str) -> Action:
        """Raises PlanError for a line that is no action."""
        try:
            return cls._parse(text.split())
        except (ValueError, IndexError) as error:
            raise PlanError(f"not an action: {text!r}: {error}") from error

    @classmethod
    def _parse(cls, words: Sequence[str]) -> Action:
        index, rank, lane, op = words[:4]
        if rank[0] != "r":
            raise ValueError("the second word is a rank")
        numbers: dict[str, int] = {}
        lists: dict[str, list[str]] = {name: [] for name in _LISTS}
        at = ""
        for word in words[4:]:
            if word in lists:
                if lists[word] or word == at:
                    raise ValueError(f"{word} stands twice")
                at = word
            elif at:
                lists[at].append(word)
            elif word[0] in _NUMBERS and _NUMBERS[word[0]] not in numbers:
                numbers[_NUMBERS[word[0]]] = int(word[1:])
            else:
                raise ValueError(f"unknown word {word!r}")
        if len(lists["tag"]) > 1 or (at and not lists[at]):
            raise ValueError("one tag, and something in every list")
        work = lists["work"]
        return cls(
            index=int(index),
            rank=int(rank[1:]),
            lane=Lane(lane),
            op=Op(op),
            **numbers,
            tag=lists["tag"][0] if lists["tag"] else "",
            reads=tuple(lists["reads"]),
            writes=tuple(lists["writes"]),
            after=tuple(map(int, lists["after"])),
            work=tuple(Work.parse(*pair) for pair in zip(work[::2], work[1::2], strict=True)),
        )

"""Giving: what parts give to the gradients of rows that others own, added up in host memory.

"whole": the gradients of all parts are there, and a part adds to them at once. "buckets": what a
part gives to each other one lies at Home until that one's turn.
"""

from __future__ import annotations

from collections import defaultdict

from tiergnn.planner.strategies.draft import Draft
from tiergnn.planner.strategies.gathering import Gathering
from tiergnn.planner.strategies.home import Home
from tiergnn.planner.strategies.passing import Passing
from tiergnn.schedule.actions import Lane, Op, Work, moved
from tiergnn.schedule.contents import Content, What
from tiergnn.workload import StageWork


class Giving:
    """``piecewise``: to one owner after the other, so that host memory need not hold all of them
    at once."""

    def __init__(self, draft: Draft, home: Home, gathering: Gathering, *, piecewise: bool) -> None:
        self._draft, self._home, self._gathering = draft, home, gathering
        self._writer, self._piecewise = draft.writer, piecewise
        self._buckets = draft.knobs.gradients == "buckets"
        self._given: dict[str, list[str]] = defaultdict(list)  # gradient entry -> its buckets
        self._staging = Passing(draft, lane=Lane.HOST)

    def clear(self, name: str) -> None:
        """Zeros for all parts to add to; buckets need none."""
        if self._buckets:
            return
        for part in self._draft.parts:
            num_bytes = self._draft.count(name, part) * self._draft.stored_bytes(name)
            holds = Content(What.GRAD, name, part)
            self._home.clear(f"{name}.grad.p{part}", "gradients", num_bytes, holds)

    def collect(self, name: str, part: int) -> str:
        """The gradient of a part's rows; its buckets are added up first."""
        draft, entry = self._draft, f"{name}.grad.p{part}"
        rows, holds = draft.count(name, part), Content(What.GRAD, name, part)
        buckets = self._given.pop(entry, [])
        if buckets:
            num_bytes = rows * draft.stored_bytes(name)
            self._home.clear(entry, "gradients", num_bytes, holds)
            for bucket in buckets:
                source, target = self._home.read(bucket), self._home.modify(entry)
                self._add_up(part, source, [target], name)
                self._home.drop(bucket)
        buffer = self._gathering.bring(entry, "gradients", rows, holds)
        self._home.drop(entry)
        return buffer

    def give(self, stage: StageWork, part: int, name: str, buffer: str) -> None:
        """A part's gradient of rows that it read, to those rows' owners."""
        draft = self._draft
        shape, row_bytes = draft.layout.parts[part], draft.stored_bytes(name)
        owners = {part: draft.count(name, part)}
        if name in stage.gathers:
            owners |= {q: n for q, n in enumerate(shape.halo_of) if n and q != part}
        if self._buckets:
            for q, rows in owners.items():
                bucket = f"{name}.grad.p{q}.of.p{part}.s{stage.index}"
                self._home.store(
                    bucket, "gradients", rows * row_bytes, buffer, stage=stage.index, part=part,
                    holds=Content(What.BUCKET, name, part, q),
                )  # fmt: skip
                self._given[f"{name}.grad.p{q}"].append(bucket)
        elif self._piecewise:
            for q, rows in owners.items():
                holds = Content(What.BUCKET, name, part, q)
                staging = self._stage_out(part, buffer, rows * row_bytes, holds)
                target = self._home.modify(f"{name}.grad.p{q}")
                self._add_up(part, staging, [target], name)
        else:
            what = What.SOURCES_GRAD if name in stage.gathers else What.GRAD
            staging = self._stage_out(
                part, buffer, sum(owners.values()) * row_bytes, Content(what, name, part)
            )
            targets = [self._home.modify(f"{name}.grad.p{q}") for q in owners]
            self._add_up(part, staging, targets, name)

    def close(self) -> None:
        self._staging.close()

    def _add_up(self, part: int, source: str, targets: list[str], name: str) -> None:
        """Add rows in host memory to those of one part or several."""
        sizes = self._draft.sizes
        work = Work(
            kind="gather",
            amount=2 * sizes[source],
            grain=max(1, self._draft.stored_bytes(name)),
            span=sum(sizes[target] for target in targets),
            place="host",
        )
        self._writer.add(
            0,
            Lane.HOST,
            Op.ACCUMULATE,
            part=part,
            reads=[source, *targets],
            writes=targets,
            work=[work],
        )

    def _stage_out(self, part: int, buffer: str, num_bytes: int, holds: Content) -> str:
        name = f"{holds.of}.grad.of.p{part}@host"
        staging = self._staging.take(name, num_bytes, lane=Lane.D2H, holds=holds)
        work = moved(num_bytes, self._draft.link("d2h"))
        self._gathering.copy(Lane.D2H, part, [buffer], staging, work)
        return staging

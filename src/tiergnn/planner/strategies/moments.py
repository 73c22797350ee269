"""Moments: statistics over all rows, taken part by part as rows pass, and their gradients.

``s2.parts`` are the moments of each part, ``s2`` those of all rows, ``s2.grad`` their gradient.
With several ranks each takes those of its own part, and all exchange them.
"""

from __future__ import annotations

from collections.abc import Iterable

from tiergnn.planner.strategies.draft import Draft
from tiergnn.schedule.actions import Lane, Op, Work
from tiergnn.schedule.contents import Content, What
from tiergnn.workload import StageWork


class Moments:
    """The moments that one rank holds."""

    def __init__(self, draft: Draft, rank: int = 0) -> None:
        self._draft, self._writer, self._rank = draft, draft.writer, rank
        self._held: dict[str, str] = {}  # s2, s2.parts, s2.grad -> buffer

    def of(self, stage: StageWork) -> list[str]:
        """The moments that a stage reads."""
        return [self._held[name] for name in stage.statistics]

    def grads_of(self, stage: StageWork) -> list[str]:
        """The gradients that its backward adds to."""
        return [self._held[f"{name}.grad"] for name in stage.statistics]

    def taken(self, stage: StageWork) -> bool:
        return f"s{stage.index}.parts" in self._held

    def graded(self, stage: StageWork) -> bool:
        """Whether a backward added to the gradient of what a stage made."""
        return f"s{stage.index}.grad" in self._held

    def take(self, stage: StageWork, part: int, rows: str) -> None:
        """Those of a part, of its rows on the device."""
        draft, name = self._draft, f"s{stage.index}.parts"
        if name not in self._held:
            num_bytes = draft.layout.num_parts * draft.moments_bytes(stage)
            self._held[name] = self._take(
                name, "activations", num_bytes, Content(What.PART_MOMENTS, f"s{stage.index}")
            )
        size = draft.count(stage.moments_of, part) * draft.row_bytes(stage.moments_of)
        self._writer.add(
            self._rank,
            Lane.COMPUTE,
            Op.MOMENTS,
            stage=stage.index,
            part=part,
            reads=[rows],
            writes=[self._held[name]],
            work=[Work(kind="stream", amount=2 * size)],
        )

    def exchange(self, stage: StageWork) -> None:
        """Every rank's to all others; each rank does it."""
        parts = self._held[f"s{stage.index}.parts"]
        self._writer.add(
            self._rank,
            Lane.PEER,
            Op.EXCHANGE,
            stage=stage.index,
            tag=f"s{stage.index}",
            reads=[parts],
            writes=[parts],
            work=self._sent((self._draft.num_ranks - 1) * self._draft.moments_bytes(stage)),
        )

    def commit(self, stage: StageWork) -> None:
        """Those of all rows, from the parts'."""
        name = f"s{stage.index}"
        parts = self._held.pop(f"{name}.parts")
        self._held[name] = self._take(
            name, "activations", self._draft.moments_bytes(stage), Content(What.MOMENTS, name)
        )
        self._writer.add(
            self._rank,
            Lane.COMPUTE,
            Op.COMMIT,
            stage=stage.index,
            reads=[parts],
            writes=[self._held[name]],
        )
        self._writer.release(self._rank, parts)

    def clear_grads(self, stage: StageWork) -> None:
        """Zeros for the gradients that a stage's backward adds to, where there are none yet."""
        for name in stage.statistics:
            if f"{name}.grad" not in self._held:
                grad = self._take(
                    f"{name}.grad",
                    "gradients",
                    self._draft.moments_bytes(self._maker(name)),
                    Content(What.MOMENTS_GRAD, name),
                )
                self._held[f"{name}.grad"] = grad
                self._writer.add(self._rank, Lane.COMPUTE, Op.ZERO, writes=[grad])

    def reduce(self, stage: StageWork) -> None:
        """Sum the gradient of what a stage made over ranks; each rank does it."""
        grad = self._held[f"s{stage.index}.grad"]
        self._writer.add(
            self._rank,
            Lane.PEER,
            Op.REDUCE,
            stage=stage.index,
            tag=f"s{stage.index}.grad",
            reads=[grad],
            writes=[grad],
            work=self._sent(2 * self._draft.moments_bytes(stage)),
        )

    def give_back(self, name: str, part: int, rows: str, grad: str) -> None:
        """Add to the gradient of a part's rows what they gave to moments."""
        size = self._draft.count(name, part) * self._draft.row_bytes(name)
        for stage in self._draft.statistics(name):
            key = f"s{stage.index}"
            if f"{key}.grad" not in self._held:
                continue
            self._writer.add(
                self._rank,
                Lane.COMPUTE,
                Op.ACCUMULATE,
                stage=stage.index,
                part=part,
                reads=[rows, self._held[key], self._held[f"{key}.grad"], grad],
                writes=[grad],
                work=[Work(kind="stream", amount=3 * size)],
            )

    def free(self, stage: StageWork) -> None:
        """After a stage's backward: moments of what it wrote, or those that it made of inputs."""
        draft = self._draft
        done = [s for name in stage.writes for s in draft.statistics(name)]
        if stage.moments_of in draft.workload.inputs:
            done.append(stage)
        self.drop(name for s in done for name in (f"s{s.index}", f"s{s.index}.grad"))

    def drop(self, names: Iterable[str]) -> None:
        """Give back those of these moments and gradients that are there."""
        for name in names:
            if name in self._held:
                self._writer.release(self._rank, self._held.pop(name))

    def _maker(self, name: str) -> StageWork:
        return next(s for s in self._draft.workload.stages if f"s{s.index}" == name)

    def _take(self, name: str, kind: str, num_bytes: int, holds: Content) -> str:
        own = self._draft.own(name, self._rank)
        return self._draft.take(own, kind, num_bytes, rank=self._rank, holds=holds)

    def _sent(self, num_bytes: int) -> list[Work]:
        draft = self._draft
        far = draft.num_ranks > draft.machine.num_devices
        place = draft.link("network") if far else draft.peer(0, 0, bulk=True)
        return [Work(kind="move", amount=num_bytes, place=place)]

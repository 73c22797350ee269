"""Lives: from which stage to which the rows of a tensor must be held, where no part is evicted."""

from __future__ import annotations

from collections.abc import Iterable

from tiergnn.workload import StageWork, Workload


class Lives:
    """Last readers of every tensor; ``again`` are the stages whose forward is run again. In an
    evaluation (``training`` False) no backward reads."""

    def __init__(
        self, workload: Workload, again: Iterable[int] = (), *, training: bool = True
    ) -> None:
        self._workload, self._again = workload, frozenset(again)
        self._forward: dict[str, int] = {}  # tensor -> the last stage that reads it in forward
        self._backward: dict[str, int] = {}  # tensor -> the last stage that does in backward
        for place, stage in enumerate(workload.stages):
            for name in (*stage.writes, *stage.gathers, *stage.reads):
                self._forward[name] = place
            for name in self.kept(stage) if training else ():
                self._backward.setdefault(name, place)

    def kept(self, stage: StageWork) -> tuple[str, ...]:
        """The rows that the backward of a stage reads."""
        rows = {kind.name for kind in self._workload.rows}
        names: tuple[str, ...] = stage.saves
        if stage.index in self._again:
            names = (*stage.gathers, *stage.reads)
        if stage.moments_of:
            names = (*names, stage.moments_of)
        return tuple(name for name in dict.fromkeys(names) if name in rows)

    def end_forward(self, stage: StageWork) -> list[str]:
        """What nobody reads after the forward of a stage; the output is read by the loss."""
        place = self._workload.stages.index(stage)
        return [
            name
            for name, last in self._forward.items()
            if last == place and name not in self._backward and name != self._workload.output
        ]

    def end_backward(self, stage: StageWork) -> list[str]:
        """What nobody reads after the backward of a stage."""
        place = self._workload.stages.index(stage)
        return [name for name, last in self._backward.items() if last == place]

    def after_loss(self) -> list[str]:
        output = self._workload.output
        return [] if output in self._backward else [output]

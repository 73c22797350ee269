"""What a user can cause, told as: wanted, had, culprit, way out."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from difflib import get_close_matches


class TiergnnError(Exception):
    """Base of every error that tiergnn raises on purpose.

    ``problem`` says what was wanted and what was found, ``culprit`` where, ``hint`` the way out.
    """

    def __init__(self, problem: str, *, culprit: str | None = None, hint: str | None = None):
        self.problem = problem
        self.culprit = culprit
        self.hint = hint
        lines = [problem]
        if culprit:
            lines.append(f"  at: {culprit}")
        if hint:
            lines.append(f"  try: {hint}")
        super().__init__("\n".join(lines))


class ConfigError(TiergnnError, ValueError):
    """An argument, an option or a model that tiergnn cannot use."""


class GraphError(TiergnnError, ValueError):
    """Graph data that contradict themselves: ids out of range, wrong lengths, bad values."""


class PlanError(TiergnnError, ValueError):
    """What was asked for does not fit or cannot be scheduled.

    ``short``: the memory that is short, as (tier, bytes that would do), where that is the reason;
    ``also_short``: that of other tiers.
    """

    short: tuple[str, int] | None = None
    also_short: tuple[tuple[str, int], ...] = ()


class StoreError(TiergnnError, OSError):
    """A file or a folder that cannot be read, written or trusted."""

    # OSError builds its own text from two arguments; ours is already whole.
    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class RankError(TiergnnError, RuntimeError):
    """A rank that died, hung, raised or did not match the others: the job is over on all ranks.

    ``kind``: the name of the error of ours that it raised; empty for anything else.
    """

    kind: str = ""


class Interrupted(KeyboardInterrupt):
    """A run that a signal stopped between two epochs, after its checkpoint was written.

    ``run_dir`` is None when the run had no folder: nothing was kept. ``signum`` is the signal.
    """

    def __init__(self, epoch: int, run_dir: str | None, signum: int):
        self.epoch = epoch
        self.run_dir = run_dir
        self.signum = signum
        kept = (
            f"a checkpoint was written\n  try: tiergnn resume {shell_word(run_dir)}"
            if run_dir
            else "nothing was kept\n  try: out='runs/NAME' keeps checkpoints to resume from"
        )
        super().__init__(f"stopped after epoch {epoch}; {kept}")


def shell_word(path: object) -> str:
    """A path as it stands in a command that is shown: one word of the shell, and no option."""
    text = str(path)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)


def unknown(kind: str, name: object, known: Iterable[object]) -> ConfigError:
    """The error for a name that is none of ``known``: lists them, nearest first."""
    names = [str(k) for k in known]
    close = get_close_matches(str(name), names, n=1)
    return ConfigError(
        f"unknown {kind} {str(name)!r}",
        hint=(f"{close[0]!r}, or " if close else "") + "one of " + ", ".join(names),
    )

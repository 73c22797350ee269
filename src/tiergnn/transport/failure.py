"""How a job of many ranks ends when one of them fails: with one message."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from tiergnn.errors import RankError

_MOST_CHARS = 400  # of each text, so that a record fits its slot of the board whatever it holds


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """``rank`` did what ``cause`` says, at ``action``; ``by`` is the rank that noticed it."""

    rank: int
    by: int
    action: str
    cause: str
    hint: str = ""
    kind: str = ""  # of errors, where it is one of ours

    def to_json(self) -> str:
        short = {k: v[:_MOST_CHARS] if isinstance(v, str) else v for k, v in asdict(self).items()}
        return json.dumps(short, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Failure:
        return cls(**json.loads(text))

    def error(self) -> RankError:
        error = RankError(
            f"rank {self.rank} {self.cause}",
            culprit=self.action or "no action yet",
            hint=self.hint or None,
        )
        error.kind = self.kind
        return error

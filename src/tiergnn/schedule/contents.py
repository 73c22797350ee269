"""Contents: what a buffer holds, in words that an executor can act on without reading its name.

rows:h1:p3   rows:h1:c8-16   sources:h1:p3   bucket:h1:p3:q1   replicas:h1:p3:r0-9   moments:s2
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tiergnn.errors import PlanError


class What(StrEnum):
    """ROWS are a part's own rows of a tensor (of nodes or of edges), SOURCES the rows that a part
    reads (its own first, then its halo), HOT those that most parts read of others, of all parts,
    GRAD and SOURCES_GRAD their gradients, BUCKET what a part gives to the gradient of the rows of
    an ``owner``. TOPOLOGY are a part's in-edges, OUT_EDGES its out-edges, DEGREES how many in-edges
    each row of all parts has. SUM is what an
    aggregation over all or a class of a part's edges leaves, of rows of a tensor, and SUM_GRAD the
    gradient of all. HALO are rows of others that a part reads, HALO_GRAD their gradient, RETURNED
    what readers gave back to a part, by reader; SHARE is what a class of edges gives to the
    gradient of own rows. COLUMNS are the part's share of the columns of all rows of a tensor, of
    its sums or of their gradients. REPLICAS are some ``rows`` of others that a part keeps, of those
    that it reads those first that serve most of its edges; GRAD_REPLICAS are likewise gradients of
    sums, of the rows that read its own, and SUM_REPLICAS the sums of such rows, of which the part
    makes replicas of what comes next. PART_MOMENTS are the moments that a stage made of each part,
    MOMENTS those of all rows, MOMENTS_GRAD their gradient. SAVED is what a stage keeps of a part
    for its backward. ANSWER are those of a part's rows of the output that are asked for.
    """

    ROWS = "rows"
    SOURCES = "sources"
    HOT = "hot"
    GRAD = "grad"
    SOURCES_GRAD = "sources_grad"
    BUCKET = "bucket"
    TOPOLOGY = "topology"
    OUT_EDGES = "out_edges"
    DEGREES = "degrees"
    SUM = "sum"
    SUM_GRAD = "sum_grad"
    HALO = "halo"
    HALO_GRAD = "halo_grad"
    RETURNED = "returned"
    SHARE = "share"
    COLUMNS = "columns"
    REPLICAS = "replicas"
    GRAD_REPLICAS = "grad_replicas"
    SUM_REPLICAS = "sum_replicas"
    PART_MOMENTS = "part_moments"
    MOMENTS = "moments"
    MOMENTS_GRAD = "moments_grad"
    SAVED = "saved"
    ANSWER = "answer"


@dataclass(frozen=True, slots=True)
class Content:
    """``of`` names the tensor (or the moments), ``part`` the part, ``owner`` the part whose rows a
    bucket is of. Rows, gradients and edges of part -1 are those of all parts, one part after the
    other. ``columns`` and ``rows`` are the first and the one after the last (None: all)."""

    what: What
    of: str = ""
    part: int = -1
    owner: int = -1
    columns: tuple[int, int] | None = None
    rows: tuple[int, int] | None = None

    def __str__(self) -> str:
        words = [str(self.what), self.of]
        words += [f"p{self.part}"] if self.part >= 0 else []
        words += [f"q{self.owner}"] if self.owner >= 0 else []
        words += [] if self.rows is None else ["r{}-{}".format(*self.rows)]
        words += [] if self.columns is None else ["c{}-{}".format(*self.columns)]
        return ":".join(words)

    @classmethod
    def parse(cls, text: str) -> Content:
        """Raises PlanError for text that is no content."""
        try:
            what, of, *rest = text.split(":")
            spans: dict[str, tuple[int, int]] = {}
            while rest and rest[-1][:1] in ("c", "r"):
                word = rest.pop()
                first, last = word[1:].split("-")
                spans[word[0]] = int(first), int(last)
            numbers = {word[0]: int(word[1:]) for word in rest}
            part, owner = numbers.get("p", -1), numbers.get("q", -1)
            found = cls(What(what), of, part, owner, spans.get("c"), spans.get("r"))
        except (ValueError, IndexError) as error:
            raise PlanError(f"not what a buffer holds: {text!r}: {error}") from error
        if str(found) != text:
            raise PlanError(
                f"not what a buffer holds: {text!r}",
                hint="WHAT:NAME, then :pPART, :qOWNER, :rFIRST-LAST, :cFIRST-LAST",
            )
        return found

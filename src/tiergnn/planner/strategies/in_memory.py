"""What reading rows in place takes where every rank's rows lie in one memory, behind the caches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tiergnn.planner.strategies.draft import Draft
from tiergnn.schedule.actions import Work

_PLACES = {"peer": "peer", "h2d": "host"}  # by the link that a device would need


def in_memory(draft: Draft, reads: Sequence[Work], rows: int, *, leaving: bool) -> list[Work]:
    """Reads of single rows, ``rows`` different ones, over links: on a CPU they are gathers, which
    its caches answer as they do those of own rows. ``leaving``: backward, over edges that leave.
    """
    if draft.machine.device.kind != "cpu":
        return list(reads)
    degrees = draft.shape.in_degrees if leaving else draft.shape.out_degrees
    return [
        replace(
            read,
            kind="gather",
            span=rows * read.grain,
            place=_PLACES[read.place],
            evenness=degrees.evenness,
        )
        if read.place in _PLACES
        else read
        for read in reads
    ]

"""What reading rows in place takes: of how many rows, how evenly, and from where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tiergnn.planner.strategies.draft import Draft
from tiergnn.schedule.actions import Work

_PLACES = {"peer": "peer", "h2d": "host"}  # by the link that a device would need


def in_memory(draft: Draft, reads: Sequence[Work], rows: int, *, leaving: bool) -> list[Work]:
    """Reads of single rows, ``rows`` different ones, over links: on a CPU, where every rank's rows
    lie in one memory, they are gathers, which its caches answer as they do those of own rows.
    ``leaving``: backward, over edges that leave.
    """
    degrees = draft.shape.in_degrees if leaving else draft.shape.out_degrees
    found = [
        replace(read, span=rows * read.grain, evenness=degrees.evenness)
        if read.place in _PLACES
        else read
        for read in reads
    ]
    if draft.machine.device.kind != "cpu":
        return found
    return [
        replace(read, kind="gather", place=_PLACES[read.place]) if read.place in _PLACES else read
        for read in found
    ]

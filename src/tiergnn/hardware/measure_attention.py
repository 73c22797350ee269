"""Rates of attention: what it takes beside the rows that it gathers.

Legend: E edges, K heads, F columns of a head.
"""

from __future__ import annotations

from functools import partial
from itertools import cycle
from typing import NamedTuple

import torch

from tiergnn.hardware.clock import Call, Clock
from tiergnn.hardware.effort import Effort
from tiergnn.hardware.machine import Curve
from tiergnn.hardware.measure_compute import beyond
from tiergnn.hardware.measure_rows import FAR, FEW, LEAST_FRAC, random_rowptr
from tiergnn.kernels.aggregate import aggregate
from tiergnn.kernels.attention import gat_attention
from tiergnn.kernels.block import Block
from tiergnn.kernels.dropout import step_key

_HEADS = ((1, 16), (8, 8))  # heads and their columns
_TURNS = 3  # rows that take turns
_MOST_FACTOR = 8


class AttentionRates(NamedTuple):
    """By the number of heads, the means of forward and backward."""

    attends: Curve  # edges times heads a second, weighed beside gathering them
    drops: Curve  # likewise, kept or dropped, beside that
    softmaxes: Curve | None  # rows times heads, whatever their edges; None: none to speak of
    reads_factor: float  # how much longer rows from farther away take than they take a sum


def measure_attention(clock: Clock, effort: Effort, cache_bytes: int) -> AttentionRates:
    """Of rows that others came after since they were read last; on rows of few edges, too, by which
    a row is told from its edges."""
    edges, many, device = effort.attend_edges, effort.attend_degree, clock.device
    generator = torch.Generator(device=device).manual_seed(0)
    blocks = {degree: _random_block(edges, degree, generator) for degree in (many, FEW)}
    key = step_key(0, 0, device)

    def case(heads: int, columns: int, degree: int, p: float | None) -> Call:
        block = blocks[degree]
        shape = block.num_src, heads, columns
        each = [torch.ones(shape, device=device) for _ in range(_TURNS)]
        turns = cycle([rows.requires_grad_() for rows in each])
        scores = torch.ones(shape[:2], device=device, requires_grad=True)

        def call() -> None:
            rows = next(turns)
            if p is None:  # gathered alone
                out = aggregate(block, rows.flatten(1)).view_as(rows)
            else:
                out = gat_attention(block, rows, scores, scores, p=p, key=key)
            torch.autograd.grad(out, rows, torch.ones_like(out))

        return clock.of_device(call, _TURNS)

    ways = ((many, None), (many, 0.0), (many, 0.5), (FEW, None), (FEW, 0.0))
    cases = [(*sizes, *way) for sizes in _HEADS for way in ways]
    taken = clock.times({key: partial(case, *key) for key in cases}, "attention")
    attends, drops, softmaxes = [], [], []
    rows, more = edges // many, edges // FEW - edges // many
    for sizes in _HEADS:
        gathered_s, weighed_s, dropped_s, few_gathered_s, few_s = (
            taken[*sizes, *way] for way in ways
        )
        beyond_s = beyond(weighed_s, gathered_s)
        of_row_s = max(0.0, beyond(few_s, few_gathered_s) - beyond_s) / more
        of_row_s = min(of_row_s, beyond_s / 2 / rows)  # edges take time, too
        heads = float(sizes[0])
        attends.append((heads, 2 * edges * heads / (beyond_s - rows * of_row_s)))
        drops.append((heads, 2 * edges * heads / beyond(dropped_s, weighed_s)))
        if of_row_s * more > LEAST_FRAC * few_s:
            softmaxes.append((heads, 2 * heads / of_row_s))
    found = Curve(tuple(softmaxes)) if softmaxes else None
    reads = _reads_factor(clock, effort, cache_bytes)
    return AttentionRates(Curve(tuple(attends)), Curve(tuple(drops)), found, reads)


def _reads_factor(clock: Clock, effort: Effort, cache_bytes: int) -> float:
    """By what a sum and attention take longer, forward, on a table that no cache holds.

    Arithmetic hides some of the way of a row, and stands in the way of asking for more of them.
    """
    edges, degree, device = effort.attend_edges, effort.attend_degree, clock.device
    heads, columns = _HEADS[-1]
    num_rows, row_bytes = edges // degree, heads * columns * 4
    far_rows = min(FAR * cache_bytes, effort.most_bytes // 4) // row_bytes
    if far_rows < 2 * num_rows:
        return 1.0
    generator = torch.Generator(device=device).manual_seed(0)
    rows = torch.ones(far_rows, heads, columns, device=device)
    scores = torch.ones(far_rows, heads, device=device)

    def case(num_src: int, attends: bool) -> Call:
        shape = (edges,)
        col = torch.randint(num_src, shape, generator=generator, device=device, dtype=torch.int32)
        rowptr = random_rowptr(edges, generator, degree)
        block = Block(rowptr=rowptr, col=col, num_src=num_src)
        table, own = rows[:num_src], scores[:num_rows]

        def call() -> None:
            with torch.no_grad():
                if attends:
                    gat_attention(block, table, scores[:num_src], own)
                else:
                    aggregate(block, table.flatten(1))

        return clock.of_device(call)

    cases = [(num_src, attends) for num_src in (num_rows, far_rows) for attends in (False, True)]
    taken = clock.times({key: partial(case, *key) for key in cases}, "reads")
    longer, reference = (taken[far_rows, a] - taken[num_rows, a] for a in (True, False))
    if reference < LEAST_FRAC * taken[num_rows, False]:
        return 1.0
    return min(max(longer / reference, 1 / _MOST_FACTOR), _MOST_FACTOR)


def _random_block(edges: int, degree: int, generator: torch.Generator) -> Block:
    num_rows, device = edges // degree, generator.device
    col = torch.randint(num_rows, (edges,), generator=generator, device=device, dtype=torch.int32)
    return Block(rowptr=random_rowptr(edges, generator, degree), col=col, num_src=num_rows)

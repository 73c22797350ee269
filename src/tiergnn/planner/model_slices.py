"""What slices of a classic model's graph operations hold, by formulas that metering bears out."""

from __future__ import annotations

from tiergnn.workload import Peak, Size, SliceWork


def slice_work(op: str, width: int, size: int) -> SliceWork:
    """Of sums, of means (whose gradients are divided by degrees), of attention and its heads."""
    if not op.startswith("gat"):
        divided = width * size * op.startswith("mean")
        return SliceWork(
            back_whole=Peak((Size(per_row=divided, per_source=width * size),)),
            back_least=Peak((Size(per_row=16.0 * bool(divided), per_source=size),)),
        )
    heads = next(int(word) for word in op.split() if word.isdecimal())

    def back(columns: int, of: int, more: int) -> Peak:
        row, source = 2 * columns + 8 * of + more, columns + of + more
        return Peak((Size(per_row=row * size, per_source=source * size),))

    return SliceWork(
        whole=Peak((Size(per_row=3 * heads * size),)),
        least=Peak((Size(per_row=4 * size, per_source=size),)),
        back_whole=back(width, heads, 0),
        back_least=back(width // heads, 1, 1),
    )

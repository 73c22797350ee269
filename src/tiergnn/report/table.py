"""Text tables that survive a pipe: aligned columns, no colours, no cutting at a screen's width."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns two blanks apart; a column whose cells are all numbers stands right."""
    cells = [[_text(cell) for cell in row] for row in rows]
    numeric = [all(_is_number(row[i]) for row in cells) for i in range(len(header))]
    widths = [max([len(name), *(len(row[i]) for row in cells)]) for i, name in enumerate(header)]
    lines = [list(header), ["-" * width for width in widths], *cells]
    return "\n".join(_line(line, widths, numeric) for line in lines)


def pairs(rows: Iterable[tuple[str, object]]) -> str:
    """``name   value`` lines, names padded to the longest."""
    known = [(name, _text(value)) for name, value in rows]
    width = max((len(name) for name, _ in known), default=0)
    return "\n".join(f"{name:<{width}}  {value}".rstrip() for name, value in known)


def _text(cell: object) -> str:
    if cell is None:
        return "n/a"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int):
        return f"{cell:,}"
    if isinstance(cell, float):
        return "n/a" if cell != cell else f"{cell:.4f}"
    return str(cell)


def _is_number(text: str) -> bool:
    return text == "n/a" or text[:1].isdigit() or (text[:1] == "-" and text[1:2].isdigit())


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    placed = (
        cell.rjust(width) if r else cell.ljust(width)
        for cell, width, r in zip(cells, widths, right, strict=True)
    )
    return "  ".join(placed).rstrip()

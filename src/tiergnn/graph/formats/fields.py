"""Lines of text cut into fields, and fields read as numbers or names: bytes in, arrays out.

Legend: n rows (lines that hold data), k columns wanted.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numba
import numpy as np

from tiergnn.errors import GraphError

_TOO_FEW, _RAGGED, _QUOTE = 1, 2, 3
_NOT_WHOLE, _OVERFLOW = 1, 2
_NUMBER, _HARD, _NOT_NUMBER = 0, 1, 2
_TENS = np.array([10.0**e for e in range(23)])  # exact in float64


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    """n names: the UTF-8 bytes ``bytes[starts[i]:ends[i]]``."""

    bytes: np.ndarray  # uint8
    starts: np.ndarray
    ends: np.ndarray

    @property
    def size(self) -> int:
        return self.starts.size

    def __getitem__(self, i: int) -> str:
        """One name, for messages."""
        return self.bytes[self.starts[i] : self.ends[i]].tobytes().decode(errors="replace")

    def slice(self, start: int, end: int) -> Text:
        return Text(self.bytes, self.starts[start:end], self.ends[start:end])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fields:
    """k columns of n rows of a block of whole lines. ``data`` is also the place of the names."""

    path: Path
    data: np.ndarray  # uint8
    starts: np.ndarray  # int32 [k, n]
    ends: np.ndarray  # int32 [k, n]
    line: np.ndarray  # int64 [n], from 1
    first_line: int  # of data

    @property
    def num_rows(self) -> int:
        return self.line.size

    def place(self, row: int) -> str:
        return f"{self.path}, line {self.line[row]}"

    def positions(self) -> np.ndarray:
        return self.line

    def text(self, column: int) -> Text:
        return Text(self.data, self.starts[column], self.ends[column])

    def names(self, column: int, *, or_empty: bool = False) -> Text:
        """Fields, empty ones too, that are UTF-8 for certain. Raises GraphError where they are not.

        ``or_empty`` is for tables that tell missing fields from empty ones.
        """
        data = self.data.tobytes()
        try:
            data.decode()
        except UnicodeDecodeError as error:
            line = self.first_line + data.count(b"\n", 0, error.start)
            raise GraphError(
                f"byte 0x{data[error.start]:02x} is not UTF-8",
                culprit=f"{self.path}, line {line}",
                hint=f"iconv -f LATIN1 -t UTF-8 {self.path.name}, if it is Latin-1",
            ) from None
        return self.text(column)

    def ints(self, column: int, what: str, hint: str | None = None) -> np.ndarray:
        """int64 [n]. Raises GraphError at the first field that is not a whole number."""
        out = np.empty(self.num_rows, np.int64)
        row, fault = _ints(self.data, self.starts[column], self.ends[column], out)
        if row >= 0:
            field = self.text(column)[row]
            problem = "does not fit 64 bits" if fault == _OVERFLOW else "is not a whole number"
            raise GraphError(f"{what} {field!r} {problem}", culprit=self.place(row), hint=hint)
        return out

    def floats(self, column: int, what: str, *, or_nan: bool = False) -> np.ndarray:
        """float64 [n], correctly rounded; NaN for an empty field when ``or_nan``.

        Raises GraphError at the first that is no number.
        """
        out = np.empty(self.num_rows)
        kind = np.empty(self.num_rows, np.uint8)
        starts, ends = self.starts[column], self.ends[column]
        _floats(self.data, starts, ends, out, kind)
        if or_nan:
            out[starts == ends] = np.nan
            kind[starts == ends] = _NUMBER
        bad = np.flatnonzero(kind == _NOT_NUMBER)
        if bad.size:
            row = int(bad[0])
            field = self.text(column)[row]
            raise GraphError(
                f"{what} {field!r} is not a number" if field else f"{what} is empty",
                culprit=self.place(row),
            )
        hard = np.flatnonzero(kind == _HARD)
        if hard.size:
            out[hard] = _hard_floats(self.data, starts[hard], ends[hard])
        return out


def split(
    path: Path,
    data: np.ndarray,
    first_line: int,
    *,
    separator: str | None,
    columns: tuple[int, ...],
    comments: str = "",
    exactly: int = 0,
    text: bool = True,
) -> Fields:
    """Cut a block of whole lines, the last one ended too, at ``separator`` (None: blanks).

    columns: those wanted, ascending. exactly: the number of fields a row must have (0: enough for
    ``columns``). Blank lines and lines that begin with one of ``comments`` are passed over. With a
    separator, fields may be in double quotes. Changes ``data`` where quotes are doubled.
    Raises GraphError naming the line.
    """
    num_lines = _count_lines(data)
    starts = np.empty((len(columns), num_lines), np.int32)
    ends = np.empty_like(starts)
    line = np.empty(num_lines, np.int64)
    num_rows, fault, at_line, at, found = _split(
        data,
        0 if separator is None else ord(separator),
        np.array(columns, np.int64),
        np.frombuffer(comments.encode(), np.uint8),
        exactly,
        first_line,
        starts,
        ends,
        line,
    )
    if fault:
        end = at + int(np.argmax(data[at:] == ord("\n")))
        content = data[at : min(end, at + 80)].tobytes().decode(errors="replace").strip()
        needs = exactly or (max(columns, default=0) + 1)
        if fault == _QUOTE:
            problem = "a quote is not closed on its line, or text follows it"
            hint = "quotes around the whole field, those inside it doubled"
        else:
            problem = f"wanted {'' if exactly else 'at least '}{needs} columns, had {found}"
            hint = "check the delimiter, or mend or remove the line"
        raise GraphError(
            f"{problem}: {content!r}",
            culprit=f"{path}, line {at_line}",
            hint=hint,
        )
    return Fields(
        path=path,
        data=data,
        starts=starts[:, :num_rows],
        ends=ends[:, :num_rows],
        line=line[:num_rows],
        first_line=first_line,
    )


def _hard_floats(data: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Numbers of more digits than the quick way rounds rightly, through NumPy's own reader."""
    width = int((ends - starts).max())
    fields = np.zeros((starts.size, width), np.uint8)
    _gather(data, starts, ends, fields)
    return fields.reshape(-1).view(f"S{width}").astype(np.float64)


@numba.njit(cache=True, nogil=True)
def _count_lines(data):
    count = 0
    for i in range(data.size):
        count += data[i] == 10
    return count


@numba.njit(cache=True, nogil=True)
def _split(data, separator, columns, comments, exactly, first_line, starts, ends, line):
    """(rows, fault, line of the fault, its first byte, fields found there)."""
    tab, end_line, carriage, blank, quote = 9, 10, 13, 32, 34
    row, number, i = 0, first_line - 1, 0
    while i < data.size:
        number += 1
        begin = i
        while data[i] == blank or data[i] == carriage or (data[i] == tab and separator != tab):
            i += 1
        skip = data[i] == end_line
        for c in comments:
            skip = skip or data[i] == c
        if skip:
            while data[i] != end_line:
                i += 1
            i += 1
            continue
        field, wanted = 0, 0
        while True:
            while data[i] == blank or data[i] == carriage or (data[i] == tab and separator != tab):
                i += 1
            if separator == 0 and data[i] == end_line:
                break
            start = i
            if separator != 0 and data[i] == quote:
                i += 1
                start = i
                end = i
                while True:
                    if data[i] == end_line:
                        return row, _QUOTE, number, begin, 0
                    if data[i] == quote:
                        if data[i + 1] != quote:
                            break
                        i += 1
                    data[end] = data[i]
                    end += 1
                    i += 1
                i += 1
                while (
                    data[i] == blank or data[i] == carriage or (data[i] == tab and separator != tab)
                ):
                    i += 1
                if data[i] != separator and data[i] != end_line:
                    return row, _QUOTE, number, begin, 0
            elif separator == 0:
                while data[i] > blank or (
                    data[i] != blank
                    and data[i] != tab
                    and data[i] != carriage
                    and data[i] != end_line
                ):
                    i += 1
                end = i
            else:
                while data[i] != separator and data[i] != end_line:
                    i += 1
                end = i
                while end > start and (
                    data[end - 1] == blank or data[end - 1] == carriage or data[end - 1] == tab
                ):
                    end -= 1
            if wanted < columns.size and columns[wanted] == field:
                starts[wanted, row] = start
                ends[wanted, row] = end
                wanted += 1
            field += 1
            if separator != 0:
                if data[i] == end_line:
                    break
                i += 1
        if wanted < columns.size:
            return row, _TOO_FEW, number, begin, field
        if exactly != 0 and field != exactly:
            return row, _RAGGED, number, begin, field
        line[row] = number
        row += 1
        i += 1
    return row, 0, 0, 0, 0


@numba.njit(cache=True, nogil=True)
def _ints(data, starts, ends, out):
    """(row, fault) of the first field that is not a whole number of 64 bits; (-1, 0) if none."""
    for i in range(out.size):
        a, b = starts[i], ends[i]
        negative = a < b and data[a] == 45
        top = np.uint64(2**63 - 1) + np.uint64(negative)
        if negative or (a < b and data[a] == 43):
            a += 1
        if a == b:
            return i, _NOT_WHOLE
        value = np.uint64(0)
        over = False
        for k in range(a, b):
            digit = np.uint64(data[k]) - np.uint64(48)
            if digit > np.uint64(9):
                return i, _NOT_WHOLE
            if k - a >= 18 and value > (top - digit) // np.uint64(10):
                over = True
            value = value * np.uint64(10) + digit
        if over:
            return i, _OVERFLOW
        out[i] = -np.int64(value) if negative else np.int64(value)
    return -1, 0


@numba.njit(cache=True, nogil=True)
def _floats(data, starts, ends, out, kind):
    """Exact where the digits fit 53 bits and the power of ten is exact: one rounding in all."""
    for i in range(out.size):
        a, b = starts[i], ends[i]
        kind[i] = _NOT_NUMBER
        negative = a < b and data[a] == 45
        if negative or (a < b and data[a] == 43):
            a += 1
        value, digits, seen, exponent = np.uint64(0), 0, 0, 0
        point = False
        k = a
        while k < b:
            digit = np.uint64(data[k]) - np.uint64(48)
            if digit <= np.uint64(9):
                seen += 1
                if digits < 19:
                    value = value * np.uint64(10) + digit
                    digits += value != 0
                    exponent -= point
                else:
                    digits += 1
                    exponent += not point
            elif data[k] == 46 and not point:
                point = True
            else:
                break
            k += 1
        if seen == 0:
            if _is_word(data, a, b, _INF) or _is_word(data, a, b, _INFINITY):
                kind[i] = _NUMBER
                out[i] = -np.inf if negative else np.inf
            elif _is_word(data, a, b, _NAN):
                kind[i] = _NUMBER
                out[i] = np.nan
            continue
        if k < b:
            if data[k] != 101 and data[k] != 69:
                continue
            k += 1
            below = k < b and data[k] == 45
            if below or (k < b and data[k] == 43):
                k += 1
            power, first = 0, k
            while k < b and 48 <= data[k] <= 57:
                power = min(power * 10 + (np.int64(data[k]) - 48), 100000)
                k += 1
            if k < b or k == first:
                continue
            exponent += -power if below else power
        if digits <= 19 and value <= np.uint64(2**53) and -22 <= exponent <= 22:
            kind[i] = _NUMBER
            number = np.float64(value)
            number = number / _TENS[-exponent] if exponent < 0 else number * _TENS[exponent]
            out[i] = -number if negative else number
        else:
            kind[i] = _HARD


_INF = np.frombuffer(b"inf", np.uint8)
_INFINITY = np.frombuffer(b"infinity", np.uint8)
_NAN = np.frombuffer(b"nan", np.uint8)


@numba.njit(cache=True, nogil=True)
def _is_word(data, start, end, word):
    same = end - start == word.size
    k = 0
    while same and k < word.size:
        same = (data[start + k] | 32) == word[k]
        k += 1
    return same


@numba.njit(cache=True, nogil=True)
def _gather(data, starts, ends, out):
    for i in range(starts.size):
        for k in range(ends[i] - starts[i]):
            out[i, k] = data[starts[i] + k]

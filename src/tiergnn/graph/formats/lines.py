"""Text files, plain or gzipped, read as blocks of whole lines."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from tiergnn.errors import GraphError
from tiergnn.graph.staging import store_errors

LONGEST_LINE = 2**26
_GZIP = b"\x1f\x8b"
_OTHERS = {
    b"BZh": ("bzip2", "bunzip2"),
    b"\xfd7zXZ\x00": ("xz", "unxz"),
    b"\x28\xb5\x2f\xfd": ("zstd", "unzstd"),
    b"PK\x03\x04": ("zip", "unzip"),
}
_WIDE = (b"\xff\xfe", b"\xfe\xff")
_MARK = b"\xef\xbb\xbf"  # UTF-8's byte order mark


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Block:
    """Whole lines, the last one ended too. The next block starts at byte ``end``, ``end_line``."""

    data: np.ndarray  # uint8, writable
    first_line: int
    end: int
    end_line: int
    done_bytes: int  # of the file as it lies on the disk


class LineFile:
    """One text file. Everything raises GraphError where it is cut short or no text, StoreError."""

    def __init__(self, path: Path):
        self.path = path
        with store_errors("read", path), open(path, "rb") as file:
            head = file.read(8)
            self.total_bytes = path.stat().st_size
        self._is_gzip = head.startswith(_GZIP)
        for magic, (kind, command) in _OTHERS.items():
            if head.startswith(magic):
                raise GraphError(
                    f"the file is compressed by {kind}; plain and gzipped text are read",
                    culprit=str(path),
                    hint=f"{command} {path.name}",
                )
        if head.startswith(_WIDE):
            raise GraphError(
                "the text is UTF-16, wanted UTF-8",
                culprit=str(path),
                hint=f"iconv -f UTF-16 -t UTF-8 {path.name}",
            )
        with self._open() as (text, _):
            self.mark_bytes = len(_MARK) if text.read(len(_MARK)) == _MARK else 0

    def head(self, num_bytes: int = 2**16) -> bytes:
        """Whole lines from the beginning: all that fit ``num_bytes``, at least one."""
        for block in self.blocks(num_bytes):
            return block.data.tobytes()
        return b""

    def begin(self, comments: bytes) -> tuple[bytes, int, int]:
        """The text from the first line on that is neither blank nor begins with one of
        ``comments``, as far as ``head`` goes; the byte where that line begins, and its number."""
        num_bytes = 2**16
        while True:
            head = self.head(num_bytes)
            start, line = 0, 1
            for text in head.split(b"\n"):
                text = text.strip()
                if text and text[0] not in comments:
                    break
                start = head.index(b"\n", start) + 1 if b"\n" in head[start:] else len(head)
                line += 1
            if start < len(head) or len(head) < num_bytes // 2 or num_bytes >= LONGEST_LINE:
                return head[start:], start + self.mark_bytes, line
            num_bytes *= 16

    def blocks(
        self, block_bytes: int, start: int = 0, first_line: int = 1, ends: bytes = b"\n"
    ) -> Iterator[Block]:
        """Blocks of about ``block_bytes`` from byte ``start``, the begin of line ``first_line``.

        ends: the bytes after which a block may end: those of a blank, too, cut lines between words.
        """
        with self._open() as (file, raw):
            file.seek(start)
            rest, line, end = b"", first_line, start
            while True:
                room = block_bytes + len(rest)
                data = np.empty(len(rest) + room + 1, np.uint8)
                view = data.data
                view[: len(rest)] = rest
                size = len(rest) + _fill(file, view[len(rest) : -1])
                is_last = size < len(rest) + room
                if size == 0:
                    return
                end += size - len(rest)
                cut = size if is_last else _after_last(data[:size], ends)
                rest = view[cut:size].tobytes()
                if cut == 0:
                    if len(rest) > LONGEST_LINE:
                        raise GraphError(
                            f"the line is longer than {LONGEST_LINE} bytes",
                            culprit=f"{self.path}, line {line}",
                            hint="text with one edge, or one row, a line",
                        )
                    continue
                if is_last and data[size - 1] != 10:
                    data[size] = 10
                    cut += 1
                body = data[:cut]
                begin = self.mark_bytes if line == 1 and start == 0 else 0
                lines = int(np.count_nonzero(body == 10))
                yield Block(
                    data=body[begin:],
                    first_line=line,
                    end=end - len(rest),
                    end_line=line + lines,
                    done_bytes=raw.tell(),
                )
                line += lines
                if is_last:
                    return

    @contextmanager
    def _open(self) -> Iterator[tuple[BinaryIO, BinaryIO]]:
        """The text as bytes, and the file beneath it, whose position tells the progress."""
        with store_errors("read", self.path), open(self.path, "rb", buffering=0) as raw:
            if not self._is_gzip:
                yield raw, raw
                return
            try:
                with gzip.GzipFile(fileobj=raw) as file:
                    yield file, raw  # type: ignore[misc]
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                cut = isinstance(error, EOFError)
                raise GraphError(
                    "the gzipped file is " + ("cut short" if cut else f"damaged ({error})"),
                    culprit=str(self.path),
                    hint="download or copy it again; `gzip -t` checks it",
                ) from error


def _fill(file: BinaryIO, view: memoryview) -> int:
    """Read until ``view`` is full or the file ends; the bytes read."""
    size = 0
    while size < len(view):
        count = file.readinto(view[size:])  # type: ignore[attr-defined]
        if not count:
            break
        size += count
    return size


def _after_last(data: np.ndarray, ends: bytes) -> int:
    """The position after the last of the bytes ``ends``; 0 when there is none."""
    step, wanted = 2**16, np.frombuffer(ends, np.uint8)
    for end in range(data.size, 0, -step):
        start = max(0, end - step)
        found = np.flatnonzero(np.isin(data[start:end], wanted))
        if found.size:
            return start + int(found[-1]) + 1
    return 0

"""Where in the user's code something happened: file, line and the code on it."""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Iterable
from types import FrameType, TracebackType

import torch

_TORCH = os.path.dirname(torch.__file__) + os.sep
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_READY_MODELS = tuple(os.path.join(_OURS, "models", name) for name in ("zoo.py", "stack.py"))
_PYG = f"{os.sep}torch_geometric{os.sep}"


def place_here(last: str) -> str:
    """The innermost line of the user's code on the stack, looking no further than ``last``.

    ``last`` names the function of ours that called the user's model.
    """
    return _choose(_outwards(sys._getframe(1), last))


def place_of_error(error: BaseException, last: str) -> str:
    """The innermost line of the user's code that an error came through."""
    frames = list(_inwards(error.__traceback__))
    starts = [i for i, (frame, _) in enumerate(frames) if frame.f_code.co_name == last]
    return _choose(reversed(frames[starts[-1] + 1 :] if starts else frames))


def _outwards(frame: FrameType | None, last: str) -> Iterable[tuple[FrameType, int]]:
    while frame is not None and not _is_last(frame, last):
        yield frame, frame.f_lineno
        frame = frame.f_back


def _inwards(trace: TracebackType | None) -> Iterable[tuple[FrameType, int]]:
    while trace is not None:
        yield trace.tb_frame, trace.tb_lineno
        trace = trace.tb_next


def _is_last(frame: FrameType, last: str) -> bool:
    return frame.f_code.co_name == last and frame.f_code.co_filename.startswith(_OURS)


def _choose(frames: Iterable[tuple[FrameType, int]]) -> str:
    """The first frame that is neither torch's nor ours; one of PyG's only if there is no other."""
    library = ""
    for frame, line in frames:
        name = frame.f_code.co_filename
        inside = name.startswith((_TORCH, _OURS)) and name not in _READY_MODELS
        if inside or (name.startswith("<") and not linecache.getline(name, line)):
            continue
        text = f"{name}:{line}: {linecache.getline(name, line, frame.f_globals).strip()}"
        if _PYG not in name and not _is_template(frame):
            return text
        library = library or text
    return library


def _is_template(frame: FrameType) -> bool:
    """Whether PyG generated the code: it lives in files of the temporary folder."""
    return frame.f_globals.get("__name__", "").startswith("torch_geometric")

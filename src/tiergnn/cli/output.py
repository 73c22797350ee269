"""What a command prints and how it ends: text for people, JSON and exit codes for scripts."""

from __future__ import annotations

import functools
import inspect
import json
import math
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from tiergnn.errors import Interrupted, RankError, StoreError, TiergnnError

_NO_TORCH = """\
  try: pip install torch
  or:  plan and simulate do without it, from a workload's file (plan --save-workload, where torch
       is) and for a machine that is named: --machine h200, or a file of tiergnn machine --out"""
EXIT_UNEXPECTED = 1
EXIT_INPUT = 2  # also what the parser of the command line uses
EXIT_STORE = 3
EXIT_RANK = 4
EXIT_INTERRUPTED = 130  # 128 and the number of the signal, as shells have it


class Command(TyperCommand):
    """A command whose options may be spelled with underscores, as PyG's examples spell them.

    An empty value is refused: as a path it would be the folder that one is in.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for i, arg in enumerate(args):
            if not arg or (arg.startswith("--") and arg.endswith("=")):
                whose = arg or (args[i - 1] if i and args[i - 1].startswith("-") else "an argument")
                ctx.fail(f"{whose.rstrip('=')} is empty; is a variable of the shell not set?")
        return super().parse_args(ctx, dashed(args))


def dashed(args: list[str]) -> list[str]:
    """``--hidden_channels=8`` -> ``--hidden-channels=8``; values and what follows ``--`` stay."""
    end = args.index("--") if "--" in args else len(args)
    out = list(args)
    for i, arg in enumerate(args[:end]):
        if arg.startswith("--"):
            name, equals, value = arg.partition("=")
            out[i] = name.replace("_", "-") + equals + value
    return out


def register(app: typer.Typer, *commands: Callable[..., None]) -> None:
    """Add functions to ``app`` as commands of their names."""
    for command in commands:
        app.command(cls=Command)(guarded(command))


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """Turn what a command raises into a message on stderr and an exit code."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except TiergnnError as error:
            code = EXIT_STORE if isinstance(error, StoreError) else EXIT_INPUT
            code = EXIT_RANK if isinstance(error, RankError) else code
            _fail(f"{error}{_flags(error.hint or '', command)}", code)
        except Interrupted as stop:
            _fail(str(stop), 128 + stop.signum)
        except KeyboardInterrupt:
            _fail("stopped", EXIT_INTERRUPTED)
        except BrokenPipeError:
            # The reader of a pipe (`| head`) has left; nothing is wrong and nobody is listening.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except (typer.Exit, typer.Abort, typer.BadParameter):
            raise
        except MemoryError as error:
            _fail(
                f"more memory is needed than there is: {error}\n"
                "  try: less of what the options ask for, or a machine with more",
                EXIT_INPUT,
            )
        except OSError as error:
            what = error.strerror or str(error)
            _fail(f"{what}\n  at: {error.filename or 'what a command prints'}", EXIT_STORE)
        except Exception as error:
            if isinstance(error, ImportError) and (error.name or "").split(".")[0] == "torch":
                _fail(
                    f"tiergnn {command.__name__} needs torch here: {error}\n{_NO_TORCH}",
                    EXIT_UNEXPECTED,
                )
            _fail(
                f"unexpected {type(error).__name__}: {error}\n"
                "  try: again with TIERGNN_DEBUG=1, and report what it prints",
                EXIT_UNEXPECTED,
            )

    return run


def _flags(hint: str, command: Callable[..., None]) -> str:
    """The options of ``command`` that a hint names as Python has them: ``num_nodes=7``."""
    parameters = inspect.signature(command).parameters.values()
    options = {p.name for p in parameters if p.default is not p.empty}  # arguments have none
    named = [n.replace("_", "-") for n in re.findall(r"\b(\w+)=", hint) if n in options]
    flags = ", ".join(dict.fromkeys(f"--{name}" for name in named if f"--{name}" not in hint))
    return f"\n  on the command line: {flags}" if flags else ""


def _fail(message: str, code: int) -> None:
    if os.environ.get("TIERGNN_DEBUG", "") not in ("", "0"):
        traceback.print_exc()
    print(message if code >= 128 else f"error: {message}", file=sys.stderr)
    raise typer.Exit(code)


class Output:
    """Where a command writes: with ``--json``, stdout carries one JSON line and nothing else."""

    def __init__(self, *, json: bool):
        self.json = json

    def say(self, text: str = "") -> None:
        """A line for people: stdout, or stderr where stdout is for a program."""
        print(text, file=sys.stderr if self.json else sys.stdout, flush=True)

    def result(self, value: Mapping[str, Any], text: str) -> None:
        """The command's answer: ``value`` on one JSON line, or ``text``."""
        if self.json:
            print(json_line(value), flush=True)
        else:
            print(text, flush=True)


def made_for(path: Path) -> Path:
    """The path of a file to write, whose folders are there now. Raises StoreError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"cannot make its folder: {error.strerror}", culprit=str(path), hint="another folder"
        ) from error
    return path


def json_line(value: Any) -> str:
    """One line of strict JSON in ASCII: NaN and infinities are null, NumPy values plain."""
    return json.dumps(_plain(value), allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # NumPy arrays and scalars
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


JSON = Annotated[bool, typer.Option("--json", help="One JSON object on one line of stdout.")]

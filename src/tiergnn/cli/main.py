"""The ``tiergnn`` command: its subcommands, one file a family."""

from __future__ import annotations

import io
import logging
import os
import sys
from typing import Annotated

import typer

from tiergnn.cli import demo, generate, info, ingest, machine, parts, plans, rates, results, runs
from tiergnn.cli.output import register
from tiergnn.version import __version__

app = typer.Typer(
    name="tiergnn",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
register(
    app,
    machine.doctor,
    rates.machine,
    demo.demo,
    ingest.ingest,
    info.info,
    parts.partition,
    plans.plan,
    plans.simulate,
    runs.train,
    runs.resume,
    results.evaluate,
    results.predict,
    results.report,
)
app.add_typer(generate.app)


def _version(asked: bool) -> None:
    if asked:
        print(f"tiergnn {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Train graph neural networks on all of a graph at every step, with the same bits every time.

    Start with: tiergnn demo

    Exit codes: 0 done, 2 bad input, 3 a file or folder that cannot be used, 4 one of several
    ranks died or hung, 130 stopped by Ctrl-C after a checkpoint, 1 anything else. TIERGNN_DEBUG=1
    adds tracebacks, TIERGNN_LOG=INFO what is chosen on the way.
    """
    level = os.environ.get("TIERGNN_LOG", "WARNING")
    levels = logging.getLevelNamesMapping()
    logging.basicConfig(format="%(message)s", level=levels.get(level.upper(), logging.WARNING))
    if level.upper() not in levels:
        logging.getLogger("tiergnn").warning(
            "TIERGNN_LOG=%s is no level: WARNING holds; known: %s", level, ", ".join(levels)
        )


def main() -> None:
    """The command, from its arguments to its exit code."""
    # Read by OpenMP when torch loads: beside other work on the same cores, threads that spin while
    # they wait make training ten times slower; sleeping costs some microseconds a call.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # Read by torch at its first tensor: large ones come on huge pages (Linux). Most of the time of
    # a CPU epoch goes into page faults and address look-ups without them.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    open_streams()
    _run()


def _run() -> None:
    """The command; of the processes that torchrun started the first runs it, the others serve."""
    if "TORCHELASTIC_RUN_ID" not in os.environ or os.environ.get("WORLD_SIZE", "1") == "1":
        app()
        return
    from tiergnn.training.joined import join
    from tiergnn.transport.running import leave

    joined = join()
    if joined.rank:
        leave(joined.serve())
    try:
        app()
    except SystemExit as end:
        joined.dismiss()
        leave(end.code if isinstance(end.code, int) else bool(end.code))


def open_streams() -> None:
    """Streams that take whatever is printed: closed ones (``>&-``) go nowhere.

    First of all, or the next file that is opened would take their number, and what libraries
    print themselves would end up in it.
    """
    handle = os.open(os.devnull, os.O_RDWR)
    while handle < 3:  # the lowest that is free: stdin, stdout and stderr, where they are closed
        handle = os.dup(handle)
    os.close(handle)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w")
    # A name that the terminal's alphabet does not have is shown escaped.
    if isinstance(sys.stdout, io.TextIOWrapper) and (
        sys.stdout.errors == "strict" or sys.stdout.encoding.lower() != "utf-8"
    ):
        sys.stdout.reconfigure(errors="backslashreplace")

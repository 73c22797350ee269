"""Where a figure comes from: command, commit, machine, versions and date."""

from __future__ import annotations

import datetime
import os
import platform
import re
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from tiergnn.version import __version__

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
DATA = Path(os.environ.get("TIERGNN_DATA", ROOT.parent / "shared" / "data"))


def provenance() -> dict[str, Any]:
    """What every results file starts with. ``dirty`` says that the checkout had changes."""
    return {
        "command": f"python {shlex.join(_from_root(sys.argv))}",
        "commit": _git("rev-parse", "--short", "HEAD"),
        "dirty": bool(_git("status", "--porcelain", "--untracked-files=no", "--", "src")),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": f"{_processor()}, {os.cpu_count()} cores, "
        f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "versions": {
            "python": platform.python_version(),
            "tiergnn": __version__,
            **{name: version(name) for name in ("torch", "numpy", "numba")},
        },
    }


def peak_bytes() -> int:
    """The most memory that this process has had; getrusage would count its parent's at the fork."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


def sentence(record: dict[str, Any]) -> str:
    """The provenance as the line under a table."""
    versions = ", ".join(f"{name} {number}" for name, number in record["versions"].items())
    return (
        f"Measured by `{record['command']}` at commit {record['commit']}"
        f"{' with changes' if record['dirty'] else ''} on {record['date']}; "
        f"{record['machine']}; {versions}."
    )


def _from_root(argv: list[str]) -> list[str]:
    return [os.path.relpath(Path(argv[0]).resolve(), ROOT), *argv[1:]]


def _git(*args: str) -> str:
    done = subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return platform.machine()

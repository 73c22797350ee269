"""The command line in this process, where everything is imported already."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from typer.testing import CliRunner

from tiergnn.cli.main import app


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """stdout, which must be exactly one line of strict JSON."""
        assert self.code == 0, self.err
        assert self.out.count("\n") == 1
        assert self.out.endswith("\n")

        def refuse(name: str) -> None:
            raise AssertionError(f"{name} is not JSON")

        return json.loads(self.out, parse_constant=refuse)


@pytest.fixture
def cli() -> Callable[..., Done]:
    """Runs ``tiergnn ARGS`` and gives its exit code, stdout and stderr."""

    def run(*args: object) -> Done:
        result = CliRunner().invoke(app, [str(arg) for arg in args])
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Done(result.exit_code, result.stdout, result.stderr)

    return run

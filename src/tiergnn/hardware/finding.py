"""What the machine offers, finding by finding, each shortfall with its way out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tiergnn.errors import unknown

STATUSES = ("ok", "warn", "fail")  # ascending: all well; works, but less or slower; does not work
GROUPS = ("software", "cpu", "memory", "limits", "gpu", "disk", "ranks")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fact. ``value`` is for people, ``data`` the same in plain numbers and words."""

    group: str
    name: str
    value: str
    status: str = "ok"
    remedy: str | None = None  # one line: the command or the setting that mends it
    data: tuple[tuple[str, int | float | str | bool | None], ...] = ()

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise unknown("status", self.status, STATUSES)
        if self.group not in GROUPS:
            raise unknown("group", self.group, GROUPS)
        assert self.status == "ok" or self.remedy, f"{self.name} says no way out"

    def to_json(self) -> dict[str, Any]:
        return {
            "group": self.group,
            "name": self.name,
            "value": self.value,
            "status": self.status,
            "remedy": self.remedy,
            **({"data": dict(self.data)} if self.data else {}),
        }


@dataclass(frozen=True, slots=True)
class Report:
    """Findings by group, in the order of GROUPS."""

    findings: tuple[Finding, ...]

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    @property
    def status(self) -> str:
        """The worst status of all; "ok" where there is none."""
        return max((finding.status for finding in self.findings), key=STATUSES.index, default="ok")

    @property
    def shortfalls(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.status != "ok")

    def groups(self) -> dict[str, tuple[Finding, ...]]:
        """Group -> its findings; groups without any are left out."""
        found = {name: tuple(f for f in self.findings if f.group == name) for name in GROUPS}
        return {name: findings for name, findings in found.items() if findings}

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "status": self.status,
            "findings": [finding.to_json() for finding in self.findings],
        }

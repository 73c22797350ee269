"""What a container may use: the limits of this process's control group, versions 1 and 2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupReading:
    """None where nothing limits. ``used_bytes`` leaves out file cache that can be dropped."""

    limit_bytes: int | None = None
    used_bytes: int | None = None
    cpus: float | None = None  # quota, in CPUs


def read_cgroup(
    membership: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> CgroupReading:
    """The tightest memory and CPU limits among this process's group and those above it."""
    groups = {}  # controller -> path of the group; version 2 is the controller ""
    for line in (_text(membership) or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        groups |= dict.fromkeys(controllers.split(","), path)
    memory = _memory_v1(root, groups["memory"]) if "memory" in groups else _memory_v2(root, groups)
    cpus = _cpus_v1(root, groups["cpu"]) if "cpu" in groups else _cpus_v2(root, groups)
    limit_bytes, used_bytes = min(memory, default=(None, None))
    return CgroupReading(
        limit_bytes=limit_bytes, used_bytes=used_bytes, cpus=min(cpus, default=None)
    )


def _memory_v2(root: Path, groups: dict[str, str]) -> list[tuple[int, int]]:
    found = []
    for folder in _upwards(root, groups.get("", "/")):
        limit, used = _number(folder / "memory.max"), _number(folder / "memory.current")
        if limit is not None and used is not None:
            found.append((limit, max(0, used - _cache(folder, "inactive_file"))))
    return found


def _memory_v1(root: Path, group: str) -> list[tuple[int, int]]:
    found = []
    for folder in _upwards(root / "memory", group):
        limit = _number(folder / "memory.limit_in_bytes")
        used = _number(folder / "memory.usage_in_bytes")
        if limit is not None and used is not None and limit < 2**60:  # above: "no limit"
            found.append((limit, max(0, used - _cache(folder, "total_inactive_file"))))
    return found


def _cpus_v2(root: Path, groups: dict[str, str]) -> list[float]:
    found = []
    for folder in _upwards(root, groups.get("", "/")):
        quota, _, period = (_text(folder / "cpu.max") or "max").partition(" ")
        if quota.isdigit() and period.strip().isdigit():
            found.append(int(quota) / int(period))
    return found


def _cpus_v1(root: Path, group: str) -> list[float]:
    found = []
    for folder in _upwards(root / "cpu", group):
        quota = _number(folder / "cpu.cfs_quota_us")
        period = _number(folder / "cpu.cfs_period_us")
        if quota is not None and period and quota > 0:
            found.append(quota / period)
    return found


def _upwards(root: Path, group: str) -> Iterator[Path]:
    """The folder of a group and of those above it. A container may not see its own path: then
    its group is the root."""
    parts = [part for part in group.split("/") if part not in ("", "..")]
    for depth in range(len(parts), -1, -1):
        folder = root.joinpath(*parts[:depth])
        if folder.is_dir():
            yield folder


def _cache(folder: Path, name: str) -> int:
    for line in (_text(folder / "memory.stat") or "").splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.isdigit():
            return int(value)
    return 0


def _number(file: Path) -> int | None:
    text = (_text(file) or "").strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _text(file: Path) -> str | None:
    try:
        return file.read_text()
    except OSError:  # absent, or not for us to read: no limit that we can know
        return None

"""Probe: what this machine offers to tiergnn, for ``tiergnn doctor``."""

from __future__ import annotations

import platform
import resource
from pathlib import Path

from tiergnn.hardware.disk import read_disk
from tiergnn.hardware.finding import GROUPS, Finding, Report
from tiergnn.hardware.readings import (
    read_cpu,
    read_cuda,
    read_limit,
    read_memory,
    read_package,
    read_requirements,
    read_shm,
    read_triton,
)
from tiergnn.hardware.verdicts import (
    OPTIONAL,
    REQUIRED,
    judge_cpu,
    judge_cuda,
    judge_disk,
    judge_files,
    judge_locked,
    judge_memory,
    judge_package,
    judge_shm,
    judge_triton,
    wanted_ranges,
)
from tiergnn.version import __version__


def probe(folder: str | Path = ".") -> Report:
    """Look at everything that tiergnn depends on; nothing is changed and nothing raises.

    folder: where graphs and runs will be; its disk is timed with up to 256 MiB, in under 3 s.
    Blocks for that long, and for the import of torch where torch is built for CUDA.
    """
    cuda = read_cuda()
    has_gpu = bool(cuda.gpus)
    wants = wanted_ranges(read_requirements())
    findings = [
        Finding(group="software", name="tiergnn", value=__version__),
        Finding(
            group="software",
            name="Python",
            value=f"{platform.python_version()} on {platform.system()} {platform.machine()}",
            data=(("version", platform.python_version()),),
        ),
        *(
            judge_package(read_package(name, wants.get(name, "")), has_gpu=has_gpu)
            for name in (*REQUIRED, *OPTIONAL)
        ),
        judge_cpu(read_cpu()),
        judge_memory(read_memory()),
        judge_shm(read_shm()),
        judge_locked(read_limit(resource.RLIMIT_MEMLOCK), has_gpu=has_gpu),
        judge_files(read_limit(resource.RLIMIT_NOFILE)),
        *judge_cuda(cuda),
        judge_triton(read_triton(), cuda),
        *judge_disk(read_disk(folder)),
    ]
    return Report(tuple(sorted(findings, key=lambda finding: GROUPS.index(finding.group))))

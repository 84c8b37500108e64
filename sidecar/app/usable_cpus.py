"""Determines the number of workers."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from sidecar.settings.server import MAX_WORKERS
from sidecar.settings.sidecar_file import Settings

CGROUPS: Final = Path("/sys/fs/cgroup")
OWN_CGROUP: Final = Path("/proc/self/cgroup")


def worker_count(settings: Settings) -> int:
    """The number of processes that serve; 1 for a worker itself."""
    if settings.server.worker:
        return 1
    return min(usable_cpus(), MAX_WORKERS) if settings.server.workers == "auto" else settings.server.workers


def usable_cpus(cgroups: Path = CGROUPS, own: Path = OWN_CGROUP) -> int:
    """The CPUs that this process may use, by its affinity mask and the quotas of its cgroups; at least 1."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min((count, *map(math.ceil, _quotas(cgroups, own)))))


def _quotas(cgroups: Path, own: Path) -> Iterator[float]:
    """Yields the CPU quotas of this process's cgroup and its ancestors (version 2), or that of version 1."""
    text = ""
    with suppress(OSError):
        text = own.read_text("ascii")
    for line in text.splitlines():
        if line.startswith("0::/"):
            path = cgroups / line[4:].removeprefix("../")
            for folder in (path, *path.parents):
                with suppress(OSError, ValueError):
                    quota, period = (folder / "cpu.max").read_text("ascii").split()
                    yield float(quota) / float(period)  # "max" is not a number: there is no quota
                if folder == cgroups:
                    break
    with suppress(OSError, ValueError):
        quota_us = float((cgroups / "cpu" / "cpu.cfs_quota_us").read_text("ascii"))
        if quota_us > 0:
            yield quota_us / float((cgroups / "cpu" / "cpu.cfs_period_us").read_text("ascii"))

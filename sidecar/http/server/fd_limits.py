"""Raises and reports the limit of open file descriptors."""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from typing import Final

STDERR: Final = 2
MOST: Final = 65_536
OWN: Final = 128  # files, the store, idle connections to upstreams, health checks
PER_CALL: Final = 2  # the caller's connection, and one to the upstream


def hold_standard() -> None:
    """Opens closed standard streams on the null device: the next files or sockets would otherwise get their numbers."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def take_all() -> tuple[int, int]:
    """Raises the soft limit to the hard one, but not above MOST; many systems start programs with 1,024. Returns the
    soft limit before and after."""
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if before != resource.RLIM_INFINITY and before < wanted:
        with suppress(ValueError, OSError):  # a system may allow less than it reports; connections are bounded anyway
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return before, resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def enough_for(connections: int) -> int:
    """Returns the number of connections, reduced to the number that the descriptors allow."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return connections if soft == resource.RLIM_INFINITY else min(connections, max(1, (soft - OWN) // PER_CALL))

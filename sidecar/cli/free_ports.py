"""Finds free ports below the ephemeral range, from which outgoing connections take theirs."""

import os
import socket
from typing import Final

LOWEST: Final = 15_000
HIGHEST: Final = 32_000  # the ephemeral range begins at 32,768 on Linux, at 49,152 on other systems

_last = LOWEST + os.getpid() * 7919 % (HIGHEST - LOWEST)  # concurrent processes search in different places


def free_ports(count: int) -> list[int]:
    """Returns ports of 127.0.0.1 that are free and unlikely to be used soon. Raises OSError if there are too few."""
    global _last
    found: list[int] = []
    for _ in range(HIGHEST - LOWEST):
        if len(found) == count:
            return found
        _last = _last + 1 if _last < HIGHEST else LOWEST
        if _is_free(_last):
            found.append(_last)
    raise OSError(f"no {count} ports between {LOWEST} and {HIGHEST} are free")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True

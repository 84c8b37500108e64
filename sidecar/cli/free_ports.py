"""Finds free ports for processes that are started next.

None that the system would give: it gives the same to each connection that leaves, and between our look and the moment
at which the process listens, many leave. Those below are given to nobody who does not ask for one by its number.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from itertools import islice
from typing import Final

LOWEST: Final = 15_000
HIGHEST: Final = 32_000  # connections that leave begin at 32,768 on Linux, at 49,152 elsewhere

_last = LOWEST + os.getpid() * 7919 % (HIGHEST - LOWEST)  # processes that look at the same time look in other places


def free_ports(count: int) -> list[int]:
    """As many ports of 127.0.0.1 that nobody has now, and none soon again. Raises OSError if there are too few."""
    found = list(islice(filter(_is_free, _each_once()), count))
    if len(found) < count:
        raise OSError(f"no {count} ports between {LOWEST} and {HIGHEST} are free")
    return found


def _each_once() -> Iterator[int]:
    global _last
    for _ in range(HIGHEST - LOWEST):
        _last = _last + 1 if _last < HIGHEST else LOWEST
        yield _last


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True

"""Shows the progress of long work on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import click

_EVERY_S = 0.5


def percent_of(size: int) -> Callable[[int], object]:
    """Return a function that takes the number of bytes read so far and shows the percentage on a terminal; no output
    elsewhere.
    """
    last = time.monotonic()

    def tell(read_bytes: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _EVERY_S:
            last = now
            percent = min(100, 100 * read_bytes // max(1, size))
            click.echo(f"\r{percent:3d} % read\r", err=True, nl=False)  # the report overwrites it

    return tell if sys.stderr.isatty() else lambda read_bytes: None

"""Tables and progress: drawn on a terminal, otherwise plain or silent. NO_COLOR is honoured."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Event
from typing import Final, TypeVar

import click

from sidecar.cli.command import CommandFailed
from sidecar.errors import visible

EVERY_S = 0.2
_UNITS: Final = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))

T = TypeVar("T")


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints rows below their head: a drawn table on a terminal, otherwise aligned columns."""
    if sys.stdout.isatty():
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(*head, box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for row in rows:
            table.add_row(*(Text(visible(cell), overflow="fold") for cell in row))
        Console().print(table)
        return
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in [head, *rows]:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def show_repeatedly(find: Callable[[], T], show: Callable[[T], None], every_s: float) -> None:
    """Shows the result on a cleared terminal at an interval, until ^C. Continues while no sidecar answers."""
    with suppress(KeyboardInterrupt):
        while True:
            try:
                found = find()
            except CommandFailed as failed:  # it may be restarting
                click.echo(failed.message, err=True)
            else:
                if sys.stdout.isatty():
                    click.clear()
                show(found)
            sys.stdout.flush()
            Event().wait(every_s)


def watch_options(command: Callable[..., None]) -> Callable[..., None]:
    every = click.option(
        "--every", type=click.FloatRange(0.2, 3600.0), default=2.0, show_default=True, help="Seconds between refreshes."
    )
    return click.option("--watch", is_flag=True, help="Refresh every --every seconds until Ctrl-C.")(every(command))


def span(seconds: float) -> str:
    """Formats a span by its two largest units, such as 3d 4h."""
    left, parts = max(0, int(seconds)), list[str]()
    for unit, size in _UNITS:
        if left >= size:
            parts.append(f"{left // size}{unit}")
            left %= size
    return " ".join(parts[:2]) or "0s"


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Callable[..., None]]:
    """Yields a function that draws a bar on a terminal for the amount done, and for the total if it receives that."""
    if not sys.stderr.isatty():
        yield lambda done, total=None: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,}"), TimeElapsedColumn())
    next_s = time.monotonic() + EVERY_S  # short work draws nothing
    # Without a refreshing thread, because work may be given to other processes, which are forked.
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task(what, total=total)

        def tell(done: int, total: int | None = None) -> None:
            nonlocal next_s
            if time.monotonic() >= next_s:
                next_s = time.monotonic() + EVERY_S
                bar.update(task, completed=done, total=total, refresh=True)

        yield tell

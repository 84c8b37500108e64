"""Tables and progress: drawn on a terminal, plain or silent elsewhere. NO_COLOR is honoured."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import click

from sidecar.errors import visible

EVERY_S = 0.2


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows below their head: a drawn table on a terminal, aligned columns elsewhere."""
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


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Callable[..., None]]:
    """Yield a function that takes how much is done, and draws a bar on a terminal. It may also take the total."""
    if not sys.stderr.isatty():
        yield lambda done, total=None: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,}"), TimeElapsedColumn())
    next_s = time.monotonic() + EVERY_S  # short work draws nothing
    # Without a thread that refreshes: work may be given to other processes, which are forked.
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task(what, total=total)

        def tell(done: int, total: int | None = None) -> None:
            nonlocal next_s
            if time.monotonic() >= next_s:
                next_s = time.monotonic() + EVERY_S
                bar.update(task, completed=done, total=total, refresh=True)

        yield tell

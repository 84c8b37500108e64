"""`sidecar audit gather`: turns evidence collected elsewhere into log files."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from sidecar.audit.gather import gather as gathered
from sidecar.audit.gather import lines_in
from sidecar.cli.audit.log_files import CONFIG_INVALID, NO
from sidecar.errors import ConfigError


@click.command("gather")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.argument("paths", nargs=-1, type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
@click.option("--from-store", is_flag=True, help="The Redis stream of audit.sink or audit.also: redis, and its anchor.")
@click.option(
    "-c", "--config", type=click.Path(dir_okay=False, path_type=Path), default="sidecar.yaml", show_default=True
)
def gather(folder: Path, paths: tuple[Path, ...], from_store: bool, config: Path) -> None:
    """Sort lines of evidence out into FOLDER, a file for each chain, for `audit verify` to read.

    PATHS are what somebody kept of standard output or of an export of logs, each record a line of its own; without one
    (or with -) standard input is read. What is no record is passed over; a line that is there twice is taken once.
    """
    if from_store and paths:
        raise click.UsageError("either --from-store or files")
    try:
        files = _from_store(folder, config) if from_store else gathered(_lines(paths), folder)
    except ConfigError as error:
        click.echo(str(error), err=True)
        sys.exit(CONFIG_INVALID)
    except OSError as error:
        click.echo(f"{error.filename or folder}: {error.strerror or error}", err=True)
        sys.exit(NO)
    for file in files:
        click.echo(str(file))


def _lines(paths: tuple[Path, ...]) -> Iterator[bytes]:
    for path in paths or (Path("-"),):
        if str(path) == "-":
            yield from lines_in(sys.stdin.buffer)
        else:
            with path.open("rb") as file:
                yield from lines_in(file)


def _from_store(folder: Path, config: Path) -> list[Path]:
    from redis.exceptions import RedisError

    from sidecar.audit.sinks import reading_stream
    from sidecar.settings import load_settings

    stream = reading_stream(load_settings(config, os.environ, check_files=False))
    try:
        files = gathered(stream.lines(), folder)
        if files and (head := stream.head()):  # the head of the whole stream, which ends in the last chain
            files[-1].with_name(f"{files[-1].name}.head").write_bytes(head + b"\n")
        return files
    except RedisError as error:
        raise OSError(f"{type(error).__name__}: {error}"[:200]) from None
    finally:
        stream.close()

"""`sidecar audit gather`: sorts evidence collected elsewhere into log files."""

import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import click

from sidecar.audit.gather import gather as gathered, lines_in
from sidecar.cli.command import FOLDER, config_option, settings_in
from sidecar.settings.server import MAX_WORKERS
from sidecar.settings.sidecar_file import Settings


@click.command("gather")
@click.argument("folder", type=FOLDER)
@click.argument("paths", nargs=-1, type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
@click.option("--from-store", is_flag=True, help="The Redis streams of audit.sink: redis, and their anchors.")
@config_option
def gather(folder: Path, paths: tuple[Path, ...], from_store: bool, config: Path) -> None:
    """Write audit records to FOLDER, one file for each chain, for `audit verify` to read.

    PATHS are saved standard output or exported logs, with one record per line. Without PATHS, or with -, standard input
    is read. Other lines are ignored, and repeated records are written once."""
    if from_store and paths:
        raise click.UsageError("give either --from-store or files")
    files = _from_store(folder, config) if from_store else gathered(_lines(paths), folder)
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
    """Writes the content of the streams. Each worker has its own stream, which is written to a folder
    `worker-<number>`."""
    settings = settings_in(config)
    last = MAX_WORKERS if settings.server.workers != 1 else 0
    return [file for worker in range(last + 1) for file in _of_stream(settings, worker, folder)]


def _of_stream(settings: Settings, worker: int, folder: Path) -> list[Path]:
    from redis.exceptions import RedisError

    from sidecar.audit.sinks import reading_stream

    stream = reading_stream(settings, worker)
    try:
        lines = stream.lines()
        first = next(lines, None)
        if first is None and worker:
            return []
        found = lines if first is None else chain((first,), lines)
        files = gathered(found, folder / f"worker-{worker}" if worker else folder)
        if files and (head := stream.head()):  # the head of the whole stream, whose end is that of the last chain
            files[-1].with_name(f"{files[-1].name}.head").write_bytes(head + b"\n")
        return files
    except RedisError as error:
        raise OSError(f"{type(error).__name__}: {error}"[:200]) from None
    finally:
        stream.close()

"""Finds the log, folder or key that a command line names, or the configuration."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from sidecar.audit.digest import AuditKey, load_key
from sidecar.audit.rendering import plain
from sidecar.audit.segments import all_given
from sidecar.errors import ConfigError
from sidecar.settings import Settings, load_settings

EVIDENCE_BROKEN, CONFIG_INVALID, NO = 5, 3, 1  # CONTRACT 3
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
LOG = click.Path(exists=True, path_type=Path)
CONFIG = click.option(
    "-c",
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    default="sidecar.yaml",
    show_default=True,
    help="Names the log where no PATHS do.",
)


def configured(config: Path) -> Settings:
    """Return the settings that name the log. Raises UsageError if neither PATHS nor a log file is given."""
    if not config.exists():
        raise click.UsageError(f"name the log's folder or files, or its configuration with -c: there is no {config}")
    settings = load_settings(config, os.environ, check_files=False)
    if settings.audit.sink != "file":
        raise click.UsageError(f"name the files: {config} sends the log to {settings.audit.sink}, not to a file")
    if not settings.audit_path.exists():
        raise click.UsageError(f"there is no log yet: {settings.audit_path}")
    return settings


def logs(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Return the files; for a folder the parts of its log, oldest first."""
    try:
        return all_given(paths)
    except OSError as error:
        raise click.UsageError(unreadable(error)) from None


@contextmanager
def reading() -> Iterator[None]:
    """Report files that cannot be read or are deleted meanwhile. A closed pipe is left to click."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise
        raise click.ClickException(unreadable(error)) from None


def unreadable(error: OSError) -> str:
    """Return which file cannot be read, and why."""
    return plain(f"{error.filename or 'a file of the log'}: {error.strerror or error}")


def keys(paths: Iterable[Path]) -> list[AuditKey]:
    """Return the audit keys in these files; exits if a file is not a key."""
    try:
        return [load_key(path) for path in paths]
    except ConfigError as error:
        click.echo(str(error), err=True)
        sys.exit(CONFIG_INVALID)

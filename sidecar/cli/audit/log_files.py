"""Finds the log or folder that a command line names, or the configuration."""

from collections.abc import Sequence
from pathlib import Path

import click

from sidecar.audit.rendering import plain
from sidecar.audit.segments import all_given
from sidecar.cli.command import FILE, settings_in
from sidecar.settings import Settings

LOG = click.Path(exists=True, path_type=Path)
CONFIG = click.option(
    "-c", "--config", type=FILE, default="sidecar.yaml", show_default=True, help="Names the log if no PATHS are given."
)


def configured(config: Path) -> Settings:
    """Return the settings that name the log. Raises UsageError if neither PATHS nor a log file is given."""
    if not config.exists():
        raise click.UsageError(f"name the log's folder or files, or its configuration with -c: there is no {config}")
    settings = settings_in(config)
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


def unreadable(error: OSError) -> str:
    return plain(f"{error.filename or 'a file of the log'}: {error.strerror or error}")

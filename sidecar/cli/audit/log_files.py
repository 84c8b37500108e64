"""Finds the log or folder that a command line names, or the configuration."""

from collections.abc import Sequence
from pathlib import Path

import click

from sidecar.audit.rendering import plain
from sidecar.audit.segments import SUFFIX, all_given, logs_in
from sidecar.cli.command import config_option_for, settings_in
from sidecar.settings.sidecar_file import Settings

LOG = click.Path(exists=True, path_type=Path)
CONFIG = config_option_for("Names the log if no PATHS are given.")


def configured(config: Path) -> Settings:
    """Returns the settings that name the log. Raises UsageError if there is no configuration, or it names no log file,
    or there is no log yet."""
    if not config.exists():
        raise click.UsageError(f"name the log's folder or files, or its configuration with -c: there is no {config}")
    settings = settings_in(config)
    if settings.audit.sink != "file":
        raise click.UsageError(f"name the files: {config} sends the log to {settings.audit.sink}, not to a file")
    if not settings.audit_paths:
        raise click.UsageError(f"there is no log yet: {settings.audit_path}")
    return settings


def logs_named(paths: Sequence[Path], config: Path) -> tuple[tuple[Path, ...], ...]:
    """Returns the paths of each log separately: the configured ones, one for each worker, if no `paths` are given;
    those in the folders below, if the given folder itself has none. Raises UsageError."""
    if not paths:
        return tuple((path,) for path in configured(config).audit_paths)
    if len(paths) == 1 and paths[0].is_dir() and not any(paths[0].glob(f"*{SUFFIX}*")):
        try:
            if found := logs_in(paths[0]):
                return tuple((path,) for path in found)
        except OSError as error:
            raise click.UsageError(unreadable(error)) from None
    return (tuple(paths),)


def logs(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Returns the files; for a folder, the parts of its log, oldest first. Raises UsageError."""
    try:
        return all_given(paths)
    except OSError as error:
        raise click.UsageError(unreadable(error)) from None


def unreadable(error: OSError) -> str:
    return plain(f"{error.filename or 'a file of the log'}: {error.strerror or error}")

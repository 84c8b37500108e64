"""Which files does somebody mean who names a log, a folder or a key?"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from sidecar.audit.digest import AuditKey, load_key
from sidecar.audit.parts import all_given
from sidecar.errors import ConfigError

EVIDENCE_BROKEN, CONFIG_INVALID, NO = 5, 3, 1  # CONTRACT 3
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
LOG = click.Path(exists=True, path_type=Path)


def logs(paths: Sequence[Path]) -> tuple[Path, ...]:
    """The files, and of folders the parts of their log, oldest first."""
    try:
        return all_given(paths)
    except OSError as error:
        raise click.UsageError(f"{error.filename}: {error.strerror}") from None


def keys(paths: Iterable[Path]) -> list[AuditKey]:
    """The audit keys in these files; exits where one is none."""
    try:
        return [load_key(path) for path in paths]
    except ConfigError as error:
        click.echo(str(error), err=True)
        sys.exit(CONFIG_INVALID)

"""`sidecar policy`: checks, tests and compares policies before they are used. One file per command."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click


def write_files(files: Mapping[Path, bytes], *, force: bool = False) -> None:
    """Write all of the files or none. Raises UsageError, also if one exists and may not be overwritten."""
    from sidecar.settings.writing import UnwrittenError, write_all

    try:
        write_all(files, force=force)
    except UnwrittenError as unwritten:
        raise click.UsageError(str(unwritten)) from None

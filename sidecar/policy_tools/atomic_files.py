"""Writes several files, all or none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from secrets import token_hex

from sidecar.settings.writing import check_replaceable


class UnwrittenError(Exception):
    """Nothing was written; the text says why."""


def write_all(files: Mapping[Path, bytes], *, force: bool) -> None:
    """Write files, all or none; existing ones are kept unless `force`. Raises UnwrittenError."""
    there = [str(path) for path in files if path.exists()]
    if there and not force:
        more = f" and {len(there) - 3} more" if len(there) > 3 else ""
        raise UnwrittenError(f"{', '.join(there[:3])}{more} would be overwritten: --force does that")
    written: list[tuple[Path, Path]] = []
    try:
        for path, raw in files.items():
            check_replaceable(path)
            path.parent.mkdir(parents=True, exist_ok=True)
            beside = path.with_name(f".{token_hex(8)}")
            written.append((beside, path))
            with beside.open("xb") as file:
                file.write(raw)
        for beside, path in written:
            beside.replace(path)
    except OSError as error:
        raise UnwrittenError(f"cannot be written: {error.strerror}: {error.filename}") from None
    finally:
        for beside, _ in written:
            beside.unlink(missing_ok=True)

"""Where does the evidence go, and when is it safe?"""

from __future__ import annotations

from typing import Annotated, Literal

from sidecar.settings.fields import PathField, Section, not_yet


class AuditSettings(Section):
    """The audit trail."""

    sink: Annotated[
        Literal["file", "stdout", "redis", "otlp"],
        not_yet("the audit sink stdout", "stdout"),
        not_yet("the audit sink redis", "redis"),
        not_yet("the audit sink otlp", "otlp"),
    ] = "file"
    """`file`. `stdout`, `redis` and `otlp` are not supported by this version."""
    durability: Literal["strict", "disk", "best_effort"] = "strict"
    """`strict`: handed to the operating system before the next step; `disk`: on the disk too; `best_effort`: nobody
    waits, and a loss is only counted."""
    path: PathField | None = None
    """The file; by default audit/audit.jsonl in the data folder."""
    key_path: PathField | None = None
    """File with the key of the hashes; by default one is made in the data folder at first start."""

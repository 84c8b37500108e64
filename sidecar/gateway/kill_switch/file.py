"""Reads policies/disabled.yaml.

version: 1
disabled:
  - nhi:planner
  - {principal: "nhi:batch-*", reason: Incident 12, until: 2027-03-31T00:00:00Z}
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator

from sidecar.errors import PolicyError
from sidecar.gateway.kill_switch.entries import (
    MAX_REASON_CHARS,
    NONE_DISABLED,
    Disabled,
    SwitchEntry,
    is_pattern,
    is_reason,
)
from sidecar.settings.field_types import Many, Section
from sidecar.settings.timestamps import Moment
from sidecar.settings.validation_errors import Finding, reject
from sidecar.settings.yaml_document import is_written, read_document

DISABLED_FILE = "disabled.yaml"


def load_disabled(path: Path) -> Disabled:
    """Reads disabled.yaml; a missing file disables no principal. Raises PolicyError with every fault."""
    if not is_written(path, error=PolicyError):
        return NONE_DISABLED
    document = read_document(path, error=PolicyError, inside=path.parent)
    file = document.validate(DisabledFile)
    lines = [document.span_of(("disabled", index)).line for index in range(len(file.disabled))]
    return Disabled(
        tuple(
            SwitchEntry(entry.principal, f"{path}:{line}", entry.reason, entry.until)
            for entry, line in zip(file.disabled, lines, strict=True)
        )
    )


def _pattern(text: str) -> str:
    if not is_pattern(text):
        hint = "write user:<id> or nhi:<id>, where * is any run of characters; roles cannot be disabled"
        reject("this is not a principal", hint=hint)
    return text


def _reason(text: str) -> str:
    if not is_reason(text):
        reject(f"a reason is one line of {MAX_REASON_CHARS} characters at most")
    return text


class DisabledEntry(Section):
    """One disabled principal, or all that match a pattern."""

    principal: Annotated[str, AfterValidator(_pattern)]
    """The principal: `user:<id>` or `nhi:<id>`, where `*` matches any run of characters."""
    reason: Annotated[str, AfterValidator(_reason)] = ""
    """Reason, in one line."""
    until: Moment | None = None
    """Time at which the principal is enabled again (RFC 3339). Default: never."""


def _from_name(value: Any) -> Any:
    return {"principal": value} if isinstance(value, str) else value


class DisabledFile(Section):
    """The principals that the kill switch disables."""

    version: Literal[1]
    """Version of this file format."""
    disabled: Many[
        Annotated[DisabledEntry, BeforeValidator(_from_name, json_schema_input_type=str | DisabledEntry)]
    ] = ()
    """Disabled principals: names, patterns, or entries with a reason and a time."""

    def _faults(self) -> Iterator[Finding]:
        known = set[str]()
        for index, entry in enumerate(self.disabled):
            if entry.principal in known:
                hint = "keep one of them"
                yield Finding(f"{entry.principal} is listed twice", hint=hint, at=("disabled", index))
            known.add(entry.principal)

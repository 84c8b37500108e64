"""The columns of each kind of row."""

from __future__ import annotations

from pathlib import Path

from sidecar.errors import PolicyError
from sidecar.policy.faults import Faults
from sidecar.policy.files import KINDS, read_text
from sidecar.policy.model import COLUMNS, parse_model
from sidecar.vocabulary import PermissionKind


def columns_of(models: Path) -> dict[PermissionKind, tuple[str, ...]]:
    """Return the columns according to the models in a folder. Raises PolicyError with every fault."""
    faults = Faults()
    columns: dict[PermissionKind, tuple[str, ...]] = {PermissionKind.GUARDRAIL: COLUMNS}
    for kind in KINDS:
        path = models / f"{kind.value}.conf"
        text = read_text(path, faults)
        model = parse_model(kind, str(path), text, faults) if text is not None else None
        if model is not None:
            columns[kind] = model.columns
    if faults.errors:
        raise PolicyError(faults.errors)
    return columns

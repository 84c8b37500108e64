"""Checks before the start, and before any file is created, that everything that must be written can be."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from sidecar.errors import Fault, SettingsError, fault_in
from sidecar.gateway.kill_switch import LEDGER_FILE
from sidecar.settings import Settings
from sidecar.settings.load import LoadedSettings
from sidecar.settings.yaml_nodes import Loc


def keeping_faults(loaded: LoadedSettings) -> Iterator[Fault]:
    """The obstacles to writing; warnings for files of another owner, because the server may run as another user."""
    for loc, folder in _folders(loaded.settings):
        # The nearest parent of what a start would create, as far as it is readable.
        ground = next(path for path in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(path))
        if not ground.is_dir():
            hint = "a start makes it: set aside what stands there, or correct the path"
            yield loaded.document.fault(loc, f"{ground} is no folder", "S116", hint)
        elif not os.access(ground, os.W_OK | os.X_OK):
            hint = "give it to the user that serves, mount it writable, or correct the path"
            message = f"{ground} cannot be written by user {os.geteuid()}"
            yield replace(loaded.document.fault(loc, message, "S129", hint), severity="warning")
    named = loaded.settings
    written = named.audit_path, named.evidence_path, named.audit_key_path, named.checkpoint_key_path
    for path in (*written, named.data / LEDGER_FILE):
        if os.path.lexists(path) and not path.is_file():
            yield fault_in(path, "is no file", code="S116", hint="set aside what stands there")


def check_keeping(loaded: LoadedSettings) -> None:
    """Refuse to serve if anything prevents writing. Raises SettingsError."""
    if faults := [replace(fault, severity="error") for fault in keeping_faults(loaded)]:
        raise SettingsError(faults)


def _folders(settings: Settings) -> Iterator[tuple[Loc, Path]]:
    yield ("data",), settings.data
    audit = settings.audit
    if audit.path is not None:
        yield ("audit", "path"), audit.path.parent
    for name, path in (("key_path", audit.key_path), ("checkpoint_key_path", audit.checkpoint_key_path)):
        if path is not None and not os.path.lexists(path):
            yield ("audit", name), path.parent
    for name in ("audit", "evidence", "keys"):  # created by the sidecar, and possibly given to another user since
        if os.path.lexists(settings.data / name):
            yield ("data",), settings.data / name

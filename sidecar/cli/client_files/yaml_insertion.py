"""Inserts upstreams into an existing sidecar.yaml without reformatting it.

Adds lines below `upstreams:` and changes no other byte. The result is parsed again to verify it.

    C108  sidecar.yaml cannot be added to
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sidecar.cli.client_files.folder import upstreams_yaml
from sidecar.errors import SettingsError
from sidecar.settings.yaml_document import Document, read_document


def upstreams_in(path: Path) -> dict[str, Any]:
    data = read_document(path).data
    upstreams = data.get("upstreams") if isinstance(data, dict) else None
    return upstreams if isinstance(upstreams, dict) else {}


def with_upstreams(text: str, path: Path, upstreams: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the text with these upstreams added; none of them may exist yet. Raises SettingsError."""
    document = read_document(path, text=text)
    added = _added(text, document, upstreams)
    before = document.data or {}
    wanted = {**before, "upstreams": {**(before.get("upstreams") or {}), **upstreams}}
    try:
        if read_document(path, text=added).data == wanted:
            return added
    except SettingsError:
        pass
    hint = "write upstreams: as lines below it, without braces"
    return document.refuse([document.fault(("upstreams",), "no upstream can be added here", "C108", hint, key=True)])


def _added(text: str, document: Document, upstreams: Mapping[str, Mapping[str, Any]]) -> str:
    node = document.root.child("upstreams")
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    if node is None or node.key is None:
        return "".join([*lines, "\nupstreams:\n", upstreams_yaml(upstreams)])
    at, indent = node.key.line, "  "  # directly below the key, or before the first entry, indented as it is
    first = next(iter(node.value.values()), None) if isinstance(node.value, dict) else None
    if first is not None and first.key is not None:
        at, indent = first.key.line - 1, " " * (first.key.column - 1)
    return "".join([*lines[:at], upstreams_yaml(upstreams, indent), *lines[at:]])

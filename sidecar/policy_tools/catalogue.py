"""Reads catalogues of existing tools, prompts and resources.

A catalogue is a file that maps servers to the names of their tools, or a list of full object names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sidecar.errors import Fault, SettingsError
from sidecar.policy import grammar
from sidecar.policy.grammar import Wrong
from sidecar.settings.yaml_document import Document, read_document
from sidecar.settings.yaml_nodes import MAX_BYTES

_THINGS = (*grammar.ON_SERVERS, "nhi:")


@dataclass(frozen=True, slots=True)
class KnownCatalogue:
    """The existing objects according to their owners. `servers` are those of which every tool is listed."""

    objects: frozenset[str] = frozenset()
    servers: frozenset[str] = frozenset()


def read_catalogue(path: Path) -> KnownCatalogue:
    """Read a YAML or JSON file: server → its tools' names (or full object names), or a list of full object names.

    Raises SettingsError with every fault.
    """
    document = read_document(path, text=_json_text(path))
    data, faults, found = document.data, list[Fault](), set[str]()
    servers = set[str]()
    if isinstance(data, Mapping):
        for server, names in data.items():
            if not isinstance(names, list):
                hint = "write server: [tool, tool]"
                faults.append(document.fault((str(server),), "must be a list of names", "W302", hint))
                continue
            servers.add(str(server))
            found.add(_object(document, (str(server),), f"nhi:{server}", faults))
            for at, name in enumerate(names):
                found.add(_listed(document, (str(server), at), str(server), name, faults))
    elif isinstance(data, list):
        found |= {_listed(document, (at,), "", name, faults) for at, name in enumerate(data)}
    else:
        faults.append(document.fault((), "must be server: [tool, tool], or a list of objects", "W302"))
    if faults:
        raise SettingsError(faults)
    return KnownCatalogue(frozenset(found), frozenset(servers))


def _json_text(path: Path) -> bytes | None:
    """Return a JSON file with tabs replaced by blanks: YAML forbids tabs as indentation, and JSON strings cannot
    contain any.
    """
    if path.suffix != ".json":
        return None
    with path.open("rb") as file:
        return file.read(MAX_BYTES + 1).replace(b"\t", b" ")


def _listed(document: Document, loc: tuple[str | int, ...], server: str, name: Any, faults: list[Fault]) -> str:
    if isinstance(name, Mapping):  # an entry of tools/list, unchanged
        name = name.get("name")
    if not isinstance(name, str) or not name:
        faults.append(document.fault(loc, "must be a name", "W302"))
        return ""
    return _object(document, loc, name if name.startswith(_THINGS) or not server else f"tool:{server}/{name}", faults)


def _object(document: Document, loc: tuple[str | int, ...], name: str, faults: list[Fault]) -> str:
    try:
        if name.startswith("set:"):
            raise Wrong("W302", "a set is no object", "list what is in it")
        return grammar.element(name)
    except Wrong as wrong:
        faults.append(document.fault(loc, wrong.message, "W302", wrong.hint))
        return name

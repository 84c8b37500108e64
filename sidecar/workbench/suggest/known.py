"""What is known to exist, beside what was used? A suggestion may allow none of it.

Everything that was seen in the log, every exact name of the present policy, what a catalogue lists, and each of these
principals as an NHI that others could call.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sidecar.errors import Fault, SettingsError
from sidecar.policy import PolicySource, grammar
from sidecar.policy.grammar import Wrong
from sidecar.policy.patterns import WILDCARD, glob
from sidecar.settings.documents import Document, read_document
from sidecar.settings.nodes import MAX_BYTES
from sidecar.vocabulary import ANONYMOUS, PermissionKind

_PRINCIPALS = ("user:", "nhi:")
_THINGS = ("tool:", "prompt:", "resource:", "nhi:")
_AFTER_EVERYTHING = chr(0x10FFFF)


@dataclass(frozen=True, slots=True)
class Catalogue:
    """What exists according to its owners. `servers` are those of which every tool is listed."""

    objects: frozenset[str] = frozenset()
    servers: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Known:
    """Every name, in order, so that what fits a pattern is found by its beginning. `listed` as in Catalogue."""

    subjects: tuple[str, ...]
    objects: tuple[str, ...]
    listed: frozenset[str] = frozenset()

    @classmethod
    def of(cls, subjects: Iterable[str], objects: Iterable[str], listed: frozenset[str] = frozenset()) -> Known:
        """Every NHI is an object too: others may call it."""
        principals = frozenset(subjects)
        nhis = {name for name in principals if name.startswith("nhi:")}
        return cls(tuple(sorted(principals)), tuple(sorted({*objects} | nhis)), listed)

    def fitting(self, pattern: str) -> list[str]:
        """The known objects that a rule's object, exact or pattern, means."""
        head = pattern.partition(WILDCARD)[0]
        start = bisect_left(self.objects, head)
        end = bisect_left(self.objects, head + _AFTER_EVERYTHING)
        return [name for name in self.objects[start:end] if glob(name, pattern)]

    def subjects_of(self, kind: PermissionKind) -> list[str]:
        """Who may be asked about under a permission kind (CONTRACT 1.3)."""
        match kind:
            case PermissionKind.NHI_TO_NHI:
                return [name for name in self.subjects if name.startswith("nhi:")]
            case PermissionKind.USER_TO_NHI:
                return [name for name in self.subjects if not name.startswith("nhi:")]
        return list(self.subjects)

    def objects_of(self, kind: PermissionKind) -> Sequence[str]:
        """What a permission kind may be about."""
        if kind is PermissionKind.AGENT_TO_TOOL:
            return self.objects
        return [name for name in self.objects if name.startswith("nhi:")]


def names_in(source: PolicySource) -> tuple[set[str], set[str]]:
    """The exact subjects and objects that a policy names, in rules, roles and sets."""
    subjects = {name for name in source.roles.parents if name.startswith(_PRINCIPALS)}
    objects = {name for name in source.sets.parents if name.startswith(_THINGS)}
    for rule in source.rules:
        if WILDCARD not in rule.subject and (rule.subject.startswith(_PRINCIPALS) or rule.subject == ANONYMOUS):
            subjects.add(rule.subject)
        if WILDCARD not in rule.object and rule.object.startswith(_THINGS):
            objects.add(rule.object)
    return subjects, objects


def read_catalogue(path: Path) -> Catalogue:
    """A YAML or JSON file: server → its tools' names (or full object names), or a list of full object names.

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
    return Catalogue(frozenset(found), frozenset(servers))


def _json_text(path: Path) -> bytes | None:
    """A JSON file with its tabs as blanks: YAML takes none for indentation, and no JSON string holds one."""
    if path.suffix != ".json":
        return None
    with path.open("rb") as file:
        return file.read(MAX_BYTES + 1).replace(b"\t", b" ")


def _listed(document: Document, loc: tuple[str | int, ...], server: str, name: Any, faults: list[Fault]) -> str:
    if isinstance(name, Mapping):  # an entry of tools/list, as it came
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

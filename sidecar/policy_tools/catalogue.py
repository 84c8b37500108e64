"""Collects the names that are known to exist: from a catalogue, a policy, and recorded use."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, Self

from sidecar.errors import Fault, SettingsError
from sidecar.policy import PolicySource, grammar
from sidecar.policy.grammar import Wrong
from sidecar.policy.patterns import WILDCARD, glob
from sidecar.settings.yaml_document import read_document
from sidecar.settings.yaml_nodes import Loc
from sidecar.vocabulary import RuleRef

_THINGS = (*grammar.ON_SERVERS, "nhi:")


def server_of(obj: str) -> str:
    return obj.partition(":")[2].partition("/")[0]


class KnownCatalogue(NamedTuple):
    """The existing objects, as their owner lists them. `servers` are those of which every tool is listed."""

    objects: frozenset[str] = frozenset()
    servers: frozenset[str] = frozenset()


def read_catalogue(path: Path) -> KnownCatalogue:
    """Reads a file with a mapping from servers to lists of names of tools or of full names of objects, or a list of
    full names. Raises SettingsError with every fault."""
    document = read_document(path)
    faults, found, servers = list[Fault](), set[str](), set[str]()

    def refuse(loc: Loc, message: str, hint: str = "") -> None:
        faults.append(document.fault(loc, message, "W302", hint))

    def add(loc: Loc, name: Any, server: str = "") -> None:
        if isinstance(name, Mapping):  # an entry of tools/list, unchanged
            name = name.get("name")
        if not isinstance(name, str) or not name:
            refuse(loc, "must be a name")
        elif name.startswith("set:"):
            refuse(loc, "a set is not an object", "list what is in it")
        else:
            try:
                found.add(grammar.element(f"tool:{server}/{name}" if server and not name.startswith(_THINGS) else name))
            except Wrong as wrong:
                refuse(loc, wrong.message, wrong.hint)

    match document.data:
        case Mapping() as listed:
            for server, names in listed.items():
                if not isinstance(names, list):
                    refuse((str(server),), "must be a list of names", "write server: [tool, tool]")
                    continue
                servers.add(str(server))
                add((str(server),), f"nhi:{server}")
                for at, name in enumerate(names):
                    add((str(server), at), name, str(server))
        case list() as names:
            for at, name in enumerate(names):
                add((at,), name)
        case _:
            refuse((), "must be server: [tool, tool], or a list of objects")
    if faults:
        raise SettingsError(faults)
    return KnownCatalogue(frozenset(found), frozenset(servers))


def exact_names(
    rules: Iterable[Iterable[RuleRef]], sources: Iterable[PolicySource], most: int | None = None
) -> tuple[list[str], list[str]]:
    """Returns the callers and the objects that rules, roles and sets name exactly, at most `most` of each; all if it is
    None."""
    sources = tuple(sources)
    subjects = dict.fromkeys(chain.from_iterable(source.roles.parents for source in sources))
    objects = dict.fromkeys(chain.from_iterable(source.sets.parents for source in sources))
    for rule in chain.from_iterable(rules):
        subjects[rule.subject] = None
        objects[rule.object] = None
    exact = (
        (name for name in names if WILDCARD not in name and not name.startswith(container))
        for names, container in ((subjects, "role:"), (objects, "set:"))
    )
    callers, things = (list(islice(names, most)) for names in exact)
    return callers, things


class Known(NamedTuple):
    """Every known name, sorted, so that the matches of a pattern are found by prefix. `listed` are the `servers` of a
    KnownCatalogue."""

    subjects: tuple[str, ...]
    objects: tuple[str, ...]
    listed: frozenset[str] = frozenset()

    @classmethod
    def of(cls, subjects: Iterable[str], objects: Iterable[str], listed: frozenset[str] = frozenset()) -> Self:
        """Collects the names. Every NHI is also an object, because others may call it."""
        principals = frozenset(subjects)
        nhis = {name for name in principals if name.startswith("nhi:")}
        return cls(tuple(sorted(principals)), tuple(sorted({*objects} | nhis)), listed)

    def fitting(self, pattern: str) -> list[str]:
        """Returns the known objects that a rule's object, exact or pattern, matches."""
        head = pattern.partition(WILDCARD)[0]
        start, end = bisect_left(self.objects, head), bisect_left(self.objects, f"{head}\U0010ffff")
        return [name for name in self.objects[start:end] if glob(name, pattern)]

"""Compares tools with their pinned definitions.

A server may show one description when it is reviewed and another afterwards. A pin is a SHA-256 over the RFC 8785 form
of the members that a model or a client uses, in every spelling, because some clients ignore the case of keys. An absent
member is omitted, so absent and `null` differ. Other members (`icons`, `_meta`) may change.

    setting          without pins of the server                   with pins
    (none)           as `warn`                                    as `require`
    "require"        no tool may be used                          a tool that differs from its pin may not be used
    "warn"           reports differences from the first list      reports differences from the pins
    "off"            nothing                                      nothing
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, Literal, NamedTuple

from sidecar.protocols.canonical import NotCanonicalError, canonical_json

MEMBERS: Final = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")
MEMBER_DIGEST_CHARS: Final = 16  # only shows which members differ; the pin covers the whole
MAX_SIGHTINGS: Final = 100
_FOLDED: Final = {member.casefold(): member for member in MEMBERS}

Mode = Literal["require", "warn", "off"]


class Definition(NamedTuple):
    """One tool's definition in digests: of the whole definition in 64 hex digits ("" if it cannot be pinned), and by
    member."""

    digest: str
    members: Mapping[str, str]


UNPINNABLE: Final = Definition("", {})


def pinned_part(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the pinned members of a list entry, in every spelling."""
    return {key: value for key, value in entry.items() if key.casefold() in _FOLDED}


def digest_of(entry: Mapping[str, Any]) -> str:
    """Returns the digest of a list entry, 64 hex digits; "" if readers may interpret its JSON differently."""
    try:
        return sha256(canonical_json(pinned_part(entry))).hexdigest()
    except NotCanonicalError:
        return ""


def definition_of(entry: Mapping[str, Any]) -> Definition:
    digest = digest_of(entry)
    if not digest:
        return UNPINNABLE
    members = {key: sha256(canonical_json(value)).hexdigest() for key, value in pinned_part(entry).items()}
    return Definition(digest, {key: member[:MEMBER_DIGEST_CHARS] for key, member in members.items()})


@dataclass(frozen=True, slots=True)
class Pin:
    """One tool as it was approved: its definition, when (RFC 3339) and by whom."""

    digest: str
    members: Mapping[str, str]
    definition: Mapping[str, Any] = field(compare=False, repr=False)
    pinned_at: str
    pinned_by: str


def pin_of(entry: Mapping[str, Any], *, at: str, by: str) -> Pin | None:
    """Returns the pin of a list entry; None for one that cannot be pinned."""
    definition = definition_of(entry)
    if not definition.digest:
        return None
    return Pin(definition.digest, definition.members, pinned_part(entry), at, by)


@dataclass(frozen=True, slots=True)
class Pins:
    """Every pin, by server and tool; a server without tools is pinned to an empty list. `source` is the file's
    digest."""

    servers: Mapping[str, Mapping[str, Pin]] = field(default_factory=dict)
    source: str = field(default="", compare=False)

    def mode(self, server: str, setting: Mode | None) -> Mode:
        return setting or ("require" if server in self.servers else "warn")

    def required(self, settings: Mapping[str, Mode | None]) -> Mapping[str, Mapping[str, str]]:
        """Returns, for each server whose tools must match their pins, the digest that each tool must have."""
        return {
            server: {tool: pin.digest for tool, pin in self.servers.get(server, {}).items()}
            for server, setting in settings.items()
            if self.mode(server, setting) == "require"
        }

    def changes(self, old: Pins) -> tuple[list[str], list[str]]:
        """Returns the added or changed pins and the removed pins, as `<server>/<tool>`, and `<server>/` for a
        server."""
        before, now = set(old._digests()), set(self._digests())
        gone = {name for name, _ in before} - {name for name, _ in now}
        return sorted(name for name, _ in now - before), sorted(gone)

    def _digests(self) -> Iterable[tuple[str, str]]:
        for server, pins in self.servers.items():
            yield f"{server}/", ""
            yield from ((f"{server}/{tool}", pin.digest) for tool, pin in pins.items())


NO_PINS: Final = Pins()


Defined = Pin | Definition
"""One side of a comparison."""


class Drift(NamedTuple):
    """A tool that differs from its pin, by digests and `members`. `old` is "" for a new one, `new` is "" for one whose
    definition cannot be pinned."""

    old: str
    new: str
    members: tuple[str, ...]


def drift_between(old: Defined | None, new: Defined) -> Drift | None:
    """Returns how `new` differs; None if it does not. A definition that cannot be pinned always differs."""
    if old is not None and old.digest == new.digest and new.digest:
        return None
    before = {} if old is None else old.members
    return Drift("" if old is None else old.digest, new.digest, differing(before, new.members))


def differing(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the members that differ, in the order of `MEMBERS`; another spelling counts as the member itself."""
    keys = {key for key in (*old, *new) if old.get(key) != new.get(key)}
    members = {_FOLDED.get(key.casefold(), key) for key in keys}
    return tuple(member for member in MEMBERS if member in members)


@dataclass(slots=True)
class Sightings:
    """Withheld definitions in callers' lists, until they are taken: the first MAX_SIGHTINGS, because the server chooses
    the names."""

    _seen: dict[str, Definition] = field(default_factory=dict)

    def add(self, tool: str, entry: Mapping[str, Any]) -> None:
        if len(self._seen) < MAX_SIGHTINGS:
            self._seen[tool] = definition_of(entry)

    def take(self) -> dict[str, Definition]:
        seen, self._seen = self._seen, {}
        return seen

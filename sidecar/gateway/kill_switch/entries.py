"""Decides whether a call touches a disabled principal, tool or server.

A disabled principal matches at any position in the chain and as the target, which is an agent or an MCP server. Tools
are named `tool:<server>/<tool>`; `mcp:<server>` names all that a server offers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from sidecar.errors import Reason, Refusal
from sidecar.policy.patterns import WILDCARD, glob
from sidecar.settings.field_types import PRINCIPAL_ID_PATTERN
from sidecar.vocabulary import Call, Chain

MAX_REASON_CHARS = 500
_PATTERN = re.compile(f"(user|nhi):{PRINCIPAL_ID_PATTERN}")

_OBJECT = re.compile(r"mcp:[a-z0-9-]{1,64}|tool:[a-z0-9-]{1,64}/[A-Za-z0-9_.\-/]{1,128}")


@dataclass(frozen=True, slots=True)
class SwitchEntry:
    """One disabled principal, pattern of principals, tool or server. `source` is `switch`, or a file and line. Times
    are in seconds since the epoch; with `until` None the entry lasts until an operator enables it."""

    principal: str
    source: str
    reason: str = ""
    until: float | None = None
    by: str = ""
    since: float | None = None

    def lasts(self, now_s: float) -> bool:
        """Reports whether the entry is in force."""
        return self.until is None or now_s < self.until


@dataclass(frozen=True, slots=True)
class Disabled:
    """The entries of one source. An empty one is false, so most calls need only a truth test."""

    entries: tuple[SwitchEntry, ...] = ()
    _named: Mapping[str, SwitchEntry] = field(init=False, repr=False, compare=False)
    _patterns: tuple[SwitchEntry, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        named = {entry.principal: entry for entry in self.entries if WILDCARD not in entry.principal}
        object.__setattr__(self, "_named", named)
        object.__setattr__(self, "_patterns", tuple(e for e in self.entries if WILDCARD in e.principal))

    def find(self, name: str, now_s: float) -> SwitchEntry | None:
        """Returns the entry in force for this principal, tool or server, or None."""
        entry = self._named.get(name)
        if entry is not None and entry.lasts(now_s):
            return entry
        return next((e for e in self._patterns if glob(name, e.principal) and e.lasts(now_s)), None)

    def in_force(self, now_s: float) -> tuple[SwitchEntry, ...]:
        """Returns the entries that have not ended."""
        return tuple(entry for entry in self.entries if entry.lasts(now_s))

    def touched_by(self, chain: Chain, call: Call, now_s: float) -> SwitchEntry | None:
        """Returns the entry of the first disabled principal of a call, or None."""
        found = (self.find(name, now_s) for name in _names(chain, call))
        return next((entry for entry in found if entry is not None), None)

    def refuse(self, chain: Chain, call: Call, now_s: float) -> None:
        """Raises Refusal(PRINCIPAL_DISABLED), which does not name the principal."""
        if self.touched_by(chain, call, now_s) is not None:
            raise Refusal(Reason.PRINCIPAL_DISABLED)

    def turns_off(self, call: Call, now_s: float) -> bool:
        """Reports whether the server of a call, or a tool that it uses, is switched off."""
        names = (f"mcp:{call.upstream}", *(question.object for question in call.questions))
        return any(self.find(name, now_s) is not None for name in names)

    def refuse_use(self, call: Call, now_s: float) -> None:
        """Raises Refusal(TOOL_DISABLED)."""
        if self.entries and self.turns_off(call, now_s):
            raise Refusal(Reason.TOOL_DISABLED)


NONE_DISABLED = Disabled()


def is_object(text: str) -> bool:
    """Reports whether the text names one tool, or one MCP server with all that it offers."""
    return _OBJECT.fullmatch(text) is not None


def object_of(server: str, tool: str = "") -> str:
    """Returns the switch's name of a tool, or of a whole server."""
    return f"tool:{server}/{tool}" if tool else f"mcp:{server}"


def is_pattern(text: str) -> bool:
    """Reports whether the text is a pattern for principals of one kind; `*` matches any run of characters."""
    return _PATTERN.fullmatch(text) is not None


def is_reason(text: str) -> bool:
    """Reports whether the text is one printable line."""
    return len(text) <= MAX_REASON_CHARS and text.isprintable()


def _names(chain: Chain, call: Call) -> Iterator[str]:
    """Yields the principals of the chain, the server as a whole, and the other NHIs among the objects."""
    for principal in chain:
        yield principal.name
    yield f"nhi:{call.upstream}"
    yield from (question.object for question in call.questions if question.object.startswith("nhi:"))

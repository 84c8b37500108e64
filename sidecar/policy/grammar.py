"""The grammar of each column of a row.

Each reader takes the text of one field and returns its value, or raises `Wrong`. Names are typed (`user:`, `nhi:`,
`role:`, `tool:` …), so that no caller can have the name of a role, and ASCII, so that no name looks like another.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Literal

from sidecar.policy.faults import meant, shown
from sidecar.policy.patterns import glob
from sidecar.settings.field_types import PRINCIPAL_ID, PRINCIPAL_ID_PATTERN, SLUG
from sidecar.settings.timestamps import seconds_of
from sidecar.settings.uris import normal_object
from sidecar.vocabulary import (
    ACTIONS as ACTIONS,
    ANONYMOUS,
    MCP_TASK_ACTIONS as MCP_TASK_ACTIONS,
    SESSION_ACTIONS as SESSION_ACTIONS,
    USED as USED,
    PermissionKind,
)

NONE = "-"
Per = Literal["subject", "origin", "rule"]

USE = "use"
ONCE, REQUIRED = "once", "required"  # keywords of approvals
STOPPING = frozenset({"tasks/cancel"})  # ends work: a row's limit on `use` does not apply to it
ON_SERVERS = ("tool:", "prompt:", "resource:")  # the objects on a server

_USER, _NHI, _TOOL = PermissionKind.USER_TO_NHI, PermissionKind.NHI_TO_NHI, PermissionKind.AGENT_TO_TOOL
SUBJECTS: Mapping[PermissionKind, tuple[str, ...]] = {
    _USER: ("user", "role", ANONYMOUS),
    _NHI: ("nhi", "role"),
    _TOOL: ("user", "nhi", "role", ANONYMOUS),
    PermissionKind.GUARDRAIL: ("user", "nhi", "role", ANONYMOUS),
}
_THINGS = ("tool", "prompt", "resource", "nhi", "set")
OBJECTS: Mapping[PermissionKind, tuple[str, ...]] = {
    _USER: ("nhi", "set"),
    _NHI: ("nhi", "set"),
    _TOOL: _THINGS,
    PermissionKind.GUARDRAIL: _THINGS,
}
_ID = re.compile(PRINCIPAL_ID)
_ID_PATTERN = re.compile(PRINCIPAL_ID_PATTERN)
_SERVER = re.compile(SLUG)
_SERVER_PATTERN = re.compile(r"[a-z0-9*\-]+")
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.\-/*]{1,128}")
_URI_PATTERN = re.compile(r"[!#-{}~]{1,2048}")
_RULE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/\-]{0,127}")
_DOMAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\-]{0,127}")
_LIMIT = re.compile(r"[1-9][0-9]{0,8}")
_DURATION = re.compile(r"([1-9][0-9]{0,5})([smhd])")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
MIN_WITHIN_S, MAX_APPROVAL_S = 10.0, 7 * 86400.0


class Wrong(Exception):
    """One field is wrong. `offset` and `width` give the position in its text; width 0 means the whole field."""

    def __init__(self, code: str, message: str, hint: str = "", *, offset: int = 0, width: int = 0) -> None:
        super().__init__(message)
        self.code, self.message, self.hint, self.offset, self.width = code, message, hint, offset, width


def subject(text: str, kind: PermissionKind) -> str:
    """Parses `user:…`, `nhi:…` (patterns), `role:…` (exact), `anonymous` or `*`, as far as the kind permits them."""
    _check_ascii(text)
    word, colon, rest = text.partition(":")
    allowed = SUBJECTS[kind]
    if text == "*" or (text == ANONYMOUS and ANONYMOUS in allowed):
        return text
    if not colon or word not in allowed:
        known = ", ".join(name if name == ANONYMOUS else f"{name}:…" for name in allowed)
        raise Wrong("P103", f"{shown(text)} is not a subject here", _kind_meant(text, allowed) or f"write {known} or *")
    _check_name(text, rest, _ID if word == "role" else _ID_PATTERN)
    return text


def object_(text: str, kind: PermissionKind) -> str:
    """Parses `tool:<server>/<tool>` and similar (patterns), `nhi:<name>` (pattern), `set:<name>` (exact) or `*`, as far
    as the kind permits them. Returns the normal form, in which calls are decided."""
    return text if text == "*" else _thing(text, OBJECTS[kind])


def home_of(subject_: str, obj: str) -> PermissionKind | None:
    """Returns the permission kind of a row with this subject and object; None if no kind has such rows."""
    for kind in (_USER, _NHI, _TOOL):
        try:
            subject(subject_, kind)
            object_(obj, kind)
        except Wrong:
            continue
        return kind
    return None


def member(text: str) -> str:
    """Parses a member of a role: `user:…`, `nhi:…` or `role:…`, exactly."""
    return _named(text, ("user", "nhi", "role"))


def role(text: str) -> str:
    return _named(text, ("role",))


def element(text: str) -> str:
    """Parses an element of a set: any exact object, or another set. Returns the normal form."""
    _check_exact(text)
    return _thing(text, _THINGS)


def set_(text: str) -> str:
    return _named(text, ("set",))


def action(text: str) -> str:
    """Parses one action, `use`, or a pattern that matches some action."""
    _check_ascii(text)
    if text != USE and not any(glob(known, text) for known in ACTIONS):
        hint = meant(text, {*ACTIONS, USE}) or "`use` stands for the usual actions"
        raise Wrong("P104", f"action {shown(text)} is unknown", hint)
    return text


def actions(text: str) -> tuple[str, list[Wrong]]:
    """Parses a `|` list. Returns it without duplicates and with `use` expanded, and its faults, which are not
    raised."""
    words: dict[str, None] = {}
    wrong: list[Wrong] = []
    at = 0
    for raw in text.split("|"):
        part = raw.strip()
        try:
            word = action(part)
            words.update(dict.fromkeys(USED if word == USE else (word,)))
        except Wrong as one:
            one.offset += at + len(raw) - len(raw.lstrip())
            one.width = one.width or max(1, len(part))
            wrong.append(one)
        at += len(raw) + 1
    return "|".join(words), wrong


def effect(text: str) -> Literal["allow", "deny"]:
    """Parses exactly `allow` or `deny`: Casbin ignores rows with any other text."""
    if text == "allow":
        return "allow"
    if text == "deny":
        return "deny"
    hint = "a comment needs a line of its own" if "#" in text else meant(text.lower(), ("allow", "deny"))
    raise Wrong("P105", f"{shown(text)} is neither allow nor deny", hint)


def expires_at(text: str) -> float | None:
    """Parses an expiry time into seconds since the epoch; None for `-`. Its year in UTC must be 1 to 9999."""
    try:
        return None if text == NONE else seconds_of(text)
    except ValueError:
        hint = "write 2027-03-31T00:00:00Z, or -"
        raise Wrong("P106", f"{shown(text)} is not an RFC 3339 time with a zone", hint) from None


def domain(text: str) -> str:
    """Parses the namespace of an issuer, or `-`, exactly: patterns here have granted access across tenants."""
    if text == NONE or _DOMAIN.fullmatch(text):
        return text
    raise Wrong(
        "P116", f"{shown(text)} is not a domain", "write the issuer's namespace, or - for principals without one"
    )


def limit(text: str, effect: str) -> int | None:
    """Parses a limit in calls per hour; None for `-`. 0 is refused, because it would act as a deny, and so is any limit
    of a deny row."""
    if text == NONE:
        return None
    if effect == "deny":
        raise Wrong("P107", f"{shown(text)} has no effect on a deny row", "write -")
    if not _LIMIT.fullmatch(text):
        raise Wrong("P107", f"{shown(text)} is not a number from 1 to 999999999", "write -, or a deny row instead of 0")
    return int(text)


def approval_within(text: str) -> float:
    """Parses how long an approver has to answer, into seconds."""
    return _duration(text, MIN_WITHIN_S, "write 15m, from 10s to 7d")


def approval_valid(text: str) -> float | None:
    """Parses how long an approval may be used, into seconds; None for `once`."""
    return None if text == ONCE else _duration(text, 1.0, "write once, or 1h, from 1s to 7d")


def _duration(text: str, at_least_s: float, hint: str) -> float:
    found = _DURATION.fullmatch(text)
    seconds = int(found[1]) * _SECONDS[found[2]] if found else 0.0
    if not at_least_s <= seconds <= MAX_APPROVAL_S:
        raise Wrong("P109", f"{shown(text)} is not a duration here", hint)
    return seconds


def named_actions(actions: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the actions that a rule names one by one; none if the rule is on `use`."""
    return () if set(USED) <= set(actions) else actions


def duration_text(seconds: float) -> str:
    """Returns a duration of whole seconds in the form of rows, such as 15m."""
    word, size = next((word, size) for word, size in reversed(_SECONDS.items()) if seconds % size == 0)
    return f"{seconds / size:g}{word}"


def person(text: str) -> str:
    """Parses the principal who may give an approval."""
    if not text.startswith("user:"):
        raise Wrong("", f"{shown(text)} is not a person", "write user:<id>")
    return member(text)


def rule_id(text: str) -> str:
    if _RULE_ID.fullmatch(text):
        return text
    raise Wrong("P109", f"{shown(text)} is not an id", "up to 128 letters, digits, dots, dashes, underscores, slashes")


def word_of(*known: str) -> Callable[[str], str]:
    def word(text: str) -> str:
        if text in known:
            return text
        raise Wrong("P109", f"{shown(text)} is not one of {', '.join(known)}", meant(text, known))

    return word


def _thing(text: str, allowed: tuple[str, ...]) -> str:
    _check_ascii(text)
    word, colon, rest = text.partition(":")
    if not colon or word not in allowed:
        hint = _kind_meant(text, allowed) or "write " + ", ".join(f"{name}:…" for name in allowed) + " or *"
        raise Wrong("P113", f"{shown(text)} is not an object here", hint)
    if word == "set":
        _check_name(text, rest, _ID)
    elif word == "nhi":
        _check_name(text, rest, _ID_PATTERN)
    else:
        _check_on_server(text, word, rest)
        return normal_object(text)
    return text


def _check_on_server(text: str, word: str, rest: str) -> None:
    server, slash, name = rest.partition("/")
    exact = "*" not in server
    if not (_SERVER if exact else _SERVER_PATTERN).fullmatch(server):
        raise Wrong(
            "P113", f"{shown(text)} does not name a server", f"write {word}:<server>/<name>, the server in lower case"
        )
    if not slash and exact:
        raise Wrong("P113", f"{shown(text)} matches nothing", f"write {word}:{server}/* for everything on it")
    if slash and not (_URI_PATTERN if word == "resource" else _TOOL_NAME).fullmatch(name):
        hint = (
            "a row has one object: use a set for several"
            if "|" in name
            else f"{word} names cannot contain this character"
        )
        raise Wrong("P113", f"{shown(text)} matches no possible {word}", hint)


def _named(text: str, kinds: tuple[str, ...]) -> str:
    _check_ascii(text)
    _check_exact(text)
    word, colon, rest = text.partition(":")
    if not colon or word not in kinds:
        known = ", ".join(f"{name}:…" for name in kinds)
        bare = "write " + " or ".join(f"{name}:{text}" for name in kinds) if not colon else f"write {known}"
        raise Wrong("P303", f"{shown(text)} is not {known}", _kind_meant(text, kinds) or bare)
    _check_name(text, rest, _ID)
    return text


def _kind_meant(text: str, kinds: tuple[str, ...]) -> str:
    word, colon, rest = text.partition(":")
    return meant(text, [f"{kind}:{rest}" for kind in kinds]) if colon and meant(word, kinds) else ""


def _check_name(text: str, rest: str, grammar: re.Pattern[str]) -> None:
    if grammar is _ID:
        _check_exact(text)
    if not grammar.fullmatch(rest):
        hint = "after the colon, 1 to 256 ASCII characters without blanks, quotes, commas and |"
        raise Wrong("P103", f"{shown(text)} is not a name", hint)


def _check_exact(text: str) -> None:
    if "*" in text:
        raise Wrong("P303", f"{shown(text)} contains a wildcard", "roles and sets contain exact names only")


def _check_ascii(text: str) -> None:
    """Raises Wrong for non-ASCII text, which can look like other text, such as a Cyrillic letter among Latin ones."""
    if text.isascii():
        return
    for offset, character in enumerate(text):
        if not character.isascii():
            message = f"U+{ord(character):04X} in {shown(text)} is not plain ASCII"
            raise Wrong("P110", message, "retype this character", offset=offset, width=1)

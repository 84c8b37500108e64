"""Maps the sidecar's names to those of a Casbin policy.

The rows of a Casbin policy are not changed; the values of a request are. Each table maps the sidecar's names, or
patterns with `*`, to the policy's. In a result `*` is the text that the first `*` matched, `*2` that of the second. A
`*` before the first `/` matches no `/`. The first entry that matches applies. A name that matches no entry has no name
in the policy, so no row matches it.

    subjects:  {"user:*": "*", "nhi:planner": "agent1"}          user:alice → alice
    objects:   {"tool:data/*": "/data/*"}                        tool:data/x → /data/x
               {"tool:*/*": {obj: "*", act: "*2"}}               tool:data1/read → data1 and read
    actions:   {"tools/call": "read", "*": "*"}
    domains:   {"*": "*", "-": "default"}                        of principals without a namespace
    roles:     {"role:*": "*"}                                   the roles that tokens grant
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import re2

MAX_NAMES: Final = 8_192  # mapped names that are cached, for each table
_CAPTURE: Final = re.compile(r"\*([1-9]?)")


class ObjectName(NamedTuple):
    """The object, and the action if the object determines it."""

    obj: str
    act: str | None = None


class NameTable:
    """One table. `map` returns None for a name that no entry matches."""

    def __init__(self, entries: Mapping[str, str | ObjectName]) -> None:
        self.exact = frozenset(ours for ours in entries if "*" not in ours)
        self.patterns = tuple(ours for ours in entries if "*" in ours)
        self.is_identity = entries.get("*") == "*"
        self._entries = [(name_pattern(ours), theirs) for ours, theirs in entries.items()]
        self.map = lru_cache(MAX_NAMES)(self._map)

    def meets(self, prefix: str) -> bool:
        """Whether an entry can match a name that begins with `prefix`."""
        heads = [ours.partition("*")[0] for ours in self.patterns]
        exact = any(name.startswith(prefix) for name in self.exact)
        return exact or any(prefix.startswith(head) or head.startswith(prefix) for head in heads)

    def _map(self, name: str) -> ObjectName | None:
        for pattern, theirs in self._entries:
            if (found := pattern.fullmatch(name)) is not None:
                obj, act = theirs if isinstance(theirs, ObjectName) else (theirs, None)
                captures = found.groups()
                return ObjectName(_filled(obj, captures), None if act is None else _filled(act, captures))
        return None

    def text(self, name: str) -> str | None:
        found = self.map(name)
        return None if found is None else found.obj


class NameMap(NamedTuple):
    """The tables of one policy."""

    subjects: NameTable
    objects: NameTable
    actions: NameTable
    domains: NameTable
    roles: NameTable


def name_pattern(text: str) -> re2._Regexp[str]:
    """Returns a pattern for the names of an entry, with a group for each wildcard. Its time is linear in a name,
    because callers choose names."""
    head, slash, rest = text.partition("/")
    runs = (head, "([^/]*)" if slash else "(.*)"), (rest, "(.*)")
    return re2.compile("(?s)" + slash.join(run.join(map(re2.escape, part.split("*"))) for part, run in runs))


def _filled(text: str, captures: Sequence[str]) -> str:
    return _CAPTURE.sub(lambda found: captures[int(found[1] or 1) - 1], text)

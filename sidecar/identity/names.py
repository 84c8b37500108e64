"""Defines the grammar of principals and which names an issuer may give.

Ids are 1-256 printable ASCII characters without blanks, quotes, commas, `|` and `*`, which are punctuation in policy
rules, audit lines and logs. An issuer may only use its own namespace.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from sidecar.settings.field_types import PRINCIPAL_ID
from sidecar.vocabulary import ANONYMOUS

Kind = Literal["user", "nhi"]
KINDS: Mapping[str, Kind] = {"user": "user", "nhi": "nhi"}
_PORTS = {"http": 80, "https": 443}

_ID = re.compile(PRINCIPAL_ID)
_TYPED = re.compile(r"(user|nhi|role):")


def is_id(text: str) -> bool:
    """Whether this is valid after `user:` or `nhi:`."""
    return _ID.fullmatch(text) is not None


def is_typed(subject: str) -> bool:
    """Whether a subject includes a kind, including kinds that never call."""
    return subject == ANONYMOUS or _TYPED.match(subject) is not None


def namespace_of(name: str) -> str:
    """Returns `corp` for `user:corp/alice`; "" if the id has no slash."""
    first, slash, _ = name.partition(":")[2].partition("/")
    return first if slash else ""


@dataclass(frozen=True, slots=True)
class NamingRule:
    """The names that one issuer may give to users and NHIs. `foreign` are the namespaces that only other issuers may
    use."""

    namespace: str = ""
    foreign: frozenset[str] = frozenset()

    def name(self, kind: Kind, bare: str) -> str | None:
        """Returns the full name; None if the grammar or another issuer's namespace forbids it."""
        own = f"{self.namespace}/{bare}" if self.namespace else bare
        if not bare or not is_id(own):
            return None
        name = f"{kind}:{own}"
        return None if namespace_of(name) in self.foreign else name

    def allows(self, name: str) -> bool:
        found = namespace_of(name)
        return found == self.namespace if self.namespace else found not in self.foreign


def parts_of_url(url: str) -> tuple[str, str, int, str]:
    """Returns the parts of a URL that may be compared: scheme, host, port, path. An invalid port is 0, which no origin
    has; all parts of a URL with an invalid host are empty."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "", "", 0, ""
    try:
        port = _PORTS.get(parts.scheme, 0) if parts.port is None else parts.port
    except ValueError:
        port = 0
    return parts.scheme, parts.hostname or "", port, parts.path

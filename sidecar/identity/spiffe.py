"""Maps SPIFFE IDs to NHIs.

    spiffe://acme.example/ns/prod/sa/planner        trust domain, then the workload's path

The grammar is SPIFFE's own (SPIFFE-ID 2), with one spelling for each: no case to fold, no dot segments, no encoding, no
query. An ID becomes an NHI by what the operator wrote, a table of paths or a pattern; one of another trust domain is
nobody's (threats A9).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from sidecar.identity.names import NamingRule

KeyUse = Literal["sig", "jwt-svid"]
"""What the keys of a set are for: any signature, or those of JWT-SVIDs, as a trust bundle says."""

MAX_ID_CHARS: Final = 2048  # SPIFFE-ID 2.3
SCHEME: Final = "spiffe://"
ID: Final = "{id}"
_DOMAIN: Final = r"[a-z0-9._-]{1,255}"
_SEGMENT: Final = r"(?!\.{1,2}(?:/|\Z))[A-Za-z0-9._-]+"
_SPIFFE_ID: Final = re.compile(rf"spiffe://({_DOMAIN})((?:/{_SEGMENT})+)\Z")
_NONE: Final[Mapping[str, str]] = MappingProxyType({})


class SpiffeId(NamedTuple):
    """A workload's."""

    trust_domain: str
    path: str


def parse_spiffe_id(text: str) -> SpiffeId | None:
    """A SPIFFE ID with a path; None for anything else. One without a path is the trust domain's, and no workload's."""
    found = _SPIFFE_ID.match(text) if len(text) <= MAX_ID_CHARS else None
    return None if found is None else SpiffeId(found[1], found[2])


@dataclass(frozen=True, slots=True)
class SpiffeNames:
    """The NHIs of one trust domain. `workloads` are whole names by path, and come first; of what fits `pattern` the
    segment `{id}` is the NHI's id, in `namespace` where the domain has one of its own ("": none, or the issuer's)."""

    trust_domain: str
    pattern: str = ""
    workloads: Mapping[str, str] = field(default_factory=lambda: _NONE)
    namespace: str = ""

    def name(self, spiffe_id: str, naming: NamingRule) -> str | None:
        """`nhi:<name>`, or None where nobody wrote down who that is."""
        found = parse_spiffe_id(spiffe_id)
        if found is None or found.trust_domain != self.trust_domain:
            return None
        if found.path in self.workloads:
            return self.workloads[found.path]
        bare = _id_in(found.path, self.pattern)
        return naming.name("nhi", bare) if bare else None


def trust_domain_of(subject: object) -> str:
    """The trust domain of a SPIFFE ID; "" where it is none."""
    found = parse_spiffe_id(subject) if isinstance(subject, str) else None
    return "" if found is None else found.trust_domain


def _id_in(path: str, pattern: str) -> str:
    ours, theirs = pattern.split("/"), path.split("/")
    if len(ours) != len(theirs) or not all(map(_fits, ours, theirs)):
        return ""
    return theirs[ours.index(ID)]


def _fits(ours: str, theirs: str) -> bool:
    return ours in ("*", ID) or ours == theirs

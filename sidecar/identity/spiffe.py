"""Maps SPIFFE IDs to NHIs.

    spiffe://acme.example/ns/prod/sa/planner        trust domain, then the workload's path

The grammar is SPIFFE's (SPIFFE-ID 2), with one form for each ID: no case folding, no dot segments, no encoding, no
query. The operator maps IDs to NHIs by a table of paths or a pattern; IDs of other trust domains have no NHI.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from sidecar.identity.names import NamingRule

KeyUse = Literal["sig", "jwt-svid"]
"""The purpose of a key set: any signature, or JWT-SVIDs, as declared in a trust bundle."""

MAX_ID_CHARS: Final = 2048  # SPIFFE-ID 2.3
SCHEME: Final = "spiffe://"
ID: Final = "{id}"
_DOMAIN: Final = r"[a-z0-9._-]{1,255}"
_SEGMENT: Final = r"(?!\.{1,2}(?:/|\Z))[A-Za-z0-9._-]+"
_SPIFFE_ID: Final = re.compile(rf"spiffe://({_DOMAIN})((?:/{_SEGMENT})+)\Z")


class SpiffeId(NamedTuple):
    trust_domain: str
    path: str


def parse_spiffe_id(text: str) -> SpiffeId | None:
    """Parses a workload's SPIFFE ID, which has a path; None for any other text."""
    found = _SPIFFE_ID.match(text) if len(text) <= MAX_ID_CHARS else None
    return None if found is None else SpiffeId(found[1], found[2])


@dataclass(frozen=True, slots=True)
class SpiffeNames:
    """The NHIs of one trust domain. `workloads` maps paths to full names and takes precedence. For a path that matches
    `pattern`, in which a segment `*` matches any one, the segment `{id}` is the NHI's id."""

    trust_domain: str
    pattern: str = ""
    workloads: Mapping[str, str] = field(default_factory=dict)

    def name(self, spiffe_id: str, naming: NamingRule) -> str | None:
        """Returns the full name of the NHI; None if no mapping matches."""
        found = parse_spiffe_id(spiffe_id)
        if found is None or found.trust_domain != self.trust_domain:
            return None
        if found.path in self.workloads:
            return self.workloads[found.path]
        bare = _id_in(found.path, self.pattern)
        return naming.name("nhi", bare) if bare else None


def trust_domain_of(subject: object) -> str:
    """Returns the trust domain of a SPIFFE ID; "" if it is not one."""
    found = parse_spiffe_id(subject) if isinstance(subject, str) else None
    return "" if found is None else found.trust_domain


def _id_in(path: str, pattern: str) -> str:
    ours, theirs = pattern.split("/"), path.split("/")
    fits = len(ours) == len(theirs) and all(own in ("*", ID, their) for own, their in zip(ours, theirs, strict=True))
    return theirs[ours.index(ID)] if fits else ""

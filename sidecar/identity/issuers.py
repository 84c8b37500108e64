"""Defines the rules of trusted token issuers.

How a `sub` becomes a principal is defined per issuer, never by the token alone; otherwise a user who can choose a login
name could choose a kind with it:

    kind_rules set       the first rule that matches the claims gives the kind; `sub` is the bare id
    one kind             that kind; `sub` is the bare id
    several kinds        `sub` is typed: `user:alice`, `nhi:planner`

If ids are bare, a `sub` that looks typed is refused; otherwise `alice` and `user:alice` would be one principal.

A peer is another sidecar. Its tokens state only on whose behalf it calls: it has `actors`, the NHIs that it may speak
for. It uses full principal names, as in its own policy (`user:corp/alice`, `role:corp/eng`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from sidecar.identity.names import Kind, NamingRule
from sidecar.identity.spiffe import KeyUse, SpiffeNames
from sidecar.settings.identity import RolesFromSettings

DIRECT = "direct"
DEFAULT_TYP = ("at+jwt", "JWT")
NO_TYP = ""


@dataclass(frozen=True, slots=True)
class KindRule:
    """`kind` applies if `claim` is present and equals `value`, if one is given."""

    kind: Kind
    claim: str
    value: str = ""

    def fits(self, claims: Mapping[str, object]) -> bool:
        found = claims.get(self.claim)
        return found == self.value if self.value else found is not None


@dataclass(frozen=True, slots=True)
class TrustedIssuer:
    """One trusted issuer of access tokens. Exactly one of `jwks_url` and `jwks_path` is set.

    `typ` are the accepted header types, "" for an absent one. `actor_from` is the claim that names the client, looked
    up in `clients` (`nhi:<name>` or `direct`). `must_claim` are claims with a required value. `actors` makes it a peer;
    `relays` are the namespaces of other issuers that a peer without a namespace may use.

    With `spiffe`, `sub` and actors are SPIFFE IDs. `svid` accepts SPIFFE's JWT-SVIDs, with the keys of a trust bundle:
    they need no `iss`, since the ID identifies the trust domain, and no `iat`.
    """

    issuer: str
    jwks_url: str = ""
    jwks_path: Path | None = None
    audiences: tuple[str, ...] = ()
    algorithms: tuple[str, ...] = ("RS256",)
    kinds: tuple[Kind, ...] = ("user",)
    namespace: str = ""
    typ: tuple[str, ...] = DEFAULT_TYP
    actor_from: str = ""
    clients: Mapping[str, str] = field(default_factory=dict)
    roles_from: RolesFromSettings | None = None
    kind_rules: tuple[KindRule, ...] = ()
    must_claim: Mapping[str, str] = field(default_factory=dict)
    actors: frozenset[str] = frozenset()
    relays: frozenset[str] = frozenset()
    spiffe: SpiffeNames | None = None
    svid: bool = False

    @property
    def key_use(self) -> KeyUse:
        return "jwt-svid" if self.svid else "sig"

    @property
    def is_peer(self) -> bool:
        """Whether it is another sidecar that forwards callers it authenticated."""
        return bool(self.actors)

    @property
    def typed_subjects(self) -> bool:
        return self.is_peer or (not self.kind_rules and len(self.kinds) > 1)


def naming_of(issuers: Iterable[TrustedIssuer]) -> Mapping[str, NamingRule]:
    """Returns the names that each issuer may give, by its URL. The checks of `settings/identity.py` are not
    repeated."""
    known = tuple(issuers)
    namespaces = frozenset(issuer.namespace for issuer in known if issuer.namespace)
    return {
        issuer.issuer: NamingRule(issuer.namespace, namespaces - {issuer.namespace} - issuer.relays) for issuer in known
    }


class Preset(NamedTuple):
    """The defaults of one product. `rules` are the `kind_rules` of TrustedIssuer; the others have its names."""

    typ: tuple[str, ...]
    rules: tuple[KindRule, ...] = ()
    actor_from: str = ""
    must_claim: Mapping[str, str] = {}
    svid: bool = False


PRESETS: Mapping[str, Preset] = {
    # One header type for all its tokens; the payload's `typ` distinguishes access (Bearer) from ID, Refresh and Logout
    # tokens. Only the `service_account` client scope adds `client_id` (`clientId` before release 22).
    "keycloak": Preset(
        ("JWT", "at+jwt"),
        (KindRule("nhi", "client_id"), KindRule("nhi", "clientId"), KindRule("user", "sub")),
        "azp",
        {"typ": "Bearer"},
    ),
    # v2.0 tokens. `idtyp` = app marks a token without a user (an optional claim of the app registration); a user's
    # token has `scp`, an ID token has neither. Tokens that match no rule are refused.
    "entra": Preset(("JWT",), (KindRule("nhi", "idtyp", "app"), KindRule("user", "scp")), "azp"),
    # A custom authorization server's tokens have no header type; `uid` is present if there is a user, `cid` in every
    # access token and in no ID token.
    "okta": Preset((NO_TYP, "JWT", "at+jwt"), (KindRule("user", "uid"), KindRule("nhi", "cid")), "cid"),
    # The format of `upstreams.<name>.credential.signed` (upstreams/credentials/signed_tokens.py).
    "sidecar": Preset(("JWT",)),
    # JWT-SVID 2: `typ` is optional; if present it is JWT or JOSE.
    "spiffe": Preset((NO_TYP, "JWT", "JOSE"), svid=True),
}


def with_preset(issuer: TrustedIssuer, preset: str) -> TrustedIssuer:
    """Applies a product's defaults where the settings have no other value. All rules also apply to an issuer of one
    kind: a token of the other kind is refused, not renamed."""
    chosen = PRESETS[preset]
    return replace(
        issuer,
        typ=issuer.typ if issuer.typ != DEFAULT_TYP else chosen.typ,
        kind_rules=issuer.kind_rules or chosen.rules,
        actor_from=issuer.actor_from or (chosen.actor_from if issuer.clients else ""),
        must_claim={**chosen.must_claim, **issuer.must_claim},
        svid=issuer.svid or chosen.svid,
    )

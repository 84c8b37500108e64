"""Defines the rules of trusted token issuers.

How a `sub` becomes a principal is defined per issuer, never by the token alone; otherwise a user who can choose a login
name could choose a kind with it:

    kind_rules set       the first rule that matches the claims gives the kind; `sub` is the bare id
    one kind             that kind; `sub` is the bare id
    several kinds        `sub` is typed: `user:alice`, `nhi:planner`

Where ids are bare, a `sub` that looks typed is refused: otherwise `alice` and `user:alice` would be one principal.

A peer is another sidecar. Its tokens state only on whose behalf it calls: it has `actors`, the NHIs that it may speak
for. It uses full principal names, as its own policy does (`user:corp/alice`, `role:corp/eng`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from sidecar.errors import Fault, SettingsError, fault_in
from sidecar.identity.names import Kind, NamingRule, is_namespace, is_principal, namespace_of
from sidecar.identity.spiffe import KeyUse, SpiffeNames

# Asymmetric only: with a shared secret, every verifier could issue tokens (threats A1).
ALGORITHMS = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"})
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
class RoleClaim:
    """Roles from a claim: `role:<namespace>/<value>` for the token's `sub`. `only` are accepted values, in which `*`
    matches any run of characters; empty accepts all. `claim` is a member's name, or a path with dots
    (`realm_access.roles`)."""

    claim: str
    namespace: str
    only: tuple[str, ...] = ()
    required: bool = False


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
    roles_from: RoleClaim | None = None
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


def check_issuers(issuers: Iterable[TrustedIssuer], file: str = "identity.issuers") -> Mapping[str, NamingRule]:
    """Issuer URL → the names that it may give. Raises SettingsError with every fault."""
    known = tuple(issuers)
    faults = [fault for issuer in known for fault in _faults_of(issuer, file)]
    faults += _faults_between(known, file)
    if faults:
        raise SettingsError(faults)
    namespaces = frozenset(issuer.namespace for issuer in known if issuer.namespace)
    return {
        issuer.issuer: NamingRule(issuer.namespace, namespaces - {issuer.namespace} - issuer.relays) for issuer in known
    }


class Preset(NamedTuple):
    """The defaults of one product. `typ` and `rules` as for TrustedIssuer."""

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
    """Apply a product's defaults where the operator has set nothing else. All rules apply to an issuer of one kind too:
    a token of the other kind is refused, not renamed."""
    chosen = PRESETS[preset]
    return replace(
        issuer,
        typ=issuer.typ if issuer.typ != DEFAULT_TYP else chosen.typ,
        kind_rules=issuer.kind_rules or chosen.rules,
        actor_from=issuer.actor_from or (chosen.actor_from if issuer.clients else ""),
        must_claim={**chosen.must_claim, **issuer.must_claim},
        svid=issuer.svid or chosen.svid,
    )


def _faults_of(issuer: TrustedIssuer, file: str) -> list[Fault]:
    name = issuer.issuer
    checks = (
        (not name, "an issuer has no name"),
        (bool(issuer.jwks_url) == (issuer.jwks_path is not None), "exactly one of jwks_url and jwks_path is needed"),
        (not issuer.algorithms or not set(issuer.algorithms) <= ALGORITHMS, "algorithms must be asymmetric ones"),
        (not issuer.kinds or not set(issuer.kinds) <= {"user", "nhi"}, "kinds must be user, nhi or both"),
        (bool(issuer.namespace) and not is_namespace(issuer.namespace), "namespace must be [a-z0-9]+(-[a-z0-9]+)*"),
        (not issuer.typ, "typ must name at least one header type"),
        (bool(issuer.clients) and not issuer.actor_from, "clients needs actor_from"),
        (bool(issuer.actor_from) and not issuer.clients, "actor_from needs clients: every token would be refused"),
        (
            issuer.roles_from is not None and not is_namespace(issuer.roles_from.namespace),
            "roles_from.namespace must be [a-z0-9]+(-[a-z0-9]+)*",
        ),
    )
    found = [message for wrong, message in checks if wrong]
    found += _peer_faults(issuer)
    found += _spiffe_faults(issuer)
    found += [f"clients: {message}" for message in _client_faults(issuer)]
    return [fault_in(file, f"{name}: {message}" if name else message, code="S301") for message in found]


def _peer_faults(issuer: TrustedIssuer) -> Iterable[str]:
    if issuer.is_peer and (issuer.kind_rules or issuer.actor_from):
        yield "a peer says kinds and actors itself: actors stands alone"
    if issuer.relays and (issuer.namespace or not issuer.is_peer):
        yield "relays is for a peer without a namespace of its own"
    for name in issuer.actors:
        if not (is_principal(name) and name.startswith("nhi:")):
            yield f"actors: {name!r} is no nhi:<name>"


def _spiffe_faults(issuer: TrustedIssuer) -> Iterable[str]:
    if issuer.spiffe is None:
        if issuer.svid:
            yield "a SPIFFE issuer needs a trust domain"
    elif issuer.kinds != ("nhi",) or issuer.kind_rules or issuer.actor_from or issuer.is_peer:
        yield "a SPIFFE ID is a workload's: kinds is [nhi], and nothing else says a kind or an actor"


def _client_faults(issuer: TrustedIssuer) -> Iterable[str]:
    targets = [target for target in issuer.clients.values() if target != DIRECT]
    if targets and "nhi" not in issuer.kinds:
        yield "the issuer names workloads here, so kinds must list nhi"
    for target in targets:
        if not (is_principal(target) and target.startswith("nhi:")):
            yield f"{target!r} is neither nhi:<name> nor direct"


def _faults_between(issuers: tuple[TrustedIssuer, ...], file: str) -> list[Fault]:
    names = [issuer.issuer for issuer in issuers]
    spaces = [issuer.namespace for issuer in issuers]
    found = [f"{name}: listed twice" for name in sorted(set(names)) if names.count(name) > 1]
    found += [
        f"namespace {space!r} has two issuers" for space in sorted(set(spaces)) if space and spaces.count(space) > 1
    ]
    # A peer uses other issuers' names by design; its `actors` restrict it instead.
    if sum(1 for issuer in issuers if not issuer.namespace and not issuer.is_peer) > 1:
        found.append("all issuers but one need a namespace")
    domains = [issuer.spiffe.trust_domain for issuer in issuers if issuer.spiffe and issuer.svid]
    found += [f"trust domain {one!r} has two issuers" for one in sorted(set(domains)) if domains.count(one) > 1]
    for issuer in issuers:
        others = {space for space in spaces if space} - {issuer.namespace}
        workloads = issuer.spiffe.workloads.values() if issuer.spiffe else ()
        found += [
            f"{issuer.issuer}: {target} lies in another issuer's namespace"
            for target in (*issuer.clients.values(), *workloads)
            if namespace_of(target) in others
        ]
    return [fault_in(file, message, code="S302") for message in found]

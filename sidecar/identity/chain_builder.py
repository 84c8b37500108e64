"""Builds the chain of principals from verified credentials.

    proven_at(claims, …)      what a token proves at one route
    chain_of(claims, …)       the principals of a token: its subject, then its actors, oldest first, or its client
    accepts(...)              whether a token is meant for this route
    joined(token, workload)   both credentials of a request as one chain
    still_names(...)          whether an issuer may still give these names under its current configuration

Links before the last come only from a verified token.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sidecar.errors import CredentialFault, Reason
from sidecar.identity.credentials import Audience, Workload, bad_credential, conflict
from sidecar.identity.issuers import DIRECT, TrustedIssuer
from sidecar.identity.jwt import UNBOUND, Claims, TokenBinding
from sidecar.identity.names import KINDS, Kind, NamingRule, is_id, is_typed, parts_of_url
from sidecar.identity.spiffe import SpiffeNames
from sidecar.policy.patterns import glob
from sidecar.vocabulary import Chain, Credential, Principal

MAX_ACTORS = 8
MAX_SCOPES = 256
ROUTES = ("mcp", "agents", "a2a")
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,256}")  # RFC 6749 3.3


@dataclass(frozen=True, slots=True)
class ProvenChain:
    """What one token proves at one route. `here`: its audience names the route; `lent_to`: the workloads in its
    audience (`nhi:planner`), which may present it as delegated authority. `speaks_for` are the NHIs for which its
    issuer may speak; empty for no restriction. `bound` is the key that its bearer must have."""

    chain: Chain
    here: bool
    lent_to: frozenset[str]
    credential: Credential
    expires_at: float
    speaks_for: frozenset[str] = frozenset()
    bound: TokenBinding = UNBOUND


def proven_at(claims: Claims, naming: NamingRule, route: Audience, aliases: Sequence[str] = ()) -> ProvenChain:
    """Returns what a verified token proves at a route. `aliases` are additional paths of the sidecar's routes. Raises
    Refusal."""
    return ProvenChain(
        chain=chain_of(claims, naming),
        here=accepts(claims.issuer, claims.audiences, route, aliases),
        lent_to=frozenset(audience for audience in claims.audiences if audience.startswith("nhi:")),
        credential=Credential("jwt", issuer=claims.issuer.issuer, trust=_looked_up(claims), signed_by=claims.signed_by),
        expires_at=claims.expires_at,
        speaks_for=claims.issuer.actors,
        bound=claims.bound,
    )


def chain_of(claims: Claims, naming: NamingRule) -> Chain:
    """Returns the principals that a token names, first to last. Raises Refusal, such as for a name that the issuer may
    not give."""
    subject = _subject(claims, naming)
    names = [subject, *_actors(claims, naming)]
    if client := _client(claims):
        names = _with_client(names, client, own=bool(claims.issuer.kind_rules) and subject.startswith("nhi:"))
    if len(set(names)) != len(names):
        raise bad_credential("the token names a principal twice in its chain", CredentialFault.SUBJECT)
    scopes, roles = _scopes(claims.values), _roles(claims)
    issuer = claims.issuer.issuer
    first = Principal(names[0], issuer, roles, scopes)
    return (first, *(Principal(name, issuer, frozenset(), scopes) for name in names[1:]))


def accepts(issuer: TrustedIssuer, audiences: frozenset[str], route: Audience, aliases: Sequence[str] = ()) -> bool:
    """Whether the audience names this route: by its own URL, or by one configured for the issuer, unless that is the
    URL of another route of the sidecar (RFC 8707: a token for one server is not valid at another)."""
    own = {route.resource, route.alias or route.resource}
    return not own.isdisjoint(audiences) or any(
        audience in audiences and not _is_another_route(audience, route.resource, aliases)
        for audience in issuer.audiences
    )


def still_names(issuer: TrustedIssuer, naming: NamingRule, chain: Chain, looked_up: str) -> bool:
    """Whether a token of this issuer, under its current configuration, could still stand for its part of this chain.
    `looked_up` is the credential's `trust`: the claim that was looked up in the issuer's tables."""
    mine = [principal for principal in chain if principal.issuer == issuer.issuer]
    if not mine:
        return False
    if issuer.spiffe is not None:
        return mine[0].name == issuer.spiffe.name(looked_up, naming)
    if issuer.actors and issuer.actors.isdisjoint({mine[-1].name, chain[-1].name}):
        return False
    client = issuer.clients.get(looked_up) if issuer.actor_from else DIRECT
    if client != DIRECT and client not in {principal.name for principal in mine}:
        return False
    return all(
        principal.kind in issuer.kinds and (principal.name == client or naming.allows(principal.name))
        for principal in mine
    )


def _looked_up(claims: Claims) -> str:
    """Returns the part of a token that is looked up in its issuer's tables, which may change during its lifetime."""
    if claims.issuer.spiffe is not None:
        return claims.subject
    return str(claims.values.get(claims.issuer.actor_from, "")) if claims.issuer.actor_from else ""


def joined(proven: ProvenChain, workload: Workload | None, *, held: bool = False) -> Chain:
    """Joins a token and an optional workload credential into one chain. `held`: the workload's certificate is the one
    to which the token is bound. Raises Refusal if they conflict."""
    last, name = proven.chain[-1], None if workload is None else workload.principal.name
    lent = name in proven.lent_to
    # The last principal that the token names may act, or the workload to which it was lent and that presents it.
    if proven.speaks_for and proven.speaks_for.isdisjoint({last.name, name} if lent else {last.name}):
        raise bad_credential("the token's issuer does not speak for the newest actor", CredentialFault.SUBJECT)
    if workload is None:
        return _here(proven)
    if workload.principal.kind != "nhi":
        raise conflict("a token and a credential of another user")
    if last.name == name and (held or len(proven.chain) > 1):
        return _here(proven)
    chain = proven.chain if lent else _here(proven)
    if not lent and len(chain) > 1:
        raise conflict("the token's newest actor is another than the caller")
    if not lent and last.kind != "user":
        raise conflict("the token and another credential both name the caller")
    if any(principal.name == name for principal in chain):
        raise bad_credential("the caller is in the token's chain already", CredentialFault.SUBJECT)
    return (*chain, workload.principal)


def _here(proven: ProvenChain) -> Chain:
    if not proven.here:
        raise bad_credential("the token is meant for another audience", CredentialFault.AUDIENCE)
    return proven.chain


def _subject(claims: Claims, naming: NamingRule) -> str:
    if claims.issuer.spiffe is not None:
        return _workload(claims.subject, claims.issuer.spiffe, naming)
    kind, bare = _kind_and_id(claims)
    name = naming.name(kind, bare) if kind in claims.issuer.kinds else None
    if name is None:
        raise bad_credential("the token's issuer may not name its sub so", CredentialFault.SUBJECT)
    return name


def _workload(spiffe_id: str, names: SpiffeNames, naming: NamingRule) -> str:
    name = names.name(spiffe_id, naming)
    if name is None:
        raise bad_credential("the token's SPIFFE ID names no principal that is known here", CredentialFault.SUBJECT)
    return name


def _kind_and_id(claims: Claims) -> tuple[Kind, str]:
    issuer, subject = claims.issuer, claims.subject
    if issuer.typed_subjects:
        kind, _, bare = subject.partition(":")
        if kind in KINDS:
            return KINDS[kind], bare
        what = "the token's sub must begin with user: or nhi:, or its issuer needs kind_claim or subject_kind"
        raise bad_credential(what, CredentialFault.SUBJECT)
    if is_typed(subject):
        raise bad_credential("the token's sub brings a kind, and its issuer's ids are bare", CredentialFault.SUBJECT)
    if not issuer.kind_rules:
        return issuer.kinds[0], subject
    for rule in issuer.kind_rules:
        if rule.fits(claims.values):
            return rule.kind, subject
    raise bad_credential("the token does not say whether it is a user's or a workload's", CredentialFault.SUBJECT)


def _actors(claims: Claims, naming: NamingRule) -> list[str]:
    """Returns the actors of RFC 8693 4.1, oldest first; in the token, the outermost `act` is the newest."""
    found: list[str] = []
    values = claims.values
    while "act" in values:
        if len(found) == MAX_ACTORS:
            raise bad_credential(f"the token names more than {MAX_ACTORS} actors", CredentialFault.SUBJECT)
        values = values["act"]
        found.append(_actor(values, claims.issuer, naming))
    return found[::-1]


def _actor(act: object, issuer: TrustedIssuer, naming: NamingRule) -> str:
    subject = act.get("sub") if isinstance(act, dict) else None
    if not isinstance(act, dict) or not isinstance(subject, str):
        raise bad_credential("the token's act must be an object with a sub", CredentialFault.MALFORMED)
    if act.get("iss", issuer.issuer) != issuer.issuer:
        raise bad_credential("the token names an actor of another issuer", CredentialFault.SUBJECT)
    if "cnf" in act:
        what = "the token's actor is bound to a key, which cannot be checked here"
        raise bad_credential(what, CredentialFault.NOT_ACCEPTED)
    if issuer.spiffe is not None:
        return _workload(subject, issuer.spiffe, naming)
    bare = subject.removeprefix("nhi:") if issuer.typed_subjects else subject
    if "nhi" not in issuer.kinds:
        said = "the token names an actor, and its issuer's kinds have no nhi: kinds: [user, nhi] and subject_kind: user"
        raise bad_credential(said, CredentialFault.SUBJECT)
    name = None if is_typed(bare) else naming.name("nhi", bare)
    if name is None:
        raise bad_credential("the token's issuer may not name its actor so", CredentialFault.SUBJECT)
    return name


def _client(claims: Claims) -> str:
    """Returns the workload that the token was issued to; "" for the user's own program, or if the issuer names no
    clients."""
    issuer = claims.issuer
    if not issuer.actor_from:
        return ""
    client = claims.values.get(issuer.actor_from)
    target = issuer.clients.get(client) if isinstance(client, str) else None
    if target is None:
        raise conflict("the token's client is not in the issuer's table", Reason.CLIENT_UNKNOWN)
    return "" if target == DIRECT else target


def _with_client(names: list[str], client: str, *, own: bool) -> list[str]:
    """Returns the names of a token with its client. `own`: the token is the client's own (client credentials), by the
    issuer's rules."""
    if own:
        names = [client, *names[1:]]  # the configured name replaces the issuer's internal id
    if names[-1] == client or (own and len(names) > 1):
        return names
    if len(names) > 1:
        raise conflict("the token's actor and its client are not the same")
    return [*names, client]


def _scopes(values: Mapping[str, Any]) -> frozenset[str]:
    """Returns the scopes in `scope` (RFC 9068) and `scp` (Entra: one string, Okta: a list)."""
    found: set[str] = set()
    for claim in ("scope", "scp"):
        value = values.get(claim, ())
        items = value.split(" ") if isinstance(value, str) else value
        if not isinstance(items, list | tuple):
            what = f"the token's {claim} must be a string or a list of strings"
            raise bad_credential(what, CredentialFault.MALFORMED)
        found |= {item for item in items if isinstance(item, str) and _SCOPE.fullmatch(item)}
    if len(found) > MAX_SCOPES:
        raise bad_credential(f"the token carries more than {MAX_SCOPES} scopes", CredentialFault.NOT_ACCEPTED)
    return frozenset(found)


def _roles(claims: Claims) -> frozenset[str]:
    source = claims.issuer.roles_from
    if source is None:
        return frozenset()
    value = claim_at(claims.values, source.claim)
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list):
        if source.required:
            raise bad_credential("the token lacks the claim that roles are read from", CredentialFault.NOT_ACCEPTED)
        return frozenset()
    values = (item for item in items if isinstance(item, str))
    if claims.issuer.is_peer:  # full names, restricted to those that the operator accepts from this peer
        whole = f"role:{source.namespace}/"
        values = (item.removeprefix(whole) for item in values if item.startswith(whole))
    # A value outside the grammar is skipped: no policy rule can name it, to allow or to deny.
    named = [value for value in values if value and is_id(f"{source.namespace}/{value}")]
    kept = [value for value in named if not source.only or any(glob(value, pattern) for pattern in source.only)]
    return frozenset(f"role:{source.namespace}/{value}" for value in kept)


def claim_at(values: Mapping[str, Any], path: str) -> object:
    """Returns a claim by its name, otherwise by a path; None if there is none. Names such as
    `https://acme.example/groups` contain dots."""
    if path in values:
        return values[path]
    found: object = values
    for part in path.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return None
        found = found[part]
    return found


def _is_another_route(audience: str, resource: str, aliases: Sequence[str]) -> bool:
    theirs = parts_of_url(audience)
    if theirs[:3] != parts_of_url(resource)[:3]:
        return False
    path = f"{theirs[3]}/"  # anywhere in the path: the public URL may have a prefix
    return any(part in ROUTES for part in path.split("/")) or any(f"{alias}/" in path for alias in aliases)

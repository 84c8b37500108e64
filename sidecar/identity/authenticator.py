"""Authenticates the caller of a request.

    read the credentials  →  verify each  →  join them into one chain  →  check scopes

Verified tokens are cached by the SHA-256 of their header line and the route, until they expire or their issuer's keys
change. An instance belongs to one configuration: a reload creates a new one with an empty cache.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Any, Final, NamedTuple

from sidecar.errors import CredentialFault
from sidecar.identity.agent_tokens import KIND as AGENT_TOKEN, AgentTokenRule, gate_of
from sidecar.identity.api_keys import ApiKeys
from sidecar.identity.certificate_names import ClientCertificate
from sidecar.identity.certificates import Certificates
from sidecar.identity.chain_builder import ProvenChain, chain_of, joined, proven_at, still_names
from sidecar.identity.credentials import (
    Audience,
    Presented,
    ShownToken,
    Workload,
    bad_credential,
    conflict,
    insufficient_scope,
    read_credentials,
    unauthenticated,
)
from sidecar.identity.from_settings import aliases_in, api_keys_from, certificates_from, gates_from, issuers_from
from sidecar.identity.issuers import TrustedIssuer, naming_of
from sidecar.identity.jwks import IssuerKeys, KeyState, read_jwks_file
from sidecar.identity.jwt import LEEWAY_S, MAX_LIFETIME_S, UNBOUND, Claims, TokenBinding, Verifier
from sidecar.identity.key_proofs import KeyProofs, Share, unproven
from sidecar.settings.schedules import acts_as
from sidecar.settings.sidecar_file import Settings
from sidecar.vocabulary import ANONYMOUS, SCHEDULE, Caller, Credential, Principal

MAX_REMEMBERED = 10_000
LOCAL: Final = "local"
CERTIFICATE: Final = "certificate"
NO_CERTIFICATES = Certificates()
NO_GATES: Final[Mapping[str, AgentTokenRule]] = {}
NO_SCHEDULES: Final[Mapping[str, str]] = {}
_CALLED = {
    "api_key": "an API key",
    AGENT_TOKEN: "the token of this address",
    "local": "the local listener",
    "certificate": "a certificate",
}
_WITHOUT_SCOPES = (AGENT_TOKEN, LOCAL, CERTIFICATE, SCHEDULE)
"""Credentials without scopes: their callers are restricted by policy alone."""

Fetch = Callable[[str], Awaitable[bytes]]


class Remembered(NamedTuple):
    """A verified token at one route. `caller` is its chain if no other credential matters there, otherwise None;
    `alone` is the caller of every request that presents the token and nothing else, if there is one."""

    proven: ProvenChain
    caller: Caller | None
    alone: Caller | None
    audience: Audience
    keys: IssuerKeys
    generation: int
    until: float


class Identity:
    """Authenticates callers. `clock` returns seconds since the epoch, `mono` monotonic seconds; `fetch` returns a JWKS
    by URL. `aliases` are the paths of agents' own addresses, and `schedules` maps each enabled schedule to the
    principal it acts as."""

    def __init__(
        self,
        issuers: Iterable[TrustedIssuer] = (),
        keys: ApiKeys | None = None,
        certificates: Certificates = NO_CERTIFICATES,
        gates: Mapping[str, AgentTokenRule] = NO_GATES,
        aliases: Iterable[str] = (),
        schedules: Mapping[str, str] = NO_SCHEDULES,
        *,
        fetch: Fetch,
        clock: Callable[[], float] = time.time,
        mono: Callable[[], float] = time.monotonic,
        max_lifetime_s: float = MAX_LIFETIME_S,
    ) -> None:
        known = tuple(issuers)
        self._naming = naming_of(known)
        self._issuer_keys = {issuer.issuer: _keys_of(issuer, fetch, mono) for issuer in known}
        self._issuers = {issuer.issuer: issuer for issuer in known}
        self._verifier = Verifier(self._issuers, self._issuer_keys, max_lifetime_s, clock)
        self._api_keys = keys or ApiKeys()
        self._certificates = certificates
        self.trusts_proxies = bool(certificates.proxies)
        """Whether proxies may forward certificates of callers."""
        self.gates, self._aliases, self._schedules = gates, tuple(aliases), schedules
        self.added_schedules: dict[str, str] = {}
        self._proofs = KeyProofs(clock)
        self._clock = clock
        self._remembered: OrderedDict[tuple[bytes, str], Remembered] = OrderedDict()
        self._background: asyncio.Task[None] | None = None

    @classmethod
    def from_settings(
        cls,
        settings: Settings,
        clock: Callable[[], float],
        fetch: Fetch,
        mono: Callable[[], float] = time.monotonic,
        trust: str = "",
    ) -> Identity:
        """Builds an instance from the settings. Reads keys.yaml, its pepper, agents' tokens and key-set files, and
        writes nothing. `trust` is a digest of the authorities of client certificates. Raises SettingsError."""
        identity = settings.identity
        return cls(
            issuers_from(identity),
            api_keys_from(settings, clock()),
            certificates_from(identity, trust),
            gates_from(settings),
            aliases_in(settings),
            {key: acts_as(key, one) for key, one in settings.schedules.items() if one.enabled},
            fetch=fetch,
            clock=clock,
            mono=mono,
            max_lifetime_s=identity.max_token_lifetime_s,
        )

    async def start(self, older: Identity | None = None) -> None:
        """Fetches every issuer's keys once (5 s at most, failures are logged), then keeps them fresh. `older` is the
        previous instance: its keys remain in use, so that a reload during an outage does not refuse callers."""
        if older is not None:
            self._proofs.seen = older._proofs.seen  # used proofs remain used
            self.added_schedules = older.added_schedules
        for name, keys in self._issuer_keys.items():
            if older is not None and name in older._issuer_keys:
                keys.take_over(older._issuer_keys[name])
        await asyncio.gather(*(keys.refresh() for keys in self._issuer_keys.values()))
        self._background = asyncio.create_task(self._keep_fresh(), name="identity")

    def believe_schedules(self, added: Mapping[str, str]) -> None:
        """Sets the principals of the schedules that were added at run time; they survive reloads."""
        if added != self.added_schedules:
            self.added_schedules.clear()
            self.added_schedules.update(added)

    def share_proofs(self, share: Share) -> None:
        """Shares used proofs with all replicas; survives reloads."""
        self._proofs.seen.share = share

    async def close(self) -> None:
        if self._background is not None:
            self._background.cancel()
            await asyncio.gather(self._background, return_exceptions=True)
            self._background = None
        await asyncio.gather(*(keys.close() for keys in self._issuer_keys.values()))

    @property
    def key_states(self) -> tuple[KeyState, ...]:
        return tuple(keys.state for keys in self._issuer_keys.values())

    def admit(self, presented: Presented) -> Presented:
        """Drops a forwarded certificate that neither a configured proxy nor an enforcement point sent, and one of an
        enforcement point if no certificates are configured. Raises Refusal if the proxy's own is invalid."""
        if presented.proxy:
            return presented if self._certificates.matters else presented._replace(forwarded=(), proxy="")
        proxy = self._certificates.proxy_of(presented)
        if proxy is None:
            return presented._replace(forwarded=(), proxy="") if presented.forwarded else presented
        return presented._replace(proxy="first" if proxy.first else "last")

    def is_unidentified(self, presented: Presented) -> bool:
        """Whether nothing in an admitted request identifies a caller. Raises Refusal for an invalid certificate."""
        if presented.kinds[0] not in (ANONYMOUS, CERTIFICATE):
            return False
        certificate = self._certificates.shown_in(presented)
        return certificate is None or self._certificates.workload(certificate, self._clock()) is None

    def recall(self, digest: bytes, audience: Audience) -> Remembered | None:
        """Returns the token in the line of `Authorization` with this digest, if it was verified before and would verify
        again: it has not expired, its issuer's keys are unchanged and fresh, and so are the requirements of the
        route."""
        found = self._remembered.get(place := (digest, audience.resource))
        if found is None or not (found.audience is audience or found.audience == audience):
            return None
        if self._clock() >= found.until or found.generation != found.keys.generation or not found.keys.usable:
            return None
        self._remembered.move_to_end(place)
        return found

    async def identify(self, presented: Presented, audience: Audience) -> Caller:
        """Authenticates the caller of an admitted request. Raises Refusal."""
        shown = read_credentials(presented, audience.gate)
        certificate = self._certificates.shown_in(presented)
        if not shown.token:
            return self._without_token(shown, certificate, audience)
        remembered = await self._proven(shown, presented.authorization[0], audience)
        caller, bound = remembered.caller, remembered.proven.bound
        if bound is not UNBOUND or shown.proven:
            self._check_bound(bound, shown, certificate)
        if caller is None or shown.key or shown.local or shown.opens or certificate is not None:
            held = certificate if bound.certificate else None
            workload = self._workload(shown, certificate, audience.gate, held=held is not None)
            caller = _caller_of(remembered.proven, workload, held)
        if bound.key:  # after the other credentials, so that requests refused for these use no proof memory
            await self._proofs.check(presented, shown.token, bound.key, caller.last.name)
        if audience.scopes and not remembered.proven.chain[0].scopes.issuperset(audience.scopes):
            raise insufficient_scope(audience)
        return replace(caller, token=shown.token) if audience.keeps_token else caller

    def vouches_for(self, caller: Caller) -> bool:
        """Whether a caller authenticated under older settings is still valid under these."""
        return all(self._stands(credential, caller) for credential in caller.credentials)

    def person(self, issuer: str, values: Mapping[str, Any]) -> Principal | None:
        """Returns the user in the claims of a verified ID token, named as in access tokens of the same issuer; None if
        the issuer is not configured here or names no users. Raises Refusal if it may not name such a user."""
        trusted = self._issuers.get(issuer)
        if trusted is None or "user" not in trusted.kinds:
            return None
        # The client of an ID token is its requester, and the marks of access tokens are missing.
        kinds = trusted.kinds if trusted.typed_subjects else ("user",)
        plain = replace(trusted, kinds=kinds, kind_rules=(), actor_from="", must_claim={})
        claims = Claims(plain, str(values.get("sub", "")), frozenset(), 0.0, values, 0)
        chain = chain_of(claims, self._naming[issuer])
        return chain[0] if len(chain) == 1 and chain[0].kind == "user" else None

    def keys_ending(self) -> Iterator[tuple[str, str, float]]:
        """Returns the API keys that expire: id, principal, and when (seconds since the epoch)."""
        return self._api_keys.ending()

    def key_owners(self) -> frozenset[str]:
        return self._api_keys.owners()

    def has_keys_of(self, caller: Caller) -> bool:
        """Whether the issuers of a caller's tokens still sign with the same keys, so that the token would verify again.
        Used for open connections only, since keys are also rotated regularly."""
        signed = [one for one in caller.credentials if one.signed_by]
        known = self._issuer_keys
        return all(one.issuer in known and known[one.issuer].has(one.signed_by) for one in signed)

    @property
    def generation(self) -> int:
        return sum(keys.generation for keys in self._issuer_keys.values())

    def _stands(self, credential: Credential, caller: Caller) -> bool:
        if credential.kind == "api_key":
            return self._api_keys.knows(credential.key_id, caller.last.name, self._clock())
        if credential.kind == AGENT_TOKEN:
            gate = gate_of(credential, self.gates)
            return gate is not None and gate.principal == caller.last.name
        if credential.kind == CERTIFICATE:
            return self._certificates.knows(credential, caller.last.name)
        if credential.kind == SCHEDULE:
            known = self._schedules.get(credential.key_id) or self.added_schedules.get(credential.key_id)
            return known == caller.last.name
        issuer = self._issuers.get(credential.issuer)
        if credential.kind != "jwt" or issuer is None:
            return credential.kind != "jwt"
        return still_names(issuer, self._naming[issuer.issuer], caller.chain, credential.trust)

    def _without_token(self, shown: ShownToken, certificate: ClientCertificate | None, audience: Audience) -> Caller:
        workload = self._workload(shown, certificate, audience.gate)
        if workload is None:
            # Scopes require a credential; without one, a route that requires scopes is closed.
            if not audience.anonymous or audience.scopes:
                raise unauthenticated(audience)
            return Caller((Principal(ANONYMOUS),), (Credential("anonymous"),))
        # An API key has scopes. A local listener or a certificate has none, and is restricted by policy alone.
        if shown.key and not workload.principal.scopes.issuperset(audience.scopes):
            raise insufficient_scope(audience)
        return workload.caller

    def _check_bound(self, bound: TokenBinding, shown: ShownToken, certificate: ClientCertificate | None) -> None:
        """Raises Refusal unless the bearer presents the token's key (RFC 9449 7.1, RFC 8705 3)."""
        if bound.certificate and (certificate is None or certificate.thumbprint != bound.certificate):
            raise bad_credential("the token is bound to a certificate that was not shown", CredentialFault.PROOF)
        if bound.key and not shown.proven:
            raise unproven("the token is bound to a key: it must be shown as DPoP, with a proof")
        if shown.proven and not bound.key:
            raise unproven("the token is not bound to a key, and was shown as if it were")

    def _workload(
        self,
        shown: ShownToken,
        certificate: ClientCertificate | None,
        gate: AgentTokenRule | None,
        *,
        held: bool = False,
    ) -> Workload | None:
        """Returns the workload that a credential other than a token authenticates; None without one. A certificate that
        a token is bound to (`held`) need not name a principal. Raises Refusal for an invalid credential, and for more
        than one."""
        found: list[Workload] = []
        if shown.key:
            found.append(self._api_keys.check(shown.key, self._clock()))
        if shown.opens and gate is not None:
            found.append(Workload(gate.bearer, gate.credential))
        if shown.local:
            found.append(Workload(Principal(shown.local, LOCAL), Credential("local", LOCAL)))
        if certificate is not None:
            named = self._certificates.workload(certificate, self._clock(), held=held)
            found += [] if named is None else [named]
        if len(found) > 1:
            words = [_CALLED[workload.credential.kind] for workload in found]
            raise conflict(f"{' and '.join(words)} both name the caller")
        return found[0] if found else None

    async def _proven(self, shown: ShownToken, line: str, audience: Audience) -> Remembered:
        if not line.isascii():
            raise bad_credential("the credential is not a signed JWT", CredentialFault.MALFORMED)
        place = (digest_of(line), audience.resource)
        if (found := self.recall(place[0], audience)) is not None:
            return found
        claims = await self._verifier.verify(shown.token)
        proven = proven_at(claims, self._naming[claims.issuer.issuer], audience, self._aliases)
        caller = _caller_of(proven, None) if proven.here and not proven.speaks_for else None
        is_free = proven.bound is UNBOUND and not (shown.proven or audience.gate or audience.keeps_token)
        suffices = is_free and not self.trusts_proxies and proven.chain[0].scopes.issuperset(audience.scopes)
        remembered = Remembered(
            proven=proven,
            caller=caller,
            alone=caller if suffices else None,
            audience=audience,
            keys=self._issuer_keys[claims.issuer.issuer],
            generation=claims.generation,
            until=claims.expires_at + LEEWAY_S,
        )
        self._remembered[place] = remembered
        self._remembered.move_to_end(place)
        if len(self._remembered) > MAX_REMEMBERED:
            self._remembered.popitem(last=False)
        return remembered

    async def _keep_fresh(self) -> None:
        async with asyncio.TaskGroup() as group:
            for keys in self._issuer_keys.values():
                group.create_task(keys.keep_fresh())


def digest_of(line: str) -> bytes:
    """Returns the key under which a verified line of `Authorization` is cached; b"" for a line that is empty or not
    ASCII."""
    return sha256(line.encode()).digest() if line and line.isascii() else b""


def check_caller(caller: Caller, audience: Audience) -> None:
    """Checks a caller authenticated at the shared address against one server's requirements, as `identify` does at the
    server's own address. Raises Refusal."""
    kind = caller.credentials[0].kind
    gate = audience.gate if kind != SCHEDULE else None  # schedules arrive at no address
    if gate is not None and gate.required and not gate.let_in(caller):
        raise unauthenticated(audience)
    if kind == ANONYMOUS and (not audience.anonymous or audience.scopes):
        raise unauthenticated(audience)
    shown = caller.first if kind == "jwt" else caller.last
    if kind not in _WITHOUT_SCOPES and not shown.scopes.issuperset(audience.scopes):
        raise insufficient_scope(audience)


def _caller_of(proven: ProvenChain, workload: Workload | None, held: ClientCertificate | None = None) -> Caller:
    """Returns the caller. `held` is the certificate to which the token is bound; it may name the workload, or no
    principal."""
    credentials: list[Credential] = [proven.credential]
    ends: list[float | None] = [proven.expires_at]
    if workload is not None:
        credentials.append(workload.credential)
        ends.append(workload.expires_at)
    is_workloads = workload is not None and workload.credential.kind == CERTIFICATE
    if held is not None and not is_workloads:
        credentials.append(Credential(CERTIFICATE, "", held.thumbprint, held.vouched_by))
        ends.append(held.ends_at)
    chain = joined(proven, workload, held=held is not None and is_workloads)
    return Caller(chain, tuple(credentials), min(end for end in ends if end is not None))


def _keys_of(issuer: TrustedIssuer, fetch: Fetch, mono: Callable[[], float]) -> IssuerKeys:
    path, url = issuer.jwks_path, issuer.jwks_url
    if path is None:
        return IssuerKeys(issuer.issuer, url, lambda: fetch(url), mono=mono, use=issuer.key_use)
    read = partial(asyncio.to_thread, read_jwks_file, path)
    return IssuerKeys(issuer.issuer, str(path), read, mono=mono, use=issuer.key_use)

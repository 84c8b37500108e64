"""What do the tests of identity share? An issuer with a real key, clocks that stand still, a counted key-set server."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest

from sidecar.errors import Reason, Refusal
from sidecar.http.signing_keys import SigningKey, claims_for, generate
from sidecar.identity import ApiKeys, Audience, Identity, Presented, TrustedIssuer, digest_of
from sidecar.vocabulary import Caller

NOW = 1_800_000_000.0
IDP = "https://idp.acme.example"
GITHUB = "https://gw.acme.example/mcp/github"
ROUTE = Audience(GITHUB)


@cache
def signing_key(name: str = "idp", algorithm: str = "ES256") -> SigningKey:
    """The same key for the same name: making one is the slow part of a test."""
    return generate(algorithm)


@dataclass
class Clock:
    """Time that passes when told to."""

    now: float = NOW
    mono: float = 1000.0

    def wall(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.mono

    def pass_s(self, seconds: float) -> None:
        self.now += seconds
        self.mono += seconds


@dataclass
class KeyServer:
    """Serves key sets by URL, and counts."""

    sets: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    failure: Exception | None = None

    async def fetch(self, url: str) -> bytes:
        self.asked.append(url)
        if self.failure is not None:
            raise self.failure
        return self.sets[url]

    def serve(self, issuer: str, *keys: SigningKey) -> None:
        self.sets[f"{issuer}/keys"] = json.dumps({"keys": [dict(key.public_jwk) for key in keys]}).encode()


@dataclass
class World:
    """One identity, its issuers' keys, and its clock."""

    identity: Identity
    clock: Clock
    server: KeyServer

    async def ask(self, *lines: str, key: str = "", local: str = "", at: Audience = ROUTE) -> Caller:
        presented = Presented(authorization=lines, api_key=(key,) if key else (), local=local)
        known = self.identity.recall(digest_of(lines[0]), at) if len(lines) == 1 and not (key or local) else None
        recalled = known.alone if known is not None else None
        try:
            caller = await self.identity.identify(presented, at)
        except Refusal:
            assert recalled is None
            raise
        assert recalled in (None, caller)
        return caller

    async def chain(self, token: str, **how: Any) -> list[str]:
        caller = await self.ask(f"Bearer {token}", **how)
        return [principal.name for principal in caller.chain]

    async def refusal(self, *lines: str, **how: Any) -> Refusal:
        with pytest.raises(Refusal) as caught:
            await self.ask(*lines, **how)
        return caught.value

    async def refused(self, token: str, reason: Reason = Reason.BAD_CREDENTIAL, **how: Any) -> Refusal:
        refusal = await self.refusal(f"Bearer {token}", **how)
        assert refusal.reason is reason, refusal.detail
        return refusal

    async def says(self, token: str, expected: list[str] | Reason, **how: Any) -> None:
        """The chain that this token proves, or why it proves none."""
        if isinstance(expected, Reason):
            await self.refused(token, expected, **how)
        else:
            assert await self.chain(token, **how) == expected

    def anew(self, *issuers: TrustedIssuer, fetch: Any = None) -> World:
        """Another identity at the same time, with the same servers: as after a reload."""
        times = {"clock": self.clock.wall, "mono": self.clock.monotonic}
        identity = Identity(issuers or [an_issuer()], fetch=fetch or self.server.fetch, **times)
        return World(identity, self.clock, self.server)


def an_issuer(name: str = IDP, **what: Any) -> TrustedIssuer:
    """An issuer of both kinds with typed subjects, unless told otherwise."""
    known: dict[str, Any] = {"jwks_url": f"{name}/keys", "algorithms": ("ES256",), "kinds": ("user", "nhi")}
    return TrustedIssuer(name, **{**known, **what})


def a_world(*issuers: TrustedIssuer, keys: ApiKeys | None = None, **what: Any) -> World:
    """An identity over these issuers; each signs with `signing_key()`."""
    clock, server = Clock(), KeyServer()
    known = issuers or (an_issuer(),)
    for issuer in known:
        server.serve(issuer.issuer, signing_key())
    identity = Identity(known, keys, fetch=server.fetch, clock=clock.wall, mono=clock.monotonic, **what)
    return World(identity, clock, server)


def claims(**changes: Any) -> dict[str, Any]:
    """A good token's claims for alice at GITHUB; `name=None` drops one."""
    good = claims_for(IDP, "user:alice", (GITHUB,), now=NOW - 10, ttl_s=3600)
    return {name: value for name, value in {**good, **changes}.items() if value is not None}


def minted(key: SigningKey | None = None, typ: str = "at+jwt", **changes: Any) -> str:
    return (key or signing_key()).sign(claims(**changes), typ)


def acting(*actors: str) -> dict[str, Any]:
    """The `act` of a chain, first actor first."""
    act: dict[str, Any] = {}
    for actor in actors:
        act = {"sub": actor, "act": act} if act else {"sub": actor}
    return act


def b64(value: bytes | Mapping[str, Any]) -> str:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return urlsafe_b64encode(raw).rstrip(b"=").decode()

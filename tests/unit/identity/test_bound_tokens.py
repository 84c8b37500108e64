"""Is a bound token worth anything without its key, and is its proof worth anything twice?"""

import asyncio
import json
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from hashlib import sha256
from itertools import count
from typing import Any

import jwt
import pytest

from sidecar.errors import Reason, Refusal
from sidecar.http.signing_keys import SigningKey, thumbprint
from sidecar.identity import Audience, Identity, Presented
from sidecar.identity.certificate_names import thumbprint_of
from sidecar.identity.certificates import Certificates, TrustedProxyRule
from sidecar.identity.jwks import public_key_from
from sidecar.identity.key_proofs import SeenProofs, _plain
from sidecar.vocabulary import Caller
from tests.tables import tables
from tests.unit.identity.test_certificates import PLANNER, WHOSE, identity_of, issue, now, token as dated
from tests.unit.identity.test_chain_builder import api_key
from tests.unit.identity.world import GITHUB, NOW, ROUTE, Clock, b64, claims, minted, signing_key

TABLES = tables("identity/bound_tokens")

HOLDER, THIEF = signing_key("holder"), signing_key("thief")
NUMBERS = count()
OPEN = Audience(GITHUB, anonymous=True)


def bound(to: SigningKey = HOLDER, **changes: Any) -> str:
    return minted(cnf={"jkt": to.kid}, **changes)


def ath(token: str) -> str:
    return urlsafe_b64encode(sha256(token.encode()).digest()).rstrip(b"=").decode()


def proof(token: str, *, by: SigningKey = HOLDER, header: Mapping[str, Any] | None = None, **changes: Any) -> str:
    claims = {"jti": f"id-{next(NUMBERS)}", "htm": "POST", "htu": GITHUB, "iat": int(NOW), "ath": ath(token), **changes}
    jwk = {name: value for name, value in by.public_jwk.items() if name not in ("use", "alg", "kid")}
    head = {"typ": "dpop+jwt", "jwk": jwk, **(header or {})}
    return jwt.encode(
        {name: value for name, value in claims.items() if value is not None}, by.private, by.algorithm, head
    )


def shown(token: str, *proofs: str, scheme: str = "DPoP", **more: Any) -> Presented:
    urls = (GITHUB, "https://gw.internal:8443/mcp/github")
    return Presented(authorization=(f"{scheme} {token}",), proofs=proofs, method="POST", urls=urls, **more)


async def ask(identity: Identity, presented: Presented, at: Audience = ROUTE) -> Caller:
    return await identity.identify(identity.admit(presented), at)


async def refused(identity: Identity, presented: Presented, at: Audience = ROUTE) -> Refusal:
    with pytest.raises(Refusal) as caught:
        await ask(identity, presented, at)
    assert caught.value.reason is Reason.BAD_CREDENTIAL, caught.value.detail
    return caught.value


async def test_the_owner_of_the_key_is_let_in_each_time_with_a_new_proof() -> None:
    identity, token = identity_of(), bound()
    for _ in range(3):
        assert (await ask(identity, shown(token, proof(token)))).last.name == "user:alice"
    with_key = shown(token, proof(token), api_key=(api_key("nhi:planner"),))
    assert [principal.name for principal in (await ask(identity, with_key)).chain] == ["user:alice", "nhi:planner"]


@pytest.mark.parametrize("algorithm", ["ES256", "RS256", "EdDSA"])
async def test_a_key_of_any_kind_that_tokens_are_signed_with(algorithm: str) -> None:
    key = signing_key(f"holder-{algorithm}", algorithm)
    token = bound(key)
    assert (await ask(identity_of(), shown(token, proof(token, by=key)))).last.name == "user:alice"


async def test_a_bound_token_is_no_bearer_token() -> None:
    identity, token = identity_of(), bound()
    for _ in range(2):
        for presented in (shown(token, scheme="Bearer"), shown(token, proof(token), scheme="Bearer"), shown(token)):
            await refused(identity, presented)
            await refused(identity, presented, OPEN)
        await ask(identity, shown(token, proof(token)))  # what is remembered of a token is not its proof
    refusal = await refused(identity, shown(token, scheme="Bearer"))
    assert (refusal.scheme, refusal.credential_fault) == ("DPoP", "proof")
    assert refusal.challenge.startswith('error="invalid_token", error_description="the token is bound to a key')
    assert 'algs="' in refusal.challenge and "ES256" in refusal.challenge


async def test_a_proof_is_good_once() -> None:
    identity, token = identity_of(), bound()
    once = proof(token)
    await ask(identity, shown(token, once))
    refusal = await refused(identity, shown(token, once))
    assert (refusal.scheme, refusal.detail) == ("DPoP", "the proof was used before")
    assert refusal.credential_fault == "replayed"
    assert refusal.challenge.startswith('error="invalid_dpop_proof"')
    other = bound(THIEF)
    assert await ask(identity, shown(other, proof(other, by=THIEF, jti="same")))
    assert await ask(identity, shown(token, proof(token, jti="same"))), "another key's id is another"
    await refused(identity, shown(token, proof(token, jti="same", iat=int(NOW) - 1)))


async def test_a_hundred_at_once_are_one() -> None:
    identity, token = identity_of(), bound()
    once = proof(token)
    answers = await asyncio.gather(*(ask(identity, shown(token, once)) for _ in range(100)), return_exceptions=True)
    assert sum(isinstance(answer, Caller) for answer in answers) == 1


FORGED: dict[str, dict[str, Any]] = {
    **TABLES["forged"], "by another key": {"by": THIEF},
    "by another key that calls itself the right one": {"by": THIEF, "header": {"jwk": dict(HOLDER.public_jwk)}},
    "for a longer path": {"htu": f"{GITHUB}/tools"}, "for another scheme": {"htu": GITHUB.replace("https", "http")},
    "for another port": {"htu": GITHUB.replace("example/", "example:444/")},
    "for a user of the host": {"htu": GITHUB.replace("https://", "https://gw.acme.example@")},
    "for another token": {"ath": ath("another")}, "too old": {"iat": int(NOW) - 200},
    "from the future": {"iat": int(NOW) + 200}, "of a time that is text": {"iat": str(int(NOW))},
    "with an endless id": {"jti": "x" * 600}, "too long": {"pad": "x" * 9000},
}  # fmt: skip


@pytest.mark.parametrize("name", FORGED)
async def test_a_proof_of_anything_else_is_none(name: str) -> None:
    token = bound()
    for at in (ROUTE, OPEN):
        refusal = await refused(identity_of(), shown(token, proof(token, **FORGED[name])), at)
        assert refusal.scheme == "DPoP" and 'error="invalid_dpop_proof"' in refusal.challenge


async def test_a_proof_that_was_tampered_with_is_none() -> None:
    token = bound()
    head, body, signature = proof(token).split(".")
    unsigned, confused = (
        b64({"typ": "dpop+jwt", "alg": alg, "jwk": dict(HOLDER.public_jwk)}) for alg in ("none", "HS256")
    )
    other = f"{head}.{proof(token).split('.')[1]}.{signature}"
    private = proof(token, header={"jwk": json.loads(jwt.algorithms.ECAlgorithm.to_jwk(HOLDER.private))})
    for made in ("", "x", f"{head}.{body}", other, f"{unsigned}.{body}.", f"{confused}.{body}.AA", private):
        await refused(identity_of(), shown(token, made))


async def test_there_is_one_proof_where_one_is_needed_and_none_where_none_is() -> None:
    identity, token, plain = identity_of(), bound(), minted()
    for presented in (
        shown(token),
        shown(token, proof(token), proof(token)),
        shown(plain, proof(plain)),
        shown(plain),
        shown(plain, proof(plain), scheme="Bearer"),
        shown(api_key("nhi:planner"), proof(token)),
        Presented(proofs=(proof(token),)),
        Presented(proofs=("",), api_key=(api_key("nhi:planner"),)),
        Presented(proofs=(proof(token),), local="nhi:planner"),
    ):
        await refused(identity, presented)
        await refused(identity, presented, OPEN)
        assert not identity.is_unidentified(presented)


async def test_the_address_is_the_one_that_callers_know_in_any_of_its_spellings() -> None:
    identity, token = identity_of(), bound()
    for htu in (
        GITHUB,
        f"{GITHUB}?session_id=1#x",
        "https://GW.acme.example:443/mcp/github",
        "HTTPS://gw.acme.example/mcp/github",
        "https://gw.internal:8443/mcp/github",
    ):
        assert await ask(identity, shown(token, proof(token, htu=htu))), htu
    assert _plain("http://a:80") == _plain("http://A/") != _plain("http://a/b")


async def test_an_address_that_is_none_is_no_callers() -> None:
    identity, token = identity_of(), bound()
    for htu in ("", "nowhere", "https://[gw/mcp", "https://gw.acme.example:0/mcp/github"):
        assert await refused(identity, shown(token, proof(token, htu=htu))), htu
        assert await refused(identity, shown(token, proof(token, htu=htu))._replace(urls=("https://[gw/mcp",))), htu


async def test_a_proof_lives_for_a_minute_and_is_remembered_longer() -> None:
    clock = Clock()
    identity, token = identity_of(clock=clock), bound()
    early = proof(token, iat=int(NOW) + 25)  # by a clock that is ahead
    await ask(identity, shown(token, early))
    for _ in range(13):
        clock.pass_s(9)
        await refused(identity, shown(token, early))
    old = proof(token, iat=int(clock.now) - 89)
    await ask(identity, shown(token, old))
    assert (await refused(identity, shown(token, proof(token, iat=int(clock.now) - 91)))).credential_fault == "expired"


async def test_used_proofs_outlive_a_reload() -> None:
    before, after, token = identity_of(), identity_of(), bound()
    once = proof(token)
    await ask(before, shown(token, once))
    await after.start(before)
    await after.close()
    await refused(after, shown(token, once))


async def test_a_proof_is_good_once_for_all_replicas() -> None:
    """The store that they share says who was first; one that cannot say lets nobody in."""
    known: set[str] = set()

    async def share(name: str, for_ms: int) -> bool:
        assert 60_000 <= for_ms <= 200_000
        first = name not in known
        known.add(name)
        return first

    async def out(name: str, for_ms: int) -> bool:
        raise Refusal(Reason.STORE_UNAVAILABLE)

    one, other, token = identity_of(), identity_of(), bound()
    for identity in (one, other):
        identity.share_proofs(share)
    once = proof(token)
    await ask(one, shown(token, once))
    await refused(other, shown(token, once))
    other.share_proofs(out)
    with pytest.raises(Refusal) as caught:
        await ask(other, shown(token, proof(token)))
    assert caught.value.reason is Reason.STORE_UNAVAILABLE


async def test_what_is_remembered_has_an_end_for_all_and_for_each_and_beyond_it_no_caller_is_let_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for most, owners in ((3, "abca"), (4, ["nhi:busy"] * 4)):
        clock = Clock()
        monkeypatch.setattr("sidecar.identity.key_proofs.MAX_KEPT", most)
        seen = SeenProofs(clock.wall)
        assert [await seen.is_first(*one) for one in zip("abca", [10] * 4, owners, strict=True)] == [True] * 3 + [False]
        with pytest.raises(Refusal) as caught:
            await seen.is_first("d", 10, owners[0])
        assert caught.value.reason is Reason.STORE_UNAVAILABLE
        assert most == 3 or await seen.is_first("e", 10, "nhi:other")
        clock.pass_s(11)
        assert await seen.is_first("d", 10, owners[0])


async def test_a_token_for_another_address_uses_up_nothing() -> None:
    identity = identity_of()
    token = bound(aud="https://gw.acme.example/mcp/jira")
    with pytest.raises(Refusal, match="another audience"):
        await ask(identity, shown(token, proof(token)))
    assert not identity._proofs.seen._kept


# Bound to a certificate

MINE = issue(uris=["spiffe://acme.example/x/nobody"])
PLANNERS = issue(uris=[PLANNER])
CA = {"trust": "ca"}


def held(by: bytes, **changes: Any) -> str:
    return dated(cnf={"x5t#S256": thumbprint_of(by)}, **changes)


def bearer(token: str, **more: Any) -> Presented:
    return Presented(authorization=(f"Bearer {token}",), **more)


async def test_a_token_that_is_bound_to_a_certificate_needs_it() -> None:
    identity, token = identity_of(clock=now()), held(MINE.der)
    assert (await ask(identity, bearer(token, certificate=MINE.der, **CA))).last.name == "user:alice"
    for presented in (
        bearer(token),
        bearer(token, certificate=PLANNERS.der, **CA),
        bearer(token, certificate=MINE.der, trust="old"),
        bearer(token, api_key=(api_key("nhi:planner"),)),
    ):
        assert (await refused(identity, presented)).scheme == "Bearer"
        await refused(identity, presented, OPEN)


async def test_a_certificate_that_is_unidentified_serves_for_the_token_that_is_bound_to_it_alone() -> None:
    identity = identity_of(clock=now())
    await refused(identity, bearer(dated(), certificate=MINE.der, **CA))
    await refused(identity, bearer(held(PLANNERS.der), certificate=MINE.der, **CA))
    over = issue(uris=["spiffe://acme.example/x/nobody"], ends_s=-5)
    await refused(identity, bearer(held(over.der), certificate=over.der, **CA))
    twice = issue(dns=["planner.acme.example", "writer.acme.example"])
    await refused(identity, bearer(held(twice.der), certificate=twice.der, **CA))


async def test_what_was_proven_by_a_certificate_ends_with_it_and_with_its_authorities() -> None:
    caller = await ask(identity_of(clock=now()), bearer(held(MINE.der), certificate=MINE.der, **CA))
    assert [(one.kind, one.issuer) for one in caller.credentials] == [
        ("jwt", "https://idp.acme.example"),
        ("certificate", ""),
    ]
    assert caller.credentials[1].key_id == thumbprint_of(MINE.der)
    assert identity_of(clock=now()).vouches_for(caller)
    assert not identity_of(Certificates(WHOSE.spiffe, trust="other"), now()).vouches_for(caller)
    brief = issue(uris=["spiffe://acme.example/x/nobody"], ends_s=60)
    caller = await ask(identity_of(clock=now()), bearer(held(brief.der), certificate=brief.der, **CA))
    assert caller.expires_at == brief.certificate.not_valid_after_utc.timestamp()


async def test_a_workloads_token_and_the_certificate_that_it_is_bound_to_are_one_credential() -> None:
    identity = identity_of(clock=now())
    what = {"certificate": PLANNERS.der, **CA}
    its = await ask(identity, bearer(held(PLANNERS.der, sub="nhi:planner"), **what))
    assert [principal.name for principal in its.chain] == ["nhi:planner"]
    users = await ask(identity, bearer(held(PLANNERS.der), **what))
    assert [principal.name for principal in users.chain] == ["user:alice", "nhi:planner"]
    with pytest.raises(Refusal) as caught:
        await ask(identity, bearer(held(PLANNERS.der, sub="nhi:writer"), **what))
    assert caught.value.reason is Reason.CREDENTIAL_CONFLICT


async def test_a_named_proxy_tells_of_that_certificate_too() -> None:
    identity = identity_of(Certificates(WHOSE.spiffe, proxies=(TrustedProxyRule(unix=True),), trust="ca"), now())
    line = f"Hash={sha256(PLANNERS.der).hexdigest()};URI={PLANNER}"
    token = held(PLANNERS.der, sub="nhi:planner")
    assert (await ask(identity, bearer(token, forwarded=(line,), peer="unix"))).last.name == "nhi:planner"
    await refused(identity, bearer(token, forwarded=(f"Hash={'ab' * 32};URI={PLANNER}",), peer="unix"))
    await refused(identity, bearer(token, forwarded=(f"URI={PLANNER}",), peer="unix"))
    await refused(identity, bearer(token, forwarded=(line,), peer="10.0.0.1"))


async def test_where_both_are_told_both_are_needed() -> None:
    clock = now()
    both = dated(cnf={"jkt": HOLDER.kid, "x5t#S256": thumbprint_of(PLANNERS.der)})
    good = proof(both, iat=int(clock.now))
    what = {"certificate": PLANNERS.der, **CA}
    await refused(identity_of(clock=clock), bearer(both, **what))
    await refused(identity_of(clock=clock), shown(both, good))
    assert await ask(identity_of(clock=clock), shown(both, good, **what))


UNKNOWN: dict[str, Any] = {
    **TABLES["unknown_confirmations"],
    "another member beside": {"jkt": HOLDER.kid, "kid": "x"},
    "a thumbprint in hex": {"jkt": "ab" * 32},
}


@pytest.mark.parametrize("name", UNKNOWN)
async def test_a_token_that_is_bound_in_another_way_is_refused(name: str) -> None:
    token = signing_key().sign({**claims(), "cnf": UNKNOWN[name]})
    for presented in (shown(token, scheme="Bearer"), shown(token, proof(token))):
        await refused(identity_of(), presented)


def test_thumbprints_are_those_of_the_rfc() -> None:
    n = (  # RFC 7638 3.1
        "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiFV4n3oknjhMstn6"
        "4tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQvRL5hajrn1n"
        "91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzKnqDKgw"
    )
    public = public_key_from({"kty": "RSA", "n": n, "e": "AQAB", "alg": "RS256"})
    assert public is not None and thumbprint(public) == "NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs"
    assert thumbprint(HOLDER.private.public_key()) == HOLDER.kid

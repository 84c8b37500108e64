"""Is every forged, borrowed, stale or misshapen token refused, and does none of them make us call anybody?"""

import asyncio
import hmac
import json
from collections.abc import AsyncIterator
from hashlib import sha256
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from sidecar.errors import CredentialFault, Reason, Refusal
from sidecar.http.signing_keys import SigningKey
from sidecar.identity.jwt import MAX_LIFETIME_S
from tests.tables import tables
from tests.unit.identity.world import (
    GITHUB,
    IDP,
    NOW,
    ROUTE,
    World,
    a_world,
    an_issuer,
    b64,
    claims,
    minted,
    signing_key,
)

TABLES = tables("identity/forged_tokens")


@pytest.fixture
async def world() -> World:
    return a_world()


async def test_the_forgers_tools_make_good_tokens_where_nothing_is_forged(world: World) -> None:
    for token in (minted(), with_header(), raw(json.dumps(claims()).encode()), minted(aud=[GITHUB] * 64)):
        assert await world.chain(token) == ["user:alice"]


# The families: unsigned, confused, stripped, key tricks, misshapen, mistyped, misaddressed.


def with_header(signature: bytes | None = None, **header: Any) -> str:
    """Our good claims under another header, really signed by the issuer's key unless a signature is given."""
    head = {"alg": "ES256", "typ": "at+jwt", "kid": signing_key().kid, **header}
    head = {name: value for name, value in head.items() if value is not None}
    if signature is None:
        return raw(json.dumps(claims()).encode(), json.dumps(head).encode())
    return f"{b64(head)}.{b64(claims())}.{b64(signature)}"


def confused(secret: bytes, **header: Any) -> str:
    """HS256 under the issuer's public key as if it were a shared secret."""
    body = f"{b64({'alg': 'HS256', 'typ': 'at+jwt', 'kid': signing_key().kid, **header})}.{b64(claims())}"
    return f"{body}.{b64(hmac.digest(secret, body.encode(), sha256))}"


def public_pem() -> bytes:
    return signing_key().private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def resigned() -> dict[str, str]:
    head, body, signature = minted().split(".")
    return {
        "stripped": f"{head}.{body}.",
        "no third part": f"{head}.{body}",
        "payload swapped": f"{head}.{b64(claims(sub='user:root'))}.{signature}",
        "header swapped": f"{with_header(x=1).partition('.')[0]}.{body}.{signature}",
        "signature cut": f"{head}.{body}.{signature[:-4]}",
        "signature zeros": f"{head}.{body}.{b64(bytes(64))}",
        "signature doubled": f"{head}.{body}.{signature}{signature}",
        "four parts": f"{head}.{body}.{signature}.{signature}",
        "five parts": f"{head}.{body}.{signature}.{signature}.{signature}",
        "padded": f"{head}.{body}.{signature}==",
        "blank inside": f"{head}.{body} .{signature}",
        "not base64": f"{head}.!!!!.{signature}",
        "empty payload": f"{head}..{signature}",
    }


def raw(payload: bytes, header: bytes | None = None, by: SigningKey | None = None) -> str:
    head = header or json.dumps({"alg": "ES256", "typ": "at+jwt", "kid": signing_key().kid}).encode()
    body = f"{b64(head)}.{b64(payload)}"
    return f"{body}.{b64(jwt.get_algorithm_by_name('ES256').sign(body.encode(), (by or signing_key()).private))}"


ODD_KIDS = "../../dev/null;/etc/passwd;a' UNION SELECT 'x;;a b;k\x00;ké;|id;unknown"
BAD_KIDS = [*ODD_KIDS.split(";"), "k" * 129, "k" * 100_000]
OTHER_TYPES = (
    """oauth-id-jag+jwt txntoken+jwt logout+jwt secevent+jwt dpop+jwt wit+jwt id+jwt application/logout+jwt JWT2"""
)
BAD_TYPES = [*OTHER_TYPES.split(), "", 7]
GOOD_KID, GOOD_CLAIMS = signing_key().kid, json.dumps(claims()).encode()
FORGED = {
    **{f"alg {alg!r}": with_header(b"", alg=alg) for alg in ("none", "None", "NONE", "nOnE", "", "HS256", "null")},
    **{f"alg {alg!r}, signed": with_header(alg=alg) for alg in ("none", "ES384", "ES256K", "RS256", "es256", " ES256")},
    "alg missing": with_header(alg=None),
    "alg a list": with_header(alg=["ES256"]),
    "alg a number": with_header(alg=256),
    "HS256 under the public PEM": confused(public_pem()),
    "HS256 under the public PEM without its last newline": confused(public_pem().rstrip()),
    "HS256 under the public JWK": confused(json.dumps(dict(signing_key().public_jwk)).encode()),
    "HS256 under nothing": confused(b""),
    "HS512 claimed": confused(public_pem(), alg="HS512"),
    **resigned(),
    "signed by a stranger under the same kid": raw(GOOD_CLAIMS, by=signing_key("stranger")),
    "signed by a stranger": minted(signing_key("stranger")),
    **{f"kid {kid[:24]!r}": with_header(kid=kid) for kid in BAD_KIDS},
    "kid a number": with_header(kid=7),
    "kid an object": with_header(kid={"kid": signing_key().kid}),
    "crit": with_header(crit=["exp"]),
    "crit b64": with_header(crit=["b64"], b64=False),
    "b64 false": with_header(b64=False),
    "zip": with_header(zip="DEF"),
    "enc": with_header(enc="A128GCM"),
    **{f"typ {typ!r}": with_header(typ=typ) for typ in BAD_TYPES},
    "typ missing": with_header(typ=None),
    "iss of a stranger": minted(iss="https://evil.example"),
    "iss with a slash more": minted(iss=IDP + "/"),
    "iss in capitals": minted(iss=IDP.upper()),
    "iss a list": raw(json.dumps(claims(iss=[IDP])).encode()),
    "aud of another service": minted(aud="https://other.example"),
    "aud of another route": minted(aud="https://gw.acme.example/mcp/jira"),
    "aud a prefix": minted(aud="https://gw.acme.example/mcp/git"),
    "aud an extension": minted(aud=GITHUB + "/x"),
    "aud in capitals": minted(aud=GITHUB.upper()),
    "aud of a workload that does not present it": minted(aud="nhi:planner"),
    "aud empty": minted(aud=[]),
    "aud with a number": minted(aud=[GITHUB, 7]),
    "aud an object": minted(aud={GITHUB: True}),
    "aud of hundreds": minted(aud=[GITHUB] * 65),
    "payload a list": raw(b"[]"),
    "payload a string": raw(b'"x"'),
    "payload not JSON": raw(b"{"),
    "payload two values": raw(b"{}{}"),
    "payload with a key twice": raw(json.dumps(claims()).encode()[:-1] + b',"sub":"user:root"}'),
    "payload with NaN": raw(json.dumps(claims(exp=float("nan"))).encode()),
    "payload with Infinity": raw(json.dumps(claims(exp=float("inf"))).encode()),
    "payload in UTF-16": raw(json.dumps(claims()).encode("utf-16")),
    "payload with a byte order mark": raw(b"\xef\xbb\xbf" + json.dumps(claims()).encode()),
    "payload very deep": raw(json.dumps(claims(x=1)).encode()[:-1] + b',"d":' + b"[" * 5000 + b"]" * 5000 + b"}"),
    "header with alg twice": raw(
        GOOD_CLAIMS, b'{"alg":"none","typ":"at+jwt","kid":"%s","alg":"ES256"}' % GOOD_KID.encode()
    ),
    "header a list": raw(json.dumps(claims()).encode(), b'["ES256"]'),
    "an ID token (at_hash)": minted(at_hash="x"),
    "an ID token (c_hash)": minted(c_hash="x"),
    "a logout token": minted(events={"http://schemas.openid.net/event/backchannel-logout": {}}),
    "bound to a key (DPoP)": minted(cnf={"jkt": "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I"}),
    "bound to a certificate": minted(cnf={"x5t#S256": "bwcK0esc3ACC3DB2Y5_lESsXE8o9ltc05O89jdN-dg2"}),
    "bound to nothing": raw(json.dumps({**claims(), "cnf": None}).encode()),
    "too large": minted(pad="x" * 17_000),
}


@pytest.mark.parametrize("name", FORGED)
async def test_a_forged_token_is_a_bad_credential_and_never_anonymous(world: World, name: str) -> None:
    refusal = await world.refused(FORGED[name])
    assert refusal.challenge.startswith('error="invalid_token"')
    assert refusal.credential_fault not in (None, CredentialFault.REVOKED)
    await world.refused(FORGED[name], at=type(ROUTE)(GITHUB, anonymous=True))


@pytest.mark.parametrize(
    ("token", "fault"),
    [
        (minted(exp=NOW - 3600, iat=NOW - 7200), "expired"),
        (minted(iat=NOW + 3600, exp=NOW + 7200), "not-yet-valid"),
        (minted(nbf=NOW + 3600), "not-yet-valid"),
        (minted(exp=NOW + 10 * MAX_LIFETIME_S), "not-accepted"),
        (FORGED["aud of another route"], "audience"),
        (FORGED["signature zeros"], "signature"),
        (FORGED["signed by a stranger"], "key-unknown"),
        (FORGED["iss of a stranger"], "issuer-unknown"),
        (FORGED["alg 'none', signed"], "not-accepted"),
        (FORGED["typ missing"], "not-accepted"),
        (FORGED["payload not JSON"], "malformed"),
        (FORGED["too large"], "malformed"),
        (minted(sub="alice"), "subject"),
    ],
)
async def test_the_evidence_says_what_was_wrong(world: World, token: str, fault: str) -> None:
    assert (await world.refused(token)).credential_fault == fault


def test_who_was_believed_and_is_not_any_more_was_revoked() -> None:
    assert Refusal(Reason.BAD_CREDENTIAL).credential_fault is CredentialFault.REVOKED
    assert Refusal(Reason.CREDENTIAL_CONFLICT).credential_fault is None


BAD_VALUES: dict[str, Any] = {**TABLES["bad_values"], "a date in milliseconds": NOW * 1000, "huge": 10**18}


BAD_NAMES = [None, True, 7, {"x": 1}, [["x"]], "", "\x00"]


@pytest.mark.parametrize("claim", ["exp", "iat", "nbf", "iss", "aud", "sub"])
async def test_a_time_is_a_number_of_seconds_and_a_name_is_a_string(world: World, claim: str) -> None:
    for value in BAD_NAMES if claim in ("iss", "aud", "sub") else BAD_VALUES.values():
        await world.refused(raw(json.dumps({**claims(), claim: value}).encode()))
    if claim != "nbf":
        await world.refused(minted(**{claim: None}))


async def test_fractions_of_a_second_are_numbers_too(world: World) -> None:
    assert await world.chain(minted(exp=NOW + 60.5, iat=NOW - 0.5)) == ["user:alice"]


@pytest.mark.parametrize(("times", "accepted"), TABLES["clocks"])
async def test_clocks_may_differ_by_the_leeway_and_not_by_a_second_more(
    times: dict[str, float], accepted: bool
) -> None:
    token = minted(**{"iat": NOW - 3600, "exp": NOW + 3600, **{name: NOW + off for name, off in times.items()}})
    await a_world().says(token, ["user:alice"] if accepted else Reason.BAD_CREDENTIAL)


async def test_access_token_types_are_accepted_in_any_case_and_with_their_prefix_as_configured(world: World) -> None:
    for typ in ("at+jwt", "AT+JWT", "application/at+jwt", "JWT", "jwt"):
        assert await world.chain(minted(typ=typ)) == ["user:alice"]
    strict = a_world(an_issuer(typ=("at+jwt",)))
    assert await strict.chain(minted()) == ["user:alice"]
    await strict.refused(minted(typ="JWT"))


@pytest.fixture
async def canary() -> AsyncIterator[tuple[str, list[bytes]]]:
    """A listener that nobody has a reason to call."""
    hits: list[bytes] = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hits.append(await reader.read(100))
        writer.close()

    server = await asyncio.start_server(note, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}", hits
    server.close()
    await server.wait_closed()


async def test_a_token_never_makes_us_fetch_from_where_it_says(world: World, canary: tuple[str, list[bytes]]) -> None:
    url, hits = canary
    stranger = signing_key("stranger")
    for header in (
        {"jku": f"{url}/keys"},
        {"x5u": f"{url}/cert"},
        {"jwk": dict(stranger.public_jwk)},
        {"x5c": ["MIIB"]},
        {"kid": f"{url}/keys"},
        {"jku": f"{url}/keys", "kid": stranger.kid},
    ):
        await world.refused(
            raw(GOOD_CLAIMS, json.dumps({"alg": "ES256", "typ": "at+jwt", **header}).encode(), stranger)
        )
    await world.refused(minted(iss=url))
    await asyncio.sleep(0)
    assert hits == []
    assert set(world.server.asked) <= {f"{IDP}/keys"}
    ignored = with_header(jku="https://evil.example/keys", jwk=dict(stranger.public_jwk), x5c=["MIIB"])
    assert await world.chain(ignored) == ["user:alice"]


async def test_a_refusal_says_what_is_wrong_and_repeats_nothing_of_the_token(world: World) -> None:
    token = minted(sub="user:canary", aud="https://canary.example", canary="canary")
    refusal = await world.refused(token)
    assert "canary" not in f"{refusal} {refusal.detail} {refusal.challenge}"
    assert refusal.reason is Reason.BAD_CREDENTIAL

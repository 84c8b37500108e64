"""Do an issuer's keys come when they change, stay when it is out, and cost one fetch however many strangers ask?"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from hypothesis import given
from hypothesis import strategies as st
from jwt import get_algorithm_by_name
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from sidecar.errors import Refusal
from sidecar.http.client import EgressError, fetch
from sidecar.http.signing_keys import SigningKey, generate
from sidecar.identity import Identity
from sidecar.identity.jwks import MAX_KEYS, JwksError, parse_jwks
from tests.unit.identity.world import (
    IDP,
    ROUTE,
    Clock,
    Presented,
    World,
    a_world,
    an_issuer,
    b64,
    claims,
    minted,
    signing_key,
)

NEW = "rotated"


@pytest.fixture
def world() -> World:
    return a_world()


def forged(kid: str) -> str:
    return f"{b64({'alg': 'ES256', 'typ': 'at+jwt', 'kid': kid})}.{b64(claims())}.{b64(bytes(64))}"


# How often strangers make us ask


async def test_thousands_of_unknown_key_ids_cost_one_fetch(world: World) -> None:
    """BL-048."""
    await world.identity.start()
    world.clock.pass_s(10)
    for number in range(2_000):
        await world.refused(forged(f"k{number}"))
    assert len(world.server.asked) == 2  # start, and the first unknown id
    await world.identity.close()


async def test_in_a_storm_a_fetch_is_made_every_ten_seconds_and_no_more(world: World) -> None:
    await world.chain(minted())
    for tick in range(100):
        world.clock.pass_s(1)
        await world.refused(forged(f"k{tick}"))
    assert len(world.server.asked) == 1 + 10


async def test_failures_count_too(world: World) -> None:
    world.server.failure = OSError("no route to host")
    for _ in range(30):
        await world.refused(minted())
        world.clock.pass_s(1)
    assert len(world.server.asked) == 3


async def test_a_token_with_a_known_key_asks_for_nothing(world: World) -> None:
    for number in range(20):
        world.clock.pass_s(1)
        await world.chain(minted(jti=str(number)))
    assert len(world.server.asked) == 1


async def test_a_forged_issuer_asks_for_nothing(world: World) -> None:
    await world.refused(minted(iss="https://evil.example"))
    assert world.server.asked == []


async def test_callers_who_come_together_wait_for_one_fetch() -> None:
    asked, gate = [], asyncio.Event()

    async def slow(url: str) -> bytes:
        asked.append(url)
        await gate.wait()
        return json.dumps({"keys": [dict(signing_key().public_jwk)]}).encode()

    clock = Clock()
    identity = Identity([an_issuer()], fetch=slow, clock=clock.wall, mono=clock.monotonic)
    presented = [Presented(authorization=(f"Bearer {minted(jti=str(n))}",)) for n in range(50)]
    calls = [asyncio.create_task(identity.identify(one, ROUTE)) for one in presented]
    await asyncio.sleep(0)
    calls[0].cancel()  # the first to ask hangs up; the others still get their keys
    await asyncio.sleep(0)
    gate.set()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(answers[0], asyncio.CancelledError)
    assert {answer.last.name for answer in answers[1:] if not isinstance(answer, BaseException)} == {"user:alice"}
    assert not [answer for answer in answers[1:] if isinstance(answer, BaseException)]
    assert len(asked) == 1


# Rotation


async def test_a_new_key_is_taken_within_ten_seconds_even_in_a_storm(world: World) -> None:
    """BL-048."""
    await world.chain(minted())
    world.clock.pass_s(10)
    await world.refused(forged("storm"))
    world.server.serve(IDP, signing_key(), signing_key(NEW))
    for second in range(1, 11):
        world.clock.pass_s(1)
        if second < 10:
            await world.refused(minted(signing_key(NEW)))
    assert await world.chain(minted(signing_key(NEW))) == ["user:alice"]
    assert await world.chain(minted()) == ["user:alice"]


async def test_a_key_that_is_gone_proves_nothing_not_even_what_was_remembered(world: World) -> None:
    token = minted()
    await world.chain(token)
    world.server.serve(IDP, signing_key(NEW))
    world.clock.pass_s(10)
    await world.chain(minted(signing_key(NEW)))
    await world.refused(token)


async def test_keys_that_did_not_change_keep_what_was_remembered(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    token = minted()
    await world.chain(token)
    world.clock.pass_s(10)
    await world.refused(forged("k"))
    assert len(world.server.asked) == 2
    monkeypatch.setattr("jwt.PyJWS.decode_complete", lambda *given, **more: pytest.fail("verified again"))
    assert await world.chain(token) == ["user:alice"]


async def test_keys_are_refreshed_without_being_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.identity.jwks.IssuerKeys.keep_fresh.__defaults__", (0.001,))
    world = a_world()
    await world.identity.start()
    world.server.serve(IDP, signing_key(NEW))
    async with asyncio.timeout(5):
        while len(world.server.asked) < 3:
            await asyncio.sleep(0.002)
    await world.identity.close()
    asked = len(world.server.asked)
    assert await world.chain(minted(signing_key(NEW))) == ["user:alice"]
    assert len(world.server.asked) == asked


# Outage


async def test_known_keys_serve_for_one_hour_then_nobody_is_let_in(world: World) -> None:
    token = minted()
    await world.chain(token)
    world.server.failure = EgressError("out")
    for _ in range(6):
        world.clock.pass_s(599)
        assert await world.chain(token) == ["user:alice"]
        await world.refused(minted(signing_key(NEW), iat=world.clock.now, exp=world.clock.now + 60))
    world.clock.pass_s(6)
    fresh = minted(iat=world.clock.now, exp=world.clock.now + 600)
    assert (await world.refused(fresh)).detail == "keys of the issuer cannot be had"
    world.server.failure = None
    world.clock.pass_s(10)
    assert await world.chain(fresh) == ["user:alice"]


async def test_a_remembered_token_does_not_outlive_its_issuers_keys(world: World) -> None:
    token = minted(exp=world.clock.now + 7200)
    await world.chain(token)
    world.server.failure = EgressError("out")
    world.clock.pass_s(3600)
    await world.refused(token)


async def test_a_start_without_the_issuer_succeeds_and_lets_nobody_in(world: World) -> None:
    world.server.failure = ConnectionRefusedError()
    await world.identity.start()
    assert [(state.keys, state.age_s, state.usable) for state in world.identity.key_states] == [(0, None, False)]
    await world.refused(minted())
    world.server.failure = None
    world.clock.pass_s(10)
    await world.chain(minted())
    assert [(state.keys, state.usable) for state in world.identity.key_states] == [(1, True)]
    await world.identity.close()


async def test_a_reload_during_an_outage_goes_on_with_the_keys_that_were_known(world: World) -> None:
    await world.chain(minted())
    world.server.failure = EgressError("out")
    reloaded = Identity([an_issuer()], fetch=world.server.fetch, clock=world.clock.wall, mono=world.clock.monotonic)
    await reloaded.start(world.identity)
    await world.identity.close()
    caller = await reloaded.identify(Presented(authorization=(f"Bearer {minted()}",)), ROUTE)
    assert caller.last.name == "user:alice"
    await reloaded.close()


async def test_a_reload_fetches_once_and_strangers_after_it_wait_their_ten_seconds(world: World) -> None:
    """BL-048: no restart is needed for a new key, and a reload lets nobody make us ask more often."""
    await world.chain(minted())
    world.server.serve(IDP, signing_key(), signing_key(NEW))
    reloaded = Identity([an_issuer()], fetch=world.server.fetch, clock=world.clock.wall, mono=world.clock.monotonic)
    await reloaded.start(world.identity)
    after = World(reloaded, world.clock, world.server)
    assert await after.chain(minted(signing_key(NEW))) == ["user:alice"]
    for number in range(100):
        await after.refused(forged(f"k{number}"))
    assert len(world.server.asked) == 2  # before the reload, and by it
    await reloaded.close()


async def test_a_reload_that_moves_the_keys_elsewhere_forgets_the_old_ones(world: World) -> None:
    await world.chain(minted())
    world.server.failure = EgressError("out")
    moved = an_issuer(jwks_url="https://elsewhere.example/keys")
    moved_world = World(
        Identity([moved], fetch=world.server.fetch, clock=world.clock.wall, mono=world.clock.monotonic),
        world.clock,
        world.server,
    )
    await moved_world.identity.start(world.identity)
    await moved_world.refused(minted())
    await moved_world.identity.close()


@pytest.mark.parametrize("answer", [b"", b"{", b"[]", b'{"keys":[]}', b'{"keys":{}}', b"<html>", b'{"keys":[1]}'])
async def test_an_answer_that_is_no_key_set_keeps_the_old_keys(world: World, answer: bytes) -> None:
    await world.chain(minted())
    world.server.sets[f"{IDP}/keys"] = answer
    world.clock.pass_s(10)
    await world.refused(forged("k"))
    assert await world.chain(minted()) == ["user:alice"]


# What is a key


def jwk(key: SigningKey | None = None, **changes: Any) -> dict[str, Any]:
    members = {**(key or signing_key()).public_jwk, **changes}
    return {name: value for name, value in members.items() if value is not None}


def as_set(*keys: Any) -> bytes:
    return json.dumps({"keys": list(keys)}).encode()


def small_rsa() -> dict[str, Any]:
    public = generate_private_key(public_exponent=65537, key_size=1024).public_key()
    return {**json.loads(RSAAlgorithm.to_jwk(public)), "kid": "small"}


def private_jwk(algorithm: Any, name: str) -> dict[str, Any]:
    return {**json.loads(algorithm.to_jwk(signing_key(f"a {name} key", name).private)), "kid": "private"}


PASSED_OVER: dict[str, Callable[[], Any]] = {
    "for encryption": lambda: jwk(use="enc"),
    "for signing only": lambda: jwk(key_ops=["sign"]),
    "a shared secret": lambda: {"kty": "oct", "k": "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0", "kid": "k"},
    "a private EC key": lambda: private_jwk(ECAlgorithm, "ES256"),
    "a private RSA key": lambda: private_jwk(RSAAlgorithm, "RS256"),
    "a private Ed25519 key": lambda: private_jwk(OKPAlgorithm, "EdDSA"),
    "an unknown type": lambda: jwk(kty="XXX"),
    "an unknown curve": lambda: jwk(crv="P-999"),
    "no point of the curve": lambda: jwk(x="AAAA"),
    "a kid that is a number": lambda: jwk(kid=7),
    "an RSA key of 1024 bits": small_rsa,
    "a string": lambda: "key",
    "an X25519 key": lambda: {"kty": "OKP", "crv": "X25519", "x": "A" * 43, "kid": "k"},
}


@pytest.mark.parametrize("name", PASSED_OVER)
def test_a_key_that_cannot_be_used_is_passed_over(name: str) -> None:
    good = jwk(signing_key("other"))
    assert [key.kid for key in parse_jwks(as_set(PASSED_OVER[name](), good))] == [good["kid"]]
    with pytest.raises(JwksError):
        parse_jwks(as_set(PASSED_OVER[name]()))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=8) | st.sampled_from(["AQAB", "P-256"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
MEMBERS = st.sampled_from(["kty", "crv", "x", "y", "n", "e", "kid", "alg", "use", "key_ops"])


@given(st.sampled_from(["ES256", "RS256", "EdDSA"]), st.dictionaries(MEMBERS, JSON, max_size=3))
def test_whatever_a_key_set_holds_it_is_keys_or_an_error_of_ours(algorithm: str, spoilt: dict[str, Any]) -> None:
    with suppress(JwksError):
        parse_jwks(as_set({**jwk(signing_key(f"a {algorithm} key", algorithm)), **spoilt}))


async def test_who_waits_for_a_fetch_is_answered_when_its_identity_is_closed(world: World) -> None:
    started = asyncio.Event()

    async def never(_: str) -> bytes:
        started.set()
        await asyncio.Event().wait()
        raise AssertionError

    clock = world.clock
    identity = Identity([an_issuer()], fetch=never, clock=clock.wall, mono=clock.monotonic)
    presented = Presented(authorization=(f"Bearer {minted()}",))
    waiting = asyncio.create_task(identity.identify(presented, ROUTE))
    await started.wait()
    await identity.close()
    with pytest.raises(Refusal):
        await waiting


def test_a_set_is_bounded() -> None:
    entry = jwk()
    assert len(parse_jwks(as_set(*[entry] * MAX_KEYS))) == MAX_KEYS
    with pytest.raises(JwksError):
        parse_jwks(as_set(*[entry] * (MAX_KEYS + 1)))
    with pytest.raises(JwksError):
        parse_jwks(as_set(entry) + b" " * 262_144)


@pytest.mark.parametrize("algorithm", ["ES256", "RS256", "EdDSA"])
async def test_each_kind_of_key_verifies_its_own_algorithm(algorithm: str) -> None:
    key = signing_key(f"a {algorithm} key", algorithm)
    everything = ("ES256", "ES384", "RS256", "PS256", "EdDSA")
    world = a_world(an_issuer(algorithms=everything))
    world.server.serve(IDP, key)
    assert await world.chain(minted(key)) == ["user:alice"]
    fitting = [name for name in everything if parse_jwks(as_set(jwk(key, alg=None)))[0].fits(name)]
    assert fitting == {"ES256": ["ES256"], "RS256": ["RS256", "PS256"], "EdDSA": ["EdDSA"]}[algorithm]
    assert [name for name in everything if parse_jwks(as_set(jwk(key)))[0].fits(name)] == [algorithm]


async def test_a_token_without_a_key_id_needs_an_issuer_with_one_fitting_key(world: World) -> None:
    body = f"{b64({'alg': 'ES256', 'typ': 'at+jwt'})}.{b64(claims())}"
    token = f"{body}.{b64(get_algorithm_by_name('ES256').sign(body.encode(), signing_key().private))}"
    assert await world.chain(token) == ["user:alice"]
    world.server.serve(IDP, signing_key(), signing_key(NEW))
    world.clock.pass_s(10)
    await world.chain(minted(signing_key(NEW)))
    await world.refused(token)


async def test_two_keys_of_one_id_are_none(world: World) -> None:
    twin = jwk(signing_key(NEW), kid=signing_key().kid)
    world.server.sets[f"{IDP}/keys"] = as_set(jwk(), twin)
    await world.refused(minted())


# From files, and over real sockets


async def test_keys_from_a_file_rotate_when_the_file_does(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(as_set(jwk()))
    world = a_world(an_issuer(jwks_url="", jwks_path=path))
    assert await world.chain(minted()) == ["user:alice"]
    path.write_bytes(as_set(jwk(), jwk(signing_key(NEW))))
    world.clock.pass_s(10)
    assert await world.chain(minted(signing_key(NEW))) == ["user:alice"]
    path.unlink()
    world.clock.pass_s(10)
    await world.refused(minted(generate()))
    assert await world.chain(minted()) == ["user:alice"]


Answer = Callable[[asyncio.StreamWriter], None]


@pytest.fixture
async def idp() -> AsyncIterator[tuple[str, dict[str, bytes]]]:
    """A real HTTP server whose answers a test writes."""
    answers = {"/keys": b""}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        body = answers[head.split()[1].decode()]
        redirect = body.startswith(b"HTTP/1.1")
        writer.write(body if redirect else b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", answers
    server.close()
    await server.wait_closed()


async def over_http(url: str) -> World:
    issuer = an_issuer(jwks_url=f"{url}/keys")
    world = a_world(issuer)
    clock = world.clock
    return World(Identity([issuer], fetch=fetch, clock=clock.wall, mono=clock.monotonic), clock, world.server)


async def test_keys_come_over_a_real_socket(idp: tuple[str, dict[str, bytes]]) -> None:
    url, answers = idp
    answers["/keys"] = as_set(jwk())
    world = await over_http(url)
    assert await world.chain(minted()) == ["user:alice"]


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 302 Found\r\nLocation: /keys2\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n" + b" " * 300_000,
        b"HTTP/1.1 nonsense",
    ],
)
async def test_an_issuer_that_answers_otherwise_gives_no_keys(idp: tuple[str, dict[str, bytes]], answer: bytes) -> None:
    url, answers = idp
    answers["/keys"], answers["/keys2"] = answer, as_set(jwk())
    world = await over_http(url)
    assert (await world.refused(minted())).detail == "keys of the issuer cannot be had"


async def test_an_issuer_that_drips_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.identity.jwks.FETCH_S", 0.05)

    async def drip(_: str) -> bytes:
        await asyncio.Event().wait()
        raise AssertionError

    clock = Clock()
    world = World(Identity([an_issuer()], fetch=drip, clock=clock.wall, mono=clock.monotonic), clock, a_world().server)
    assert (await world.refused(minted())).detail == "keys of the issuer cannot be had"


async def test_who_was_proven_by_a_key_that_is_gone_is_noticed() -> None:
    world = a_world()
    caller = await world.ask(f"Bearer {minted()}")
    before = world.identity.generation
    assert world.identity.has_keys_of(caller)
    assert a_world().identity.has_keys_of(caller), "where no key was fetched yet, none is known to be gone"
    world.server.serve(IDP, signing_key(), signing_key("next"))
    world.clock.pass_s(20)
    await world.ask(f"Bearer {minted(signing_key('next'))}")
    assert world.identity.has_keys_of(caller) and world.identity.generation > before
    world.server.serve(IDP, signing_key("next"))
    world.clock.pass_s(20)
    await world.refused(minted(signing_key("another")))
    assert not world.identity.has_keys_of(caller)

"""Do an issuer's keys come when they change, stay when it is out, and cost one fetch however many strangers ask?"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from hypothesis import given, strategies as st
from jwt import get_algorithm_by_name
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from sidecar.errors import Refusal
from sidecar.http.client import EgressError, fetch
from sidecar.http.signing_keys import SigningKey, generate
from sidecar.identity.jwks import MAX_KEYS, IssuerKeys, JwksError, parse_jwks
from tests.drawn import containers
from tests.unit.identity.world import IDP, World, a_world, an_issuer, b64, claims, minted, signing_key

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
    for tick in range(1, 101):
        world.clock.pass_s(1)
        await world.refused(forged(f"k{tick}"))
    assert len(world.server.asked) == 2 + 10  # one in ten seconds
    await world.identity.close()


async def test_failures_count_too(world: World) -> None:
    world.server.failure = OSError("no route to host")
    for _ in range(30):
        await world.refused(minted())
        world.clock.pass_s(1)
    assert len(world.server.asked) == 3


async def test_a_token_with_a_known_key_and_one_of_an_unknown_issuer_ask_for_nothing(world: World) -> None:
    await world.refused(minted(iss="https://evil.example"))
    assert world.server.asked == []
    for number in range(20):
        world.clock.pass_s(1)
        await world.chain(minted(jti=str(number)))
    assert len(world.server.asked) == 1


async def test_callers_who_come_together_wait_for_one_fetch(world: World) -> None:
    asked, gate = [], asyncio.Event()

    async def slow(url: str) -> bytes:
        asked.append(url)
        await gate.wait()
        return world.server.sets[url]

    slowly = world.anew(fetch=slow)
    calls = [asyncio.create_task(slowly.chain(minted(jti=str(n)))) for n in range(50)]
    await asyncio.sleep(0)
    calls[0].cancel()  # the first to ask hangs up; the others still get their keys
    await asyncio.sleep(0)
    gate.set()
    first, *answers = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(first, asyncio.CancelledError)
    assert answers == [["user:alice"]] * 49 and len(asked) == 1


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


async def test_an_error_of_ours_does_not_end_the_refreshing() -> None:
    answers = count()

    async def read() -> bytes:
        if next(answers) == 0:
            raise RuntimeError("a bug")
        return as_set(jwk())

    keys = IssuerKeys(IDP, "https://idp.acme.example/keys", read, mono=lambda: 0.0)
    refreshing = asyncio.create_task(keys.keep_fresh(0.001))
    async with asyncio.timeout(5):
        while not keys.usable and not refreshing.done():
            await asyncio.sleep(0.002)
    assert keys.usable
    refreshing.cancel()


# Outage


async def test_known_keys_serve_for_one_hour_then_no_caller_is_let_in(world: World) -> None:
    token, longer = minted(), minted(exp=world.clock.now + 7200)
    for each in (token, longer):
        await world.chain(each)
    world.server.failure = EgressError("out")
    for _ in range(6):
        world.clock.pass_s(599)
        assert await world.chain(token) == ["user:alice"]
        await world.refused(minted(signing_key(NEW), iat=world.clock.now, exp=world.clock.now + 60))
    world.clock.pass_s(6)
    await world.refused(longer)  # what is remembered of it does not outlive its issuer's keys
    fresh = minted(iat=world.clock.now, exp=world.clock.now + 600)
    assert (await world.refused(fresh)).detail == "keys of the issuer cannot be had"
    world.server.failure = None
    world.clock.pass_s(10)
    assert await world.chain(fresh) == ["user:alice"]


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


async def test_a_reload_during_an_outage_goes_on_with_the_keys_that_were_known_of_the_same_place(world: World) -> None:
    await world.chain(minted())
    world.server.failure = EgressError("out")
    reloaded, moved = world.anew(), world.anew(an_issuer(jwks_url="https://elsewhere.example/keys"))
    for after in (reloaded, moved):
        await after.identity.start(world.identity)
    assert await reloaded.chain(minted()) == ["user:alice"]
    await moved.refused(minted())
    for each in (world, reloaded, moved):
        await each.identity.close()


async def test_a_reload_fetches_once_and_strangers_after_it_wait_their_ten_seconds(world: World) -> None:
    """BL-048: no restart is needed for a new key, and a reload lets no stranger make us ask more often."""
    await world.chain(minted())
    world.server.serve(IDP, signing_key(), signing_key(NEW))
    after = world.anew()
    await after.identity.start(world.identity)
    assert await after.chain(minted(signing_key(NEW))) == ["user:alice"]
    for number in range(100):
        await after.refused(forged(f"k{number}"))
    assert len(world.server.asked) == 2  # before the reload, and by it
    await after.identity.close()


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
    "for encryption": lambda: jwk(use="enc"), "for signing only": lambda: jwk(key_ops=["sign"]),
    "a shared secret": lambda: {"kty": "oct", "k": "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0", "kid": "k"},
    "a private EC key": lambda: private_jwk(ECAlgorithm, "ES256"),
    "a private RSA key": lambda: private_jwk(RSAAlgorithm, "RS256"),
    "a private Ed25519 key": lambda: private_jwk(OKPAlgorithm, "EdDSA"), "an unknown type": lambda: jwk(kty="XXX"),
    "an unknown curve": lambda: jwk(crv="P-999"), "no point of the curve": lambda: jwk(x="AAAA"),
    "a kid that is a number": lambda: jwk(kid=7), "an RSA key of 1024 bits": small_rsa, "a string": lambda: "key",
    "an X25519 key": lambda: {"kty": "OKP", "crv": "X25519", "x": "A" * 43, "kid": "k"},
}  # fmt: skip


@pytest.mark.parametrize("name", PASSED_OVER)
def test_a_key_that_cannot_be_used_is_passed_over(name: str) -> None:
    good = jwk(signing_key("other"))
    assert [key.kid for key in parse_jwks(as_set(PASSED_OVER[name](), good))] == [good["kid"]]
    with pytest.raises(JwksError):
        parse_jwks(as_set(PASSED_OVER[name]()))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=8) | st.sampled_from(["AQAB", "P-256"]),
    containers(st.text(max_size=3), 3),
    max_leaves=5,
)
MEMBERS = st.sampled_from(["kty", "crv", "x", "y", "n", "e", "kid", "alg", "use", "key_ops"])


@given(st.sampled_from(["ES256", "RS256", "EdDSA"]), st.dictionaries(MEMBERS, JSON, max_size=3))
def test_whatever_a_key_set_holds_it_is_keys_or_an_error_of_ours(algorithm: str, spoilt: dict[str, Any]) -> None:
    with suppress(JwksError):
        parse_jwks(as_set({**jwk(signing_key(f"a {algorithm} key", algorithm)), **spoilt}))


async def never(_: str) -> bytes:
    await asyncio.Event().wait()
    raise AssertionError


async def test_who_waits_for_a_fetch_is_answered_when_its_identity_is_closed_and_when_it_is_given_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = world.anew(fetch=never)
    waiting = asyncio.create_task(waits.chain(minted()))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    await waits.identity.close()
    with pytest.raises(Refusal):
        await waiting
    monkeypatch.setattr("sidecar.identity.jwks.FETCH_S", 0.05)
    assert (await world.anew(fetch=never).refused(minted())).detail == "keys of the issuer cannot be had"


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


@pytest.fixture
async def idp() -> AsyncIterator[tuple[World, dict[str, bytes]]]:
    """A real HTTP server whose answers a test writes, and a sidecar that has its keys from there."""
    answers = {"/keys": b""}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        body = answers[head.split()[1].decode()]
        written = body.startswith(b"HTTP/1.1")
        writer.write(body if written else b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    yield a_world().anew(an_issuer(jwks_url=f"http://127.0.0.1:{port}/keys"), fetch=fetch), answers
    server.close()
    await server.wait_closed()


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
async def test_over_a_real_socket_keys_come_and_any_other_answer_is_none(
    idp: tuple[World, dict[str, bytes]], answer: bytes
) -> None:
    world, answers = idp
    answers["/keys"], answers["/keys2"] = answer, as_set(jwk())
    assert (await world.refused(minted())).detail == "keys of the issuer cannot be had"
    answers["/keys"] = as_set(jwk())
    world.clock.pass_s(10)
    assert await world.chain(minted()) == ["user:alice"]


async def test_who_was_proven_by_a_key_that_is_gone_is_noticed(world: World) -> None:
    caller = await world.ask(f"Bearer {minted()}")
    before = world.identity.generation
    assert world.identity.has_keys_of(caller)
    assert a_world().identity.has_keys_of(caller), "where no key was fetched yet, none is known to be gone"
    world.server.serve(IDP, signing_key(), signing_key(NEW))
    world.clock.pass_s(20)
    await world.chain(minted(signing_key(NEW)))
    assert world.identity.has_keys_of(caller) and world.identity.generation > before
    world.server.serve(IDP, signing_key(NEW))
    world.clock.pass_s(20)
    await world.refused(minted(signing_key("another")))
    assert not world.identity.has_keys_of(caller)

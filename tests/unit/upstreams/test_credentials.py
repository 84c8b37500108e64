"""What is shown to an upstream, for whom, and what when there is nothing to show?"""

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from sidecar.errors import CredentialFault, Reason, SettingsError, Unsent
from sidecar.http.signing_keys import SigningKey, generate
from sidecar.settings.credentials import Signed, TokenClient, TokenExchange, UpstreamCredential
from sidecar.settings.sidecar_file import Settings
from sidecar.upstreams.credentials.from_settings import source_from
from sidecar.upstreams.credentials.signed_tokens import MAX_KEPT, NO_SIGNER, TokenSigner, signer_from
from sidecar.upstreams.credentials.source import NO_CREDENTIAL, CredentialSource
from sidecar.upstreams.credentials.token_cache import PAUSE_S, GrantedToken, TokenCache
from sidecar.upstreams.credentials.token_exchange import ExchangedTokens
from sidecar.vocabulary import Caller, Principal
from tests.tables import tables
from tests.unit.upstreams.peer import Clock
from tests.unit.upstreams.token_endpoint import Issuing, issuing

UPSTREAM = "https://notes.example/mcp"
SECRET = "s3cret-of+the client"
CANARY = "eyJhbGciOiJub25lIn0.Y2FuYXJ5.c2ln"
ALICE = Caller((Principal("user:alice"), Principal("nhi:planner")), (), token=CANARY)
BOB = Caller((Principal("user:bob"),), (), token="eyJ.bob.sig")
NO_TOKEN = Caller((Principal("nhi:job"),), ())
GRANTED = ("Authorization", "Bearer granted-1")


@asynccontextmanager
async def granted(
    folder: Path, kind: Literal["client_credentials", "token_exchange"] = "client_credentials", **more: Any
) -> AsyncIterator[tuple[Issuing, CredentialSource, Clock]]:
    """A source of tokens before a token endpoint, on a clock of its own."""
    (folder / "secret").write_text(SECRET + "\n")
    async with issuing() as endpoint:
        model = TokenClient if kind == "client_credentials" else TokenExchange
        secret = {} if "key_path" in more else {"secret_path": folder / "secret"}
        told = {"token_url": endpoint.url, "client_id": "side car"[:4], **secret, **more}
        clock = Clock()
        section = UpstreamCredential(**{kind: model(**told)})
        source = source_from(section, UPSTREAM, NO_SIGNER, clock=clock, clock_mono=clock, new_id=lambda: "id")
        try:
            yield endpoint, source, clock
        finally:
            endpoint.gate.set()
            await source.close()


async def refusal_of(source: CredentialSource, caller: Caller | None = None, deadline_s: float = 2.0) -> Unsent:
    with pytest.raises(Unsent) as caught:
        await source.header(caller, deadline_s)
    return caught.value


# --- client credentials -----------------------------------------------------------------------------------------------


async def test_a_hundred_calls_at_once_are_one_question_which_bears_the_secret_where_it_should(tmp_path: Path) -> None:
    async with granted(tmp_path, scope=("a", "b"), audience="aud", resource=UPSTREAM) as (endpoint, source, _):
        shown = await asyncio.gather(*(source.header(caller, 2.0) for caller in [ALICE, BOB, None, NO_TOKEN] * 25))
        assert set(shown) == {GRANTED}
        form, headers = endpoint.forms[0]
        assert form == {"grant_type": "client_credentials", "scope": "a b", "audience": "aud", "resource": UPSTREAM}
        # RFC 6749 2.3.1: each half is form-encoded.
        assert headers["Authorization"] == f"Basic {b64encode(b'side:s3cret-of%2Bthe+client').decode()}"
        assert endpoint.asked == 1
    async with granted(tmp_path, auth="post") as (endpoint, source, _):
        await source.header(None, 2.0)
        form, headers = endpoint.forms[0]
        assert (form["client_id"], form["client_secret"], "Authorization" in headers) == ("side", SECRET, False)


async def test_a_client_with_a_key_signs_who_it_is(tmp_path: Path) -> None:
    key = kept(tmp_path / "client.pem")
    more = {"auth": "private_key_jwt", "key_path": tmp_path / "client.pem", "key_id": "k7"}
    async with granted(tmp_path, **more) as (endpoint, source, _):
        await source.header(None, 2.0)
        form, headers = endpoint.forms[0]
        claims = claims_in(("Authorization", form["client_assertion"]), key, endpoint.url)
        assert (claims["iss"], claims["sub"], claims["jti"]) == ("side", "side", "id")
        assert claims["exp"] - claims["iat"] == 60
        assert jwt.get_unverified_header(form["client_assertion"])["kid"] == "k7"
        assert form["client_assertion_type"] == "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
        assert "client_secret" not in form and "Authorization" not in headers


async def test_a_token_is_renewed_aside_before_it_ends_and_serves_until_then(tmp_path: Path) -> None:
    async with granted(tmp_path) as (endpoint, source, clock):
        await source.header(None, 2.0)
        clock.now += 569
        assert await source.header(None, 2.0) == GRANTED
        assert endpoint.asked == 1
        clock.now += 2
        endpoint.gate.clear()  # nobody waits for it while the old one is good
        assert await source.header(None, 0.0) == GRANTED
        endpoint.gate.set()
        await landed(source)
        assert await source.header(None, 2.0) == ("Authorization", "Bearer granted-2")
        endpoint.status = 503
        clock.now += 580
        for _ in range(2):
            assert await source.header(None, 2.0) == ("Authorization", "Bearer granted-2")
            await landed(source)
        clock.now += 20
        assert (await refusal_of(source)).detail == "its token endpoint answered HTTP 503"


async def test_after_a_failure_nobody_makes_us_ask_again_for_some_seconds(tmp_path: Path) -> None:
    async with granted(tmp_path) as (endpoint, source, clock):
        endpoint.status = 500
        for _ in range(20):
            assert (await refusal_of(source)).reason is Reason.UPSTREAM_FAILED
        assert endpoint.asked == 1
        endpoint.status = 200
        clock.now += PAUSE_S
        assert await source.header(None, 2.0) == ("Authorization", "Bearer granted-2")


TOKEN = {"access_token": "a", "token_type": "Bearer"}
LIES: list[tuple[dict[str, Any], str]] = [
    ({"raw": b"x" * 70_000}, "gave no answer that can be used"),
    ({"raw": b"<html>"}, "gave no token"),
    ({"raw": b'{"access_token":"a","access_token":"b","token_type":"Bearer"}'}, "gave no token"),
    ({"media": "text/html"}, "gave no token"),
    ({"answer": []}, "gave no token"),
    *(({"answer": {**TOKEN, "access_token": odd}}, "gave no token") for odd in (7, "a\r\nX: b", "", "a" * 16_385)),
    ({"answer": {**TOKEN, "token_type": "DPoP"}}, "that is not a bearer token"),
    ({"answer": {"access_token": "a"}}, "that is not a bearer token"),
    *(
        ({"answer": {**TOKEN, "issued_token_type": odd}}, "that is not an access token")
        for odd in ("urn:x:id_token", [])
    ),
    *(({"expires_in": over}, "a token that has expired") for over in (-5, 0, "0")),
    ({"status": 302, "headers": {"Location": "http://127.0.0.1:1/"}}, "answered HTTP 302"),
    ({"status": 401, "answer": {"error": "invalid_client"}}, "refuses the sidecar (invalid_client)"),
    ({"status": 400, "answer": {"error": "<b>canary</b>"}}, "refuses the sidecar (HTTP 400)"),
    ({"status": 400, "raw": b"\xff"}, "refuses the sidecar (HTTP 400)"),
    ({"gone": True}, "its token endpoint cannot be reached"),
]


@pytest.mark.parametrize(("lie", "detail"), LIES)
async def test_an_answer_that_is_not_plain_is_no_token(
    lie: dict[str, Any], detail: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gone = {"token_url": "http://127.0.0.1:1/token"} if "gone" in lie else {}
    async with granted(tmp_path, **gone) as (endpoint, source, _):
        for name, value in lie.items():
            setattr(endpoint, name, value)
        refused = await refusal_of(source)
        assert refused.reason is Reason.UPSTREAM_FAILED and refused.detail.endswith(detail)
        assert endpoint.asked == (not gone)
        assert [record.message for record in caplog.records] == ["token_endpoint_gave_no_token"]


@pytest.mark.parametrize(
    ("said", "life_s"), [(..., 60), (None, 60), (True, 60), ("soon", 60), ("120", 120), (120.5, 120.5), (10**9, 3600)]
)
async def test_how_long_a_token_is_good_for_is_read_with_care(said: Any, life_s: float, tmp_path: Path) -> None:
    async with granted(tmp_path) as (endpoint, source, clock):
        endpoint.expires_in = said
        await source.header(None, 2.0)
        clock.now += life_s - 0.5
        endpoint.status = 500
        assert await source.header(None, 2.0) == GRANTED
        await landed(source)
        clock.now += 1
        await refusal_of(source)


async def test_an_endpoint_that_hangs_costs_a_call_its_own_time_and_no_more(tmp_path: Path) -> None:
    async with granted(tmp_path) as (endpoint, source, _):
        endpoint.gate.clear()
        assert (await refusal_of(source, deadline_s=0.05)).reason is Reason.UPSTREAM_TIMEOUT
        endpoint.gate.set()  # the question went on meanwhile, and its answer is everybody's
        assert await source.header(None, 2.0) == GRANTED
        assert endpoint.asked == 1


async def test_a_token_that_the_upstream_does_not_take_is_dropped_once(tmp_path: Path) -> None:
    async with granted(tmp_path) as (endpoint, source, clock):
        for asked in (1, 2, 2, 2):  # a server that takes none does not make us ask with every call
            shown = await source.header(None, 2.0)
            assert shown is not None and endpoint.asked == asked
            source.refused(None, shown)
        clock.now += PAUSE_S
        source.refused(None, shown)
        assert await source.header(None, 2.0) == ("Authorization", "Bearer granted-3")
        source.refused(None, GRANTED)  # an old answer says nothing of the new one
        assert await source.header(None, 2.0) == ("Authorization", "Bearer granted-3")


# --- token exchange ---------------------------------------------------------------------------------------------------


async def test_each_caller_gets_a_token_in_exchange_for_their_own(tmp_path: Path) -> None:
    (tmp_path / "actor").write_text("ours.actor.token")
    more = {"audience": "notes", "keep_s": 8.0, "actor_token_path": tmp_path / "actor"}
    async with granted(tmp_path, "token_exchange", **more) as (endpoint, source, clock):
        for _ in range(3):
            assert await source.header(ALICE, 2.0) == GRANTED
        assert await source.header(BOB, 2.0) == ("Authorization", "Bearer granted-2")
        kind = "urn:ietf:params:oauth:token-type:access_token"
        assert endpoint.forms[0][0] == {
            "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
            "subject_token": CANARY,
            "subject_token_type": kind,
            "requested_token_type": kind,
            "audience": "notes",
            "actor_token": "ours.actor.token",
            "actor_token_type": kind,
        }
        assert [form["subject_token"] for form, _ in endpoint.forms] == [CANARY, BOB.token]
        await source.header(None, 2.0)  # what the sidecar asks by itself bears its own token
        assert endpoint.forms[2][0]["grant_type"] == "client_credentials"
        clock.now += 8  # it is kept no longer than the operator says
        assert await source.header(ALICE, 2.0) == ("Authorization", "Bearer granted-4")


THEIRS = dict.fromkeys(("invalid_grant", "invalid_request", "invalid_target", "access_denied"), Reason.BAD_CREDENTIAL)
OURS = dict.fromkeys(("invalid_client", "unauthorized_client", "invalid_scope"), Reason.UPSTREAM_FAILED)


@pytest.mark.parametrize(("code", "reason"), (THEIRS | OURS).items())
async def test_an_exchange_that_is_denied_is_the_callers_or_ours(code: str, reason: Reason, tmp_path: Path) -> None:
    async with granted(tmp_path, "token_exchange") as (endpoint, source, _):
        endpoint.status, endpoint.answer = 400, {"error": code, "error_description": CANARY}
        for _ in range(3):
            refused = await refusal_of(source, ALICE)
            assert refused.reason is reason
            assert CANARY not in f"{refused!r}{refused.detail}{refused.challenge}"
            assert (reason is Reason.BAD_CREDENTIAL) == refused.challenge.startswith('error="invalid_token"')
            fault = CredentialFault.NOT_EXCHANGED if reason is Reason.BAD_CREDENTIAL else None
            assert refused.credential_fault is fault  # for the audit record
        assert endpoint.asked == 1
        endpoint.status, endpoint.answer = 200, None
        assert await source.header(BOB, 2.0) == ("Authorization", "Bearer granted-2")  # nobody else's trouble


async def test_tokens_are_bounded_in_number() -> None:
    tokens, clock = TokenCache(Clock(), max_tokens=3), iter(range(100))

    async def fetch() -> GrantedToken:
        return GrantedToken(str(next(clock)), 60.0)

    for number in range(10):
        await tokens.get(bytes([number]), fetch, 1.0)
    assert len(tokens) == 3
    assert await tokens.get(bytes([9]), fetch, 1.0) == "9"
    assert await tokens.get(bytes([0]), fetch, 1.0) == "10"
    await tokens.close()


# --- signed -----------------------------------------------------------------------------------------------------------


def signing(key: SigningKey, clock: Clock, **more: Any) -> CredentialSource:
    ids = iter(range(100_000))
    section = UpstreamCredential(signed=Signed(**more))
    return source_from(section, UPSTREAM, TokenSigner("https://gw", key), clock=clock, new_id=lambda: str(next(ids)))


def claims_in(shown: tuple[str, str] | None, key: SigningKey, audience: str = UPSTREAM) -> dict[str, Any]:
    options: Any = {"verify_exp": False, "verify_iat": False}
    token, public = shown[1].removeprefix("Bearer "), key.private.public_key()
    return jwt.decode(token, public, algorithms=[key.algorithm], audience=audience, options=options)


@pytest.mark.parametrize(("names", "named"), tables("upstreams/credentials")["chains"])
@pytest.mark.parametrize("algorithm", ["ES256", "EdDSA"])
async def test_a_signed_token_names_the_whole_chain(names: list[str], named: dict[str, Any], algorithm: str) -> None:
    key, clock = generate(algorithm), Clock()
    caller = Caller(tuple(map(Principal, names)), (), token=CANARY) if names else None
    claims = claims_in(await signing(key, clock).header(caller, 1.0), key)
    about = {"iss": "https://gw", "aud": UPSTREAM, "iat": 1000, "exp": 1060, "jti": "0"}
    assert claims == {**about, **named}


async def test_a_signature_is_used_again_for_half_its_life_and_for_the_same_chain_only() -> None:
    key, clock = generate(), Clock()
    source = signing(key, clock, ttl_s=100.0, audience="notes")
    first = await source.header(ALICE, 1.0)
    clock.now += 49
    assert await source.header(ALICE, 1.0) == first
    assert await source.header(BOB, 1.0) != first
    clock.now += 1
    again = await source.header(ALICE, 1.0)
    assert (claims_in(again, key, "notes")["exp"], again == first) == (1150, False)
    clock.now -= 500  # a clock that was set back
    assert claims_in(await source.header(ALICE, 1.0), key, "notes")["iat"] == 550


async def test_a_signed_token_ends_with_the_callers_own_credential() -> None:
    key, clock = generate(), Clock()
    source = signing(key, clock)
    for ends, exp in ((1010.0, 1010), (1005.0, 1005), (990.0, 1001)):  # the last one is within its clock's leeway
        caller = Caller(ALICE.chain, (), expires_at=ends)
        assert claims_in(await source.header(caller, 1.0), key)["exp"] == exp


async def test_signatures_that_are_kept_are_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.upstreams.credentials.signed_tokens.MAX_KEPT", 3)
    assert MAX_KEPT == 10_000
    source: Any = signing(generate(), Clock())
    for number in range(10):
        await source.header(Caller((Principal(f"user:{number}"),), ()), 1.0)
    assert len(source._kept) == 3


# --- keys -------------------------------------------------------------------------------------------------------------


def kept(path: Path, mode: int = 0o600) -> SigningKey:
    key = generate()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(key.pem())
    path.chmod(mode)
    return key


def settings_in(folder: Path, **signing: Any) -> Settings:
    upstreams = {"notes": {"mcp": {"url": UPSTREAM}, "credential": {"signed": {}}}}
    text = {"version": 1, "data": "data", "upstreams": upstreams, "signing": signing}
    return Settings.model_validate(text, context={"folder": folder})


def test_a_key_is_made_once_and_is_nobody_elses(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    signer_from(settings, "https://gw", make=False)
    assert not (tmp_path / "data").exists()
    one, two = (signer_from(settings, "https://gw", make=True) for _ in range(2))
    assert one == two and one.kid
    assert (tmp_path / "data/keys/signing.pem").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in (tmp_path / "data/keys").iterdir()] == ["signing.pem"]
    assert one != signer_from(settings, "https://elsewhere", make=True)


def test_the_key_set_has_the_public_halves_of_this_key_and_those_before(tmp_path: Path) -> None:
    now, before = kept(tmp_path / "now.pem"), kept(tmp_path / "data/keys/signing.previous.pem")
    public = generate("EdDSA")
    spki = jwt.algorithms.OKPAlgorithm.from_jwk(dict(public.public_jwk))
    (tmp_path / "older.pub").write_bytes(spki.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    signer = signer_from(settings_in(tmp_path, key_path="now.pem", previous_paths=["older.pub"]), "i", make=True)
    keys = json.loads(signer.key_set)["keys"]
    assert [key["kid"] for key in keys] == [now.kid, public.kid, before.kid]
    assert all(set(key) <= {"kty", "crv", "x", "y", "use", "alg", "kid"} for key in keys)
    assert "PRIVATE" not in f"{signer!r}{now!r}"


@pytest.mark.parametrize(
    ("mode", "text", "message"),
    [(0o644, "", "is open to others"), (0o600, "no key", "is not a PEM key"), (0o600, None, "cannot be read")],
)
def test_a_key_that_cannot_be_used_stops_the_start(mode: int, text: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "k.pem"
    kept(path, mode)
    if text is None:
        path.unlink()
    elif text:
        path.write_text(text)
    with pytest.raises(SettingsError, match=message):
        signer_from(settings_in(tmp_path, key_path="k.pem"), "i", make=True)


# --- all kinds --------------------------------------------------------------------------------------------------------


@pytest.fixture
def kinds(tmp_path: Path) -> dict[str, UpstreamCredential]:
    (tmp_path / "one").write_text("secret-one")
    client = {"token_url": "https://idp.example/token", "client_id": "c", "secret_path": tmp_path / "one"}
    return {
        "bearer": UpstreamCredential(bearer_path=tmp_path / "one"),
        "header": UpstreamCredential(header="X-Key", value_path=tmp_path / "one"),
        "client": UpstreamCredential(client_credentials=TokenClient(**client)),
        "exchange": UpstreamCredential(token_exchange=TokenExchange(**client)),
        "signed": UpstreamCredential(signed=Signed()),
        "passed": UpstreamCredential(passthrough=True),
        "passed, own": UpstreamCredential(passthrough=True, own_bearer_path=tmp_path / "one"),
    }


def test_what_shows_the_same_is_known_by_kind_and_content(kinds: dict[str, UpstreamCredential], tmp_path: Path) -> None:
    signer = TokenSigner("https://gw", generate())

    def made(signer: TokenSigner = signer) -> dict[str, CredentialSource]:
        return {name: source_from(kind, UPSTREAM, signer) for name, kind in kinds.items()} | {"": NO_CREDENTIAL}

    one, other = made(), made()
    assert [(a, b) for a in one for b in other if one[a] == other[b]] == [(name, name) for name in one]
    rekeyed = made(TokenSigner("https://gw", generate()))
    assert {name for name in one if one[name] != rekeyed[name]} == {"signed"}
    (tmp_path / "one").write_text("another secret")
    changed = made()
    assert {name for name in one if one[name] == changed[name]} == {"signed", "passed", ""}


async def test_no_kind_but_passthrough_shows_the_callers_token_and_none_prints_a_secret(
    kinds: dict[str, UpstreamCredential],
) -> None:
    for name, kind in kinds.items():
        source = source_from(kind, UPSTREAM, TokenSigner("https://gw", generate()))
        if not isinstance(source, ExchangedTokens) and name != "client":
            shown = await source.header(ALICE, 1.0)
            assert (shown == ("Authorization", f"Bearer {CANARY}")) == name.startswith("passed")
        assert "secret-one" not in repr(source) + repr(getattr(source, "wanted", ""))
        await source.close()
        await source.close()
    assert CANARY not in repr(ALICE)
    assert Caller(ALICE.chain, ()) == ALICE


async def test_passthrough_shows_its_own_token_for_nobodys_questions(kinds: dict[str, UpstreamCredential]) -> None:
    with_own, without = (source_from(kinds[name], UPSTREAM, NO_SIGNER) for name in ("passed, own", "passed"))
    assert await with_own.header(None, 1.0) == ("Authorization", "Bearer secret-one")
    assert await without.header(None, 1.0) is None
    assert (await refusal_of(without, NO_TOKEN)).reason is Reason.UNAUTHENTICATED


async def landed(source: Any) -> None:
    """Wait until no question is under way."""
    async with asyncio.timeout(5):
        while source.tokens._flights:
            await asyncio.sleep(0.005)

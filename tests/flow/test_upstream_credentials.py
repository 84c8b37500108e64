"""Does each upstream get the credential that the operator chose, and nobody's own token but where he says so?"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jwt
import pytest

from sidecar.app.loader import check_files
from sidecar.identity.jwks import JwksError, parse_jwks
from tests.flow.apart import SessionsOnly, StatelessOnly
from tests.flow.federated import At
from tests.flow.idp import SETTINGS, Idp, bearer
from tests.flow.pairs import pair
from tests.flow.scripts import status
from tests.flow.talk import Era, Talk, reason_of
from tests.flow.test_crossings import act
from tests.flow.world import TOOLS, Upstream, World, listening, until, world
from tests.tables import tables
from tests.unit.upstreams import old
from tests.unit.upstreams.token_endpoint import Issuing, issuing

IDP = Idp()
PLANNER_KEY = IDP.api_key("nhi:planner")
GOOD = {"repo": "acme/site"}
RULES = """\
p, nhi:planner, tool:github/search_code, use, -, -, -, allow
p, nhi:planner, tool:github/act, use, -, -, -, allow
"""
LENDS = {"policies/user_to_nhi.csv": "p, user:alice, nhi:planner, delegate, -, -, -, allow\n"}
OWN = "the-upstreams-own-credential"
KINDS = tables("flow/upstream_credentials")["kinds"]


@dataclass
class Scene:
    """A sidecar before `server`, a token endpoint, and alice's token, which she uses through nhi:planner."""

    running: World
    server: Any
    endpoint: Issuing
    canary: str = ""

    @property
    def headers(self) -> dict[str, str]:
        return bearer(self.canary)

    def talk(self, era: Era = "stateless", headers: Mapping[str, str] | None = None) -> Talk:
        return Talk(self.running, era, dict(headers or self.headers))

    @property
    def other(self) -> str:
        """Another token of alice's."""
        return IDP.token("user:alice", at(self.running), actors=["nhi:planner"], ttl_s=500)

    def calls(self) -> list[str]:
        """What each call showed."""
        return [shown for what, shown in self.shown() if what == "tools/call"]

    def shown(self) -> list[tuple[str, str]]:
        """(what came, its Authorization) in order, and (…, X-Key) where there is none."""
        came = [(str(message.get("method", "response")), headers) for headers, message in self.server.seen]
        came += [(verb, headers) for verb, headers in self.server.verbs if verb != "POST"]
        return [(what, headers.get("Authorization") or headers.get("X-Key") or "") for what, headers in came]


@asynccontextmanager
async def scene(folder: Path, kind: str, server: Any = None, **options: Any) -> AsyncIterator[Scene]:
    server = server or Upstream()
    async with issuing() as endpoint:
        credential = KINDS.get(kind, kind).replace("TOKEN_URL", f'"{endpoint.url}"')
        files = {**IDP.files(), **LENDS, "own": OWN}
        behind = f"credential: {credential}" + options.pop("upstream_settings", "")
        how = {"rules": RULES, "settings": SETTINGS, "files": files, "principal": "", **options}
        async with world(folder, upstream=server, upstream_settings=behind, **how) as running:
            yield Scene(running, server, endpoint, IDP.token("user:alice", at(running), actors=["nhi:planner"]))


def at(running: World) -> str:
    return f"{running.app.base_url}/mcp/github"


# --- the caller's token stays here ------------------------------------------------------------------------------------


@dataclass
class OverSse:
    """A server of the HTTP+SSE transport, told like the others."""

    old: old.Old = field(default_factory=old.Old)

    @property
    def seen(self) -> list[tuple[Mapping[str, str], dict[str, Any]]]:
        return [(headers_in(raw), json.loads(body)) for raw, body in self._requests() if body]

    @property
    def verbs(self) -> list[tuple[str, Mapping[str, str]]]:
        return [("GET", headers_in(raw)) for raw, body in self._requests() if not body]

    def _requests(self) -> list[tuple[bytes, bytes]]:
        return [(raw.partition(b"\r\n\r\n")[0], raw.partition(b"\r\n\r\n")[2]) for raw in self.old.server.requests]


def headers_in(head: bytes) -> Mapping[str, str]:
    lines = [line.partition(": ") for line in head.decode().split("\r\n")[1:]]
    return {name: value for name, _, value in lines}


async def everything(scene: Scene, era: Era, tool: str) -> list[str]:
    """What a caller may do, well and badly, on every verb; all that they heard."""
    talk = scene.talk(era)
    heard = [await talk.call(tool, GOOD), await talk.ask("tools/list")]
    heard += [await talk.call("delete_repo", GOOD), await talk.call(tool, {"repo": 7})]  # denied, and bad
    if era != "plain":
        heard.append(await talk.ask("no/such"))
    heard.append(await talk.call(tool, GOOD, headers={"X-API-Key": "sck_none"}))  # and nobody is let in
    if era == "session":
        await talk.verb("DELETE")
    heard.append(await scene.talk(headers=bearer(scene.canary + "x")).call(tool, GOOD))
    return [f"{answer[1]}{answer[2]}" for answer in heard]


WAYS: list[tuple[str, Era]] = [
    *(("http", "stateless"), ("http", "session"), ("http", "plain"), ("stateless only", "session")),
    *(("sessions only", "plain"), ("sessions only", "stateless"), ("http+sse", "session"), ("http+sse", "stateless")),
]


# every kind over the common ways; those that depend on the caller's token over all
MATRIX = [
    (kind, *way) for at, way in enumerate(WAYS) for kind in KINDS if at < 2 or kind in ("passthrough", "token_exchange")
]


@pytest.mark.parametrize(("kind", "way", "era"), MATRIX)
async def test_the_callers_token_is_shown_to_nobody_but_by_passthrough(
    kind: str, way: str, era: Era, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """BL-003: every kind of credential, transport and era, the ways that end in a refusal included."""
    caplog.set_level(logging.DEBUG)
    servers: dict[str, Any] = {"sessions only": SessionsOnly, "stateless only": StatelessOnly, "http": Upstream}
    if way == "http+sse":
        monkeypatch.setitem(old.RESULTS, "tools/list", {"tools": TOOLS})
        async with old.running(old.Old()) as server:
            options = {"upstream_url": server.server.url, "mcp_settings": "transport: sse"}
            async with scene(tmp_path, kind, **options) as stage:
                stage.server = OverSse(server)
                await _canary(stage, kind, era, "search_code", caplog)
    else:
        async with scene(tmp_path, kind, servers[way]()) as stage:
            await _canary(stage, kind, era, "search_code" if way == "http" else "act", caplog)


async def _canary(stage: Scene, kind: str, era: Era, tool: str, caplog: pytest.LogCaptureFixture) -> None:
    heard = await everything(stage, era, tool)
    calls = stage.calls()
    own_lists = [shown for what, shown in stage.shown() if what == "tools/list"]
    assert calls and own_lists
    if kind == "passthrough":
        assert set(calls) == {f"Bearer {stage.canary}"}
        assert own_lists[0] == f"Bearer {OWN}"  # the sidecar's own question
    else:
        if kind in ("bearer", "header"):
            assert {shown for _, shown in stage.shown()} == {f"Bearer {OWN}" if kind == "bearer" else OWN}
        told = json.dumps(stage.shown()) + "".join(f"{seen}" for seen in [*stage.server.seen, *stage.server.verbs])
        assert stage.canary not in told and stage.canary.rpartition(".")[2] not in told
        assert all(shown for _, shown in stage.shown())  # nothing goes without the upstream's own
    sent_to_issuer = [form.get("subject_token") for form, _ in stage.endpoint.forms]
    assert set(sent_to_issuer) <= ({None, stage.canary} if kind == "token_exchange" else {None})
    signature = stage.canary.rpartition(".")[2]
    audit = stage.running.app.settings.audit_path.read_text()
    logged = "".join(repr(vars(record)) for record in caplog.records)
    for place in (*heard, audit, logged, await stage.running.metrics()):
        assert signature not in place
        assert OWN not in place and "granted-" not in place
    data = stage.running.folder / "data"
    assert not any(signature.encode() in path.read_bytes() for path in data.rglob("*") if path.is_file())


async def test_two_callers_of_one_chain_each_show_their_own_token(tmp_path: Path) -> None:
    """A session that is lent to both is no reason to speak with the other's token."""
    async with scene(tmp_path, "passthrough", SessionsOnly()) as stage:
        other = stage.other
        for token in (stage.canary, other, stage.canary, other):
            assert (await stage.talk(headers=bearer(token)).call("act"))[0] == 200
        assert stage.calls() == [f"Bearer {token}" for token in (stage.canary, other, stage.canary, other)]


async def test_what_goes_on_in_a_lent_session_shows_the_token_of_who_came_last(tmp_path: Path) -> None:
    """An answer to the server's question goes with its giver's token; a stream that is opened anew, with no older one
    than there is."""
    asks = RULES + "p, nhi:planner, nhi:github, elicitation/create, -, -, -, allow\n"
    able = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}
    async with scene(tmp_path, "passthrough", SessionsOnly(), rules=asks) as stage:
        other = stage.other
        arguments: dict[str, Any] = {"ask": ["elicitation/create"]}
        asked = (await act(stage.running, arguments, who=stage.headers, meta=able))[-1]["result"]
        answers = {"inputResponses": {"question": {"action": "accept"}}, "requestState": asked["requestState"]}
        ended = (await act(stage.running, arguments, who=bearer(other), meta=able, id=2, **answers))[-1]["result"]
        assert ended["resultType"] == "complete"
        assert [shown for what, shown in stage.shown() if what == "response"] == [f"Bearer {other}"]
        stage.server.hang_up()
        await until(lambda: len(opened(stage)) > 1)
        assert opened(stage)[:2] == [f"Bearer {token}" for token in (stage.canary, other)]


def opened(stage: Scene) -> list[str]:
    """What callers' streams showed, and not our own."""
    return [shown for what, shown in stage.shown() if what == "GET" and OWN not in shown]


@pytest.mark.parametrize("kind", ["passthrough", "token_exchange"])
async def test_a_caller_without_a_token_is_refused_and_not_charged(kind: str, tmp_path: Path) -> None:
    rules = "p, nhi:planner, tool:github/search_code, use, -, 1, -, allow\n"
    async with scene(tmp_path, kind, rules=rules) as stage:
        for _ in range(2):  # the one call that the hour has is still there
            answer = await stage.talk(headers=bearer(PLANNER_KEY)).call("search_code", GOOD)
            assert (answer[0], reason_of(answer)) == (401, "unauthenticated")
            assert answer[2]["WWW-Authenticate"].startswith("Bearer resource_metadata=")
        assert stage.server.calls() == []
        own = bearer(IDP.token("nhi:planner", at(stage.running)))
        code, *_ = await stage.talk(headers=own).call("search_code", GOOD)
        assert (code, len(stage.server.calls())) == (200, 1)


# --- token endpoints in trouble ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trouble", "status", "reason"),
    [
        ({"status": 503}, 502, "upstream-failed"),
        ({"raw": b"x" * 100_000}, 502, "upstream-failed"),
        ({"status": 400, "answer": {"error": "invalid_grant"}}, 401, "bad-credential"),
    ],
)
async def test_where_no_token_is_to_be_had_no_call_is_sent(
    trouble: dict[str, Any], status: int, reason: str, tmp_path: Path
) -> None:
    async with scene(tmp_path, "token_exchange") as stage:
        assert (await stage.talk().call("search_code", GOOD))[0] == 200  # what the server has is known from now on
        for name, value in trouble.items():
            setattr(stage.endpoint, name, value)
        other = stage.other
        for _ in range(8):
            answer = await stage.talk(headers=bearer(other)).call("search_code", GOOD)
            assert (answer[0], reason_of(answer)) == (status, reason)
        assert len(stage.server.calls()) == 1
        assert stage.running.app.upstreams()["github"]["breaker"]["state"] == "closed"
        assert (await stage.talk().call("search_code", GOOD))[0] == 200  # who has a token goes on


async def test_a_token_that_is_refused_is_not_shown_again_and_no_call_is_sent_twice(tmp_path: Path) -> None:
    async with scene(tmp_path, "client_credentials") as stage:
        assert (await stage.talk().call("search_code", GOOD))[0] == 200
        stage.server.script["tools/call"] = status(401)
        answer = await stage.talk().call("search_code", GOOD)
        assert (answer[0], reason_of(answer)) == (502, "upstream-failed")
        del stage.server.script["tools/call"]
        assert (await stage.talk().call("search_code", GOOD))[0] == 200
        assert stage.calls() == ["Bearer granted-1", "Bearer granted-1", "Bearer granted-2"]


async def test_a_caller_who_leaves_while_a_token_is_fetched_leaves_nothing(tmp_path: Path) -> None:
    async with scene(tmp_path, "token_exchange") as stage:
        assert (await stage.talk().call("search_code", GOOD))[0] == 200
        other = stage.other
        stage.endpoint.gate.clear()
        asked = stage.endpoint.asked
        leaver = asyncio.create_task(stage.talk(headers=bearer(other)).call("search_code", GOOD))
        await until(lambda: stage.endpoint.asked > asked)
        leaver.cancel()
        await until(lambda: "caller-gone" in [end.get("reason") for end in stage.running.ends()])
        stage.endpoint.gate.set()
        assert (await stage.talk(headers=bearer(other)).call("search_code", GOOD))[0] == 200
        assert stage.endpoint.asked == asked + 1
        assert len(stage.server.calls()) == 2


# --- what we sign -----------------------------------------------------------------------------------------------------


async def key_set(running: World) -> tuple[bytes, Mapping[str, str]]:
    async with running.http.get(f"{running.app.base_url}/.well-known/jwks.json") as response:
        assert response.status == 200
        return await response.read(), dict(response.headers)


def verified(shown: str, keys: bytes, audience: str, issuer: str) -> dict[str, Any]:
    """As an upstream verifies it that knows nothing but our key set."""
    token = shown.removeprefix("Bearer ")
    key = jwt.PyJWKSet.from_json(keys.decode())[jwt.get_unverified_header(token)["kid"]]
    claims: dict[str, Any] = jwt.decode(token, key, algorithms=["ES256"], audience=audience, issuer=issuer)
    return claims


async def test_an_upstream_can_verify_what_we_sign_and_reads_the_chain_in_it(tmp_path: Path) -> None:
    async with scene(tmp_path, "signed") as stage:
        for _ in range(3):
            assert (await stage.talk().call("search_code", GOOD))[0] == 200
        keys, headers = await key_set(stage.running)
        assert headers["Content-Type"] == "application/json" and "max-age" in headers["Cache-Control"]
        assert b'"d"' not in keys and b"PRIVATE" not in keys
        calls = stage.calls()
        assert len(set(calls)) == 1  # one signature for the three
        claims = verified(calls[0], keys, stage.server.url, stage.running.app.base_url)
        assert (claims["sub"], claims["act"]) == ("user:alice", {"sub": "nhi:planner"})
        assert claims["exp"] - claims["iat"] == 60
        own = next(shown for what, shown in stage.shown() if what == "tools/list")
        assert verified(own, keys, stage.server.url, stage.running.app.base_url)["sub"] == stage.running.app.base_url
        with pytest.raises(jwt.InvalidAudienceError):
            verified(calls[0], keys, "https://another.example/mcp", stage.running.app.base_url)
        path = tmp_path / "data" / "keys" / "signing.pem"
        assert path.stat().st_mode & 0o777 == 0o600


async def test_a_rotated_key_signs_at_once_and_the_one_before_is_served_on(tmp_path: Path) -> None:
    async with scene(tmp_path, "signed") as stage:
        await stage.talk().call("search_code", GOOD)
        keys = tmp_path / "data" / "keys"
        (keys / "signing.pem").rename(keys / "signing.previous.pem")
        await stage.running.app.reload("test")
        await stage.talk().call("search_code", GOOD)
        served, _ = await key_set(stage.running)
        calls = stage.calls()
        kids = [jwt.get_unverified_header(shown.removeprefix("Bearer "))["kid"] for shown in calls]
        assert kids[0] != kids[1]
        keys_of_tokens = [key["kid"] for key in json.loads(served)["keys"] if key["use"] == "sig"]
        assert keys_of_tokens == [kids[1], kids[0]]
        for shown in calls:
            verified(shown, served, stage.server.url, stage.running.app.base_url)


async def test_the_key_set_holds_no_key_of_tokens_where_none_is_signed(tmp_path: Path) -> None:
    async with scene(tmp_path, "bearer") as stage:
        served = (await key_set(stage.running))[0]
        (only,) = json.loads(served)["keys"]
        assert (only["use"], only["crv"]) == ("audit-checkpoint", "Ed25519") and "d" not in only
        with pytest.raises(JwksError):  # whoever believes our tokens does not take it for one of their keys
            parse_jwks(served)
        assert not (tmp_path / "data" / "keys" / "signing.pem").exists()


# --- settings and reloads ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bearer", "header", "client_credentials", "token_exchange", "passthrough"])
async def test_a_changed_secret_makes_a_new_upstream_and_an_equal_one_keeps_it(kind: str, tmp_path: Path) -> None:
    async with scene(tmp_path, kind) as stage:
        before = stage.running.app.live.current.services["github"]
        await stage.running.app.reload("test")
        assert stage.running.app.live.current.services["github"] is before
        (tmp_path / "own").write_text("another-secret")
        await stage.running.app.reload("test")
        assert stage.running.app.live.current.services["github"] is not before
        assert (await stage.talk().call("search_code", GOOD))[0] == 200


async def test_a_check_warns_of_passthrough_and_writes_nothing(tmp_path: Path) -> None:
    async with scene(tmp_path, "passthrough"):
        pass
    _, doubts = check_files(tmp_path / "sidecar.yaml", {})
    assert [(fault.code, fault.severity, fault.line) for fault in doubts] == [("S118", "warning", doubts[0].line)]
    assert doubts[0].line > 0
    text = (tmp_path / "sidecar.yaml").read_text()
    (tmp_path / "sidecar.yaml").write_text(text.replace("{passthrough: true, own_bearer_path: own}", "{signed: {}}"))
    assert check_files(tmp_path / "sidecar.yaml", {})[1] == ()
    assert not (tmp_path / "data" / "keys" / "signing.pem").exists()


# --- further fronts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bearer", "token_exchange", "signed", "passthrough"])
async def test_over_http_sse_each_message_shows_what_its_own_token_gives(kind: str, tmp_path: Path) -> None:
    async with scene(tmp_path, kind) as stage:
        other = stage.other
        async with pair(stage.running, stage.headers) as talk:
            assert "result" in await talk.call("search_code", GOOD)
            talk.headers = bearer(other)
            assert "result" in await talk.call("search_code", GOOD, id=2)
        calls = stage.calls()
        if kind == "passthrough":
            assert calls == [f"Bearer {stage.canary}", f"Bearer {other}"]
        else:
            told = repr(stage.server.verbs)
            assert stage.canary not in told and other not in told and all(calls)
        if kind == "token_exchange":
            subjects = [form.get("subject_token") for form, _ in stage.endpoint.forms]
            assert subjects.count(stage.canary) == subjects.count(other) == 1


@pytest.mark.parametrize("era", ["stateless", "session"])
async def test_at_the_address_of_all_servers_the_token_goes_to_the_one_that_is_to_have_it(
    era: Era, tmp_path: Path
) -> None:
    gitlab = Upstream()
    async with listening(gitlab.handle) as base:
        more = f"}}\n  gitlab: {{mcp: {{url: '{base}/mcp'}}, credential: {{bearer_path: own}}"
        rules = "p, nhi:planner, tool:*, use, -, -, -, allow\n"
        async with scene(tmp_path, "passthrough", rules=rules, upstream_settings=more) as stage:
            token = IDP.token("user:alice", f"{stage.running.app.base_url}/mcp", actors=["nhi:planner"])
            talk = At(stage.running, era, bearer(token))
            for name in ("github__search_code", "gitlab__search_code"):
                assert "result" in (await talk.call(name, GOOD))[1]
            await talk.ask("tools/list")
            assert stage.calls() == [f"Bearer {token}"]
            assert gitlab.calls()
            assert {headers.get("Authorization") for headers, _ in gitlab.seen} == {f"Bearer {OWN}"}
            talk = At(stage.running, era, bearer(PLANNER_KEY))  # who has no token has the servers that need none
            listed = (await talk.ask("tools/list"))[1]["result"]["tools"]
            assert {tool["name"].partition("__")[0] for tool in listed} == {"gitlab"}
            assert "result" in (await talk.call("gitlab__search_code", GOOD))[1]
            assert reason_of(await talk.call("github__search_code", GOOD)) == "unauthenticated"
            assert len(stage.server.calls()) == 1

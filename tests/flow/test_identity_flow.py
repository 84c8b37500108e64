"""Whoever they are, does the whole way treat them as exactly that?

Tokens, API keys and local listeners through a running sidecar: chains as policy reads them, credentials that stay with
us, and every way around the question.
"""

import asyncio
import http.client
import json
import re
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from aiohttp import web

from sidecar.gateway.routing import ISSUER_PATH
from sidecar.settings.identity import ALGORITHMS
from tests.flow.idp import APPS, ISSUER, SETTINGS, Idp, bearer
from tests.flow.raw import request, wire
from tests.flow.streams import streamed
from tests.flow.talk import ERAS, Answer, Era, Talk, reason_of
from tests.flow.world import STATELESS, Upstream, World, listening, stateless, until, world
from tests.tables import tables

IDP = Idp()
PLANNER_KEY, RESEARCHER_KEY = (IDP.api_key(name) for name in ("nhi:planner", "nhi:researcher"))
GOOD = {"repo": "acme/site"}
TOOLS = """\
p, nhi:planner, tool:github/search_code, use, -, -, -, allow
p, nhi:researcher, tool:github/search_code, use, -, -, -, allow
p, user:alice, tool:github/get_file, use, -, -, -, allow
"""
LENDS = {
    "policies/user_to_nhi.csv": "p, user:alice, nhi:planner, delegate, -, -, -, allow\n"
    "p, user:bob, nhi:planner, message/send, -, -, -, allow\n",
    "policies/nhi_to_nhi.csv": "p, nhi:planner, nhi:researcher, delegate, -, -, -, allow\n",
}


@asynccontextmanager
async def gateway(folder: Path, *, local: str = "", **options: Any) -> AsyncIterator[World]:
    """A sidecar that knows the identity provider; `World.url` is the data listener."""
    settings = SETTINGS + options.pop("settings", "")
    files = {**IDP.files(), **LENDS, **options.pop("files", {})}
    async with world(
        folder, rules=options.pop("rules", TOOLS), settings=settings, files=files, principal=local, **options
    ) as running:
        running.url = running.app.base_url
        yield running


def at(running: World, server: str = "github") -> str:
    return f"{running.url}/mcp/{server}"


def local_url(running: World) -> str:
    return f"http://127.0.0.1:{running.app.listeners[1].port}"


def token(running: World, subject: str, *actors: str, **more: Any) -> str:
    return IDP.token(subject, more.pop("aud", at(running)), actors=actors, **more)


# --- chains ---------------------------------------------------------------------------------------------------------

Headers = Callable[[World], dict[str, str]]


def shows(*names: str, key: str = "", signer: Any = None, **more: Any) -> Headers:
    """A token of a subject and its actors, and perhaps an API key beside it."""
    beside, own = {"X-API-Key": key} if key else {}, {"key": signer} if signer else {}
    return lambda w: bearer(token(w, *names, **more, **own)) | beside


def of_apps(**claims: str) -> Headers:
    return shows("alice", issuer=APPS, claims={**claims, "is": "user"})


LENT = {"aud": "nhi:researcher"}
NO_RULE = "no-matching-rule"
ALICE, BOB, PLANNER, RESEARCHER = "user:alice", "user:bob", "nhi:planner", "nhi:researcher"
# what is presented → the chain that it proves, and what policy says to search_code
CHAINS: dict[str, tuple[Headers, list[str], str]] = {
    "a user's token": (shows(ALICE), [ALICE], NO_RULE),
    "a workload's token": (shows(PLANNER), [PLANNER], ""),
    "a workload's key": (lambda w: bearer(PLANNER_KEY), [PLANNER], ""),
    "a workload's key in its own header": (lambda w: {"X-API-Key": PLANNER_KEY}, [PLANNER], ""),
    "two actors, the outermost the newest": (shows(ALICE, PLANNER, RESEARCHER), [ALICE, PLANNER, RESEARCHER], ""),
    "a user who lends nothing": (shows(BOB, PLANNER), [BOB, PLANNER], NO_RULE),
    "actors in the other order": (shows(ALICE, RESEARCHER, PLANNER), [ALICE, RESEARCHER, PLANNER], NO_RULE),
    "a user's token with a workload's key": (shows(ALICE, key=PLANNER_KEY), [ALICE, PLANNER], ""),
    "a token lent": (shows(ALICE, PLANNER, key=RESEARCHER_KEY, **LENT), [ALICE, PLANNER, RESEARCHER], ""),
    "a client of the table": (of_apps(azp="planner-app"), ["user:apps/alice", PLANNER], NO_RULE),
    "a person's own program": (of_apps(azp="vscode"), ["user:apps/alice"], NO_RULE),
}


async def test_a_chain_is_what_was_proven_and_every_link_is_asked(tmp_path: Path) -> None:
    async with gateway(tmp_path) as running:
        for name, (headers, chain, reason) in CHAINS.items():
            before = len(running.upstream.calls())
            answer = await Talk(running, "stateless", headers(running)).call("search_code", GOOD)
            assert (reason_of(answer), answer[0]) == (reason, 403 if reason else 200), name
            end = running.ends()[-1]
            assert (end["chain"], end["agent_id"]) == (chain, chain[-1]), name
            assert len(running.upstream.calls()) - before == (0 if reason else 1)
            actions = [link["action"] for link in end["links"]]
            assert actions == ["delegate"] * (len(chain) - 1) + ["tools/call"]


# what is forged, by the reason
BAD: dict[str, Headers] = {
    "signed by somebody": shows(PLANNER, signer=Idp().key),
    "for another server": lambda w: bearer(token(w, PLANNER, aud=at(w, "jira"))), "over": shows(PLANNER, age_s=900),
    "an actor that is a user": shows(ALICE, BOB), "a role as subject": shows("role:admin"),
    "a name in another issuer's namespace": shows("user:apps/alice"),
    "a token lent to somebody else": shows(ALICE, PLANNER, key=PLANNER_KEY, **LENT),
    "a good key beside a garbled token": lambda w: bearer("a.b.c") | {"X-API-Key": PLANNER_KEY},
    "a good token beside a garbled key": shows(PLANNER, key="sck_no"),
    "basic": lambda w: {"Authorization": "Basic cGxhbm5lcjpwYXNz"},
}  # fmt: skip
CONFLICTS: dict[str, Headers] = {
    "two workloads": shows(PLANNER, key=RESEARCHER_KEY),
    "two keys": lambda w: bearer(PLANNER_KEY) | {"X-API-Key": PLANNER_KEY},
}
CLIENTS = {"a client that is not listed": of_apps(azp="evil")}
REASONS = {"bad-credential": BAD, "credential-conflict": CONFLICTS, "client-unknown": CLIENTS}
FORGED = {name: (shown, reason) for reason, rows in REASONS.items() for name, shown in rows.items()}


@pytest.mark.parametrize("era", ERAS)
async def test_what_is_forged_is_401_and_never_somebody_else(era: Era, tmp_path: Path) -> None:
    async with gateway(tmp_path, upstream_settings="anonymous: true") as running:
        for name, (headers, reason) in FORGED.items():
            talk = Talk(running, era, headers(running))
            answer = await talk.open() if era == "session" else await talk.call("search_code", GOOD)
            assert (answer[0], reason_of(answer)) == (401, reason), name
            assert answer[2]["WWW-Authenticate"].startswith(
                f'Bearer resource_metadata="{running.url}/.well-known/oauth-protected-resource/mcp/github"'
            ), name
        assert running.upstream.calls() == [] and running.upstream.sessions == 0
        assert all(end["chain"] == [] and end["agent_id"] is None for end in running.ends())
        faults = {name: end["credential_fault"] for name, end in zip(FORGED, running.ends(), strict=True)}
        bad = {name: fault for name, fault in faults.items() if fault is not None}
        assert bad.keys() == {name for name, (_, reason) in FORGED.items() if reason == "bad-credential"}
        assert bad["basic"] == bad["a good key beside a garbled token"] == "malformed"


async def test_a_local_listener_is_a_link_behind_a_users_token(tmp_path: Path) -> None:
    async with gateway(tmp_path, local="nhi:planner") as running:
        for headers, chain, status in (
            ({}, ["nhi:planner"], 200),
            (bearer(token(running, "user:alice")), ["user:alice", "nhi:planner"], 200),
            (bearer(token(running, "user:bob")), ["user:bob", "nhi:planner"], 403),
            (bearer(token(running, "nhi:researcher")), [], 401),
            (bearer(PLANNER_KEY), [], 401),
            (bearer("nonsense"), [], 401),
        ):
            answer = await Talk(running, "stateless", headers, url=local_url(running)).call("search_code", GOOD)
            assert answer[0] == status, (chain, answer)
            assert running.ends()[-1]["chain"] == chain


async def test_nobody_is_anonymous_unless_the_upstream_and_a_rule_both_name_it(tmp_path: Path) -> None:
    rules = (
        "p, anonymous, tool:github/get_file, use, -, -, -, allow\np, *, tool:github/delete_repo, use, -, -, -, allow\n"
    )
    for named, statuses in (("false", [401, 401]), ("true", [200, 403])):
        async with gateway(tmp_path / named, rules=rules, upstream_settings=f"anonymous: {named}") as w:
            talk = Talk(w, "stateless")
            # `*` is everybody who said who they are; a caller without a name is not among them.
            assert [(await talk.call(tool))[0] for tool in ("get_file", "delete_repo")] == statuses


# --- a session belongs to a chain -----------------------------------------------------------------------------------


async def test_a_session_goes_on_with_a_fresh_token_and_with_no_other_caller(tmp_path: Path) -> None:
    async with gateway(tmp_path) as running:
        talk = Talk(running, "session", bearer(token(running, "nhi:planner")))
        for headers, status in (
            (talk.headers, 200),
            (bearer(token(running, "nhi:planner", claims={"jti": "another"})), 200),
            (bearer(token(running, "nhi:researcher")), 404),
            (bearer(token(running, "user:alice", "nhi:planner")), 404),
            (bearer(PLANNER_KEY), 404),  # the same name, vouched for by another
        ):
            talk.headers = headers
            assert (await talk.call("search_code", GOOD))[0] == status
            for verb in ("GET", "DELETE") if status == 404 else ():
                assert (await talk.verb(verb, {"Accept": "text/event-stream"}))[0] == 404
        assert len(running.upstream.calls()) == 2


# --- the address ----------------------------------------------------------------------------------------------------


async def test_metadata_says_where_tokens_come_from_and_what_for(tmp_path: Path) -> None:
    async with gateway(tmp_path, upstream_settings="scopes: [repo:read]") as running:
        for server, scopes in (("github", {"scopes_supported": ["repo:read"]}), ("nowhere", {})):
            url = f"{running.url}/.well-known/oauth-protected-resource/mcp/{server}"
            async with running.http.get(url) as response:
                assert response.status == 200 and response.headers["Content-Type"] == "application/json"
                assert await response.json() == {
                    "resource": at(running, server),
                    "authorization_servers": [ISSUER, APPS],
                    "bearer_methods_supported": ["header"],
                    "dpop_signing_alg_values_supported": sorted(ALGORITHMS),
                    **scopes,
                }


async def test_an_address_with_a_slash_at_its_end_is_the_same_address(tmp_path: Path) -> None:
    async with gateway(tmp_path) as running:
        for server in ("github/", ""):
            talk = Talk(running, "stateless", server=server)
            status, _, headers = await talk.ask("tools/list")
            assert status == 401, "who may not, hears where tokens come from"
            at_it = f"{running.url}/.well-known/oauth-protected-resource/mcp/{server}".rstrip("/")
            assert f'"{at_it}"' in headers["WWW-Authenticate"]
            async with running.http.get(at_it + "/") as response:
                assert (await response.json())["resource"] == f"{running.url}/mcp/{server}".rstrip("/")
        headers = bearer(IDP.token("nhi:planner", at(running)))
        for server in ("github", "github/"):
            assert (await Talk(running, "stateless", headers, server).call("search_code", GOOD))[0] == 200
        assert {record["upstream"] for record in running.ends() if record["bytes_in"]} == {"github"}


async def test_an_absolute_target_is_read_where_it_names_the_host_that_host_names(tmp_path: Path) -> None:
    async with world(tmp_path) as running:
        host = urlsplit(running.url).netloc
        for target, status in (
            (f"http://{host}/mcp/github", 200),
            (f"http://{host}/mcp/github?x", 200),
            ("http://evil.example/mcp/github", 400),
            (f"http://x@{host}/mcp/github", 400),
            (f"ftp://{host}/mcp/github", 400),
        ):
            async with wire(running) as connection:
                await connection.send(request(running, first=f"POST {target} HTTP/1.1"))
                assert (target, (await connection.response())[0]) == (target, status)
        assert len(running.upstream.calls()) == 2
        assert [record["status"] for record in running.ends()].count("success") == 2


async def test_below_a_path_metadata_is_where_clients_derive_it_and_the_challenge_says_so(tmp_path: Path) -> None:
    """The proxy in front takes the path away, but not from what is well known (RFC 9728)."""
    settings = 'server: {listen: "127.0.0.1:0", public_url: "http://localhost:8080/gateway"}\n'
    async with gateway(tmp_path, settings=settings) as running:
        url = f"http://127.0.0.1:{running.app.listeners[0].port}"
        for place in ("mcp/github", "mcp"):
            path = f"/.well-known/oauth-protected-resource/gateway/{place}"
            async with running.http.post(f"{url}/{place}") as response:
                assert response.status == 401
                assert f'resource_metadata="http://localhost:8080{path}"' in response.headers["WWW-Authenticate"]
            for asked in (path, path.replace("/gateway", "")):
                async with running.http.get(url + asked) as response:
                    assert (await response.json())["resource"] == f"http://localhost:8080/gateway/{place}"


KNOWN = "jwks_path: jwks.json, algorithms: [ES256], kinds: [user, nhi]"


@pytest.mark.parametrize(
    ("issuer", "leads_to"),
    [
        (f'"{ISSUER}"', f"{ISSUER}/.well-known/oauth-authorization-server"),
        (f'"{ISSUER}/a/b"', f"{ISSUER}/.well-known/oauth-authorization-server/a/b"),
        (f'"{ISSUER}/realms/x", preset: keycloak', f"{ISSUER}/realms/x/.well-known/openid-configuration"),
    ],
)
async def test_clients_of_2025_03_26_are_led_to_the_issuer(tmp_path: Path, issuer: str, leads_to: str) -> None:
    settings = f"identity: {{issuers: [{{issuer: {issuer}, {KNOWN}}}]}}\n"
    async with world(tmp_path, settings=settings, files=IDP.files(), principal="") as running:
        url = f"{running.app.base_url}{ISSUER_PATH}"
        async with running.http.get(url, allow_redirects=False) as response:
            assert (response.status, response.headers["Location"]) == (307, leads_to)
        assert [record["http_status"] for record in running.ends()] == [307]


@pytest.mark.parametrize("issuers", ["", f'{{issuer: "https://[idp", {KNOWN}}}'])
async def test_without_an_issuer_that_is_a_url_there_is_nowhere_to_lead_to(tmp_path: Path, issuers: str) -> None:
    settings = f"identity: {{issuers: [{issuers}]}}\n"
    async with (
        world(tmp_path, settings=settings, files=IDP.files(), principal="") as running,
        running.http.get(f"{running.app.base_url}{ISSUER_PATH}") as response,
    ):
        assert response.status == 404


# --- web pages ------------------------------------------------------------------------------------------------------

PAGE = "http://localhost:6274"
EXPOSED = {"Mcp-Session-Id", "WWW-Authenticate", "MCP-Protocol-Version", "Retry-After"}


async def test_pages_of_allowed_origins_may_ask_and_read_and_no_others(tmp_path: Path) -> None:
    settings = f'server: {{listen: "127.0.0.1:0", allowed_origins: ["{PAGE}"]}}\n'

    async def listen(incoming: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        return await streamed(incoming, b": here\n\n")

    async with gateway(tmp_path, settings=settings, upstream=Upstream(script={"GET": listen})) as running:

        def may_read(headers: Mapping[str, str]) -> bool:
            shared = headers.get("Access-Control-Allow-Origin")
            exposed = set(headers.get("Access-Control-Expose-Headers", "").replace(" ", "").split(","))
            assert (shared, exposed, headers.get("Vary")) in ((PAGE, EXPOSED, "Origin"), (None, {""}, None))
            assert "Access-Control-Allow-Credentials" not in headers
            return shared == PAGE

        asks = {
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type,mcp-session-id,mcp-param-repo,x-evil,cookie",
        }
        metadata = f"{running.url}/.well-known/oauth-protected-resource/mcp/github"
        for url in (at(running), f"{running.url}/mcp"):
            async with running.http.options(url, headers={"Origin": PAGE, **asks}) as response:
                assert response.status == 204 and may_read(response.headers)
                assert response.headers["Access-Control-Allow-Methods"] == "POST"
                allowed = response.headers["Access-Control-Allow-Headers"]
                assert allowed == "authorization, content-type, mcp-param-repo, mcp-session-id"
        for url, origin, method, status in (
            (metadata, PAGE, "GET", 204),
            (metadata, PAGE, "DELETE", 405),
            (f"{running.url}/nowhere", PAGE, "GET", 404),
            (at(running), "http://localhost:6275", "POST", 403),
            (at(running), running.url, "POST", 405),  # our own address is no other origin
            (at(running), "", "POST", 405),
        ):
            headers = {"Access-Control-Request-Method": method, **({"Origin": origin} if origin else {})}
            async with running.http.options(url, headers=headers) as response:
                assert (response.status, may_read(response.headers)) == (status, origin == PAGE), (url, origin)
        for headers, status in (({}, 401), (bearer(PLANNER_KEY), 200)):
            talk = Talk(running, "session", {"Origin": PAGE, **headers})
            answer = await talk.open()
            assert answer[0] == status and may_read(answer[2])
        with_stream = {"Accept": "text/event-stream", "Origin": PAGE, **bearer(PLANNER_KEY), **talk.in_session}
        async with running.http.get(at(running), headers=with_stream) as response:
            assert response.headers["Content-Type"] == "text/event-stream" and may_read(response.headers)
        assert not may_read((await Talk(running, "session", bearer(PLANNER_KEY)).open())[2])
        async with running.http.get(metadata, headers={"Origin": PAGE}) as response:
            assert response.status == 200 and may_read(response.headers)


async def test_no_verb_goes_around_the_question(tmp_path: Path) -> None:
    """BL-052."""
    async with gateway(tmp_path) as running:
        session = Talk(running, "session", bearer(PLANNER_KEY))
        await session.open()
        # a POST without a media type; an upstream without a stream; an end
        for verb, served in {"POST": 415, "GET": 405, "DELETE": 204}.items():
            for headers, status in (({}, 401), (bearer("nonsense"), 401), (bearer(PLANNER_KEY), served)):
                talk = Talk(running, "session", headers, session=session.session)
                assert (await talk.verb(verb, {"Accept": "text/event-stream, application/json"}))[0] == status
        for verb in ("HEAD", "OPTIONS", "PUT", "PATCH", "TRACE"):
            for headers in ({}, bearer("nonsense"), bearer(PLANNER_KEY)):
                status, _, sent = await Talk(running, "session", headers, session=session.session).verb(verb)
                assert (status, sent["Allow"]) == (405, "POST, GET, DELETE")
        assert running.upstream.calls() == []


FORWARDED = tables("flow/identity_flow")["forwarded"]


def without_id(answer: Answer) -> tuple[int, Any, Any]:
    """What is heard, as it is for any other call."""
    status, body, sent = answer
    kept = {name: value for name, value in sent.items() if name != "Date"}
    return status, re.sub(r'"decision_id": "[^"]*"', "", json.dumps(body)), kept


async def test_what_a_proxy_would_say_changes_nothing(tmp_path: Path) -> None:
    """BL-039, BL-015: whoever is connected is who they prove to be; no header of a proxy adds to that."""
    async with gateway(tmp_path) as running:
        for credential, tool in (
            ({}, "search_code"),
            (bearer(PLANNER_KEY), "search_code"),
            (bearer(PLANNER_KEY), "no"),
        ):
            plain = await Talk(running, "stateless", credential).call(tool, GOOD)
            for name, value in FORWARDED.items():
                dressed = await Talk(running, "stateless", credential | {name: value}).call(tool, GOOD)
                assert without_id(dressed)[:2] == without_id(plain)[:2], name
                assert running.ends()[-1]["peer"] == "127.0.0.1"
        sent = {name.lower() for headers, _ in running.upstream.seen for name in headers}
        assert sent.isdisjoint(name.lower() for name in FORWARDED)


async def test_a_local_listener_has_no_proxy_in_front(tmp_path: Path) -> None:
    async with gateway(tmp_path, local="nhi:planner") as running:
        for name in ("X-Forwarded-For", "Forwarded", "Via", "X-Forwarded-Client-Cert", "Origin"):
            talk = Talk(running, "stateless", {name: FORWARDED.get(name, "http://localhost")}, url=local_url(running))
            answer = await talk.call("search_code", GOOD)
            assert (answer[0], reason_of(answer)) == (403, "origin-refused"), name


BEFORE = ("", "/", "//", "/.", "/..", "/mcp/open/..", "/mcp/open/../..", "/mcp/open/%2e%2e", "/mcp/./", "/x/..")
CLOSED = """/mcp/github /mcp//github /mcp/%67ithub /mcp/github/ /mcp/github/. /mcp/github;a=b /mcp/github%2f
    /mcp/github%00 /MCP/github /mcp/GitHub /mcp\\github /mcp/gıthub /mcp%2fgithub""".split
SPELLINGS = [
    f"{before}{closed}{after}"
    for before in BEFORE
    for closed in CLOSED()
    for after in ("", "/../open", "?server=open", "#open")
]


async def test_no_spelling_of_a_path_is_another_path(tmp_path: Path) -> None:
    """BL-049: 520 spellings. `open` serves anybody; `github` serves the planner, who is not calling here."""
    rules = TOOLS + "p, anonymous, tool:open/*, use, -, -, -, allow\n"
    open_ = Upstream()
    async with listening(open_.handle) as base:
        settings = f'  open: {{mcp: {{url: "{base}/mcp"}}, anonymous: true}}\n{SETTINGS}'
        async with world(tmp_path, rules=rules, settings=settings, files=IDP.files(), principal="") as running:
            statuses = await asyncio.to_thread(lambda: [knock(running, path) for path in SPELLINGS])
            assert set(statuses) <= {400, 401, 404}
            known = {path for path, status in zip(SPELLINGS, statuses, strict=True) if status == 401}
            assert known == {f"/mcp/github{rest}" for rest in ("", "?server=open", "/", "/?server=open")}
            assert running.upstream.calls() == [] and open_.calls() == []


def knock(running: World, path: str) -> int:
    """One POST with the path exactly as written."""
    where, body = urlsplit(running.url), json.dumps(stateless("tools/list", {})).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Type: application/json\r\nMcp-Method: tools/list\r\n"
        f"MCP-Protocol-Version: {STATELESS}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((str(where.hostname), int(where.port or 0)), timeout=5) as wire:
        wire.sendall(head.encode() + body)
        response = http.client.HTTPResponse(wire)
        response.begin()
        response.read()
        return response.status


# --- what a caller without a grant can find out ---------------------------------------------------------------------


async def test_without_a_grant_what_is_there_and_what_is_not_answer_alike(tmp_path: Path) -> None:
    async with gateway(tmp_path) as running:
        heard = []
        for server in ("github", "nowhere"):
            talk = Talk(running, "stateless", bearer(token(running, "user:bob", aud=at(running, server))), server)
            heard += [
                await talk.call("search_code", GOOD),
                await talk.call("ghost", GOOD),
                await talk.call("search_code", {"repo": 1}),
                await talk.ask("resources/read", {"uri": "file:///a"}),
                await talk.ask("prompts/get", {"name": "p"}),
                await talk.ask("tools/list"),
                await talk.ask("server/discover"),
            ]
        assert len({repr(without_id(answer)) for answer in heard}) == 1
        assert heard[0][0] == 403  # and never an empty list
        assert running.upstream.seen == []


# --- credentials stay where they belong -----------------------------------------------------------------------------


@pytest.mark.parametrize("era", ERAS)
async def test_the_callers_credential_stays_here_and_the_upstreams_own_goes_there(era: Era, tmp_path: Path) -> None:
    """BL-003: a token and an API key, on every verb of both eras."""
    secret = "the-upstreams-own-credential"
    options = {"upstream_settings": "credential: {bearer_path: github.token}", "files": {"github.token": secret}}
    async with gateway(tmp_path, **options) as running:
        jwt = token(running, "user:alice")
        headers = bearer(jwt) | {"X-API-Key": PLANNER_KEY, "Proxy-Authorization": "Basic a", "Cookie": "a=b"}
        talk = Talk(running, era, headers)
        assert (await talk.call("search_code", GOOD))[0] == 200
        await talk.ask("tools/list")
        if era == "session":
            await talk.verb("GET", {"Accept": "text/event-stream"})
            await talk.verb("DELETE")
            await until(lambda: "DELETE" in [verb for verb, _ in running.upstream.verbs])
        for verb, sent in running.upstream.verbs:
            assert sent["Authorization"] == f"Bearer {secret}", verb
            assert not {"x-api-key", "proxy-authorization", "cookie"} & {name.lower() for name in sent}
            assert jwt not in repr(sent) and PLANNER_KEY not in repr(sent)
            if talk.session:
                assert talk.session not in repr(sent)  # the session's id is ours; the upstream has its own


# --- keys that change -----------------------------------------------------------------------------------------------


async def test_a_rotated_key_is_known_after_one_fetch_however_many_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BL-048, through the whole way."""
    old, new, fetched = IDP.key, Idp().key, []
    serving = [old]

    async def keys(request: web.Request) -> web.StreamResponse:
        fetched.append(request.path)
        return web.Response(text=serving[-1].jwks(), content_type="application/json")

    async with listening(keys) as base:
        issuer = f'{{issuer: "{ISSUER}", jwks_url: "{base}/keys", algorithms: [ES256], kinds: [user, nhi]}}'
        settings = f"identity: {{issuers: [{issuer}]}}\n"
        async with world(tmp_path, rules=TOOLS, settings=settings, principal="") as running:
            assert len(fetched) == 1

            async def call(key: Any) -> int:
                talk = Talk(running, "stateless", bearer(token(running, "nhi:planner", key=key)))
                return (await talk.call("search_code", GOOD))[0]

            assert await call(old) == 200
            serving.append(new)
            strangers = await asyncio.gather(*(call(Idp().key) for _ in range(50)))
            assert set(strangers) == {401}
            assert len(fetched) == 1  # within ten seconds of the last fetch nobody causes another
            forget_the_last_fetch(running)
            assert set(await asyncio.gather(*(call(new) for _ in range(50)))) == {200}
            assert len(fetched) == 2
            assert await call(old) == 401  # what it was remembered by is gone with the old keys


def forget_the_last_fetch(running: World) -> None:
    """As if ten seconds had passed since."""
    for keys in running.app.live.current.identity._issuer_keys.values():
        keys._attempted_mono_s -= 11


async def test_a_revoked_api_key_is_gone_with_the_next_reload(tmp_path: Path) -> None:
    async with gateway(tmp_path) as running:
        talk = Talk(running, "stateless", bearer(PLANNER_KEY))
        assert (await talk.call("search_code", GOOD))[0] == 200
        keys = tmp_path / "keys.yaml"
        lines = [line for line in keys.read_text().splitlines() if "nhi:planner" not in line]
        keys.write_text("\n".join(lines) + "\n")
        await running.app.reload("test")
        assert (await talk.call("search_code", GOOD))[0] == 401


async def test_a_credential_in_the_query_is_none_and_is_not_written_down(tmp_path: Path) -> None:
    async with gateway(tmp_path) as running:
        url = f"{at(running)}?access_token={PLANNER_KEY}&api_key={PLANNER_KEY}"
        async with aiohttp.ClientSession() as client, client.post(url, json={}) as response:
            assert response.status == 401
        assert PLANNER_KEY not in running.app.settings.audit_path.read_text()

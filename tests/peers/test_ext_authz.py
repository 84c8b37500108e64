"""Envoy's ext_authz, asked by a client of Envoy's published protos, in both modes."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.a2a.world import HELLO
from tests.flow.enforcement import NAME, SECRET, asked_world, decisions
from tests.flow.idp import Idp
from tests.flow.world import ACCEPT, STATELESS, World, request, stateless
from tests.peers import envoy_peer as envoy
from tests.peers.envoy_peer import EnvoyClient, Told, envoy_client
from tests.unit.identity.authority import authority

pytestmark = pytest.mark.skipif(not envoy.is_here(), reason=envoy.MISSING)
MODES = ("grpc", "http")
BODY_BYTES = 64 * 1024
SETTINGS = f'server: {{listen: "127.0.0.1:0", grpc: "127.0.0.1:0", max_body_bytes: {BODY_BYTES}}}\n'
FILES = {
    "policies/nhi_to_nhi.csv": "p, nhi:planner, nhi:researcher, message/send, -, -, -, allow\n",
    "upstream.token": "token-of-the-upstream",
}
AGENT = '  researcher: {a2a: {url: "http://127.0.0.1:9/", version: "1.0"}}\n'
OWN_TOKEN = "8d2f61c0a9374be5a1c07e64f95b20d7"
CREDENTIAL = "credential: {bearer_path: upstream.token}"


@pytest.fixture(scope="module")
def asks() -> Iterator[EnvoyClient]:
    with envoy_client() as client:
        yield client


@dataclass
class Edge:
    """An enforcement point and the sidecar that it asks. `key` is the API key of nhi:planner, `idp` signs tokens."""

    running: World
    client: EnvoyClient
    key: str
    idp: Idp

    async def ask(self, mode: str, method: str, path: str, headers: Mapping[str, str], *what: Any, **more: Any) -> Told:
        return await asyncio.to_thread(self.client.check, mode, method, path, headers, *what, **more)

    async def call(self, mode: str, repo: str = "acme/site", *, path: str = "/mcp/github", **more: Any) -> Told:
        """Asks about one stateless call of `search_code`."""
        message = stateless("tools/call", {"name": "search_code", "arguments": {"repo": repo}}, id=7)
        headers = {**self.headers, **ROUTING, **more.pop("headers", {})}
        return await self.ask(mode, "POST", path, headers, json.dumps(message).encode(), **more)

    async def read(self, mode: str, shown: Mapping[str, str] | None = None, **more: Any) -> Told:
        """Asks about one stateless call of `get_file`, of which three are allowed in an hour. `shown` is a credential
        in place of the key."""
        message = stateless("tools/call", {"name": "get_file", "arguments": {"path": "a"}})
        key = {"x-api-key": self.key} if shown is None else shown
        headers = {"content-type": "application/json", "accept": ACCEPT, **ROUTING, "mcp-name": "get_file", **key}
        return await self.ask(mode, "POST", "/mcp/github", headers, json.dumps(message).encode(), **more)

    @property
    def headers(self) -> dict[str, str]:
        return {"content-type": "application/json", "accept": ACCEPT, "x-api-key": self.key}

    def last(self) -> dict[str, Any]:
        return decisions(self.running)[-1]


ROUTING = {"mcp-method": "tools/call", "mcp-name": "search_code", "mcp-protocol-version": STATELESS}


@asynccontextmanager
async def edge(folder: Path, asks: EnvoyClient, pdp: str = "{charges: ask}", **more: Any) -> AsyncIterator[Edge]:
    idp, files = Idp(), {**FILES, **more.pop("files", {})}
    more = {"upstreams": AGENT, "settings": SETTINGS, **more}
    async with asked_world(folder, pdp, files=files, idp=idp, **more) as (running, keys):
        asks.grpc = f"127.0.0.1:{running.app.grpc_ports['']}"
        asks.http = running.admin_url.removeprefix("http://")
        yield Edge(running, asks, keys["nhi:planner"], idp)


@pytest.mark.parametrize("mode", MODES)
async def test_an_allowed_call_loses_its_credential_and_gets_the_upstreams(
    mode: str, tmp_path: Path, asks: EnvoyClient
) -> None:
    async with edge(tmp_path, asks, upstream_settings=CREDENTIAL) as at:
        told = await at.call(mode)
        assert told.allowed and told.headers["authorization"] == "Bearer token-of-the-upstream"
        assert told.removed == ("x-api-key", "dpop"), "what is set is not removed"
        record = at.last()
        assert told.headers["x-sidecar-decision-id"] == record["decision_id"]
        found = [record[name] for name in ("event", "protocol", "enforcement_point", "object", "http_status")]
        assert found == ["decision", "ext_authz", NAME, "tool:github/search_code", 200]
        if mode == "grpc":
            assert told.metadata == {"decision_id": record["decision_id"], "principal": "nhi:planner"}
        assert at.running.upstream.calls() == []


@pytest.mark.parametrize("mode", MODES)
async def test_a_denied_call_gets_the_answer_of_its_era(mode: str, tmp_path: Path, asks: EnvoyClient) -> None:
    async with edge(tmp_path, asks) as at:
        told = await at.call(mode, "evil/site")
        assert (told.allowed, told.status, told.reason) == (False, 403, "condition-false")
        assert told.body["id"] == 7 and told.body["error"]["code"] == 403
        assert told.headers["content-type"] == "application/json"
        message = request("tools/call", {"name": "delete_repo", "arguments": {}})
        headers = {**at.headers, "mcp-session-id": "of the server", "mcp-protocol-version": "2025-11-25"}
        told = await at.ask(mode, "POST", "/mcp/github", headers, json.dumps(message).encode())
        # 403 would end the client's session. HTTP mode has no other way to deny.
        assert (told.allowed, told.status) == (False, 200 if mode == "grpc" else 403)
        assert told.body["error"]["data"]["reason"] == told.reason == at.last()["reason"] == "no-matching-rule"
        assert len(decisions(at.running)) == 2


@pytest.mark.parametrize("mode", MODES)
async def test_a_message_to_an_agent_is_decided_in_its_protocol(mode: str, tmp_path: Path, asks: EnvoyClient) -> None:
    async with edge(tmp_path, asks) as at:
        sent = {"jsonrpc": "2.0", "id": "a", "method": "SendMessage", "params": {"message": HELLO}}
        headers = {**at.headers, "a2a-version": "1.0"}
        told = await at.ask(mode, "POST", "/agents/researcher", headers, json.dumps(sent).encode())
        assert told.allowed and told.headers["authorization"].startswith("Bearer ey"), "our own token, for this agent"
        assert at.last()["object"] == "nhi:researcher" and at.last()["action"] == "message/send"
        sent = {**sent, "method": "SendStreamingMessage"}
        told = await at.ask(mode, "POST", "/agents/researcher", headers, json.dumps(sent).encode())
        assert (told.allowed, told.status, told.reason) == (False, 403, "no-matching-rule")
        told = await at.ask(
            mode, "POST", "/agents/researcher/message:send", headers, json.dumps({"message": HELLO}).encode()
        )
        assert told.allowed and at.last()["action"] == "message/send"


@pytest.mark.parametrize("mode", MODES)
async def test_what_was_not_received_whole_is_not_decided_on(mode: str, tmp_path: Path, asks: EnvoyClient) -> None:
    async with edge(tmp_path, asks) as at:
        told = await at.call(mode, headers={"x-envoy-auth-partial-body": "true"})
        assert (told.allowed, told.status, told.reason) == (False, 413, "too-large")
        assert "max_request_bytes" in told.body["error"]["message"]
        assert (await at.call(mode, headers={"x-envoy-auth-partial-body": "false"})).allowed
        told = await at.call(mode, "acme/" + "x" * BODY_BYTES)
        assert (told.status, told.reason) == (413, "too-large")
        told = await at.call(mode, headers={"content-type": "text/plain"})
        assert (told.status, told.reason) == (415, "unsupported-media-type")
        reasons = [record["reason"] for record in decisions(at.running)]
        assert reasons == ["too-large", None, "too-large", "unsupported-media-type"]


async def test_a_check_beyond_the_bound_of_grpc_is_an_error(tmp_path: Path, asks: EnvoyClient) -> None:
    async with edge(tmp_path, asks) as at:
        told = await at.call("grpc", "x" * 2**20)
        assert (told.allowed, told.error) == (False, "RESOURCE_EXHAUSTED")
        assert (await at.call("grpc")).allowed


@pytest.mark.parametrize("mode", MODES)
async def test_a_caller_without_a_credential_gets_the_challenge(mode: str, tmp_path: Path, asks: EnvoyClient) -> None:
    async with edge(tmp_path, asks) as at:
        at.key = ""
        told = await at.ask(mode, "POST", "/mcp/github", {"content-type": "application/json"}, b"{}")
        assert (told.allowed, told.status, told.reason) == (False, 401, "unauthenticated")
        assert "/.well-known/oauth-protected-resource/mcp/github" in told.headers["www-authenticate"]


@pytest.mark.parametrize("mode", MODES)
async def test_an_enforcement_point_needs_its_own_credential(mode: str, tmp_path: Path, asks: EnvoyClient) -> None:
    async with edge(tmp_path, asks) as at:
        told = await at.call(mode, key="0" * 48)
        assert not told.allowed and (told.error or told.status) == ("UNAUTHENTICATED" if mode == "grpc" else 403)
        assert decisions(at.running) == []


async def test_a_bearer_token_is_the_credential_of_an_enforcement_point_over_grpc(
    tmp_path: Path, asks: EnvoyClient
) -> None:
    async with edge(tmp_path, asks) as at:
        http = {"method": "GET", "path": "/mcp/github", "headers": {**at.headers, "mcp-session-id": "s"}}
        check = {"attributes": {"request": {"http": http}}}
        shown = ("authorization", f"Bearer {SECRET}")
        for metadata, allowed in (([shown], True), ([shown, ("x-pdp-key", SECRET)], False), ([], False)):
            told = await asyncio.to_thread(asks.grpc_check, check, metadata)
            assert (told.allowed, told.error) == (allowed, "" if allowed else "UNAUTHENTICATED")


@pytest.mark.parametrize("mode", MODES)
async def test_addresses_are_decided_and_others_are_not(mode: str, tmp_path: Path, asks: EnvoyClient) -> None:
    async with edge(tmp_path, asks, "{paths: {/tools/github: /mcp/github}}") as at:
        assert (await at.call(mode, path="/tools/github?x=1")).allowed
        for path in ("/mcp", "/mcp/github/messages", "/mcp/github/tools/search_code", "/nothing", "/"):
            told = await at.call(mode, path=path)
            assert (told.allowed, told.status) == (False, 404), path
        told = await at.call(mode, headers={"origin": "https://evil.example"})
        assert (told.status, told.reason) == (403, "origin-refused")
        told = await at.ask(mode, "OPTIONS", "/mcp/github", {"origin": "https://evil.example"})
        assert (told.allowed, told.status) == (False, 403)
        told = await at.ask(mode, "OPTIONS", "/mcp/github", {})
        assert (told.status, told.headers["allow"]) == (405, "POST, GET, DELETE")
        told = await at.call(mode, path="/mcp/%67ithub")
        assert (told.allowed, told.status) == (False, 400)


async def test_a_route_of_envoy_can_name_the_upstream_or_the_agent(tmp_path: Path, asks: EnvoyClient) -> None:
    async with edge(tmp_path, asks) as at:
        assert (await at.call("grpc", path="/anything?a=b", contextExtensions={"upstream": "github"})).allowed
        told = await at.call("grpc", path="/mcp/github", contextExtensions={"upstream": "other"})
        assert (told.allowed, told.status) == (False, 403), "a server without a rule, or none"
        headers, body = {**at.headers, "a2a-version": "1.0"}, json.dumps({"message": HELLO}).encode()
        for path in ("/message:send", "/agents/researcher/message:send"):
            named = {"contextExtensions": {"agent": "researcher"}}
            assert (await at.ask("grpc", "POST", path, headers, body, **named)).allowed, path
        both = {"upstream": "github", "agent": "researcher"}
        told = await at.call("grpc", contextExtensions=both)
        assert told.error == "INVALID_ARGUMENT"
        assert told.body == "context_extensions name an upstream and an agent: remove one"


@pytest.mark.parametrize(("charges", "charged"), [("ask", [3, 3, 2]), ("never", [3, 3, 3]), ("always", [2, 1, 0])])
async def test_a_charge_is_asked_for_and_configured(
    charges: str, charged: list[int], tmp_path: Path, asks: EnvoyClient
) -> None:
    async with edge(tmp_path, asks, f"{{charges: {charges}}}") as at:
        left = []
        for charge in ({}, {"contextExtensions": {"charge": "false"}}, {"contextExtensions": {"charge": "true"}}):
            assert (await at.read("grpc", **charge)).allowed
            limits = [one for one in at.last()["limits"] if one["remaining"] is not None]
            left.append(limits[0]["remaining"] if limits else 3)
        assert left == charged


async def test_a_body_that_envoy_may_have_altered_is_refused(tmp_path: Path, asks: EnvoyClient) -> None:
    async with edge(tmp_path, asks) as at:
        told = await at.ask("grpc", "POST", "/mcp/github", at.headers, request={"body": "{}"})
        assert (told.status, told.reason) == (400, "malformed-call") and "pack_as_bytes" in told.body["error"][
            "message"
        ]
        told = await at.call("grpc", request={"headers": {f"x-{n}": "1" for n in range(1001)}})
        assert (told.error, told.body) == ("INVALID_ARGUMENT", "the request has more than 1000 headers")
        told = await at.call("grpc", request={"method": ""})
        assert (told.error, told.body) == ("INVALID_ARGUMENT", "attributes.request.http has no method or no path")


async def test_raw_headers_are_read_line_by_line(tmp_path: Path, asks: EnvoyClient) -> None:
    async with edge(tmp_path, asks) as at:
        lines = [{"key": name, "rawValue": _base64(value)} for name, value in {**at.headers, **ROUTING}.items()]
        raw = {"headers": {}, "headerMap": {"headers": lines}}
        assert (await at.call("grpc", request=raw)).allowed
        lines.append({"key": "X-API-Key", "rawValue": _base64("sck_other")})
        told = await at.call("grpc", request=raw)
        assert (told.status, told.reason) == (401, "bad-credential")


def _base64(value: str) -> str:
    return base64.b64encode(value.encode()).decode()


ACME = authority("acme")
PLANNER = "spiffe://acme.example/ns/prod/sa/planner"
CERTIFICATES = '  certificates: {spiffe: [{trust_domain: acme.example, path: "/ns/prod/sa/{id}"}]}\n'


async def test_a_certificate_that_envoy_received_is_a_credential_of_its_caller(
    tmp_path: Path, asks: EnvoyClient
) -> None:
    pem = quote(ACME.issue(uris=[PLANNER]).pem)
    forged = {"x-forwarded-client-cert": f"URI={PLANNER}"}
    async with edge(tmp_path, asks, identity=CERTIFICATES) as at:
        address = {"socketAddress": {"address": "192.0.2.7", "portValue": 4}}
        for source in ({"certificate": pem}, {"principal": PLANNER}):
            told = await without_key(at, source={**source, "address": address})
            assert told.allowed and told.metadata["principal"] == "nhi:planner"
            assert at.last()["peer"] == "192.0.2.7" and at.last()["credential"][0]["kind"] == "certificate"
        for mode in MODES:
            told = await without_key(at, mode, forged)
            assert (told.status, told.reason) == (401, "unauthenticated"), mode
        told = await without_key(at, source={"principal": "spiffe://evil.example/ns/prod/sa/planner"})
        assert (told.status, told.reason) == (401, "bad-credential")


async def without_key(at: Edge, mode: str = "grpc", headers: Mapping[str, str] = {}, **more: Any) -> Told:
    message = stateless("tools/call", {"name": "search_code", "arguments": {"repo": "acme/site"}})
    sent = {name: value for name, value in at.headers.items() if name != "x-api-key"}
    body = json.dumps(message).encode()
    return await at.ask(mode, "POST", "/mcp/github", {**sent, **ROUTING, **headers}, body, **more)


async def test_a_certificate_counts_for_nothing_where_none_are_configured(tmp_path: Path, asks: EnvoyClient) -> None:
    async with edge(tmp_path, asks) as at:
        assert (await at.call("grpc", source={"principal": PLANNER})).allowed


@pytest.mark.parametrize("mode", MODES)
async def test_without_the_credential_of_the_upstream_nothing_is_allowed_or_charged(
    mode: str, tmp_path: Path, asks: EnvoyClient
) -> None:
    given = "credential: {passthrough: true, own_bearer_path: upstream.token}"
    async with edge(tmp_path, asks, "{charges: always}", upstream_settings=given) as at:
        for _ in range(4):  # one more than are allowed in an hour
            told = await at.read(mode)
            assert (told.allowed, told.status, told.reason) == (False, 401, "unauthenticated"), "a key is no token"
        assert [(one["event"], one["reason"]) for one in decisions(at.running)] == [("refusal", "unauthenticated")] * 4
        token = at.idp.token("nhi:planner", f"{at.running.url}/mcp/github")
        for n in range(4):
            told = await at.read(mode, {"authorization": f"Bearer {token}"})
            assert (told.allowed, told.reason) == (n < 3, "rate-limited" if n == 3 else "")
            if told.allowed:
                assert told.headers["authorization"] == f"Bearer {token}" and told.removed == ("x-api-key", "dpop")


@pytest.mark.parametrize("mode", MODES)
async def test_the_token_of_an_agents_own_address_is_removed(mode: str, tmp_path: Path, asks: EnvoyClient) -> None:
    own = 'type: api_key, header_name: X-Agent-Token, token_path: own.token, principal: "nhi:planner"'
    agent = AGENT.replace("}}", f", authentication: {{{own}}}}}}}")
    files = {"own.token": OWN_TOKEN}
    async with edge(tmp_path, asks, upstreams=agent, files=files) as at:
        sent = {"jsonrpc": "2.0", "id": "a", "method": "SendMessage", "params": {"message": HELLO}}
        headers = {"content-type": "application/json", "a2a-version": "1.0", "x-agent-token": OWN_TOKEN}
        told = await at.ask(mode, "POST", "/agents/researcher", headers, json.dumps(sent).encode())
        assert told.allowed and told.removed == ("x-api-key", "dpop", "x-agent-token")


async def test_an_address_that_is_none_is_not_the_peers(tmp_path: Path, asks: EnvoyClient) -> None:
    async with edge(tmp_path, asks) as at:
        told = await without_key(at, source={"address": {"socketAddress": {"address": "edge:of:nowhere"}}})
        assert (told.status, told.reason, at.last()["peer"]) == (401, "unauthenticated", "local")

"""A real Envoy with a configuration of deploy/envoy stands before the official SDK's server, and asks the sidecar."""

import asyncio
import io
import json
import os
import random
import re
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import httpx2
import pytest
from mcp.client.streamable_http import streamable_http_client
from multidict import CIMultiDict

from sidecar.app.application import Application
from sidecar.cli.free_ports import free_ports
from tests.a2a.world import HELLO, ScriptedAgent
from tests.flow.enforcement import SECRET
from tests.flow.idp import PEPPER, Idp
from tests.flow.process import Served
from tests.flow.world import ACCEPT, STATELESS, listening, started, stateless
from tests.peers import envoy_peer
from tests.peers.ears import client, text_of
from tests.peers.stage import PATIENCE_S, ROOT
from tests.servers.stand import ENDS_WITHIN_S
from tests.unit.identity.authority import authority

pytestmark = pytest.mark.skipif(not envoy_peer.is_here(), reason=envoy_peer.MISSING)
DEPLOYED = ROOT / "deploy" / "envoy"
PLANNER, TOKEN = "nhi:planner", "token-of-github"
MODES = ("grpc", "http")
BUFFER_BYTES = 2**20
MANY, AT_ONCE = 300, 16


@dataclass
class EnvoyEdge:
    """Envoy at `url` before the server at `upstream` and an agent, with its sidecar, in this process or one of its own.
    `key` is the planner's."""

    folder: Path
    url: str
    upstream: str
    agent: ScriptedAgent
    sidecar: Application | Served
    http: aiohttp.ClientSession
    key: str
    stopped: bool = False

    async def call(
        self, tool: str, arguments: Mapping[str, Any], headers: Mapping[str, str] = {}, *again: tuple[str, str]
    ) -> tuple[int, Any, Mapping[str, str]]:
        """One stateless call: status, body and headers. `again` are further lines of headers."""
        message = stateless("tools/call", {"name": tool, "arguments": arguments})
        routing = {"MCP-Protocol-Version": STATELESS, "Mcp-Method": "tools/call", "Mcp-Name": tool}
        sent = {"Accept": ACCEPT, "Content-Type": "application/json", **routing, **self.shown, **headers}
        body = io.BytesIO(json.dumps(message).encode())
        lines = CIMultiDict([*sent.items(), *again])
        async with self.http.post(f"{self.url}/mcp/github", data=body, headers=lines) as response:
            return response.status, _parsed(await response.text()), response.headers

    @property
    def shown(self) -> dict[str, str]:
        """The credential of a call; none without a key."""
        return {"X-API-Key": self.key} if self.key else {}

    async def calls(self, since: int) -> int:
        """How many calls of tools reached the server."""
        entries = [entry.get("message", {}) for entry in await self.seen(since)]
        return sum(message.get("method") == "tools/call" for message in entries)

    async def seen(self, since: int = 0) -> list[dict[str, Any]]:
        """What reached the server."""
        async with self.http.get(f"{self.upstream}/seen", params={"since": str(since)}) as response:
            entries: list[dict[str, Any]] = await response.json()
            return entries

    def asked(self) -> list[dict[str, Any]]:
        """The audit records of Envoy's questions."""
        records = map(json.loads, (self.folder / "data" / "audit" / "audit.jsonl").read_bytes().splitlines())
        return [record for record in records if record["enforcement_point"] == "envoy"]

    async def stop(self) -> None:
        """Stop the sidecar; one in a process of its own is killed."""
        if not self.stopped:
            self.stopped = True
            await (self.sidecar.stop() if isinstance(self.sidecar, Application) else self.sidecar.kill())


def _parsed(text: str) -> Any:
    found = re.search(r"^data: (\{.*)$", text, re.MULTILINE)
    try:
        return json.loads(found[1] if found else text)
    except ValueError:
        return text


@asynccontextmanager
async def edge(
    folder: Path, upstream: str, mode: str, changed: Mapping[str, Mapping[str, str]] = {}, *, apart: bool = False
) -> AsyncIterator[EnvoyEdge]:
    """The configuration of deploy/envoy, in a folder and at ports of its own. `changed` are texts of its files, and
    what stands in their place. `apart`: the sidecar has a process of its own."""
    agent = ScriptedAgent()
    async with listening(agent.handle) as agent_url:
        shutil.copytree(DEPLOYED, folder, dirs_exist_ok=True)
        shutil.copytree(ROOT / "models", folder / "models")
        ports = dict(zip(("10000", "8080", "8081", "9090"), map(str, free_ports(4)), strict=True))
        ports |= {"3000": upstream.rpartition(":")[2], "9200": agent_url.rpartition(":")[2]}
        for name in (f"{mode}.yaml", "sidecar.yaml"):
            text = re.sub(
                r"(127\.0\.0\.1:|port_value: )(\d+)",
                lambda found: found[1] + ports[found[2]],
                (folder / name).read_text("utf-8"),
            )
            for old, new in changed.get(name, {}).items():
                assert old in text
                text = text.replace(old, new.replace("FOLDER", str(folder)))
            (folder / name).write_text(text)
        idp = Idp()
        key = idp.api_key(PLANNER)
        secrets = {"pdp.secret": SECRET, "github.token": TOKEN, "keys.yaml": idp.files()["keys.yaml"]}
        for name, text in {**secrets, PEPPER: idp.pepper}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
            (folder / name).chmod(0o600)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE_S)) as http:
            url = f"{'https' if changed else 'http'}://127.0.0.1:{ports['10000']}"
            sidecar = await started_apart(folder) if apart else await started(folder)
            at = EnvoyEdge(folder, url, upstream, agent, sidecar, http, key)
            try:
                with envoy(folder, mode):
                    await _ready(int(ports["10000"]))
                    yield at
            finally:
                await at.stop()


async def started_apart(folder: Path) -> Served:
    served = Served(folder)
    await served.start()
    return served


@contextmanager
def envoy(folder: Path, mode: str) -> Iterator[None]:
    """Envoy, which ends with the block."""
    options = (
        "--concurrency",
        "1",
        "--disable-hot-restart",
        "--log-level",
        "error",
        "--log-path",
        folder / "envoy.log",
    )
    command = [str(part) for part in (envoy_peer.ENVOY, "-c", folder / f"{mode}.yaml", *options)]
    with subprocess.Popen(command, env={**os.environ, "SIDECAR_PDP_KEY": SECRET}) as process:
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(ENDS_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()


async def _ready(port: int) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return
        except OSError:
            assert time.monotonic() < end_s
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("mode", MODES)
async def test_envoy_forwards_what_is_allowed_with_the_credential_of_the_upstream(
    mode: str, tmp_path: Path, everything: str
) -> None:
    async with edge(tmp_path, everything, mode) as at:
        begun = len(await at.seen())
        async with httpx2.AsyncClient(headers={"X-API-Key": at.key}) as http:
            for era in ("legacy", "auto"):
                async with client(streamable_http_client(f"{at.url}/mcp/github", http_client=http), era) as peer:
                    assert text_of(await peer.call_tool("echo", {"text": era})) == era
        headers = [entry["headers"] for entry in await at.seen(begun) if "headers" in entry]
        assert {sent.get("authorization") for sent in headers} == {f"Bearer {TOKEN}"}
        assert not any("x-api-key" in sent for sent in headers)
        status, _, headers = await at.call("echo", {"text": "again"})
        assert status == 200 and headers["x-sidecar-decision-id"] == at.asked()[-1]["decision_id"]
        assert all(record["protocol"] == "ext_authz" and record["reason"] is None for record in at.asked())
        if mode == "grpc":
            assert {record["peer"] for record in at.asked()} == {"127.0.0.1"}


@pytest.mark.parametrize("mode", MODES)
async def test_envoy_answers_what_is_denied_as_the_sidecar_says(mode: str, tmp_path: Path, everything: str) -> None:
    async with edge(tmp_path, everything, mode) as at:
        begun = len(await at.seen())
        status, told, headers = await at.call("remove_repo", {})
        assert (status, told["error"]["data"]["reason"]) == (403, "denied-by-rule")
        assert headers["content-type"] == "application/json"
        key, at.key = at.key, ""
        status, told, headers = await at.call("echo", {"text": "a"})
        assert (status, told["error"]["data"]["reason"]) == (401, "unauthenticated")
        at.key = key
        (metadata,) = re.findall(r'resource_metadata="([^"]+)"', headers["WWW-Authenticate"])
        async with at.http.get(metadata) as response:
            assert (await response.json())["resource"] == f"{at.url}/mcp/github"
        # Neither another's certificate nor a forged enforcement point, decision or part changes anything.
        forged = {"x-forwarded-client-cert": "URI=spiffe://a/b", "x-pdp-key": "0" * 48, "x-sidecar-decision-id": "1"}
        status, told, headers = await at.call("echo", {"text": "a"}, forged)
        assert status == 200 and headers["x-sidecar-decision-id"] == at.asked()[-1]["decision_id"]
        for again, status in (
            (("X-API-Key", at.key), 401),
            (("Mcp-Name", "remove_repo"), 400),
            (("Content-Type", "text/plain"), 415),
            (("Content-Encoding", "gzip"), 415),
        ):
            assert (await at.call("echo", {"text": "a"}, {}, again))[0] == status, again
        for path in ("/mcp/github/", "/mcp/github/tools", "/mcp", "/nothing"):
            async with at.http.post(f"{at.url}{path}", json={}) as response:
                assert response.status in (403, 404, 405), path  # no route of Envoy
        assert await at.calls(begun) == 1


async def test_a_session_survives_a_denial_over_grpc(tmp_path: Path, everything: str) -> None:
    async with edge(tmp_path, everything, "grpc") as at, httpx2.AsyncClient(headers={"X-API-Key": at.key}) as http:
        transport = streamable_http_client(f"{at.url}/mcp/github", http_client=http)
        async with client(transport, "legacy") as peer:
            with pytest.raises(Exception, match="A rule denies this call"):
                await peer.call_tool("remove_repo", {})
            assert text_of(await peer.call_tool("echo", {"text": "still here"})) == "still here"


@pytest.mark.parametrize("mode", MODES)
async def test_envoy_forwards_messages_to_an_agent(mode: str, tmp_path: Path, everything: str) -> None:
    async with edge(tmp_path, everything, mode) as at:
        headers = {"X-API-Key": at.key, "A2A-Version": "1.0"}
        answers = []
        for method, params in (("SendMessage", {"message": HELLO}), ("ListTasks", {})):
            message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            async with at.http.post(f"{at.url}/agents/researcher", json=message, headers=headers) as response:
                answers.append(await response.json())
        assert "result" in answers[0] and "error" in answers[1]
        ((sent, message),) = at.agent.seen
        assert message["method"] == "SendMessage" and sent["Authorization"].startswith("Bearer ey")
        assert "X-API-Key" not in sent and "x-api-key" not in sent
        assert [limit["charged"] for limit in at.asked()[0]["limits"]] == [1]


@pytest.mark.parametrize("mode", MODES)
async def test_envoy_forwards_nothing_that_was_not_decided_on(mode: str, tmp_path: Path, everything: str) -> None:
    async with edge(tmp_path, everything, mode) as at:
        begun = len(await at.seen())
        status, _, _ = await at.call("echo", {"text": "x" * BUFFER_BYTES})
        assert status == 413 and at.asked() == []  # beyond Envoy's buffer: it does not ask
        status, _, _ = await at.call("echo", {"text": "x" * (BUFFER_BYTES - 1000)})
        assert status == 200, "the largest body is asked about whole"
        assert await at.calls(begun) == 1


@pytest.mark.parametrize("mode", MODES)
async def test_nothing_passes_once_the_decision_point_is_killed(mode: str, tmp_path: Path, everything: str) -> None:
    async with edge(tmp_path, everything, mode, apart=True) as at:
        begun, first, statuses = len(await at.seen()), asyncio.Event(), list[int]()

        async def call(n: int) -> None:
            for _ in range(5):
                status, _, _ = await at.call("echo", {"text": str(n)})
                statuses.append(status)
                first.set()

        calls = [asyncio.create_task(call(n)) for n in range(16)]
        await first.wait()
        await at.stop()
        await asyncio.gather(*calls)
        status, _, _ = await at.call("echo", {"text": "a"})
        assert status == 503 and set(statuses) == {200, 503}
        assert await at.calls(begun) == statuses.count(200) <= len(at.asked()), "and no call without evidence"


@pytest.mark.parametrize("mode", MODES)
async def test_each_of_many_requests_gets_its_own_answer(mode: str, tmp_path: Path, everything: str) -> None:
    drawn = random.Random(19).choices(["echo", "remove_repo"], k=MANY)
    async with edge(tmp_path, everything, mode) as at:
        begun, places = len(await at.seen()), asyncio.Semaphore(AT_ONCE)

        async def call(tool: str, n: int) -> None:
            async with places:
                status, told, _ = await at.call(tool, {"text": str(n)})
            if tool == "echo":
                assert (status, told["result"]["content"][0]["text"]) == (200, str(n))
            else:
                assert (status, told["error"]["data"]["reason"]) == (403, "denied-by-rule")

        await asyncio.gather(*(call(tool, n) for n, tool in enumerate(drawn)))
        assert await at.calls(begun) == drawn.count("echo")
        assert Counter(record["event"] for record in at.asked()) == {
            "decision": drawn.count("echo"),
            "refusal": drawn.count("remove_repo"),
        }


async def chunked(body: bytes) -> AsyncIterator[bytes]:
    yield body[:10]
    yield body[10:]


@pytest.mark.parametrize("mode", MODES)
async def test_a_body_without_a_length_is_decided_on_whole(mode: str, tmp_path: Path, everything: str) -> None:
    async with edge(tmp_path, everything, mode) as at:
        for tool, status in (("echo", 200), ("remove_repo", 403)):
            message = stateless("tools/call", {"name": tool, "arguments": {"text": "a"}})
            routing = {"MCP-Protocol-Version": STATELESS, "Mcp-Method": "tools/call", "Mcp-Name": tool}
            sent = {"Accept": ACCEPT, "Content-Type": "application/json", **routing, "X-API-Key": at.key}
            body = chunked(json.dumps(message).encode())
            async with at.http.post(f"{at.url}/mcp/github", data=body, headers=sent) as response:
                assert response.status == status, await response.text()


TLS = """\
        - transport_socket:
            name: envoy.transport_sockets.tls
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
              require_client_certificate: true
              common_tls_context:
                tls_certificates:
                  - {certificate_chain: {filename: FOLDER/server.pem}, private_key: {filename: FOLDER/server.key}}
                validation_context: {trusted_ca: {filename: FOLDER/ca.pem}}
          filters:
"""
TO_SIDECAR = """\
      transport_socket:
        name: envoy.transport_sockets.tls
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
          common_tls_context:
            validation_context: {trusted_ca: {filename: FOLDER/server-ca.pem}}
      typed_extension_protocol_options:
"""
CERTIFICATES = """\
identity:
  certificates: {spiffe: [{trust_domain: acme.example, path: "/ns/prod/sa/{id}"}]}
"""


async def test_the_certificate_of_a_caller_is_its_credential(tmp_path: Path, everything: str) -> None:
    acme, server = authority("acme"), authority("server")
    server.issue(address="127.0.0.1").write(tmp_path, "server")
    (tmp_path / "ca.pem").write_text(acme.own.pem)
    (tmp_path / "server-ca.pem").write_text(server.own.pem)
    changed = {
        "grpc.yaml": {"        - filters:\n": TLS, "      typed_extension_protocol_options:\n": TO_SIDECAR},
        "sidecar.yaml": {
            "identity: {api_keys_path: keys.yaml}\n": CERTIFICATES,
            "public_url: http:": "public_url: https:",
            "server:\n": "server:\n  tls: {cert_path: server.pem, key_path: server.key}\n",
        },
    }
    async with edge(tmp_path, everything, "grpc", changed) as at:
        at.key = ""
        for name, status in (("planner", 200), ("other", 403)):
            issued = acme.issue(uris=[f"spiffe://acme.example/ns/prod/sa/{name}"])
            context = issued.client(tmp_path, server)
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as at.http:
                # Envoy's own check counts; what the caller writes about certificates does not.
                said, _, _ = await at.call("echo", {"text": "a"}, FORGED)
            assert (said, at.asked()[-1]["agent_id"]) == (status, f"nhi:{name}")


FORGED = {"x-forwarded-client-cert": "URI=spiffe://acme.example/ns/prod/sa/planner"}

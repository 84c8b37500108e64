"""A real nginx with the configuration of deploy/nginx stands before the official SDK's server, and asks the sidecar."""

import asyncio
import json
import random
import re
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import httpx2
import pytest
from mcp.client.streamable_http import streamable_http_client
from yarl import URL

from sidecar.app.application import Application
from sidecar.cli.free_ports import free_ports
from tests.a2a.agents import agent
from tests.flow.enforcement import SECRET
from tests.flow.idp import PEPPER, Idp
from tests.flow.world import ACCEPT, STATELESS, started, stateless, until
from tests.peers.ears import client, text_of
from tests.peers.stage import PATIENCE_S, ROOT

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
pytestmark = pytest.mark.skipif(NGINX is None, reason="no nginx")
DEPLOYED = ROOT / "deploy" / "nginx"
PLANNER, READER = "nhi:planner", "nhi:reader"
MANY, AT_ONCE = 1000, 16
RUNS = count()


@dataclass
class Edge:
    """nginx at `url` before the server at `upstream`, with its sidecar; `keys` are the API keys of callers. Requests of
    the test have the header X-Run-Id, and those of the sidecar itself, which probes its upstreams, don't."""

    url: str
    upstream: str
    app: Application
    http: aiohttp.ClientSession
    keys: Mapping[str, str]
    stopped: bool = False
    run: str = field(default_factory=lambda: f"nginx-{next(RUNS)}")

    async def call(self, caller: str, path: str = "/mcp/github") -> tuple[int, Mapping[str, str]]:
        """The status and headers of one call of a tool, with the key of a caller or ("") without one."""
        message = stateless("tools/call", {"name": "weather", "arguments": {"city": "Oslo"}})
        sent = {"Accept": ACCEPT, "MCP-Protocol-Version": STATELESS, "Mcp-Method": "tools/call", "Mcp-Name": "weather"}
        url = URL(f"{self.url}{path}", encoded=True)
        async with self.http.post(url, json=message, headers={**sent, **self.shown(caller)}) as response:
            await response.read()
            return response.status, dict(response.headers)

    def shown(self, caller: str) -> dict[str, str]:
        """The headers of a request of a caller."""
        return {"X-Run-Id": self.run, **({"X-API-Key": self.keys[caller]} if caller else {})}

    async def stop(self) -> None:
        """Stop the sidecar."""
        if not self.stopped:
            self.stopped = True
            await self.app.stop()

    async def seen(self, upstream: str = "") -> list[dict[str, Any]]:
        """The requests of the test that reached the upstream."""
        async with self.http.get(f"{upstream or self.upstream}/seen") as response:
            entries: list[dict[str, Any]] = await response.json()
        return [entry for entry in entries if entry.get("headers", {}).get("x-run-id") == self.run]

    async def posts(self) -> list[dict[str, Any]]:
        return [entry for entry in await self.seen() if entry["verb"] == "POST"]


@asynccontextmanager
async def edge(folder: Path, upstream: str, researcher: str = "http://127.0.0.1:9") -> AsyncIterator[Edge]:
    """The configuration of deploy/nginx, in a folder and at ports of its own."""
    shutil.copytree(DEPLOYED, folder, dirs_exist_ok=True)
    shutil.copytree(ROOT / "models", folder / "models")
    ports = dict(zip(("8070", "8080", "9090"), map(str, free_ports(3)), strict=True))
    ports |= {"3000": upstream.rpartition(":")[2], "3001": researcher.rpartition(":")[2]}
    for name in ("nginx.conf", "sidecar.yaml"):
        text = (folder / name).read_text("utf-8")
        (folder / name).write_text(re.sub(r"127\.0\.0\.1:(\d+)", lambda found: f"127.0.0.1:{ports[found[1]]}", text))
    idp = Idp()
    keys = {caller: idp.api_key(caller) for caller in (PLANNER, READER)}
    secrets = {"pdp.secret": SECRET, "pdp-key.conf": f'proxy_set_header X-PDP-Key "{SECRET}";\n'}
    for name, text in {**secrets, "keys.yaml": idp.files()["keys.yaml"], PEPPER: idp.pepper}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
        (folder / name).chmod(0o600)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE_S)) as http:
        at = Edge(f"http://127.0.0.1:{ports['8070']}", upstream, await started(folder), http, keys)
        try:
            with nginx(folder):
                yield at
        finally:
            await at.stop()


@contextmanager
def nginx(folder: Path) -> Iterator[None]:
    """nginx in the foreground, which ends with the block."""
    command = [str(NGINX), "-p", str(folder), "-c", "nginx.conf", "-e", "stderr"]
    with (folder / "error.log").open("wb") as told, subprocess.Popen(command, stderr=told) as process:
        try:
            end_s = time.monotonic() + PATIENCE_S
            while not (folder / "nginx.pid").exists():  # written once it listens
                assert process.poll() is None and time.monotonic() < end_s, (folder / "error.log").read_text()
                time.sleep(0.01)
            yield
        finally:
            process.terminate()


async def test_nginx_lets_through_whom_the_sidecar_lets_in(tmp_path: Path, everything: str) -> None:
    async with edge(tmp_path, everything) as at:
        async with httpx2.AsyncClient(headers=at.shown(PLANNER)) as http:
            for mode in ("legacy", "auto"):
                async with client(streamable_http_client(f"{at.url}/mcp/github", http_client=http), mode) as peer:
                    assert text_of(await peer.call_tool("echo", {"text": mode})) == mode
        headers = [entry["headers"] for entry in await at.seen()]
        assert {sent.get("x-principal") for sent in headers} == {PLANNER}
        assert not any("x-api-key" in sent or "authorization" in sent for sent in headers)

        reached = await at.posts()
        assert (await at.call(READER))[0] == 403
        status, told = await at.call("")
        assert status == 401
        (metadata,) = re.findall(r'resource_metadata="([^"]+)"', told["WWW-Authenticate"])
        async with at.http.get(metadata) as response:
            assert (await response.json())["resource"] == f"{at.url}/mcp/github"
        async with at.http.get(f"{at.url}/auth/nginx") as response:
            assert response.status == 404  # for nginx alone
        assert await at.posts() == reached
        records = [json.loads(line) for line in at.app.settings.audit_path.read_text("utf-8").splitlines()]
        asked = {
            record["decision_id"]: record["reason"] or PLANNER for record in records if record["enforcement_point"]
        }

        def logged() -> dict[str, str]:  # written after the answer
            lines = [line.split()[-2:] for line in (tmp_path / "access.log").read_text("utf-8").splitlines()]
            return {decision_id: last for decision_id, last in lines if decision_id != "-"}

        await until(lambda: logged() == asked)


async def test_an_agent_is_entered_as_a_whole_and_its_card_is_public(tmp_path: Path) -> None:
    told = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "echo: hello"}]}
    message = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": told}}
    with agent("sdk1") as researcher:
        async with edge(tmp_path, "http://127.0.0.1:9", researcher.url) as at:
            base = f"{at.url}/agents/researcher/"
            async with at.http.get(f"{base}.well-known/agent-card.json") as response:
                assert [one["url"] for one in (await response.json())["supportedInterfaces"]] == [base] * 2
            statuses = []
            for caller in (PLANNER, READER, ""):
                sent = {"A2A-Version": "1.0", **at.shown(caller)}
                async with at.http.post(base, json=message, headers=sent) as response:
                    statuses.append(response.status)
                    assert response.status != 200 or "hello" in await response.text()
            assert statuses == [200, 403, 401]
            assert len(await at.seen(researcher.url)) == 1


async def test_a_path_is_refused_that_nginx_rewrites(tmp_path: Path, everything: str) -> None:
    paths = ["/mcp/./github", "/mcp/other/../github", "/mcp//github", "/%6dcp/github", "/mcp/other/%2e%2e/github"]
    async with edge(tmp_path, everything) as at:
        assert [(await at.call(PLANNER, path))[0] for path in paths] == [403] * len(paths)
        assert (await at.call(PLANNER, "/mcp/github?a=/../b"))[0] == 200
        assert len(await at.seen()) == 1


async def test_nginx_lets_nothing_through_without_the_decision_point(tmp_path: Path, everything: str) -> None:
    async with edge(tmp_path, everything) as at:
        assert (await at.call(PLANNER))[0] == 200
        await at.stop()
        assert [(await at.call(caller))[0] for caller in (PLANNER, READER, "")] == [500, 500, 500]
        assert len(await at.seen()) == 1


async def test_nginx_lets_each_of_many_requests_through_or_not(tmp_path: Path, everything: str) -> None:
    callers = random.Random(19).choices([PLANNER, READER, ""], k=MANY)
    async with edge(tmp_path, everything) as at:
        places = asyncio.Semaphore(AT_ONCE)

        async def call(caller: str) -> int:
            async with places:
                return (await at.call(caller))[0]

        found = Counter(zip(callers, await asyncio.gather(*map(call, callers)), strict=True))
        counts = Counter(callers)
        assert found == {(PLANNER, 200): counts[PLANNER], (READER, 403): counts[READER], ("", 401): counts[""]}
        assert len(await at.seen()) == counts[PLANNER]

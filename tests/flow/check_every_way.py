"""Is a server the same behind us, however it is spoken with and however its callers speak?

One official server, on each transport that it has; one caller, at each front that we have. What may be seen and called,
why not, what is taken out of an answer, what is on record: all of it must be one.
"""

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.flow.federated import At
from tests.flow.pairs import Pair, pair
from tests.flow.talk import Talk
from tests.flow.world import World, world
from tests.tables import tables

TABLES = tables("flow/every_way")

ROOT = Path(__file__).parents[2]
SERVER = (sys.executable, "-m", "tests.conformance.server")
TRANSPORTS = ("http", "sse", "stdio")
FRONTS = ("stateless", "session", "paired", "all-stateless", "all-session", "plain")
RULES = TABLES["rules"]
RESPONSES = "responses: {redact: [{tools: [greet], classes: [email]}]}"


@dataclass
class Talking:
    """Streamable HTTP, at a server's own address or at that of all, and plain HTTP."""

    talk: Talk
    prefix: str = ""

    async def tools(self) -> list[str]:
        body = parsed((await self.talk.ask("tools/list"))[1])
        assert "error" not in body, body
        listed = body["tools"] if "tools" in body else body["result"]["tools"]
        assert all(tool["name"].startswith(self.prefix) for tool in listed)
        return sorted(tool["name"].removeprefix(self.prefix) for tool in listed)

    async def call(self, tool: str, arguments: dict[str, Any]) -> str:
        return outcome(parsed((await self.talk.call(self.prefix + tool, arguments))[1]))


@dataclass
class Paired:
    """HTTP+SSE."""

    pair: Pair
    calls: int = 0

    async def tools(self) -> list[str]:
        return sorted(tool["name"] for tool in (await self.pair.ask("tools/list", id="list"))["result"]["tools"])

    async def call(self, tool: str, arguments: dict[str, Any]) -> str:
        self.calls += 1
        return outcome(await self.pair.call(tool, arguments, id=self.calls))


Client = Talking | Paired  # one caller at one front; what comes back is a text, or why there is none


def parsed(body: Any) -> Any:
    """A body, or the last message of a stream."""
    if not isinstance(body, bytes):
        return body
    return json.loads([line for line in body.splitlines() if line.startswith(b"data: {")][-1][6:])


def outcome(body: Any) -> str:
    """The text of a result, or the reason of a refusal, whichever way it is told."""
    if "type" in body:  # plain HTTP: a problem
        return str(body.get("reason") or body["details"]["content"][0]["text"])
    if "error" in body:
        return str(body["error"]["data"]["reason"])
    result = body["result"]
    refused = result.get("_meta", {}).get("sidecar/refusal", {})
    return str(refused.get("reason") or result["content"][0]["text"])


@asynccontextmanager
async def client(running: World, front: str) -> AsyncIterator[Client]:
    if front == "paired":
        async with pair(running, {}) as paired:
            yield Paired(paired)
    elif front.startswith("all-"):
        yield Talking(At(running, "stateless" if front == "all-stateless" else "session"), "github__")
    else:
        era: Any = front
        yield Talking(Talk(running, era))


@pytest.fixture(scope="module", params=TRANSPORTS)
def spoken(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """How the server is configured that speaks this."""
    if request.param == "stdio":
        arguments = ", ".join(f'"{word}"' for word in (*SERVER[1:], "stdio"))
        yield {"program": f'command: "{SERVER[0]}", args: [{arguments}], cwd: "{ROOT}"'}
        return
    process: Any = subprocess.Popen(
        (*SERVER, request.param), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )

    base = f"http://127.0.0.1:{int(process.stdout.readline())}"
    try:
        yield {"upstream_url": f"{base}/{'mcp' if request.param == 'http' else 'sse'}"}
    finally:
        process.stdin.close()
        process.wait(10)
        process.stdout.close()


CALLS: list[Any] = TABLES["calls"]


async def test_a_server_is_one_by_every_way(spoken: dict[str, str], tmp_path: Path) -> None:
    heard: dict[str, list[Any]] = {}
    async with world(tmp_path, rules=RULES, upstream_settings=RESPONSES, **spoken) as running:
        for front in FRONTS:
            before = len(running.records())
            async with client(running, front) as caller:
                said = [await caller.tools(), *[await caller.call(*call) for call in CALLS]]
                await running.app.switch_off("github", "test_simple_text", reason="", until=None, by="test")
                said += [await caller.tools(), await caller.call("test_simple_text", {})]
                assert await running.app.switch_on("github", "test_simple_text", by="test")
                await running.app.switch.disable("nhi:planner", reason="", until=None, by="test")
                said.append(await caller.call("test_simple_text", {}) if front != "paired" else "principal-disabled")
                assert await running.app.switch.enable("nhi:planner", by="test")
            ended = [
                (record["object"], record["action"], record["reason"], record["redaction_applied"])
                for record in running.records()[before:]
                if record["event"] in ("outcome", "refusal") and record["action"] == "tools/call"
            ]
            heard[front] = [*said, [one for one in ended if one[2] != "principal-disabled"]]
    assert heard["stateless"][:7] == TABLES["heard"]
    assert heard["stateless"][7:10] == [["greet", "test_error_handling"], "tool-disabled", "principal-disabled"]
    for front in FRONTS:
        assert heard[front] == heard["stateless"], front

"""Serves a sidecar whose console has something to show: servers, agents, people, limits, faults, and calls going on."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from dataclasses import dataclass, field
from typing import Any, TypeVar

import aiohttp
from aiohttp import web

from sidecar.cli.free_ports import free_ports
from sidecar.upstreams.mcp.pins import pin_of
from sidecar.upstreams.mcp.pins_file import file_of
from tests.a2a.world import ScriptedAgent
from tests.flow.idp import SETTINGS as ISSUERS, Idp, bearer
from tests.flow.process import Served, served
from tests.flow.world import PATIENCE_S, Upstream, listening, stateless

T = TypeVar("T")
OPERATOR, VIEWER = "4f1c9f0b7a6d4e52b8c3d1a09e7f6b5c", "b2d64c1e8f0a4739a5c7e91d3f6b8a20"
DMITRI = "d0c9b6b8f5e14c0f8f0c3c6e5a7d9b21"  # a person on call
HOSTILE = "<img src=x onerror=alert(1)>"
CALLS_PER_S = 8
START_S = 30.0

SETTINGS = """\
server: {{listen: "127.0.0.1:0"}}
local:
  - {{listen: "127.0.0.1:{planner}", principal: "nhi:planner"}}
  - {{listen: "127.0.0.1:{researcher}", principal: "nhi:researcher"}}
admin:
  listen: "127.0.0.1:{admin}"
  console: {{enabled: true}}
  credentials:
    - {{role: operator, name: olga, secret_path: op.key}}
    - {{role: viewer, name: victor, secret_path: view.key}}
    - {{role: viewer, name: dmitri, secret_path: dmitri.key, principal: "user:dmitri"}}
agents:
  summariser:
    description: Shortens a text to one line.
    executable: /usr/bin/head
    cli_args: {{"-c": "60"}}
    timeout: 10s
  counter:
    description: Counts for a minute.
    executable: /bin/sh
    args: [-c, 'for i in $(seq 1 600); do echo "count $i"; sleep 0.1; done']
  decorator:
    description: Asks which colour.
    executable: /bin/sh
    args: [asks.sh]
    agent_type: json-rpc
    working_directory: .
schedules:
  nightly: {{agent: summariser, cron: "0 2 * * *", input_parameters: {{prompt: "the day's notes"}}}}
"""
UPSTREAMS = """\
  issues: {{mcp: {{url: "{issues}"}}, probe: {{every_s: 2}}}}
  billing: {{mcp: {{url: "http://127.0.0.1:{nobody}/mcp", timeout_s: 1}}, probe: {{every_s: 2}}}}
  writer: {{a2a: {{url: "{writer}"}}, probe: {{every_s: 2}}}}
"""
RULES = """\
#: id=planner-searches owner=platform@acme.example
p, nhi:planner, tool:github/search_code, use, -, -, args.repo.startsWith('acme/'), allow
#: id=planner-reads owner=platform@acme.example
p, nhi:planner, tool:github/get_file, use, -, 2000, -, allow
#: id=on-call-uses-issues owner=support@acme.example
p, role:on-call, tool:issues/*, use, {soon}, 400, -, allow
#: id=researcher-reads owner=research@acme.example
p, nhi:researcher, set:reading, use, -, 5000, -, allow
#: id=billing-for-planner
p, nhi:planner, tool:billing/*, use, -, -, -, allow
#: id=closing-needs-a-person approval=role:on-call within=15m reason=required
p, nhi:planner, tool:issues/close_issue, use, -, -, -, allow
"""
FILES = {
    "op.key": OPERATOR,
    "view.key": VIEWER,
    "dmitri.key": DMITRI,
    "asks.sh": """read line
echo '{"jsonrpc": "2.0", "id": 1, "result": {"state": "input-required", "text": "which colour?"}}'
""",
    "policies/roles.csv": "g, user:alice, role:on-call\ng, user:bob, role:on-call\ng, user:dmitri, role:on-call\n"
    "g2, tool:github/get_file, set:reading\ng2, tool:issues/get_issue, set:reading\n",
    "policies/user_to_nhi.csv": "p, role:on-call, nhi:writer, use, -, -, -, allow\n",
    "policies/nhi_to_nhi.csv": "p, nhi:planner, nhi:writer, use, -, -, -, allow\n"
    "p, nhi:planner, nhi:summariser, use, -, -, -, allow\np, nhi:nightly, nhi:summariser, use, -, -, -, allow\n"
    "p, nhi:operator, nhi:*, use, -, -, -, allow\n",
    "policies/guardrails.csv": '#: id=nobody-deletes reason="Deletion needs a human"\n'
    "p, *, tool:*/delete_*, tools/call, -, -, -, deny\n",
    "policies/budgets.yaml": "version: 1\n"
    'tools: {"tool:issues/*": {requests_per_second: 50, daily_quota: 5000}}\n'
    'principals: {"nhi:planner": {per_hour: 20000}, "user:*": {per_day: 60}}\n',
}


@dataclass
class Scene:
    """The running sidecar. `github` and `issues` are its servers, `base` the address of its console's listener."""

    served: Served
    github: Upstream
    issues: Upstream
    base: str
    planner: str
    researcher: str
    people: Mapping[str, Mapping[str, str]]
    http: aiohttp.ClientSession
    loop: asyncio.AbstractEventLoop
    going: asyncio.Event = field(default_factory=asyncio.Event)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the scene's thread, and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE_S)

    def pause(self) -> None:
        """Stop the traffic: what is shown stays as it is."""
        self.loop.call_soon_threadsafe(self.going.clear)

    def go_on(self) -> None:
        self.loop.call_soon_threadsafe(self.going.set)

    def call(self, tool: str, arguments: dict[str, Any] | None = None, *, server: str = "github") -> int:
        """One call of the planner; its status."""
        return self.run(self.called(self.planner, server, tool, arguments or {}))

    async def called(
        self, base: str, server: str, tool: str, arguments: dict[str, Any], headers: Mapping[str, str] = {}
    ) -> int:
        message = stateless("tools/call", {"name": tool, "arguments": arguments})
        routing = {"Mcp-Method": "tools/call", "Mcp-Name": tool, "MCP-Protocol-Version": "2026-07-28"}
        accept = {"Accept": "application/json, text/event-stream"}
        async with self.http.post(
            f"{base}/mcp/{server}", json=message, headers={**accept, **routing, **headers}
        ) as response:
            await response.read()
            return response.status

    async def order(self, path: str, body: Mapping[str, Any] = {}) -> Mapping[str, Any]:
        """What the admin API answers to an order of the operator."""
        headers = {"Authorization": f"Bearer {OPERATOR}"}
        async with self.http.post(f"{self.base}{path}", json=body, headers=headers) as response:
            answer: Mapping[str, Any] = await response.json(content_type=None)
            assert response.status < 300, answer
            return answer

    @contextmanager
    def changed_tool(self) -> Iterator[str]:
        """Pins of the server `issues`, of which one is no longer as it was approved; its name."""
        text = {"type": "string"}
        was = _tool("get_issue", "Read one issue of a project.\nIt sends nothing anywhere.", id=text, project=text)
        pins = [pin_of(one, at="2026-11-01T08:00:00Z", by="alice") for one in (was, *self.issues.tools[1:])]
        file = self.served.folder / "policies" / "pins.yaml"
        file.write_text(file_of({"issues": {pin.definition["name"]: pin for pin in pins if pin is not None}}))
        try:
            yield "get_issue"
        finally:
            file.unlink()

    async def traffic(self) -> None:
        """Calls at a steady rate until the scene ends."""
        alice, bob = self.people["user:alice"], self.people["user:bob"]
        data = self.served.url
        scenes: list[Callable[[], Awaitable[int]]] = [
            lambda: self.called(self.planner, "github", "search_code", {"repo": "acme/site", "q": "login"}),
            lambda: self.called(self.planner, "github", "get_file", {"path": "README.md"}),
            lambda: self.called(data, "issues", "get_issue", {"id": 7}, alice),
            lambda: self.called(self.researcher, "github", "get_file", {"path": "NOTES.md"}),
            lambda: self.called(self.planner, "github", "search_code", {"repo": "other/site", "q": "login"}),
            lambda: self.called(data, "issues", "get_issue", {"id": 8}, bob),
            lambda: self.called(self.planner, "github", "delete_repo", {"repo": "acme/site"}),
            lambda: self.called(self.researcher, "issues", "get_issue", {"id": 9}),
            lambda: self.called(self.planner, "billing", "charge", {}),
        ]
        for scene in itertools.cycle(scenes):
            await self.going.wait()
            with suppress(aiohttp.ClientError, TimeoutError):
                await scene()
            await asyncio.sleep(1 / CALLS_PER_S)


def _tool(name: str, description: str, **properties: Any) -> dict[str, Any]:
    return {"name": name, "description": description, "inputSchema": {"type": "object", "properties": properties}}


def _github() -> Upstream:
    text = {"type": "string"}
    return Upstream(
        tools=[
            _tool("search_code", "Search the code of a repository", repo=text, q=text),
            _tool("get_file", f"Read one file {HOSTILE}", path=text),
            _tool("delete_repo", "Delete a repository", repo=text),
        ]
    )


def _issue_tools() -> list[dict[str, Any]]:
    number = {"type": "integer"}
    return [
        _tool("get_issue", "Read an issue", id=number),
        _tool("close_issue", "Close an issue", id=number, why={"type": "string"}),
    ]


def _issues() -> Upstream:
    async def failing(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        number = message["params"]["arguments"]["id"]
        if number != 9:
            return stub.answer(message)
        error = {"code": -32000, "message": f"no issue {HOSTILE}"}
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], "error": error})

    stub = Upstream(script={"tools/call": failing}, tools=_issue_tools())
    return stub


@asynccontextmanager
async def _scene(soon: str) -> AsyncIterator[Scene]:
    planner, researcher, admin, nobody = free_ports(4)
    idp = Idp()
    people = {name: bearer(idp.api_key(name, ttl_s=86_400)) for name in ("user:alice", "user:bob")}
    async with AsyncExitStack() as open_ones:
        github, issues, writer = _github(), _issues(), ScriptedAgent()
        urls = [await open_ones.enter_async_context(listening(one.handle)) for one in (github, issues, writer)]
        ports = {"planner": planner, "researcher": researcher, "admin": admin}
        more = UPSTREAMS.format(issues=f"{urls[1]}/mcp", writer=f"{urls[2]}/", nobody=nobody)
        running = await open_ones.enter_async_context(
            served(
                f"{urls[0]}/mcp",
                rules=RULES.format(soon=soon),
                settings=more + SETTINGS.format(**ports) + ISSUERS,
                files=FILES | idp.files(),
                upstream_settings="probe: {every_s: 2}",
            )
        )
        http = await open_ones.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(PATIENCE_S)))
        bases = [f"http://127.0.0.1:{port}" for port in (admin, planner, researcher)]
        scene = Scene(running, github, issues, *bases, people, http, asyncio.get_running_loop())
        scene.going.set()
        await scene.called(scene.planner, "issues", "close_issue", {"id": 4, "why": f"{HOSTILE} is fixed"})
        await scene.order("/api/schedules/nightly/run")
        await scene.order("/api/agents/decorator/runs", {"prompt": HOSTILE})
        traffic = asyncio.create_task(scene.traffic())
        try:
            yield scene
        finally:
            traffic.cancel()
            await asyncio.wait({traffic})


@contextmanager
def hosted(made: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """What an asynchronous context gives, while it lives in a thread of its own."""
    ready, fault = threading.Event(), list[BaseException]()
    found: list[tuple[T, asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        try:
            async with made as given:
                end = asyncio.Event()
                found.append((given, asyncio.get_running_loop(), end))
                ready.set()
                await end.wait()
        except BaseException as error:  # raised in the other thread, which waits for it
            fault.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    if not ready.wait(START_S) or not found:
        raise RuntimeError("it did not begin") from next(iter(fault), None)
    ((given, loop, end),) = found
    try:
        yield given
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join(START_S)
    if fault or thread.is_alive():
        raise RuntimeError("it did not end") from next(iter(fault), None)


def running_scene(soon: str) -> AbstractContextManager[Scene]:
    """The scene, in a thread of its own; `soon` is when one of its grants ends (RFC 3339)."""
    return hosted(_scene(soon))

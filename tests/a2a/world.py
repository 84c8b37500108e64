"""A sidecar in this process before an agent that does what a test says, and callers of every version and binding."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import aiohttp
from aiohttp import web
from grpc import aio

from sidecar.app.application import Application
from sidecar.protocols.a2a import http
from sidecar.protocols.a2a.forms import FORMS
from sidecar.protocols.a2a.operations import BY_ACTION, BY_RPC, CARD, LIST, SEND, STREAM, Binding, Operation, Version
from sidecar.protocols.a2a.status import DETAILS, infos_in
from sidecar.protocols.a2a.v03 import request_name, response_name
from sidecar.protocols.a2a.wire import WIRES
from sidecar.settings.shipped_files import shipped
from tests import wire
from tests.flow.idp import SETTINGS, Idp, bearer
from tests.flow.world import PATIENCE_S, listening, started, until
from tests.tables import tables

IDP = Idp()
WHO = {name: bearer(IDP.api_key(name)) for name in ("user:alice", "user:bob", "nhi:planner", "nhi:other")}
ALICE, BOB, PLANNER = WHO["user:alice"], WHO["user:bob"], WHO["nhi:planner"]
EVERYTHING = "use|push/set|push/get|push/list|push/delete|card/extended"
RULES: dict[str, str] = {
    "user_to_nhi": f"p, user:alice, nhi:researcher, {EVERYTHING}, -, -, -, allow\n"
    f"p, user:bob, nhi:researcher, {EVERYTHING}, -, -, -, allow\n",
    "nhi_to_nhi": f"p, nhi:planner, nhi:researcher, {EVERYTHING}, -, -, -, allow\n",
}
HTTP: list[tuple[Version, Binding]]
HTTP = [("1.0", "jsonrpc"), ("1.0", "http_json"), ("0.3", "jsonrpc"), ("0.3", "http_json")]
SPOKEN: list[tuple[Version, Binding]] = [*HTTP, ("1.0", "grpc"), ("0.3", "grpc")]
# Tests are called back on this machine; nobody else is.
CALLED_BACK = 'callbacks: {allow: ["127.0.0.1:*"], schemes: [http], networks: [127.0.0.0/8]}\n'
WORKING = "TASK_STATE_WORKING"
HOOK = "http://127.0.0.1:9/hook"
HELLO: dict[str, Any] = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "hello"}]}
CARD_10: dict[str, Any] = wire.table("cards")["a researcher's of 1.0"]
Respond = Callable[[str, dict[str, Any]], Any]


def task(name: str = "t1", context: str = "c1", state: str = "TASK_STATE_COMPLETED") -> dict[str, Any]:
    """A task as 1.0 has it."""
    return {"id": name, "contextId": context, "status": {"state": state, "timestamp": "2026-11-28T00:00:00Z"}}


@dataclass
class ScriptedAgent:
    """An agent of 1.0 over JSON-RPC. `script` answers a method with a result, a list of events, or an error (an
    exception class of this module); what it is not told it makes up."""

    script: dict[str, Respond] = field(default_factory=dict)
    seen: list[tuple[dict[str, str], dict[str, Any]]] = field(default_factory=list)
    configs: list[dict[str, Any]] = field(default_factory=list)
    made: int = 0

    def methods(self) -> list[str]:
        """What reached it."""
        return [message["method"] for _, message in self.seen]

    card: dict[str, Any] = field(default_factory=lambda: dict(CARD_10))
    cards: int = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            self.cards += 1
            return web.json_response(self.card)
        message = json.loads(await request.read())
        self.seen.append((dict(request.headers), message))
        method, params = message["method"], message.get("params", {})
        answer = self.script.get(method, self._answer)(method, params)
        if isinstance(answer, Awaitable):
            answer = await answer
        if isinstance(answer, web.StreamResponse):
            return answer
        if isinstance(answer, No):
            return web.json_response({"jsonrpc": "2.0", "id": message["id"], "error": answer.error})
        operation = BY_RPC["1.0"][method]
        if not operation.streams:
            return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": answer})
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await stream.prepare(request)
        for event in answer:
            if isinstance(event, asyncio.Event):
                await event.wait()
                continue
            said = {"error": event.error} if isinstance(event, No) else {"result": event}
            await stream.write(
                b"data: " + json.dumps({"jsonrpc": "2.0", "id": message["id"], **said}).encode() + b"\n\n"
            )
        return stream

    def _answer(self, method: str, params: dict[str, Any]) -> Any:
        match method:
            case "SendMessage" | "SendStreamingMessage":
                self.made += 1
                name = params["message"].get("taskId") or f"t{self.made}"
                context = params["message"].get("contextId") or f"c{self.made}"
                if method == "SendMessage":
                    return {"task": task(name, context)}
                return [{"task": task(name, context, "TASK_STATE_WORKING")}, _done(name, context)]
            case "SubscribeToTask":
                return [{"task": task(params["id"], state="TASK_STATE_WORKING")}, _done(params["id"], "c1")]
            case "GetTask" | "CancelTask":
                return task(params["id"])
            case "ListTasks":
                tasks = [task(f"t{n + 1}", f"c{n + 1}") for n in range(self.made)]
                return {"tasks": tasks, "totalSize": self.made, "pageSize": 50}
            case "GetExtendedAgentCard":
                return {**CARD_10, "description": "more for those who are known"}
        if method.startswith("CreateTaskPush"):
            self.configs = [{"id": "p1", **params}]
        if method.startswith("ListTaskPush"):
            return {"configs": self.configs}
        return self.configs[0] if method.startswith(("CreateTaskPush", "GetTaskPush")) else {}


def _done(name: str, context: str) -> dict[str, Any]:
    return {"statusUpdate": {"taskId": name, "contextId": context, "status": task()["status"]}}


def saying(**said: Any) -> ScriptedAgent:
    """An agent that answers each of these methods with just that."""
    return ScriptedAgent(script={method: lambda *_, one=one: one for method, one in said.items()})


@dataclass(frozen=True)
class No:
    """An agent's no."""

    error: dict[str, Any]


@dataclass
class AgentWorld:
    """A running sidecar before `researcher`."""

    folder: Path
    agent: ScriptedAgent
    app: Application
    http: aiohttp.ClientSession
    url: str

    def records(self, event: str = "") -> list[dict[str, Any]]:
        """The audit so far."""
        lines = self.app.settings.audit_path.read_bytes().rpartition(b"\n")[0].splitlines()
        return [record for record in map(json.loads, lines) if not event or record["event"] == event]

    def ends(self) -> list[dict[str, Any]]:
        """The terminal records."""
        return [record for record in self.records() if record["event"] in ("outcome", "refusal")]


@dataclass(frozen=True)
class Answered:
    """An answer in the canonical form, whatever it came in: results (one, or a stream's events) or an error."""

    status: int
    results: tuple[Any, ...] = ()
    error: dict[str, Any] | None = None
    raw: bytes = b""

    @property
    def reason(self) -> str:
        """Our reason, "" for an agent's answer."""
        data = (self.error or {}).get("data") or (self.error or {}).get("details") or {}
        info = data[0].get("metadata", {}) if isinstance(data, list) else data
        return str(info.get("reason", "")) if isinstance(info, dict) else ""


class Reached(Protocol):
    """A sidecar that can be called by HTTP."""

    @property
    def http(self) -> aiohttp.ClientSession: ...
    @property
    def url(self) -> str: ...


async def ask(
    world: Reached,
    version: Version,
    binding: Binding,
    action: str,
    params: dict[str, Any],
    who: Mapping[str, str] = ALICE,
    agent: str = "researcher",
    at: str = "",
) -> Answered:
    """One operation, with canonical parameters, as a client of that version and binding sends it; `at` is the path of
    an address of the agent's own."""
    operation, form = BY_ACTION[action], FORMS[version, binding]
    headers = {**who, "A2A-Version": version}
    base = world.url + (at or f"/agents/{agent}")
    if binding == "jsonrpc":
        written = form.write_params(operation, params)
        message = {"jsonrpc": "2.0", "id": 1, "method": operation.rpc(version), "params": written}
        async with world.http.post(base + "/", json=message, headers=headers) as response:
            return _read_rpc(operation, version, response.status, response.content_type, await response.read())
    if binding == "grpc":
        assert isinstance(world, AgentWorld)
        return await _ask_grpc(world, version, operation, params, who, agent)
    route = operation.http(version)[0]
    rest = dict(params)
    ids = {}
    if operation not in (SEND, STREAM, LIST, CARD):
        key = "taskId" if "taskId" in rest else "id"
        ids = {"task": rest.pop(key), "config": rest.get("id", "")}
        if "{config}" in route.path:
            rest.pop("id", None)
    path = base + http.path_to(route, ids) + ("" if route.has_body else http.query_from(rest.items()))
    body = form.write_params(operation, params) if route.has_body else None
    async with world.http.request(route.verb, path, json=body, headers=headers) as response:
        return _read_http(operation, version, response.status, response.content_type, await response.read())


async def _ask_grpc(
    world: AgentWorld,
    version: Version,
    operation: Operation,
    params: dict[str, Any],
    who: Mapping[str, str],
    agent: str,
) -> Answered:
    form, wire = FORMS[version, "grpc"], WIRES[version]
    said = response_name(operation, version)
    body = wire.encode(request_name(operation, version), form.write_params(operation, params))
    service = "lf.a2a.v1.A2AService" if version == "1.0" else "a2a.v1.A2AService"
    metadata = tuple((name.lower(), value) for name, value in who.items())
    port = world.app.grpc_ports.get(agent, world.app.grpc_ports[""])
    async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        path = f"/{service}/{operation.grpc(version)}"
        call: Any = (channel.unary_stream if operation.streams else channel.unary_unary)(path)(body, metadata=metadata)
        try:
            raw = [message async for message in call] if operation.streams else [await call]
        except aio.AioRpcError as error:
            found = [infos_in(bytes(value)) for name, value in error.trailing_metadata() or () if name == DETAILS]
            told = {"code": error.code().name, "message": error.details(), "data": found[0] if found else []}
            return Answered(GRPC_AS_HTTP.get(error.code().name, 400), error=told, raw=json.dumps(told).encode())
    results = [form.read_result(operation, wire.decode(said, one, 64)) for one in raw] if said else [{}]
    return Answered(200, tuple(results), raw=b"".join(raw))


GRPC_AS_HTTP = tables("a2a/world")["grpc_as_http"]


def _read_rpc(operation: Operation, version: Version, status: int, media: str, raw: bytes) -> Answered:
    form, said = FORMS[version, "jsonrpc"], _said(media, raw)
    errors = [one["error"] for one in said if "error" in one]
    results = tuple(form.read_result(operation, one["result"]) for one in said if "result" in one)
    return Answered(status, results, errors[0] if errors else None, raw)


def _read_http(operation: Operation, version: Version, status: int, media: str, raw: bytes) -> Answered:
    form, said = FORMS[version, "http_json"], _said(media, raw)
    if status != 200:
        return Answered(status, error=said[0].get("error", said[0]), raw=raw)
    errors = [one.get("error", one) for one in said if "error" in one or "code" in one]
    results = tuple(form.read_result(operation, one) for one in said if not ("error" in one or "code" in one))
    return Answered(status, results, errors[0] if errors else None, raw)


def _said(media: str, raw: bytes) -> list[Any]:
    if media != "text/event-stream":
        return [json.loads(raw)]
    return [json.loads(line[6:]) for line in raw.decode().splitlines() if line.startswith("data: ")]


async def opened(world: AgentWorld, *way: Any, who: Mapping[str, str] = ALICE) -> asyncio.Task[Answered]:
    """A call in this way, once its stream is open."""
    call = asyncio.create_task(ask(world, *way, "message/stream", {"message": HELLO}, who))
    await until(lambda: bool(world.app.pipeline.forwarder.streams))
    return call


@asynccontextmanager
async def agent_world(
    folder: Path, agent: ScriptedAgent | None = None, *, environ: Mapping[str, str] | None = None, **what: Any
) -> AsyncIterator[AgentWorld]:
    """A sidecar whose callers have API keys; `what` it reads is what `write` takes."""
    scripted = agent or ScriptedAgent()
    async with listening(scripted.handle) as base:
        write(folder, f"{base}/", **what)
        app = await started(folder, environ or {})
        try:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE_S)) as session:
                yield AgentWorld(folder, scripted, app, session, f"http://127.0.0.1:{app.listeners[0].port}")
        finally:
            await app.stop()


def write(
    folder: Path,
    url: str,
    *,
    rules: Mapping[str, str] | None = None,
    files: Mapping[str, str] | None = None,
    settings: str = "",
    a2a: str = "",
    upstream: str = "",
    name: str = "researcher",
    identity: str = SETTINGS,
    spoken: str = "1.0",
    behind: str | None = None,
) -> None:
    """Everything that such a sidecar reads. `a2a` is added to the agent's section, `upstream` to what is around it;
    `behind` stands in place of both."""
    (folder / "policies").mkdir(parents=True, exist_ok=True)
    (folder / "models").mkdir(exist_ok=True)
    for model in shipped("models").glob("*.conf"):
        (folder / "models" / model.name).write_text(model.read_text())
    for kind, text in (RULES if rules is None else rules).items():
        (folder / "policies" / f"{kind}.csv").write_text(text)
    more, around = (f", {part}" if part else "" for part in (a2a, upstream))
    (folder / "sidecar.yaml").write_text(
        "version: 1\n"
        + ("" if "server:" in settings else 'server: {listen: "127.0.0.1:0", grpc: "127.0.0.1:0"}\n')
        + 'admin: {listen: "127.0.0.1:0"}\n'
        + identity
        + (behind or f'upstreams:\n  {name}: {{a2a: {{url: "{url}", version: "{spoken}"{more}}}{around}}}\n')
        + (CALLED_BACK if "callbacks:" not in settings else "")
        + settings
    )
    for file, content in {**IDP.files(), **(files or {})}.items():
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        path.chmod(0o640)  # some are secrets

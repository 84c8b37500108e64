"""What are servers like that know one era only, and do what their caller tells them?

SessionsOnly    2025-11-25: sessions, a GET stream for each, requests to its client
StatelessOnly   2026-07-28: no sessions, `input_required`, `subscriptions/listen`

Both have a tool `act`: its argument `say` are notifications to send on the way, `ask` the methods to ask the client,
and its result tells what the client answered. `wait` holds it until `gate` is set; `fail` is an error to end with.
"""

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.flow.streams import event
from tests.tables import tables

STATELESS, SESSION = "2026-07-28", "2025-11-25"
META = "io.modelcontextprotocol/"
ANY: dict[str, Any] = {"type": "object"}
TOOLS = [{"name": "act", "inputSchema": ANY}]
CAPABILITIES: dict[str, dict[str, bool]] = {
    **{kind: {"listChanged": True} for kind in ("tools", "prompts")},
    "resources": {"listChanged": True, "subscribe": True},
    **{kind: {} for kind in ("logging", "completions")},
}
QUESTIONS: Mapping[str, dict[str, Any]] = {
    "sampling/createMessage": {"messages": [], "maxTokens": 1},
    "elicitation/create": {"message": "well?", "requestedSchema": {"type": "object", "properties": {}}},
    "roots/list": {},
}
RESULTS: Mapping[str, dict[str, Any]] = tables("flow/apart")["results"]

OF_SESSION = web.ResponseKey("session", str)


def said(
    message: dict[str, Any], *, status: int = 200, headers: Mapping[str, str] | None = None, **more: Any
) -> web.Response:
    """A whole answer to it: `result` or `error`."""
    return web.json_response({"jsonrpc": "2.0", "id": message.get("id"), **more}, status=status, headers=headers)


@dataclass
class Server:
    """What both have in common. `seen` are (headers, message) of what reached it, `verbs` the verbs without one."""

    seen: list[tuple[Mapping[str, str], dict[str, Any]]] = field(default_factory=list)
    verbs: list[tuple[str, Mapping[str, str]]] = field(default_factory=list)
    tools: list[dict[str, Any]] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    streams: list[web.StreamResponse] = field(default_factory=list)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    left: int = 0
    url: str = ""

    def methods(self) -> list[str]:
        return [str(message.get("method", "response")) for _, message in self.seen]

    def of_method(self, method: str) -> list[dict[str, Any]]:
        return [message for _, message in self.seen if message.get("method") == method]

    async def emit(self, message: Any, session: str = "") -> None:
        """Say something unasked, in one session or in all."""
        for stream in list(self.streams):
            if session in ("", stream.get(OF_SESSION)):
                with suppress(ConnectionError):
                    await stream.write(event(message))

    def hang_up(self) -> None:
        """End every open stream."""
        self.ended.set()

    async def _open(self, request: web.Request) -> web.StreamResponse:
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await stream.prepare(request)
        return stream

    async def _stay(self, stream: web.StreamResponse) -> web.StreamResponse:
        self.streams.append(stream)
        try:
            await self.ended.wait()
        finally:
            self.streams.remove(stream)
        return stream

    async def _wait(self) -> None:
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.left += 1
            raise


@dataclass
class SessionsOnly(Server):
    """`probed` counts what it refused for its era. It asks on the call's stream, or `on_session_stream`, and then
    `talks_on` until it is answered. `lost` is the status for a session that it does not know."""

    sessions: set[str] = field(default_factory=set)
    answers: dict[str, asyncio.Future[dict[str, Any]]] = field(default_factory=dict)
    born: int = 0
    asked: int = 0
    probed: int = 0
    talks_on: bool = False
    talked: int = 0
    on_session_stream: bool = False
    lost: int = 404

    async def handle(self, request: web.Request) -> web.StreamResponse:
        session = request.headers.get("Mcp-Session-Id", "")
        if request.headers.get("MCP-Protocol-Version") == STATELESS:
            self.probed += 1
            error = {"code": -32600, "message": "Bad Request: Unsupported protocol version"}
            return said({"id": "server-error"}, error=error, status=400)
        if request.method != "POST":
            self.verbs.append((request.method, dict(request.headers)))
            if session not in self.sessions:
                return web.Response(status=self.lost)
            if request.method == "DELETE":
                self.sessions.discard(session)
                return web.Response(status=200)
            stream = await self._open(request)
            stream[OF_SESSION] = session
            return await self._stay(stream)
        message = json.loads(await request.read())
        self.seen.append((dict(request.headers), message))
        if message.get("method") == "initialize":
            return self._initialize(message)
        if session not in self.sessions:
            return web.Response(status=self.lost if session else 400)
        if "method" not in message:
            if asked := self.answers.get(str(message["id"])):
                asked.set_result(message)
            return web.Response(status=202)
        if "id" not in message:
            return web.Response(status=202)
        if message["method"] == "tools/call":
            return await self._act(request, message)
        result = dict(RESULTS.get(message["method"], {}))
        if message["method"] == "tools/list" and self.tools:
            result["tools"] = self.tools
        return said(message, result=result)

    def _initialize(self, message: dict[str, Any]) -> web.Response:
        self.born += 1
        session = f"session-{self.born}"
        self.sessions.add(session)
        about = {"serverInfo": {"name": "sessions", "version": "1"}, "instructions": "do"}
        result = {"protocolVersion": SESSION, "capabilities": CAPABILITIES, **about}
        return said(message, result=result, headers={"Mcp-Session-Id": session})

    async def _act(self, request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        wanted = message["params"].get("arguments", {})
        if "refuse" in wanted:
            return said(message, error={"code": -32602, "message": "no"}, status=wanted["refuse"])
        stream = await self._open(request)
        for one in wanted.get("say", []):
            await stream.write(event({"jsonrpc": "2.0", **one}))
        if wanted.get("wait"):
            await self._wait()
        answered = [await self._ask(request, stream, method) for method in wanted.get("ask", [])]
        text = json.dumps([answer.get("result", answer.get("error")) for answer in answered])
        end = (
            {"error": wanted["fail"]} if "fail" in wanted else {"result": {"content": [{"type": "text", "text": text}]}}
        )
        await stream.write(event({"jsonrpc": "2.0", "id": message["id"], **end}))
        return stream

    async def _ask(self, request: web.Request, stream: web.StreamResponse, method: str) -> dict[str, Any]:
        self.asked += 1
        asked_id = f"ask-{self.asked}"
        self.answers[asked_id] = asyncio.get_running_loop().create_future()
        question = {"jsonrpc": "2.0", "id": asked_id, "method": method, "params": QUESTIONS.get(method, {})}
        if self.on_session_stream:
            await self.emit(question, request.headers["Mcp-Session-Id"])
        else:
            await stream.write(event(question))
        try:
            while self.talks_on and not self.answers[asked_id].done():
                await stream.write(event({"jsonrpc": "2.0", "method": "x", "params": {"more": "x" * 65536}}))
                self.talked += 1
                await asyncio.sleep(0)
            return await self.answers[asked_id]
        except asyncio.CancelledError:
            self.left += 1
            raise


@dataclass
class StatelessOnly(Server):
    """It ends a call with all its questions at once. `refuses` is how many requests it sends back for their revision,
    naming the same one again."""

    rounds: int = 1
    refuses: int = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.method != "POST":
            self.verbs.append((request.method, dict(request.headers)))
            return web.Response(status=405)
        message = json.loads(await request.read())
        self.refuses -= 1
        if self.refuses >= 0 or request.headers.get("MCP-Protocol-Version") != STATELESS:
            data = {"supported": [STATELESS], "requested": SESSION}
            error = {"code": -32022, "message": "Unsupported protocol version", "data": data}
            return said(message, error=error, status=400)
        self.seen.append((dict(request.headers), message))
        method = message["method"]
        if method == "subscriptions/listen":
            stream = await self._open(request)
            meta = {f"{META}subscriptionId": message["id"]}
            params = {"notifications": message["params"]["notifications"], "_meta": meta}
            told = {"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": params}
            await stream.write(event(told))
            return await self._stay(stream)
        if method == "tools/call":
            return await self._act(request, message)
        result: dict[str, Any] = {"resultType": "complete", **RESULTS.get(method, {})}
        if method == "server/discover":
            info = {f"{META}serverInfo": {"name": "stateless", "version": "1"}}
            result |= {"supportedVersions": [STATELESS], "capabilities": CAPABILITIES, "_meta": info}
        if method.endswith("/list") or method in ("server/discover", "resources/read"):
            result |= {"ttlMs": 1000, "cacheScope": "public"}
        if method == "tools/list" and self.tools:
            result["tools"] = self.tools
        return said(message, result=result)

    async def _act(self, request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        params = message["params"]
        wanted, responses = params.get("arguments", {}), params.get("inputResponses")
        if wanted.get("wait"):
            await self._wait()
        done = int(params.get("requestState") or 0)
        if wanted.get("ask") and done < self.rounds:
            asked = {method: {"method": method, "params": QUESTIONS.get(method, {})} for method in wanted["ask"]}
            result: dict[str, Any] = {"resultType": "input_required", "inputRequests": asked}
            result["requestState"] = str(done + 1)
        else:
            text = json.dumps([(responses or {}).get(method) for method in wanted.get("ask", [])])
            result = {"resultType": "complete", "content": [{"type": "text", "text": text}]}
        if not wanted.get("say"):
            if "fail" in wanted:
                return said(message, error=wanted["fail"], status=404 if wanted["fail"]["code"] == -32601 else 400)
            return said(message, result=result)
        stream = await self._open(request)
        for one in wanted["say"]:
            await stream.write(event({"jsonrpc": "2.0", **one}))
        await stream.write(event({"jsonrpc": "2.0", "id": message["id"], "result": result}))
        return stream

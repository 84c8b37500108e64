"""What can an MCP server of the official SDK do, and what of our traffic did it see?

`python -m tests.peers.everything` serves on a free port of loopback, which it prints, until its standard input ends.
`/mcp` is an ordinary server of both eras that has a little of everything; it knows nothing of us. At `/sessions` it
speaks the session era only, at `/stateless` the stateless one only, at `/sse` the HTTP+SSE of 2024-11-05. Beside it:

    GET  /seen          every HTTP message that reached it, and what its tools witnessed, in order
    POST /open/{gate}   lets a tool go on that waits at `gate`
"""

import asyncio
import json
import os
import socket
import sys
import threading
import warnings
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Annotated, Any

import mcp_types as types
import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.resolve import Elicit, ListRoots, Resolve, Sample
from mcp.server.streamable_http import EventCallback, EventId, EventMessage, EventStore, StreamId
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

NOTED_HEADERS = (
    "mcp-session-id", "mcp-protocol-version", "last-event-id", "authorization", "x-api-key", "x-principal",
    "mcp-param-region", "x-run-id",
)  # fmt: skip
RETRY_MS = 50
STATELESS = b"2026-07-28"
APART = {"/sessions": False, "/stateless": True}  # whether what comes must be stateless
SERVED = ("/mcp", "/sse", "/messages/", *APART)


class Weather(BaseModel):
    """A structured result."""

    city: str
    celsius: int


class Answer(BaseModel):
    """What the user is asked for."""

    word: str


@dataclass
class Notes:
    """What happened here: `log` in order, `gates` that tools wait at, `counts` of each session."""

    log: list[dict[str, Any]] = field(default_factory=list)
    gates: defaultdict[str, asyncio.Event] = field(default_factory=lambda: defaultdict(asyncio.Event))
    counts: Counter[str] = field(default_factory=Counter)

    def event(self, what: str, tag: str = "") -> None:
        """A tool witnessed something."""
        self.log.append({"event": what, "tag": tag})


@dataclass
class Events(EventStore):
    """Every event of every stream, so that broken streams can be resumed. The SDK keys streams by request id alone,
    so resume in one session at a time."""

    events: list[tuple[StreamId, types.JSONRPCMessage | None]] = field(default_factory=list)

    async def store_event(self, stream_id: StreamId, message: types.JSONRPCMessage | None) -> EventId:
        self.events.append((stream_id, message))
        return f"event/{len(self.events)}"  # with a character that a careless proxy would mangle

    async def replay_events_after(self, last_event_id: EventId, send_callback: EventCallback) -> StreamId | None:
        after = int(last_event_id.partition("/")[2])
        stream_id = self.events[after - 1][0]
        for number, (stream, message) in enumerate(self.events[after:], after + 1):
            if stream == stream_id and message is not None:
                await send_callback(EventMessage(message, f"event/{number}"))
        return stream_id


@dataclass
class Witness:
    """Writes down each HTTP message before the server has it."""

    app: ASGIApp
    notes: Notes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in SERVED:
            await self.app(scope, receive, send)
            return
        must_be_stateless = APART.get(scope["path"])
        if must_be_stateless is not None:
            scope = {**scope, "path": "/mcp", "raw_path": b"/mcp"}
        body = bytearray()
        more = scope["method"] == "POST"
        while more:
            part = await receive()
            body += part.get("body", b"")
            more = part.get("more_body", False)
        self._note(scope, bytes(body))
        stateless = dict(scope["headers"]).get(b"mcp-protocol-version") == STATELESS
        if must_be_stateless not in (None, stateless):
            await _unknown_era(stateless, bytes(body))(scope, receive, send)
            return
        waiting = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def replayed() -> Message:
            return waiting.pop() if waiting else await receive()

        await self.app(scope, replayed, send)

    def _note(self, scope: Scope, body: bytes) -> None:
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        message = json.loads(body) if body else {}
        noted = {name: headers[name] for name in NOTED_HEADERS if name in headers}
        self.notes.log.append({"verb": scope["method"], "headers": noted, "message": message})


def _unknown_era(stateless: bool, body: bytes) -> Response:
    """What a server says that has never heard of the other era: the last 1.x, and a 2.x that dropped sessions."""
    if stateless:
        error = {"code": -32600, "message": "Bad Request: Missing session ID"}
        return JSONResponse({"jsonrpc": "2.0", "id": "server-error", "error": error}, 400)
    if not body:
        return Response(status_code=405)
    data = {"supported": ["2026-07-28"], "requested": "2025-11-25"}
    error = {"code": -32022, "message": "Unsupported protocol version", "data": data}
    return JSONResponse({"jsonrpc": "2.0", "id": json.loads(body).get("id"), "error": error}, 400)


def ask_word(text: str) -> Elicit[Answer]:
    return Elicit(f"a word for {text}", Answer)


def ask_model(text: str) -> Sample:
    prompt = types.SamplingMessage(role="user", content=types.TextContent(type="text", text=text))
    return Sample([prompt], max_tokens=8)


def ask_roots() -> ListRoots:
    return ListRoots()


def build(notes: Notes) -> MCPServer[Any]:
    """The server with all its parts."""
    server: MCPServer[Any] = MCPServer("everything", instructions="Try anything.", log_level="CRITICAL")
    _add_plain_tools(server)
    _add_talking_tools(server, notes)
    _add_asking_tools(server, notes)
    _add_content(server)
    _add_session_methods(server, notes)
    return server


def _add_plain_tools(server: MCPServer[Any]) -> None:
    @server.tool(structured_output=False)
    def echo(text: str) -> str:
        """Say it again."""
        return text

    @server.tool()
    def weather(city: Annotated[str, Field(max_length=40)]) -> Weather:
        """A structured result."""
        return Weather(city=city, celsius=21)

    @server.tool(structured_output=False)
    def near(region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})]) -> str:
        """An argument that is mirrored in a header (stateless era)."""
        return f"near {region}"

    @server.tool(structured_output=False)
    def fail(text: str) -> str:
        """A tool error."""
        raise ToolError(text)


def _add_talking_tools(server: MCPServer[Any], notes: Notes) -> None:
    @server.tool(structured_output=False)
    async def steps(gate: str, ctx: Context) -> str:
        """Report progress, wait at the gate, report more."""
        await ctx.report_progress(1, 2, f"{gate} waits")
        await notes.gates[gate].wait()
        await ctx.report_progress(2, 2, f"{gate} goes on")
        return f"{gate} done"

    @server.tool(structured_output=False)
    async def away(text: str, ctx: Context) -> str:
        """Hang up in mid-call (session era): the answer must be fetched by resuming."""
        await ctx.close_sse_stream()
        return text

    @server.tool(structured_output=False)
    async def whisper(text: str, ctx: Context) -> str:
        """Log messages of two levels, about this call."""
        await ctx.log("debug", f"debug {text}")
        await ctx.log("warning", f"warning {text}")
        return text

    @server.tool(structured_output=False)
    async def shout(text: str, ctx: Context) -> str:
        """A log message about nothing in particular: on the session's own stream."""
        await ctx.session.send_log_message("error", text)
        return text

    @server.tool(structured_output=False)
    async def slow(tag: str) -> str:
        """Never ends; says so when it is cancelled."""
        notes.event("slow-begun", tag)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            notes.event("slow-cancelled", tag)
            raise
        return tag

    @server.tool(structured_output=False)
    def count(ctx: Context) -> int:
        """How often this session has asked."""
        session = (ctx.headers or {}).get("mcp-session-id", "")
        notes.counts[session] += 1
        return notes.counts[session]

    @server.tool(structured_output=False)
    async def grow(name: str, ctx: Context) -> str:
        """A further tool, announced in both eras' ways; growing again lets it take a number instead of a text."""

        def counted(number: int) -> str:
            return f"number {number}"

        def spoken(text: str) -> str:
            return f"text {text}"

        grown = any(tool.name == name for tool in await server.list_tools())
        if grown:
            server.remove_tool(name)
        server.add_tool(counted if grown else spoken, name=name, structured_output=False)
        await ctx.notify_tools_changed()
        await ctx.session.send_tool_list_changed()
        return name

    @server.tool(structured_output=False)
    async def touch(uri: str, ctx: Context) -> str:
        """Say that a resource changed, in both eras' ways."""
        await ctx.notify_resource_updated(uri)
        await ctx.session.send_resource_updated(uri)
        return uri


def _add_asking_tools(server: MCPServer[Any], notes: Notes) -> None:
    """What the server asks of its client: by requests in the session era, by `input_required` in the stateless one."""

    @server.tool(structured_output=False)
    def greet(text: str, answer: Annotated[Answer, Resolve(ask_word)]) -> str:
        """Asks the user."""
        return f"{text} {answer.word}"

    @server.tool(structured_output=False)
    def think(text: str, thought: Annotated[types.CreateMessageResult, Resolve(ask_model)]) -> str:
        """Asks the client's model."""
        return f"{text} {getattr(thought.content, 'text', '')}"

    @server.tool(structured_output=False)
    def places(roots: Annotated[types.ListRootsResult, Resolve(ask_roots)]) -> str:
        """Asks where the client works."""
        return " ".join(str(root.uri) for root in roots.roots)

    @server.tool(structured_output=False)
    async def canary(text: str, answer: Annotated[Answer, Resolve(ask_word)], ctx: Context) -> str:
        """The same text on every way there is back to the client."""
        await ctx.report_progress(1, 2, text)
        await ctx.log("warning", text)
        await ctx.session.send_log_message("error", text)
        await asyncio.sleep(0)
        await ctx.report_progress(2, 2, text)
        return f"{text} {answer.word}"

    @server.tool(structured_output=False)
    async def ping_back(ctx: Context) -> str:
        """Pings the client (session era)."""
        await ctx.session.send_ping()
        notes.event("pinged")
        return "alive"


def _add_content(server: MCPServer[Any]) -> None:
    @server.resource("note://welcome")
    def welcome() -> str:
        return "welcome"

    @server.resource("note://private")
    def private() -> str:
        return "private"

    @server.resource("note://by/{name}")
    def by(name: str) -> str:
        return f"by {name}"

    @server.prompt()
    def review(code: str) -> str:
        """Review some code."""
        return f"please review {code}"

    @server.prompt()
    def secret() -> str:
        """Not for everybody."""
        return "secret"

    @server.completion()
    async def complete(
        ref: types.PromptReference | types.ResourceTemplateReference, argument: Any, context: Any
    ) -> types.Completion:
        offered = ["anna", "anton", "berta"] if isinstance(ref, types.ResourceTemplateReference) else ["python", "perl"]
        return types.Completion(values=[word for word in offered if word.startswith(argument.value)])


def _add_session_methods(server: MCPServer[Any], notes: Notes) -> None:
    """What only the session era has: the high-level server leaves it out, so it is added below it."""
    lowlevel = server._lowlevel_server

    async def subscribe(ctx: Any, params: types.SubscribeRequestParams) -> types.EmptyResult:
        return types.EmptyResult()

    async def set_level(ctx: Any, params: types.SetLevelRequestParams) -> types.EmptyResult:
        notes.event("level", params.level)
        return types.EmptyResult()

    lowlevel.add_request_handler("resources/subscribe", types.SubscribeRequestParams, subscribe)
    lowlevel.add_request_handler("resources/unsubscribe", types.UnsubscribeRequestParams, subscribe)
    lowlevel.add_request_handler("logging/setLevel", types.SetLevelRequestParams, set_level)


async def serve(sock: socket.socket) -> None:
    """Serve on a bound socket until the process ends."""
    notes = Notes()
    server = build(notes)

    @server.custom_route("/seen", methods=["GET"])
    async def seen(request: Request) -> Response:
        return JSONResponse(notes.log[int(request.query_params.get("since", "0")) :])

    @server.custom_route("/open/{gate}", methods=["POST"])
    async def open_gate(request: Request) -> Response:
        notes.gates[request.path_params["gate"]].set()
        return Response(status_code=204)

    app = server.streamable_http_app(event_store=Events(), retry_interval=RETRY_MS)
    app.router.routes.extend(server.sse_app().routes)
    config = uvicorn.Config(Witness(app, notes), log_level="critical", access_log=False, lifespan="on", backlog=1024)
    await uvicorn.Server(config).serve(sockets=[sock])


def _die_with_parent() -> None:
    sys.stdin.read()
    os._exit(0)


def main() -> None:
    warnings.simplefilter("ignore")  # sampling, roots and logging are deprecated, and here to be tried
    sock = socket.socket()
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # asyncio looks at the protocol, which is 0 here
    sock.bind(("127.0.0.1", 0))
    sock.listen(1024)  # whoever comes before uvicorn does waits
    threading.Thread(target=_die_with_parent, daemon=True).start()
    print(sock.getsockname()[1], flush=True)
    asyncio.run(serve(sock))


if __name__ == "__main__":
    main()

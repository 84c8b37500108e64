"""A stdio MCP server that forwards to a Streamable HTTP server, for clients that only start programs.

Each line of JSON-RPC on standard input becomes one POST, of any MCP revision; messages of the responses and of the
session's GET stream are written as lines.

A session that the server does not know any more is reopened with the client's own `initialize`, and the call that got
the 404 is repeated once, because a 404 means that it was not executed. Nothing else is repeated.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from sidecar.errors import Refusal, SettingsError
from sidecar.http.client import ClientResponse, EgressError, HttpClient, TargetOrigin
from sidecar.protocols.jsonrpc import (
    Id,
    Message,
    Notification,
    Request,
    encode_message,
    id_in,
    message_from,
    parse_answer,
)
from sidecar.protocols.mcp.eras import META_VERSION, name_of, parameter_headers, routing_headers
from sidecar.protocols.sse import SseParser
from sidecar.upstreams.mcp.arguments import SchemaRefused
from sidecar.upstreams.mcp.tools import mirrored_in

Write = Callable[[bytes], None]
Headers = Callable[[], Sequence[tuple[str, str]]]

MAX_LINE_BYTES: Final = 10 * 2**20
MAX_AT_ONCE: Final = 256
RESUMED: Final = 5  # how often a broken stream is resumed for one response
LAST_WORDS_S: Final = 1.0
CLOSING_S: Final = 0.5
NOT_REACHED: Final = -32000
_WAITS_S: Final = (1.0, 2.0, 5.0, 15.0)

log = logging.getLogger("sidecar.bridge")


class SessionLostError(Exception):
    """The server does not know the session any more; it did not execute the request."""


@dataclass
class StdioBridge:
    """Connects one client to one server. `headers` is called for every request, and may raise SettingsError; `write`
    writes a line to the client."""

    client: HttpClient
    origin: TargetOrigin
    write: Write
    headers: Headers
    timeout_s: float
    session_id: str | None = None
    version: str = ""
    _hello: Request | None = None
    _opened: int = 0
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    _under_way: dict[Id, asyncio.Task[None]] = field(default_factory=dict)
    _free: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_AT_ONCE))
    _listener: asyncio.Task[None] | None = None
    _parameters: dict[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)

    async def run(self, lines: AsyncIterator[bytes]) -> None:
        try:
            async for line in lines:
                if line.strip():
                    await self._take(line)
            if self._under_way:  # the last requests may still be answered
                await asyncio.wait(self._under_way.values(), timeout=LAST_WORDS_S)
        finally:
            await self._close()

    async def _take(self, line: bytes) -> None:
        """Forwards requests concurrently; `initialize` and all other messages in order."""
        envelope: object = None
        try:
            envelope = parse_answer(line)
            message = message_from(envelope)
        except Refusal as refusal:
            self._fail(id_in(envelope), refusal.code, refusal.detail)
            return
        if not isinstance(message, Request):
            await self._told(message)
        elif message.method == "initialize":
            self._hello, self.session_id, self.version = message, None, ""
            await self._answered(message)
        else:
            await self._free.acquire()
            self._under_way[message.id] = asyncio.create_task(self._answered(message))
            self._under_way[message.id].add_done_callback(lambda _: self._done(message.id))

    def _done(self, request_id: Id) -> None:
        self._free.release()
        self._under_way.pop(request_id, None)

    async def _told(self, message: Message) -> None:
        if isinstance(message, Notification) and message.method == "notifications/cancelled" and not self.session_id:
            task = self._under_way.get(message.params.get("requestId", ""))
            if task is not None and self.version == "":
                task.cancel()  # without a session, closing the response cancels a call
                return
        try:
            with await self._post(message) as response:
                if response.status >= 400:
                    log.warning("the server did not accept a message", extra={"status": response.status})
        except (EgressError, Refusal, SessionLostError) as failure:
            log.warning("a message did not reach the server", extra={"error": str(failure)})
        if isinstance(message, Notification) and message.method == "notifications/initialized":
            self._listen()

    async def _answered(self, request: Request) -> None:
        """Forwards a request. The client gets a response to every request that it does not cancel itself."""
        opened = self._opened
        try:
            try:
                await self._carried(request)
            except SessionLostError:
                await self._reopen(opened)
                await self._carried(request)
        except SessionLostError:
            self._fail(request.id, NOT_REACHED, "the session is over and cannot be opened again")
        except EgressError as failure:
            what = f"the sidecar at {self.origin.host_header} cannot be reached: {failure}"
            self._fail(request.id, NOT_REACHED, what)
        except Refusal as refusal:
            self._fail(request.id, refusal.code, refusal.detail or refusal.answer.message)

    async def _carried(self, request: Request) -> None:
        with await self._post(request) as response:
            if request.method == "initialize" and response.status == 200:
                self._opened += 1
                self.session_id = response.headers.get("mcp-session-id")
            if response.media_type != "text/event-stream":
                self._take_answer(request, response.status, await response.read(MAX_LINE_BYTES))
                return
            last_id, found = await self._streamed(response, request)
        for _ in range(RESUMED):
            if found:
                return
            if not last_id:
                break
            with await self._get(last_id) as response:
                if response.status != 200 or response.media_type != "text/event-stream":
                    break
                newer_id, found = await self._streamed(response, request)
                last_id = newer_id or last_id
        if not found:
            self._fail(request.id, NOT_REACHED, "the answer's stream broke off; the call may have been executed")

    async def _streamed(self, response: ClientResponse, request: Request | None) -> tuple[str, bool]:
        """Forwards a stream's messages. Returns its last event's id, and whether it contained the request's
        response."""
        parser, last_id, found = SseParser(), "", False
        with suppress(EgressError):
            async with aclosing(response.chunks(idle_s=None)) as chunks:
                async for chunk in chunks:
                    for event in parser.feed(chunk):
                        last_id = event.id or last_id
                        if event.data and event.event in ("", "message"):
                            found = self._pass_on(event.data.encode(), request) or found
                    if found:
                        break
        return last_id, found

    def _take_answer(self, request: Request, status: int, body: bytes) -> None:
        """Forwards a response body. A body that is not JSON-RPC, such as that of a failed authentication, becomes an
        error."""
        try:
            envelope = parse_answer(body)
        except Refusal:
            envelope = None
        if isinstance(envelope, dict) and envelope.get("jsonrpc") == "2.0" and id_in(envelope) == request.id:
            self._pass_on(body, request)
            return
        said = envelope if isinstance(envelope, dict) else {}
        words = next((said[key] for key in ("detail", "error", "title") if isinstance(said.get(key), str)), "")
        self._fail(request.id, status if status >= 400 else NOT_REACHED, f"HTTP {status}" + (words and f": {words}"))

    def _pass_on(self, raw: bytes, request: Request | None) -> bool:
        """Forwards one message of the server to the client. Returns whether it answers the request."""
        try:
            envelope = parse_answer(raw)
        except Refusal:
            log.warning("the server sent data that is not JSON")
            return False
        if not isinstance(envelope, dict):
            log.warning("the server sent JSON that is not a message")
            return False
        answers = request is not None and "method" not in envelope and id_in(envelope) == request.id
        if answers and request is not None:
            self._learn(request, envelope.get("result"))
        self.write(raw.translate(_ONE_LINE) + b"\n")
        return answers

    def _learn(self, request: Request, result: object) -> None:
        """Records data that later requests must contain: the revision, and the arguments of tools that are mirrored in
        headers."""
        if not isinstance(result, dict):
            return
        if request.method == "initialize":
            self.version = str(result.get("protocolVersion", ""))
        if request.method == "tools/list":
            for tool in result.get("tools", ()):
                with suppress(SchemaRefused):
                    if isinstance(tool, dict) and (declared := mirrored_in(tool.get("inputSchema"))):
                        self._parameters[str(tool.get("name"))] = declared

    async def _reopen(self, known: int) -> None:
        """Reopens the session, once for all calls that lost the same one. Raises EgressError, Refusal."""
        async with self._opening:
            if self._hello is None or self._opened != known:
                return
            self.session_id = None
            hello = self._hello._replace(id=f"sidecar-connect-{known}")
            with await self._post(hello) as response:
                session_id = response.headers.get("mcp-session-id")
                if response.status != 200 or session_id is None:
                    raise EgressError(f"HTTP {response.status}")
            self.session_id, self._opened = session_id, self._opened + 1
            with await self._post(Notification("notifications/initialized", {})):
                pass
        self._listen()

    def _listen(self) -> None:
        if self.session_id is None:
            return
        if self._listener is not None:
            self._listener.cancel()
        self._listener = asyncio.create_task(self._listening())

    async def _listening(self) -> None:
        """Reads the server's unsolicited messages for as long as it offers a stream of them."""
        last_id, failed = "", 0
        while True:
            try:
                with await self._get(last_id) as response:
                    if response.status in (400, 404, 405) or response.media_type != "text/event-stream":
                        return
                    newer_id, _ = await self._streamed(response, None)
                    last_id, failed = newer_id or last_id, 0
            except (EgressError, Refusal):
                failed += 1
            await asyncio.sleep(_WAITS_S[min(failed, len(_WAITS_S) - 1)])

    async def _post(self, message: Message) -> ClientResponse:
        given = [("Accept", "application/json, text/event-stream"), ("Content-Type", "application/json")]
        version = _stateless_version(message)
        if version and isinstance(message, Request):
            given += [("MCP-Protocol-Version", version), *routing_headers(message.method, name_of(message))]
            if message.method == "tools/call":
                declared = self._parameters.get(str(message.params.get("name")), {})
                given += parameter_headers(declared, message.params.get("arguments") or {})
        else:
            given += self._of_session()
        response = await self._send("POST", given, encode_message(message))
        if response.status == 404 and self.session_id is not None and not version:
            response.close()
            raise SessionLostError
        return response

    async def _get(self, last_id: str) -> ClientResponse:
        resumed = [("Last-Event-ID", last_id)] if last_id else []
        return await self._send("GET", [("Accept", "text/event-stream"), *self._of_session(), *resumed], None)

    async def _send(self, verb: str, given: list[tuple[str, str]], body: bytes | None) -> ClientResponse:
        try:
            headers = [*given, *self.headers()]
        except SettingsError as unreadable:  # the file of a credential, which may be about to be replaced
            raise EgressError(str(unreadable)) from None
        return await self.client.request(verb, self.origin.path, headers, body, deadline_s=self.timeout_s)

    def _of_session(self) -> list[tuple[str, str]]:
        given = [("MCP-Protocol-Version", self.version)] if self.version else []
        return given + ([("Mcp-Session-Id", self.session_id)] if self.session_id else [])

    def _fail(self, request_id: Id | None, code: int, message: str) -> None:
        error = {"code": code, "message": message}
        self.write(orjson.dumps({"jsonrpc": "2.0", "id": request_id, "error": error}) + b"\n")

    async def _close(self) -> None:
        tasks = [*self._under_way.values(), *([self._listener] if self._listener else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.session_id is not None:
            with suppress(EgressError, TimeoutError):
                async with asyncio.timeout(CLOSING_S):
                    (await self._send("DELETE", self._of_session(), None)).close()
        await self.client.close()


_ONE_LINE: Final = bytes.maketrans(b"\r\n", b"  ")  # in JSON, line ends occur only between tokens


def _stateless_version(message: Message) -> str:
    if isinstance(message, Request | Notification):
        meta: Any = message.params.get("_meta")
        if isinstance(meta, dict) and isinstance(meta.get(META_VERSION), str):
            return str(meta[META_VERSION])
    return ""

"""Dispatches a request to the frontend of its address.

The frontends are MCP over Streamable HTTP, MCP over HTTP+SSE, the aggregate of all servers, and plain HTTP. All of them
read requests into the same intents, which the rest of the pipeline handles alike.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from sidecar.errors import Refusal
from sidecar.gateway import routing
from sidecar.gateway.error_responses import AnswerShape
from sidecar.gateway.frontends.aggregate import AggregateFrontend, AggregateReader, SpreadIntent
from sidecar.gateway.frontends.mcp_requests import Intent, RequestReader
from sidecar.gateway.frontends.rest import RestFrontend
from sidecar.gateway.request import RequestContext
from sidecar.gateway.routing import Route
from sidecar.protocols import jsonrpc
from sidecar.protocols.jsonrpc import Message
from sidecar.upstreams.mcp.sessions import Session, Sessions
from sidecar.vocabulary import Caller

Wanted = TypeVar("Wanted", bound=Intent | SpreadIntent)


@dataclass(slots=True)
class FrontendDispatch:
    """Turns requests into intents, with their sessions and servers."""

    sessions: Sessions
    federation: AggregateFrontend
    plain: RestFrontend
    recall: Callable[[RequestContext, Caller], Awaitable[None]]
    """Loads the session that a request names, at whichever replica it began. Raises Refusal."""

    async def understand(self, request: RequestContext, caller: Caller, route: Route) -> Intent | SpreadIntent:
        """Reads era, session, method and parameters. Only parsed content is passed on. Raises Refusal for a request
        that is malformed or unknown, or names no session of the caller."""
        if request.front == routing.EVERY:
            return _understood(request, await self._at_all(request, caller))
        if request.plain:
            return _understood(request, await self._plainly(request, route))
        understanding = self._understanding(request, caller)
        if request.verb == "POST":
            message = await self._read(request, caller, understanding)
            return _understood(request, understanding.of_message(message))
        request.shape = AnswerShape.PLAIN  # opening a stream or ending a session has no JSON-RPC id to answer
        await self.recall(request, caller)
        if route.kind == routing.SSE:
            return _understood(request, understanding.of_stream())
        return _understood(request, understanding.of_verb(request.verb))

    def understand_paired(self, request: RequestContext, caller: Caller, session: Session, message: Message) -> Intent:
        """Reads a message that was posted to an HTTP+SSE session."""
        understanding = self._understanding(request, caller)
        understanding.paired = session
        return _understood(request, understanding.of_message(message))

    async def _at_all(self, request: RequestContext, caller: Caller) -> Intent | SpreadIntent:
        understanding = self.federation.understanding(request, caller)
        if request.verb == "POST":
            return understanding.of_message(await self._read(request, caller, understanding))
        request.shape = AnswerShape.PLAIN
        await self.recall(request, caller)
        return understanding.of_verb(request.verb)

    async def _read(
        self, request: RequestContext, caller: Caller, understanding: RequestReader | AggregateReader
    ) -> Message:
        """Reads the message of a POST and loads its session. Raises Refusal. The message is read first, so that an
        error about its session carries the message's id; an invalid request is answered in its session if it exists."""
        try:
            message = await read(request)
        except Refusal:
            if request.request_id is not None and request.shape is AnswerShape.SESSION:
                with suppress(Refusal):
                    await self.recall(request, caller)
                    understanding.session()
            raise
        await self.recall(request, caller)
        return message

    async def _plainly(self, request: RequestContext, route: Route) -> Intent:
        request.asks("tools/list" if route.kind == routing.TOOLS else "tools/call")
        routing.check_no_query(request.raw_path)
        if route.kind == routing.TOOLS:
            return self.plain.listing(route.server)
        return self.plain.calling(route.server, route.rest, await request.body())

    def _understanding(self, request: RequestContext, caller: Caller) -> RequestReader:
        head = routing.head_of(request.headers)
        return RequestReader(self.sessions, caller, request.server, request.headers, head, request.in_session)


async def read(request: RequestContext) -> Message:
    """Reads the message in the request's body. Raises Refusal: malformed, too large, or of another media type."""
    envelope, head = jsonrpc.parse_json(await request.body()), routing.head_of(request.headers)
    try:
        message = jsonrpc.message_from(envelope)
    except Refusal:
        request.address_faulty(envelope, head)
        raise
    request.address(message, head)
    return message


def _understood(request: RequestContext, intent: Wanted) -> Wanted:
    request.goes_to(intent.call.upstream)
    request.record.call = intent.call
    request.record.mark("parse")
    return intent

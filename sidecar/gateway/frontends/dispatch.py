"""Reads a request with the frontend of its address.

The frontends are MCP over Streamable HTTP, MCP over HTTP+SSE, the aggregate of all servers, and plain HTTP. All of them
read requests into the same intents, which the rest of the pipeline handles alike.
"""

from __future__ import annotations

from contextlib import suppress

from sidecar.errors import Refusal
from sidecar.gateway import routing
from sidecar.gateway.error_responses import AnswerShape
from sidecar.gateway.forwarder import Forwarder
from sidecar.gateway.frontends import rest
from sidecar.gateway.frontends.aggregate.request_reader import AggregateReader
from sidecar.gateway.frontends.mcp_requests import Intent, RequestReader
from sidecar.gateway.request import RequestContext
from sidecar.gateway.routing import Route
from sidecar.protocols import jsonrpc
from sidecar.protocols.jsonrpc import Message
from sidecar.protocols.mcp.eras import EraHeaders
from sidecar.upstreams.mcp.sessions import Session
from sidecar.vocabulary import Caller


async def understand(exchanges: Forwarder, request: RequestContext, caller: Caller, route: Route) -> Intent:
    """Reads era, session, method and parameters. Only parsed content is passed on. Raises Refusal for a request that is
    malformed or unknown, or names no session of the caller."""
    if request.plain:
        return _understood(request, await rest.read(request, route))
    reader_type = AggregateReader if request.front == routing.EVERY else RequestReader
    reader = reader_type(exchanges.sessions, request, caller, routing.head_of(request.headers))
    if request.verb == "POST":
        return _understood(request, reader.of_message(await _read_in_session(exchanges, request, caller, reader)))
    request.shape = AnswerShape.PLAIN  # opening a stream or ending a session has no JSON-RPC id to answer
    await exchanges.recall(request, caller)
    is_paired = route.kind == routing.SSE
    return _understood(request, reader.of_stream() if is_paired else reader.of_verb(request.verb))


def understand_paired(
    exchanges: Forwarder, request: RequestContext, caller: Caller, session: Session, message: Message
) -> Intent:
    reader = RequestReader(exchanges.sessions, request, caller, routing.head_of(request.headers), session)
    return _understood(request, reader.of_message(message))


async def _read_in_session(
    exchanges: Forwarder, request: RequestContext, caller: Caller, reader: RequestReader
) -> Message:
    """Reads the message of a POST and loads its session. Raises Refusal. The message is read first, so that an error
    about its session carries the message's id; an invalid request is answered in its session if it exists."""
    try:
        message = await read(request, reader.head)
    except Refusal:
        if request.request_id is not None and request.shape is AnswerShape.SESSION:
            with suppress(Refusal):
                await exchanges.recall(request, caller)
                reader.session()
        raise
    await exchanges.recall(request, caller)
    return message


async def read(request: RequestContext, head: EraHeaders) -> Message:
    """Reads the message in the request's body. Raises Refusal: malformed, too large, or of another media type."""
    envelope = jsonrpc.parse_json(await request.body())
    try:
        message = jsonrpc.message_from(envelope)
    except Refusal:
        request.address_faulty(envelope, head)
        raise
    request.address(message, head)
    return message


def _understood(request: RequestContext, intent: Intent) -> Intent:
    request.goes_to(intent.call.upstream)
    request.record.call = intent.call
    request.record.mark("parse")
    return intent

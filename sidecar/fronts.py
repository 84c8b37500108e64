"""What does a request want, whichever way its caller speaks to us?

Each address has its front: MCP over Streamable HTTP, over HTTP+SSE, to all servers at once, or plain HTTP. All of them
come to the same intents, so that the way from there on is one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from sidecar import arrival
from sidecar.answers import Shape
from sidecar.arrival import Route
from sidecar.errors import Refusal
from sidecar.federation import FederatedUnderstanding, Federation, Spread
from sidecar.intents import Intent, Understanding
from sidecar.plain import Plain
from sidecar.protocols import jsonrpc
from sidecar.protocols.jsonrpc import Message
from sidecar.turn import Turn
from sidecar.upstreams.sessions import Session, Sessions
from sidecar.vocabulary import Caller

Wanted = TypeVar("Wanted", bound=Intent | Spread)


@dataclass(slots=True)
class Fronts:
    """Turns requests into intents; in which session, and at which server."""

    sessions: Sessions
    federation: Federation
    plain: Plain
    recall: Callable[[Turn, Caller], Awaitable[None]]
    """Has the session here that a request names, wherever it began. Raises Refusal."""

    async def understand(self, turn: Turn, caller: Caller, route: Route) -> Intent | Spread:
        """Era, session, method and parameters; the message itself goes on only as what was understood of it. Raises
        Refusal for what is malformed, unknown, or no session of the caller's."""
        if turn.front == arrival.EVERY:
            return _understood(turn, await self._at_all(turn, caller))
        if turn.plain:
            return _understood(turn, await self._plainly(turn, route))
        understanding = self._understanding(turn, caller)
        if turn.verb == "POST":
            message = await self._read(turn, caller, understanding)
            return _understood(turn, understanding.of_message(message))
        turn.shape = Shape.PLAIN  # a stream or an ending has no JSON-RPC id to answer
        await self.recall(turn, caller)
        if route.kind == arrival.SSE:
            return _understood(turn, understanding.of_stream())
        return _understood(turn, understanding.of_verb(turn.verb))

    def understand_paired(self, turn: Turn, caller: Caller, session: Session, message: Message) -> Intent:
        """What a message wants that came beside its session's stream."""
        understanding = self._understanding(turn, caller)
        understanding.paired = session
        return _understood(turn, understanding.of_message(message))

    async def _at_all(self, turn: Turn, caller: Caller) -> Intent | Spread:
        understanding = self.federation.understanding(turn, caller)
        if turn.verb == "POST":
            return understanding.of_message(await self._read(turn, caller, understanding))
        turn.shape = Shape.PLAIN
        await self.recall(turn, caller)
        return understanding.of_verb(turn.verb)

    async def _read(self, turn: Turn, caller: Caller, understanding: Understanding | FederatedUnderstanding) -> Message:
        """The message of a POST, with its session here. Raises Refusal. The message is read first, so that what is
        wrong with its session is told to its id; a faulty request is told in its session, if that is there."""
        try:
            message = await read(turn)
        except Refusal:
            if turn.request_id is not None and turn.shape is Shape.SESSION:
                with suppress(Refusal):
                    await self.recall(turn, caller)
                    understanding.session()
            raise
        await self.recall(turn, caller)
        return message

    async def _plainly(self, turn: Turn, route: Route) -> Intent:
        turn.asks("tools/list" if route.kind == arrival.TOOLS else "tools/call")
        arrival.check_no_query(turn.raw_path)
        if route.kind == arrival.TOOLS:
            return self.plain.listing(route.server)
        return self.plain.calling(route.server, route.rest, await turn.body())

    def _understanding(self, turn: Turn, caller: Caller) -> Understanding:
        head = arrival.head_of(turn.headers)
        return Understanding(self.sessions, caller, turn.server, turn.headers, head, turn.in_session)


async def read(turn: Turn) -> Message:
    """The message that the request's body is. Raises Refusal: malformed, too large, of another media type."""
    envelope, head = jsonrpc.parse_json(await turn.body()), arrival.head_of(turn.headers)
    try:
        message = jsonrpc.message_from(envelope)
    except Refusal:
        turn.address_faulty(envelope, head)
        raise
    turn.address(message, head)
    return message


def _understood(turn: Turn, intent: Wanted) -> Wanted:
    turn.goes_to(intent.call.upstream)
    turn.record.call = intent.call
    turn.record.mark("parse")
    return intent

"""Sends one request to many servers and gathers their answers within a deadline.

All servers are called concurrently. Each has its own deadline, and one that fails is named in the result without
delaying the others. The request fails only if no server answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson

from sidecar.errors import Reason, Refusal
from sidecar.gateway.forwarder import Forwarder, SessionLost
from sidecar.gateway.frontends.aggregate.member_servers import AggregateCall, MemberSessions, opened_exchange
from sidecar.gateway.frontends.aggregate.names import AggregateNames
from sidecar.gateway.request import RequestContext
from sidecar.gateway.response_filter import LEFT_OUT, FilteredMessage, read_answer
from sidecar.gateway.response_stream import PROTOCOL_STATUSES
from sidecar.gateway.snapshot import Service
from sidecar.observability.metrics import Metrics
from sidecar.protocols.jsonrpc import Request, Response
from sidecar.protocols.mcp import messages
from sidecar.protocols.mcp.messages import LeftOut
from sidecar.upstreams.mcp.transport import JSON, MAX_ERROR_BYTES, UpstreamAnswer
from sidecar.upstreams.statuses import refusal_of

PATIENCE_S: Final = 10.0  # deadline of each server for a list; a slower one is reported as unavailable
AT_ONCE: Final = 64
MAX_CURSOR_CHARS: Final = 4096  # of one server's cursor; an answer with a longer one is refused
MAX_NAMED: Final = 64  # servers in one record
UNAVAILABLE: Final = "sidecar/unavailable"
_METHOD_NOT_FOUND: Final = -32601


class UnavailableServer(NamedTuple):
    server: str
    refusal: Refusal

    @property
    def told(self) -> dict[str, str]:
        return {"server": self.server, "reason": self.refusal.reason.value}


class GatheredPage(NamedTuple):
    """One server's result, and the entries that have no valid name at this address."""

    server: str
    result: Mapping[str, Any]
    unnamed: Sequence[LeftOut] = ()

    @property
    def left_out(self) -> Iterator[dict[str, str]]:
        """Yields the entries that the list does not show, at the server's own address or here."""
        meta = self.result.get("_meta", {})
        told = meta.get(LEFT_OUT, ()) if isinstance(meta, dict) else ()
        yield from ({"server": self.server, **one} for one in (*told, *(one.told for one in self.unnamed)))

    @property
    def cursor(self) -> str | None:
        cursor = self.result.get("nextCursor")
        return cursor if isinstance(cursor, str) and cursor else None


Ask = Callable[[Service], Awaitable[GatheredPage]]


@dataclass(slots=True)
class FanOut:
    exchanges: Forwarder
    parts: MemberSessions
    metrics: Metrics

    async def each(
        self, request: RequestContext, servers: Sequence[Service], ask: Ask
    ) -> tuple[list[GatheredPage], list[UnavailableServer]]:
        """Returns the pages of the servers that answered, and the others. Raises Refusal if none answered."""
        room = asyncio.Semaphore(AT_ONCE)

        async def bounded(service: Service) -> GatheredPage | UnavailableServer:
            async with room:
                return await self._one(service, ask)

        tasks = [asyncio.ensure_future(bounded(service)) for service in servers]
        try:
            found = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        pages = [one for one in found if isinstance(one, GatheredPage)]
        missing = [one for one in found if isinstance(one, UnavailableServer)]
        note(request, servers, missing)
        if missing and not pages:
            told = {"unavailable": [one.told for one in missing]}
            raise Refusal(missing[0].refusal.reason, "none of the servers answered", data=told)
        return pages, missing

    async def _one(self, service: Service, ask: Ask) -> GatheredPage | UnavailableServer:
        loop, failure = asyncio.get_running_loop(), Refusal(Reason.UPSTREAM_TIMEOUT)
        begun = loop.time()
        try:
            async with asyncio.timeout(patience_of(service)):
                page = await ask(service)
            self.metrics.upstream_answered(service.name, loop.time() - begun)
            return page
        except TimeoutError:
            pass
        except Refusal as refusal:
            failure = refusal
        return self.missed(service.name, failure)

    def missed(self, server: str, refusal: Refusal) -> UnavailableServer:
        self.metrics.federation_missed(server, refusal.reason.value)
        return UnavailableServer(server, refusal)

    async def page(self, call: AggregateCall, service: Service, params: dict[str, Any]) -> GatheredPage:
        message = call.message._replace(params=params)
        service.account.breaker.check()  # before waiting for its tools
        if message.method == "tools/list":
            await service.catalogue.learn(patience_of(service))  # a listed tool must be callable
        try:
            return await self._ask(call, service, message)
        except SessionLost:  # a list may be requested again in a new session
            return await self._ask(call, service, message)

    async def _ask(self, call: AggregateCall, service: Service, message: Request) -> GatheredPage:
        request, caller, spread = call.request, call.caller, call.intent
        patience_s, part, version = patience_of(service), None, spread.call.protocol_version
        if spread.session is not None:
            part = await self.parts.at(service, request, caller, spread.session, patience_s)
            version = part.version
        question = messages.server_question(service.name, message.method)
        there = spread.call._replace(upstream=service.name, questions=(question,), protocol_version=version)
        exchange = opened_exchange(service, request, caller, there, part, self.exchanges, patience_s)
        names = exchange.outward = AggregateNames(service.name)
        if part is not None:
            part.remember(message.id, exchange.asked)
        with await exchange.post(message) as answer:
            if part is not None:
                self.exchanges.check_alive(part, answer)
            if answer.status in PROTOCOL_STATUSES and answer.media_type == JSON:
                return GatheredPage(service.name, _nothing(await _protocol_error(answer)))
            passed = await self.exchanges.relay(exchange, (message.id,)).whole(answer)
        return GatheredPage(service.name, _checked(passed), names.left_out)


def patience_of(service: Service) -> float:
    return min(service.timeout_s, PATIENCE_S)


def note(request: RequestContext, servers: Sequence[Service], missing: Sequence[UnavailableServer]) -> None:
    """Notes the servers called and those that did not answer, for the audit record."""
    request.record.federation = {
        "servers": [service.name for service in servers[:MAX_NAMED]],
        "unavailable": [one.told for one in missing[:MAX_NAMED]],
    }


async def _protocol_error(answer: UpstreamAnswer) -> Mapping[str, Any]:
    message = read_answer(await answer.read(MAX_ERROR_BYTES))
    if not isinstance(message, Response) or message.error is None:
        raise refusal_of(answer)
    return message.error


def _checked(passed: FilteredMessage) -> Mapping[str, Any]:
    if passed.result is None:
        return _nothing(orjson.loads(passed.out or b"{}").get("error", {}))
    cursor = passed.result.get("nextCursor")
    if isinstance(cursor, str) and len(cursor) > MAX_CURSOR_CHARS:
        raise Refusal(Reason.RESPONSE_REFUSED, "its cursor is too long")
    return passed.result


def _nothing(error: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns an empty list for a server that does not know the method. Any other error is a failure."""
    if error.get("code") == _METHOD_NOT_FOUND:
        return {}
    raise Refusal(Reason.UPSTREAM_FAILED, "it answered with an error")

"""Applies an upstream's response rules to each message.

The order is size limit, `outputSchema`, redaction, audit: a schema describes the server's message, and the record
describes the message that the caller receives. This module finds the call that a message belongs to; `redaction.py`
finds what to remove.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from sidecar.errors import Reason, Refusal
from sidecar.gateway.ownership import Owned
from sidecar.gateway.redaction import CompiledReading, ResponseScreen
from sidecar.gateway.request import UpstreamExchange
from sidecar.protocols.jsonrpc import Message, Response
from sidecar.protocols.mcp import task_messages
from sidecar.upstreams.mcp.sessions import PendingRequest

_OF_THE_ERA = frozenset({"_meta", "resultType", "ttlMs", "cacheScope"})  # not stored: revisions differ in them


@dataclass(frozen=True, slots=True)
class ResponseRules:
    """A message after redaction and before filtering. `result` is set for an answer that is to be stored."""

    exchange: UpstreamExchange
    asked: PendingRequest
    replaced: int
    result: dict[str, Any] | None

    async def settle(self, *, passes: bool) -> None:
        """Records the redactions of a filtered message, and stores the result if required and the message passes.
        Raises Refusal: RESPONSE_REFUSED for a result too large to store, AUDIT_UNAVAILABLE."""
        record = self.exchange.request.record
        record.replaced(self.replaced)
        if self.result is not None and passes:
            meta = self.result.get("_meta")
            await record.keep(
                server=self.exchange.service.name,
                tool=self.asked.tool,
                invocation=self.asked.decision_id,
                args_hash=self.asked.args_hash,
                redacted=self.replaced > 0,
                data={name: value for name, value in self.result.items() if name not in _OF_THE_ERA},
                said=meta.get("evidence") if isinstance(meta, dict) else None,
            )


async def inspect(
    exchange: UpstreamExchange, screen: ResponseScreen, message: Message, raw: bytes, owned: Owned
) -> ResponseRules:
    """Redacts a message in place. `raw` is the message as received, `owned` are its tasks that belong to the caller.
    Raises Refusal(RESPONSE_REFUSED)."""
    first = _asked(exchange, message)
    asked, result = _in_the_end(first, message, owned)
    # A session remembers a limited number of calls. The rules of a forgotten one must still apply to its answer.
    strictly = first != exchange.asked
    reading = screen.reading(asked.method, asked.tool, strictly=strictly)
    if reading.max_bytes is not None and len(raw) > reading.max_bytes:
        raise refused(f"it is larger than {reading.max_bytes} bytes")
    if reading.checks_output and result is not None:
        await _check_output(exchange, asked.tool, result, reading)
    if isinstance(message, Response) and message.result is result:
        replaced = await _screened(reading, message)
    else:  # a message that is no answer may belong to any call
        around = screen.reading(first.method, first.tool, strictly=strictly or not isinstance(message, Response))
        replaced = await _screened(around, message)
        if result is not None:  # rules address a result without its envelope
            replaced += await _screened(reading, Response(0, result))
    return ResponseRules(exchange, asked, replaced, result if reading.keeps else None)


def screen_of(exchange: UpstreamExchange) -> ResponseScreen | None:
    service = exchange.service
    return exchange.judged_by.services.get(service.name, service).screen


def _asked(exchange: UpstreamExchange, message: Message) -> PendingRequest:
    """Returns the call that a message belongs to: an earlier one for answers on a stream opened later. Raises
    Refusal(RESPONSE_REFUSED) for an answer to an unknown call."""
    session = exchange.session
    if session is None or not isinstance(message, Response) or message.id == exchange.call.request_id:
        return exchange.asked
    asked = session.sent.get(message.id) if message.id is not None else None
    if asked is None:  # the rules that apply are unknown
        raise refused("it answers another request")
    return asked


def _in_the_end(asked: PendingRequest, message: Message, owned: Owned) -> tuple[PendingRequest, dict[str, Any] | None]:
    """Returns the call whose result a message holds, and the result. For a task it is the call that created the
    task."""
    if isinstance(message, Response) and not asked.method.startswith("tasks/"):
        plain = isinstance(message.result, dict) and task_messages.created_in(message.result) is None
        return asked, message.result if plain else None
    result = task_messages.result_in(message, whole=asked.method == "tasks/result")
    if result is None or (not owned and not isinstance(message, Response)):  # its task is another's: it is dropped
        return asked, None
    if len(owned) != 1:
        raise refused("its result is of a task that has no id")
    (record,) = owned.values()
    return asked._replace(method=record.action, question=record.question), result


async def _screened(reading: CompiledReading, message: Message) -> int:
    steps = reading.message(message)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return int(end.value)
        await asyncio.sleep(0)  # after 64 KiB, other work runs


async def _check_output(
    exchange: UpstreamExchange, tool: str, result: dict[str, Any], reading: CompiledReading
) -> None:
    """Checks structured content: a tool with an `outputSchema` must return matching content unless it failed (MCP)."""
    if result.get("isError") is True:
        return
    catalogue = exchange.service.catalogue
    try:
        known = catalogue.known(tool) or await catalogue.tool(tool, exchange.patience_s)
    except Refusal:  # its reason would say that the call was not sent
        known = None
    if known is None or known.schema is None:  # changed since the call, and cannot be listed or used
        raise refused("its tool has no schema that can be used")
    if known.output is None:
        return
    if "structuredContent" not in result:
        if result.get("resultType", "complete") != "complete":  # the content follows in answer to a later call
            return
        pointer, keyword = "/structuredContent", "required"
    else:
        violation = known.output.violation(result["structuredContent"])
        if violation is None:
            return
        pointer, keyword = reading.text(f"/structuredContent{violation.pointer}"), violation.keyword
    data = {"pointer": pointer, "keyword": keyword}
    raise Refusal(Reason.RESPONSE_REFUSED, f"its {pointer} does not satisfy {keyword}", data=data)


def refused(detail: str) -> Refusal:
    return Refusal(Reason.RESPONSE_REFUSED, detail)

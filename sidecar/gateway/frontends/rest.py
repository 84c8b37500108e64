"""Serves plain HTTP access to tools, for people and scripts.

    GET  /mcp/{server}/tools            → {"tools": [McpTool]}
    POST /mcp/{server}/tools/{tool}     {"arguments": {…}} → McpCallResult, or McpError

    GET  /mcp/{server}/approvals/{id}   → McpApproval: the state of an approval that a call waits for

A call that needs a person's approval is answered 202 with the address of that approval; repeating the call returns the
result. A request to `tools` becomes a stateless `tools/list` or `tools/call` with the pipeline's checks. The caller
cannot answer a server, so the message declares no capabilities, and only the complete answer is sent. The names of the
models are those of the original data models; the annotations of their fields appear in the OpenAPI document.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, NotRequired, TypedDict

import orjson
from aiohttp import web

from sidecar.errors import Reason, Refusal
from sidecar.gateway import routing
from sidecar.gateway.approvals import ApprovalRecord, ApprovalState
from sidecar.gateway.error_responses import (
    PROBLEM_JSON,
    AnswerShape,
    DenyManner,
    ErrorResponse,
    McpError,
    members_of,
    tell,
)
from sidecar.gateway.frontends.mcp import McpFrontend, operation_of
from sidecar.gateway.frontends.mcp_requests import EVENT_STREAM, JSON, AskIntent
from sidecar.gateway.request import Charged, ParsedOperation, RequestContext, UpstreamExchange
from sidecar.gateway.response_filter import FilteredMessage
from sidecar.gateway.response_rules import refused
from sidecar.gateway.response_stream import withhold
from sidecar.gateway.routing import TOOLS, Route, check_no_query, is_tool
from sidecar.limits import SessionCalls
from sidecar.protocols import jsonrpc
from sidecar.protocols.jsonrpc import Request, malformed, refuse_variants, spellings
from sidecar.protocols.mcp import messages
from sidecar.protocols.mcp.eras import META_CAPABILITIES, META_CLIENT, META_VERSION, STATELESS_VERSIONS, Era
from sidecar.settings.timestamps import rfc3339
from sidecar.upstreams.mcp.listing import MAX_CURSOR_CHARS, MAX_PAGES, MAX_TOOLS
from sidecar.upstreams.mcp.transport import OURSELVES, UpstreamAnswer
from sidecar.vocabulary import Caller

VERSION: Final = STATELESS_VERSIONS[-1]
ID: Final = 1  # each request is alone in its exchange
TOOL_ERROR: Final = "urn:sidecar:tool-error"
SERVER_ERROR: Final = "urn:sidecar:server-error"
ERROR_STATUS: Final = 502  # for errors of the upstream, so that `curl --fail` fails
_META: Final[Mapping[str, Any]] = {META_VERSION: VERSION, META_CAPABILITIES: {}, META_CLIENT: OURSELVES}
_BODY = spellings(("arguments",))
# The list belongs to one caller and must not be cached for another.
_LIST_HEADERS: Final[Mapping[str, str]] = {"Cache-Control": "no-store"}


@dataclass(frozen=True, slots=True)
class McpTool:
    """A tool that the caller may use. Members without a value are omitted."""

    name: Annotated[str, "Name of the tool, as in the path."]
    description: Annotated[str | None, "Description of the tool by its server."]
    input_schema: Annotated[Mapping[str, Any], "JSON Schema of the arguments."]
    status: Annotated[
        Literal["active"], "`active`. Tools that are disabled, quarantined or different from their pin are not listed."
    ]
    deprecated: Annotated[bool, "Whether the server marks the tool as deprecated, in its annotations or its schema."]
    tags: Annotated[Sequence[str] | None, "Tags of the tool, from its definition or its `_meta`."] = None
    metadata: Annotated[Mapping[str, Any] | None, "Further information from the server: `metadata` or `_meta`."] = None


@dataclass(frozen=True, slots=True)
class McpTools:
    """All tools of a server that the caller may use."""

    tools: Annotated[Sequence[McpTool], "The tools, in the order of the server."]


class McpCall(TypedDict):
    """A call of a tool."""

    arguments: NotRequired[
        Annotated[Mapping[str, Any], "Arguments, as the schema of the tool requires. Optional if there are none."]
    ]


@dataclass(frozen=True, slots=True)
class McpCallResult:
    """The result of a call."""

    call_id: Annotated[str, "Id of the call. Audit records have it as `decision_id`."]
    result: Annotated[Mapping[str, Any], "The result as in MCP: `content`, `structuredContent`."]
    latency_ms: Annotated[float, "Time until the server responded, in milliseconds."]


@dataclass(frozen=True, slots=True)
class McpApproval:
    """A request for a person's approval of one of your calls. After the request is `approved`, send the same call
    again."""

    approval: Annotated[str, "Id of the request."]
    state: Annotated[ApprovalState, "State of the request. It is `waiting` until a person answers."]
    answer_before: Annotated[str, "Time at which the request expires without an answer."]
    usable_until: Annotated[str | None, "Time at which the approval expires unused. Missing until it is given."] = None

    def encoded(self) -> bytes:
        return orjson.dumps(members_of(self))


def told_approval(record: ApprovalRecord) -> McpApproval:
    """Returns the state of a request for approval as its caller receives it."""
    usable = rfc3339(record.usable_until_s) if record.state is ApprovalState.APPROVED else None
    return McpApproval(record.name, record.state, rfc3339(record.deadline_s), usable)


@dataclass(frozen=True, slots=True)
class PlainRefusals:
    """Writes the refusals of plain calls to one server, and 202 for a call that waits for an approval."""

    folder: str

    def tell(self, refusal: Refusal, decision_id: str, manner: DenyManner, resource_metadata: str) -> ErrorResponse:
        told = tell(
            refusal, AnswerShape.PLAIN, decision_id=decision_id, manner=manner, resource_metadata=resource_metadata
        )
        approval = refusal.data.get("approval")
        if refusal.reason is not Reason.APPROVAL_PENDING or approval is None or manner.disclosure != "reason":
            return told
        body = orjson.dumps({**orjson.loads(told.body), "status": 202})
        headers = {**told.headers, "Location": f"{self.folder}/approvals/{approval}"}
        return told._replace(status=202, body=body, headers=headers)


async def read(request: RequestContext, route: Route) -> AskIntent:
    """Returns the intent of a GET of the list, or of a POST to a tool. Raises Refusal."""
    request.asks("tools/list" if route.kind == TOOLS else "tools/call")
    check_no_query(request.path)
    params = {} if route.kind == TOOLS else {"name": route.rest, "arguments": arguments_in(await request.body())}
    message = Request(ID, request.method, {**params, "_meta": dict(_META)})
    call = messages.call_from(message, Era.STATELESS, VERSION, route.server)
    return AskIntent(call, message, Era.STATELESS, None)


@dataclass(slots=True, kw_only=True)
class RestFrontend(McpFrontend):
    session_calls: SessionCalls

    async def parse(self, request: RequestContext, caller: Caller, route: Route) -> ParsedOperation:
        request.dialect = PlainRefusals(f"{request.prefix}/{routing.MCP}/{route.server}")
        return operation_of(request, await read(request, route))

    async def carry_out(self, charged: Charged) -> web.StreamResponse:
        charged.lease.forwarded = True
        intent: AskIntent = charged.content
        carry_out = self._list if intent.message.method == "tools/list" else self._call
        with self.forwarder.opened(charged, intent) as exchange:
            return await carry_out(exchange, intent.message)

    async def _call(self, exchange: UpstreamExchange, message: Request) -> web.StreamResponse:
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        passed = await self._ask(exchange, message)
        latency_ms = round((loop.time() - begun_s) * 1000, 3)
        call_id = exchange.request.record.decision_id
        if passed.result is None:
            return await _respond(exchange, _server_error(passed, call_id))
        result = {name: value for name, value in passed.result.items() if name != "resultType"}
        if result.get("isError") is True:
            return await _respond(exchange, _error(TOOL_ERROR, "The tool reported an error", call_id, result))
        return await _respond(exchange, McpCallResult(call_id, result, latency_ms))

    async def _list(self, exchange: UpstreamExchange, message: Request) -> web.StreamResponse:
        tools: list[McpTool] = []
        cursor, room_bytes = None, exchange.request.now.bounds.max_response_bytes
        for _ in range(MAX_PAGES):
            more: dict[str, Any] = {}
            if cursor is not None:
                try:  # each further page is charged, as for an MCP caller
                    self.session_calls.charge(exchange.caller.last.name)
                except Refusal as refusal:
                    if not exchange.request.excuse(refusal):
                        raise
                more = {"cursor": cursor}
            passed = await self._ask(exchange, message._replace(params={**message.params, **more}))
            if passed.result is None:
                return await _respond(exchange, _server_error(passed, exchange.request.record.decision_id))
            # A tool whose name is not valid in a path cannot be called here.
            tools += [_tool_from(entry) for entry in passed.result.get("tools", ()) if is_tool(entry["name"])]
            room_bytes -= len(passed.out or b"")
            cursor = _cursor_in(passed.result)
            if len(tools) > MAX_TOOLS or room_bytes < 0:
                break
            if cursor is None:
                return await _respond(exchange, McpTools(tools), _LIST_HEADERS)
        raise refused("its list is longer than a plain answer may be")

    async def _ask(self, exchange: UpstreamExchange, message: Request) -> FilteredMessage:
        with await exchange.post(message) as answer:
            passed = await self._whole(exchange, message, answer)
            if passed.result is not None and passed.result.get("resultType", "complete") != "complete":
                withhold(answer)
                raise refused("it asks its caller for something, and a plain call cannot answer: call it over MCP")
            return passed

    async def _whole(self, exchange: UpstreamExchange, message: Request, answer: UpstreamAnswer) -> FilteredMessage:
        relay = self.forwarder.relay(exchange, (message.id,))
        if answer.media_type != EVENT_STREAM:
            return await relay.told(answer)
        try:
            with exchange.streaming(answer):  # it may take long: a principal that is disabled meanwhile is cut off
                return await relay.told(answer)
        except Refusal:
            if exchange.cut is None:
                raise
            raise Refusal(exchange.cut) from None


def arguments_in(raw: bytes) -> dict[str, Any]:
    """Returns the arguments in the body of a call; {} if it has none. Raises Refusal(MALFORMED_CALL)."""
    body = jsonrpc.parse_json(raw)
    if not isinstance(body, dict):
        raise malformed('the body must be an object: {"arguments": {…}}')
    if not body.keys() <= {"arguments"}:
        refuse_variants(body, _BODY, "the body")
        raise malformed('the body has a member besides "arguments"')
    arguments = body.get("arguments", {})
    if not isinstance(arguments, dict):
        raise malformed("arguments must be an object")
    return arguments


def _tool_from(entry: Mapping[str, Any]) -> McpTool:
    description, schema, hints = entry.get("description"), entry.get("inputSchema"), entry.get("annotations")
    schema, hints = (value if isinstance(value, dict) else {} for value in (schema, hints))
    return McpTool(
        name=entry["name"],
        description=description if isinstance(description, str) else None,
        input_schema=schema,
        status="active",
        deprecated=hints.get("deprecated") is True or schema.get("deprecated") is True,
        tags=_tags_of(entry) or None,
        metadata=next((entry[key] for key in ("metadata", "_meta") if isinstance(entry.get(key), dict)), None),
    )


def _tags_of(entry: Mapping[str, Any]) -> list[str]:
    """Returns a tool's tags: those of the original data model, or those in `_meta` or under FastMCP's own key in it."""
    meta = entry.get("_meta")
    inner = [meta.get(key) for key in ("fastmcp", "_fastmcp")] if isinstance(meta, dict) else []
    for where in (entry, meta, *inner):
        tags = where.get("tags") if isinstance(where, dict) else None
        if isinstance(tags, list):
            return [tag for tag in tags if isinstance(tag, str)]
    return []


def _cursor_in(result: Mapping[str, Any]) -> str | None:
    cursor = result.get("nextCursor")
    if cursor is None or cursor == "":
        return None
    if not isinstance(cursor, str) or len(cursor) > MAX_CURSOR_CHARS:
        raise refused("its cursor is not a string, or is too long")
    return cursor


def _server_error(passed: FilteredMessage, call_id: str) -> McpError:
    error = orjson.loads(passed.out or b"{}")["error"]
    return _error(SERVER_ERROR, "The server answered with an error", call_id, error)


def _error(kind: str, title: str, call_id: str, details: Mapping[str, Any]) -> McpError:
    """Returns an error of the upstream, which is not a refusal."""
    return McpError(kind, title, ERROR_STATUS, title, call_id, error_code="ExecutionFailed", details=details)


async def _respond(
    exchange: UpstreamExchange, said: McpTools | McpCallResult | McpError, headers: Mapping[str, str] | None = None
) -> web.StreamResponse:
    status, media, body = 200, JSON, b""
    if isinstance(said, McpError):
        status, media, body = said.status, PROBLEM_JSON, said.encoded()
    elif isinstance(said, McpTools):
        # In the original data model, a missing description is null.
        body = orjson.dumps({"tools": [members_of(tool, "description") for tool in said.tools]})
    else:
        body = orjson.dumps(said)
    return await exchange.request.respond(status, body, media, headers or {})

"""What makes a sidecar say each of its reasons?

One function for each way to be refused, with the world it needs. Every cause is the real one, produced over the wire:
a credential that does not hold, a disk that is full, a store that is not there.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

import sidecar.gateway.pipeline
from sidecar.audit.file_sink import AuditFile
from sidecar.errors import Reason
from tests.flow.idp import APPS, SETTINGS, Idp, bearer
from tests.flow.talk import ERAS, Answer, Era, Talk
from tests.flow.world import ACCEPT, META, TOOLS, Upstream, World, until

IDP = Idp()
PLANNER_KEY, OTHER_KEY = IDP.api_key("nhi:planner"), IDP.api_key("nhi:other")
GOOD: dict[str, Any] = {"repo": "acme/site"}
SEARCH = "p, nhi:planner, tool:github/search_code, use, {expires}, {per_hour}, {when}, {effect}\n"

Run = Callable[[Talk], Awaitable[Answer]]


@dataclass(frozen=True)
class Cause:
    """`options` are `world()`'s; a callable is called for each world."""

    reason: Reason
    run: Run
    eras: tuple[Era, ...]
    options: Mapping[str, Any] = field(default_factory=dict)

    def world(self) -> dict[str, Any]:
        return {name: value() if callable(value) else value for name, value in self.options.items()}


CAUSES: dict[str, Cause] = {}


def cause(reason: Reason, *eras: Era, **options: Any) -> Callable[[Run], Run]:
    def add(run: Run) -> Run:
        CAUSES[run.__name__.replace("_", "-")] = Cause(reason, run, eras or (*ERAS, "plain"), options)
        return run

    return add


def row(*, expires: str = "-", per_hour: str = "-", when: str = "-", effect: str = "allow") -> str:
    return "#: id=search\n" + SEARCH.format(expires=expires, per_hour=per_hour, when=when, effect=effect)


def budgets(text: str) -> dict[str, str]:
    return {"policies/budgets.yaml": f"version: 1\n{text}\n"}


# --- who ------------------------------------------------------------------------------------------------------------

WITH_IDP: dict[str, Any] = {"principal": "", "settings": SETTINGS, "files": IDP.files}


async def knock(talk: Talk, headers: dict[str, str]) -> Answer:
    """The first message of an era, with these credentials."""
    talk.headers = headers
    return await talk.call("search_code", GOOD) if talk.era != "session" else await talk.open()


def route(talk: Talk) -> str:
    return f"{talk.world.url}/mcp/github"


@cause(Reason.UNAUTHENTICATED, **WITH_IDP)
async def no_credential(talk: Talk) -> Answer:
    return await knock(talk, {})


@cause(Reason.BAD_CREDENTIAL, **WITH_IDP)
async def bad_token(talk: Talk) -> Answer:
    forged = IDP.token("nhi:planner", route(talk), key=Idp().key)
    return await knock(talk, bearer(forged))


@cause(Reason.BAD_CREDENTIAL, **WITH_IDP)
async def expired_token(talk: Talk) -> Answer:
    return await knock(talk, bearer(IDP.token("nhi:planner", route(talk), age_s=900, ttl_s=600)))


@cause(Reason.BAD_CREDENTIAL, **WITH_IDP)
async def bad_api_key(talk: Talk) -> Answer:
    return await knock(talk, bearer(PLANNER_KEY[:-1] + ("a" if PLANNER_KEY[-1] != "a" else "b")))


@cause(Reason.BAD_CREDENTIAL, **WITH_IDP)
async def another_audience(talk: Talk) -> Answer:
    return await knock(talk, bearer(IDP.token("nhi:planner", f"{talk.world.url}/mcp/jira")))


@cause(Reason.CREDENTIAL_CONFLICT, **WITH_IDP)
async def credential_conflict(talk: Talk) -> Answer:
    token = IDP.token("nhi:planner", route(talk))
    return await knock(talk, bearer(token) | {"X-API-Key": OTHER_KEY})


@cause(Reason.CLIENT_UNKNOWN, **WITH_IDP)
async def client_unknown(talk: Talk) -> Answer:
    claims = {"azp": "not-listed", "is": "user"}
    return await knock(talk, bearer(IDP.token("alice", route(talk), issuer=APPS, claims=claims)))


@cause(Reason.INSUFFICIENT_SCOPE, upstream_settings="scopes: [repo:read]", **WITH_IDP)
async def insufficient_scope(talk: Talk) -> Answer:
    return await knock(talk, bearer(IDP.token("nhi:planner", route(talk), scopes=["repo:list"])))


# --- what -----------------------------------------------------------------------------------------------------------


@cause(Reason.MALFORMED_CALL)
async def not_json(talk: Talk) -> Answer:
    return await talk.send(b'{"broken"')


@cause(Reason.MALFORMED_CALL)
async def a_batch(talk: Talk) -> Answer:
    return await talk.send(b'[{"jsonrpc": "2.0", "id": 1, "method": "tools/call"}]')


@cause(Reason.MALFORMED_CALL)
async def malformed_params(talk: Talk) -> Answer:
    return await talk.ask("tools/call", {"name": "search code"}, headers={"Mcp-Name": "search code"})


@cause(Reason.TOO_LARGE, settings='server: {listen: "127.0.0.1:0", max_body_bytes: 2000}\n')
async def too_large(talk: Talk) -> Answer:
    return await talk.call("search_code", {"repo": "a" * 2000})


@cause(Reason.UNSUPPORTED_MEDIA_TYPE)
async def media_type(talk: Talk) -> Answer:
    return await talk.send(b"{}", {"Content-Type": "text/plain"})


@cause(Reason.NOT_ACCEPTABLE, *ERAS)
async def not_acceptable(talk: Talk) -> Answer:
    return await talk.call("search_code", GOOD, headers={"Accept": "application/json"})


@cause(Reason.HEADER_MISMATCH, "stateless")
async def header_mismatch(talk: Talk) -> Answer:
    return await talk.call("search_code", GOOD, headers={"Mcp-Name": "get_file"})


@cause(Reason.VERSION_UNSUPPORTED, *ERAS)
async def version_unsupported(talk: Talk) -> Answer:
    version = "2031-01-01"
    if talk.era == "session":
        return await talk.call("search_code", GOOD, headers={"MCP-Protocol-Version": version})
    meta = {**META, "io.modelcontextprotocol/protocolVersion": version}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}}
    return await talk.world.post(message, headers={"MCP-Protocol-Version": version, "Mcp-Method": "tools/list"})


@cause(Reason.SESSION_UNKNOWN, "session")
async def session_unknown(talk: Talk) -> Answer:
    talk.session = "bm90IGEgc2Vzc2lvbiBvZiBhbnlib2R5"
    return await talk.call("search_code", GOOD)


# --- may they -------------------------------------------------------------------------------------------------------


@cause(
    Reason.DENIED_BY_RULE,
    rules=row() + "#: id=no\n" + SEARCH.format(expires="-", per_hour="-", when="-", effect="deny"),
)
async def denied_by_rule(talk: Talk) -> Answer:
    return await talk.call("search_code", GOOD)


@cause(
    Reason.EXPIRED,
    rules=row(expires="2026-01-01T00:00:00Z") + "p, nhi:planner, tool:github/get_file, use, -, -, -, allow\n",
)
async def expired(talk: Talk) -> Answer:
    return await talk.call("search_code", GOOD)


@cause(Reason.CONDITION_FALSE)
async def condition_false(talk: Talk) -> Answer:
    return await talk.call("search_code", {"repo": "evil/site"})


@cause(Reason.NO_MATCHING_RULE)
async def no_matching_rule(talk: Talk) -> Answer:
    return await talk.call("delete_repo", GOOD)


@cause(Reason.PRINCIPAL_DISABLED, files={"policies/disabled.yaml": "version: 1\ndisabled: [nhi:planner]\n"})
async def principal_disabled(talk: Talk) -> Answer:
    return await knock(talk, {})


@cause(Reason.METHOD_UNKNOWN, *ERAS)
async def method_unknown(talk: Talk) -> Answer:
    return await talk.ask("tasks/resubscribe")


@cause(Reason.TASK_UNKNOWN, *ERAS)
async def task_unknown(talk: Talk) -> Answer:
    return await talk.ask("tasks/get", {"taskId": "nobodys"})


@cause(Reason.UPSTREAM_UNKNOWN, rules="p, nhi:planner, tool:*, use, -, -, -, allow\n")
async def upstream_unknown(talk: Talk) -> Answer:
    talk.server = "nowhere"
    return await knock(talk, {})


@cause(Reason.TOOL_UNKNOWN, rules="p, nhi:planner, tool:github/*, use, -, -, -, allow\n")
async def tool_unknown(talk: Talk) -> Answer:
    return await talk.call("ghost")


# --- well formed ----------------------------------------------------------------------------------------------------


def with_a_bad_schema() -> Upstream:
    remote = {"$ref": "https://schemas.example/repo.json"}
    broken = {"name": "get_file", "inputSchema": {"type": "object", "properties": {"path": remote}}}
    return Upstream(tools=[*TOOLS[:2], broken])


@cause(Reason.BAD_ARGUMENTS)
async def bad_arguments(talk: Talk) -> Answer:
    return await talk.call("search_code", {"repo": "acme/site", "limit": 4711})


@cause(Reason.SCHEMA_UNAVAILABLE, upstream=with_a_bad_schema)
async def schema_unavailable(talk: Talk) -> Answer:
    return await talk.call("get_file", {"path": "a"})


@cause(Reason.PIN_MISMATCH, upstream_settings="pins: require")
async def pin_mismatch(talk: Talk) -> Answer:
    return await talk.call("search_code", GOOD)


# --- how often ------------------------------------------------------------------------------------------------------


@cause(Reason.RATE_LIMITED, rules=row(per_hour="1"))
async def rate_limited(talk: Talk) -> Answer:
    await talk.call("search_code", GOOD)
    return await talk.call("search_code", GOOD)


@cause(Reason.RATE_LIMITED, settings="sessions: {session_calls_per_minute: 1}\n")
async def session_calls(talk: Talk) -> Answer:
    await talk.ask("tools/list") if talk.era != "session" else await talk.open()
    return await talk.ask("tools/list")


@cause(Reason.QUOTA_SPENT, rules=row(), files=lambda: budgets('tools: {"tool:github/*": {daily_quota: 1}}'))
async def quota_spent(talk: Talk) -> Answer:
    await talk.call("search_code", GOOD)
    return await talk.call("search_code", GOOD)


@cause(
    Reason.BUDGET_SPENT,
    rules=row(),
    files=lambda: budgets(
        """
costs: [{object: "tool:github/*", unit: usd, per_call: 0.002}]
budgets: [{unit: usd, per_day: 0.003}]
"""
    ),
)
async def budget_spent(talk: Talk) -> Answer:
    await talk.call("search_code", GOOD)
    return await talk.call("search_code", GOOD)


@cause(Reason.TOO_MANY_REFUSALS, settings="refusals: {per_principal_per_minute: 3}\n", rules=row())
async def refused_too_often(talk: Talk) -> Answer:
    for _ in range(3):
        await talk.call("search_code", {"repo": 7})
    return await talk.call("search_code", GOOD)


@cause(Reason.TOO_MANY_CONCURRENT, rules=row(), files=lambda: budgets('tools: {"tool:github/*": {concurrency: 1}}'))
async def too_many_concurrent(talk: Talk) -> Answer:
    with slow_upstream(talk) as go:
        first = asyncio.create_task(talk.call("search_code", GOOD))
        await until(lambda: bool(talk.world.upstream.calls()))
        if talk.era == "session":
            talk = Talk(talk.world, talk.era, session=talk.session)
        second = await talk.call("search_code", GOOD)
        go.set()
        assert (await first)[0] == 200
    return second


@contextmanager
def slow_upstream(talk: Talk) -> Iterator[asyncio.Event]:
    """Its tools wait until the event is set."""
    go, upstream = asyncio.Event(), talk.world.upstream

    async def respond(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        await go.wait()
        return upstream.answer(message)

    upstream.script["tools/call"] = respond
    try:
        yield go
    finally:
        go.set()
        del upstream.script["tools/call"]


# --- what we cannot do now ------------------------------------------------------------------------------------------


@cause(Reason.STORE_UNAVAILABLE, rules=row(per_hour="9"), settings='store: {url: "unix:///nonexistent/valkey.sock"}\n')
async def store_unavailable(talk: Talk) -> Answer:
    return await talk.call("search_code", GOOD)


@contextmanager
def full_disk(running: World) -> Iterator[None]:
    """The audit file is on a device without room."""
    file = running.app.audit.trail.sink
    assert isinstance(file, AuditFile)
    full, real = os.open("/dev/full", os.O_WRONLY), os.dup(file._file)
    os.dup2(full, file._file)
    try:
        yield
    finally:
        os.dup2(real, file._file)
        os.close(real)
        os.close(full)


@cause(Reason.AUDIT_UNAVAILABLE)
async def audit_unavailable(talk: Talk) -> Answer:
    if talk.era == "session":
        await talk.open()
    with full_disk(talk.world):
        answer = await talk.call("search_code", GOOD)
    assert talk.world.upstream.calls() == []  # what cannot be recorded does not happen
    return answer


@cause(Reason.OVERLOADED)
async def overloaded(talk: Talk) -> Answer:
    if talk.era == "session":
        await talk.open()
    talk.world.app.pipeline.pressure.refused_share = 1.0
    return await talk.call("search_code", GOOD)


@cause(Reason.DRAINING)
async def draining(talk: Talk) -> Answer:
    if talk.era == "session":
        await talk.open()
    talk.world.app.pipeline.draining = True
    return await talk.call("search_code", GOOD)


# --- the upstream ---------------------------------------------------------------------------------------------------


def responding(respond: Callable[[Any, dict[str, Any]], Awaitable[web.StreamResponse]]) -> Callable[[], Upstream]:
    return lambda: Upstream(script={"tools/call": respond})


async def _never(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
    await asyncio.sleep(60)
    return web.Response()


async def _broken(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
    return web.json_response({"stack": "trace of theirs"}, status=500)


async def _garbage(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
    return web.json_response({"jsonrpc": "2.0", "id": "another", "result": {}})


@cause(Reason.UPSTREAM_TIMEOUT, mcp_settings="timeout_s: 0.2", upstream=responding(_never))
async def upstream_timeout(talk: Talk) -> Answer:
    return await talk.call("search_code", GOOD)


@cause(Reason.UPSTREAM_FAILED, upstream=responding(_broken))
async def upstream_failed(talk: Talk) -> Answer:
    return await talk.call("search_code", GOOD)


async def _limited(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
    error = {"code": -32029, "message": "Only 10 calls a minute", "data": {"plan": "free"}}
    body = {"jsonrpc": "2.0", "id": message["id"], "error": error}
    return web.json_response(body, status=429, headers={"Retry-After": "17"})


@cause(Reason.UPSTREAM_LIMITED, upstream=responding(_limited))
async def upstream_limited(talk: Talk) -> Answer:
    return await talk.call("search_code", GOOD)


@cause(Reason.UPSTREAM_FAILED, "stateless", upstream_url="http://127.0.0.1:9/mcp")
async def upstream_unreachable(talk: Talk) -> Answer:
    return await talk.call("search_code", GOOD)


@cause(Reason.UPSTREAM_OPEN, upstream=responding(_broken), upstream_settings="breaker: {failures: 1}")
async def upstream_open(talk: Talk) -> Answer:
    await talk.call("search_code", GOOD)
    return await talk.call("search_code", GOOD)


@cause(Reason.TOOL_DISABLED)
async def tool_disabled(talk: Talk) -> Answer:
    await talk.world.app.switch_off("github", "search_code", reason="", until=None, by="test")
    return await talk.call("search_code", GOOD)


@cause(Reason.RESPONSE_REFUSED, upstream=responding(_garbage))
async def response_refused(talk: Talk) -> Answer:
    return await talk.call("search_code", GOOD)


# --- a bug of ours --------------------------------------------------------------------------------------------------


@contextmanager
def a_bug() -> Iterator[None]:
    """One stage that fails in a way that nobody foresaw."""

    def broken(*_: object) -> object:
        raise ZeroDivisionError("a secret of the implementation")

    real = sidecar.gateway.pipeline.plan_charges
    sidecar.gateway.pipeline.plan_charges = broken  # type: ignore[assignment]
    try:
        yield
    finally:
        sidecar.gateway.pipeline.plan_charges = real


@cause(Reason.INTERNAL)
async def internal(talk: Talk) -> Answer:
    if talk.era == "session":
        await talk.open()
    with a_bug():
        return await talk.call("search_code", GOOD)


# --- no protocol at all ---------------------------------------------------------------------------------------------


@cause(Reason.ROUTE_UNKNOWN, "stateless")
async def route_unknown(talk: Talk) -> Answer:
    return await talk.world.post({}, url=f"{talk.world.url}/nowhere")


@cause(Reason.VERB_NOT_ALLOWED, "stateless", "plain")
async def verb_not_allowed(talk: Talk) -> Answer:
    return await _plain(await talk.verb("PUT", under="/tools" if talk.era == "plain" else ""))


@cause(Reason.ORIGIN_REFUSED, "stateless")
async def origin_refused(talk: Talk) -> Answer:
    return await talk.world.post({}, headers={"Origin": "https://evil.example", "Accept": ACCEPT})


async def _plain(answer: Answer) -> Answer:
    import orjson

    return answer[0], orjson.loads(answer[1]), answer[2]

"""What makes a sidecar say each of its reasons?

One row for each way to be refused, with the world it needs. Every cause is the real one, produced over the wire:
a credential that does not hold, a disk that is full, a store that is not there.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web

import sidecar.gateway.stages
from sidecar.errors import Reason
from tests.flow.idp import APPS, SETTINGS, Idp, bearer
from tests.flow.scripts import after, body, hang
from tests.flow.talk import ERAS, Answer, Era, Talk
from tests.flow.world import ACCEPT, META, TOOLS, Respond, Upstream, World, until

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


def cause(name: str, reason: Reason, run: Run, *eras: Era, **options: Any) -> None:
    CAUSES[name] = Cause(reason, run, eras or (*ERAS, "plain"), options)


def row(*, expires: str = "-", per_hour: str = "-", effect: str = "allow") -> str:
    return "#: id=search\n" + SEARCH.format(expires=expires, per_hour=per_hour, when="-", effect=effect)


def budgets(text: str) -> dict[str, str]:
    return {"policies/budgets.yaml": f"version: 1\n{text}\n"}


def calling(tool: str = "search_code", arguments: dict[str, Any] | None = None, times: int = 1, **headers: str) -> Run:
    """The last of so many calls."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}

    async def run(talk: Talk) -> Answer:
        for _ in range(times):
            said = await talk.call(tool, GOOD if arguments is None else arguments, headers=sent)
        return said

    return run


def asking(method: str, params: dict[str, Any] | None = None, **more: Any) -> Run:
    return lambda talk: talk.ask(method, params, **more)


def sending(body: bytes, headers: Mapping[str, str] | None = None) -> Run:
    return lambda talk: talk.send(body, headers)


def prepared(prepare: Callable[[Talk], Any], run: Run) -> Run:
    """In the session era the session is there already when this is done."""

    async def prepared_run(talk: Talk) -> Answer:
        if talk.era == "session":
            await talk.open()
        prepare(talk)
        return await run(talk)

    return prepared_run


def knocking(headers: Callable[[str], dict[str, str]] = lambda _: {}, server: str = "github") -> Run:
    """The first message of an era, with the credentials that are made for the address."""

    async def run(talk: Talk) -> Answer:
        talk.headers, talk.server = headers(f"{talk.world.url}/mcp/github"), server
        return await talk.call("search_code", GOOD) if talk.era != "session" else await talk.open()

    return run


call = calling()

# --- who ------------------------------------------------------------------------------------------------------------

WITH_IDP: dict[str, Any] = {"principal": "", "settings": SETTINGS, "files": IDP.files}
BAD_KEY = PLANNER_KEY[:-1] + ("a" if PLANNER_KEY[-1] != "a" else "b")
BAD: dict[str, Callable[[str], dict[str, str]]] = {
    "bad-token": lambda at: bearer(IDP.token("nhi:planner", at, key=Idp().key)),
    "expired-token": lambda at: bearer(IDP.token("nhi:planner", at, age_s=900, ttl_s=600)),
    "bad-api-key": lambda _: bearer(BAD_KEY),
    "another-audience": lambda at: bearer(IDP.token("nhi:planner", at.replace("github", "jira"))),
}


def both(at: str) -> dict[str, str]:
    return bearer(IDP.token("nhi:planner", at)) | {"X-API-Key": OTHER_KEY}


def of_an_app(at: str) -> dict[str, str]:
    return bearer(IDP.token("alice", at, issuer=APPS, claims={"azp": "not-listed", "is": "user"}))


def narrow(at: str) -> dict[str, str]:
    return bearer(IDP.token("nhi:planner", at, scopes=["repo:list"]))


cause("no-credential", Reason.UNAUTHENTICATED, knocking(), **WITH_IDP)
for name, headers in BAD.items():
    cause(name, Reason.BAD_CREDENTIAL, knocking(headers), **WITH_IDP)
cause("credential-conflict", Reason.CREDENTIAL_CONFLICT, knocking(both), **WITH_IDP)
cause("client-unknown", Reason.CLIENT_UNKNOWN, knocking(of_an_app), **WITH_IDP)
SCOPED: dict[str, Any] = {"upstream_settings": "scopes: [repo:read]", **WITH_IDP}
cause("insufficient-scope", Reason.INSUFFICIENT_SCOPE, knocking(narrow), **SCOPED)

# --- what -----------------------------------------------------------------------------------------------------------


async def version_unsupported(talk: Talk) -> Answer:
    version = "2031-01-01"
    if talk.era == "session":
        return await talk.call("search_code", GOOD, headers={"MCP-Protocol-Version": version})
    meta = {**META, "io.modelcontextprotocol/protocolVersion": version}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}}
    return await talk.world.post(message, headers={"MCP-Protocol-Version": version, "Mcp-Method": "tools/list"})


async def session_unknown(talk: Talk) -> Answer:
    talk.session = "bm90IGEgc2Vzc2lvbiBvZiBhbnlib2R5"
    return await call(talk)


BATCH = b'[{"jsonrpc": "2.0", "id": 1, "method": "tools/call"}]'
SMALL = 'server: {listen: "127.0.0.1:0", max_body_bytes: 2000}\n'
ODD_NAME = asking("tools/call", {"name": "search code"}, headers={"Mcp-Name": "search code"})
cause("not-json", Reason.MALFORMED_CALL, sending(b'{"broken"'))
cause("a-batch", Reason.MALFORMED_CALL, sending(BATCH))
cause("malformed-params", Reason.MALFORMED_CALL, ODD_NAME)
cause("too-large", Reason.TOO_LARGE, calling(arguments={"repo": "a" * 2000}), settings=SMALL)
cause("media-type", Reason.UNSUPPORTED_MEDIA_TYPE, sending(b"{}", {"Content-Type": "text/plain"}))
cause("not-acceptable", Reason.NOT_ACCEPTABLE, calling(Accept="application/json"), *ERAS)
cause("header-mismatch", Reason.HEADER_MISMATCH, calling(Mcp_Name="get_file"), "stateless")
cause("version-unsupported", Reason.VERSION_UNSUPPORTED, version_unsupported, *ERAS)
cause("session-unknown", Reason.SESSION_UNKNOWN, session_unknown, "session")

# --- may they -------------------------------------------------------------------------------------------------------

EVERY_TOOL = "p, nhi:planner, tool:*, use, -, -, -, allow\n"
DENIED = row() + "#: id=no\n" + SEARCH.format(expires="-", per_hour="-", when="-", effect="deny")
OVER = row(expires="2026-01-01T00:00:00Z") + "p, nhi:planner, tool:github/get_file, use, -, -, -, allow\n"
DISABLED = {"policies/disabled.yaml": "version: 1\ndisabled: [nhi:planner]\n"}
cause("denied-by-rule", Reason.DENIED_BY_RULE, call, rules=DENIED)
cause("expired", Reason.EXPIRED, call, rules=OVER)
cause("condition-false", Reason.CONDITION_FALSE, calling(arguments={"repo": "evil/site"}))
cause("no-matching-rule", Reason.NO_MATCHING_RULE, calling("delete_repo"))
cause("principal-disabled", Reason.PRINCIPAL_DISABLED, knocking(), files=DISABLED)
cause("method-unknown", Reason.METHOD_UNKNOWN, asking("tasks/resubscribe"), *ERAS)
cause("task-unknown", Reason.TASK_UNKNOWN, asking("tasks/get", {"taskId": "nobodys"}), *ERAS)
cause("upstream-unknown", Reason.UPSTREAM_UNKNOWN, knocking(server="nowhere"), rules=EVERY_TOOL)
cause("tool-unknown", Reason.TOOL_UNKNOWN, calling("ghost", {}), rules=EVERY_TOOL)

# --- well formed ----------------------------------------------------------------------------------------------------


def with_a_bad_schema() -> Upstream:
    remote = {"$ref": "https://schemas.example/repo.json"}
    broken = {"name": "get_file", "inputSchema": {"type": "object", "properties": {"path": remote}}}
    return Upstream(tools=[*TOOLS[:2], broken])


cause("bad-arguments", Reason.BAD_ARGUMENTS, calling(arguments={"repo": "acme/site", "limit": 4711}))
cause("schema-unavailable", Reason.SCHEMA_UNAVAILABLE, calling("get_file", {"path": "a"}), upstream=with_a_bad_schema)
cause("pin-mismatch", Reason.PIN_MISMATCH, call, upstream_settings="pins: require")

# --- how often ------------------------------------------------------------------------------------------------------


async def session_calls(talk: Talk) -> Answer:
    await talk.ask("tools/list") if talk.era != "session" else await talk.open()
    return await talk.ask("tools/list")


async def refused_too_often(talk: Talk) -> Answer:
    await calling(arguments={"repo": 7}, times=3)(talk)
    return await call(talk)


@contextmanager
def slow_upstream(talk: Talk) -> Iterator[asyncio.Event]:
    """Its tools wait until the event is set."""
    go, script = asyncio.Event(), talk.world.upstream.script
    script["tools/call"] = after(go)
    try:
        yield go
    finally:
        go.set()
        del script["tools/call"]


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


ONE_A_MINUTE = "sessions: {session_calls_per_minute: 1}\n"
DAILY = budgets('tools: {"tool:github/*": {daily_quota: 1}}')
COSTS = budgets(
    'costs: [{object: "tool:github/*", unit: usd, per_call: 0.002}]\nbudgets: [{unit: usd, per_day: 0.003}]'
)
AT_ONCE = budgets('tools: {"tool:github/*": {concurrency: 1}}')
THREE = "refusals: {per_principal_per_minute: 3}\n"
cause("rate-limited", Reason.RATE_LIMITED, calling(times=2), rules=row(per_hour="1"))
cause("session-calls", Reason.RATE_LIMITED, session_calls, settings=ONE_A_MINUTE)
cause("quota-spent", Reason.QUOTA_SPENT, calling(times=2), rules=row(), files=DAILY)
cause("budget-spent", Reason.BUDGET_SPENT, calling(times=2), rules=row(), files=COSTS)
cause("refused-too-often", Reason.TOO_MANY_REFUSALS, refused_too_often, settings=THREE, rules=row())
cause("too-many-concurrent", Reason.TOO_MANY_CONCURRENT, too_many_concurrent, rules=row(), files=AT_ONCE)

# --- what we cannot do now ------------------------------------------------------------------------------------------


@contextmanager
def full_disk(running: World) -> Iterator[None]:
    """The audit file is on a device without room."""
    file: Any = running.app.audit.trail.sink
    full, real = os.open("/dev/full", os.O_WRONLY), os.dup(file._file)
    os.dup2(full, file._file)
    try:
        yield
    finally:
        os.dup2(real, file._file)
        os.close(real)
        os.close(full)


async def audit_unavailable(talk: Talk) -> Answer:
    if talk.era == "session":
        await talk.open()
    with full_disk(talk.world):
        said = await talk.call("search_code", GOOD)
    assert talk.world.upstream.calls() == []  # what cannot be recorded does not happen
    return said


def under_load(talk: Talk) -> None:
    talk.world.app.pipeline.stages.load_shedding.refused_share = 1.0


def drains(talk: Talk) -> None:
    talk.world.app.pipeline.stages.draining = True


NO_STORE = 'store: {url: "unix:///nonexistent/valkey.sock"}\n'
cause("store-unavailable", Reason.STORE_UNAVAILABLE, call, rules=row(per_hour="9"), settings=NO_STORE)
cause("audit-unavailable", Reason.AUDIT_UNAVAILABLE, audit_unavailable)
cause("overloaded", Reason.OVERLOADED, prepared(under_load, call))
cause("draining", Reason.DRAINING, prepared(drains, call))

# --- the upstream ---------------------------------------------------------------------------------------------------


def responding(respond: Respond) -> Callable[[], Upstream]:
    return lambda: Upstream(script={"tools/call": respond})


async def limited(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
    error = {"code": -32029, "message": "Only 10 calls a minute", "data": {"plan": "free"}}
    said = {"jsonrpc": "2.0", "id": message["id"], "error": error}
    return web.json_response(said, status=429, headers={"Retry-After": "17"})


async def tool_disabled(talk: Talk) -> Answer:
    await talk.world.app.switch_off("github", "search_code", reason="", until=None, by="test")
    return await talk.call("search_code", GOOD)


broken = responding(body(b'{"stack": "trace of theirs"}', code=500))
garbage = responding(body(b'{"jsonrpc": "2.0", "id": "another", "result": {}}'))
cause("upstream-timeout", Reason.UPSTREAM_TIMEOUT, call, mcp_settings="timeout_s: 0.2", upstream=responding(hang))
cause("upstream-failed", Reason.UPSTREAM_FAILED, call, upstream=broken)
cause("upstream-limited", Reason.UPSTREAM_LIMITED, call, upstream=responding(limited))
cause("upstream-unreachable", Reason.UPSTREAM_FAILED, call, "stateless", upstream_url="http://127.0.0.1:9/mcp")
FRAGILE: dict[str, Any] = {"upstream": broken, "upstream_settings": "breaker: {failures: 1}"}
cause("upstream-open", Reason.UPSTREAM_OPEN, calling(times=2), **FRAGILE)
cause("tool-disabled", Reason.TOOL_DISABLED, tool_disabled)
cause("response-refused", Reason.RESPONSE_REFUSED, call, upstream=garbage)

# --- a bug of ours --------------------------------------------------------------------------------------------------


async def internal(talk: Talk) -> Answer:
    """One stage fails in a way that nobody foresaw."""

    def broken(*_: object) -> object:
        raise ZeroDivisionError("a secret of the implementation")

    if talk.era == "session":
        await talk.open()
    real = sidecar.gateway.stages.plan_charges
    sidecar.gateway.stages.plan_charges = broken  # type: ignore[assignment]
    try:
        return await talk.call("search_code", GOOD)
    finally:
        sidecar.gateway.stages.plan_charges = real


cause("internal", Reason.INTERNAL, internal)

# --- no protocol at all ---------------------------------------------------------------------------------------------


async def verb_not_allowed(talk: Talk) -> Answer:
    status, said, headers = await talk.verb("PUT", under="/tools" if talk.era == "plain" else "")
    return status, orjson.loads(said), headers


def from_a_page(talk: Talk) -> Awaitable[Answer]:
    return talk.world.post({}, headers={"Origin": "https://evil.example", "Accept": ACCEPT})


def astray(talk: Talk) -> Awaitable[Answer]:
    return talk.world.post({}, url=f"{talk.world.url}/nowhere")


cause("route-unknown", Reason.ROUTE_UNKNOWN, astray, "stateless")
cause("verb-not-allowed", Reason.VERB_NOT_ALLOWED, verb_not_allowed, "stateless", "plain")
cause("origin-refused", Reason.ORIGIN_REFUSED, from_a_page, "stateless")

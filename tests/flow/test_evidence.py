"""Is exactly what happened on record, and nothing that must not be?

Four hundred requests of every kind against a real process, a hundred at once; then the clients' journal, the
upstream's journal, the audit, the metrics and the log are laid side by side.
"""

import asyncio
import json
import random
import re
import secrets
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from sidecar.errors import ANSWERS, Reason
from tests.flow.idp import SETTINGS, Idp, bearer
from tests.flow.process import Served, recompute, served
from tests.flow.talk import decision_id_of
from tests.flow.world import ACCEPT, PATIENCE_S, SESSION, STATELESS, Upstream, listening, request, stateless
from tests.tables import tables

REQUESTS, AT_ONCE = 400, 100
RULES = tables("flow/evidence")["rules"]
STRING = {"type": "string", "maxLength": 100}
SCHEMA = {"type": "object", "properties": {"repo": STRING, "n": {"type": "number"}, "deep": {}}}
TOOLS = [{"name": name, "inputSchema": SCHEMA} for name in ("search_code", "get_file", "limited", "slow", "forbidden")]
# A crowd of which every third is refused is what the bound on refusals is for; here it would hide who else is.
QUIET = """\
sessions: {session_calls_per_minute: 1000000}
refusals: {per_peer_per_minute: 100000, per_principal_per_minute: 100000}
"""


# One secret for each place that something can come in by; long enough to be found, whatever surrounds them.
PLACES = (
    "argument", "meta", "uri_query", "query", "cookie", "header", "basic", "garbled_token", "session_header",
    "event_id", "mcp_name", "parameter", "body_garbage", "wire_garbage", "upstream_credential", "result",
    "answer_header", "answer_cookie", "upstream_session", "protocol_error", "server_log",
)  # fmt: skip
CANARY = SimpleNamespace(**{place: f"canary{place.replace('_', '')}{secrets.token_hex(8)}" for place in PLACES})


# --- the upstream, and what it remembers ----------------------------------------------------------------------------


@dataclass
class Arrived:
    """One forwarded request. `audited_bytes` is how long the audit was when it came."""

    trace_id: str
    verb: str
    audited_bytes: int
    text: str


@dataclass
class Witness:
    """An upstream that writes down when what came, and leaks whatever it can."""

    stub: Upstream = field(default_factory=lambda: Upstream(tools=[dict(tool) for tool in TOOLS]))
    arrived: list[Arrived] = field(default_factory=list)
    audited: Callable[[], int] = lambda: 0

    async def handle(self, request_: web.Request) -> web.StreamResponse:
        size, raw = self.audited(), await request_.read()
        trace = request_.headers.get("traceparent", "")[3:35]
        self.arrived.append(Arrived(trace, request_.method, size, repr(request_.raw_headers) + raw.decode()))
        leaks = {"Set-Cookie": f"s={CANARY.answer_cookie}", "X-Debug": CANARY.answer_header}
        if request_.method != "POST":
            return web.Response(status=405, headers=leaks)
        message = json.loads(raw)
        answer = self.stub.answer(message)
        if message.get("method") == "tools/call":
            return await self._call(request_, message, leaks)
        if message.get("method") == "initialize":
            answer.headers["Mcp-Session-Id"] = f"{CANARY.upstream_session}-{len(self.arrived)}"
        answer.headers.update(leaks)
        return answer

    async def _call(self, request_: web.Request, message: dict[str, Any], leaks: dict[str, str]) -> web.StreamResponse:
        arguments = message["params"].get("arguments", {})
        result = {"resultType": "complete", "content": [{"type": "text", "text": CANARY.result}]}
        final = {"jsonrpc": "2.0", "id": message["id"], "result": result}
        if message["params"]["name"] == "slow":
            await asyncio.sleep(0.02)
        match arguments.get("n", 0):
            case 1:
                return web.Response(status=500, text=CANARY.protocol_error, headers=leaks)
            case 2:
                return web.json_response({"jsonrpc": "2.0", "id": 0, "result": CANARY.result}, headers=leaks)
            case 3:
                return await self._stream(request_, final, leaks)
        return web.json_response(final, headers=leaks)

    async def _stream(self, request_: web.Request, final: dict[str, Any], leaks: dict[str, str]) -> web.StreamResponse:
        stream = web.StreamResponse(headers={**leaks, "Content-Type": "text/event-stream"})
        await stream.prepare(request_)
        log = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": CANARY.server_log}}
        for event in (log, log, final):
            await stream.write(f"data: {json.dumps(event)}\n\n".encode())
            await asyncio.sleep(0)
        return stream


# --- the clients, and what they remember ----------------------------------------------------------------------------


@dataclass
class Asked:
    """One request, under the run id that it bore. `status` is None when nobody waited for the answer."""

    kind: str
    status: int | None = None
    decision_id: str = ""
    arguments: dict[str, Any] | None = None
    tool: str = ""
    trace_id: str = ""


Shot = Callable[["Crowd", str, Asked], Awaitable[None]]
SHOTS: list[tuple[int, Shot]] = []


def shot(weight: int) -> Callable[[Shot], Shot]:
    def add(run: Shot) -> Shot:
        SHOTS.append((weight, run))
        return run

    return add


@dataclass
class Crowd:
    """Clients of one process, seeded."""

    running: Served
    http: aiohttp.ClientSession
    key: str
    idp: Idp
    pick: random.Random = field(default_factory=lambda: random.Random(8))
    journal: dict[str, Asked] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)
    sessions: list[str] = field(default_factory=list)
    every_session: list[str] = field(default_factory=list)
    broken_answered: int = 0
    token: str = ""

    async def run(self) -> None:
        """Everything, with a bounded number in flight."""
        weights, shots = zip(*SHOTS, strict=True)
        plan: Iterator[tuple[int, Shot]] = iter(enumerate(self.pick.choices(shots, weights, k=REQUESTS)))

        async def worker() -> None:
            for number, fire in plan:
                run_id = f"run-{number}"
                self.journal[run_id] = asked = Asked(fire.__name__, trace_id=f"{number + 1:032x}")
                await fire(self, run_id, asked)

        await asyncio.gather(*(worker() for _ in range(AT_ONCE)))

    def headers(self, run_id: str, asked: Asked, **more: str) -> dict[str, str]:
        return {
            "Content-Type": "application/json",
            "Accept": ACCEPT,
            "X-Run-Id": run_id,
            "traceparent": f"00-{asked.trace_id}-00000000000000a1-01",
            "Cookie": f"c={CANARY.cookie}",
            "X-Secret": CANARY.header,
            **self.credential(),
        } | {name.replace("_", "-"): value for name, value in more.items()}

    def credential(self) -> dict[str, str]:
        return bearer(self.key) if self.pick.random() < 0.5 else bearer(self.token)

    async def send(
        self, run_id: str, asked: Asked, body: bytes, verb: str = "POST", path: str = "", **more: str
    ) -> Any:
        url = f"{self.running.url}{path or '/mcp/github'}?access_token={CANARY.query}"
        headers = {name: value for name, value in self.headers(run_id, asked, **more).items() if value}
        async with self.http.request(verb, url, data=body, headers=headers) as response:
            raw = await response.read()
        asked.status = response.status
        parsed = json.loads(raw) if raw[:1] == b"{" else None
        answer = (response.status, parsed, dict(response.headers))
        asked.decision_id = decision_id_of(answer) if parsed else ""
        theirs = "text/event-stream" in answer[2].get("Content-Type", "") or (parsed is not None and "result" in parsed)
        self.told.append(repr(answer[2]) + ("" if theirs else raw.decode()))
        return answer

    async def call(self, run_id: str, asked: Asked, tool: str, arguments: dict[str, Any], **more: str) -> Any:
        asked.tool, asked.arguments = tool, arguments
        message = stateless("tools/call", {"name": tool, "arguments": arguments})
        message["params"]["_meta"]["acme/secret"] = CANARY.meta
        routing = {"Mcp_Method": "tools/call", "Mcp_Name": tool, "MCP_Protocol_Version": STATELESS}
        return await self.send(run_id, asked, json.dumps(message).encode(), **{**routing, **more})

    def arguments(self, **more: Any) -> dict[str, Any]:
        odd = self.pick.choice(
            (None, True, -0.0, 1e21, 1e-7, 2**63, "\u20ac\u2028\x7f", [[], {}], {"b": 1, "a": [1.5]})
        )
        return {"repo": f"acme/{CANARY.argument}", "deep": odd, **more}

    async def raw(self, data: bytes, *, wait_s: float | None = None) -> bytes:
        """Bytes as they are on a connection of their own; aborted after `wait_s` if that is given."""
        where = urlsplit(self.running.url)
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        try:
            writer.write(data)
            if wait_s is None:
                return await reader.read()
            await asyncio.sleep(wait_s)
            return b""
        finally:
            writer.transport.abort()


Called = Callable[[Crowd], tuple[str, dict[str, Any]]]
CALLS: dict[str, tuple[int, Called]] = {  # its weight, the tool and the arguments
    "allowed": (25, lambda crowd: ("search_code", crowd.arguments())),
    "streamed": (8, lambda crowd: ("get_file", crowd.arguments(n=3))),
    "failing_upstream": (4, lambda crowd: ("get_file", crowd.arguments(n=crowd.pick.choice((1, 2))))),
    "denied": (8, lambda crowd: (crowd.pick.choice(("forbidden", "other")), crowd.arguments())),
    "unmet": (4, lambda crowd: ("search_code", {"repo": CANARY.argument})),
    "ill_formed": (6, lambda crowd: ("get_file", {"repo": CANARY.argument * 10, "n": CANARY.argument})),
    "limited": (5, lambda crowd: ("limited", crowd.arguments())),
    "ghost": (2, lambda crowd: ("ghost", crowd.arguments())),
}


def calling(name: str, called: Called) -> Shot:
    async def run(crowd: Crowd, run_id: str, asked: Asked) -> None:
        await crowd.call(run_id, asked, *called(crowd))

    run.__name__ = name
    return run


SHOTS += [(weight, calling(name, called)) for name, (weight, called) in CALLS.items()]


@shot(4)
async def mismatched(crowd: Crowd, run_id: str, asked: Asked) -> None:
    await crowd.call(run_id, asked, "get_file", crowd.arguments(), Mcp_Name=CANARY.mcp_name)
    asked.arguments = None  # nobody got as far as to hash them


@shot(4)
async def garbage(crowd: Crowd, run_id: str, asked: Asked) -> None:
    secret = json.dumps(CANARY.body_garbage).encode()
    bodies = (b"{" + secret, b"\xff\xfe" + secret, b"[" + secret + b"]", b'{"jsonrpc":"2.0",%s:1}' % secret, b"")
    await crowd.send(run_id, asked, crowd.pick.choice(bodies))


@shot(3)
async def unknown_method(crowd: Crowd, run_id: str, asked: Asked) -> None:
    body = json.dumps(stateless("tasks/list", {"cursor": CANARY.argument})).encode()
    await crowd.send(run_id, asked, body, Mcp_Method="tasks/list", MCP_Protocol_Version=STATELESS)


@shot(4)
async def resource(crowd: Crowd, run_id: str, asked: Asked) -> None:
    uri = f"https://files.example/a?sig={CANARY.uri_query}"
    body = json.dumps(stateless("resources/read", {"uri": uri})).encode()
    routing = {"Mcp_Method": "resources/read", "Mcp_Name": uri, "MCP_Protocol_Version": STATELESS}
    await crowd.send(run_id, asked, body, **routing, Mcp_Param_Region=CANARY.parameter)


@shot(4)
async def nowhere(crowd: Crowd, run_id: str, asked: Asked) -> None:
    path = crowd.pick.choice(
        ("/", "/mcp", "/mcp/nowhere", "/mcp/github/", "/metrics", "/mcp/%67ithub", "/x/../mcp/github")
    )
    await crowd.send(run_id, asked, b"{}", path=path)


@shot(3)
async def wrong_verb(crowd: Crowd, run_id: str, asked: Asked) -> None:
    await crowd.send(run_id, asked, b"", crowd.pick.choice(("PUT", "OPTIONS", "PATCH", "HEAD", "GET", "DELETE")))


@shot(2)
async def metadata(crowd: Crowd, run_id: str, asked: Asked) -> None:
    await crowd.send(run_id, asked, b"", "GET", "/.well-known/oauth-protected-resource/mcp/github")


@shot(6)
async def unproven(crowd: Crowd, run_id: str, asked: Asked) -> None:
    forged = Idp().token("nhi:planner", f"{crowd.running.url}/mcp/github")
    bad = (f"Bearer {forged}", f"Bearer {CANARY.garbled_token}", f"Basic {CANARY.basic}", f"Bearer {crowd.key}x")
    await crowd.send(run_id, asked, b"{}", Authorization=crowd.pick.choice(bad))


@shot(2)
async def unnamed(crowd: Crowd, run_id: str, asked: Asked) -> None:
    await crowd.send(run_id, asked, b"{}", Authorization="")


@shot(6)
async def in_session(crowd: Crowd, run_id: str, asked: Asked) -> None:
    """One step of some session's life: it begins, it is used, it ends."""
    if len(crowd.sessions) < 20:
        hello = {"protocolVersion": SESSION, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        body = json.dumps(request("initialize", hello)).encode()
        answer = await crowd.send(run_id, asked, body, Authorization=f"Bearer {crowd.key}")
        assert "Mcp-Session-Id" in answer[2], answer
        crowd.sessions.append(answer[2]["Mcp-Session-Id"])
        crowd.every_session.append(answer[2]["Mcp-Session-Id"])
        return
    session = crowd.pick.choice(crowd.sessions)
    own = {"Authorization": f"Bearer {crowd.key}", "Mcp_Session_Id": session, "MCP_Protocol_Version": SESSION}
    roll = crowd.pick.random()
    if roll < 0.15:
        crowd.sessions.remove(session)
        await crowd.send(run_id, asked, b"", "DELETE", **own)
    elif roll < 0.3:
        await crowd.send(run_id, asked, b'{"jsonrpc":"2.0","method":"notifications/initialized"}', **own)
    elif roll < 0.5:
        await crowd.send(run_id, asked, json.dumps(request("tools/list")).encode(), **own)
    else:
        asked.tool, asked.arguments = "get_file", crowd.arguments()
        params = {"name": asked.tool, "arguments": asked.arguments}
        await crowd.send(run_id, asked, json.dumps(request("tools/call", params)).encode(), **own)


@shot(2)
async def foreign_session(crowd: Crowd, run_id: str, asked: Asked) -> None:
    body = json.dumps(request("tools/list")).encode()
    verb = crowd.pick.choice(("POST", "GET", "DELETE"))
    await crowd.send(run_id, asked, body, verb, Mcp_Session_Id=CANARY.session_header, Last_Event_ID=CANARY.event_id)


@shot(4)
async def hangs_up(crowd: Crowd, run_id: str, asked: Asked) -> None:
    """Asks, and does not stay for the answer."""
    asked.tool, asked.arguments = "slow", crowd.arguments(n=crowd.pick.choice((0, 3)))
    body = json.dumps(stateless("tools/call", {"name": "slow", "arguments": asked.arguments})).encode()
    routing = {"Mcp-Method": "tools/call", "Mcp-Name": "slow", "MCP-Protocol-Version": STATELESS}
    head = {**crowd.headers(run_id, asked), **routing, "Host": urlsplit(crowd.running.url).netloc}
    head["Content-Length"] = str(len(body))
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    sent = f"POST /mcp/github HTTP/1.1\r\n{lines}\r\n".encode() + body
    await crowd.raw(sent[: crowd.pick.choice((len(sent), len(sent), 200))], wait_s=crowd.pick.random() * 0.05)


@shot(3)
async def no_http(crowd: Crowd, run_id: str, asked: Asked) -> None:
    """Bytes that no server should take for a request: they bear no run id."""
    secret = CANARY.wire_garbage.encode()
    wire = (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + secret + b"\r\n\r\n",
        b"GET /" + secret + b"\r\n\r\n",
        b"POST /mcp/github HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\nX: " + secret + b"\r\n\r\n",
        b"POST /mcp/github HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n" + secret,
        b"POST /mcp/github HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\nX: " + secret + b"\r\n\r\n",
        b"POST /" + b"a" * 9000 + secret + b" HTTP/1.1\r\n\r\n",
    )
    answered = await crowd.raw(crowd.pick.choice(wire))
    crowd.told.append(answered.decode("latin-1"))
    crowd.broken_answered += bool(answered)


# --- side by side ---------------------------------------------------------------------------------------------------


@dataclass
class Aftermath:
    """What is left when all of it is over."""

    crowd: Crowd
    witness: Witness
    records: list[dict[str, Any]]
    offsets: dict[int, int]
    metrics: str
    log: str
    raw: str

    def __post_init__(self) -> None:
        self.terminal = [record for record in self.records if record["event"] in ("outcome", "refusal")]
        self.answered = {run: asked for run, asked in self.crowd.journal.items() if asked.status is not None}

    def summed(self, name: str, **labels: str) -> int:
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        found = [line for line in self.metrics.splitlines() if line.startswith(name + "{")]
        return int(sum(float(line.rsplit(" ", 1)[1]) for line in found if all(label in line for label in wanted)))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def aftermath() -> Aftermath:
    idp, witness = Idp(), Witness()
    key = idp.api_key("nhi:planner")
    async with listening(witness.handle) as base:
        started = served(
            f"{base}/mcp",
            rules=RULES,
            settings=SETTINGS + QUIET,
            files={**idp.files(), "upstream.token": CANARY.upstream_credential},
            upstream_settings="credential: {bearer_path: upstream.token}",
            mcp_settings=f"max_connections: {2 * AT_ONCE}",
        )
        async with started as running:
            witness.audited = lambda: running.audit_path.stat().st_size
            connector = aiohttp.TCPConnector(limit=AT_ONCE)
            async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=60)) as http:
                crowd = Crowd(running, http, key, idp)
                crowd.token = idp.token("nhi:planner", f"{running.url}/mcp/github")
                await crowd.run()
            metrics = await at_rest(running)
            running.signal(signal.SIGTERM)
            assert await running.ended() == 0
            check_by_others(running, crowd)
            raw = running.audit_path.read_bytes()
            lines = raw.splitlines(keepends=True)
            records = list(map(json.loads, lines))
            offsets = dict(zip((record["seq"] for record in records), accumulate(map(len, lines)), strict=True))
            return Aftermath(crowd, witness, records, offsets, metrics, running.log(), raw.decode())


async def at_rest(running: Served) -> str:
    """The metrics, once nothing is under way."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            _, text = await running.ask("/metrics")
            if re.search(r'^sidecar_inflight_requests\{protocol="mcp"\} 0\.0$', text, re.MULTILINE):
                return text
            await asyncio.sleep(0.05)


def check_by_others(running: Served, crowd: Crowd) -> None:
    """`audit verify`, and a second program: the chain, the anchor, and the hash of every argument that was sent."""
    assert running.verify()[0] == 0
    last = running.records()[-1]
    audit, key = str(running.audit_path), str(running.key_path)
    assert recompute("chain", audit) == recompute("head", audit, key) == [str(last["seq"]), last["hash"]]
    cases, hashes = [], []
    for record in running.records():
        asked = crowd.journal.get(record["run_id"])
        if record["args_hash"] and asked and asked.arguments is not None:
            of = {"namespace": "", "action": "tools/call", "object": f"tool:github/{asked.tool}"}
            cases.append(json.dumps({**of, "arguments": asked.arguments}) + "\n")
            hashes.append(record["args_hash"])
    assert recompute("args", key, stdin="".join(cases)) == hashes and len(hashes) > REQUESTS / 2


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_every_kind_of_request_was_among_them(aftermath: Aftermath) -> None:
    kinds = Counter(asked.kind for asked in aftermath.crowd.journal.values())
    assert set(kinds) == {fire.__name__ for _, fire in SHOTS} and kinds.total() == REQUESTS
    reasons = {record["reason"] for record in aftermath.terminal}
    assert reasons >= {
        None, "unauthenticated", "bad-credential", "origin-refused", "route-unknown", "verb-not-allowed",
        "malformed-call", "header-mismatch", "denied-by-rule", "condition-false", "no-matching-rule", "method-unknown",
        "tool-unknown", "session-unknown", "bad-arguments", "rate-limited", "upstream-failed", "response-refused",
        "caller-gone",
    }  # fmt: skip
    assert "internal" not in reasons


async def test_every_answered_request_has_exactly_one_terminal_record(aftermath: Aftermath) -> None:
    """BL-008: whatever became of it."""
    ends = Counter(record["run_id"] for record in aftermath.terminal)
    broken = ends.pop(None, 0)
    assert {run: ends[run] for run in aftermath.answered if ends[run] != 1} == {}
    assert broken == aftermath.crowd.broken_answered
    left = {run for run, asked in aftermath.crowd.journal.items() if asked.kind == "hangs_up"}
    assert set(ends) - set(aftermath.answered) <= left
    assert max(ends.values()) == 1


async def test_the_record_says_what_the_caller_heard(aftermath: Aftermath) -> None:
    by_run = {record["run_id"]: record for record in aftermath.terminal if record["run_id"]}
    for run, asked in aftermath.answered.items():
        record = by_run[run]
        reason = record["reason"]
        assert record["http_status"] == asked.status, (asked, record)
        assert asked.decision_id in ("", record["decision_id"])
        assert record["status"] == (ANSWERS[Reason(reason)].status if reason else "success")


async def test_nothing_reached_the_upstream_before_its_decision_was_on_record(aftermath: Aftermath) -> None:
    decisions = [record for record in reversed(aftermath.records) if record["event"] == "decision"]
    decided = {record["trace_id"]: aftermath.offsets[record["seq"]] for record in decisions}
    forwarded = [arrived for arrived in aftermath.witness.arrived if arrived.trace_id]
    assert len(forwarded) > REQUESTS / 4
    assert all(decided[arrived.trace_id] <= arrived.audited_bytes for arrived in forwarded)
    assert max(Counter(arrived.trace_id for arrived in forwarded).values()) == 1


async def test_whatever_stage_a_call_ended_at_its_record_has_what_was_known(aftermath: Aftermath) -> None:
    """BL-005: the hash, the decision and the policy, also where the call failed afterwards."""
    for record in aftermath.terminal:
        if record["upstream"] == "github" and record["credential"]:
            assert record["chain"] == ["nhi:planner"] and record["agent_id"] == "nhi:planner"
        if record["action"] == "tools/call":
            assert record["args_hash"] and record["policy_revision"] and record["links"], record
        if record["event"] == "outcome" and record["status"] == "success" and record["object"]:
            assert record["latency"].keys() >= {"auth", "parse", "policy", "limits", "audit", "upstream"}, record


async def test_every_decision_has_its_outcome_and_a_refusal_has_neither(aftermath: Aftermath) -> None:
    events: dict[str, list[str]] = {}
    for record in aftermath.records:
        if record["decision_id"]:
            events.setdefault(record["decision_id"], []).append(record["event"])
    for decision_id, found in events.items():
        assert found in (["decision", "outcome"], ["refusal"], ["outcome"]), decision_id
    bare = [r for r in aftermath.records if r["event"] == "outcome" and events[r["decision_id"]] == ["outcome"]]
    assert {aftermath.crowd.journal[record["run_id"]].kind for record in bare} == {"metadata"}  # open to all


async def test_the_metrics_are_the_audit_summed(aftermath: Aftermath) -> None:
    """BL-008."""
    ends = Counter(record["status"] for record in aftermath.terminal)
    reasons = Counter(record["reason"] for record in aftermath.terminal)
    events = Counter(record["event"] for record in aftermath.records)
    summed = aftermath.summed
    for status in ("success", "permission_denied", "rate_limited", "error"):
        assert summed("sidecar_requests_total", status=status) == ends[status], status
    for event in ("decision", "outcome", "refusal"):
        assert summed("sidecar_audit_records_total", event=event, result="written") == events[event]
    assert summed("sidecar_audit_records_total", result="failed") == 0
    for reason in ("unauthenticated", "bad-credential"):
        assert summed("sidecar_auth_failures_total", reason=reason) == reasons[reason]
    for reason in ("denied-by-rule", "condition-false", "no-matching-rule", "method-unknown"):
        assert summed("sidecar_decisions_total", decision="deny", reason=reason) == reasons[reason]
    assert summed("sidecar_schema_violations_total") == reasons["bad-arguments"]
    assert summed("sidecar_limit_checks_total", outcome="refused") == reasons["rate-limited"]


# What a canary may be found in, besides where it was put. Everything else is in none of these.
FORWARDED = {"argument", "meta", "uri_query", "upstream_credential", "upstream_session"}


async def test_no_secret_is_anywhere(aftermath: Aftermath) -> None:
    evidence = {"audit": aftermath.raw, "log": aftermath.log, "metrics": aftermath.metrics}
    told, upstream = "".join(aftermath.crowd.told), "".join(arrived.text for arrived in aftermath.witness.arrived)
    crowd = aftermath.crowd
    ours = {"API key": crowd.key, "token": crowd.token, "token's signature": crowd.token.rsplit(".", 1)[1]}
    ours |= {f"session {session}": session for session in crowd.every_session}
    for name, secret in {**vars(CANARY), **ours}.items():
        for place, text in evidence.items():
            assert secret not in text, (name, place)
        if not name.startswith("session "):  # its own holder was told
            assert secret not in told, (name, "told")
        assert name in FORWARDED or secret not in upstream, (name, "upstream")
    assert crowd.every_session and CANARY.argument in upstream and CANARY.upstream_credential in upstream


async def test_the_log_is_for_operators(aftermath: Aftermath) -> None:
    lines = [line for line in aftermath.log.splitlines() if line.startswith("{")]
    assert [json.loads(line)["event"] for line in lines if json.loads(line)["level"] == "error"] == []

"""Is each kind of request described as OpenTelemetry's conventions have it, without a word of its content?

The SDK's own exporter in memory takes the spans; how they travel is in `test_traces.py`.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NoOpTracerProvider, format_span_id, format_trace_id

from sidecar.app.application import Application
from sidecar.gateway.request_spans import RequestTracing
from sidecar.observability.telemetry import Telemetry
from tests.a2a.test_task_api import DONE, ORDER, QUICK, WORKING, busy, call as call_task, ended
from tests.a2a.world import ALICE, HELLO, SPOKEN, Binding, No, Version, agent_world, ask, saying
from tests.flow.enforcement import KEY, asked_world
from tests.flow.federated import everywhere, federation
from tests.flow.streams import event
from tests.flow.talk import ERAS, Era, Talk
from tests.flow.test_approvals import PATH, TOOL, answer, asking, waiting
from tests.flow.test_cli_agents import output_of, sidecar
from tests.flow.world import SESSION, STATELESS, Upstream, until, world

TRACE, PARENT, OTHER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "00f067aa0ba902b7"
WELL_FORMED = f"00-{TRACE}-{PARENT}-01"
SECRET = "acme/secret-site"
ARGUMENTS = {"repo": SECRET}
GOOD = {"name": "search_code", "arguments": ARGUMENTS}


class Seen:
    """The finished spans, and the measured durations."""

    def __init__(self, app: Application) -> None:
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        spans = TracerProvider()
        spans.add_span_processor(SimpleSpanProcessor(self.exporter))
        meter = MeterProvider([self.reader]).get_meter("tests")
        app.live.tracing = RequestTracing(Telemetry(spans.get_tracer("tests"), meter, app.metrics, []))

    def spans(self, kind: str = "") -> list[ReadableSpan]:
        """In the order of their begin."""
        found = sorted(self.exporter.get_finished_spans(), key=lambda span: (span.start_time or 0, span.kind.name))
        return [span for span in found if kind in ("", span.kind.name)]

    def names(self, kind: str = "") -> list[str]:
        return [span.name for span in self.spans(kind)]

    def server(self) -> ReadableSpan:
        """The last one."""
        return self.spans("SERVER")[-1]

    def client(self) -> ReadableSpan:
        return self.spans("CLIENT")[-1]

    def durations(self, side: str) -> dict[str, Any]:
        """The points of a histogram, by method."""
        data = self.reader.get_metrics_data()
        metrics = [one for each in data.resource_metrics for scope in each.scope_metrics for one in scope.metrics]
        (found,) = [metric for metric in metrics if metric.name == f"mcp.{side}.operation.duration"]
        return {point.attributes["mcp.method.name"]: point for point in found.data.data_points}


def facts(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def context(span: ReadableSpan) -> str:
    made = span.get_span_context()
    assert made is not None
    return f"00-{format_trace_id(made.trace_id)}-{format_span_id(made.span_id)}-{made.trace_flags:02x}"


def parent_of(span: ReadableSpan) -> str:
    return "" if span.parent is None else format_span_id(span.parent.span_id)


def below(span: ReadableSpan) -> str:
    return context(span).split("-")[2]


def failed(**error: Any) -> Any:
    async def respond(_: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], **error})

    return respond


async def test_each_message_of_a_session_has_its_span(tmp_path: Path) -> None:
    async with world(tmp_path) as running:
        seen, talk = Seen(running.app), Talk(running, "session")
        await talk.open()
        await talk.say({"method": "notifications/initialized"})
        await talk.call("search_code", ARGUMENTS)
        await talk.ask("tools/list", id="L")
        await talk.ask("ping")
        await talk.verb("GET")
        await talk.verb("DELETE")
        said = ["initialize", "notifications/initialized", "tools/call search_code", "tools/list", "ping"]
        assert seen.names("SERVER") == [*said, "session/stream", "session/end"]
        assert seen.names("CLIENT") == [*said, "session/stream"]
        first, note, called, listed = seen.spans("SERVER")[:4]
        assert "mcp.session.id" not in facts(first)
        assert facts(called)["mcp.session.id"] == talk.session
        assert facts(seen.spans("CLIENT")[2])["mcp.session.id"] == "upstream-1"
        assert (facts(called)["mcp.protocol.version"], facts(called)["jsonrpc.request.id"]) == (SESSION, "1")
        assert ("jsonrpc.request.id" in facts(note), facts(listed)["jsonrpc.request.id"]) == (False, "L")
        assert [("gen_ai.operation.name" in facts(span)) for span in (first, note, called, listed)] == [0, 0, 1, 0]
        for server, client in zip(seen.spans("SERVER"), seen.spans("CLIENT"), strict=False):
            assert parent_of(client) == below(server)
        ids = {record["trace_id"] for record in running.ends()}
        assert ids == {context(span).split("-")[1] for span in seen.spans("SERVER")}
        assert SECRET not in repr([span.to_json() for span in seen.spans()])


@pytest.mark.parametrize("era", ERAS)
async def test_the_context_goes_on_in_the_header_and_in_meta(era: Era, tmp_path: Path) -> None:
    async with world(tmp_path) as running:
        seen = Seen(running.app)
        meta = {"_meta": {"traceparent": WELL_FORMED, "tracestate": "rojo=1", "mine": 7, "baggage": "who=alice"}}
        headers = {"traceparent": f"00-{TRACE}-{OTHER}-01", "baggage": "who=alice"}
        answer = await Talk(running, era).ask("tools/call", {**GOOD, **meta}, headers=headers)
        assert answer[0] == 200
        sent, message = running.upstream.seen[-1]
        assert message["params"]["_meta"]["mine"] == 7
        assert message["params"]["_meta"]["traceparent"] == sent["traceparent"] == context(seen.client())
        assert message["params"]["_meta"]["tracestate"] == sent["tracestate"] == "rojo=1"
        assert "baggage" not in sent and "baggage" not in message["params"]["_meta"]
        assert parent_of(seen.server()) == PARENT
        assert [format_span_id(link.context.span_id) for link in seen.server().links] == [OTHER]
        assert running.ends()[-1]["trace_id"] == TRACE


MALFORMED = ["", "00-0-0-00", f"00-{'0' * 32}-{PARENT}-01", f"00-{TRACE}-{'0' * 16}-01", f"ff-{TRACE}-{PARENT}-01", 7]


@pytest.mark.parametrize("said", MALFORMED)
async def test_malformed_context_counts_as_none(said: Any, tmp_path: Path) -> None:
    async with world(tmp_path) as running:
        seen = Seen(running.app)
        talk, told = Talk(running, "stateless"), {**GOOD, "_meta": {"traceparent": said}}
        await talk.ask("tools/call", told, headers={"traceparent": str(said)})
        assert (parent_of(seen.server()), seen.server().links) == ("", ())
        assert running.upstream.seen[-1][1]["params"]["_meta"]["traceparent"] == context(seen.client())
        await talk.ask("tools/call", told, headers={"traceparent": WELL_FORMED})
        assert (parent_of(seen.server()), seen.server().links) == (PARENT, ())


async def test_what_callers_make_up_is_bounded(tmp_path: Path) -> None:
    async with world(tmp_path) as running:
        seen, talk = Seen(running.app), Talk(running, "stateless")
        for method, reason in (("made/up", "method-unknown"), ("x" * 5000, "malformed-call")):
            await talk.ask(method)
            assert (seen.server().name, facts(seen.server())["sidecar.reason"]) == ("POST", reason)
            assert method not in repr(seen.server().to_json())
        told = {**GOOD, "_meta": {"traceparent": WELL_FORMED, "tracestate": f"rojo={'1' * 600}"}}
        await talk.ask("tools/call", told, headers={"Mcp-Session-Id": "s" * 5000})
        assert "tracestate" not in running.upstream.seen[-1][0]
        assert len(str(facts(seen.server()).get("mcp.session.id", ""))) <= 256


async def test_failures_are_those_that_the_caller_hears(tmp_path: Path) -> None:
    error = {"code": 7, "message": SECRET}
    upstream = Upstream(script={"prompts/get": failed(error=error)})
    rules = (
        "#: id=one\np, nhi:planner, tool:github/*, use, -, 1, -, allow\np, nhi:planner, prompt:*, use, -, -, -, allow\n"
    )
    async with world(tmp_path, upstream=upstream, rules=rules) as running:
        seen, talk = Seen(running.app), Talk(running, "stateless")
        await talk.ask("prompts/get", {"name": "hello"})
        for span in (seen.server(), seen.client()):
            assert span.name == "prompts/get hello"
            assert (facts(span)["error.type"], facts(span)["rpc.response.status_code"]) == ("7", "7")
            assert (facts(span)["gen_ai.prompt.name"], span.status.status_code.name) == ("hello", "ERROR")
        upstream.script["tools/call"] = failed(result={"content": [], "isError": True, "resultType": "complete"})
        await talk.ask("tools/call", GOOD)
        for span in (seen.server(), seen.client()):
            assert (facts(span)["error.type"], "rpc.response.status_code" in facts(span)) == ("tool_error", False)
        count = len(seen.spans("CLIENT"))
        _, body, _ = await talk.ask("tools/call", GOOD)  # beyond the limit of one
        code = str(body["error"]["code"])
        assert (facts(seen.server())["error.type"], facts(seen.server())["rpc.response.status_code"]) == (code, code)
        assert facts(seen.server())["sidecar.reason"] == "rate-limited"
        events = {one.name: dict(one.attributes or {}) for one in seen.server().events}
        assert events["sidecar.decision"]["sidecar.decision.rules"] == ("one",)
        assert events["sidecar.limits"]["sidecar.limits.refused"].startswith("rule:one")
        await talk.ask("tools/call", {**GOOD, "name": "unknown_tool"})
        assert facts(seen.server())["sidecar.reason"] == "no-matching-rule" or facts(seen.server())["error.type"]
        await talk.send(b"{")
        assert (seen.server().name, facts(seen.server())["sidecar.reason"]) == ("POST", "malformed-call")
        assert len(seen.spans("CLIENT")) == count
        assert SECRET not in repr([span.to_json() for span in seen.spans()])
        measured = seen.durations("server")["tools/call"].attributes
        assert measured.get("gen_ai.tool.name") in (None, "search_code")  # never a name that a caller made up
        measured = seen.durations("client")["prompts/get"].attributes  # no code and no name that others make up
        assert measured["error.type"] == "_OTHER"
        assert not measured.keys() & {"rpc.response.status_code", "gen_ai.prompt.name"}


async def test_an_approval_is_an_event_of_the_call(tmp_path: Path) -> None:
    async with asking(tmp_path) as running:
        seen, approvals = Seen(running.app), running.app.approvals
        clock = approvals.clock

        def last() -> tuple[Any, ...]:
            (event,) = [one for one in seen.server().events if one.name == "sidecar.approval"]
            told = dict(event.attributes or {})
            assert isinstance(told["sidecar.approval.wait_s"], float)
            return told["sidecar.approval.id"], told["sidecar.approval.outcome"]

        await running.call(TOOL, PATH)
        (one,) = await waiting(running)
        assert last() == (one["id"], "pending")
        await answer(running, "dmitri", "refuse")
        await running.call(TOOL, PATH)
        assert last() == (one["id"], "refused")
        approvals.clock = lambda: clock() + 901
        await running.call(TOOL, PATH)
        await answer(running, "dmitri", "approve")
        await running.call(TOOL, PATH)
        assert last()[1] == "used"
        await running.call("search_code", PATH)
        assert "sidecar.approval" not in {event.name for event in seen.server().events}
        assert "secret-name" not in repr([span.to_json() for span in seen.spans()])


async def test_an_upstream_that_is_away_fails_the_call_with_both_spans(tmp_path: Path) -> None:
    async with world(tmp_path) as running:
        await Talk(running, "session").call("search_code", ARGUMENTS)  # its tools are known
        seen = Seen(running.app)
        running.upstream.script["tools/call"] = gone
        await Talk(running, "stateless").call("search_code", ARGUMENTS)
        assert facts(seen.client())["error.type"] == facts(seen.server())["sidecar.reason"] == "upstream-failed"


async def gone(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def test_a_span_lasts_as_long_as_its_stream(tmp_path: Path) -> None:
    go = asyncio.Event()

    async def slow(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        progress = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}}
        result = {"content": [], "isError": False, "resultType": "complete"}
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await stream.prepare(request)
        await stream.write(event(progress))
        await go.wait()
        await stream.write(event({"jsonrpc": "2.0", "id": message["id"], "result": result}))
        return stream

    async with world(tmp_path, upstream=Upstream(script={"tools/call": slow})) as running:
        seen, talk = Seen(running.app), Talk(running, "stateless")
        async with talk.hearing("tools/call", GOOD):
            await until(lambda: bool(running.app.pipeline.forwarder.streams))
            assert seen.names() == []
            go.set()
            await until(lambda: len(seen.names()) == 2)
        assert seen.names() == ["tools/call search_code"] * 2
        assert "error.type" not in facts(seen.client())


async def test_a_plain_call_is_described_as_the_call_that_it_becomes(tmp_path: Path) -> None:
    async with world(tmp_path) as running:
        seen = Seen(running.app)
        await Talk(running, "plain", {"traceparent": WELL_FORMED}).call("search_code", ARGUMENTS)
        assert seen.names() == ["tools/call search_code"] * 2
        assert (parent_of(seen.server()), facts(seen.server())["sidecar.protocol"]) == (PARENT, "http")
        assert running.upstream.seen[-1][1]["params"]["_meta"]["traceparent"] == context(seen.client())
        assert list(seen.durations("client")) == ["tools/call"]


@pytest.mark.parametrize("era", ERAS)
async def test_a_question_to_all_servers_has_a_client_span_for_each(era: Era, tmp_path: Path) -> None:
    away = Upstream(script={"prompts/list": failed(error={"code": -32603, "message": "no"})})
    async with everywhere(federation(tmp_path, {"github": Upstream(), "gitlab": away}), era) as at:
        if era == "session":
            await at.open()
        seen = Seen(at.world.app)
        await at.ask("prompts/list")
        (server,) = seen.spans("SERVER")
        listed = [span for span in seen.spans("CLIENT") if span.name == "prompts/list"]
        assert {facts(span)["sidecar.upstream"] for span in listed} == {"github", "gitlab"}
        assert {parent_of(span) for span in seen.spans("CLIENT")} == {below(server)}
        errors = {facts(span)["sidecar.upstream"]: facts(span).get("error.type") for span in listed}
        assert errors == {"github": None, "gitlab": "-32603"}
        await at.call("github__search_code", ARGUMENTS)
        assert facts(seen.server())["gen_ai.tool.name"] == "search_code"
        assert facts(seen.server())["sidecar.upstream"] == "github"


ECHO = """\
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    method, params = message["method"], message.get("params", {})
    if "id" not in message:
        continue
    result = {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}
    if method == "initialize":
        result = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "echo", "version": "1"}}
    elif method == "tools/call":
        result = {"content": [{"type": "text", "text": json.dumps(params["_meta"])}]}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""


async def test_a_program_gets_the_context_in_meta(tmp_path: Path) -> None:
    (tmp_path / "echo.py").write_text(ECHO)
    program = f"command: {sys.executable}, args: [-I, -S, {tmp_path / 'echo.py'}]"
    rules = "p, nhi:planner, tool:github/*, use, -, -, -, allow\n"
    async with world(tmp_path / "here", program=program, rules=rules) as running:
        seen = Seen(running.app)
        _, body, _ = await Talk(running, "session").call("echo")
        assert json.loads(body["result"]["content"][0]["text"])["traceparent"] == context(seen.client())
        assert facts(seen.client())["network.transport"] == "pipe"
        assert "server.address" not in facts(seen.client())


@pytest.mark.parametrize(("version", "binding"), SPOKEN)
async def test_an_agent_is_invoked(version: Version, binding: Binding, tmp_path: Path) -> None:
    async with agent_world(tmp_path) as running:
        seen = Seen(running.app)
        for action in ("message/send", "message/stream"):
            await ask(running, version, binding, action, {"message": HELLO})
        await ask(running, version, binding, "tasks/get", {"id": "t1"})
        assert seen.names("SERVER") == seen.names("CLIENT") == ["invoke_agent researcher"] * 2 + ["GetTask"]
        server, client = seen.spans("SERVER")[0], seen.spans("CLIENT")[0]
        for span in (server, client):
            assert facts(span)["gen_ai.operation.name"] == "invoke_agent"
            assert facts(span)["gen_ai.agent.name"] == "researcher"
            assert facts(span)["gen_ai.agent.id"] == "nhi:researcher"
            assert facts(span)["rpc.method"] == "SendMessage"
        assert facts(server).get("rpc.system.name") == (None if binding == "http_json" else binding)
        sent, message = running.agent.seen[0]
        assert sent["traceparent"] == context(client)
        assert parent_of(client) == below(server)
        assert "_meta" not in json.dumps(message)
        assert "hello" not in repr([span.to_json() for span in seen.spans()])


async def test_an_agents_error_is_that_of_both_spans(tmp_path: Path) -> None:
    no = No({"code": -32004, "message": "no"})
    async with agent_world(tmp_path, saying(SendMessage=no)) as running:
        seen = Seen(running.app)
        await ask(running, "1.0", "jsonrpc", "message/send", {"message": HELLO})
        for span in (seen.server(), seen.client()):
            assert (facts(span)["error.type"], facts(span)["rpc.response.status_code"]) == ("-32004", "-32004")
        await ask(running, "1.0", "jsonrpc", "message/send", {"message": HELLO}, who={})
        assert facts(seen.server())["error.type"] == "unauthenticated"


async def test_what_the_task_api_sends_later_is_linked_to_the_request(tmp_path: Path) -> None:
    agent = busy("TASK_STATE_SUBMITTED", WORKING, DONE)
    async with agent_world(tmp_path, agent, settings=QUICK) as running:
        seen = Seen(running.app)
        _, made = await call_task(running, "POST", body=ORDER)
        await ended(running, made["task_id"])
        created = seen.spans("SERVER")[0]
        sent = [span for span in seen.spans("CLIENT") if span.name in ("invoke_agent researcher", "GetTask")]
        assert sent[0].name == "invoke_agent researcher" and len(sent) >= 3
        for span in sent:
            assert span.parent is None
            assert [format_span_id(link.context.span_id) for link in span.links] == [below(created)]
        heard = {headers.get("traceparent") for headers, message in agent.seen if message["method"] == "SendMessage"}
        assert heard == {context(sent[0])}
        mine = {record["trace_id"] for record in running.records() if record["task_id"] == made["task_id"]}
        assert context(created).split("-")[1] in mine


async def test_a_decision_for_another_has_no_client_span(tmp_path: Path) -> None:
    async with asked_world(tmp_path) as (running, keys):
        seen = Seen(running.app)
        sent = {"X-Original-URI": "/mcp/github", "X-Original-Method": "POST", "X-API-Key": keys["nhi:planner"]}
        around = {**sent, **KEY, "traceparent": WELL_FORMED}
        async with running.http.get(f"{running.admin_url}/auth/nginx", headers=around) as response:
            assert response.status == 200
        assert seen.names() == ["auth_request enter"]
        assert (parent_of(seen.server()), facts(seen.server())["sidecar.enforcement_point"]) == (PARENT, "edge")
        assert "mcp.method.name" not in facts(seen.server())


async def test_exemplars_name_the_trace_where_openmetrics_is_accepted(tmp_path: Path) -> None:
    async with world(tmp_path) as running:
        Seen(running.app)
        await Talk(running, "stateless", {"traceparent": WELL_FORMED}).call("search_code", ARGUMENTS)
        sent = {"Accept": "application/openmetrics-text; version=1.0.0"}
        async with running.http.get(f"{running.admin_url}/metrics", headers=sent) as response:
            text = await response.text()
        (line,) = [line for line in text.splitlines() if " # {" in line]
        assert line.startswith('sidecar_request_duration_seconds_bucket{le="')
        assert '# {span_id="' in line and f'trace_id="{TRACE}"' in line
        assert " # {" not in await running.metrics()


async def test_durations_are_measured_without_traces_and_the_context_is_passed_on(tmp_path: Path) -> None:
    """`OTEL_TRACES_EXPORTER=none`."""
    async with world(tmp_path) as running:
        seen = Seen(running.app)
        assert running.app.live.tracing is not None
        running.app.live.tracing.tracer = NoOpTracerProvider().get_tracer("tests")
        await Talk(running, "stateless", {"traceparent": WELL_FORMED}).call("search_code", ARGUMENTS)
        assert seen.names() == []
        sent, message = running.upstream.seen[-1]
        assert sent["traceparent"] == message["params"]["_meta"]["traceparent"] == WELL_FORMED
        assert [seen.durations(side)["tools/call"].count for side in ("server", "client")] == [1, 1]
        assert seen.durations("server")["tools/call"].attributes["mcp.protocol.version"] == STATELESS
        assert running.ends()[-1]["trace_id"] == TRACE


SAYS = "  says: {executable: sh, args: [-c, 'echo $TRACEPARENT $TRACESTATE'], envs: {TRACEPARENT: operators}}\n"


async def test_a_program_that_is_an_agent_gets_the_context_as_a_variable(tmp_path: Path) -> None:
    """Also without OpenTelemetry: then it is the caller's own."""
    async with sidecar(tmp_path, SAYS) as running:
        sent = {**ALICE, "traceparent": WELL_FORMED, "tracestate": "rojo=1"}
        (told,) = (await ask(running, "1.0", "jsonrpc", "message/send", {"message": HELLO}, sent, "says")).results
        assert output_of(told["task"]).split() == [WELL_FORMED, "rojo=1"]
        seen = Seen(running.app)
        (told,) = (await ask(running, "1.0", "jsonrpc", "message/send", {"message": HELLO}, sent, "says")).results
        assert output_of(told["task"]).split() == [context(seen.client()), "rojo=1"]
        assert facts(seen.client())["network.transport"] == "pipe"

"""Does a hostile caller or a lying agent find a way in at the wires: bytes, forms, paths, streams that stand still?"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import cycle, product
from pathlib import Path
from typing import Any

import grpc
import pytest
from aiohttp import web
from grpc import aio
from yarl import URL

from sidecar.errors import Refusal
from sidecar.protocols.a2a.errors import AgentError
from sidecar.protocols.a2a.operations import SEND as OPERATION, STREAM, Binding, Version
from sidecar.protocols.a2a.wire import WIRES
from sidecar.upstreams.agents import OutgoingOperation, grpc_transport
from sidecar.upstreams.credentials.source import NO_CREDENTIAL
from tests.a2a.world import ALICE, BOB, HELLO, SPOKEN, AgentWorld, No, ScriptedAgent, agent_world, ask, task, write
from tests.flow.world import until

SEND = {"message": HELLO}
METADATA = tuple((name.lower(), value) for name, value in ALICE.items())
METHOD = "/lf.a2a.v1.A2AService/"
WORKING = {"task": task(state="TASK_STATE_WORKING")}
TYPE = "type.googleapis.com/google.rpc.ErrorInfo"


def channel(world: AgentWorld) -> aio.Channel:
    """To the port that is for every agent."""
    return aio.insecure_channel(f"127.0.0.1:{world.app.grpc_ports['']}")


async def told(world: AgentWorld, body: bytes, metadata: Any = METADATA) -> tuple[str, str]:
    """The status of a call, and its sentence."""
    async with channel(world) as to:
        try:
            await to.unary_unary(METHOD + "SendMessage")(body, metadata=metadata)  # type: ignore[misc]
        except aio.AioRpcError as error:
            return error.code().name, error.details() or ""
    return "OK", ""


def sized(key: bytes, data: bytes) -> bytes:
    """A field of Protocol Buffers that holds these bytes, of which there are many."""
    size = len(data)
    return key + bytes([size & 127 | 128, size >> 7 & 127 | 128, size >> 14]) + data


MANY_PARTS = sized(b"\x12", b"\x2a\x00" * 130_000)  # small as bytes, and large as everything else


async def test_what_is_much_in_few_bytes_is_counted_and_not_read(tmp_path: Path) -> None:
    much = "The call is malformed: / has more than 40000 values"
    async with agent_world(tmp_path) as world:
        assert (await told(world, MANY_PARTS, ()))[0] == "UNAUTHENTICATED"
        assert await told(world, MANY_PARTS) == ("INVALID_ARGUMENT", much)
        assert world.ends()[-1]["reason"] == "malformed-call" and world.agent.seen == []


async def test_strangers_refused_too_often_hear_nothing_and_others_on_their_connection_do(tmp_path: Path) -> None:
    """One connection of HTTP/2 may carry the calls of many: it stays, the call ends without a word or a record."""
    async with agent_world(tmp_path, settings="refusals: {per_peer_per_minute: 2}\n") as world, channel(world) as to:
        method: Any = to.unary_unary(METHOD + "SendMessage")
        body = WIRES["1.0"].encode(OPERATION.request, SEND)
        codes = []
        for _ in range(5):
            with pytest.raises(aio.AioRpcError) as error:
                await method(body)
            codes.append((error.value.code().name, bool(error.value.details())))
        assert codes == [("UNAUTHENTICATED", True)] * 2 + [("CANCELLED", False)] * 3
        await method(body, metadata=METADATA)
        assert [one["reason"] for one in world.ends()] == ["unauthenticated"] * 2 + [None]


class _Everything(grpc.GenericRpcHandler):
    def __init__(self, handler: Any) -> None:
        self.handler = grpc.stream_stream_rpc_method_handler(handler)

    def service(self, _: Any) -> Any:
        return self.handler


@asynccontextmanager
async def before_grpc(folder: Path, handler: Any, *options: tuple[str, int]) -> AsyncIterator[AgentWorld]:
    """A sidecar before an agent of gRPC that does the same for every method."""
    server = aio.server(options=options)
    server.add_generic_rpc_handlers((_Everything(handler),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with agent_world(folder) as world:
            write(folder, f"grpc://127.0.0.1:{port}")
            await world.app.reload("the test")
            yield world
    finally:
        await server.stop(0)


@pytest.mark.parametrize("said", [sized(b"\x0a", b"\x0a\x01t" + b"\x2a\x00" * 210_000), None], ids=["much", "nothing"])
async def test_an_agent_that_says_much_in_few_bytes_or_nothing_is_refused(said: bytes | None, tmp_path: Path) -> None:
    async def answer(_: Any, context: Any) -> None:
        if said is not None:
            await context.write(said)

    async with before_grpc(tmp_path, answer) as world:
        answered = await ask(world, "1.0", "jsonrpc", "message/send", SEND)
        assert (answered.status, answered.reason) == (502, "response-refused")


async def test_what_each_caller_can_cause_closes_no_agent_of_grpc(tmp_path: Path) -> None:
    codes = cycle((grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.ABORTED))

    async def answer(_: Any, context: Any) -> None:
        await context.abort(next(codes), "not you")

    async with before_grpc(tmp_path, answer) as world:
        for action in ("message/send", "message/stream") * 6:
            assert (await ask(world, "1.0", "jsonrpc", action, SEND)).reason == "upstream-failed"


async def test_no_call_to_an_agent_waits_behind_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent takes so many at once on one connection, and whoever comes then waits for one of them to end."""
    monkeypatch.setattr(grpc_transport, "STREAMS_EACH", 2)
    begun: list[Any] = []

    async def answer(_: Any, context: Any) -> None:
        begun.append(context)
        number = len(begun)
        await context.write(WIRES["1.0"].encode("StreamResponse", {"task": task(f"t{number}", f"c{number}")}))
        if number <= 5:
            await asyncio.Event().wait()

    async with before_grpc(tmp_path, answer, ("grpc.max_concurrent_streams", 2)) as world:
        streams = [asyncio.create_task(ask(world, "1.0", "jsonrpc", "message/stream", SEND)) for _ in range(5)]
        await until(lambda: len(begun) == 5)
        for action in ("message/send", "message/stream"):
            assert (await ask(world, "1.0", "jsonrpc", action, SEND)).error is None
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)


async def test_a_stream_of_an_agent_of_grpc_that_is_cut_off_is_recorded_and_told_as_that(tmp_path: Path) -> None:
    async def answer(_: Any, context: Any) -> None:
        await context.write(WIRES["1.0"].encode("StreamResponse", WORKING))
        await asyncio.Event().wait()

    async with before_grpc(tmp_path, answer) as world:
        forwarder = world.app.pipeline.forwarder
        streams = [asyncio.create_task(ask(world, *way, "message/stream", SEND)) for way in SPOKEN]
        await until(lambda: len(forwarder.streams) == len(streams))
        (tmp_path / "policies" / "user_to_nhi.csv").write_text("p, user:bob, nhi:researcher, use, -, -, -, allow\n")
        await world.app.reload("the test")
        await forwarder.oversight.look()
        assert {answered.reason for answered in await asyncio.gather(*streams)} == {"no-matching-rule"}
        assert [end["reason"] for end in world.ends()] == ["no-matching-rule"] * len(streams)


@pytest.mark.parametrize("header", ["", "X-Foo!"])
async def test_what_grpc_does_not_take_is_no_bug(header: str) -> None:
    """A connection that is closed already, and a header that HTTP has and gRPC has not."""
    headers = ((header, "a"),) if header else ()
    wire = grpc_transport.GrpcAgent(
        "grpc://127.0.0.1:1", lambda: "1.0", credential=NO_CREDENTIAL, headers=headers, max_response_bytes=1000
    )
    sent, streamed = OutgoingOperation(OPERATION, SEND, None, 1.0), OutgoingOperation(STREAM, SEND, None, 1.0)
    if not header:
        heard = await wire.listen(streamed)
        assert not isinstance(heard, AgentError)
        heard.close()
        with pytest.raises(Refusal):
            await wire.ask(sent)
        await wire.close()
        with pytest.raises(Refusal, match="upstream-failed"):
            await wire.listen(streamed)
    with pytest.raises(Refusal, match="upstream-failed"):
        await wire.ask(sent)
    await wire.close()


@dataclass
class Declining(ScriptedAgent):
    """Says no in words that A2A has none of, but of one that it has."""

    statuses: Iterator[int] = field(default_factory=lambda: cycle((302, 401, 403, 413)))
    own: bool = False

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if not self.own:
            return web.Response(status=next(self.statuses), text="not you")
        info = {"@type": TYPE, "reason": "INTERNAL_ERROR", "domain": "a2a-protocol.org"}
        error = {"code": 500, "status": "INTERNAL", "message": "I choked on it", "details": [info]}
        return web.json_response({"error": error}, status=500)


@dataclass
class Limiting(ScriptedAgent):
    """Answers 429 or 503 with a time, in A2A's words or in none."""

    code: int = 429
    words: bool = True

    async def handle(self, request: web.Request) -> web.StreamResponse:
        wait = {"Retry-After": "17"}
        if not self.words:
            return web.Response(status=self.code, text="no", headers=wait)
        error: dict[str, Any] = {"code": self.code, "message": f"ask {request.host} later"}
        body: dict[str, Any] = {"error": error}
        if request.path.endswith("/"):
            body |= {"jsonrpc": "2.0", "id": (await request.json())["id"]}
        return web.json_response(body, status=self.code, headers=wait)


@pytest.mark.parametrize("binding", ["jsonrpc", "http_json"])
async def test_a_limit_of_an_agent_reaches_its_caller_with_its_time(binding: str, tmp_path: Path) -> None:
    agent = Limiting()
    async with agent_world(tmp_path, agent, a2a=f"binding: {binding}") as world:
        methods = ("SendMessage", "SendStreamingMessage")
        for agent.code, agent.words, method in product((429, 503), (True, False), methods):
            message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": SEND}
            headers = {**ALICE, "A2A-Version": "1.0"}
            async with world.http.post(f"{world.url}/agents/researcher/", json=message, headers=headers) as response:
                said = await response.text()
            assert (response.status, response.headers["Retry-After"]) == (agent.code, "17"), said
            assert ("upstream-limited" if agent.code == 429 else "upstream-failed") in said
            assert ("ask (the agent) later" in said) == agent.words
        assert world.app.live.current.agents["researcher"].account.breaker.in_a_row == 4


@pytest.mark.parametrize("binding", ["jsonrpc", "http_json"])
async def test_what_each_caller_can_cause_closes_no_agent_of_http(binding: str, tmp_path: Path) -> None:
    agent = Declining()
    async with agent_world(tmp_path, agent, a2a=f"binding: {binding}") as world:
        for action in ("message/send", "message/stream") * 6:
            assert (await ask(world, "1.0", "jsonrpc", action, SEND)).reason == "upstream-failed"
        agent.own = binding == "http_json"
        for _ in range(12 * agent.own):
            answered = await ask(world, "1.0", "jsonrpc", "message/send", SEND)
            assert answered.error is not None
            assert (answered.error["code"], answered.error["message"]) == (-32603, "I choked on it")


async def test_what_the_form_of_the_caller_cannot_say_is_the_agents_doing_and_no_bug(tmp_path: Path) -> None:
    deep: dict[str, Any] = {}
    for _ in range(80):
        deep = {"a": deep}
    empty = {"artifactId": "a", "parts": [{}]}
    agent = ScriptedAgent()
    async with agent_world(tmp_path, agent) as world:
        cases: list[tuple[dict[str, Any], list[tuple[Version, Binding]]]] = [
            ({"artifacts": [empty]}, [("0.3", "jsonrpc"), ("0.3", "http_json"), ("0.3", "grpc")]),
            ({"metadata": deep}, [("1.0", "grpc"), ("0.3", "grpc")]),
        ]
        for more, spoken in cases:
            said = {"task": {**task(), **more}}
            agent.script["SendMessage"] = lambda *_, said=said: said
            agent.script["SendStreamingMessage"] = lambda *_, said=said: [WORKING, said]
            for (version, binding), action in product(spoken, ("message/send", "message/stream")):
                assert (await ask(world, version, binding, action, SEND)).reason == "response-refused"
        assert {end.get("reason") for end in world.ends()} == {"response-refused"}


async def test_an_odd_address_is_the_callers_fault(tmp_path: Path) -> None:
    old = ("/v1/tasks/%ff?A2A-Version=1.0", "/v1/tasks/%00?A2A-Version=1.0")
    async with agent_world(tmp_path) as world:
        for path in ("/tasks?status=%C2%B2", "/tasks?status=" + "9" * 5000, *old):
            headers = ALICE if path in old else {**ALICE, "A2A-Version": "1.0"}
            url = URL(f"{world.url}/agents/researcher{path}", encoded=True)
            async with world.http.get(url, headers=headers) as response:
                assert response.status == 400, path


async def test_an_agents_no_of_an_odd_make_is_told_as_its_no(tmp_path: Path) -> None:
    agent = ScriptedAgent()
    infos = [
        {"@type": TYPE, "reason": "TASK_NOT_FOUND", "domain": "a2a-protocol.org", "metadata": ["no map"]},
        {"@type": TYPE, "reason": "TASK_NOT_FOUND", "domain": "a2a-protocol.org", "metadata": {"x": "y" * 30_000}},
        {"@type": TYPE, "reason": ["no text"]},
    ]
    async with agent_world(tmp_path, agent) as world:
        for info in infos:
            no = No({"code": -32001, "message": "é" * 2000, "data": [info]})
            agent.script["SendMessage"] = lambda *_, no=no: no
            for version, binding in SPOKEN:
                answered = await ask(world, version, binding, "message/send", SEND)
                assert answered.error and answered.error["code"] in (-32001, 404, "NOT_FOUND")
        agent.script["SendMessage"] = lambda *_: No({"code": True, "message": "x"})
        assert (await ask(world, "1.0", "jsonrpc", "message/send", SEND)).reason == "response-refused"


async def test_a_name_that_leads_elsewhere_does_not_reach_an_agent_that_is_addressed_by_path(tmp_path: Path) -> None:
    async with agent_world(tmp_path, a2a="binding: http_json") as world:
        sends = [("message/send", {"tenant": name, **SEND}) for name in ("..", "../other", "a/../..", "..\\other", ".")]
        for action, params in (*sends, ("tasks/get", {"id": "."}), ("tasks/get", {"id": ".."})):
            answered = await ask(world, "1.0", "jsonrpc", action, params)
            assert answered.error is not None and answered.error["code"] == -32602, params
        assert {end["reason"] for end in world.ends()} == {"malformed-call"} and world.agent.seen == []


async def test_an_answer_to_another_request_is_unidentified(tmp_path: Path) -> None:
    async def answer(number: Any) -> web.Response:
        return web.json_response({"jsonrpc": "2.0", "id": number, "result": WORKING})

    agent = ScriptedAgent()
    async with agent_world(tmp_path, agent) as world:
        agent.script["SendMessage"] = lambda *_: answer(99)
        assert (await ask(world, "1.0", "jsonrpc", "message/send", SEND)).reason == "response-refused"
        agent.script["SendMessage"] = lambda *_: answer(None)
        assert (await ask(world, "1.0", "jsonrpc", "message/send", SEND)).error is None


@dataclass
class Beating(ScriptedAgent):
    """Answers in a stream, whose first events are of other types. `ending` is the last event; else it is a task."""

    ending: str = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        number = (await request.json()).get("id") if "json" in request.content_type else None
        said = WORKING if number is None else {"jsonrpc": "2.0", "id": number, "result": WORKING, "error": None}
        last = self.ending.replace("NUMBER", str(number)) or f"data: {json.dumps(said)}\n\n"
        beats = 'event: ping\ndata: {}\n\nevent: heartbeat\ndata: now\n\nevent: error\ndata: {"message": "busy"}\n\n'
        return web.Response(text=beats + last, content_type="text/event-stream")


@pytest.mark.parametrize("binding", ["jsonrpc", "http_json"])
async def test_events_of_other_types_are_passed_over_but_no_error_that_answers(binding: str, tmp_path: Path) -> None:
    agent = Beating()
    async with agent_world(tmp_path, agent, a2a=f"binding: {binding}") as world:
        answered = await ask(world, "1.0", "jsonrpc", "message/stream", SEND)
        assert (answered.error, list(answered.results)) == (None, [WORKING])
        if binding == "jsonrpc":
            error = {"jsonrpc": "2.0", "id": "NUMBER", "error": {"code": -32603, "message": "I choked on it"}}
            agent.ending = f"event: error\ndata: {json.dumps(error)}\n\n"
            answered = await ask(world, "1.0", "jsonrpc", "message/stream", SEND)
            assert answered.error is not None and answered.error["message"] == "I choked on it"


async def test_no_name_ends_for_the_agent_where_it_goes_on_for_us(tmp_path: Path) -> None:
    async with agent_world(tmp_path) as world:
        assert (await ask(world, "1.0", "jsonrpc", "message/send", {"message": {**HELLO, "contextId": "c"}})).results
        for version, binding in SPOKEN:
            for said in ({"contextId": "c\0"}, {"parts": [{"text": "a\0"}]}, {"metadata": {"a": [{"\0": 1}]}}):
                answered = await ask(world, version, binding, "message/send", {"message": {**HELLO, **said}})
                assert answered.error is not None and answered.reason == "malformed-call"
        assert (await ask(world, "1.0", "http_json", "tasks/list", {"contextId": "c\0"})).reason == "malformed-call"
        raw = {"message": {**HELLO, "parts": [{"raw": "AAAA"}]}}
        assert (await ask(world, "1.0", "grpc", "message/send", raw)).error is None, "bytes may be any"
        assert len(world.agent.seen) == 2


async def test_one_message_asks_for_one_skill(tmp_path: Path) -> None:
    rules = {"user_to_nhi": "p, user:alice, nhi:researcher, message/send, -, -, call.tool == 'search', allow\n"}
    both = {"message": {**HELLO, "metadata": {"task_type": "write"}}, "metadata": {"task_type": "search"}}
    async with agent_world(tmp_path, rules=rules) as world:
        for version, binding in SPOKEN:
            answered = await ask(world, version, binding, "message/send", both)
            assert answered.error is not None and answered.reason == "malformed-call"
        assert world.agent.seen == []
        both["message"]["metadata"]["task_type"] = "search"
        assert (await ask(world, "1.0", "jsonrpc", "message/send", both)).error is None


async def test_rules_and_evidence_see_the_tenant_that_the_agent_hears(tmp_path: Path) -> None:
    rules = {"user_to_nhi": "p, user:alice, nhi:researcher, use, -, -, args.tenant == 'one', allow\n"}
    async with agent_world(tmp_path, rules=rules) as world:
        for version, binding in (("1.0", "jsonrpc"), ("1.0", "http_json")):
            for tenant, told in (({"tenant": "one"}, None), ({"tenant": "two"}, 403), ({}, 403)):
                answered = await ask(world, version, binding, "message/send", {**SEND, **tenant})
                assert (answered.status if answered.error else None) == told
        assert [message["params"]["tenant"] for _, message in world.agent.seen] == ["one", "one"]
        assert len({decision["args_hash"] for decision in world.records() if decision.get("args_hash")}) == 3


async def test_a_push_configuration_inside_a_send_names_no_task_of_anothers(tmp_path: Path) -> None:
    async with agent_world(tmp_path) as world:
        await ask(world, "1.0", "jsonrpc", "message/send", SEND, BOB)
        push = {"taskId": "t1", "url": "http://127.0.0.1:9/hook"}
        smuggled = {**SEND, "configuration": {"taskPushNotificationConfig": push}}
        for action in ("message/send", "message/stream"):
            answered = await ask(world, "1.0", "jsonrpc", action, smuggled)
            assert answered.error is not None and answered.error["code"] == -32001
        assert len(world.agent.seen) == 1


class Talking(ScriptedAgent):
    """Answers with events without end."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        event = {"jsonrpc": "2.0", "result": {"task": {**task(), "metadata": {"x": "y" * 50_000}}}}
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await stream.prepare(request)
        while True:
            await stream.write(f"data: {json.dumps(event)}\n\n".encode())


async def test_a_reader_of_grpc_who_leaves_in_the_midst_of_a_message_is_no_bug(tmp_path: Path) -> None:
    body = WIRES["1.0"].encode("SendMessageRequest", SEND)
    async with agent_world(tmp_path, Talking()) as world:
        async with channel(world) as to:
            method: Any = to.unary_stream(METHOD + "SendStreamingMessage")
            for left in range(1, 6):
                call = method(body, metadata=METADATA)
                await call.read()
                call.cancel()
                await until(lambda left=left: len(world.ends()) >= left)  # type: ignore[misc]
        # Whoever leaves is seen in the midst of a message or between two of them.
        assert {end.get("reason") for end in world.ends()} <= {"caller-gone", None}

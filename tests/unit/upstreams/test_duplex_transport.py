"""Does everything that comes over one line reach whom it is meant for, and nobody else?"""

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from sidecar.errors import Reason, Refusal
from sidecar.protocols.jsonrpc import Notification, Request, Response
from sidecar.upstreams.mcp.duplex_transport import MAX_ASKED, MAX_NOISE, DuplexTransport
from sidecar.upstreams.mcp.transport import SESSION_ID, BuiltUpstream
from tests.unit.upstreams.lines import (
    INITIALIZED,
    META,
    STATELESS,
    Line,
    body,
    call,
    events,
    get,
    initialize,
    notification,
    post,
)


class Far:
    """A channel and the far end of its line; `session` is the one that has begun on it."""

    def __init__(self, *, shared: bool = False) -> None:
        self.line = Line()
        self.lost: list[DuplexTransport] = []
        self.channel = DuplexTransport(self.line, self.lost.append, shared=shared)
        self.session = ""

    def ask(self, request: Request, session: str | None = None, **more: Any) -> asyncio.Task[BuiltUpstream]:
        return asyncio.create_task(self.channel.exchange(post(request, session or self.session or None, **more)))

    async def begin(self) -> str:
        asked = self.ask(initialize())
        heard = await self.line.hears("initialize")
        self.line.says({"id": heard["id"], "result": INITIALIZED})
        answer = await asked
        assert (await body(answer))["id"] == 0
        self.session = answer.headers[SESSION_ID]
        return self.session


@pytest_asyncio.fixture
async def far() -> AsyncIterator[Far]:
    """A line with one session."""
    far = Far()
    await far.begin()
    yield far
    await far.channel.close()


@pytest_asyncio.fixture
async def stateless() -> AsyncIterator[Far]:
    far = Far()
    yield far
    await far.channel.close()


async def test_an_answer_that_comes_first_is_whole_and_bears_the_callers_id(far: Far) -> None:
    asked = far.ask(call(id="mine"))
    heard = await far.line.hears("tools/call")
    assert heard["id"] != "mine"
    far.line.says({"id": heard["id"], "result": {"content": []}})
    answer = await asked
    assert (answer.status, await body(answer)) == (200, {"jsonrpc": "2.0", "id": "mine", "result": {"content": []}})


async def test_the_same_id_twice_at_once_meets_two_answers(far: Far) -> None:
    asked = [far.ask(call(id=7)), far.ask(call(id=7))]
    first, second = await far.line.hears("tools/call"), await far.line.hears("tools/call")
    far.line.says({"id": second["id"], "result": {"n": 2}})
    far.line.says({"id": first["id"], "result": {"n": 1}})
    assert [(await body(await one))["result"]["n"] for one in asked] == [1, 2]


async def test_progress_goes_to_the_request_whose_token_it_bears(far: Far) -> None:
    asked = [far.ask(call(id=1, progressToken="p")), far.ask(call(id=2, progressToken="p"))]
    first, second = await far.line.hears("tools/call"), await far.line.hears("tools/call")
    for heard in (first, second):
        token = heard["params"]["_meta"]["progressToken"]
        assert token == heard["id"]
        progress = {"progressToken": token, "progress": heard["id"]}
        far.line.says({"method": "notifications/progress", "params": progress})
        far.line.says({"id": heard["id"], "result": {}})
    for task, heard in zip(asked, (first, second), strict=True):
        progress, answer = await events(await task, 2)
        assert progress["params"] == {"progressToken": "p", "progress": heard["id"]}
        assert answer["result"] == {}


async def test_progress_that_nobody_asked_for_and_an_answer_with_no_id_of_ours_reach_nobody(far: Far) -> None:
    asked = far.ask(call())
    heard = await far.line.hears("tools/call")
    for token in ("p", 1, 999, None, [1]):
        far.line.says({"method": "notifications/progress", "params": {"progressToken": token, "progress": 1}})
    for id in (str(heard["id"]), float(heard["id"]), True, None, [2], {}, 10**6):
        far.line.says({"id": id, "result": {"stray": True}})
    far.line.says({"id": heard["id"], "result": {}})
    assert (await body(await asked))["result"] == {}


async def test_who_stops_waiting_is_cancelled_there(far: Far) -> None:
    for leave in ("time is up", "left", "stream closed"):
        asked = far.ask(call(progressToken=1), deadline_s=0.05 if leave == "time is up" else 5)
        heard = await far.line.hears("tools/call")
        if leave == "left":
            asked.cancel()
        elif leave == "stream closed":
            token = heard["params"]["_meta"]["progressToken"]
            far.line.says({"method": "notifications/progress", "params": {"progressToken": token, "progress": 1}})
            (await asked).close()
        await asyncio.wait({asked})
        cancelled = await far.line.hears("notifications/cancelled")
        assert cancelled["params"]["requestId"] == heard["id"]
        assert not far.channel.busy


async def test_a_client_cancels_by_its_own_id(far: Far) -> None:
    asked = far.ask(call(id="mine"))
    heard = await far.line.hears("tools/call")
    cancel = Notification("notifications/cancelled", {"requestId": "mine", "reason": "enough"})
    assert (await far.channel.exchange(post(cancel, far.session))).status == 202
    cancelled = await far.line.hears("notifications/cancelled")
    assert cancelled["params"] == {"requestId": heard["id"], "reason": "enough"}
    asked.cancel()


async def test_a_question_to_the_client_comes_with_our_number_and_its_answer_goes_back_to_the_servers(far: Far) -> None:
    asked = far.ask(call())
    heard = await far.line.hears("tools/call")
    far.line.says({"id": "theirs", "method": "elicitation/create", "params": {"message": "?"}})
    stream = (await asked).chunks()
    question = json.loads((await anext(stream)).partition(b"data: ")[2])
    assert question["method"] == "elicitation/create" and question["id"] != "theirs"
    reply = Response(question["id"], {"action": "accept"})
    assert (await far.channel.exchange(post(reply, far.session))).status == 202
    assert await far.line.hears() == {"jsonrpc": "2.0", "id": "theirs", "result": {"action": "accept"}}
    assert (await far.channel.exchange(post(reply, far.session))).status == 202  # once
    far.line.says({"id": heard["id"], "result": {}})
    assert b'"result":{}' in await anext(stream)
    assert far.line.heard.empty()


async def test_what_concerns_no_request_waits_for_the_sessions_stream(far: Far) -> None:
    changed = {"method": "notifications/tools/list_changed"}
    for _ in range(3):
        far.line.says(changed)
    far.line.says({"method": "notifications/message", "params": {"level": "info", "data": "x"}})
    far.line.says({"id": 5, "method": "roots/list"})
    await asyncio.sleep(0.01)
    stream = await far.channel.exchange(get(far.session))
    found = await events(stream, 3)
    assert [event["method"] for event in found] == [changed["method"], "notifications/message", "roots/list"]


async def test_a_ping_of_the_server_is_answered_here_and_a_log_line_goes_to_the_request_in_flight(far: Far) -> None:
    far.line.says({"id": "p", "method": "ping"})
    assert await far.line.hears() == {"jsonrpc": "2.0", "id": "p", "result": {}}
    asked = far.ask(call())
    heard = await far.line.hears("tools/call")
    far.line.says({"method": "notifications/message", "params": {"level": "info", "data": "x"}})
    far.line.says({"id": heard["id"], "result": {}})
    assert [event.get("method") for event in await events(await asked, 2)] == ["notifications/message", None]


async def test_questions_that_nobody_answers_do_not_pile_up(far: Far) -> None:
    for number in range(MAX_ASKED + 3):
        far.line.says({"id": f"q{number}", "method": "roots/list"})
    assert [(await far.line.hears())["id"] for _ in range(3)] == ["q0", "q1", "q2"]


async def test_when_the_line_breaks_everybody_hears_so_at_once(far: Far) -> None:
    asked = [far.ask(call(id=number)) for number in range(3)]
    stream = await far.channel.exchange(get(far.session))
    for _ in asked:
        await far.line.hears("tools/call")
    far.line.breaks(Refusal(Reason.UPSTREAM_FAILED, "it ended with signal 11"))
    async with asyncio.timeout(1):
        results = await asyncio.gather(*asked, return_exceptions=True)
        assert [chunk async for chunk in stream.chunks()] == []
    assert {str(result) for result in results} == {str(Refusal(Reason.UPSTREAM_FAILED, "it ended with signal 11"))}
    assert far.lost == [far.channel]
    with pytest.raises(Refusal):
        await far.channel.exchange(post(call(), far.session))


async def test_a_line_that_breaks_while_a_call_is_sent_leaves_no_failure_without_a_reader(far: Far) -> None:
    unread: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unread.append(context))
    full = asyncio.Event()

    async def send(message: bytes, caller: object = None) -> None:
        await full.wait()
        raise Refusal(Reason.UPSTREAM_FAILED, "its program has closed its input")

    far.line.send = send
    asked = far.ask(call())
    await asyncio.sleep(0)
    far.line.breaks()
    while far.channel.failure is None:
        await asyncio.sleep(0)
    full.set()
    assert "closed its input" in str(await asyncio.gather(asked, return_exceptions=True))
    del asked
    await asyncio.sleep(0)
    gc.collect()
    assert not unread


async def test_noise_is_counted_and_too_much_of_it_ends_the_line(far: Far) -> None:
    asked = far.ask(call())
    heard = await far.line.hears("tools/call")
    for noise in (b"Server listening", b"", b"[]", b"7", b'{"a":', b"\xff\xfe"):
        far.line.says(noise)
    await asyncio.sleep(0.01)
    assert far.channel.noise == 6
    far.line.says({"id": heard["id"], "result": {}})
    await asked
    assert far.channel.noise == 0
    for _ in range(MAX_NOISE + 1):
        far.line.says(b"noise")
    async with asyncio.timeout(2):
        while far.channel.failure is None:
            await asyncio.sleep(0)
    assert far.channel.failure.reason is Reason.RESPONSE_REFUSED


async def test_a_session_that_is_not_there_is_404(far: Far) -> None:
    for outbound in (post(call(), "another"), get("another")):
        assert (await far.channel.exchange(outbound)).status == 404
    far.channel.end_session(far.session)
    assert (await far.channel.exchange(post(call(), far.session))).status == 404


async def test_an_initialize_that_was_given_up_takes_its_line_along() -> None:
    far = Far()
    asked = far.ask(initialize(), deadline_s=0.02)
    with pytest.raises(Refusal):
        await asked
    assert far.lost == [far.channel]
    await far.channel.close()


@pytest.mark.parametrize("shared", [False, True])
async def test_a_message_about_an_initialize_does_not_come_before_its_answer(shared: bool) -> None:
    far = Far(shared=shared)
    begins = initialize()
    asked = far.ask(begins._replace(params={**begins.params, "_meta": {"progressToken": "p"}}))
    number = (await far.line.hears("initialize"))["id"]
    far.line.says({"method": "notifications/progress", "params": {"progressToken": number, "progress": 1}})
    far.line.says({"method": "x", "params": {"_meta": {"io.modelcontextprotocol/subscriptionId": number}}})
    far.line.says({"id": number, "result": INITIALIZED})
    answer = await asked
    assert answer.headers[SESSION_ID] and (await body(answer))["id"] == 0
    await far.channel.close()


# --- without a session: MCP 2026-07-28 --------------------------------------------------------------------------------


async def test_a_subscription_bears_the_callers_id_both_ways(stateless: Far) -> None:
    listen = Request("sub", "subscriptions/listen", {"notifications": {}, "_meta": META})
    asked = stateless.ask(listen, version=STATELESS)
    heard = await stateless.line.hears("subscriptions/listen")
    named = {"_meta": {"io.modelcontextprotocol/subscriptionId": heard["id"]}}
    stateless.line.says({"method": "notifications/subscriptions/acknowledged", "params": named})
    stateless.line.says({"method": "notifications/tools/list_changed", "params": named})
    stateless.line.says({"method": "notifications/tools/list_changed"})  # of no subscription: nobody's
    stateless.line.says({"id": heard["id"], "result": named})
    found = await events(await asked, 3)
    methods = ["notifications/subscriptions/acknowledged", "notifications/tools/list_changed", None]
    assert [event.get("method") for event in found] == methods
    theirs = {"io.modelcontextprotocol/subscriptionId": "sub"}
    assert [(event.get("params") or event["result"])["_meta"] for event in found] == [theirs] * 3


async def test_an_error_has_the_status_that_it_has_over_http(stateless: Far) -> None:
    for code, status in ((-32601, 404), (-32022, 400), (-32602, 200), (-32603, 200)):
        asked = stateless.ask(Request(1, "x", {"_meta": META}), version=STATELESS)
        heard = await stateless.line.hears("x")
        stateless.line.says({"id": heard["id"], "error": {"code": code, "message": "no"}})
        assert (await asked).status == status


async def test_without_a_session_nobody_can_be_asked(stateless: Far) -> None:
    stateless.line.says({"id": "q", "method": "sampling/createMessage", "params": {}})
    assert (await stateless.line.hears())["error"]["code"] == -32601


# --- shared -----------------------------------------------------------------------------------------------------------


async def test_a_shared_server_is_greeted_once_by_us_and_tells_nobody_what_is_not_theirs() -> None:
    far = Far(shared=True)
    asked = [far.ask(initialize(id=number)) for number in (1, 2)]
    heard = await far.line.hears("initialize")
    assert heard["params"]["capabilities"] == {} and heard["params"]["clientInfo"]["name"] == "sidecar"
    far.line.says({"id": heard["id"], "result": INITIALIZED})
    answers = [await one for one in asked]
    ids = [answer.headers[SESSION_ID] for answer in answers]
    assert len(set(ids)) == 2
    for answer in answers:
        assert (await body(answer))["result"]["capabilities"] == {}
    await far.line.hears("notifications/initialized")
    await far.channel.exchange(post(notification("notifications/initialized"), ids[0]))
    far.line.says({"id": "q", "method": "sampling/createMessage", "params": {}})
    assert (await far.line.hears())["error"]["code"] == -32601

    asked = [far.ask(call(id=1), session) for session in ids]
    both = [await far.line.hears("tools/call") for _ in ids]
    far.line.says({"method": "notifications/message", "params": {"level": "info", "data": "secret of one"}})
    for number, heard in enumerate(both):
        far.line.says({"id": heard["id"], "result": {"n": number}})
    assert [(await body(await one))["result"]["n"] for one in asked] == [0, 1]
    await far.channel.close()


async def test_on_a_shared_line_an_update_reaches_who_subscribed_and_a_changed_list_everybody() -> None:
    far = Far(shared=True)
    one = asyncio.create_task(far.channel.exchange(post(initialize())))
    far.line.says({"id": (await far.line.hears("initialize"))["id"], "result": INITIALIZED})
    ids = [(await one).headers[SESSION_ID], (await far.channel.exchange(post(initialize()))).headers[SESSION_ID]]
    await far.line.hears("notifications/initialized")
    for session in ids:
        asked = far.ask(Request(1, "resources/subscribe", {"uri": "note://a"}), session)
        far.line.says({"id": (await far.line.hears("resources/subscribe"))["id"], "result": {}})
        await asked
    unsubscribe = Request(2, "resources/unsubscribe", {"uri": "note://a"})
    assert (await body(await far.ask(unsubscribe, ids[0])))["result"] == {}  # the other still wants it
    assert far.line.heard.empty()
    far.line.says({"method": "notifications/resources/updated", "params": {"uri": "note://a"}})
    far.line.says({"method": "notifications/prompts/list_changed"})
    await asyncio.sleep(0.01)
    streams = [await far.channel.exchange(get(session)) for session in ids]
    assert [event["method"] for event in await events(streams[0], 1)] == ["notifications/prompts/list_changed"]
    both = ["notifications/resources/updated", "notifications/prompts/list_changed"]
    assert [event["method"] for event in await events(streams[1], 2)] == both
    await far.channel.close()

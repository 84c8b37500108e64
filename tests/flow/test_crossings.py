"""Does every method and notification cross from one era to the other as the table says?

Each row of the table in docs/reference/mcp.md, in both directions, between a caller and a server that have no era in
common; then what the table cannot say: whose a held call is, how long it is held, and what becomes of what nobody comes
back for.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiohttp import web

from sidecar.errors import Reason
from sidecar.protocols.mcp import messages
from tests.flow.apart import META, OF_SESSION, SessionsOnly, StatelessOnly, said
from tests.flow.guests import ALICE, BOB, gateway
from tests.flow.streams import Ear, hearing
from tests.flow.talk import DECLARED, NAMED_BY, Talk, reason_of, talking
from tests.flow.world import PATIENCE_S, SESSION, STATELESS, World, request, stateless, until, world
from tests.tables import tables

RULES = """\
p, {who}, tool:github/*, use, -, -, -, allow
p, {who}, prompt:github/*, use, -, -, -, allow
p, {who}, resource:github/*, use, -, -, -, allow
p, {who}, nhi:github, sampling/createMessage|elicitation/create|roots/list, -, -, -, allow
"""
DOCS = Path(__file__).parents[2] / "docs/reference/mcp.md"
MANY = "sessions: {session_calls_per_minute: 10000}\n"
ABLE: dict[str, Any] = {"sampling": {}, "elicitation": {"form": {}}, "roots": {}}
PARAMS: dict[str, dict[str, Any]] = {
    **tables("flow/crossings")["params"],
    **{method: {"taskId": "t"} for method in ("tasks/get", "tasks/result", "tasks/cancel")},
}


class Crossing(NamedTuple):
    """`named` is what a message becomes, or the reason of its refusal."""

    way: str
    named: str


class Row(NamedTuple):
    name: str
    of_server: bool
    down: Crossing
    up: Crossing


WAYS = "passes|becomes|answered here|accepted, not forwarded|dropped|not in the caller's revision|cannot cross"
CELL = rf"({WAYS})(?:(?:: | )`([^`]+)`)?(?:; [^|]*)?"
ROWS = re.findall(rf"^\| `([^`]+)` \| (client|server) \| {CELL} \| {CELL} \|$", DOCS.read_text("utf-8"), re.MULTILINE)
CROSSINGS = [Row(row[0], row[1] == "server", Crossing(*row[2:4]), Crossing(*row[4:])) for row in ROWS]
ON_SUBSCRIPTIONS = [row.name for row in CROSSINGS if row.of_server and row.name.endswith(("list_changed", "updated"))]
NOBODY: dict[str, str] = {}
ASKED = {"action": "accept", "content": {}}


def test_the_table_has_every_message_that_can_pass() -> None:
    of_client = {row.name for row in CROSSINGS if not row.of_server}
    of_server = {row.name for row in CROSSINGS if row.of_server}
    assert {*messages.METHODS, *messages.NOTIFICATIONS} <= of_client
    assert {*messages.SERVER_REQUESTS, *messages.SERVER_NOTIFICATIONS} <= of_server
    assert len(CROSSINGS) == len({(row.name, row.of_server) for row in CROSSINGS}) == 39


def test_what_is_not_in_an_era_is_so_by_the_table_of_methods() -> None:
    for row in (row for row in CROSSINGS if not row.of_server):
        method = {**messages.METHODS, **messages.NOTIFICATIONS}.get(row.name)
        eras = {era.value for era in method.eras} if method else set()
        assert ("stateless" in eras) is (row.down.way != "not in the caller's revision"), row.name
        assert ("session" in eras) is (row.up.way != "not in the caller's revision"), row.name


def down(folder: Path, server: Any = None, settings: str = MANY) -> AbstractAsyncContextManager[World]:
    """Stateless callers before a server of sessions."""
    return world(folder, upstream=server or SessionsOnly(), settings=settings, rules=RULES.format(who="nhi:planner"))


@asynccontextmanager
async def up(folder: Path, server: StatelessOnly | None = None) -> AsyncIterator[tuple[World, Talk]]:
    """A session before a stateless server."""
    async with talking(down(folder, server or StatelessOnly()), "session") as talk:
        _, body, headers = await talk.world.post(request("initialize", PARAMS["initialize"]))
        assert body["result"]["protocolVersion"] == SESSION
        talk.session = headers["Mcp-Session-Id"]
        yield talk.world, talk


def stated(method: str, params: dict[str, Any], *, id: int | str = 1, **meta: Any) -> dict[str, Any]:
    """A stateless request of a client that can be asked everything."""
    message = stateless(method, params, id=id)
    message["params"]["_meta"] |= {f"{META}clientCapabilities": ABLE, **meta}
    return message


def routing(message: dict[str, Any]) -> dict[str, str]:
    method = message["method"]
    named = {"Mcp-Name": message["params"][NAMED_BY[method]]} if method in NAMED_BY else {}
    return {"MCP-Protocol-Version": STATELESS, "Mcp-Method": method, **named}


def sent(running: World, message: dict[str, Any], who: Mapping[str, str] = NOBODY) -> AbstractAsyncContextManager[Ear]:
    """The answer to a stateless message."""
    return hearing(running.http, f"{running.url}/mcp/github", {**routing(message), **who}, message)


async def act(
    running: World, arguments: dict[str, Any], *, who: dict[str, str] | None = None, id: int | str = 1, **params: Any
) -> list[Any]:
    """A stateless call of `act`; every message of its answer."""
    meta = params.pop("meta", {})
    message = stated("tools/call", {"name": "act", "arguments": arguments, **params}, id=id, **meta)
    async with sent(running, message, who or {}) as ear:
        return await messages_of(ear)


def told(said: list[Any]) -> Any:
    """What `act` was answered by its caller."""
    return json.loads(said[-1]["result"]["content"][0]["text"])


async def messages_of(ear: Ear) -> list[Any]:
    if ear.response.content_type == "application/json":
        return [json.loads(await ear.response.read())]
    return await ear.rest()


async def test_what_a_stateless_caller_sends_crosses_as_the_table_says(tmp_path: Path) -> None:
    async with down(tmp_path) as running:
        for row in (row for row in CROSSINGS if not row.of_server):
            await _send_down(running, row.name, row.down)


async def _send_down(running: World, name: str, crossing: Crossing) -> None:
    server, message = running.upstream, stated(name, PARAMS.get(name, {}))
    if name.startswith("tasks/"):
        message["params"]["_meta"] |= DECLARED
    before = len(server.seen)
    if name.startswith("notifications/"):
        del message["id"]
    if name == "subscriptions/listen":
        async with sent(running, message) as ear:
            assert (await ear.message())["method"] == "notifications/subscriptions/acknowledged"
            assert crossing.named in server.methods()
        return
    async with sent(running, message) as ear:
        status, said = ear.status, (await messages_of(ear))[-1]
    reached = [str(seen.get("method")) for _, seen in server.seen[before:]]
    match crossing.way:
        case "passes":
            assert (status, said["result"]["resultType"], name in reached) == (200, "complete", True), name
            assert ("ttlMs" in said["result"]) is ("/list" in name or name == "resources/read"), name
        case "becomes":
            assert (status, "result" in said, crossing.named in server.methods()) == (200, True, True), name
            assert name not in reached
        case "not in the caller's revision" | "cannot cross":
            assert reason_of((status, said, {})) == crossing.named, name
            assert name not in reached
        case _:
            raise AssertionError(name)


async def test_what_a_session_sends_crosses_as_the_table_says(tmp_path: Path) -> None:
    async with up(tmp_path) as (running, talk):
        for row in (row for row in CROSSINGS if not row.of_server):
            await _send_up(running, talk, row.name, row.up)


async def _send_up(running: World, talk: Talk, name: str, crossing: Crossing) -> None:
    server = running.upstream
    before, message = len(server.seen), request(name, PARAMS.get(name, {}))
    if name.startswith("notifications/"):
        del message["id"]
    headers = {} if name == "initialize" else talk.in_session
    status, said, _ = await running.post(message, headers=headers)
    reached = [str(seen.get("method")) for _, seen in server.seen[before:]]
    match crossing.way:
        case "passes":
            assert status == 200 and not {"resultType", "ttlMs", "cacheScope"} & set(said["result"]), name
            assert name in reached
        case "becomes":
            assert (status, "result" in said, crossing.named in reached) == (200, True, True), name
        case "answered here":
            assert (status, said["result"], reached) == (200, {}, []), name
        case "accepted, not forwarded":
            assert (status, said, reached) == (202, None, []), name
        case "not in the caller's revision" | "cannot cross":
            assert reason_of((status, said, {})) == crossing.named, name
            assert name not in reached
        case _:
            raise AssertionError(name)


async def test_what_a_server_of_sessions_says_crosses_as_the_table_says(tmp_path: Path) -> None:
    async with down(tmp_path) as running:
        for row in (row for row in CROSSINGS if row.of_server and row.name not in ON_SUBSCRIPTIONS):
            if row.down.way == "not in the caller's revision":
                continue
            if row.name.startswith("notifications/"):
                say = {"method": row.name, "params": PARAMS.get(row.name, {})}
                meta = {f"{META}logLevel": "debug", "progressToken": 7}
                *between, _ = await act(running, {"say": [say]}, meta=meta)
                heard = [message["method"] for message in between]
                assert heard == ([row.name] if row.down.way == "passes" else []), row.name
                continue
            (said,) = await act(running, {"ask": [row.name]})
            if row.down.way == "answered here":
                assert told([said]) == [{}]
            else:
                result = said["result"]
                assert result["resultType"] == row.down.named == "input_required"
                assert [asked["method"] for asked in result["inputRequests"].values()] == [row.name]


async def test_what_a_server_of_sessions_announces_reaches_who_subscribed(tmp_path: Path) -> None:
    flags = {"toolsListChanged": True, "promptsListChanged": True, "resourcesListChanged": True}
    wanted = {"notifications": {**flags, "resourceSubscriptions": ["note://a"]}}
    message = stated("subscriptions/listen", wanted, id="mine")
    async with down(tmp_path) as running:
        async with sent(running, message) as ear:
            first = await ear.message()
            assert first["params"]["notifications"] == wanted["notifications"]
            server = running.upstream
            updated = {"method": "notifications/resources/updated", "params": {"uri": "note://b"}}
            await server.emit({"jsonrpc": "2.0", **updated})
            for name in ON_SUBSCRIPTIONS:
                await server.emit({"jsonrpc": "2.0", "method": name, "params": PARAMS.get(name, {})})
                heard = await ear.message()
                assert heard["method"] == name
                assert heard["params"]["_meta"][f"{META}subscriptionId"] == "mine"
        await until(lambda: "resources/unsubscribe" in server.methods())


@dataclass
class Deliberate(SessionsOnly):
    """Answers about resources when it is let `go`, and may refuse them. `pending` are the requests until then."""

    refuses: bool = False
    go: asyncio.Event = field(default_factory=asyncio.Event)
    pending: list[str] = field(default_factory=list)
    most: int = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        message = json.loads(await request.read() or b"{}")
        if message.get("method") not in ("resources/subscribe", "resources/unsubscribe"):
            return await super().handle(request)
        self.pending.append(message["method"])
        self.most = max(self.most, len(self.pending))
        await self.go.wait()
        self.pending.remove(message["method"])
        error = {"code": -32602, "message": "not this one"}
        return said(message, **{"error": error} if self.refuses else {"result": {}})


LISTEN = stated("subscriptions/listen", {"notifications": {"resourceSubscriptions": ["note://a"]}}, id="mine")


async def honoured(running: World) -> Any:
    async with sent(running, LISTEN) as ear:
        return (await ear.message())["params"]["notifications"]


async def test_a_second_subscriber_is_acknowledged_by_the_servers_answer(tmp_path: Path) -> None:
    server = Deliberate(refuses=True)
    async with down(tmp_path, server) as running, asyncio.TaskGroup() as group:
        first = group.create_task(honoured(running))
        await until(lambda: bool(server.pending))
        second = group.create_task(honoured(running))
        await until(lambda: len(running.app.pipeline.forwarder.oversight.open.calls) == 2)
        server.go.set()
        assert (await first, await second) == ({}, {})


async def test_a_new_subscriber_waits_until_the_last_ones_end_is_answered(tmp_path: Path) -> None:
    server = Deliberate()
    server.go.set()
    async with down(tmp_path, server) as running, asyncio.TaskGroup() as group:
        async with sent(running, LISTEN) as ear:
            await ear.message()
            server.go.clear()
        await until(lambda: server.pending == ["resources/unsubscribe"])
        again = group.create_task(honoured(running))
        await until(lambda: bool(running.app.pipeline.forwarder.oversight.open.calls))
        await asyncio.sleep(0.1)  # for a request that must not come
        server.go.set()
        assert await again == LISTEN["params"]["notifications"]
    assert server.most == 1


async def test_a_subscription_ends_well_when_the_session_behind_it_does(tmp_path: Path) -> None:
    message = stated("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, id="mine")
    async with down(tmp_path) as running:
        server = running.upstream
        async with sent(running, message) as ear:
            await ear.message()
            server.sessions.clear()
            server.hang_up()
            said = await ear.message()
            assert (said["id"], said["result"]["resultType"]) == ("mine", "complete")


async def test_what_a_stateless_server_says_crosses_as_the_table_says(tmp_path: Path) -> None:
    async with up(tmp_path) as (_, talk):
        for row in (row for row in CROSSINGS if row.of_server and row.name not in ON_SUBSCRIPTIONS):
            if row.up.way == "not in the caller's revision" or row.name == "notifications/subscriptions/acknowledged":
                continue
            asks = not row.name.startswith("notifications/")
            say = {"method": row.name, "params": PARAMS.get(row.name, {})}
            params = {"name": "act", "arguments": {"ask": [row.name]} if asks else {"say": [say]}}
            async with talk.hearing("tools/call", params) as ear:
                if not asks:
                    heard = [message.get("method") for message in await ear.rest()]
                    assert heard == ([row.name, None] if row.up.way == "passes" else [None]), row.name
                    continue
                asked = await ear.message()
                assert asked["method"] == row.name and row.up.named == "request"
                assert (await talk.say({"id": asked["id"], "result": ASKED}))[0] == 202
                said = await ear.message()
                assert told([said]) == [ASKED]


async def test_what_a_stateless_server_announces_is_on_the_sessions_stream(tmp_path: Path) -> None:
    async with up(tmp_path) as (running, talk):
        server = running.upstream
        async with talk.hearing() as ear:
            assert (await talk.ask("resources/subscribe", {"uri": "note://a"}))[0] == 200
            wished = server.of_method("subscriptions/listen")[-1]["params"]["notifications"]
            assert wished["resourceSubscriptions"] == ["note://a"]
            for number, name in enumerate(ON_SUBSCRIPTIONS):
                await server.emit({"jsonrpc": "2.0", "method": name, "params": PARAMS.get(name, {})})
                heard = await ear.message()
                if number and heard["method"] == ON_SUBSCRIPTIONS[number - 1]:  # while it listens anew, some come twice
                    heard = await ear.message()
                assert heard["method"] == name and "_meta" not in heard["params"]


# --- held calls -----------------------------------------------------------------------------------------------------

QUESTION = {"ask": ["sampling/createMessage"]}


async def held_by(running: World, who: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    """A call that waits for its caller: what the caller was told."""
    result: dict[str, Any] = (await act(running, QUESTION, who=who, **more))[-1]["result"]
    assert result["resultType"] == "input_required"
    return result


def again(held: dict[str, Any]) -> dict[str, Any]:
    """What the caller sends with its retry."""
    return {"requestState": held["requestState"], "inputResponses": dict.fromkeys(held["inputRequests"], ASKED)}


@asynccontextmanager
async def two(folder: Path, **more: Any) -> AsyncIterator[World]:
    """Alice and bob before a server of sessions."""
    rules = RULES.format(who="user:alice") + RULES.format(who="user:bob")
    async with gateway(folder, upstream=SessionsOnly(), rules=rules, **more) as running:
        yield running


async def test_a_retry_goes_on_with_the_held_call_and_is_a_call_of_its_own(tmp_path: Path) -> None:
    async with down(tmp_path) as running:
        said = await act(running, QUESTION, id="b", **again(await held_by(running, id="a")))
        assert said[-1]["id"] == "b"
        assert told(said) == [ASKED]
        server = running.upstream
        assert len(server.of_method("tools/call")) == 1, "the server has one call, and one answer"
        ended = [record for record in running.ends() if record["action"] == "tools/call"]
        assert [record["status"] for record in ended] == ["success", "success"]
        assert [record["request_id"] for record in ended] == ["a", "b"]


async def test_nobody_else_goes_on_with_a_held_call(tmp_path: Path) -> None:
    async with two(tmp_path) as running:
        held = await held_by(running, ALICE)
        refused = await act(running, QUESTION, who=BOB, **again(held))
        assert refused[-1]["error"]["code"] == -32602
        assert "response" not in running.upstream.methods(), "nothing reached the server"
        said = await act(running, QUESTION, who=ALICE, **again(held))
        assert told(said) == [ASKED], "and its owner still can"


@pytest.mark.parametrize("case", ["other arguments", "used twice", "made up", "not a string"])
async def test_a_state_is_good_once_and_for_the_same_call(tmp_path: Path, case: str) -> None:
    async with down(tmp_path) as running:
        held = await held_by(running)
        arguments, state = QUESTION, again(held)
        if case == "used twice":
            await act(running, QUESTION, **state)
        elif case == "other arguments":
            arguments = {**QUESTION, "more": 1}
        else:
            state["requestState"] = 7 if case == "not a string" else held["requestState"][:-1] + "-"
        server = running.upstream
        before = len(server.seen)
        assert (await act(running, arguments, **state))[-1]["error"]["code"] == -32602
        assert len(server.seen) == before


async def test_a_retry_without_the_answer_is_asked_again(tmp_path: Path) -> None:
    async with down(tmp_path) as running:
        held = await held_by(running)
        assert (await act(running, QUESTION, requestState=held["requestState"]))[-1]["result"] == held
        bad = await act(running, QUESTION, **{**again(held), "inputResponses": [1]})
        assert bad[-1]["error"]["code"] == -32602
        assert "result" in (await act(running, QUESTION, **again(held)))[-1]


async def test_who_does_not_come_back_has_its_call_cancelled(tmp_path: Path) -> None:
    settings = "sessions: {session_calls_per_minute: 10000, question_timeout_s: 0.2s}\n"
    async with down(tmp_path, settings=settings) as running:
        held, server = await held_by(running), running.upstream
        await until(lambda: server.left == 1 and "notifications/cancelled" in server.methods())
        (cancelled,), (call,) = server.of_method("notifications/cancelled"), server.of_method("tools/call")
        assert cancelled["params"]["requestId"] == call["id"]
        assert (await act(running, QUESTION, **again(held)))[-1]["error"]["code"] == -32602


async def test_one_owner_holds_a_few_calls_and_the_oldest_gives_way(tmp_path: Path) -> None:
    async with two(tmp_path) as running:
        kept = await held_by(running, BOB)
        held = [await held_by(running, ALICE) for _ in range(17)]
        server = running.upstream
        await until(lambda: server.left == 1)
        assert (await act(running, QUESTION, who=ALICE, **again(held[0])))[-1]["error"]["code"] == -32602
        assert "result" in (await act(running, QUESTION, who=ALICE, **again(held[-1])))[-1]
        assert "result" in (await act(running, QUESTION, who=BOB, **again(kept)))[-1]


class ListsLate(SessionsOnly):
    async def handle(self, request: web.Request) -> web.StreamResponse:
        if b"prompts/list" in await request.read():
            await self.answers.setdefault("list", asyncio.Future())
        return await super().handle(request)


async def test_a_question_on_the_sessions_stream_belongs_to_the_one_call_that_may_be_asked(tmp_path: Path) -> None:
    server = ListsLate(on_session_stream=True)
    async with down(tmp_path, server) as running:

        async def listed() -> list[Any]:
            async with sent(running, stated("prompts/list", {}, id="list")) as ear:
                return await messages_of(ear)

        held = await held_by(running)
        listing = asyncio.ensure_future(listed())
        await until(lambda: "list" in server.answers)
        assert told(await act(running, QUESTION, **again(held))) == [ASKED]
        assert told(await act(running, QUESTION, **again(await held_by(running)))) == [ASKED]
        server.answers["list"].set_result({})
        assert "result" in (await listing)[-1]


async def test_a_server_may_ask_only_for_what_its_caller_declared(tmp_path: Path) -> None:
    async with down(tmp_path) as running:
        (said,) = await act(running, QUESTION, meta={f"{META}clientCapabilities": {"roots": {}}})
        assert told([said])[0]["code"] == -32601


@pytest.mark.parametrize("how", ["its caller leaves", "it is cut off"])
async def test_a_call_that_ends_before_its_answer_ends_on_both_sides(tmp_path: Path, how: str) -> None:
    async with down(tmp_path) as running:
        server, streams = running.upstream, running.app.pipeline.forwarder.streams
        call = asyncio.create_task(act(running, {"wait": True}))
        await until(lambda: bool(server.of_method("tools/call") and streams))
        if how == "its caller leaves":
            call.cancel()
        else:
            for exchange in list(streams):
                exchange.cut_off(Reason.PRINCIPAL_DISABLED)
            async with asyncio.timeout(PATIENCE_S):
                assert (await call)[-1]["error"]["data"]["reason"] == "principal-disabled"
        await until(lambda: server.left == 1 and "notifications/cancelled" in server.methods())


async def test_what_a_server_says_to_a_call_that_waits_is_bounded(tmp_path: Path) -> None:
    """It goes on talking while its caller thinks: its stream fills up, and our memory does not."""
    server = SessionsOnly(talks_on=True)
    async with down(tmp_path, server) as running:
        held = await held_by(running)
        await asyncio.sleep(0.3)
        assert server.talked < 400, "of 64 KiB each"
        server.talks_on = False
        assert "result" in (await act(running, QUESTION, **again(held)))[-1]


async def test_calls_that_end_in_every_way_leave_nothing(tmp_path: Path) -> None:
    settings = "sessions: {session_calls_per_minute: 10000, question_timeout_s: 0.3s}\n"
    async with down(tmp_path, settings=settings) as running:
        ways: tuple[dict[str, Any], ...] = ({}, QUESTION, {"fail": {"code": 1, "message": "m"}}, {"wait": True})

        async def call(number: int) -> None:
            with suppress(TimeoutError):
                async with asyncio.timeout(0.2):  # who waits leaves, and who is asked does not come back
                    await act(running, ways[number % 4])

        await act(running, {})  # the server has said hello, however busy this machine is
        await asyncio.gather(*map(call, range(60)))
        bridge: Any = running.app.live.current.services["github"].upstream
        (lent,) = bridge._lender._sessions._lent.values()
        await until(lambda: not bridge._lender.held and not lent.courses)
        await until(lambda: not [task for task in asyncio.all_tasks() if task.get_name().endswith(" at github")])


# --- lent sessions --------------------------------------------------------------------------------------------------


async def test_a_session_is_one_owners_and_one_set_of_capabilities(tmp_path: Path) -> None:
    async with two(tmp_path) as running:
        server = running.upstream
        own = len(server.of_method("initialize"))
        await asyncio.gather(*(act(running, {}, who=who) for who in (ALICE, BOB) for _ in range(3)))
        await act(running, {}, who=ALICE, meta={f"{META}clientCapabilities": {}})
        calls = [headers for headers, message in server.seen if message.get("method") == "tools/call"]
        assert len({headers["Mcp-Session-Id"] for headers in calls}) == 3
        assert len(server.of_method("initialize")) - own <= 4, "three of theirs, and one of ours for the list"
        assert len(server.of_method("initialize")[-1]["params"]["capabilities"]) == 0


async def test_a_session_that_nobody_uses_ends_at_the_server(tmp_path: Path) -> None:
    async with down(tmp_path, settings="sessions: {idle_s: 0.2s}\n") as running:
        await act(running, {})
        await until(lambda: any(verb == "DELETE" for verb, _ in running.upstream.verbs))


@pytest.mark.parametrize("status", [404, 400])
async def test_a_session_that_the_server_lost_is_opened_anew_and_the_call_is_executed_once(
    tmp_path: Path, status: int
) -> None:
    """Also for the plain call, which is one of the stateless era."""
    async with down(tmp_path, SessionsOnly(lost=status)) as running:
        server = running.upstream
        for _ in range(2):
            said = await act(running, {})
            assert said[-1]["result"]["resultType"] == "complete"
            lived = [headers["Mcp-Session-Id"] for headers, _ in server.seen if "Mcp-Session-Id" in headers][-1]
            assert lived in server.sessions
            async with running.http.post(f"{running.url}/mcp/github/tools/act", json={"arguments": {}}) as plain:
                assert plain.status == 200
            server.sessions.clear()
        assert [record["status"] for record in running.ends()] == ["success"] * 4
        assert 'sidecar_upstream_sessions_lost_total{upstream="github"} 2.0' in await running.metrics()
        assert running.app.live.current.services["github"].account.plain()["sessions_lost"] == 2


async def test_a_400_in_a_session_that_lives_is_the_calls_own_and_costs_one_ping(tmp_path: Path) -> None:
    async with down(tmp_path, SessionsOnly(lost=400)) as running:
        server = running.upstream
        await act(running, {})
        born = server.born
        said = await act(running, {"refuse": 400})
        assert said[-1]["error"]["message"] == "no"
        assert server.methods()[-2:] == ["tools/call", "ping"] and server.born == born
        assert 'sidecar_upstream_sessions_lost_total{upstream="github"} 0.0' in await running.metrics()


async def test_calls_in_flight_go_on_when_the_session_is_lost_for_another(tmp_path: Path) -> None:
    """Stateless callers of one owner share a session. A 404 to one call ends no other, and what the server refused is
    repeated in a new session."""
    async with down(tmp_path) as running:
        server = running.upstream
        await act(running, {})
        slow = [asyncio.create_task(act(running, {"wait": True}, id=number)) for number in range(1, 11)]
        await until(lambda: len(server.of_method("tools/call")) == 11)
        server.sessions.clear()
        refused = await asyncio.gather(*(act(running, {}, id=number) for number in range(11, 14)))
        server.gate.set()
        said = await asyncio.gather(*slow)
        assert all(one[-1]["result"]["content"] for one in [*said, *refused])
        assert {record["status"] for record in running.ends()} == {"success"}
        assert len(server.sessions) == 1


async def test_a_call_whose_session_we_end_is_told_and_recorded_as_an_error(tmp_path: Path) -> None:
    async with down(tmp_path) as running:
        server = running.upstream
        slow = asyncio.create_task(act(running, {"wait": True}))
        await until(lambda: len(server.of_method("tools/call")) == 1)
        bridge: Any = running.app.live.current.services["github"].upstream
        bridge._lender._sessions.close()
        error = (await slow)[-1]["error"]
        [record] = running.ends()
        assert error["data"]["reason"] == record["reason"] == "upstream-failed"
        assert error["data"]["decision_id"] == record["decision_id"] and record["status"] == "error"


async def test_the_eras_are_asked_for_once(tmp_path: Path) -> None:
    async with down(tmp_path) as running:
        await act(running, {})
        for method in ("server/discover", "tools/list", "prompts/list"):
            assert (await running.ask(method))[0] == 200
        server = running.upstream
        assert server.probed == 1


async def test_a_server_that_refuses_a_revision_and_names_a_stateless_one_is_asked_for_no_session(
    tmp_path: Path,
) -> None:
    server = StatelessOnly(refuses=1)
    async with down(tmp_path, server) as running:
        assert (await running.ask("server/discover"))[0] == 400  # which a client takes as told, and asks again
        assert (await running.ask("server/discover"))[0] == 200
        bridge: Any = running.app.live.current.services["github"].upstream
        assert bridge.eras.stateless is not False and "initialize" not in server.methods()


async def test_our_own_enquiry_can_be_asked_everything_and_declines_it(tmp_path: Path) -> None:
    """Servers that list tools only to clients with a model, such as `server-everything`, list them to us too."""
    async with down(tmp_path) as running:
        assert (await running.ask("tools/list"))[0] == 200
        server = running.upstream
        able = [message["params"]["capabilities"].keys() for message in server.of_method("initialize")]
        assert {"sampling", "elicitation", "roots"} in able
        await until(lambda: bool(server.streams))
        await server.emit({"jsonrpc": "2.0", "id": "where", "method": "roots/list"}, server.streams[0][OF_SESSION])
        await until(lambda: any(message.get("id") == "where" for _, message in server.seen))
        (answer,) = [message for _, message in server.seen if message.get("id") == "where"]
        assert answer["error"]["code"] == -32601


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "becomes"), [(-32002, -32602), (-32601, -32601), (-32021, -32021), (7, 7)])
async def test_errors_of_a_session_server_in_the_stateless_era(tmp_path: Path, code: int, becomes: int) -> None:
    async with down(tmp_path) as running:
        said = await act(running, {"fail": {"code": code, "message": "m"}})
        assert said[-1]["error"]["code"] == becomes


async def test_an_address_to_open_first_becomes_a_question_and_the_retry_a_new_call(tmp_path: Path) -> None:
    data = {"elicitations": [{"mode": "url", "url": "https://a/", "message": "m", "elicitationId": "e"}]}
    arguments = {"fail": {"code": -32042, "message": "m", "data": data}}
    able = {f"{META}clientCapabilities": {"elicitation": {"url": {}}}}
    async with down(tmp_path) as running:
        asked = (await act(running, arguments, meta=able))[-1]["result"]
        (one,) = asked["inputRequests"].values()
        assert one == {"method": "elicitation/create", "params": {"mode": "url", "url": "https://a/", "message": "m"}}
        await act(running, arguments, meta=able, **again(asked))
        calls = running.upstream.of_method("tools/call")
        assert len(calls) == 2 and not {"inputResponses", "requestState"} & set(calls[1]["params"])
        unable = (await act(running, arguments))[-1]["error"]
        assert unable["code"] == -32021 and "requiredCapabilities" in unable["data"]


@pytest.mark.parametrize(("code", "becomes"), [(-32021, -32602), (-32601, -32601), (-32602, -32602)])
async def test_errors_of_a_stateless_server_never_cost_the_session(tmp_path: Path, code: int, becomes: int) -> None:
    async with up(tmp_path) as (_, talk):
        status, said, _ = await talk.call("act", {"fail": {"code": code, "message": "m"}})
        assert (status, said["error"]["code"]) == (200, becomes)
        assert (await talk.ask("ping"))[0] == 200


# --- played sessions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "agreed"), [("2024-11-05", "2024-11-05"), ("2025-06-18", "2025-06-18"), ("x", SESSION)]
)
async def test_a_played_session_is_of_the_revision_asked_for(tmp_path: Path, asked: str, agreed: str) -> None:
    async with up(tmp_path) as (running, _):
        _, said, headers = await running.post(request("initialize", {**PARAMS["initialize"], "protocolVersion": asked}))
        assert said["result"]["protocolVersion"] == agreed and headers["Mcp-Session-Id"]
        assert said["result"]["serverInfo"] == {"name": "stateless", "version": "1"}


async def test_a_cancelled_call_of_a_session_closes_the_exchange(tmp_path: Path) -> None:
    async with up(tmp_path) as (running, talk):
        server = running.upstream
        call = asyncio.create_task(talk.call("act", {"wait": True}, id="c"))
        await until(lambda: bool(server.of_method("tools/call")))
        assert (await talk.say({"method": "notifications/cancelled", "params": {"requestId": "c"}}))[0] == 202
        await until(lambda: server.left == 1)
        await call
        assert (await talk.ask("ping"))[0] == 200


async def test_a_server_that_asks_without_end_is_given_up(tmp_path: Path) -> None:
    async with up(tmp_path, StatelessOnly(rounds=99)) as (running, talk):
        async with talk.hearing("tools/call", {"name": "act", "arguments": {"ask": ["roots/list"]}}) as ear:
            for _ in range(10):
                asked = await ear.message()
                await talk.say({"id": asked["id"], "result": {"roots": []}})
            assert "error" in await ear.message()
        calls = running.upstream.of_method("tools/call")
        assert len(calls) == 11 == len({call["id"] for call in calls}), "and each round is a request of its own"


async def test_what_the_client_refuses_to_answer_ends_the_call_with_its_error(tmp_path: Path) -> None:
    asks = {"name": "act", "arguments": {"ask": ["roots/list"]}}
    async with up(tmp_path) as (_, talk), talk.hearing("tools/call", asks) as ear:
        asked = await ear.message()
        await talk.say({"id": asked["id"], "error": {"code": -1, "message": "rejected"}})
        assert (await ear.message())["error"]["code"] == -1


async def test_a_played_session_that_ended_is_no_session(tmp_path: Path) -> None:
    async with up(tmp_path) as (_, talk):
        assert (await talk.verb("DELETE"))[0] == 204
        assert (await talk.ask("ping"))[0] == 404


async def test_mirrored_arguments_are_written_for_a_caller_who_does_not_know_them(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
    server = StatelessOnly(tools=[{"name": "act", "inputSchema": schema}])
    async with up(tmp_path, server) as (_, talk):
        assert (await talk.call("act", {"region": "grün"}))[0] == 200
        headers = [headers for headers, message in server.seen if message["method"] == "tools/call"]
        assert headers[0]["Mcp-Param-Region"] == "=?base64?Z3LDvG4=?="

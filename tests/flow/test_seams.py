"""Does what holds on the straight way hold on every way round it?

Where two parts meet that know nothing of each other: the switch and tasks, evidence and subscriptions, revocation and
resumption, pins and the bridge, redaction and lines that say nothing of whose a message is.
"""

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from sidecar.gateway.request_state import LASTS_S
from tests.flow.apart import META, QUESTIONS, SessionsOnly, StatelessOnly
from tests.flow.guests import ALICE, BOB, gateway, result_of
from tests.flow.scripts import answer, giving
from tests.flow.streams import event, hearing, streamed
from tests.flow.talk import ERAS, Era, Talk, reason_of
from tests.flow.test_crossings import ASKED as ACCEPTED, QUESTION, RULES as ASKED, act, again, down
from tests.flow.test_pins import SEARCH, called, listed, pins
from tests.flow.test_responses import (
    GONE,
    LOGGED,
    MAIL,
    before,
    broken_off,
    evidence,
    fetched,
    later,
    messages_in,
    text,
)
from tests.flow.test_tasks import OPS, Listened, op, stage, subscription
from tests.flow.world import STATELESS, Upstream, request, until, world
from tests.unit.upstreams.lines import body, call, events
from tests.unit.upstreams.test_duplex_transport import Far

GOOD = {"repo": "acme/site"}
OFF = {"reason": "", "until": None, "by": "test"}


# --- tasks, and the switch of the tool that made them -----------------------------------------------------------------


@pytest.mark.parametrize("era", ERAS)
async def test_a_task_of_a_tool_that_is_off_can_only_be_cancelled(era: Era, tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        owner = on.talk("nhi:planner", era)
        task_id = await on.create(owner)
        await on.running.app.switch_off("github", "search_code", **OFF)
        on.server.seen.clear()
        said = {method: reason_of(await op(owner, method, task_id)) for method in OPS[era]}
        assert said.pop("tasks/cancel") == ""
        assert set(said.values()) == {"tool-disabled"}
        assert on.server.methods() == ["tasks/cancel"]
        if era == "session":
            assert (await owner.ask("tasks/list"))[1]["result"]["tasks"] == []
        assert await on.running.app.switch_on("github", "search_code", by="test")
        assert reason_of(await op(owner, "tasks/get", task_id)) == ""


# --- results that come unasked, and evidence --------------------------------------------------------------------------


async def test_a_result_that_a_subscription_brings_is_kept_as_well(tmp_path: Path) -> None:
    rules = "anonymous: true, responses: {evidence: [search_code], redact: [{tools: [search_code], classes: [email]}]}"
    async with stage(tmp_path, upstream_settings=rules) as on:
        owner = on.talk("nhi:planner", "stateless")
        mine = await on.create(owner)
        told = {"taskId": mine, "status": "completed", "result": text(MAIL)}
        on.server.script["subscriptions/listen"] = Listened(
            [mine], {"jsonrpc": "2.0", "method": "notifications/tasks", "params": told}
        )
        routing = {"Mcp-Method": "subscriptions/listen", "MCP-Protocol-Version": STATELESS, **owner.headers}
        async with hearing(on.running.http, f"{on.running.url}/mcp/github", routing, subscription(mine)) as ear:
            heard = (await ear.rest())[1]["params"]["result"]
        assert heard["content"][0]["text"] == GONE
        kept = evidence(on.running)
        assert [one["data"] for one in kept] == [heard]
        assert [one["id"] for one in on.running.ends()[-1]["evidence"]] == [kept[0]["id"]]


# --- what is fetched later, and what was revoked meanwhile ------------------------------------------------------------


@pytest.mark.parametrize("how", ["rule", "tool"])
async def test_an_answer_that_is_fetched_later_needs_its_permission_still(how: str, tmp_path: Path) -> None:
    async with world(tmp_path, upstream=Upstream(script=later(text("secret")))) as running:
        talk = Talk(running, "session")
        await talk.open()
        last = await broken_off(talk, "search_code", GOOD, 5)
        assert (await fetched(talk, last))[0]["result"]["content"][0]["text"] == "secret"
        if how == "tool":
            await running.app.switch_off("github", "search_code", **OFF)
        else:
            rule = "p, nhi:planner, tool:github/get_file, use, -, -, -, allow\n"
            (running.folder / "policies" / "agent_to_tool.csv").write_text(rule)
            await running.app.reload("test")
        heard = await fetched(talk, last)
        assert "secret" not in json.dumps(heard)
        reason = "tool-disabled" if how == "tool" else "no-matching-rule"
        assert [one["error"]["data"]["reason"] for one in heard] == [reason]


# --- pins and output schemas, and the bridge --------------------------------------------------------------------------

LISTING: dict[str, Any] = {**SEARCH, "outputSchema": {"type": "array", "items": {"type": "integer"}}}
ALL = "p, nhi:planner, *, use, -, -, -, allow\n"


def only_stateless(result: dict[str, Any]) -> Upstream:
    """A server of the stateless era alone."""
    unknown = answer(404, error={"code": -32601, "message": "Method not found"})
    return Upstream(script={"initialize": unknown, "tools/call": giving(result)}, tools=[dict(LISTING)])


async def test_a_pinned_tool_is_the_same_tool_on_both_sides_of_the_bridge(tmp_path: Path) -> None:
    server = only_stateless(text("[1]", structuredContent=[1]))
    async with world(tmp_path, rules=ALL, files=pins(LISTING), upstream=server) as running:
        for era in ERAS:
            talk = Talk(running, era)
            assert (await listed(talk), await called(talk)) == (["search"], "")
        await running.app.drift.look()
        assert running.app.status()["upstreams"]["github"]["changed"] == {}


@pytest.mark.parametrize(("said", "expected"), [([1], ""), (["x"], "response-refused")])
async def test_an_output_schema_holds_on_both_sides_of_the_bridge(
    said: list[Any], expected: str, tmp_path: Path
) -> None:
    server = only_stateless(text("[1]", structuredContent=said))
    settings = "responses: {check_output: true}"
    async with world(tmp_path, rules=ALL, upstream=server, upstream_settings=settings) as running:
        for era in ERAS:
            talk = Talk(running, era)
            answer = await talk.call("search")
            assert reason_of(answer) == expected
            if not expected:
                shown = answer[1]["result"].get("structuredContent")
                assert shown == ([1] if era == "stateless" else None), "an object in every revision that has sessions"
            entry = (await talk.ask("tools/list"))[1]["result"]["tools"][0]
            assert ("outputSchema" in entry) is (era == "stateless")


# --- redaction, and who can say whose a message is -------------------------------------------------------------------


async def test_what_a_server_says_beside_an_answer_is_under_the_rules_of_all(tmp_path: Path) -> None:
    """On a line that has one direction for everything, it goes to some call that is under way: not to its own."""

    async def respond(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        answer = result_of(message, {"resultType": "complete", **text(MAIL)})
        return await streamed(request, event(LOGGED), event(answer))

    async with before(tmp_path, "redact: [{tools: [get_*], classes: [email]}]", respond) as running:
        for era in ERAS:
            said, answer = messages_in((await Talk(running, era).call("search_code", GOOD))[1])
            assert said["params"]["data"] == GONE
            assert answer["result"]["content"][0]["text"] == MAIL, "an answer is its own call's"


# --- who is on one line, or in one session, with whom -----------------------------------------------------------------


@pytest.mark.parametrize("who", ["nhi:planner", "anonymous"])
async def test_strangers_in_one_session_hear_nothing_that_could_be_each_others(who: str, tmp_path: Path) -> None:
    """Anonymous callers of the stateless era share a session at a server of the other."""
    said = {"method": "notifications/message", "params": {"level": "error", "data": "alice"}}
    server, rules = SessionsOnly(), ASKED.format(who=who)
    local = {"principal": "", "upstream_settings": "anonymous: true"} if who == "anonymous" else {}
    async with world(tmp_path, rules=rules, upstream=server, **local) as running:  # type: ignore[arg-type]
        loud = {f"{META}logLevel": "debug"}
        first = asyncio.create_task(act(running, {"wait": True, "say": [said]}, meta=loud, id=1))
        await until(lambda: bool(server.of_method("tools/call")) and bool(server.streams))
        asked = {"jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": QUESTIONS["elicitation/create"]}
        await server.emit(asked)
        await until(lambda: who != "anonymous" or "response" in server.methods())
        server.gate.set()
        heard = await first
        assert [one.get("method", "end") for one in heard] == (
            ["end"] if who == "anonymous" else ["notifications/message", "end"]
        )
        assert heard[-1]["result"]["resultType"] == ("complete" if who == "anonymous" else "input_required")


async def test_progress_is_its_own_calls_though_both_chose_one_token(tmp_path: Path) -> None:
    async with down(tmp_path) as running:
        server: Any = running.upstream
        calls = [
            asyncio.create_task(act(running, {"wait": True}, id=number, meta={"progressToken": "p"}))
            for number in (1, 2)
        ]
        await until(lambda: len(server.of_method("tools/call")) == 2 and bool(server.streams))
        tokens = [message["params"]["_meta"]["progressToken"] for message in server.of_method("tools/call")]
        assert len(set(tokens)) == 2
        for token in tokens:
            params = {"progressToken": token, "progress": 1}
            await server.emit({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
        await asyncio.sleep(0.1)
        server.gate.set()
        for heard in await asyncio.gather(*calls):
            assert [one["params"]["progressToken"] for one in heard[:-1]] == ["p"]


async def test_a_log_line_on_a_line_of_strangers_is_unidentified() -> None:
    for name, expected in (("nhi:planner", ["notifications/message", None]), ("anonymous", [None])):
        far = Far()
        asked = far.ask(call(), who=name, version=STATELESS)
        heard = await far.line.hears("tools/call")
        far.line.says({"method": "notifications/message", "params": {"level": "info", "data": "x"}})
        far.line.says({"id": heard["id"], "result": {}})
        answer = await asked
        told = await events(answer, 2) if expected[0] else [await body(answer)]
        assert [one.get("method") for one in told] == expected
        await far.channel.close()


# --- a question of the server's, and a sidecar that is to end ---------------------------------------------------------


async def test_a_call_that_waits_for_its_callers_word_gets_it_while_draining(tmp_path: Path) -> None:
    async with down(tmp_path) as running:
        talk = Talk(running, "session")
        await talk.open({"elicitation": {}})
        asking = request("tools/call", {"name": "act", "arguments": {"ask": ["elicitation/create"]}}, id=7)
        async with hearing(running.http, f"{running.url}/mcp/github", talk.in_session, asking) as ear:
            question = await ear.message()
            draining = asyncio.create_task(running.app.pipeline.drain(5))
            await until(lambda: running.app.pipeline.stages.draining)
            assert reason_of(await talk.ask("ping")) == "draining"
            word = {"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept", "content": {}}}
            assert (await running.post(word, headers=talk.in_session))[0] == 202
            assert "accept" in (await ear.message())["result"]["content"][0]["text"]
        await asyncio.wait_for(draining, 2)


# --- what a stateless server wants back -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case", ["its own", "another caller", "another tool", "altered", "made up", "no text", "too old"]
)
async def test_a_servers_state_is_good_for_the_caller_and_the_call_that_got_it(case: str, tmp_path: Path) -> None:
    rules = ASKED.format(who="user:alice") + ASKED.format(who="user:bob")
    tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("act", "other")]
    async with gateway(tmp_path, upstream=StatelessOnly(tools=tools), rules=rules) as running:
        asked = (await act(running, QUESTION, who=ALICE))[-1]["result"]
        assert asked["resultType"] == "input_required"
        sent, forwarder = again(asked), running.app.pipeline.forwarder
        states = {"altered": sent["requestState"][:-4] + "AAA=", "made up": "1", "no text": 1}  # "1" is the server's
        sent["requestState"] = states.get(case, sent["requestState"])
        if case == "too old":
            forwarder.states = replace(forwarder.states, now_s=lambda: time.time() + LASTS_S + 1)
        who = BOB if case == "another caller" else ALICE
        more = {"name": "other"} if case == "another tool" else {}
        server: Any = running.upstream
        reached = len(server.of_method("tools/call"))
        said = (await act(running, QUESTION, who=who, **sent, **more))[-1]
        if case == "its own":
            assert json.loads(said["result"]["content"][0]["text"]) == [ACCEPTED]
            assert server.of_method("tools/call")[-1]["params"]["requestState"] == "1", "the server has its own back"
        else:
            assert (said["error"]["code"], "requestState" in said["error"]["message"]) == (-32602, True)
            assert len(server.of_method("tools/call")) == reached, "nothing reached the server"

"""Is a task its owner's alone, in every method of both eras, live, finished, over, and after a kill?

`TaskServer` is an MCP server that has tasks as 2025-11-25 and as the extension of 2026-07-28 have them, and tells
everybody everything: what a caller may not have, only the sidecar keeps back.
"""

import itertools
import json
import shutil
import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web

from sidecar.protocols.mcp.eras import TASKS_EXTENSION
from sidecar.protocols.mcp.messages import METHODS
from sidecar.protocols.mcp.task_messages import RELATED_TASK
from tests.flow.federated import At
from tests.flow.idp import SETTINGS, Idp, bearer
from tests.flow.streams import EVENT_STREAM, Emitter, event, hearing
from tests.flow.talk import DECLARED, ERAS, Answer, Era, Talk, reason_of
from tests.flow.world import STATELESS, Upstream, World, stateless, until, world

GOOD = {"repo": "acme/site"}
WHO = ("nhi:planner", "nhi:other", "anonymous")
RULES = "".join(
    f"p, {who}, tool:github/search_code, use, -, -, args.repo.startsWith('acme/'), allow\n"
    f"p, {who}, tool:github/get_file, use, -, -, -, allow\n"
    for who in WHO
)
OPS: Mapping[Era, tuple[str, ...]] = {
    "session": ("tasks/get", "tasks/result", "tasks/cancel"),
    "stateless": ("tasks/get", "tasks/update", "tasks/cancel"),
}
IDP = Idp()


@dataclass
class TaskServer(Upstream):
    """`state` is what every task's state is said to be, `next_id` the id of the next one; `made` are all ids."""

    state: str = "working"
    ids: Any = field(default_factory=lambda: (f"task-{n}" for n in itertools.count(1)))
    made: list[str] = field(default_factory=list)
    ttl_ms: int | None = 60_000
    asks: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.script |= {"tools/call": self.call, "GET": self.emitter.listen} | {
            method: self.of_a_task for method in METHODS if method.startswith("tasks/")
        }

    emitter: Emitter = field(default_factory=Emitter)

    def task(self, task_id: str) -> dict[str, Any]:
        both = {"ttl": self.ttl_ms, "ttlMs": self.ttl_ms}
        return {"taskId": task_id, "status": self.state, "createdAt": "2026-11-28T00:00:00Z", **both}

    async def call(self, request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        params = message["params"]
        capabilities = params.get("_meta", {}).get("io.modelcontextprotocol/clientCapabilities", {})
        extended = TASKS_EXTENSION in capabilities.get("extensions", {})
        if "task" not in params and not extended:
            return self.answer(message)
        task_id = next(self.ids)
        self.made.append(task_id)
        created = self.task(task_id)
        return result(message, {"resultType": "task", **created} if extended else {"task": created})

    async def of_a_task(self, request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        method, params = message["method"], message["params"]
        if method == "tasks/list":
            return result(message, {"tasks": [self.task(made) for made in self.made], "nextCursor": "more"})
        told = self.task(params["taskId"]) | self.asks
        if method == "tasks/result":
            related = {RELATED_TASK: {"taskId": params["taskId"]}}
            told = {"content": [{"type": "text", "text": "secret"}], "_meta": related}
        return result(message, {"resultType": "complete", **told})


def result(message: dict[str, Any], body: dict[str, Any]) -> web.Response:
    return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": body})


@dataclass
class Stage:
    """A world whose server has tasks, and its callers."""

    running: World
    server: TaskServer

    def talk(self, who: str, era: Era, *, age_s: float = 0) -> Talk:
        if who == "anonymous":
            return Talk(self.running, era, tasks=True)
        token = IDP.token(who, f"{self.running.url}/mcp/github", age_s=age_s)
        return Talk(self.running, era, bearer(token), tasks=True)

    async def create(self, talk: Talk) -> str:
        """A task of this caller's, and its id."""
        status, body, _ = await wished(talk)
        assert status == 200, body
        task = body["result"] if talk.era == "stateless" else body["result"]["task"]
        return str(task["taskId"])

    def expire(self) -> None:
        with closing(sqlite3.connect(self.running.folder / "data" / "records.sqlite")) as file, file:
            for name, body in file.execute("SELECT id, body FROM records").fetchall():
                owner = orjson.loads(body)
                owner["expires_at"] = 1.0
                file.execute("UPDATE records SET ends_at = 1, body = ? WHERE id = ?", (orjson.dumps(owner), name))


@asynccontextmanager
async def stage(folder: Path, server: TaskServer | None = None, **more: Any) -> AsyncIterator[Stage]:
    server = server or TaskServer()
    options = {"rules": RULES, "settings": SETTINGS, "files": IDP.files(), "upstream_settings": "anonymous: true"}
    async with world(folder, upstream=server, **{"principal": "", **options, **more}) as running:
        yield Stage(running, server)


@pytest.fixture
async def on(tmp_path: Path) -> AsyncIterator[Stage]:
    async with stage(tmp_path) as made:
        yield made


async def wished(talk: Talk, name: str = "search_code", arguments: Mapping[str, str] = GOOD) -> Answer:
    """What is said of a call that is to be a task."""
    wish = {"task": {"ttl": 60_000}} if talk.era == "session" else {}
    return await talk.ask("tools/call", {"name": name, "arguments": arguments, **wish})


async def op(talk: Talk, method: str, task_id: str) -> Answer:
    more = {"inputResponses": {}} if method == "tasks/update" else {}
    return await talk.ask(method, {"taskId": task_id, **more})


def bare(answer: Answer) -> Any:
    """An answer without what differs each time."""
    status, body, headers = answer
    text = json.dumps(body)
    decision_id = body["error"]["data"]["decision_id"]
    return status, text.replace(decision_id, ""), headers.get("Content-Type")


# --- every method, every role, every state ----------------------------------------------------------------------------


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("state", ["working", "completed", "expired"])
async def test_a_task_answers_its_owner_and_nobody_else(state: str, era: Era, on: Stage) -> None:
    owner = on.talk("nhi:planner", era)
    task_id = await on.create(owner)
    if state == "expired":
        on.expire()
    else:
        on.server.state = state
        await op(owner, "tasks/get", task_id)
    on.server.seen.clear()
    for method in OPS[era]:
        for talk, owns in (
            (owner, state != "expired"),
            (on.talk("nhi:planner", era, age_s=60), state != "expired"),  # a refreshed token, another session
            (on.talk("nhi:other", era), False),
            (on.talk("anonymous", era), False),
        ):
            answer = await op(talk, method, task_id)
            reached = len(on.server.calls(method))
            on.server.seen.clear()
            assert (reason_of(answer), reached) == (("", 1) if owns else ("task-unknown", 0)), method
            if not owns:
                assert answer[0] == (404 if era == "stateless" else 200), "a session goes on"
                assert answer[1]["error"]["code"] == -32602
                assert bare(answer) == bare(await op(talk, method, "nobodys")), "another's is as none"


@pytest.mark.parametrize("era", ERAS)
async def test_what_a_server_hears_is_what_was_asked(era: Era, on: Stage) -> None:
    owner = on.talk("nhi:planner", era)
    task_id = await on.create(owner)
    assert on.server.calls()[-1]["params"].get("task") == ({"ttl": 60_000} if era == "session" else None)
    await op(owner, "tasks/cancel", task_id)
    headers, message = on.server.seen[-1]
    assert message["params"]["taskId"] == task_id
    assert headers.get("Mcp-Name") == (task_id if era == "stateless" else None)


async def test_a_list_shows_its_callers_tasks_and_goes_on(on: Stage) -> None:
    mine, other = on.talk("nhi:planner", "session"), on.talk("nhi:other", "session")
    ids = [await on.create(talk) for talk in (mine, other, mine)]
    on.server.made.append("nobodys")
    for talk, shown in ((mine, [ids[0], ids[2]]), (other, [ids[1]]), (on.talk("anonymous", "session"), [])):
        listed = (await talk.ask("tasks/list", {"cursor": "c"}))[1]["result"]
        assert ([task["taskId"] for task in listed["tasks"]], listed["nextCursor"]) == (shown, "more")


async def test_the_stateless_era_has_no_such_method(on: Stage) -> None:
    for method in ("tasks/list", "tasks/result"):
        answer = await on.talk("nhi:planner", "stateless").ask(method, {"taskId": "t"})
        assert answer[1]["error"]["code"] == -32601


# --- who may create ---------------------------------------------------------------------------------------------------


async def test_an_anonymous_caller_creates_no_task(on: Stage) -> None:
    talk = on.talk("anonymous", "session")
    opened = (await talk.open())[1]["result"]
    assert "tasks" not in opened["capabilities"]
    answer = await talk.ask("tools/call", {"name": "search_code", "arguments": GOOD, "task": {}})
    assert (answer[0], reason_of(answer)) == (401, "unauthenticated")
    plain = await on.talk("anonymous", "stateless").call("search_code", GOOD)
    assert plain[1]["result"]["content"], "a server that hears of no tasks answers as if there were none"
    assert on.server.made == []


async def test_a_server_that_creates_tasks_for_who_cannot_have_them_is_refused(tmp_path: Path) -> None:
    for number, created in enumerate(({"resultType": "task", "taskId": "t"}, {"task": {"taskId": "t"}})):
        server = TaskServer()
        server.script["tools/call"] = lambda request, message, made=created: _now(result(message, dict(made)))
        async with stage(tmp_path / str(number), server) as on:
            for who, era in itertools.product(("anonymous", "nhi:planner"), ERAS):
                talk = on.talk(who, era)
                talk.tasks = who == "anonymous"
                assert reason_of(await talk.call("search_code", GOOD)) == "response-refused"
            assert reason_of(await op(on.talk("nhi:planner", "stateless"), "tasks/get", "t")) == "task-unknown"


async def _now(response: web.StreamResponse) -> web.StreamResponse:
    return response


async def test_a_method_of_the_extension_is_for_who_declares_it(on: Stage) -> None:
    talk = on.talk("nhi:planner", "stateless")
    task_id = await on.create(talk)
    routing = {"Mcp-Method": "tasks/get", "Mcp-Name": task_id, "MCP-Protocol-Version": "2026-07-28", **talk.headers}
    for asked in (task_id, "nobodys"):
        routing["Mcp-Name"] = asked
        status, body, _ = await on.running.post(stateless("tasks/get", {"taskId": asked}), headers=routing)
        assert (status, body["error"]["code"]) == (400, -32021)
        assert body["error"]["data"]["requiredCapabilities"] == {"extensions": {"io.modelcontextprotocol/tasks": {}}}


async def test_the_mirrored_name_must_be_the_tasks(on: Stage) -> None:
    talk = on.talk("nhi:planner", "stateless")
    await on.create(talk)
    for name in ("", "another", "TASK-1"):
        answer = await talk.ask("tasks/get", {"taskId": "task-1"}, headers={"Mcp-Name": name})
        assert (answer[0], answer[1]["error"]["code"]) == (400, -32020)


@pytest.mark.parametrize("era", ERAS)
async def test_the_address_of_all_servers_has_no_tasks(era: Era, tmp_path: Path) -> None:
    async with stage(tmp_path, principal="nhi:planner", settings="", files={}) as on:
        task_id = await on.create(Talk(on.running, era, tasks=True))
        talk = At(on.running, era, tasks=True)
        called = await wished(talk, "github__search_code")
        assert called[1]["result"]["content"], "its servers answer as if there were none"
        assert reason_of(await op(talk, "tasks/get", task_id)) in ("method-unknown", "task-unknown")
        assert len(on.server.made) == 1 and on.server.calls("tasks/get") == []


# --- what created it is asked again -----------------------------------------------------------------------------------


@pytest.mark.parametrize("era", ERAS)
async def test_who_may_not_do_any_more_what_created_it_has_lost_it(era: Era, on: Stage) -> None:
    owner = on.talk("nhi:planner", era)
    task_id = await on.create(owner)
    rules = on.running.folder / "policies" / "agent_to_tool.csv"
    changes = {
        "p, nhi:planner, tool:github/get_file, use, -, -, -, allow\n": "no-matching-rule",
        RULES + "p, *, tool:github/search_code, tools/call, -, -, -, deny\n": "denied-by-rule",
        RULES + f"p, *, nhi:github, {OPS[era][0]}, -, -, -, deny\n": "denied-by-rule",
        RULES: "",
    }
    for text, reason in changes.items():
        rules.write_text(text)
        await on.running.app.reload("test")
        on.server.seen.clear()
        assert reason_of(await op(owner, OPS[era][0], task_id)) == reason
        assert len(on.server.calls(OPS[era][0])) == (not reason)
    links = on.running.ends()[-1]["links"]
    assert [(link["action"], link["decision"]) for link in links] == [(OPS[era][0], "allow"), ("tools/call", "allow")]
    await on.running.app.disable("nhi:planner", reason="", until=None, by="test")
    assert reason_of(await op(owner, OPS[era][0], task_id)) == "principal-disabled"


# --- lies -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("era", ERAS)
async def test_an_id_that_is_taken_does_not_change_hands(era: Era, tmp_path: Path) -> None:
    async with stage(tmp_path, TaskServer(ids=itertools.repeat("one"))) as on:
        owner, other = on.talk("nhi:planner", era), on.talk("nhi:other", era)
        await on.create(owner)
        assert reason_of(await wished(other)) == "response-refused"
        assert reason_of(await op(other, "tasks/get", "one")) == "task-unknown"
        assert reason_of(await wished(owner, "get_file", {})) == "response-refused"
        assert await on.create(owner) == "one", "the same once more is a replay"
        assert reason_of(await op(owner, "tasks/get", "one")) == ""


@pytest.mark.parametrize("era", ERAS)
async def test_an_answer_about_another_task_is_refused(era: Era, on: Stage) -> None:
    owner = on.talk("nhi:planner", era)
    task_id = await on.create(owner)
    others = await on.create(on.talk("nhi:other", era))
    for said in (
        {"taskId": others},
        {"taskId": "nobodys"},
        {"taskId": 1},
        {"taskId": task_id, "taskID": others},
        {"taskId": task_id, "_meta": {RELATED_TASK: {"taskId": others}}},
    ):
        on.server.script["tasks/get"] = lambda _, message, said=said: _now(result(message, {"secret": 1, **said}))
        assert reason_of(await op(owner, "tasks/get", task_id)) == "response-refused"


ODD = ("", "x" * 1025, "x" * 10_240)
FINE = ("é\u4e2d\U0001f600", " a ", "=?base64?eA==?=", "x" * 1024, "' --")


@pytest.mark.parametrize("era", ERAS)
async def test_an_odd_id_is_refused_or_works(era: Era, on: Stage) -> None:
    owner = on.talk("nhi:planner", era)
    for task_id in (*ODD, *FINE):
        on.server.ids = itertools.repeat(task_id)
        assert reason_of(await wished(owner)) == ("response-refused" if task_id in ODD else "")
        answer = await op(owner, "tasks/get", task_id)
        if task_id in FINE:
            assert reason_of(answer) == "" and answer[1]["result"]["taskId"] == task_id
        else:  # 10 KB is more than a header is read for
            too_long = len(task_id) > 10_000 and era == "stateless"
            assert reason_of(answer) == ("header-mismatch" if too_long else "task-unknown")


async def test_an_id_is_a_text(on: Stage) -> None:
    for task_id in (None, 1, True, ["t"], {"a": 1}):
        answer = await on.talk("nhi:planner", "session").ask("tasks/get", {"taskId": task_id})
        assert (answer[0], answer[1]["error"]["code"]) == (200, -32602)


async def test_a_caller_binds_nothing_to_anothers_task(on: Stage) -> None:
    others = await on.create(on.talk("nhi:other", "session"))
    talk = on.talk("nhi:planner", "session")
    related = {"_meta": {RELATED_TASK: {"taskId": others}}}
    answer = await talk.ask("tools/call", {"name": "search_code", "arguments": GOOD, **related})
    assert reason_of(answer) == "task-unknown"
    assert len(on.server.calls()) == 1


# --- what a task asks of its owner ------------------------------------------------------------------------------------


async def test_what_a_task_asks_of_its_owner_needs_a_row(tmp_path: Path) -> None:
    asks = {"status": "input_required", "inputRequests": {"name": {"method": "elicitation/create", "params": {}}}}
    async with stage(tmp_path, TaskServer(asks=asks)) as on:
        owner = on.talk("nhi:planner", "stateless")
        task_id = await on.create(owner)
        assert reason_of(await op(owner, "tasks/get", task_id)) == "no-matching-rule"
        row = "p, nhi:planner, nhi:github, elicitation/create, -, -, -, allow\n"
        (on.running.folder / "policies" / "agent_to_tool.csv").write_text(RULES + row)
        await on.running.app.reload("test")
        told = (await op(owner, "tasks/get", task_id))[1]["result"]
        assert told["inputRequests"]["name"]["method"] == "elicitation/create"
        await owner.ask("tasks/update", {"taskId": task_id, "inputResponses": {"name": {"action": "accept"}}})
        assert on.server.calls("tasks/update")[-1]["params"]["inputResponses"] == {"name": {"action": "accept"}}


# --- streams ----------------------------------------------------------------------------------------------------------


def status_of(task_id: str, method: str = "notifications/tasks/status") -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": {"taskId": task_id, "status": "working"}}


async def test_a_sessions_stream_tells_of_its_owners_tasks_only(on: Stage) -> None:
    owner = on.talk("nhi:planner", "session")
    mine, others = await on.create(owner), await on.create(on.talk("nhi:other", "session"))
    url, headers = f"{on.running.url}/mcp/github", {**owner.headers, **owner.in_session}
    async with hearing(on.running.http, url, headers) as ear:
        await until(lambda: bool(on.server.emitter.open.get("upstream-1")))
        progress = {"jsonrpc": "2.0", "method": "notifications/progress"}
        for message in (
            status_of(others),
            status_of("nobodys"),
            {"jsonrpc": "2.0", "method": "notifications/tasks/status", "params": {}},
            {**progress, "params": {"progress": 1, "_meta": {RELATED_TASK: {"taskId": others}}}},
            {**progress, "params": {"progress": 2, "_meta": {RELATED_TASK: {"taskId": mine}}}},
            status_of(mine),
        ):
            await on.server.emitter.emit("upstream-1", event(message))
        heard = [await ear.message() for _ in range(2)]
        assert [message["method"] for message in heard] == ["notifications/progress", "notifications/tasks/status"]
        assert heard[1]["params"]["taskId"] == mine


class Listened:
    """The upstream's end of a `subscriptions/listen`: acknowledges `taskIds`, then sends `said`."""

    def __init__(self, acknowledged: list[str], *said: dict[str, Any]) -> None:
        self.acknowledged, self.said = acknowledged, said

    async def __call__(self, request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        stream = web.StreamResponse(headers=EVENT_STREAM)
        await stream.prepare(request)
        params = {"notifications": {"taskIds": self.acknowledged}}
        acknowledged = {"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": params}
        for each in (acknowledged, *self.said):
            await stream.write(event(each))
        await stream.write(event({"jsonrpc": "2.0", "id": message["id"], "result": {"resultType": "complete"}}))
        return stream


def subscription(*task_ids: Any) -> dict[str, Any]:
    message = stateless("subscriptions/listen", {"notifications": {"taskIds": list(task_ids)}})
    message["params"]["_meta"].update(DECLARED)
    return message


async def test_a_subscription_is_to_ones_own_tasks(on: Stage) -> None:
    owner = on.talk("nhi:planner", "stateless")
    mine, others = await on.create(owner), await on.create(on.talk("nhi:other", "stateless"))
    routing = {"Mcp-Method": "subscriptions/listen", "MCP-Protocol-Version": STATELESS, **owner.headers}
    on.server.script["subscriptions/listen"] = Listened(
        [mine, others], status_of(others, "notifications/tasks"), status_of(mine, "notifications/tasks")
    )
    for refused in ((others,), (mine, others), ("nobodys",)):
        answer = await on.running.post(subscription(*refused), headers=routing)
        assert (answer[0], reason_of(answer)) == (404, "task-unknown")
    too_many = await on.running.post(subscription(*map(str, range(101))), headers=routing)
    assert (too_many[0], too_many[1]["error"]["code"]) == (400, -32602)
    assert on.server.calls("subscriptions/listen") == []
    async with hearing(on.running.http, f"{on.running.url}/mcp/github", routing, subscription(mine)) as ear:
        acknowledged, status, end = await ear.rest()
    assert acknowledged["params"]["notifications"] == {"taskIds": [mine]}
    assert (status["method"], status["params"]["taskId"]) == ("notifications/tasks", mine)
    assert end["result"] == {"resultType": "complete"}
    asks = status_of(mine, "notifications/tasks")
    asks["params"]["inputRequests"] = {"a": {"method": "sampling/createMessage"}}
    on.server.script["subscriptions/listen"] = Listened([mine], asks)
    async with hearing(on.running.http, f"{on.running.url}/mcp/github", routing, subscription(mine)) as ear:
        heard = [message.get("method", "end") for message in await ear.rest()]
    assert heard == ["notifications/subscriptions/acknowledged", "end"], "what it asks needs a row as well"


# --- tasks that a server asks of its client ---------------------------------------------------------------------------


async def test_a_client_is_never_asked_for_a_task_of_its_own(tmp_path: Path) -> None:
    row = "p, nhi:planner, nhi:github, elicitation/create, -, -, -, allow\n"
    async with stage(tmp_path, rules=RULES + row) as on:
        owner = on.talk("nhi:planner", "session")
        await owner.open()
        url, headers = f"{on.running.url}/mcp/github", {**owner.headers, **owner.in_session}
        async with hearing(on.running.http, url, headers) as ear:
            await until(lambda: bool(on.server.emitter.open.get("upstream-1")))
            asked = {"jsonrpc": "2.0", "id": 7, "method": "elicitation/create", "params": {"task": {}, "message": "?"}}
            polled = {"jsonrpc": "2.0", "id": 8, "method": "tasks/get", "params": {"taskId": "t"}}
            await on.server.emitter.emit("upstream-1", event(polled) + event(asked))
            assert (await ear.message())["params"] == {"message": "?"}
            await until(lambda: bool(on.server.calls("response")) or "response" in on.server.methods())
        refused = next(message for _, message in on.server.seen if message.get("id") == 8)
        assert refused["error"]["code"] == -32601


# --- the store --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("era", ERAS)
async def test_without_the_store_nobody_has_a_task_and_other_calls_go_on(era: Era, on: Stage) -> None:
    owner = on.talk("nhi:planner", era)
    task_id = await on.create(owner)
    await on.running.app.shared.records.close()  # its thread is gone, as with a disk that hangs
    for answer in (await op(owner, "tasks/get", task_id), await wished(owner)):
        assert (answer[0], reason_of(answer)) == (503 if era == "stateless" else 200, "store-unavailable")
    if era == "session":
        assert len(on.server.calls()) == 1, "what could not be owned is not asked for"
    owner.tasks = False
    assert reason_of(await owner.call("search_code", GOOD)) == ""
    ready, why = on.running.app.readiness()
    assert ready and why["reasons"] == {"task-store-out": 1}


async def test_a_memory_store_may_be_asked_for(tmp_path: Path) -> None:
    async with stage(tmp_path, settings=SETTINGS + "tasks: {store: memory}\n") as on:
        owner = on.talk("nhi:planner", "stateless")
        assert reason_of(await op(owner, "tasks/get", await on.create(owner))) == ""
        assert not (on.running.folder / "data" / "records.sqlite").exists()


async def test_an_owner_is_known_after_a_kill_and_so_is_everybody_else(tmp_path: Path) -> None:
    async with stage(tmp_path / "one") as on:
        task_id = await on.create(on.talk("nhi:planner", "stateless"))
        # What a kill leaves: the answer is out, so its evidence is written, and whose task it is.
        no_sockets = shutil.ignore_patterns("*.sock*", "*.lock")
        shutil.copytree(tmp_path / "one" / "data", tmp_path / "two" / "data", ignore=no_sockets)
    async with stage(tmp_path / "two", on.server) as on:
        for who, reason in (("nhi:planner", ""), ("nhi:other", "task-unknown")):
            assert reason_of(await op(on.talk(who, "stateless"), "tasks/get", task_id)) == reason


@pytest.mark.parametrize("era", ERAS)
async def test_the_record_of_a_call_names_its_task(era: Era, on: Stage) -> None:
    talk = on.talk("nhi:planner", era)
    task_id = await on.create(talk)
    await op(talk, "tasks/get", task_id)
    await op(talk, "tasks/get", "nobodys")
    told = {(record["event"], record["action"]): record["task_id"] for record in on.running.records()}
    assert told["decision", "tools/call"] is None and told["outcome", "tools/call"] == task_id
    assert told["decision", "tasks/get"] == told["outcome", "tasks/get"] == task_id
    assert told["refusal", "tasks/get"] is None

"""Is a program an agent like any other: policy, limits, evidence, ownership, every version and every binding?"""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from sidecar.errors import Refusal
from sidecar.protocols.a2a.operations import SEND
from sidecar.settings.upstreams import BreakerSettings
from sidecar.tasks.programs.program_agent import ProgramProbe
from sidecar.tasks.programs.run_events import OVER
from sidecar.tasks.programs.run_record import RunState
from sidecar.upstreams.agents import OutgoingOperation
from sidecar.upstreams.upstream_account import UpstreamAccount
from sidecar.vocabulary import Caller, Principal
from tests.a2a.world import (
    ALICE,
    BOB,
    EVERYTHING,
    HOOK,
    PLANNER,
    SPOKEN,
    WHO,
    AgentWorld,
    Answered,
    ScriptedAgent,
    ask,
    write,
)
from tests.flow.world import PATIENCE_S, started, until
from tests.tables import tables
from tests.unit.upstreams.processes.test_launcher import alive

OTHER = WHO["nhi:other"]
RULES = {
    "user_to_nhi": "".join(f"p, user:{who}, nhi:*, {EVERYTHING}, -, -, -, allow\n" for who in ("alice", "bob")),
    "nhi_to_nhi": "#: id=twice\np, nhi:planner, nhi:echo, use, -, 2, -, allow\n",
}
ASKS = """\
#!/bin/sh
read -r line
case $line in *'"that"'*) echo '{"jsonrpc": "2.0", "id": 1, "result": "done"}'; exit;; esac
echo '{"jsonrpc": "2.0", "id": 1, "result": {"state": "input-required", "text": "which?"}}'
"""
AGENTS = tables("flow/cli_agents")["agents"]


def agents_yaml(text: str = AGENTS) -> str:
    return f"agents:\n{text}"


def set_up(folder: Path, agents: str = AGENTS, *, rules: Mapping[str, str] = RULES, settings: str = "") -> None:
    """Everything that a sidecar before these programs reads."""
    (folder / "work").mkdir(exist_ok=True)
    (folder / "asks").write_text(ASKS)
    (folder / "asks").chmod(0o755)
    (folder / "secret.env").write_text("TOKEN=four\n")
    write(folder, "", rules=rules, behind=agents_yaml(agents), settings=settings)


@asynccontextmanager
async def sidecar(
    folder: Path, agents: str = AGENTS, *, rules: Mapping[str, str] = RULES, settings: str = ""
) -> AsyncIterator[AgentWorld]:
    """One before these programs."""
    set_up(folder, agents, rules=rules, settings=settings)
    app = await started(folder, {"SIDECAR_SERVER__SHUTDOWN_GRACE_S": "0.2", "PATH": os.environ["PATH"]})
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE_S)) as http:
            yield AgentWorld(folder, ScriptedAgent(), app, http, f"http://127.0.0.1:{app.listeners[0].port}")
    finally:
        await app.stop()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[AgentWorld]:
    async with sidecar(tmp_path) as made:
        yield made


def message(text: str, **more: Any) -> dict[str, Any]:
    """What a send is about."""
    return {"message": {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": text}], **more}}


def task_in(answered: Answered) -> dict[str, Any]:
    assert answered.error is None, answered.error
    [result] = answered.results
    found: dict[str, Any] = result.get("task", result)
    return found


def output_of(task: Mapping[str, Any]) -> str:
    return "".join(part["text"] for one in task.get("artifacts", ()) for part in one["parts"])


def state_of(task: Mapping[str, Any]) -> str:
    return str(task["status"]["state"]).removeprefix("TASK_STATE_").lower()


async def rpc(
    world: AgentWorld, action: str, params: dict[str, Any], who: Mapping[str, str] = ALICE, agent: str = "echo"
) -> Answered:
    return await ask(world, "1.0", "jsonrpc", action, params, who, agent)


async def sent(
    world: AgentWorld, text: str, agent: str = "echo", who: Mapping[str, str] = ALICE, **more: Any
) -> dict[str, Any]:
    """The task that this message is, or goes into."""
    return task_in(await rpc(world, "message/send", message(text, **more), who, agent))


async def begun(world: AgentWorld, who: Mapping[str, str] = ALICE) -> tuple[dict[str, Any], int]:
    """A task of the agent that is slow, and its process, once that has said something."""
    immediately = message("go") | {"configuration": {"returnImmediately": True}}
    task = task_in(await rpc(world, "message/send", immediately, who, "slow"))
    async with asyncio.timeout(PATIENCE_S):
        while not output_of(task):
            await asyncio.sleep(0.01)
            task = task_in(await rpc(world, "tasks/get", {"id": task["id"]}, who, "slow"))
    return task, int((world.folder / "work" / "pid").read_text())


async def state_now(world: AgentWorld, task: Mapping[str, Any], who: Mapping[str, str] = ALICE) -> str:
    return state_of(task_in(await rpc(world, "tasks/get", {"id": task["id"]}, who, "slow")))


async def test_it_answers_in_every_version_and_binding(world: AgentWorld) -> None:
    """BL-009: what one made another reads."""
    for (version, binding), other in zip(SPOKEN, (*SPOKEN[1:], SPOKEN[0]), strict=True):
        said = f"héllo {version} {binding}"
        task = task_in(await ask(world, version, binding, "message/send", message(said), agent="echo"))
        assert (state_of(task), output_of(task)) == ("completed", said)
        again = task_in(await ask(world, *other, "tasks/get", {"id": task["id"]}, agent="echo"))
        assert (again["id"], output_of(again)) == (task["id"], said)
        streamed = await ask(world, version, binding, "message/stream", message(said), agent="echo")
        kinds = [next(iter(event)) for event in streamed.results]
        assert (kinds[0], kinds[-1]) == ("task", "statusUpdate")
        chunks = [one["artifactUpdate"]["artifact"] for one in streamed.results if "artifactUpdate" in one]
        assert output_of(streamed.results[0]["task"]) + output_of({"artifacts": chunks}) == said
        assert state_of(streamed.results[-1]["statusUpdate"]) == "completed"
    listed = (await ask(world, "1.0", "http_json", "tasks/list", {"includeArtifacts": True}, agent="echo")).results
    assert len(listed[0]["tasks"]) == 2 * len(SPOKEN)


async def test_who_may_not_is_denied_and_nothing_runs_and_who_may_is_counted(world: AgentWorld) -> None:
    for version, binding in SPOKEN:
        answered = await ask(world, version, binding, "message/send", message("hi"), OTHER, "echo")
        assert (answered.status, answered.reason) == (403, "no-matching-rule")
    assert world.app.executions.standing("echo")[:2] == (0, 0)
    assert {end["reason"] for end in world.ends()} == {"no-matching-rule"}
    assert task_in(await rpc(world, "message/send", message("hi"), ALICE, "echo"))
    assert world.records("outcome")[-1]["action"] == "message/send"
    assert world.records("decision")[-1]["object"] == "nhi:echo"
    seen = [await rpc(world, "message/send", message("hi"), PLANNER, "echo") for _ in range(3)]
    assert [(one.status, one.reason) for one in seen] == [(200, ""), (200, ""), (429, "rate-limited")]


async def test_who_leaves_while_a_run_is_recorded_as_its_own_finds_it(
    world: AgentWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline, begun, go = world.app.pipeline, asyncio.Event(), asyncio.Event()
    add_all = pipeline.stages.tasks.store.add_all

    async def slow(*about: Any) -> Any:
        begun.set()
        await go.wait()
        return await add_all(*about)

    monkeypatch.setattr(pipeline.stages.tasks.store, "add_all", slow)
    leaving = asyncio.create_task(sent(world, "hi"))
    await begun.wait()
    leaving.cancel()
    await until(lambda: all(request.http.task is None for request in pipeline.live.requests))
    go.set()
    await until(lambda: pipeline.stages.inside == 0)
    (run,), _ = await world.app.executions.page(None, ["echo"], None, 1, 0)
    assert task_in(await rpc(world, "tasks/get", {"id": run.id}))["id"] == run.id


async def test_another_ones_task_is_as_none_while_it_runs_and_when_it_is_over(world: AgentWorld) -> None:
    """BL-071."""
    task, _ = await begun(world)
    await as_none(world, task)
    assert await state_now(world, task) == "working"
    await rpc(world, "tasks/cancel", {"id": task["id"]}, agent="slow")
    await as_none(world, task)
    assert await state_now(world, task) == "canceled"


async def as_none(world: AgentWorld, task: Mapping[str, Any]) -> None:
    """Whatever Bob does with this task, he hears what he would hear of none."""
    nothing = {"id": "00000000-0000-4000-8000-000000000000"}
    for action in ("tasks/get", "tasks/cancel", "tasks/resubscribe"):
        seen = [await rpc(world, action, params, BOB, "slow") for params in ({"id": task["id"]}, nothing)]
        assert seen[0].error["code"] == -32001
        assert len({(one.status, one.error["message"]) for one in seen}) == 1
    into = message("me too", taskId=task["id"])
    answered = await rpc(world, "message/send", into, BOB, "slow")
    assert answered.error["code"] == -32001
    [listed] = (await rpc(world, "tasks/list", {}, BOB, "slow")).results
    assert listed["tasks"] == []


async def test_cancelling_ends_its_program_and_a_second_time_is_refused(world: AgentWorld) -> None:
    task, pid = await begun(world)
    cancelled = task_in(
        await ask(world, "1.0", "grpc", "tasks/cancel", {"id": task["id"], "tenant": "slow"}, agent="slow")
    )
    assert state_of(cancelled) == "canceled"
    assert not alive(pid)
    for version, binding in SPOKEN[:4]:
        answered = await ask(world, version, binding, "tasks/cancel", {"id": task["id"]}, agent="slow")
        assert "cannot be canceled" in answered.error["message"]


async def test_a_stream_is_taken_up_again_and_ends_with_the_task(world: AgentWorld) -> None:
    task, _ = await begun(world)
    hearing = asyncio.create_task(ask(world, "1.0", "http_json", "tasks/resubscribe", {"id": task["id"]}, agent="slow"))
    await until(lambda: bool(world.app.pipeline.forwarder.streams))
    await rpc(world, "tasks/cancel", {"id": task["id"]}, agent="slow")
    heard = await hearing
    pieces = [one["artifactUpdate"]["artifact"] for one in heard.results if "artifactUpdate" in one]
    assert output_of(heard.results[0]["task"]) + output_of({"artifacts": pieces}) == "begun"
    assert state_of(heard.results[-1]["statusUpdate"]) == "canceled"
    over = await ask(world, "1.0", "http_json", "tasks/resubscribe", {"id": task["id"]}, agent="slow")
    assert over.error["details"][0]["reason"] == "UNSUPPORTED_OPERATION"


@pytest.mark.parametrize("store", ["file", "memory"])
async def test_of_many_conversations_the_oldest_give_way_and_no_task_with_its_end(tmp_path: Path, store: str) -> None:
    async with sidecar(tmp_path, settings=f"tasks: {{store: {store}, max_per_principal: 10}}\n") as world:
        tasks = [await sent(world, "hi") for _ in range(15)]
        for task in tasks[-4:]:
            found = await rpc(world, "tasks/get", {"id": task["id"]})
            assert state_of(task_in(found)) == "completed"
        assert (await rpc(world, "tasks/get", {"id": tasks[0]["id"]})).error is not None


async def test_who_hangs_up_ends_nothing(world: AgentWorld, tmp_path: Path) -> None:
    waiting = asyncio.create_task(rpc(world, "message/send", message("go"), agent="slow"))
    await until(lambda: (tmp_path / "work" / "pid").exists())
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await until(lambda: any(end["reason"] == "caller-gone" for end in world.ends()))
    [listed] = (await rpc(world, "tasks/list", {}, agent="slow")).results
    [task] = listed["tasks"]
    assert task["status"]["state"] not in OVER


async def test_what_runs_for_somebody_ends_with_their_permission(world: AgentWorld, tmp_path: Path) -> None:
    task, pid = await begun(world)
    await world.app.disable("user:alice", reason="gone", until=None, by="operator")
    await until(lambda: not alive(pid))
    await world.app.enable("user:alice", by="operator")
    assert await state_now(world, task) == "canceled"
    _, pid = await begun(world)
    (tmp_path / "policies" / "user_to_nhi.csv").write_text("p, user:bob, nhi:*, use, -, -, -, allow\n")
    await world.app.reload("operator")
    world.app.executions.review()  # as every second
    await until(lambda: not alive(pid))


async def test_the_task_api_orders_it_and_what_it_gives_up_for_somebody_says_why(world: AgentWorld) -> None:
    created = {}
    for agent in ("echo", "slow"):
        order = {"target_agent_id": agent, "task_type": "say", "input": {"prompt": "hello"}}
        async with world.http.post(f"{world.url}/a2a/tasks", json=order, headers=ALICE) as response:
            created[agent] = (await response.json())["task_id"]
    async with asyncio.timeout(PATIENCE_S):
        while True:
            async with world.http.get(f"{world.url}/a2a/tasks/{created['echo']}", headers=ALICE) as response:
                shown = await response.json()
            if shown["state"] == "completed":
                break
            await asyncio.sleep(0.02)
    assert output_of(shown["result"]) == "hello"
    await until(lambda: world.app.executions.standing("slow").running == 1)
    await world.app.disable("user:alice", reason="gone", until=None, by="operator")
    await until(lambda: world.app.executions.standing("slow").running == 0)
    [run], _ = await world.app.executions.page(None, ["slow"], None, 1, 0)
    ends = [one.why for one in run.transitions if one.state is RunState.CANCELLED]
    assert ends == ["its caller may not have it any more: principal-disabled"]


async def test_a_reload_leaves_what_runs_takes_variables_anew_and_what_is_off_is_no_upstream(
    world: AgentWorld, tmp_path: Path
) -> None:
    task, pid = await begun(world)
    before = world.app.live.current.agents
    write(tmp_path, "", rules=RULES, behind=agents_yaml(AGENTS.replace("printf begun", "printf other")))
    await world.app.reload("operator")
    now = world.app.live.current.agents
    assert (now["echo"] is before["echo"], now["slow"] is before["slow"]) == (True, False)
    assert await state_now(world, task) == "working"
    assert alive(pid)
    write(tmp_path, "", rules=RULES, behind=agents_yaml(AGENTS.replace("slow: {", "slow: {enabled: false, ")))
    await world.app.reload("operator")
    answered = await rpc(world, "message/send", message("hi"), agent="slow")
    assert (answered.status, answered.reason) == (404, "upstream-unknown")
    assert alive(pid)
    write(tmp_path, "", rules=RULES, behind=agents_yaml(AGENTS.replace("{grpc_port: 0}", "{grpc_port: 9}")))
    await world.app.reload("operator")
    now = world.app.live.current
    assert now.agents["echo"].grpc_port == 0, "at the other nobody listens"
    assert now.waiting == ("agents.echo.a2a.grpc_port",)
    for token, size in (("four", "4"), ("fourteen", "8")):
        (tmp_path / "secret.env").write_text(f"TOKEN={token}\n")
        await world.app.reload("operator")
        assert output_of(await sent(world, "go", "secret")).strip() == size


async def test_who_waits_as_long_as_they_may_is_told_how_it_stands(world: AgentWorld) -> None:
    wire, alice = world.app.live.current.agents["slow"].wire, Caller((Principal("user:alice", "api-key"),), ())
    answer = await wire.ask(OutgoingOperation(SEND, message("go"), alice, deadline_s=1.0))
    assert state_of(answer["task"]) == "working"


async def test_a_question_is_answered_into_its_task_and_who_subscribes_hears_it_to_its_end(world: AgentWorld) -> None:
    asked = await sent(world, "go", "asks")
    assert (state_of(asked), asked["status"]["message"]["parts"]) == ("input_required", [{"text": "which?"}])
    into = {"taskId": asked["id"], "contextId": asked["contextId"]}
    again = await sent(world, "this", "asks", **into)
    roles = ["ROLE_USER", "ROLE_AGENT", "ROLE_USER"]
    assert (again["id"], [one["role"] for one in again["history"]]) == (asked["id"], roles)
    for binding, end in (("http_json", "completed"), ("jsonrpc", "canceled")):
        again = await sent(world, "go", "asks")
        params = {"id": again["id"]}
        hearing = asyncio.create_task(ask(world, "1.0", binding, "tasks/resubscribe", params, agent="asks"))
        await until(lambda: bool(world.app.pipeline.forwarder.streams))
        if end == "canceled":
            await rpc(world, "tasks/cancel", params, agent="asks")
        else:
            await sent(world, "that", "asks", taskId=again["id"], contextId=again["contextId"])
        first, *_, last = (await hearing).results
        last = last.get("task") or last["statusUpdate"]
        assert (state_of(first["task"]), state_of(last)) == ("input_required", end)
    done = await sent(world, "hi")
    for into, code in (({}, -32004), ({"contextId": asked["contextId"]}, -32602)):
        assert (await rpc(world, "message/send", message("more", taskId=done["id"], **into))).error["code"] == code


async def test_what_it_cannot_do_it_refuses_in_the_words_of_a2a(world: AgentWorld) -> None:
    image = {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": "x", "mediaType": "image/png"}]}
    tasks = {agent: (await sent(world, "hi", agent))["id"] for agent in ("echo", "quiet")}
    refused: list[tuple[str, str, dict[str, Any], int]] = [
        ("echo", "push/set", {"taskId": tasks["echo"], "id": "p", "url": HOOK}, -32003),
        ("echo", "push/list", {"taskId": tasks["echo"]}, -32003),
        ("echo", "push/set", {"taskId": "none", "id": "p", "url": HOOK}, -32003),  # whatever it is about
        ("echo", "message/send", {"message": image}, -32005),
        ("echo", "message/send", {"message": {**message("hi")["message"], "role": "ROLE_AGENT"}}, -32602),
        ("echo", "tasks/get", {"id": "none"}, -32001),
        ("echo", "tasks/cancel", {"id": tasks["echo"]}, -32002),
        ("quiet", "message/stream", message("hi"), -32004),
        ("quiet", "tasks/cancel", {"id": tasks["quiet"]}, -32004),
        ("quiet", "tasks/resubscribe", {"id": tasks["quiet"]}, -32004),
    ]
    for agent, action, params, code in refused:
        answered = await rpc(world, action, params, agent=agent)
        assert answered.error["code"] == code, (action, answered.error)


async def test_a_program_that_is_gone_is_degraded_then_offline_and_comes_back() -> None:
    now, found = [0.0], ["/bin/cat"]
    account = UpstreamAccount("echo", BreakerSettings(failures=3, open_s=30.0), clock_mono=lambda: now[0])
    probe = ProgramProbe(account, lambda: found[0] if found else None)

    async def looked() -> str:
        with suppress(Refusal):
            await probe.probe(1.0)
        return str(account.standing.status)

    assert await looked() == "ready"
    found.clear()
    assert [await looked() for _ in range(4)] == ["ready", "degraded", "offline", "offline"]
    found.append("/bin/cat")
    now[0] += 31.0
    assert await looked() == "ready"


async def test_one_that_fails_says_its_last_words_to_its_caller_and_is_no_fault_of_the_wire(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with sidecar(tmp_path) as world:
        task = await sent(world, "hi", "fails")
        assert state_of(task) == "failed"
        assert "no such thing" in task["status"]["message"]["parts"][0]["text"]
        assert world.app.upstreams()["fails"]["status"] == "ready"
    told = [str(vars(record)) for record in caplog.records]
    assert any("'category': 'agent'" in line for line in told)
    assert not any("no such thing" in line for line in told)  # they may repeat what its caller told it


async def test_its_card_is_ours_and_tells_no_path(world: AgentWorld) -> None:
    async with world.http.get(f"{world.url}/agents/slow/.well-known/agent-card.json", headers=ALICE) as response:
        assert not {"sh", "work", "sleep"} & set(re.findall(r"\w+", await response.text()))
    async with world.http.get(f"{world.url}/agents/echo/.well-known/agent-card.json", headers=ALICE) as response:
        card = await response.json()
    assert (card["name"], card["description"]) == ("echo", "Says what it is told.")
    assert card["capabilities"]["streaming"] is True
    assert [skill["id"] for skill in card["skills"]] == ["echo"]
    async with world.http.get(f"{world.url}/agents/unused/.well-known/agent-card.json", headers=ALICE) as response:
        assert response.status == 404


async def test_a_stop_ends_what_runs_and_the_next_start_says_so(tmp_path: Path) -> None:
    async with sidecar(tmp_path, settings="") as world:
        task, pid = await begun(world)
        write(tmp_path, "", rules=RULES, behind=agents_yaml())
    assert not alive(pid)
    async with sidecar(tmp_path) as world:
        assert await state_now(world, task) == "failed"

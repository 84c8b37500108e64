"""Do two who chose the same name for a conversation ever meet, or learn of each other?"""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from sidecar.gateway.frontends.a2a.context_ids import ContextIds, alike
from tests.a2a.test_pushing import push, receiving
from tests.a2a.world import ALICE, BOB, HELLO, SPOKEN, AgentWorld, ScriptedAgent, agent_world, ask, task

RPC: Any = ("1.0", "jsonrpc")
WHO = (ALICE, BOB)
HERS = "0aa6f1a4-41e1-4c0e-9f3c-0d2f6b1e7c55"
SPELLINGS = [HERS, HERS.upper(), HERS.replace("-", ""), f"{{{HERS}}}", f"urn:uuid:{HERS}", f" {HERS}\n"]


def remembering() -> ScriptedAgent:
    """An agent whose tasks stay in the conversations that they were begun in."""
    agent = ScriptedAgent()
    tasks: list[dict[str, Any]] = []

    def begin(context: str) -> dict[str, Any]:
        made = task(f"t{len(tasks) + 1}", context, "TASK_STATE_WORKING")
        said = {"messageId": "m", "contextId": context, "taskId": made["id"], "role": "ROLE_AGENT", "parts": []}
        made |= {"history": [said], "status": {**made["status"], "message": said}}
        tasks.append(made)
        return made

    def streamed(_: str, params: dict[str, Any]) -> Any:
        made = begin(params["message"]["contextId"])
        about = {"taskId": made["id"], "contextId": made["contextId"]}
        update = {**about, "artifact": {"artifactId": "a", "parts": [{"text": "x"}]}}
        return [{"task": made}, {"artifactUpdate": update}, {"statusUpdate": {**about, "status": made["status"]}}]

    def named(_: str, params: dict[str, Any]) -> Any:
        return next(one for one in tasks if one["id"] == params["id"])

    def listed(_: str, params: dict[str, Any]) -> Any:
        found = [one for one in tasks if one["contextId"] == params.get("contextId", one["contextId"])]
        return {"tasks": found, "totalSize": len(found), "pageSize": 50}

    agent.script |= {
        "SendMessage": lambda _, params: {"task": begin(params["message"]["contextId"])},
        "SendStreamingMessage": streamed,
        "GetTask": named,
        "CancelTask": named,
        "SubscribeToTask": lambda method, params: [{"task": named(method, params)}],
        "ListTasks": listed,
    }
    return agent


def into(context: str, **more: Any) -> dict[str, Any]:
    return {"message": {**HELLO, "contextId": context, **more}}


def names_at(world: AgentWorld) -> list[str]:
    """What conversations were called in the messages that reached the agent."""
    messages = (said["params"]["message"] for _, said in world.agent.seen if "Message" in said["method"])
    return [message["contextId"] for message in messages]


@pytest.mark.parametrize("way", SPOKEN)
async def test_anothers_name_is_answered_as_one_that_nobody_has_in_every_operation(way: Any, tmp_path: Path) -> None:
    """Byte for byte, but for what names the two tasks and conversations."""
    async with agent_world(tmp_path, remembering()) as world:
        assert (await ask(world, *RPC, "message/send", into("daily"))).error is None
        told: dict[str, list[bytes]] = {}
        for context, name, streamed in (("daily", "t2", "t3"), ("quiet", "t4", "t5")):
            asked: list[tuple[str, dict[str, Any]]] = [
                ("message/send", into(context)),
                ("message/stream", into(context)),
                ("tasks/get", {"id": name}),
                ("tasks/resubscribe", {"id": streamed}),
                ("tasks/cancel", {"id": name}),
                ("message/send", into(context, taskId="t9")),
                *([("tasks/list", {"contextId": context}), ("tasks/list", {})] if way[0] == "1.0" else []),
            ]
            for action, params in asked:
                answered = await ask(world, *way, action, params, BOB)
                if action != "tasks/list" or params:
                    said = answered.raw.replace(name.encode(), b"T").replace(streamed.encode(), b"S")
                    told.setdefault(context, []).append(_without_our_ids(said.replace(context.encode(), b"C")))
        assert told["daily"] == told["quiet"]
        alices, bobs, *others = names_at(world)
        assert alices == "daily" and bobs.endswith("~daily") and others == [bobs, "quiet", "quiet"]
        if way[0] == "1.0":
            pages = [(await ask(world, *way, "tasks/list", {"contextId": "daily"}, who)).results[0] for who in WHO]
            ids = [[(one["id"], one["contextId"]) for one in page["tasks"]] for page in pages]
            assert ids == [[("t1", "daily")], [("t2", "daily"), ("t3", "daily")]]


def _without_our_ids(raw: bytes) -> bytes:
    """A refusal without the number of its decision."""
    before, found, after = raw.partition(b'"decision_id"')
    return before + found + after.partition(b"}")[2] if found else raw


async def test_what_an_agent_pushes_has_the_name_that_its_owner_chose(tmp_path: Path) -> None:
    async with receiving() as receiver, agent_world(tmp_path, remembering()) as world:
        await ask(world, *RPC, "message/send", into("daily"))
        config = {"configuration": {"taskPushNotificationConfig": {"url": receiver.url}}}
        assert (await ask(world, *RPC, "message/send", {**into("daily"), **config}, BOB)).error is None
        said = world.agent.seen[-1][1]["params"]
        about = {"taskId": "t2", "contextId": said["message"]["contextId"]}
        done = {"statusUpdate": {**about, "status": {"state": "TASK_STATE_COMPLETED"}}}
        assert await push(world, said["configuration"]["taskPushNotificationConfig"], done) == 204
        await receiver.hears()
        assert receiver.heard[0][1]["statusUpdate"]["contextId"] == "daily"


async def test_of_many_who_begin_a_conversation_at_once_each_has_one(tmp_path: Path) -> None:
    async with agent_world(tmp_path) as world:
        told = await asyncio.gather(*(ask(world, *RPC, "message/send", into("common"), who) for who in [*WHO] * 5))
        assert {one.results[0]["task"]["contextId"] for one in told} == {"common"}
        names = names_at(world)
        assert sorted(map(names.count, set(names))) == [5, 5] and "common" in names


@pytest.mark.parametrize("spelled", [*SPELLINGS, HERS.translate({49: 0xFF11}), HERS.translate({49: 0x0661})])
async def test_no_other_spelling_leads_into_anothers_conversation(spelled: str, tmp_path: Path) -> None:
    """An agent with a column for UUIDs takes all of them for the same one, and one with a short column their
    beginning."""
    async with agent_world(tmp_path) as world:
        for context, who in ((HERS, ALICE), (spelled, BOB), (HERS, BOB), (spelled, ALICE)):
            answered = await ask(world, *RPC, "message/send", into(context), who)
            assert answered.results[0]["task"]["contextId"] == context
        first, bobs, again, alices = names_at(world)
        assert (first, alices) == (HERS, spelled)
        assert bobs[:32] == again[:32] and alike(HERS)[:8] not in alike(bobs[:36])


async def test_each_goes_on_with_their_own_after_a_restart(tmp_path: Path) -> None:
    agent = remembering()
    for _ in range(2):
        async with agent_world(tmp_path, agent) as world:
            for who in WHO:
                assert (await ask(world, *RPC, "message/send", into("daily"), who)).error is None
    names = names_at(world)
    assert names[:2] == names[2:] and names[0] == "daily" != names[1]


async def test_a_name_that_is_too_long_to_be_ones_own_is_unidentified(tmp_path: Path) -> None:
    async with agent_world(tmp_path) as world:
        for who in WHO:
            for length, fits in ((991, True), (992, False), (100_000, False)):
                answered = await ask(world, *RPC, "message/send", into("x" * length), who)
                assert (answered.error is None) is fits
            assert (await ask(world, *RPC, "tasks/list", {"contextId": "x" * 100_000}, who)).results[0]["tasks"] == []
        for length, fits in ((1024, True), (1025, False)):
            world.agent.script["SendMessage"] = lambda *_, many=length: {"task": task(f"t{many}", "y" * many)}
            answered = await ask(world, *RPC, "message/send", {"message": HELLO})
            assert (answered.error is None) is fits


def test_only_what_is_ours_is_taken_from_what_an_agent_says() -> None:
    bobs, carols = ContextIds(b"s", "bob", "writer"), ContextIds(b"s", "carol", "writer")
    own = bobs.own("Daily")
    assert own != carols.own("Daily") != ContextIds(b"other", "carol", "writer").own("Daily")
    assert bobs.key(own) == bobs.key(own.upper()) == bobs.key(bobs.own("d-aily")) != bobs.key("Daily")
    for foreign in (carols.own("Daily"), "Daily", f"{'0' * 32}~Daily", "~", "", own[:33]):
        assert bobs.shown({"contextId": foreign}) == {"contextId": foreign}
    said = {"task": {"contextId": own, "metadata": {"contextId": own}, "history": [{"contextId": own, "parts": own}]}}
    history = [{"contextId": "Daily", "parts": own}]
    assert bobs.shown(said) == {"task": {"contextId": "Daily", "metadata": {"contextId": own}, "history": history}}


@given(
    st.text(st.characters(max_codepoint=127), max_size=50)
    | st.from_regex(r"urn:uuid:[0-9A-Fa-f-]{32,36}", fullmatch=True)
)
def test_what_is_ascii_is_read_as_any_other_text(text: str) -> None:
    wide = text.translate({code: code + 0xFEE0 for code in range(0x21, 0x7F)})  # the same letters to NFKC
    assert not any(map(str.isalnum, text)) or alike(text) == alike(wide)

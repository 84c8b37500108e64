"""Does a caller over A2A go on with their own process, through every binding, until it ends, and hear that it did?"""

import sys
from pathlib import Path
from typing import Any

from tests.a2a.world import ALICE, BOB, SPOKEN, AgentWorld, ask, write
from tests.flow.test_cli_agents import RULES, agents_yaml, message, output_of, sidecar, state_of, task_in
from tests.flow.world import until

CHAT = """\
import sys
for n, line in enumerate(sys.stdin, 1):
    print(n, line.strip(), flush=True)
"""
SOLVER = """\
import json, sys
numbers = []
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked: continue
    params = asked["params"]
    numbers += params["text"].split()
    if numbers and numbers[-1] != "=":
        result = {"state": "input-required", "text": "and?"}
    else:
        result = {"text": str(sum(map(int, numbers[:-1]))), "parts": [{"data": params["taskId"]}]}
        numbers = []
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""
AGENTS = f"""\
  chat:
    executable: {sys.executable}
    args: ["-ISu", chat.py]
    mode: interactive
    working_directory: .
    a2a: {{grpc_port: 0}}
  solver:
    executable: {sys.executable}
    args: ["-ISu", solver.py]
    agent_type: json-rpc
    mode: interactive
    working_directory: .
"""


def programs(folder: Path) -> None:
    (folder / "chat.py").write_text(CHAT)
    (folder / "solver.py").write_text(SOLVER)


async def said(world: AgentWorld, text: str, context: str = "", **more: Any) -> dict[str, Any]:
    """The task that a message to the chat is, in a conversation."""
    into = {"contextId": context} if context else {}
    return task_in(await ask(world, "1.0", "jsonrpc", "message/send", message(text, **into), agent="chat", **more))


async def test_every_binding_reaches_the_same_process_and_nobody_else_does(tmp_path: Path) -> None:
    programs(tmp_path)
    async with sidecar(tmp_path, AGENTS) as world:
        context = (await said(world, "hello"))["contextId"]
        for number, (version, binding) in enumerate(SPOKEN, 2):
            params = message("on", contextId=context)
            task = task_in(await ask(world, version, binding, "message/send", params, agent="chat"))
            assert (state_of(task), output_of(task)) == ("completed", f"{number} on")
        params = message("on", contextId=context)
        theirs = task_in(await ask(world, "1.0", "jsonrpc", "message/send", params, BOB, "chat"))
        assert (output_of(theirs), theirs["contextId"]) == ("1 on", context), "a conversation of his own, called so"
        assert output_of(await said(world, "on", context)) == f"{len(SPOKEN) + 2} on"
        refused = await ask(
            world, "1.0", "jsonrpc", "message/send", message("one\ntwo", contextId=context), ALICE, "chat"
        )
        assert "several lines" in refused.error["message"]


async def test_a_question_and_its_answers_are_one_task_in_one_process(tmp_path: Path) -> None:
    programs(tmp_path)
    async with sidecar(tmp_path, AGENTS) as world:
        asked = task_in(await ask(world, "1.0", "jsonrpc", "message/send", message("1 2"), agent="solver"))
        assert (state_of(asked), asked["status"]["message"]["parts"]) == ("input_required", [{"text": "and?"}])
        for text in ("39", "="):
            into = {"taskId": asked["id"], "contextId": asked["contextId"]}
            answered = await ask(world, "1.0", "jsonrpc", "message/send", message(text, **into), agent="solver")
        solved = task_in(answered)
        assert (state_of(solved), solved["id"]) == ("completed", asked["id"])
        assert [one["parts"] for one in solved["artifacts"]] == [[{"text": "42"}, {"data": asked["id"]}]]


async def test_the_next_message_says_why_a_process_ended(tmp_path: Path) -> None:
    programs(tmp_path)
    async with sidecar(tmp_path, AGENTS) as world:
        context = (await said(world, "hello"))["contextId"]
        await world.app.disable("user:alice", reason="gone", until=None, by="operator")
        chat = world.app.executions._offers["chat"].runner
        await until(lambda: chat.count == 0)  # type: ignore[attr-defined]
        await world.app.enable("user:alice", by="operator")
        again = await said(world, "back", context)
        assert output_of(again) == "1 back"
        assert "principal-disabled" in again["history"][-1]["parts"][0]["text"]
        changed = AGENTS.replace("    mode: interactive\n", "    mode: interactive\n    timeout: 60\n")
        write(tmp_path, "", rules=RULES, behind=agents_yaml(changed))
        await world.app.reload("operator")
        again = await said(world, "still there?", context)
        assert output_of(again) == "1 still there?"
        assert "(the agent was changed)" in again["history"][-1]["parts"][0]["text"]

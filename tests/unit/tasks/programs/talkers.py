"""Programs that are talked with, one good and many bad, as the source of a Python program each."""

import os
import sys
from typing import Any

from sidecar.settings.agents import CliAgent
from sidecar.tasks.programs.attempt import AttemptEnd, Dialogue, Event, OutputChunk, ProgramOrder, ProgramRunner, Prompt
from sidecar.tasks.programs.conversation import ConversationProcess
from sidecar.tasks.programs.json_rpc import RpcDialogue
from sidecar.tasks.programs.line_protocol import LineDialogue
from sidecar.tasks.programs.output_cleaner import CleaningRules
from sidecar.tasks.programs.supervised_process import SupervisedProcess
from sidecar.upstreams.processes.launcher import Processes, Program
from sidecar.vocabulary import Caller, Principal

# Says after each prompt how many there were and what it was. Some prompts are orders.
LINES = """
import os, signal, sys, time
n = 0
for line in sys.stdin:
    n += 1
    text = line.rstrip("\\n")
    if text == "exit": sys.exit(3)
    if text == "die": os.kill(os.getpid(), signal.SIGSEGV)
    if text == "hang": time.sleep(600)
    if text == "deaf": os.close(0)
    if text == "mute": os.close(1); time.sleep(600)
    if text == "flood":
        while True: os.write(1, b"x" * 65536)
    if text == "complain": os.write(2, b"e" * 1_000_000)
    said = f"{n} {text}\\n"
    if text == "more": said += "and more\\n" * 30_000
    os.write(1, said.encode())
    if text == "quit": print("bye", end="", file=sys.stderr); sys.exit(0)
"""
# The same in JSON-RPC, with more that it can be told to do.
RPC = """
import json, os, sys, time
def say(**message): print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
n = 0
while line := sys.stdin.readline():
    asked = json.loads(line)
    if "id" not in asked: continue
    n += 1
    params, number = asked["params"], asked["id"]
    text = params["text"]
    if text == "exit": sys.exit(3)
    if text == "params": say(id=number, result=json.dumps(params)); continue
    if text == "agree":
        told = json.loads(sys.stdin.readline())
        say(id=told["params"]["id"], result={"state": "canceled"})
        continue
    if text == "hang":
        while True: say(method="progress", params={"message": "still here"}); time.sleep(0.01)
    if text == "break": print('{"jsonrpc":', flush=True); time.sleep(600)
    if text == "ask":
        say(id="q", method="roots/list")
        say(method="output", params={"text": str(json.loads(sys.stdin.readline())["error"]["code"])})
    if text == "fail": say(id=number, error={"code": 1, "message": "busy", "data": {"category": "transient"}}); continue
    if text == "which": say(id=number, result={"state": "input-required", "text": "which?"}); continue
    if text == "late": say(method="output", params={"text": "in time"})
    say(id=number, result=f"{n} {text}")
    if text == "late":
        for at in range(500): say(method="output", params={"text": "late"})
"""


def python(source: str) -> Program:
    return Program(sys.executable, ["python", "-I", "-S", "-c", source], {"PATH": os.environ.get("PATH", os.defpath)})


def caller(name: str = "user:alice") -> Caller:
    return Caller((Principal(name, "test"),), ())


def order(
    text: str, *, by: str = "user:alice", context: str = "c-1", deadline_s: float = 5.0, **chosen: Any
) -> ProgramOrder:
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}]}
    prompt = Prompt(text, chosen.get("cli_args", {}), chosen.get("envs", {}), chosen.get("folder"), message)
    who = caller(by)
    return ProgramOrder("x-1", "t-1", context, who.binding, prompt, deadline_s, caller=who)


def definition(**more: Any) -> CliAgent:
    return CliAgent.model_validate({"executable": "python", "mode": "interactive"} | more)


class Launcher:
    """Starts the same program for every order, and counts."""

    def __init__(self, processes: Processes, source: str, section: CliAgent, secrets: tuple[str, ...] = ()) -> None:
        self._processes = processes
        self._program = python(source)
        self._section = section
        self._cleaning = CleaningRules(secrets=secrets)
        self.started: list[ConversationProcess] = []

    def names(self, path: str, *arguments: str) -> None:
        """Another program, from now on."""
        self._program = Program(path, [path, *arguments], dict(self._program.env))

    async def __call__(self, order: ProgramOrder) -> ConversationProcess:
        talk = self._talk()
        told = talk.begin(order)
        attended = await SupervisedProcess.start(self._processes, self._program, self._cleaning)
        self.started.append(ConversationProcess(attended, talk, told, self._cleaning, self._section))
        return self.started[-1]

    def _talk(self) -> Dialogue:
        section = self._section
        most = section.a2a.capabilities.max_output_size
        if section.patterns.input == "json-rpc":
            return RpcDialogue(most)
        return LineDialogue(section.turn_end, section.newlines, greets=section.greets, max_said_bytes=most)


async def tried(runner: ProgramRunner, one: ProgramOrder) -> list[Event]:
    return [event async for event in runner.run(one)]


def text(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, OutputChunk))


def end(events: list[Event]) -> AttemptEnd:
    (last,) = (event for event in events if isinstance(event, AttemptEnd))
    assert last is events[-1]
    return last

"""Does every turn of every conversation hear its own answer, from a process that nobody else ever met?

`python -m bench.conversations [TURNS]` has sixteen callers hold conversations with kept processes, over lines and over
JSON-RPC, as fast as they answer: some say more than they were asked, some crash, some hang, and a part of the turns is
given up at a moment drawn by lot. Each process says who it has heard so far. Then it counts what is left.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from sidecar.settings.agents import CliAgent
from sidecar.tasks.programs.attempt import AttemptEnd, OutputChunk, ProgramOrder, Prompt
from sidecar.tasks.programs.conversation import ConversationProcess
from sidecar.tasks.programs.conversations import Conversations
from sidecar.tasks.programs.json_rpc import RpcDialogue
from sidecar.tasks.programs.line_protocol import LineDialogue
from sidecar.tasks.programs.output_cleaner import CleaningRules
from sidecar.tasks.programs.supervised_process import SupervisedProcess
from sidecar.upstreams.processes.launcher import Processes, Program
from sidecar.vocabulary import Caller, Principal

TURNS = 2_000
CALLERS = 16
GONE_WITHIN_S, LOOKS_EVERY_S = 30.0, 0.02
CONTEXTS = 3
GIVEN_UP = 0.15
DEEDS = ("plain", "plain", "plain", "plain", "more", "exit", "hang")
LINES = """
import os, sys, time
met = set()
for line in sys.stdin:
    who, number, deed = line.split()
    met.add(who)
    if deed == "exit": os._exit(3)
    if deed == "hang": time.sleep(600)
    os.write(1, f"{number} {','.join(met)}\\n".encode() + b"and more\\n" * (5_000 if deed == "more" else 0))
"""
RPC = """
import json, os, sys, time
met = set()
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked: continue
    who, number, deed = asked["params"]["text"].split()
    met.add(who)
    if deed == "exit": os._exit(3)
    if deed == "hang":
        told = json.loads(sys.stdin.readline())
        print(json.dumps({"jsonrpc": "2.0", "id": told["params"]["id"], "result": None}), flush=True)
        continue
    say = {"jsonrpc": "2.0", "id": asked["id"], "result": f"{number} {','.join(met)}"}
    more = {"jsonrpc": "2.0", "method": "output", "params": {"text": "and more", "id": asked["id"]}}
    print(json.dumps(say) + ("\\n" + json.dumps(more)) * (300 if deed == "more" else 0), flush=True)
"""


class Bench:
    """Conversations with one kind of program, and what became of the turns."""

    def __init__(self, processes: Processes, source: str, **more: Any) -> None:
        plain = {"executable": "python", "mode": "interactive", "max_sessions": 36, "max_concurrent_executions": 12}
        self._section = CliAgent.model_validate(plain | more)
        self._processes = processes
        self._source = source
        self.counts: Counter[str] = Counter()
        self.most = 0
        self.conversations = Conversations("bench", self._section, self._launch)

    async def _launch(self, order: ProgramOrder) -> ConversationProcess:
        lines = LineDialogue("\n", "refuse", greets=False, max_said_bytes=1_000_000)
        talk = RpcDialogue(1_000_000) if self._section.patterns.input == "json-rpc" else lines
        told = talk.begin(order)
        argv = ["python", "-I", "-S", "-c", self._source]
        attended = await SupervisedProcess.start(self._processes, Program(sys.executable, argv, {}), CleaningRules())
        self.counts["processes"] += 1
        return ConversationProcess(attended, talk, told, CleaningRules(), self._section)

    async def turn(self, who: str, context: str, number: int, deed: str, given_up_s: float | None) -> None:
        """One turn, and whether what it heard was meant for it."""
        whose = f"{who}/{context}"
        turn = asyncio.create_task(self._said(who, context, f"{whose} {number} {deed}"))
        if given_up_s is not None:
            await asyncio.sleep(given_up_s)
            turn.cancel()
        await asyncio.wait({turn})
        self.most = max(self.most, self.conversations.count)
        if turn.cancelled():
            self.counts["given up"] += 1
            return
        said, ended = turn.result()
        self.counts["turns"] += 1
        if ended.failure is not None:
            self.counts["failed as meant" if deed in ("exit", "hang") else "failed"] += 1
        else:
            self.counts["own answer" if said == f"{number} {whose}" else "another's answer"] += 1

    async def _said(self, who: str, context: str, text: str) -> tuple[str, AttemptEnd]:
        caller = Caller((Principal(who, "bench"),), ())
        order = ProgramOrder("x", "t", context, caller.binding, Prompt(text, {}, {}, None, {}), 1.0, caller=caller)
        said = ""
        async for event in self.conversations.run(order):
            if isinstance(event, OutputChunk):
                said += event.text
            if isinstance(event, AttemptEnd):
                return said, event
        raise AssertionError("a try without an end")


async def run(turns: int, source: str, seed: int = 1, **more: Any) -> dict[str, int]:
    """So many turns, and what became of them; `left` is how many processes are there when all is closed."""
    draw = random.Random(seed)
    processes = Processes({})
    bench, numbers = Bench(processes, source, **more), iter(range(turns))

    async def speak(who: str) -> None:
        for number in numbers:
            given_up_s = draw.uniform(0.0, 0.06) if draw.random() < GIVEN_UP else None
            deed = draw.choice(DEEDS)
            if deed == "hang":  # one that is not given up costs its whole time
                given_up_s = draw.uniform(0.0, 0.06)
            await bench.turn(who, f"c-{draw.randrange(CONTEXTS)}", number, deed, given_up_s)

    await asyncio.gather(*[speak(f"caller-{number}") for number in range(CALLERS)])
    await bench.conversations.close()
    left = await _left_below(processes.warden_pid)
    await processes.close()
    return {**bench.counts, "most at once": bench.most, "left": left}


async def _left_below(warden: int | None) -> int:
    """How many keepers there still are when each had the time to go, also on a busy machine."""
    left = 0
    for _ in range(round(GONE_WITHIN_S / LOOKS_EVERY_S)):
        left = _below(warden)
        if not left:
            break
        await asyncio.sleep(LOOKS_EVERY_S)
    return left


def _below(warden: int | None) -> int:
    return len(Path(f"/proc/{warden}/task/{warden}/children").read_text("ascii").split())


def main() -> None:
    """Measure, and print a table."""
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else TURNS
    for name, source, spoken in (("lines", LINES, "stdin-stdout"), ("JSON-RPC", RPC, "json-rpc")):
        began = time.monotonic()
        counts = asyncio.run(run(turns, source, agent_type=spoken))
        print(f"{name}: {turns} attempts in {time.monotonic() - began:.1f} s, {os.cpu_count()} cores")
        print(json.dumps(counts, indent=2))
        if counts.get("another's answer") or counts["left"]:
            sys.exit(1)


if __name__ == "__main__":
    main()

"""Does anything stay behind, and does anything grow, when agents run ten thousand times?

`python -m bench.runs [RUNS]` runs programs as agents, eight at a time: told on their standard input, by a file or by an
argument, answering there or in a file, each told one of five hundred hostile prompts, which must come back as it went.
A tenth is given up at a moment drawn by lot, a tenth leaves a grandchild that ignores being asked. Before and after it
counts what is there: processes, zombies, descriptors, folders, memory. Linux only.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import sys
import tempfile
import time
from collections import Counter
from contextlib import aclosing
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import uvloop

from bench.children import _below, _descriptors
from sidecar.settings.agents import CliAgent
from sidecar.tasks.programs.attempt import AttemptEnd, OutputChunk, ProgramOrder, ProgramRunner, Prompt
from sidecar.tasks.programs.runners import runner_from
from sidecar.tasks.programs.working_folders import PREFIX
from sidecar.upstreams.processes.launcher import Processes

RUNS = 10_000
AT_ONCE = 8
WARM_UP = 200  # what the allocator, the warden and the event loop take once
PROMPTS = 500
WORDS = (
    *("--", "-", "--help", "-rf", "@file", "=", "'", '"', "\\", "\n", "\r", "\t", " ", "$HOME", "$(id)", "`id`", "%s"),
    *(
        "*",
        "~",
        "|",
        ";",
        "&",
        ">",
        "<",
        "\x1b[31m",
        "\x7f",
        "\u202e",
        "é",
        "\ufeff",
        "/etc/passwd",
        "{prompt}",
        "long" * 999,
    ),
)
ECHO_OF = {"stdin": "cat", "file": 'cat "$1"', "args": 'printf %s "$2"'}
LEAVES = "(trap '' TERM; setsid sleep 600 &) ; "


class Counted(NamedTuple):
    """What is there at one moment."""

    processes: int
    zombies: int
    descriptors: int
    folders: int
    memory_bytes: int
    warden_bytes: int


class Total(NamedTuple):
    """What came of all runs, and what they left."""

    seconds: float
    came_to: Counter[str]
    before: Counted
    after: Counted


def agents() -> list[CliAgent]:
    """Every way of telling a program and of hearing it, and the same with what leaves something behind."""
    found = []
    for leaves in ("", LEAVES):
        for source, echo in ECHO_OF.items():
            found.append(_agent(leaves + echo, source, "stdout"))
            place = {"stdin": '"$1"', "file": '"$2"', "args": '"$1"'}[source]
            echo = echo.replace("$2", "$3") if source == "args" else echo
            found.append(_agent(f"{leaves}{echo} > {place}", source, "file"))
    return found


def _agent(script: str, source: str, to: str) -> CliAgent:
    told: dict[str, Any] = {"input_pattern": source, "output_pattern": to, "strip_control": False}
    return CliAgent.model_validate({"executable": "/bin/sh", "args": ["-c", script, "sh"], "timeout": 30} | told)


async def run(runs: int, seed: int = 1) -> Total:
    """Run them so often, and look."""
    draw = random.Random(seed)
    prompts = ["".join(draw.choices(WORDS, k=draw.randint(1, 12))) for _ in range(PROMPTS)]
    processes = Processes(dict(os.environ))
    definitions = agents()
    runners = [runner_from(f"agent-{index}", one, processes, os.environ) for index, one in enumerate(definitions)]
    plain, leaving = runners[: len(runners) // 2], runners[len(runners) // 2 :]

    async def some(count: int) -> Counter[str]:
        came_to: Counter[str] = Counter()
        turns = iter(range(count))

        async def work() -> None:
            for turn in turns:
                lot = draw.random()
                runner = draw.choice(leaving if lot < 0.1 else plain)
                gives_up_s = draw.uniform(0, 0.02) if lot > 0.9 else None
                came_to[await _tried(runner, prompts[turn % PROMPTS], turn, gives_up_s)] += 1

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
        return came_to

    await some(min(WARM_UP, runs))
    await _settled(processes)
    before, began_s = _counted(processes), time.monotonic()
    came_to = await some(runs)
    seconds = time.monotonic() - began_s
    await _settled(processes)
    total = Total(seconds, came_to, before, _counted(processes))
    await processes.close()
    return total


async def _tried(runner: ProgramRunner, text: str, number: int, gives_up_s: float | None) -> str:
    """One run; what it came to in a word."""
    prompt = Prompt(text, {}, {}, None, {})
    order = ProgramOrder(f"run-{number}", f"run-{number}", "context", "bench", prompt, 30.0)
    said, last = "", None
    try:
        async with asyncio.timeout(gives_up_s), aclosing(runner.run(order)) as events:
            async for event in events:
                if isinstance(event, OutputChunk):
                    said += event.text
                last = event
    except TimeoutError:
        return "given up"
    if not isinstance(last, AttemptEnd) or last.failure is not None:
        return f"failed: {last}"
    return "right" if said == text else f"wrong: {text!r} came back as {said!r}"


async def _settled(processes: Processes) -> None:
    """What was given up is given its time."""
    for _ in range(100):
        if not any(_below(processes)) and not _folders():
            return
        await asyncio.sleep(0.05)


def _counted(processes: Processes) -> Counted:
    gc.collect()
    below = list(_below(processes))
    warden = 0 if processes.warden_pid is None else psutil.Process(processes.warden_pid).memory_info().rss
    zombies = sum(child.status() == psutil.STATUS_ZOMBIE for child in psutil.Process().children(recursive=True))
    return Counted(len(below), zombies, _descriptors(), _folders(), psutil.Process().memory_info().rss, warden)


def _folders() -> int:
    places = (f"{PREFIX}*", f"sidecar-{os.getpid()}-*")
    return sum(len(list(Path(tempfile.gettempdir()).glob(place))) for place in places)


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        total = uvloop.run(run(runs))
    print(f"{runs} runs in {total.seconds:.0f} s, {runs / total.seconds:.0f} a second, {AT_ONCE} at once")
    for what, count in total.came_to.most_common(8):
        print(f"  {count:>7} {what[:200]}")
    print(f"{'':>14}{'before':>12}{'after':>12}")
    for what, before, after in zip(Counted._fields, total.before, total.after, strict=True):
        print(f"{what:>14}{before:>12}{after:>12}")
    left = total.after
    well = set(total.came_to) <= {"right", "given up"} and left.processes + left.zombies + left.folders == 0
    raise SystemExit(0 if well and left.descriptors <= total.before.descriptors else 1)


if __name__ == "__main__":
    main()

"""Does anything stay behind, and does anything grow, when programs are called ten thousand times over A2A?

    python -m bench.agents_many [--runs 10000]

One `sidecar serve`, and sixteen callers at once: each run is waited for, cancelled, listened to, or left in the middle
of its stream; its program says its number, fails, takes too long, or leaves a child that left its session. Told on
standard input, by files, over JSON-RPC, or in conversations with a process of their own. Each must end as its program
did. Before, half-way and after it is counted what there is: processes, zombies, descriptors, folders, memory. The table
goes to `bench/agents_many.json`. Linux only.
"""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
import click
import psutil
import uvloop

from bench.errands import ASKED, CHATS, FILED, TALKS, TOKEN, TOLD, marked, write_folder
from bench.process import Running, free_port, running, wait_for_200

OUT = Path(__file__).parent / "agents_many.json"
AT_ONCE = 16
CONVERSATIONS = 8
WARM_UP = 0.05  # of the runs: what allocator, caches and connections take once
GONE_WITHIN_S = 5.0
TIMEOUT_S = 2.0
OF_A_PROGRAM = 4  # descriptors: its three streams and its keeper's line
DONE, FAILED, CANCELED = "TASK_STATE_COMPLETED", "TASK_STATE_FAILED", "TASK_STATE_CANCELED"
OVER: Final = (DONE, FAILED, CANCELED)
# Out of a hundred: how a caller waits for it, and what its program does.
LOTS: Final = {
    ("waits", "works"): 45,
    ("waits", "fails"): 10,
    ("waits", "leaves"): 5,
    ("waits", "hangs"): 1,
    ("listens", "works"): 17,
    ("leaves", "works"): 10,
    ("cancels", "hangs"): 12,
}
MEANT: Final = {"works": (DONE,), "leaves": (DONE,), "fails": (FAILED,), "hangs": (FAILED, CANCELED)}
# The same deeds as `errand.py`, by what starts faster than an interpreter. Answers JSON-RPC by cutting lines.
PROGRAM: Final = r"""
does() {
  case $2 in
    fails) return 1;;
    hangs) sleep 600;;
    leaves) setsid sleep 600 <&- >&- 2>&- & ;;
  esac
  said="did $1"
}
how=$1
shift
case $how in
  stdin) read -r trace deed _; does $trace $deed || exit 1; echo "$said";;
  file) read -r trace deed _ < "$1"; does $trace $deed || exit 1; echo "$said" > "$2";;
  lines) while read -r trace deed _; do does $trace $deed || exit 1; echo "$said"; done;;
  json-rpc*)
    while read -r line; do
      id=${line#*'"id":'}; id=${id%%[,\}]*}; text=${line#*'"text":"'}; text=${text%%'"'*}
      set -- $text
      if does $1 $2; then echo "{\"jsonrpc\":\"2.0\",\"id\":$id,\"result\":\"$said\"}"
      else echo "{\"jsonrpc\":\"2.0\",\"id\":$id,\"error\":{\"code\":1,\"message\":\"it could not\"}}"; fi
    done;;
esac
"""


@dataclass
class Crowd:
    """Everybody who calls. `counts` is what was asked for and what came of it, `wrong` what was not meant."""

    url: str
    http: aiohttp.ClientSession
    chance: random.Random
    lots: Mapping[tuple[str, str], int]
    counts: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    _left: dict[int, tuple[str, str, dict[str, Any]]] = field(default_factory=dict)
    _contexts: dict[tuple[int, str], str] = field(default_factory=dict)

    async def run(self, runs: int) -> None:
        """So many."""
        turns = iter(range(runs))

        async def work(place: int) -> None:
            for _ in turns:
                await self._one(place)

        await asyncio.gather(*(work(place) for place in range(AT_ONCE)))

    async def all_over(self) -> None:
        """Until what was left in the middle is over too."""
        for place in list(self._left):
            await self._see_left(place)

    async def _see_left(self, place: int) -> None:
        """What this caller left in the middle has ended as its program did."""
        if place not in self._left:
            return
        agent, trace, task = self._left.pop(place)
        async with asyncio.timeout(60):
            while task["status"]["state"] not in OVER:
                task = await self._asked(agent, "GetTask", {"id": task["id"]})
        self._expect(agent, "works", trace, task)

    async def _one(self, place: int) -> None:
        await self._see_left(place)
        [(how, deed)] = self.chance.choices(list(self.lots), weights=list(self.lots.values()))
        agent = self.chance.choice((TOLD, FILED, ASKED) + ((TALKS, CHATS) if place < CONVERSATIONS else ()))
        if deed == "leaves" and agent in (TALKS, CHATS):
            deed = "works"  # what its conversation's process leaves may stay as long as that
        self.counts[f"{how}, {deed}"] += 1
        trace = secrets.token_hex(4)
        message: dict[str, Any] = {"messageId": trace, "role": "ROLE_USER", "parts": [{"text": f"{trace} {deed} 0"}]}
        if agent in (TALKS, CHATS) and (place, agent) in self._contexts:
            message["contextId"] = self._contexts[place, agent]
        params: dict[str, Any] = {"message": message}
        if how in ("listens", "leaves"):
            task = await self._heard(agent, params, leaves=how == "leaves")
        else:
            if how == "cancels":
                params["configuration"] = {"returnImmediately": True}
            task = (await self._asked(agent, "SendMessage", params))["task"]
            if how == "cancels":
                await asyncio.sleep(self.chance.uniform(0.0, 0.05))
                task = await self._asked(agent, "CancelTask", {"id": task["id"]})
                self.wrong[f"{agent} cancelled, and {task['status']['state']}"] += task["status"]["state"] != CANCELED
        if agent in (TALKS, CHATS):
            self._contexts[place, agent] = task["contextId"]
        if task["status"]["state"] not in OVER:
            self._left[place] = agent, trace, task
            return
        self._expect(agent, deed, trace, task)

    def _expect(self, agent: str, deed: str, trace: str, task: Mapping[str, Any]) -> None:
        state, said = task["status"]["state"], _said(task)
        self.counts[state] += 1
        is_right = state in MEANT[deed] and (state != DONE or said == f"did {trace}")
        why = json.dumps(task["status"].get("message", {}).get("parts"))
        self.wrong[f"{agent} {deed}: {state} {said[:40]} {why[:200]}"] += not is_right

    async def _heard(self, agent: str, params: Mapping[str, Any], *, leaves: bool) -> dict[str, Any]:
        """The task as the stream told of it, to its end or to the first that it said."""
        task: dict[str, Any] = {}
        async with aclosing(self._stream(agent, params)) as events:
            async for event in events:
                if "task" in event:
                    task = event["task"]
                    if leaves:
                        break
                elif "artifactUpdate" in event:
                    task.setdefault("artifacts", []).append(event["artifactUpdate"]["artifact"])
                elif "statusUpdate" in event:
                    task["status"] = event["statusUpdate"]["status"]
        return task

    async def _stream(self, agent: str, params: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any]]:
        body = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": params}
        async with self.http.post(f"{self.url}/agents/{agent}/", json=body, headers=_MORE) as response:
            async for line in response.content:
                if line.startswith(b"data: "):
                    yield json.loads(line[6:])["result"]

    async def _asked(self, agent: str, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        async with self.http.post(f"{self.url}/agents/{agent}/", json=body, headers=_MORE) as response:
            told = await response.json()
        if "result" not in told:
            raise AssertionError(f"{agent} {method}: {response.status} {told}")
        found: dict[str, Any] = told["result"]
        return found


_MORE: Final = {"A2A-Version": "1.0"}


def _said(task: Mapping[str, Any]) -> str:
    return "".join(part.get("text", "") for one in task.get("artifacts", ()) for part in one["parts"]).strip()


@dataclass(frozen=True, slots=True)
class Counted:
    """What there is of a sidecar at one moment. `kept` are the processes of conversations, `strays` all others of
    programs."""

    kept: int
    strays: tuple[str, ...]
    zombies: int
    descriptors: int
    warden_descriptors: int
    folders: int
    memory_mb: float
    warden_mb: float


def counted(serving: Running, place: Path) -> Counted:
    """Of this one, now."""
    sidecar = psutil.Process(serving.child.pid)
    warden = next((child for child in sidecar.children() if _is_warden(child)), None)
    programs = {one: _how(one) for one in sidecar.children(recursive=True) if not _is_warden(one)}
    kept = [one for one, how in programs.items() if how in ("lines", "json-rpc chats")]
    return Counted(
        kept=len(kept),
        strays=tuple(" ".join(_line(one))[-200:] for one in programs.keys() - set(kept)),
        zombies=sum(one.is_running() and one.status() == psutil.STATUS_ZOMBIE for one in programs),
        descriptors=sidecar.num_fds(),
        warden_descriptors=0 if warden is None else warden.num_fds(),
        folders=len(_folders(place)),
        memory_mb=round(sidecar.memory_info().rss / 1e6, 1),
        warden_mb=0.0 if warden is None else round(warden.memory_info().rss / 1e6, 1),
    )


def _is_warden(process: psutil.Process) -> bool:
    return "warden.py" in " ".join(_line(process))


def _how(process: psutil.Process) -> str:
    return " ".join(_line(process)[2:])


def _line(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        return process.cmdline()
    return []


def _folders(place: Path) -> list[Path]:
    return list((place / "tmp").glob("sidecar-*"))


def _agents(token: str, program: Path, timeout_s: float) -> dict[str, Any]:
    def agent(how: str, **more: Any) -> dict[str, Any]:
        places = {"timeout": timeout_s, "max_concurrent_executions": AT_ONCE}
        return {"executable": "/bin/sh", "args": [str(program), how], "envs": {TOKEN: token}, **places, **more}

    return {
        TOLD: agent("stdin"),
        FILED: agent("file", agent_type="file-file"),
        ASKED: agent("json-rpc", agent_type="json-rpc"),
        TALKS: agent("lines", mode="interactive"),
        CHATS: agent("json-rpc chats", agent_type="json-rpc", mode="interactive"),
    }


async def measured(
    place: Path, runs: int, seed: int = 7, *, timeout_s: float = TIMEOUT_S, lots: Mapping[tuple[str, str], int] = LOTS
) -> dict[str, Any]:
    """So many runs, what came of them, and what there was before, half-way and after."""
    ports = {name: free_port() for name in ("owner", "other", "admin")}
    token, half = f"many-{place.name}", runs // 2
    (program := place / "program.sh").write_text(PROGRAM)
    bounds = {"max_per_principal": 100_000}
    write_folder(place, token, place, ports, agents=_agents(token, program, timeout_s), schedules={}, tasks=bounds)
    (place / "tmp").mkdir()
    serve = (sys.executable, "-m", "sidecar", "serve", "-c", str(place / "sidecar.yaml"))
    with running(("env", f"TMPDIR={place / 'tmp'}", *serve), place / "log") as serving:
        await asyncio.to_thread(wait_for_200, f"http://127.0.0.1:{ports['admin']}/readyz", serving)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60), connector=connector) as http:
            crowd = Crowd(f"http://127.0.0.1:{ports['owner']}", http, random.Random(seed), lots)
            await crowd.run(max(AT_ONCE, int(runs * WARM_UP)))
            moments, took_s = [await _settled(crowd, serving, place)], 0.0
            began_cpu_s = serving.cpu_s()
            for _ in range(2):
                began = time.monotonic()
                await crowd.run(half)
                took_s += time.monotonic() - began
                moments.append(await _settled(crowd, serving, place))
            cpu_s = serving.cpu_s() - began_cpu_s
    names = ("before", "half-way", "after")
    return {
        "runs": 2 * half,
        "a_second": round(2 * half / took_s, 1),
        "cpu_ms_of_the_sidecar_each": round(1000 * cpu_s / (2 * half), 1),
        "came_to": dict(crowd.counts),
        "otherwise_than_meant": dict(+crowd.wrong),
        "stopped_with": serving.child.returncode,
        "programs_after_the_stop": len(marked(token)),
        "folders_after_the_stop": len(_folders(place)),
        **{
            what: {name: getattr(moment, what) for name, moment in zip(names, moments, strict=True)}
            for what in Counted.__slots__
        },
    }


async def _settled(crowd: Crowd, serving: Running, place: Path) -> Counted:
    """What there is when all is over and what was left behind had the time to go."""
    await crowd.all_over()
    until = time.monotonic() + GONE_WITHIN_S
    there = counted(serving, place)
    while there.strays and time.monotonic() < until:
        await asyncio.sleep(0.1)
        there = counted(serving, place)
    return there


def is_well(told: Mapping[str, Any]) -> bool:
    """Whether nothing stayed behind, and nothing came to what it was not meant to."""
    nothing = ("otherwise_than_meant", "stopped_with", "programs_after_the_stop", "folders_after_the_stop")
    never = all(not any(told[what].values()) for what in ("strays", "zombies"))
    held = {when: told["descriptors"][when] - OF_A_PROGRAM * told["kept"][when] for when in ("before", "after")}
    grows = held["after"] > held["before"] + AT_ONCE
    return never and not grows and not any(told[what] for what in nothing)


@click.command()
@click.option("--runs", type=click.IntRange(40, 10_000_000), default=10_000, show_default=True)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), default=OUT, show_default=True)
def main(runs: int, out: Path) -> None:
    """Call programs, and see what is left."""
    with tempfile.TemporaryDirectory(prefix="many") as folder:
        told = uvloop.run(measured(Path(folder), runs))
    out.write_text(json.dumps(told, indent=1) + "\n")
    for name, value in told.items():
        click.echo(f"{name:28} {value}")
    raise SystemExit(0 if is_well(told) else 1)


if __name__ == "__main__":
    main()

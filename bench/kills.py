"""What is lost when a sidecar is killed, two hundred times, under load?

    python -m bench.kills [--kills 200]

A real `sidecar serve` before a real server and an agent, with a real Valkey; callers as `mixed` has them and clients as
`agency` has them, and a kill -9 at a random moment, again and again on the same folder. After each: whatever was
answered has its one terminal record, whatever reached server or agent has its decision, tasks of MCP, of A2A and of the
task API are their owner's and nobody else's, and sessions of before are unknown. At the end: the evidence verifies,
every slot is free within two leases, and every task that was ever begun is told as the agent has it: what it finished
is finished, and no message came to it twice. The table goes to `bench/kills.json`.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import click
import uvloop

from bench import agency
from bench.agency import Clients
from bench.mixed import Callers, write_folder
from bench.process import BenchFailed, Running, free_port, running, wait_for_200, wait_for_port
from bench.subjects import valkey
from sidecar.limits.store import LEASE_S

OUT = Path(__file__).parent / "kills.json"
CALLS, SLOW, SESSIONS, TASKS, CLIENTS = 12, 4, 4, 2, 3
SLOTS = 32  # `mixed.BUDGETS`
FIRST_S, LAST_S = 0.05, 0.8  # when a kill comes, after the load began
LOOKED_AT = 5  # tasks of before of each sort, after each start
SETTLED_S = 2.5  # the agent's tasks are over by then
# Else the refusals of a caller beyond 100 a minute are counted, in one record.
EACH_RECORDED = "refusals: {recorded_per_principal_per_minute: 1000000}\n"
MUST_BE_NOTHING = (
    "answered_without_record",
    "answered_with_two_records",
    "executed_without_decision",
    "sent_to_the_agent_twice",
    "tasks_and_sessions_inconsistent",
)


@dataclass
class Evidence:
    """What the audit says, read on where it was left: terminal records by run id, the traces that were decided, and the
    tasks that the sidecar decided to carry out."""

    path: Path
    ends: Counter[str] = field(default_factory=Counter)
    decided: set[str] = field(default_factory=set)
    carried_out: set[str] = field(default_factory=set)
    records: int = 0
    _read_bytes: int = 0

    def read(self) -> None:
        with self.path.open("rb") as file:
            file.seek(self._read_bytes)
            whole = file.read().rpartition(b"\n")[0]
        for line in whole.splitlines():
            record = json.loads(line)
            self.records += 1
            if record["peer"] == "sidecar":
                if record["event"] == "decision":
                    self.carried_out.add(record["request_id"])
                continue
            if record["event"] in ("outcome", "refusal") and record["run_id"]:
                self.ends[record["run_id"]] += 1
            if record["event"] == "decision":
                self.decided.add(record["trace_id"])
        self._read_bytes += len(whole) + 1 if whole else 0


@dataclass
class Laboratory:
    """A folder, and what was found wrong so far."""

    folder: Path
    ports: dict[str, int]
    callers: Callers
    clients: Clients
    evidence: Evidence
    unrecorded: int = 0
    twice: int = 0
    undecided: int = 0
    sent_twice: int = 0
    inconsistent: Counter[str] = field(default_factory=Counter)
    _checked: set[str] = field(default_factory=set)

    def check(self) -> None:
        """Lay side by side what was answered, what was executed, and what is on record."""
        self.evidence.read()
        for run_id in self.callers.journal.answered.keys() - self._checked:
            self.unrecorded += not self.evidence.ends[run_id]
            self.twice += self.evidence.ends[run_id] > 1
            self._checked.add(run_id)
        agent = self.told("agent", "/seen")
        reached = {*self.told("upstream", "/seen"), *agent["traces"]}
        ordered = {message for message in agent["messages"] if not message.startswith(agency.OURS)}
        self.undecided = len(reached - self.evidence.decided) + len(ordered - self.evidence.carried_out)
        self.sent_twice = sum(count > 1 for count in agent["messages"].values())

    def told(self, who: str, path: str) -> Any:
        """What those behind say of themselves."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[who]}{path}", timeout=10) as answer:
            return json.load(answer)

    async def look(self, session: str) -> None:
        """What those find who come back after a start."""
        wrong = self.callers.journal.wrong.copy()
        for task_id in self.callers.journal.tasks[-LOOKED_AT:]:
            await self.callers.check_task(task_id)
        for task_id in [*self.clients.begun][-LOOKED_AT:]:
            await self.clients.check(task_id)
        for task_id in self.clients.ordered[-LOOKED_AT:]:
            await self.clients.check_ordered(task_id)
        self.inconsistent += self.callers.journal.wrong - wrong
        if session:
            inside = {"Mcp-Session-Id": session, "MCP-Protocol-Version": "2025-11-25"}
            status, _, _ = await self.callers.post({"jsonrpc": "2.0", "id": 1, "method": "ping"}, inside)
            self.inconsistent[f"a session of before: {status}"] += status != 404

    async def slots_back(self) -> float:
        """Seconds until as many slow calls at once as there are slots are let in again."""
        began = time.monotonic()
        call = {"name": "slow", "arguments": {}}
        while time.monotonic() - began < 2 * LEASE_S:
            answers = await asyncio.gather(*(self.callers.stateless("tools/call", call) for _ in range(SLOTS)))
            if {status for status, _, _ in answers} == {200}:
                return round(time.monotonic() - began, 1)
            await asyncio.sleep(1.0)
        raise BenchFailed("slots are still taken after two leases")


@click.command()
@click.option("--kills", type=click.IntRange(1, 10_000), default=200, show_default=True)
@click.option("--seed", type=int, default=6, show_default=True)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), default=OUT, show_default=True)
def main(kills: int, seed: int, out: Path) -> None:
    """Kill it, start it, and see what is missing."""
    with tempfile.TemporaryDirectory(prefix="kills") as folder:
        told = uvloop.run(measured(Path(folder), kills, random.Random(seed)))
    out.write_text(json.dumps(told, indent=1) + "\n")
    for name, value in told.items():
        click.echo(f"{name:36} {value}")
    if not told["evidence_verifies"] or any(told[name] for name in MUST_BE_NOTHING):
        raise SystemExit(1)


async def measured(folder: Path, kills: int, chance: random.Random) -> dict[str, Any]:
    """All of it; what was found."""
    ports = {name: free_port() for name in ("port", "other", "admin", "upstream", "agent")}
    with valkey(folder) as store:
        write_folder(folder / "s", store=store, **ports)
        with (folder / "s" / "sidecar.yaml").open("a") as settings:
            settings.write(agency.SETTINGS.format(**ports))
            settings.write(EACH_RECORDED)
        (folder / "s" / "policies" / "nhi_to_nhi.csv").write_text(agency.RULES)
        behind = (sys.executable, "-m", "bench.mixed", str(ports["upstream"]))
        agent = (sys.executable, "-m", "bench.agency", str(ports["agent"]))
        with running(behind, folder / "upstream.log") as server, running(agent, folder / "agent.log") as clerk:
            wait_for_port(ports["upstream"], server)
            wait_for_port(ports["agent"], clerk)
            connector = aiohttp.TCPConnector(limit=0)
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20), connector=connector) as http:
                callers = Callers(ports["port"], ports["other"], http)
                evidence = Evidence(folder / "s" / "data" / "audit" / "audit.jsonl")
                lab = Laboratory(folder, ports, callers, Clients(callers), evidence)
                starts_s = [await _round(lab, number, chance) for number in range(kills)]
                return await _told(lab, kills, starts_s)


async def _round(lab: Laboratory, number: int, chance: random.Random) -> float:
    """Start, look, load, kill, check; how long the start took."""
    began = time.monotonic()
    with _serving(lab, number) as process:
        started_s = time.monotonic() - began
        await lab.look(lab.callers.last_session)
        working = asyncio.create_task(lab.callers.work(CALLS, SLOW, SESSIONS, TASKS, CLIENTS * lab.clients.kinds))
        await asyncio.sleep(chance.uniform(FIRST_S, LAST_S))
        process.child.kill()
        process.child.wait()
        await working
    await asyncio.to_thread(lab.check)
    if number % 20 == 19:
        click.echo(f"{number + 1} kills, {lab.unrecorded} unrecorded, {lab.undecided} undecided", err=True)
    return started_s


@contextmanager
def _serving(lab: Laboratory, number: int) -> Iterator[Running]:
    command = (sys.executable, "-m", "sidecar", "serve", "-c", str(lab.folder / "s" / "sidecar.yaml"))
    with suppress(_Killed), running(command, lab.folder / f"sidecar-{number}.log") as process:
        wait_for_200(f"http://127.0.0.1:{lab.ports['admin']}/readyz", process)
        yield process
        raise _Killed  # which is no failure here


class _Killed(Exception):
    """It ended because we ended it."""


async def _told(lab: Laboratory, kills: int, starts_s: list[float]) -> dict[str, Any]:
    with _serving(lab, kills) as process:
        slots_s = await lab.slots_back()
        await asyncio.sleep(SETTLED_S)
        states = await asyncio.to_thread(lab.told, "agent", "/states")
        await lab.clients.settle(states)
        process.child.send_signal(signal.SIGTERM)
        stopped = await asyncio.to_thread(process.child.wait, 20)
    await asyncio.to_thread(lab.check)
    began = time.monotonic()
    verify = [sys.executable, "-m", "sidecar", "audit", "verify", str(lab.evidence.path)]
    verify += ["--key", str(lab.folder / "s" / "data" / "keys" / "audit.key")]
    verified = await asyncio.to_thread(subprocess.run, verify, capture_output=True, text=True, timeout=300)
    journal = lab.callers.journal
    return {
        "kills": kills,
        "attempts": journal.attempts,
        "answered": len(journal.answered),
        "statuses": journal.statuses,
        "cut_off": journal.lost,
        "answered_without_record": lab.unrecorded,
        "answered_with_two_records": lab.twice,
        "executed_without_decision": lab.undecided,
        "sent_to_the_agent_twice": lab.sent_twice,
        "message_tasks": len(lab.clients.begun),
        "ordered_tasks": len(lab.clients.ordered),
        "ends_told": dict(Counter(lab.clients.ends.values())),
        "unknown_whether_sent": lab.clients.unknown_whether_sent,
        "records": lab.evidence.records,
        "evidence_verifies": verified.returncode == 0,
        "evidence_says": re.sub(r" in [0-9.]+ s", "", verified.stdout.partition("\n")[0]),
        "appends_cut": verified.stdout.count("in the middle of an append"),
        "verify_s": round(time.monotonic() - began, 1),
        "tasks_and_sessions_inconsistent": dict(+lab.inconsistent + +lab.clients.wrong),
        "refused_in_the_load": dict(journal.wrong),
        "slots_back_s": slots_s,
        "stopped_with": stopped,
        "start_s_median": round(sorted(starts_s)[len(starts_s) // 2], 2),
        "start_s_max": round(max(starts_s), 2),
    }


if __name__ == "__main__":
    main()

"""What is left of programs and their runs when a sidecar is killed, two hundred times, under load?

    python -m bench.agent_kills [--kills 200] [--pairs 40]

Real `sidecar serve` before seven agents of a real program, callers as `errands` has them, and a kill -9 at a random
moment, with what is kept in a file; then as many again as `--pairs` says with two replicas on one real Valkey, of which
one is killed and the other goes on. After each: no process of any program is left within two seconds, no private folder
after the next start, every run that was acknowledged is there, what was over is what it was, what was under way is
over, and each agent runs at once. In the end all that was said of runs is laid beside what their programs wrote down,
and beside the evidence. The table goes to `bench/agent_kills.json`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import click
import psutil
import uvloop

from bench import errands
from bench.errands import Errand, Senders, marked
from bench.kills import Evidence
from bench.mixed import Callers
from bench.process import BenchFailed, Running, free_port, running, wait_for_200
from bench.valkeys import Node, one
from sidecar.tasks.programs.executions import STOPPED, UNKEPT
from sidecar.tasks.programs.run_record import RUNS, Execution, RunState, RunStatus
from sidecar.tasks.programs.write_leases import LEASE_S

OUT = Path(__file__).parent / "agent_kills.json"
FIRST_S, LAST_S = 0.1, 3.0  # when a kill comes, after the load began
GONE_WITHIN_S = 2.0
OVER_WITHIN_S = {1: 3.0, 2: 20.0}  # by how many replicas: alone at its start, or when another is not heard
WORKS_WITHIN_S = 10.0  # also where what callers asked before waits before it
SETTLED_S = 120.0
PAUSE_S = 0.2  # of callers, where who is not killed is called all the time
WAITED_FOR_WRITERS = 0.6  # of the kills of one of two
LOOKED_AT = 4  # runs of before of each sort, after each start
MUST_BE_NOTHING = (
    "processes_left",
    "folders_left",
    "acknowledged_and_lost",
    "ends_that_changed",
    "told_otherwise_than_kept",
    "under_way_and_not",
    "success_that_was_none",
    "other_ends_than_meant",
    "ran_too_often",
    "writers_that_met",
    "answered_without_record",
    "answered_with_two_records",
    "ran_without_decision",
    "agents_that_did_not_work_at_once",
    "wrong",
)


class Kept(NamedTuple):
    """A run in the store."""

    standing: str
    is_over: bool
    created_at: float
    body: bytes


class Store:
    """What is kept, read past the sidecar."""

    def __init__(self, place: Path | Node) -> None:
        self._place = place

    def runs(self) -> dict[str, Kept]:
        """All of it, by id."""
        if isinstance(self._place, Node):
            return self._shared(self._place)
        with tempfile.TemporaryDirectory() as aside:  # who opens what a kill left repairs it
            for path in self._place.parent.glob(f"{self._place.name}*"):
                if not path.name.endswith("-shm"):
                    shutil.copy(path, aside)
            with sqlite3.connect(Path(aside) / self._place.name) as file:
                has_table = file.execute("SELECT 1 FROM sqlite_master WHERE name = 'records'").fetchone()
                sql = "SELECT id, state, done, created_at, body FROM records WHERE kind = 'agent-runs'"
                rows = file.execute(sql).fetchall() if has_table else []  # a kill may come before the first run
            file.close()
        return {name: Kept(standing, bool(over), at, body) for name, standing, over, at, body in rows}

    def _shared(self, node: Node) -> dict[str, Kept]:
        found = {}
        with node.client() as client:
            for key in client.scan_iter(match="*agent-runs*:record:*", count=1000):
                state, over, body = client.hmget(key, "state", "done", "body")
                if body is not None:
                    at = json.loads(body)["created_at"]
                    found[key.rpartition(":record:")[2]] = Kept(state, over == "1", at, body.encode())
        return found


@dataclass
class Replica:
    """One sidecar: its folder, its ports, who calls it, its evidence. `token` marks the programs of this start."""

    folder: Path
    ports: dict[str, int]
    senders: Senders
    evidence: Evidence
    token: str = ""
    serving: Running | None = None
    loading: asyncio.Task[None] | None = None
    checked: set[str] = field(default_factory=set)


@dataclass
class Found:
    """What was wrong so far, and how the runs stood at the kills."""

    counts: Counter[str] = field(default_factory=Counter)
    at_the_kill: Counter[str] = field(default_factory=Counter)
    by_agent: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    gone_s: list[float] = field(default_factory=list)
    starts_s: list[float] = field(default_factory=list)
    works_s: list[float] = field(default_factory=list)
    writers_killed: int = 0

    def wrong(self, what: str, *about: object) -> None:
        """Once more."""
        self.counts[what] += 1
        print(what, *about, file=sys.stderr)


@dataclass
class Laboratory:
    """Replicas on one store, and what was found of them."""

    place: Path
    store: Store
    replicas: list[Replica]
    chance: random.Random
    found: Found = field(default_factory=Found)
    ends: dict[str, str] = field(default_factory=dict)
    open_since: dict[str, float] = field(default_factory=dict)
    _starts: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    # --- a round ------------------------------------------------------------------------------------------------------

    async def start(self, replica: Replica, stack: ExitStack, more: Mapping[str, Any]) -> None:
        """Start it, and wait until it is ready."""
        number = next(self._starts)
        replica.token = f"{self.place.name}-{number}"
        errands.write_folder(replica.folder, replica.token, self.place, replica.ports, **dict(more))
        temporary = replica.folder / "tmp"
        temporary.mkdir(exist_ok=True)
        serve = (sys.executable, "-m", "sidecar", "serve", "-c", str(replica.folder / "sidecar.yaml"))
        began = time.monotonic()
        command = ("env", f"TMPDIR={temporary}", *serve)
        replica.serving = stack.enter_context(_mortal(command, self.place / f"log-{number}"))
        ready = f"http://127.0.0.1:{replica.ports['admin']}/readyz"
        await asyncio.to_thread(wait_for_200, ready, replica.serving)
        self.found.starts_s.append(time.monotonic() - began)

    async def kill(self, replica: Replica) -> asyncio.Task[None]:
        """As a power cut would. The task looks until nothing of its programs is left."""
        assert replica.serving is not None and replica.loading is not None
        child = replica.serving.child
        below = psutil.Process(child.pid).children(recursive=True)
        child.send_signal(signal.SIGKILL)
        going = asyncio.create_task(self._gone(below, replica.token, time.monotonic()))
        await asyncio.to_thread(child.wait)
        await replica.loading
        replica.loading = None
        self.note_what_stands()
        return going

    async def _gone(self, below: list[psutil.Process], token: str, killed_s: float) -> None:
        while left := await asyncio.to_thread(_left, below, token):
            if time.monotonic() - killed_s > GONE_WITHIN_S:
                self.found.wrong("processes_left", left)
                for process in left:
                    with suppress(psutil.NoSuchProcess):
                        process.kill()
                break
            await asyncio.sleep(0.02)
        self.found.gone_s.append(time.monotonic() - killed_s)

    def note_what_stands(self) -> None:
        """Lay what is kept beside what was kept; what is under way now."""
        now, mine = time.monotonic(), {}
        for name, run in self.store.runs().items():
            if run.is_over:
                self._same(name, run.standing)
                continue
            record = RUNS.codec.decode(run.body)
            self.found.at_the_kill[_phase(record)] += 1
            self.found.by_agent[record.target][_phase(record)] += 1
            if _phase(record) != "waiting":  # that runs in its turn, and is over when all is (`settle`)
                mine[name] = self.open_since.get(name, now)
        self.open_since = mine

    def _same(self, name: str, standing: str) -> None:
        if self.ends.setdefault(name, standing) != standing:
            self.found.wrong("ends_that_changed", name, self.ends[name], standing)

    async def look(self, replica: Replica) -> None:
        """After a start: nothing that was under way is, all that was told is there, each agent runs."""
        senders = replica.senders
        folders = set((replica.folder / "tmp").glob("sidecar-*"))
        writes = () if len(self.replicas) > 1 else (errands.WRITES,)
        for agent in (*errands.ONCE, *errands.CONVERSATIONS, *writes):
            began, works = time.monotonic(), False
            while not works and time.monotonic() - began < WORKS_WITHIN_S:
                works = await senders.works_at_once(agent)
            if not works:
                self.found.wrong("agents_that_did_not_work_at_once", agent)
            self.found.works_s.append(time.monotonic() - began)
        for sort in (True, False):
            known = [one for one in senders.errands.values() if one.is_ordered is sort]
            for errand in known[-LOOKED_AT:]:
                await senders.shown(errand)
        await self._over(OVER_WITHIN_S[1] if len(self.replicas) == 1 else 0.0)
        until = time.monotonic() + 1.0
        while left := {path for path in folders if path.exists()}:
            if time.monotonic() > until:
                self.found.wrong("folders_left", *(path.name for path in left))
                break
            await asyncio.sleep(0.05)

    async def until_one_writes(self) -> None:
        """Until the agent that writes is at work, which takes a lease of who was killed before; or long enough."""
        until = time.monotonic() + LEASE_S + 5.0
        while time.monotonic() < until and not self._writes():  # noqa: ASYNC110
            await asyncio.sleep(0.3)
        if self._writes():
            self.found.writers_killed += 1

    def _writes(self) -> bool:
        at_work = (run.body for run in self.store.runs().values() if run.standing == RunState.RUNNING)
        return any(RUNS.codec.decode(body).target == errands.WRITES for body in at_work)

    async def _over(self, within_s: float) -> None:
        """What was under way at a kill is over in time."""
        most_s, until = OVER_WITHIN_S[len(self.replicas)], time.monotonic() + within_s
        while True:
            kept = self.store.runs()
            late = [
                name
                for name, since in self.open_since.items()
                if not kept[name].is_over and (within_s or time.monotonic() - since > most_s)
            ]
            if not late or time.monotonic() > until:
                break
            await asyncio.sleep(0.1)
        for name in late if len(self.replicas) == 1 else ():
            self.found.wrong("under_way_and_not", name, kept[name].standing)
            del self.open_since[name]

    # --- in the end ---------------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Until all of it is over: every run, and every order."""
        async with asyncio.timeout(SETTLED_S):
            while any(not run.is_over for run in self.store.runs().values()):  # noqa: ASYNC110
                await asyncio.sleep(0.5)
            for replica in self.replicas:
                for errand in replica.senders.errands.values():
                    while errand.is_ordered and errand.told not in ("completed", "failed", "cancelled"):
                        errand.told = await replica.senders.shown(errand)
                        await asyncio.sleep(0.0 if errand.told else 0.2)

    def judge(self) -> dict[str, Any]:
        """Lay all of it side by side."""
        kept = {name: RUNS.codec.decode(run.body) for name, run in self.store.runs().items()}
        for name, run in kept.items():
            self._same(name, run.standing)
        began, ended, met = self._journal()
        self.found.counts["writers_that_met"] += met
        for run in kept.values():
            self._judge_run(run, began, ended)
        for replica in self.replicas:
            for errand in replica.senders.errands.values():
                self._judge_errand(errand, kept, ended)
            for name in replica.senders.scheduled:
                if name not in kept:
                    self.found.wrong("acknowledged_and_lost", name)
            self._judge_evidence(replica, began)
        return self._told(kept)

    def _journal(self) -> tuple[Counter[str], set[str], int]:
        lines = [line.split() for line in (self.place / "journal").read_text().splitlines()]
        began = Counter(trace for what, trace, _ in lines if what == "began")
        return began, {trace for what, trace, _ in lines if what == "ended"}, sum(one[0] == "met" for one in lines)

    def _judge_run(self, run: Execution, began: Counter[str], ended: set[str]) -> None:
        trace, deed, _ = run.input.split()
        if trace == errands.SCHEDULED:
            return
        if run.status is RunStatus.SUCCESS and trace not in ended:
            self.found.wrong("success_that_was_none", run.id)
        if began[trace] > (2 if deed == "again" else 1):
            self.found.wrong("ran_too_often", run.id, deed, began[trace])
        why = _why(run)
        meant = {"fails": RunStatus.FAILURE, "again": RunStatus.FAILURE, "hangs": RunStatus.TIMEOUT}.get(
            deed, RunStatus.SUCCESS
        )
        if run.status is RunStatus.TIMEOUT and run.status is not meant:
            self.found.counts["too_slow"] += 1  # on a machine that does much else; it was, or that is no truth
            if (run.ended_at or 0.0) - (run.started_at or 0.0) >= errands.TIMEOUT_S:
                return
        if run.status not in (meant, RunStatus.CANCELLED) and not why.startswith((STOPPED, UNKEPT)):
            self.found.wrong("other_ends_than_meant", run.id, run.target, deed, run.status, why)

    def _judge_errand(self, errand: Errand, kept: Mapping[str, Execution], ended: set[str]) -> None:
        if errand.is_ordered:
            if errand.told == "completed" and errand.trace not in ended:
                self.found.wrong("success_that_was_none", errand)
            return
        if errand.run_id not in kept:
            self.found.wrong("acknowledged_and_lost", errand)
        elif _is_end(errand.told) and kept[errand.run_id].task["status"]["state"] != errand.told:
            self.found.wrong("told_otherwise_than_kept", errand, kept[errand.run_id].task["status"])

    def _judge_evidence(self, replica: Replica, began: Counter[str]) -> None:
        replica.evidence.read()
        for run_id in replica.senders.callers.journal.answered:
            count = replica.evidence.ends[run_id]
            if count != 1:
                self.found.wrong("answered_without_record" if count == 0 else "answered_with_two_records", run_id)
        decided = set().union(*(one.evidence.decided for one in self.replicas))
        if replica is self.replicas[-1] and (strays := began.keys() - decided - {errands.SCHEDULED}):
            self.found.wrong("ran_without_decision", *list(strays)[:5])
        for what, count in replica.senders.wrong.items():
            if count:
                self.found.counts["wrong"] += count
                print("wrong", count, what, file=sys.stderr)

    def _told(self, kept: Mapping[str, Execution]) -> dict[str, Any]:
        found, everybody = self.found, [replica.senders for replica in self.replicas]
        journals = [senders.callers.journal for senders in everybody]
        states = Counter(one.told for senders in everybody for one in senders.errands.values() if one.is_ordered)
        return {
            "kills": len(found.gone_s),
            "attempts": sum(one.attempts for one in journals),
            "answered": sum(len(one.answered) for one in journals),
            "runs": len(kept),
            "runs_by_status": dict(Counter(str(run.status) for run in kept.values())),
            "runs_by_agent": {
                agent: dict(Counter(str(run.status) for run in kept.values() if run.target == agent))
                for agent in found.by_agent
            },
            "ended_by_a_kill": sum(_why(run).startswith(STOPPED) for run in kept.values()),
            "at_the_kill": dict(found.at_the_kill),
            "at_the_kill_by_agent": {agent: dict(count) for agent, count in found.by_agent.items()},
            "orders": dict(states),
            "killed_for_a_writer": found.writers_killed,
            "too_slow": found.counts["too_slow"],
            "refused_without_store": sum(_why(run).startswith(UNKEPT) for run in kept.values()),
            "scheduled": sum(bool(run.schedule) for run in kept.values()),
            "records": sum(replica.evidence.records for replica in self.replicas),
            "evidence_verifies": all(_verified(replica) for replica in self.replicas),
            **{name: found.counts[name] for name in MUST_BE_NOTHING},
            "no_place": dict(sum((senders.busy for senders in everybody), Counter())),
            "gone_s_median": _median(found.gone_s),
            "gone_s_max": round(max(found.gone_s), 2),
            "works_s_max": round(max(found.works_s), 2),
            "start_s_median": _median(found.starts_s),
        }


def _why(run: Execution) -> str:
    return "" if run.failure is None else run.failure.message


def _phase(run: Execution) -> str:
    """Its state at the kill, in words that tell what waits from what rests."""
    if run.state is RunState.IDLE:
        return "waiting"
    if run.state is RunState.FAILED:
        return "between tries"
    if run.state is RunState.CLEANUP:
        return f"cleanup, {run.status}"
    return str(run.state)


def _is_end(state: str) -> bool:
    return state in ("TASK_STATE_COMPLETED", "TASK_STATE_FAILED", "TASK_STATE_CANCELED", "TASK_STATE_REJECTED")


def _left(below: list[psutil.Process], token: str) -> list[psutil.Process]:
    """What is left of what stood below the sidecar, and of whatever has its token."""
    left = marked(token)
    for process in below:
        with suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                left.append(process)
    return left


def _verified(replica: Replica) -> bool:
    verify = [sys.executable, "-m", "sidecar", "audit", "verify", str(replica.evidence.path)]
    verify += ["--key", str(replica.folder / "data" / "keys" / "audit.key")]
    done = subprocess.run(verify, capture_output=True, text=True, timeout=300)
    if done.returncode:
        print(done.stdout[-2000:], done.stderr[-2000:], file=sys.stderr)
    return done.returncode == 0


def _median(values: list[float]) -> float:
    return round(sorted(values)[len(values) // 2], 2)


@contextmanager
def _mortal(command: Sequence[str], log: Path) -> Iterator[Running]:
    """`running`, of what is killed meanwhile."""
    with suppress(BenchFailed), running(command, log) as started:
        yield started


async def measured(place: Path, kills: int, replicas: int, last_s: float = LAST_S, seed: int = 7) -> dict[str, Any]:
    """So many kills, and what was found."""
    chance = random.Random(seed)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30), connector=connector) as http:
        with ExitStack() as stack:
            more: dict[str, Any] = {}
            store = Store(place / "0" / "data" / "records.sqlite")
            if replicas > 1:
                node = stack.enter_context(one(place / "valkey"))
                more = {"store": {"url": f"redis://{node.address}"}, "tasks": {"store": "redis"}}
                store = Store(node)
            them = [_replica(place / str(number), http, chance) for number in range(replicas)]
            for replica in them[1:]:
                replica.senders.callers.pause_s = them[0].senders.callers.pause_s = PAUSE_S
            lab = Laboratory(place, store, them, chance)
            for replica in them:
                await lab.start(replica, stack, more)
            for number in range(kills):
                for replica in them:
                    replica.loading = replica.loading or asyncio.create_task(_load(replica))
                await asyncio.sleep(chance.uniform(FIRST_S, last_s))
                victim = chance.choice(them)
                if replicas > 1 and chance.random() < WAITED_FOR_WRITERS:
                    await lab.until_one_writes()
                await _killed_and_back(lab, victim, stack, more)
                if number % 20 == 19:
                    click.echo(f"{number + 1} kills, {dict(+lab.found.counts)}", err=True)
            for replica in them:
                replica.senders.callers.stop.set()
            await asyncio.gather(*(replica.loading for replica in them if replica.loading))
            await lab.settle()
            for replica in them:
                assert replica.serving is not None
                replica.serving.child.send_signal(signal.SIGTERM)
                await asyncio.to_thread(replica.serving.child.wait, 20)
            return await asyncio.to_thread(lab.judge)


async def _killed_and_back(lab: Laboratory, victim: Replica, stack: ExitStack, more: Mapping[str, Any]) -> None:
    """A kill, and the next start: at once, as a supervisor would, or when all that was is gone."""
    going = await lab.kill(victim)
    if lab.chance.random() < 0.3:
        await going
    await lab.start(victim, stack, more)
    await lab.look(victim)
    await going


async def _load(replica: Replica) -> None:
    await replica.senders.callers.work(0, 0, 0, 0, replica.senders.kinds)


def _replica(folder: Path, http: aiohttp.ClientSession, chance: random.Random) -> Replica:
    folder.mkdir(parents=True)
    ports = {name: free_port() for name in ("owner", "other", "admin")}
    callers = Callers(ports["owner"], ports["other"], http)
    senders = Senders(callers, str(folder / "data" / "control.sock"), chance)
    return Replica(folder, ports, senders, Evidence(folder / "data" / "audit" / "audit.jsonl"))


@click.command()
@click.option("--kills", type=click.IntRange(0, 10_000), default=160, show_default=True)
@click.option("--pairs", type=click.IntRange(0, 10_000), default=40, show_default=True)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), default=OUT, show_default=True)
def main(kills: int, pairs: int, out: Path) -> None:
    """Kill it, start it, and see what is left."""
    told = {}
    for name, count, replicas in (("alone", kills, 1), ("of two", pairs, 2)):
        if count:
            with tempfile.TemporaryDirectory(prefix="lab") as place:
                told[name] = uvloop.run(measured(Path(place), count, replicas))
            for what, value in told[name].items():
                click.echo(f"{name:7} {what:36} {value}")
    out.write_text(json.dumps(told, indent=1) + "\n")
    if any(not one["evidence_verifies"] or any(one[name] for name in MUST_BE_NOTHING) for one in told.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()

"""Does each of many runs end as its program did, and leave nothing?

`python -m bench.executions [RUNS]` has eight callers order runs of one program, two at a time each, kept in a file. By
lot a run says its number, fails for good, fails once and is tried again, takes too long, leaves a child that left its
session, or is cancelled at a moment drawn by lot. Meanwhile it is counted how many are at work at once; afterwards what
became of them, and what is left of processes, descriptors and memory.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from contextlib import aclosing, suppress
from itertools import count
from pathlib import Path

from sidecar.errors import Refusal
from sidecar.observability.metrics import Metrics
from sidecar.settings.agents import CliAgent
from sidecar.storage import RecordBounds, SqliteFile, SqliteRecordStore
from sidecar.tasks.programs.attempt import Prompt
from sidecar.tasks.programs.executions import Executions
from sidecar.tasks.programs.run_record import RUNS, Execution, RunStatus
from sidecar.tasks.programs.runners import runner_from
from sidecar.upstreams.processes.launcher import Processes
from sidecar.vocabulary import Caller, Principal

MANY = 10_000
CALLERS = 8
PLACES, WAITING = 8, 64
DEEDS = ("says", "says", "says", "says", "fails", "again", "hangs", "leaves", "cancelled")
MEANT = {
    "says": {RunStatus.SUCCESS},
    "fails": {RunStatus.FAILURE},
    "again": {RunStatus.SUCCESS},
    "hangs": {RunStatus.TIMEOUT},
    "leaves": {RunStatus.SUCCESS},
    "cancelled": {RunStatus.CANCELLED, RunStatus.SUCCESS},
}
PROGRAM = """
read number deed
case $deed in
  fails) exit 1;;
  again) if mkdir "$TRIED/$number" 2>/dev/null; then exit 75; fi;;
  hangs) sleep 300;;
  leaves) setsid sleep 300 & ;;
  cancelled) sleep 0.2;;
esac
echo $number
"""


def definition(tried: str) -> CliAgent:
    """The program, as an operator would write it."""
    return CliAgent.model_validate(
        {
            "executable": "/bin/sh",
            "args": ["-c", PROGRAM],
            "envs": {"TRIED": tried},
            "timeout": 1.0,
            "max_concurrent_executions": PLACES,
            "max_queue": WAITING,
            "keep_runs": 100,
            "retries": {"max": 1, "backoff_s": 0.01, "exit_codes": [75]},
        }
    )


class Bench:
    """Runs, and what became of them."""

    def __init__(self, executions: Executions) -> None:
        self.counts: Counter[str] = Counter()
        self.most = 0
        self._executions = executions

    async def run(self, caller: Caller, number: int, deed: str, given_up_s: float | None) -> None:
        """One of them, and whether it came to what it was meant to."""
        prompt = Prompt(f"{number} {deed}\n", {}, {}, None, {"messageId": str(number), "role": "ROLE_USER"})
        run = await self._executions.begin("bench", prompt, caller, "bench")
        if given_up_s is not None:
            await asyncio.sleep(given_up_s)
            with suppress(Refusal):
                await self._executions.cancel(run.id, "by lot")
        async with aclosing(self._executions.follow(run.id)) as told:
            async for _ in told:
                self.most = max(self.most, self._executions.standing("bench").running)
        ended = await self._executions.get(run.id)
        assert ended is not None
        self.counts[ended.status or "none"] += 1
        self.counts["tried again"] += ended.retry_count
        if not self._is_as_meant(ended, number, deed):
            self.counts["otherwise than meant"] += 1
            print(number, deed, ended.status, ended.failure, ended.output, file=sys.stderr)

    def _is_as_meant(self, run: Execution, number: int, deed: str) -> bool:
        said = f"{number}\n" if run.status is RunStatus.SUCCESS else ""
        return run.status in MEANT[deed] and run.output == said


async def run(many: int, seed: int = 1) -> dict[str, int | float]:
    """So many runs, what became of them, and what is left."""
    draw, numbers, ids = random.Random(seed), iter(range(many)), count()
    processes = Processes({"PATH": os.defpath})
    with tempfile.TemporaryDirectory() as folder:
        executions = Executions(
            SqliteRecordStore(SqliteFile(Path(folder) / "records.sqlite"), RUNS),
            lambda name, one: runner_from(name, one, processes, processes.environ),
            Metrics(upstreams=()),
            time.time,
            lambda: f"run-{next(ids)}",
            "file",
            random=draw.random,
            bounds=RecordBounds,
            keep_s=lambda: 3600.0,
        )
        executions.offer({"bench": definition(folder)})
        job, bench = asyncio.create_task(executions.run()), Bench(executions)

        async def orders(caller: Caller) -> None:
            for number in numbers:
                deed = draw.choice(DEEDS) if draw.random() < 0.4 else "says"
                await bench.run(caller, number, deed, draw.uniform(0.0, 0.1) if deed == "cancelled" else None)

        async def all_order(sets: int) -> None:
            callers = [Caller((Principal(f"caller-{number}", "bench"),), ()) for number in range(CALLERS)]
            await asyncio.gather(*(orders(caller) for caller in callers for _ in range(sets)))

        began, before = time.monotonic(), Held.now()
        await all_order(2)
        took_s, after = time.monotonic() - began, Held.now()
        job.cancel()
        await executions.close(5.0)
        left = await _left_below(processes.warden_pid)
        await processes.close()
    more = {"descriptors more": after.descriptors - before.descriptors, "MB more": after.mb - before.mb}
    return {
        **bench.counts,
        "most at once": bench.most,
        "processes left": left,
        **more,
        "a second": round(many / took_s),
    }


class Held:
    """What this process holds: descriptors, and memory in MB."""

    def __init__(self, descriptors: int, mb: int) -> None:
        self.descriptors, self.mb = descriptors, mb

    @classmethod
    def now(cls) -> Held:
        """What it is now."""
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
        return cls(len(list(Path("/proc/self/fd").iterdir())), pages * os.sysconf("SC_PAGE_SIZE") // 2**20)


async def _left_below(warden: int | None) -> int:
    """How many keepers there still are when each had the time to go."""
    left = 0
    for _ in range(250):
        left = _below(warden)
        if not left:
            break
        await asyncio.sleep(0.02)
    return left


def _below(warden: int | None) -> int:
    return len(Path(f"/proc/{warden}/task/{warden}/children").read_text("ascii").split())


def main() -> None:
    """Measure, and print a table."""
    many = int(sys.argv[1]) if len(sys.argv) > 1 else MANY
    told = asyncio.run(run(many))
    print(f"{many} runs, {os.cpu_count()} cores")
    print(json.dumps(told, indent=2))
    if told.get("otherwise than meant") or told["processes left"] or told["most at once"] > PLACES:
        sys.exit(1)


if __name__ == "__main__":
    main()

"""A process that has runs in several states, says so, and waits to be killed."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from sidecar.storage.sqlite_file import SqliteFile
from sidecar.storage.sqlite_store import SqliteRecordStore
from sidecar.tasks.programs.run_record import RUNS, RunState
from sidecar.tasks.programs.runners import runner_from
from sidecar.upstreams.processes import Processes
from tests.unit.tasks.programs.staging import Stage, agent, says, staged

# Each says who it is in a file of its own; `sleeper` has a child that left its session, `stubborn` heeds no SIGTERM.
PROGRAMS = {
    "sleeper": ("setsid sleep 300 & echo $! > {0}/child; echo $$ > {0}/sleeper; sleep 300", {}),
    "failing": ("exit 75", {"retries": {"max": 3, "backoff_s": 60, "exit_codes": [75]}}),
    "stubborn": ("trap '' TERM; echo $$ > {0}/stubborn; while :; do sleep 1; done", {}),
}


def stage_in(folder: Path, processes: Processes) -> Stage:
    """Runs of those programs, kept in a file there."""
    stage = staged(says, store=SqliteRecordStore(SqliteFile(folder / "records.sqlite"), RUNS), holder="file")
    stage.executions.make_runner = lambda name, one: runner_from(name, one, processes, os.environ)
    stage.executions.offer(
        {
            name: agent(
                executable="/bin/sh", args=["-c", text.format(folder)], max_concurrent_executions=1, timeout=60, **more
            )
            for name, (text, more) in PROGRAMS.items()
        }
    )
    return stage


async def main(folder: Path) -> None:
    stage = stage_in(folder, Processes(os.environ))
    runs = {"running": await stage.begin(name="sleeper"), "queued": await stage.begin(name="sleeper")}
    runs |= {"between tries": await stage.begin(name="failing"), "cleanup": await stage.begin(name="stubborn")}
    await stage.until(runs["running"], RunState.RUNNING)
    await stage.until(runs["between tries"], RunState.FAILED)
    while not all((folder / name).exists() for name in ("child", "sleeper", "stubborn")):
        await asyncio.sleep(0.01)
    giving_up = asyncio.create_task(stage.executions.cancel(runs["cleanup"], "it was cancelled"))
    await stage.until(runs["cleanup"], RunState.CLEANUP)
    while {(kept := await stage.store.get(one)) and kept.state for one in runs.values()} != {
        RunState.IDLE, RunState.RUNNING, RunState.FAILED, RunState.CLEANUP,
    }:  # fmt: skip
        await asyncio.sleep(0.01)
    print(json.dumps(runs), flush=True)
    await giving_up
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))

"""What is left of runs, in the store and on the machine, when the sidecar is killed in the middle of them?"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path

from sidecar.tasks.programs.run_record import RunStatus
from sidecar.upstreams.processes import Processes
from tests.unit.tasks.programs.doomed import stage_in
from tests.unit.tasks.programs.staging import agent, running


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_the_store_tells_the_truth_no_process_is_left_and_the_next_run_works(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "tests.unit.tasks.programs.doomed", str(tmp_path))
    doomed = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert doomed.stdout is not None
    runs = json.loads(await doomed.stdout.readline())
    pids = [int((tmp_path / name).read_text()) for name in ("sleeper", "child", "stubborn")]
    assert all(map(is_there, pids))
    doomed.send_signal(signal.SIGKILL)
    await doomed.wait()
    until = time.monotonic() + 10
    while any(map(is_there, pids)):
        assert time.monotonic() < until
        await asyncio.sleep(0.01)

    processes = Processes(os.environ)
    stage = stage_in(tmp_path, processes)
    stage.executions.offer({name: agent(executable="/bin/cat") for name in ("sleeper", "failing", "stubborn")})
    async with running(stage):
        ended = {state: await stage.over(one) for state, one in runs.items()}
        assert {state: (one.status, one.failure and one.failure.message) for state, one in ended.items()} == {
            "running": (RunStatus.FAILURE, "the sidecar stopped while it ran"),
            "queued": (RunStatus.SUCCESS, None),
            "between tries": (RunStatus.FAILURE, "the sidecar stopped before its next try"),
            "cleanup": (RunStatus.CANCELLED, None),
        }
        again = await stage.over(await stage.begin("hello", name="sleeper"))
        assert (again.status, again.output) == (RunStatus.SUCCESS, "hello")
    await processes.close()

"""Does a program run by the clock as any agent does, and does its run know which schedule ordered it?"""

from __future__ import annotations

from pathlib import Path

from sidecar.agents.record import Execution
from sidecar.agents.states import Status
from tests.a2a.world import agent_world
from tests.flow.world import until

SETTINGS = """\
agents:
  echo: {executable: cat, a2a: {skills: [{id: search, name: Search}]}}
schedules:
  nightly: {agent: echo, cron: "@yearly", input_parameters: {prompt: what is new?}}
"""
RULES = {"nhi_to_nhi": "p, nhi:nightly, nhi:echo, message/send|tasks/get|tasks/cancel, -, -, -, allow\n"}


async def test_a_program_runs_by_the_clock_and_its_run_says_which_schedule_it_was(tmp_path: Path) -> None:
    async with agent_world(tmp_path, settings=SETTINGS, rules=RULES) as world:
        record = await world.app.scheduler.run_now("nightly", "test")
        await until(lambda: not world.app.pipeline.task_front.runner._courses)
        task = await world.app.shared.task_store.get(record.id)
        assert task is not None
        run = await world.app.executions.get(task.a2a_task)
        assert isinstance(run, Execution)
        assert (run.schedule, run.status) == ("nightly", Status.SUCCESS)
        assert (run.input, run.output) == ("what is new?", "what is new?")
        assert run.caller.last.name == "nhi:nightly"
        assert task.result is not None and task.result["artifacts"][0]["parts"][0]["text"] == "what is new?"

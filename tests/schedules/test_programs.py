"""Does a program run by the clock as any agent does, and does its run know which schedule ordered it?"""

import os
from pathlib import Path

import pytest

from sidecar.app.loader import check_files
from sidecar.errors import ConfigError
from sidecar.tasks.programs.run_record import RunStatus
from sidecar.tasks.schedules.schedule_state import DueResult, ScheduleStanding
from tests.a2a.world import agent_world, write
from tests.flow.world import until
from tests.tables import tables

SETTINGS = tables("schedules/programs")["settings"]
RULES = {
    "nhi_to_nhi": "p, nhi:nightly, nhi:echo, message/send|tasks/get|tasks/cancel, -, -, -, allow\n"
    "p, nhi:late, nhi:slow, use, -, -, -, allow\np, nhi:leaky, nhi:leaks, use, -, -, -, allow\n"
}


async def test_a_program_runs_by_the_clock_and_its_run_says_which_schedule_it_was(tmp_path: Path) -> None:
    async with agent_world(tmp_path, settings=SETTINGS, rules=RULES) as world:
        record = await world.app.scheduler.run_now("nightly", "test")
        await until(lambda: not world.app.pipeline.task_api.runner.worker.jobs)
        task = await world.app.shared.task_store.get(record.id)
        run = await world.app.executions.get(task.a2a_task)
        assert (run.schedule, run.status) == ("nightly", RunStatus.SUCCESS)
        assert (run.input, run.output) == ("what is new?", "what is new?")
        assert run.caller.last.name == "nhi:nightly"
        assert task.result["artifacts"][0]["parts"][0]["text"] == "what is new?"


async def test_what_came_of_a_run_is_what_came_of_its_schedule_and_its_words_are_kept_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for word in ("LOOK_EVERY_S", "TAKE_EVERY_S"):
        monkeypatch.setattr(f"sidecar.tasks.schedules.scheduler.{word}", 0.05)
    async with agent_world(tmp_path, settings=SETTINGS, rules=RULES) as world:
        scheduler = world.app.scheduler

        def stands(key: str) -> ScheduleStanding:
            return next(one.standing for one in scheduler.seen() if one.key == key)

        slow = await scheduler.run_now("late", "test")
        await scheduler.run_now("leaky", "test")
        await until(lambda: stands("late").last_result is DueResult.TIMEOUT)
        await until(lambda: stands("leaky").last_result is DueResult.FAILURE)
        task = await world.app.shared.task_store.get(slow.id)
        assert (task.error_code, task.error_message) == ("Timeout", "it did not answer within 0.2 s")
        assert stands("leaky").last_why == "exit code 3: no login with password=[redacted]"
    assert "no login" not in str([vars(record) for record in caplog.records])


def test_what_its_program_would_refuse_each_night_is_refused_before(tmp_path: Path) -> None:
    given = {"well": "anything: else", "typo": "prompt: x, paramters: {}", "bold": "parameters: {u: x}"}
    night = '  {}: {{agent: echo, cron: "@daily", input_parameters: {{{}}}}}\n'
    nights = "".join(night.format(*one) for one in given.items())
    write(tmp_path, "", behind=f"agents: {{echo: {{executable: cat}}}}\nschedules:\n{nights}")
    with pytest.raises(ConfigError) as refused:
        check_files(tmp_path / "sidecar.yaml", os.environ)
    faults = refused.value.faults
    assert [(fault.source.split()[0], fault.code) for fault in faults] == [("typo:", "S180"), ("bold:", "S180")]
    assert faults[0].message.startswith("echo refuses it: /message/parts/0/data/paramters")
    assert faults[1].message.startswith("echo refuses it: /message/parts/0/data/parameters/u cannot be chosen")

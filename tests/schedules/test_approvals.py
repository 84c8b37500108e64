"""Scheduled runs whose message a person must approve."""

from pathlib import Path

import pytest

from sidecar.tasks.api.task_record import TaskState
from sidecar.tasks.schedules.schedule_state import DueResult, ScheduleState
from tests.a2a.approving import ROLES, answer, asked, late, rules_of
from tests.a2a.world import agent_world
from tests.flow.world import until
from tests.schedules.clockwork import Clockwork, clockwork, minute_of
from tests.tables import tables

RULES = rules_of(who="nhi:minutely", kind="nhi_to_nhi")


async def due(works: Clockwork) -> None:
    await works.at("12:00:30")
    await works.at("12:01:00")


async def test_a_run_waits_for_a_person_and_runs_when_approved(tmp_path: Path) -> None:
    async with clockwork(tmp_path, rules=RULES, files=ROLES) as works:
        await due(works)
        standing = await works.standing()
        assert (standing.state, standing.last_result) == (ScheduleState.WAITING, None)
        assert (await asked(works.world)).caller.last.name == "nhi:minutely"
        await works.at("12:02:00")
        assert works.counted.ran == {("minutely", "skipped"): 1}, "the run before is still under way"
        assert works.told() == []
        await answer(works.world)
        await works.settle()
        await works.at("12:02:30")
        standing = await works.standing()
        assert (standing.state, standing.last_result) == (ScheduleState.ACTIVE, DueResult.SUCCESS)
        assert len(works.told()) == 1
        assert minute_of(standing.last_due_s) == "12:02"


@pytest.mark.parametrize(("outcome", "result"), [("refuse", DueResult.REFUSED), ("expire", DueResult.MISSED)])
async def test_a_run_that_is_not_approved_is_refused_or_missed(outcome: str, result: DueResult, tmp_path: Path) -> None:
    async with clockwork(tmp_path, rules=RULES, files=ROLES) as works:
        await due(works)
        if outcome == "refuse":
            await answer(works.world, "refuse")
        else:
            await late(works.world)
        await works.settle()
        await works.at("12:01:30")
        standing = await works.standing()
        assert (standing.state, standing.last_result) == (ScheduleState.ACTIVE, result)
        assert standing.last_why == ("approval-refused" if outcome == "refuse" else "approval-expired")
        assert works.counted.ran == {("minutely", str(result)): 1}
        assert works.told() == []


async def test_two_replicas_run_an_approved_time_once(tmp_path: Path) -> None:
    async with clockwork(tmp_path, rules=RULES, files=ROLES, replicas=2) as works:
        await due(works)
        works.replicas[0].kill()
        await answer(works.world)
        await works.at("12:01:20", looks=works.replicas[1:])
        await works.replicas[1].runner.worker.turn()
        await works.settle()
        await works.at("12:01:40", looks=works.replicas[1:])
        assert len(works.told()) == 1
        assert (await works.standing()).last_result is DueResult.SUCCESS


async def test_a_program_behind_a_schedule_waits_too(tmp_path: Path) -> None:
    rules = {
        "nhi_to_nhi": "#: approval=role:oncall\np, nhi:nightly, nhi:echo, message/send, -, -, -, allow\n"
        "p, nhi:nightly, nhi:echo, tasks/get|tasks/cancel, -, -, -, allow\n"
    }
    settings = tables("schedules/programs")["settings"]
    async with agent_world(tmp_path, settings=settings, rules=rules, files=ROLES) as world:
        record = await world.app.scheduler.run_now("nightly", "test")
        assert record.state is TaskState.WAITING
        await answer(world)
        await until(lambda: not world.app.pipeline.task_api.runner.worker.jobs)
        task = await world.app.shared.task_store.get(record.id)
        assert (task.state, task.sealed) == (TaskState.COMPLETED, "")
        assert (await world.app.executions.get(task.a2a_task)).output == "what is new?"

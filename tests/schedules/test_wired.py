"""Is what a sidecar's file says of schedules in force, shown, counted, and reloaded?"""

import asyncio
import re
from pathlib import Path
from typing import Any

from tests.a2a.test_task_api import ORDER, QUICK, call
from tests.a2a.world import ScriptedAgent, agent_world
from tests.flow.test_session_ends import FullDisk
from tests.flow.world import until
from tests.schedules.clockwork import ANSWER, RULES

YEARLY = 'schedules: {minutely: {agent: researcher, cron: "@yearly", timezone: Asia/Tokyo}}\n'


async def test_a_schedule_is_in_force_shown_counted_and_reloaded(tmp_path: Path) -> None:
    agent = ScriptedAgent(script={"SendMessage": lambda *_: ANSWER})
    async with agent_world(tmp_path, agent, settings=YEARLY, rules=RULES) as world:
        app = world.app
        await until(lambda: app.status()["schedules"].get("minutely", {}).get("state") == "active")
        shown = app.status()["schedules"]["minutely"]
        assert (shown["agent"], shown["state"], shown["last_result"]) == ("researcher", "active", None)
        assert shown["next"].endswith("-12-31T15:00:00.000Z")
        record = await app.scheduler.run_now("minutely", "test")
        await until(lambda: not app.pipeline.task_api.runner.worker.jobs)
        assert [said["params"]["message"]["messageId"] for _, said in agent.seen] == [record.id]
        ordered = [one for one in world.records("control") if one["control"]["what"] == "schedule-run"]
        assert [(one["control"]["by"], one["control"]["schedule"]) for one in ordered] == [("test", "minutely")]
        app.scheduler._taken_s = float("-inf")
        await app.scheduler.worker.turn()
        _, said = app.metrics.render("")
        assert b'sidecar_schedule_runs_total{result="success",schedule="minutely"} 1' in said
        assert re.search(rb'sidecar_schedule_last_success_timestamp_seconds{schedule="minutely"} 1\.', said)
        assert (tmp_path / "data" / "records.sqlite").exists()
        path = tmp_path / "sidecar.yaml"
        path.write_text(path.read_text().replace(YEARLY, YEARLY.replace("minutely", "other")))
        await app.reload("test")
        await app.scheduler.worker.turn()
        assert [*app.status()["schedules"]] == ["other"]
        assert app.readiness()[0]


async def test_a_task_that_cannot_be_put_on_record_is_not_begun(tmp_path: Path) -> None:
    async with agent_world(tmp_path, settings=QUICK) as world:
        writer: Any = world.app.audit.writer
        writer.sink = FullDisk(writer.sink)
        status, said = await call(world, "POST", body=ORDER)
        assert (status, said["reason"]) == (503, "audit-unavailable")
        await asyncio.sleep(0.05)
        assert world.agent.methods() == []
        writer.sink = writer.sink.file
        listed = (await call(world, "GET"))[1]["tasks"]
        assert [one["state"] for one in listed] == ["cancelled"]

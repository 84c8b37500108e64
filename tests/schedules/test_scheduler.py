"""Does each due time run once, wherever schedules are kept, and does all else come to what its operator reads of it?"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sidecar.errors import Reason, Refusal
from sidecar.storage import RecordStoreOut
from sidecar.tasks.api.task_record import TaskState
from sidecar.tasks.schedules.schedule_state import DueResult, ScheduleState
from tests.a2a.test_task_api import DONE, WORKING, busy
from tests.a2a.world import task
from tests.refusals import refused
from tests.schedules.clockwork import MINUTELY, RULES, Clockwork, clockwork, minute_of
from tests.valkey import Valkey


@pytest.fixture(params=["file", "redis"])
async def works(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Clockwork]:
    """Two replicas, as far as the store is one for two, with one schedule that is due every minute."""
    store, url = request.param, ""
    if store == "redis":
        server = request.getfixturevalue("valkey")
        with server.client() as client:
            client.flushall()
        url = server.url
    async with clockwork(tmp_path, store=store, url=url, replicas=2) as made:
        yield made


@pytest.fixture
async def lone(tmp_path: Path) -> AsyncIterator[Clockwork]:
    async with clockwork(tmp_path) as made:
        yield made


async def test_each_minute_it_runs_once_and_says_how_that_went(works: Clockwork) -> None:
    for minute in ("12:00:30", "12:00:59", "12:01:00", "12:01:01", "12:01:30", "12:02:00.5", "12:02:45"):
        await works.through(minute)
    assert [one["message"]["parts"][0]["data"] for one in works.told()] == [{"prompt": "tides"}] * 2
    assert {one["metadata"]["task_type"] for one in works.told()} == {"scheduled"}
    standing = await works.standing()
    assert (standing.state, standing.last_result, standing.running) == (ScheduleState.ACTIVE, DueResult.SUCCESS, ())
    assert minute_of(standing.last_due_s) == "12:02"
    assert standing.last_success_s is not None
    assert works.counted.ran == {("minutely", "success"): 2}
    assert works.counted.succeeded == {"minutely": standing.last_success_s}
    record = await works.tasks.get(standing.last_task)
    assert record.caller.schedule == "minutely" and record.state is TaskState.COMPLETED


async def test_who_is_paused_makes_up_for_nothing_and_goes_on(works: Clockwork) -> None:
    await works.at("12:00:30")
    scheduler = works.replicas[1].scheduler
    shown = await scheduler.pause("minutely", "admin:operator")
    assert (shown.standing.state, shown.standing.paused_by) == (ScheduleState.PAUSED, "admin:operator")
    assert shown.next_s is None
    await works.at("12:03:10")
    assert works.told() == []
    works.now_s += 1
    shown = await scheduler.resume("minutely", "local:uid=7")
    assert (shown.standing.state, shown.standing.paused_by) == (ScheduleState.ACTIVE, "")
    assert minute_of(shown.next_s) == "12:04"
    await works.at("12:03:50")
    assert works.told() == []
    await works.through("12:04:00")
    assert len(works.told()) == 1
    said = [(what, by, facts["schedule"]) for what, by, facts in works.witnessed]
    assert said == [("schedule-pause", "admin:operator", "minutely"), ("schedule-resume", "local:uid=7", "minutely")]


async def test_of_what_was_missed_one_run_is_made_up_for_if_it_is_not_too_late(works: Clockwork) -> None:
    works.write(minutely=MINUTELY, strict={**MINUTELY, "missed": "skip", "principal": "nhi:minutely"})
    await works.at("12:00:30")
    await works.through("12:05:59")
    await works.at("12:05:59.9")
    assert works.counted.ran == {("minutely", "missed"): 4, ("strict", "missed"): 4}
    assert len(works.told()) == 2, "both run for 12:05, which is not a minute ago"
    works.write(minutely={**MINUTELY, "cron": "@hourly"}, strict={**MINUTELY, "cron": "@hourly", "missed": "skip"})
    await works.at("12:07:00")
    await works.through("13:59:30")
    assert len(works.told()) == 3, "13:00 is within the hour, and made up for"
    await works.at("15:00:01", looks=[])
    works.write(minutely={**MINUTELY, "cron": "@hourly"}, strict={**MINUTELY, "cron": "@hourly", "missed_within": 60})
    await works.at("16:30:00")
    assert (await works.standing("strict")).last_result is DueResult.MISSED


async def test_a_clock_that_is_set_back_runs_nothing_twice(works: Clockwork) -> None:
    await works.at("12:00:30")
    await works.through("12:05:00")
    for back in ("12:01:00", "12:03:00", "12:05:00", "12:05:30"):
        await works.through(back)
    assert len(works.told()) == 1
    await works.through("12:06:00")
    assert len(works.told()) == 2
    # It was hours ahead for a while: the time of now holds from then on, and nothing is made up for.
    await works.through("19:00:00")
    await works.at("12:06:30")
    await works.through("12:07:00")
    assert len(works.told()) == 4
    assert minute_of((await works.standing()).last_due_s) == "12:07"


async def test_another_calendar_counts_from_when_it_is_seen(works: Clockwork) -> None:
    await works.at("12:00:30")
    works.write(minutely={**MINUTELY, "cron": "0-4 12 * * *"})
    await works.at("12:04:30")
    assert works.told() == [], "12:04 was before anybody knew of it"
    works.write(minutely={**MINUTELY, "enabled": False})
    await works.at("12:10:00")
    assert (await works.standing()).state is ScheduleState.CREATED
    works.write(minutely=MINUTELY)
    await works.at("12:20:10")
    assert (await works.standing()).state is ScheduleState.ACTIVE and works.told() == []
    await works.through("12:21:00")
    assert len(works.told()) == 1


async def test_who_has_it_on_their_hands_may_go_or_die(works: Clockwork) -> None:
    one, two = works.replicas
    await works.at("12:00:30")
    assert one.scheduler.holds and not two.scheduler.holds
    one.kill()
    await works.at("12:00:40", looks=[two])
    assert not two.scheduler.holds, "nobody knows yet that it died"
    await works.through("12:01:00", looks=[two])
    assert len(works.told()) == 1
    await works.through("12:01:20", looks=[two])
    assert len(works.told()) == 1 and minute_of((await works.standing()).last_due_s) == "12:01"
    await two.scheduler.store.let_go("replica-1")
    await works.through("12:02:00", looks=[works.replica()])
    assert len(works.told()) == 2


# --- one store is as good as another from here on ---------------------------------------------------------------------


async def test_two_runs_meet_only_where_they_may(tmp_path: Path) -> None:
    agent = busy(WORKING)
    made = iter(range(1, 20))
    agent.script["SendMessage"] = lambda *_: {"task": task(f"t{(n := next(made))}", f"c{n}", WORKING)}
    agent.script["GetTask"] = lambda _, params: task(params["id"], params["id"].replace("t", "c"), WORKING)
    rules = {"nhi_to_nhi": RULES["nhi_to_nhi"].replace("planner", "beside")}
    async with clockwork(tmp_path, agent=agent, rules=rules, settings="tasks: {ask_every_s: 0.05}\n") as works:
        works.write(minutely=MINUTELY, beside={**MINUTELY, "overlap": "allow"})
        await works.at("12:00:30")
        for minute in ("12:01:00", "12:02:00", "12:03:00"):
            await works.at(minute)
        assert works.counted.ran == {("minutely", "skipped"): 2}
        assert [len((await works.standing(key)).running) for key in ("minutely", "beside")] == [1, 3]
        assert (await works.standing()).state is ScheduleState.EXECUTING
        with refused(Reason.TOO_MANY_CONCURRENT, "previous run continues"):
            await works.replicas[0].scheduler.run_now("minutely", "me")
        agent.script["GetTask"] = lambda _, params: task(params["id"], params["id"].replace("t", "c"), DONE)
        await works.settle()
        await works.at("12:03:30")
        assert works.counted.ran["beside", "success"] == 3
        assert (await works.standing()).state is ScheduleState.ACTIVE


async def test_an_operators_run_is_the_schedules_and_its_due_times_stay(lone: Clockwork) -> None:
    await lone.at("12:00:30")
    scheduler = lone.replicas[0].scheduler
    record = await scheduler.run_now("minutely", "admin:operator")
    await lone.settle()
    assert record.caller.last.name == "nhi:minutely" and record.caller.schedule == "minutely"
    assert lone.witnessed == [("schedule-run", "admin:operator", {"schedule": "minutely", "task": record.id})]
    assert [one["peer"] for one in lone.world.records() if one["request_id"] == record.id][:2] == ["operator"] * 2
    await lone.through("12:01:00")
    assert len(lone.told()) == 2
    lone.write(minutely={**MINUTELY, "enabled": False})
    for key in ("minutely", "nightly"):
        with refused(Reason.ROUTE_UNKNOWN):
            await scheduler.run_now(key, "me")


async def test_whom_policy_a_limit_or_the_kill_switch_refuses_has_that_as_its_result(tmp_path: Path) -> None:
    rules = {
        "nhi_to_nhi": "p, nhi:minutely, nhi:researcher, use, -, 1, -, allow\n"
        "p, nhi:stopped, nhi:researcher, use, -, -, -, allow\n"
    }
    async with clockwork(tmp_path, rules=rules) as works:
        works.write(minutely=MINUTELY, nobody=MINUTELY, stopped=MINUTELY)
        await works.at("12:00:30")
        await works.world.app.disable("nhi:stopped", reason="", until=None, by="test")
        await works.through("12:01:00")
        await works.at("12:02:00")
        why = {key: (await works.standing(key)) for key in works.schedules}
        assert {one.last_result for one in why.values()} == {DueResult.REFUSED}
        expected = {"minutely": "rate-limited", "nobody": "no-matching-rule", "stopped": "principal-disabled"}
        assert {key: one.last_why for key, one in why.items()} == expected
        counts = {("minutely", "success"): 1, ("minutely", "refused"): 1}
        assert works.counted.ran == {**counts, ("nobody", "refused"): 2, ("stopped", "refused"): 2}
        refused = [one for one in works.world.records() if one["event"] == "refusal"]
        reasons = {f"nhi:{key}": one.last_why for key, one in why.items()}
        assert {one["agent_id"]: one["reason"] for one in refused} == reasons
        about = {(one["protocol"], one["peer"], one["upstream"]) for one in refused}
        assert about == {("a2a", "schedule", "researcher")}
        credential = {"kind": "schedule", "issuer": "schedule", "key_id": "nobody"}
        assert [one["credential"] for one in refused if one["agent_id"] == "nhi:nobody"] == [[credential]] * 2


async def test_a_run_has_a_decision_and_an_outcome_before_its_agent_hears_of_it(lone: Clockwork) -> None:
    await lone.at("12:00:30")
    await lone.through("12:01:00")
    task_id = (await lone.standing()).last_task
    mine = [one for one in lone.world.records() if one["request_id"] == task_id]
    assert [(one["event"], one["peer"], one["http_status"]) for one in mine] == [
        ("decision", "schedule", None),
        ("outcome", "schedule", 201),
        ("decision", "sidecar", None),
        ("outcome", "sidecar", 200),
    ]
    assert {one["agent_id"] for one in mine} == {"nhi:minutely"}


async def test_what_passes_is_tried_again_until_it_is_too_late(lone: Clockwork) -> None:
    lone.write(minutely={**MINUTELY, "cron": "@hourly", "missed_within": "10m"})
    await lone.at("12:00:30")
    orders = lone.replicas[0].scheduler.orders
    orders.closed = True
    for minute in ("13:00:00", "13:00:00.5", "13:00:30"):
        await lone.at(minute)
    assert len(lone.world.ends()) == 2, "it rests in between"
    orders.closed = False
    await lone.through("13:01:30")
    assert len(lone.told()) == 1
    orders.closed = True
    await lone.at("14:00:00")
    await lone.at("14:10:01")
    standing = await lone.standing()
    assert (standing.last_result, standing.last_why) == (DueResult.MISSED, "draining")


async def test_whoever_takes_a_schedule_away_ends_what_it_ordered(tmp_path: Path) -> None:
    agent = busy(WORKING)
    async with clockwork(tmp_path, agent=agent, settings="tasks: {ask_every_s: 0.05}\n") as works:
        await works.at("12:00:30")
        await works.at("12:01:00")
        task_id = (await works.standing()).last_task
        works.write()
        await works.settle()
        record = await works.tasks.get(task_id)
        assert (record.state, record.error_code) == (TaskState.FAILED, "Unauthorized")
        assert "CancelTask" in agent.methods()


async def test_how_a_schedule_stands_is_kept_for_a_month_after_it_is_gone(lone: Clockwork) -> None:
    await lone.at("12:00:30")
    lone.write()
    lone.now_s += 29 * 86_400.0
    await lone.replicas[0].scheduler.worker.turn()
    assert not (await lone.standing()).is_done
    lone.now_s += 2 * 86_400.0
    await lone.replicas[0].scheduler.worker.turn()
    assert (await lone.standing()).is_done
    lone.write(minutely=MINUTELY)
    lone.now_s += 4.0
    await lone.replicas[0].scheduler.worker.turn()
    again = await lone.standing()
    assert (again.is_done, again.state, again.settled_s) == (False, ScheduleState.ACTIVE, lone.now_s)


async def test_one_whose_standing_cannot_be_read_does_not_run_and_keeps_no_other_from_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be paused, by the word of another version."""
    async with clockwork(tmp_path, store="file") as works:
        works.write(minutely=MINUTELY, other=MINUTELY | {"principal": "nhi:minutely"})
        await works.at("12:00:30")
        scheduler = works.replicas[0].scheduler
        with closing(sqlite3.connect(tmp_path / "records.sqlite")) as kept, kept:
            ((body,),) = kept.execute("SELECT body FROM records WHERE id = ?", ("minutely",)).fetchall()
            kept.execute("UPDATE records SET body = ? WHERE id = ?", (body.replace(b"active", b"dormant"), "minutely"))
        for minute in ("12:01:30", "12:02:30", "12:03:30"):
            await works.through(minute)
        assert works.counted.ran.keys() == {("other", "success")}
        for shown in (await scheduler.list(), scheduler.seen()):
            assert [(one.key, one.state == "unreadable") for one in shown] == [("minutely", True), ("other", False)]
        assert scheduler.unreadable == ["minutely"]
        with pytest.raises(Refusal, match="cannot be read: it was damaged, or another version wrote it"):
            await scheduler.run_now("minutely", "somebody")
        told = [one for one in caplog.records if one.levelname in ("WARNING", "ERROR") and "bug" not in one.message]
        not_run = [one.message for one in told if "does not run" in one.message]
        assert not_run == ["a schedule does not run until its state is readable"]
        assert len([one for one in told if "cannot be read" in one.message]) <= 1, "each look would say so"
        with closing(sqlite3.connect(tmp_path / "records.sqlite")) as kept, kept:
            kept.execute("UPDATE records SET body = ? WHERE id = ?", (body, "minutely"))
        for minute in ("12:04:30", "12:05:30"):  # what the one ordered has ended by the other
            await works.through(minute)
        assert scheduler.unreadable == [] and ("minutely", "success") in works.counted.ran


async def test_while_the_store_is_out_nothing_runs_and_afterwards_once(tmp_path: Path, valkey: Valkey) -> None:
    with valkey.client() as client:
        client.flushall()
    async with clockwork(tmp_path, store="redis", url=valkey.url, timeout_s=0.2) as works:
        await works.at("12:00:30")
        scheduler = works.replicas[0].scheduler
        with valkey.frozen():
            for minute in ("12:01:00", "12:01:04"):
                await works.at(minute)
            assert not scheduler.up
            with refused(Reason.STORE_UNAVAILABLE):
                await scheduler.list()
        async with asyncio.timeout(30):
            while not works.told():  # a store that was out is asked again after a rest
                works.now_s += 1
                await scheduler.worker.turn()
                await asyncio.sleep(0.02)
        await works.settle()
        assert scheduler.up and len(works.told()) == 1


class Unheard:
    """A store that keeps the first record that it is given, and does not say so."""

    def __init__(self, store: Any) -> None:
        self.store, self.lost = store, 1

    def __getattr__(self, verb: str) -> Any:
        return getattr(self.store, verb)

    async def add(self, *about: Any) -> Any:
        added = await self.store.add(*about)
        if self.lost:
            self.lost = 0
            raise RecordStoreOut("no reply")
        return added


async def test_a_task_of_which_nobody_heard_that_it_was_kept_is_the_one_that_runs(tmp_path: Path) -> None:
    async with clockwork(tmp_path, replicas=0) as works:
        works.tasks = Unheard(works.tasks)
        works.replica()
        for minute in ("12:00:30", "12:01:00", "12:01:02"):
            await works.at(minute)
            await works.replicas[0].runner.worker.turn()
        await works.settle()
        await works.at("12:01:10")
        assert not works.tasks.lost
        assert len(works.told()) == 1 and works.counted.ran == {("minutely", "success"): 1}


async def test_of_two_who_order_at_once_one_is_charged(tmp_path: Path) -> None:
    rules = {"nhi_to_nhi": "p, nhi:minutely, nhi:researcher, use, -, 2, -, allow\n"}
    async with clockwork(tmp_path, rules=rules, replicas=2) as works:
        await works.at("12:00:30")
        one, two = works.replicas
        named = await one.scheduler._of("minutely")
        task_id = (await works.standing()).task_for(works.now_s)
        await asyncio.gather(*(replica.scheduler._place(named, task_id, "schedule") for replica in (one, two)))
        await works.settle()
        assert len(works.told()) == 1
        ends = [(end["http_status"], end["limits"][0]["charged"]) for end in works.world.ends() if end["limits"]]
        assert sorted(ends)[:2] == [(200, 0), (201, 1)]
        await one.scheduler.run_now("minutely", "me")
        with pytest.raises(Refusal) as raised:
            await one.scheduler.run_now("minutely", "me")
        assert raised.value.reason in (Reason.RATE_LIMITED, Reason.TOO_MANY_CONCURRENT)

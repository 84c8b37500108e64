"""What becomes of runs when a sidecar dies, when the store is out, and where several replicas have them?"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from sidecar.errors import Reason, Refusal
from sidecar.limits import open_store
from sidecar.limits.topology import PREFIX
from sidecar.settings.store import StoreSettings
from sidecar.storage import AddedRecord, RecordBounds, RecordStoreOut
from sidecar.storage.redis_store import RedisRecordStore
from sidecar.storage.sqlite_file import SqliteFile
from sidecar.storage.sqlite_store import SqliteRecordStore
from sidecar.tasks.programs.attempt import AttemptEnd, Event, OutputChunk, ProgramOrder, Prompt, Started
from sidecar.tasks.programs.run_record import RUNS, Category, Execution, Failure, RunState, RunStatus, Usage
from sidecar.tasks.programs.write_leases import KEY, STOOD_STILL
from sidecar.upstreams.processes.launcher import Exit
from tests.flow.world import PATIENCE_S
from tests.refusals import refused
from tests.unit.tasks.programs.staging import (
    ALICE,
    BOB,
    DONE,
    LEASE_S,
    Script,
    Stage,
    Working,
    failing,
    prompt,
    running,
    says,
    staged,
)
from tests.valkey import Valkey


def filed(folder: Path) -> SqliteRecordStore[Execution]:
    return SqliteRecordStore(SqliteFile(folder / "records.sqlite"), RUNS)


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is seconds in earnest."""
    for name in ("LOOK_EVERY_S", "LOOK_ALONE_EVERY_S", "FOLLOW_EVERY_S"):
        monkeypatch.setattr(f"sidecar.tasks.programs.executions.{name}", 0.02)
    for name in ("AGAIN_S", "SPOKEN_EVERY_S"):
        monkeypatch.setattr(f"sidecar.tasks.programs.run_saver.{name}", 0.02)
    monkeypatch.setattr("sidecar.tasks.programs.run_lifecycle.TOLD_WITHIN_S", 0.05)


@pytest.fixture
def held_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who does not say that it is there is dead soon."""
    monkeypatch.setattr("sidecar.tasks.worker.HELD_S", 0.1)


async def killed(stage: Stage) -> None:
    """As kill -9 leaves it: nothing is said to anybody, the keepers of its programs end them."""
    await stage.executions.worker.cancel()


# --- one sidecar and its file -----------------------------------------------------------------------------------------


LEFT = [("starting", "while it began"), ("running", "while it ran"), ("failed", "before its next try"), ("cleanup", "")]


@pytest.mark.parametrize(("state", "when"), LEFT)
async def test_what_a_dead_sidecar_left_has_failed_and_runs_no_more(state: str, when: str, tmp_path: Path) -> None:
    work = Working(starts=state != "starting", cleanup_s=0.05)
    script, retries = failing(9) if state == "failed" else work, {"max": 1, "backoff_s": 60}
    stage = staged(script, store=filed(tmp_path), holder="file", max_concurrent_executions=1, retries=retries)
    left = await stage.begin()
    await stage.until(left, RunState("running" if state == "cleanup" else state))
    if state == "cleanup":
        work.may_end.set()
    await asyncio.sleep(0.02)
    await killed(stage)

    ran = Working()
    async with running(staged(ran, store=filed(tmp_path), holder="file")) as after:
        run = await after.over(left)
        if state == "cleanup":
            assert (run.status, run.task["status"]["state"]) == (RunStatus.SUCCESS, "TASK_STATE_COMPLETED")
        else:
            why = f"the sidecar stopped {when}"
            assert (run.status, run.failure) == (RunStatus.FAILURE, Failure(Category.SYSTEM, why))
            assert run.task["status"]["state"] == "TASK_STATE_FAILED"
            assert run.task["status"]["message"]["parts"] == [{"text": why}]
        assert [one.state for one in run.transitions[-2:]] == [RunState.CLEANUP, RunState.IDLE]
        assert not ran.there
        await after.at_work()


CHOICE = {"parameters": {"--mood": "calm"}}
ALLOWED = {"cli_args": {"--mood": {"values": ["calm"]}}}


@pytest.mark.parametrize("end", ["kill -9", "SIGTERM"])
async def test_what_a_sidecar_left_before_it_began_runs_after_the_next_start(end: str, tmp_path: Path) -> None:
    work = Working()
    stage = staged(work, store=filed(tmp_path), holder="file", max_concurrent_executions=1, per_call=ALLOWED)
    first = await stage.at_work()
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "tides"}, {"data": CHOICE}]}
    chosen = Prompt("tides", CHOICE["parameters"], {}, None, message)
    left = (await stage.executions.begin("writer", chosen, ALICE, "context")).id
    following = asyncio.create_task(stage.heard(left))
    await asyncio.sleep(0.01)
    if end == "kill -9":
        await killed(stage)
    else:
        async with running(stage):  # its job sees the run that is nobody's now, and does not take it up again
            stage.executions.drain()
            told = await following
            await asyncio.sleep(0.05)
        assert told[-1]["task"]["status"]["state"] == "TASK_STATE_SUBMITTED"
    assert work.most == 1

    orders: list[ProgramOrder] = []

    async def notes(order: ProgramOrder) -> AsyncGenerator[Event]:
        orders.append(order)
        async for event in says(order):
            yield event

    again = staged(notes, store=filed(tmp_path), holder="file", per_call=ALLOWED)
    async with running(again):
        run = await again.over(left)
        assert (run.status, run.output, run.caller) == (RunStatus.SUCCESS, "tides", ALICE)
        assert [(one.execution_id, one.prompt.cli_args) for one in orders] == [(left, CHOICE["parameters"])]
        assert (await again.over(first)).status is RunStatus.FAILURE, "it had begun"


async def test_what_was_left_does_not_begin_for_a_caller_who_may_not_have_it_any_more(tmp_path: Path) -> None:
    stage = staged(Working(), store=filed(tmp_path), holder="file", max_concurrent_executions=1)
    _, left = await stage.begin(), await stage.begin()
    await killed(stage)
    again = staged(says, store=filed(tmp_path), holder="file")
    again.executions.objection = lambda *_: Reason.PRINCIPAL_DISABLED
    async with running(again):
        run = await again.over(left)
    assert (run.status, run.started_at) == (RunStatus.FAILURE, None)
    assert "principal-disabled" in run.failure.message


async def test_of_more_than_the_queue_holds_each_one_left_has_its_turn_in_the_end(tmp_path: Path) -> None:
    stage = staged(Working(), store=filed(tmp_path), holder="file", max_concurrent_executions=1)
    runs = [await stage.at_work(), *[await stage.begin() for _ in range(7)]]
    await killed(stage)
    again = staged(says, store=filed(tmp_path), holder="file", max_concurrent_executions=1, max_queue=2)
    async with running(again):
        ends = [(await again.over(one)).status for one in runs]
    assert ends == [RunStatus.FAILURE] + 7 * [RunStatus.SUCCESS]


async def test_the_store_has_that_a_run_begins_before_it_does(valkey: Valkey) -> None:
    """Else another would take up what runs already, and it would run twice."""
    work = Working()
    async with replicas(valkey, work, max_concurrent_executions=1) as (stage,), running(stage):
        _, second = await stage.at_work(), await stage.begin()
        with valkey.frozen():
            work.may_end.set()
            await stage.until(second, RunState.STARTING)
            await asyncio.sleep(0.05)
            assert second not in work.there and work.most == 1
        assert (await stage.over(second)).status is RunStatus.SUCCESS


async def test_what_is_asked_for_while_it_is_unidentified_is_what_becomes_of_it(tmp_path: Path) -> None:
    stage = staged(Working(), store=filed(tmp_path), holder="file")
    left = await stage.at_work()
    await killed(stage)
    after = staged(says, store=filed(tmp_path), holder="file")
    cancelling = asyncio.create_task(after.executions.cancel(left, "late"))
    await asyncio.sleep(0.05)
    async with running(after):
        run = await cancelling
    assert (run.status, run.task["status"]["state"]) == (RunStatus.CANCELLED, "TASK_STATE_CANCELED")


async def test_of_an_agent_so_many_runs_are_kept_as_it_says(tmp_path: Path) -> None:
    async with running(staged(says, store=filed(tmp_path), keep_runs=3)) as stage:
        runs = [(await stage.over(await stage.begin())).id for _ in range(6)]
        kept, count = await stage.executions.page(None, ("writer",), None, 10, 0)
        assert ([one.id for one in kept], count) == (runs[:1:-1], 4)


# --- replicas ---------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def replicas(server: Valkey, *scripts: Script, **settings: Any) -> AsyncIterator[list[Stage]]:
    """As many as there are scripts, each with connections of its own."""
    with server.client() as client:
        client.flushall()
        client.set(f"{PREFIX}{KEY}:since", 1)  # it was asked before: the first answer of one that was not is to wait
    stores = [open_store(StoreSettings(url=server.url, timeout=0.25), time.time) for _ in scripts]
    stages = []
    for number, (script, shared) in enumerate(zip(scripts, stores, strict=True)):
        run = shared.run
        kept = RedisRecordStore(run, RUNS)
        stages.append(staged(script, store=kept, holder=f"replica-{number}", run_shared=run, **settings))
    try:
        yield stages
    finally:
        for stage in stages:
            await stage.executions.close(0.0)
        for shared in stores:
            await shared.close()


async def test_another_replicas_run_is_seen_followed_and_cancelled_there(valkey: Valkey) -> None:
    work = Working()
    async with replicas(valkey, work, says) as (here, there), running(here), running(there):
        execution_id = await here.begin()
        await there.until(execution_id, RunState.RUNNING)
        following = asyncio.create_task(there.heard(execution_id))
        await asyncio.sleep(0.05)
        run = await there.executions.cancel(execution_id, "bob is bored")
        assert (run.status, work.there) == (RunStatus.CANCELLED, set())
        told = [event for event in await following if event]
        assert [one["task"]["status"]["state"] for one in told] == ["TASK_STATE_WORKING", "TASK_STATE_CANCELED"]
        with refused(Reason.NOT_CANCELABLE):
            await there.executions.cancel(execution_id, "again")


async def test_a_run_that_waits_for_its_caller_goes_on_at_another_replica(valkey: Valkey) -> None:
    async def asks(order: ProgramOrder) -> AsyncGenerator[Event]:
        yield Started(1)
        yield AttemptEnd(None, DONE.usage, state="TASK_STATE_INPUT_REQUIRED", message=({"text": "which?"},))

    async with replicas(valkey, asks, says) as (here, there), running(here), running(there):
        run = await here.over(await here.begin())
        await there.executions.goes_on(run.id, prompt("that one"), ALICE)
        assert (await there.over(run.id)).output == "that one"
        assert (await here.get(run.id)).status is RunStatus.SUCCESS


@pytest.mark.usefixtures("held_briefly")
async def test_what_a_dead_replica_left_is_ended_by_another_once_its_time_is_over(valkey: Valkey) -> None:
    async with replicas(valkey, Working(), Working()) as (dead, alive), running(alive):
        left, mine = await dead.at_work(), await alive.begin(caller=BOB)
        await asyncio.sleep(0.02)
        await killed(dead)
        run = await alive.over(left)
        assert run.failure == Failure(Category.SYSTEM, "the sidecar stopped while it ran")
        assert (await alive.get(mine)).state is RunState.RUNNING


@pytest.mark.usefixtures("held_briefly")
async def test_a_run_that_was_taken_for_left_behind_is_given_up_and_what_the_store_says_holds(valkey: Valkey) -> None:
    go_on = asyncio.Event()
    there = set[str]()

    async def script(order: ProgramOrder) -> AsyncGenerator[Event]:
        there.add(order.execution_id)
        try:
            yield Started(1)
            await go_on.wait()
            yield OutputChunk("late")
            await asyncio.Event().wait()
        finally:
            there.clear()

    async with replicas(valkey, script, says) as (silent, other), running(other):
        execution_id = await silent.at_work()  # its job does not run: it does not say that it is there
        ended = await other.over(execution_id)
        following = asyncio.create_task(silent.heard(execution_id))
        await asyncio.sleep(0)
        go_on.set()
        told = await following
        assert told[-1] == {"task": ended.task}
        assert (await silent.get(execution_id)) == ended
        assert not there


@pytest.mark.usefixtures("held_briefly")
async def test_who_was_not_heard_for_too_long_finds_out_which_runs_are_not_its_own_any_more(valkey: Valkey) -> None:
    work = Working()
    async with replicas(valkey, work, says) as (silent, other), running(other):
        execution_id = await silent.at_work()
        ended = await other.over(execution_id)
        async with running(silent), asyncio.timeout(PATIENCE_S):
            while work.there:
                await asyncio.sleep(0.01)
        assert await silent.get(execution_id) == ended
        assert not silent.executions.worker.jobs


@pytest.mark.usefixtures("held_briefly")
async def test_a_run_that_waited_and_was_taken_up_by_another_runs_there_alone(valkey: Valkey) -> None:
    began: list[str] = []
    go_on = asyncio.Event()

    async def script(order: ProgramOrder) -> AsyncGenerator[Event]:
        began.append(order.execution_id)
        yield Started(1)
        await go_on.wait()
        yield DONE

    async with replicas(valkey, script, says, max_concurrent_executions=1) as (silent, other), running(other):
        first, second = await silent.at_work(), await silent.begin()
        following = asyncio.create_task(silent.heard(second))
        ended = [await other.over(one) for one in (first, second)]
        assert [one.status for one in ended] == [RunStatus.FAILURE, RunStatus.SUCCESS]
        go_on.set()
        assert [await silent.until(one, RunState.IDLE) for one in (first, second)] == ended
        assert began == [first]
        assert (await following)[-1] == {"task": ended[1].task}


async def test_where_nobody_could_say_what_is_theirs_everybody_does_before_anything_is_taken_for_left_behind(
    valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.tasks.worker.HELD_S", 1.0)
    works = [Working(), Working()]
    async with replicas(valkey, *works) as stages, AsyncExitStack() as jobs:
        runs = [await stage.at_work() for stage in stages]
        await asyncio.sleep(1.1)
        for stage in stages:
            await jobs.enter_async_context(running(stage))
        async with asyncio.timeout(PATIENCE_S):
            while not all(stage.executions.held.is_sure for stage in stages):
                await asyncio.sleep(0.01)
        for work in works:
            work.may_end.set()
        for stage, run in zip(stages, runs, strict=True):
            assert (await stage.over(run)).status is RunStatus.SUCCESS


async def test_a_store_that_is_out_ends_no_run_and_hears_its_end_when_it_is_back(valkey: Valkey) -> None:
    work = Working()
    async with replicas(valkey, work) as (stage,), running(stage):
        execution_id = await stage.at_work()
        following = asyncio.create_task(stage.heard(execution_id))
        await asyncio.sleep(0.02)
        with valkey.frozen():
            work.may_end.set()
            assert (await following)[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
            with refused(Reason.STORE_UNAVAILABLE):
                await stage.begin()
            with pytest.raises(RecordStoreOut):
                await stage.store.get(execution_id)
        assert (await stage.over(execution_id)).status is RunStatus.SUCCESS


class Unheard(SqliteRecordStore[Execution]):
    """A store whose reply to a new run gets lost."""

    async def add(self, record: Execution, holder: str, until_s: float, bounds: RecordBounds) -> AddedRecord:
        await super().add(record, holder, until_s, bounds)
        raise RecordStoreOut("timeout")


async def test_what_was_refused_for_a_store_that_kept_it_all_the_same_never_runs() -> None:
    work = Working()
    async with running(staged(work, store=Unheard(SqliteFile(None), RUNS))) as stage:
        with refused(Reason.STORE_UNAVAILABLE):
            await stage.begin()
        (kept,), _ = await stage.executions.page(None, ("writer",), None, 10, 0)
        run = await stage.over(kept.id)
        assert run.failure.message == "it was refused, because the store did not answer, before it could run"
        assert work.most == 0
        assert stage.executions.standing("writer") == (0, 0, 4)


# --- agents that write ------------------------------------------------------------------------------------------------


async def test_what_writes_runs_once_at_a_time_over_replicas_whoever_gives_up_and_when(valkey: Valkey) -> None:
    at_once, most, chance = 0, 0, Random(7)

    async def script(order: ProgramOrder) -> AsyncGenerator[Event]:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        try:
            yield Started(1)
            await asyncio.sleep(0.003)
            yield DONE
        finally:
            await asyncio.sleep(0.001)
            at_once -= 1

    async with replicas(valkey, script, script, access_type="read-write") as stages, AsyncExitStack() as jobs:
        for one in stages:
            await jobs.enter_async_context(running(one))
        runs = [(stage, await stage.begin(caller=who)) for _ in range(6) for stage in stages for who in (ALICE, BOB)]
        for stage, execution_id in runs[::3]:
            await asyncio.sleep(chance.random() * 0.02)
            with suppress(Refusal):
                await stage.executions.cancel(execution_id, "why")
        ends = Counter([(await stage.over(execution_id)).status for stage, execution_id in runs])
    assert most == 1 and set(ends) <= {RunStatus.SUCCESS, RunStatus.CANCELLED} and ends[RunStatus.SUCCESS] >= 16


async def test_what_writes_does_not_begin_while_the_store_is_out(valkey: Valkey) -> None:
    async with replicas(valkey, says, access_type="read-write", queue_timeout=0.1) as (stage,), running(stage):
        first = await stage.begin()
        with valkey.frozen():
            run = await stage.until(first, RunState.IDLE)
        assert (run.status, run.started_at) == (RunStatus.TIMEOUT, None)


async def test_what_writes_is_ended_when_nobody_can_say_that_it_is_still_its_turn(valkey: Valkey) -> None:
    work = Working()
    async with replicas(valkey, work, access_type="read-write") as (stage,), running(stage):
        execution_id = await stage.at_work()
        with valkey.frozen():
            async with asyncio.timeout(PATIENCE_S):
                while work.there:
                    await asyncio.sleep(0.01)
        run = await stage.over(execution_id)
    assert (run.status, run.failure.category) == (RunStatus.FAILURE, Category.SYSTEM)


@pytest.mark.parametrize("says", [DONE, AttemptEnd(Exit(signal=15), Usage(), Failure(Category.TRANSIENT, "signal 15"))])
async def test_what_ends_after_its_sidecar_stood_still_did_not_do_what_it_was_told_and_is_not_tried_again(
    valkey: Valkey, says: AttemptEnd
) -> None:
    tries = 0

    async def stands_still(order: ProgramOrder) -> AsyncGenerator[Event]:
        nonlocal tries
        tries += 1
        yield Started(100)
        time.sleep(0.6 * LEASE_S)
        yield says

    more = {"access_type": "read-write", "retries": {"max": 1, "backoff_s": 0.1, "retry_read_write": True}}
    async with replicas(valkey, stands_still, **more) as (stage,), running(stage):
        run = await stage.over(await stage.begin())
    assert (run.status, tries) == (RunStatus.FAILURE, 1)
    assert run.failure == Failure(Category.SYSTEM, STOOD_STILL)

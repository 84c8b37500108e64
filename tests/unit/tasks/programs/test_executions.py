"""What becomes of runs, whatever their programs and their callers do?"""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from sidecar.errors import Reason, Refusal
from sidecar.storage import RecordStoreOut, SqliteFile, SqliteRecordStore
from sidecar.tasks.programs.attempt import AttemptEnd, Event, OutputChunk, ProgramOrder, ProgressNote, Started
from sidecar.tasks.programs.run_lifecycle import MAX_OUTPUT_CHARS
from sidecar.tasks.programs.run_record import MOVES, RUNS, Category, Execution, Failure, RunState, RunStatus, Usage
from sidecar.tasks.worker import to_its_end
from sidecar.upstreams.processes.launcher import Exit
from sidecar.vocabulary import Caller
from tests.flow.world import PATIENCE_S
from tests.refusals import refused
from tests.unit.tasks.programs.staging import (
    ALICE,
    BOB,
    DONE,
    SORRY,
    Script,
    Stage,
    Working,
    agent,
    failing,
    prompt,
    running,
    saying,
    says,
    staged,
)

QUICK = {"max": 2, "backoff_s": 0.01}
WELL, BADLY = (f"idle starting running {end} cleanup idle" for end in ("completed", "failed"))


async def ran(script: Script, *, text: str = "say", **settings: Any) -> Execution:
    """A run at its end."""
    async with running(staged(script, **settings)) as stage:
        return await stage.over(await stage.begin(text))


def task_state(run: Execution) -> str:
    return str(run.task["status"]["state"])


def words(run: Execution) -> str:
    return "".join(part["text"] for artifact in run.task.get("artifacts", ()) for part in artifact["parts"])


def way(run: Execution) -> str:
    return " ".join(one.state for one in run.transitions)


# --- one run ----------------------------------------------------------------------------------------------------------


async def test_a_run_goes_from_its_order_to_its_end_and_is_heard_once_and_kept() -> None:
    async with running(staged(says)) as stage:
        execution_id = await stage.begin("hello")
        told = [event for event in await stage.heard(execution_id) if event]
        run = await stage.over(execution_id)
        assert await stage.heard(run.id) == [{"task": run.task}], "of what is over"
        with refused(Reason.TASK_UNKNOWN):
            await stage.heard("another")
    assert [next(iter(event)) for event in told] == ["task", "statusUpdate", "artifactUpdate", "statusUpdate"]
    assert told[0]["task"]["status"]["state"] == "TASK_STATE_SUBMITTED"
    assert told[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert way(run) == WELL
    assert (run.status, run.exit_code, run.pid, run.output, run.output_bytes) == (RunStatus.SUCCESS, 0, 100, "hello", 5)
    assert (task_state(run), words(run)) == ("TASK_STATE_COMPLETED", "hello")
    assert (run.owner, run.input, run.retry_count, run.previous_tries) == (ALICE.binding, "hello", 0, ())
    times = [one.at for one in run.transitions]
    assert times == sorted(times) and run.started_at is not None
    assert run.expires_at == pytest.approx(run.ended_at + 100, abs=1)


ENDS = {
    "TASK_STATE_FAILED": RunStatus.FAILURE,
    "TASK_STATE_REJECTED": RunStatus.FAILURE,
    "TASK_STATE_CANCELED": RunStatus.CANCELLED,
    "TASK_STATE_INPUT_REQUIRED": RunStatus.SUCCESS,
}


async def test_what_a_program_says_of_itself_is_its_state() -> None:
    async def script(order: ProgramOrder) -> AsyncGenerator[Event]:
        yield Started(1)
        yield AttemptEnd(Exit(code=0), Usage(), state=order.prompt.text, message=({"text": "no sheep"},))

    async with running(staged(script)) as stage:
        for state, status in ENDS.items():
            run = await stage.over(await stage.begin(state))
            assert (task_state(run), run.status) == (state, status)
            assert run.failure == (Failure(Category.AGENT, "no sheep") if status is RunStatus.FAILURE else None)
            assert run.task["status"]["message"]["parts"] == [{"text": "no sheep"}]


async def test_what_runs_and_what_waits_for_who_may_not_have_it_any_more_ends() -> None:
    working, asked = Working(), set[tuple[str, str]]()

    def objection(caller: Caller, name: str, skill: str) -> Reason | None:
        asked.add((name, skill))
        return Reason.PRINCIPAL_DISABLED if caller == ALICE else None

    async with running(staged(working, max_concurrent_executions=1)) as stage:
        runs = [await stage.at_work(), await stage.begin(caller=BOB), await stage.begin()]
        stage.executions.objection = objection
        stage.executions.review()
        for run in [await stage.over(run) for run in (runs[0], runs[2])]:
            assert run.status is RunStatus.CANCELLED
            assert "principal-disabled" in run.task["status"]["message"]["parts"][0]["text"]
        await stage.until(runs[1], RunState.RUNNING)
        assert asked == {("writer", "")}
        working.may_end.set()
        assert (await stage.over(runs[1])).status is RunStatus.SUCCESS


async def test_what_is_kept_has_no_secrets_and_the_task_is_its_callers_own() -> None:
    run = await ran(says, text="use password=hunter2 today")
    assert (run.input, run.output) == ("use password=[redacted] today",) * 2
    assert words(run) == "use password=hunter2 today"
    said, kept = "exit code 1: no such token=hunter2", "exit code 1: no such token=[redacted]"
    run = await ran(failing(1, Failure(Category.AGENT, said)))
    assert run.task["status"]["message"]["parts"] == [{"text": said}]
    assert (run.failure.message, run.transitions[3].why) == (kept, kept)


async def test_of_a_long_output_the_record_keeps_the_end_and_the_task_all() -> None:
    chunks = [OutputChunk(f"{n:03}" + "ä" * 997) for n in range(100)]
    run = await ran(saying(Started(1), *chunks, DONE))
    assert (len(run.output), run.output_bytes) == (MAX_OUTPUT_CHARS, 100 * (3 + 2 * 997))
    assert words(run).endswith(run.output) and len(words(run)) == 100_000


# --- tries ------------------------------------------------------------------------------------------------------------


async def raises(order: ProgramOrder) -> AsyncGenerator[Event]:
    yield Started(1)
    raise RuntimeError("bug")


def writing(again: bool) -> dict[str, Any]:
    return {"access_type": "read-write", "retries": {**QUICK, "retry_read_write": again}}


TWICE = "idle starting running failed starting running"
LATE = AttemptEnd(Exit(signal=9), Usage(), SORRY, timed_out=True)
UNHEARD = Failure(Category.SYSTEM, "its end was not reported")
NO_END = Failure(Category.AGENT, "it did not end within 0.02 s")
OUTCOMES: list[tuple[Script, dict[str, Any], str, Failure | None]] = [
    (saying(DONE), {}, WELL, None),
    (saying(Started(1)), {}, BADLY, UNHEARD),
    (raises, {}, BADLY, Failure(Category.SYSTEM, "internal error")),
    (failing(9), {"retries": QUICK}, f"{TWICE} failed starting running failed cleanup idle", SORRY),
    *[
        (failing(1, Failure(category, "no")), {"retries": QUICK}, BADLY, Failure(category, "no"))
        for category in Category
        if category is not Category.TRANSIENT
    ],
    (saying(Started(1), LATE), {"retries": QUICK}, "idle starting running timeout cleanup idle", SORRY),
    (Working(), {"timeout": 0.02}, "idle starting running timeout cleanup idle", NO_END),
    (failing(1), writing(again=False), BADLY, SORRY),
    (failing(1), writing(again=True), f"{TWICE} completed cleanup idle", None),
]


@pytest.mark.parametrize(("script", "settings", "went", "failure"), OUTCOMES)
async def test_what_a_program_does_and_its_definition_says_is_how_its_run_ends(
    script: Script, settings: dict[str, Any], went: str, failure: Failure | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.tasks.programs.run_lifecycle.OVERTIME_S", 0.01)
    run = await ran(script, **settings)
    assert (way(run), run.failure, run.retry_count) == (went, failure, went.count("starting") - 1)
    assert task_state(run) == ("TASK_STATE_FAILED" if failure else "TASK_STATE_COMPLETED")
    failed = RunStatus.TIMEOUT if "timeout" in went else RunStatus.FAILURE
    assert run.status is (failed if failure else RunStatus.SUCCESS)
    assert not getattr(script, "there", None), "nothing is left of it"


async def test_what_may_be_gone_the_next_time_is_tried_again_and_the_tries_before_are_kept() -> None:
    async with running(staged(failing(2), retries=QUICK)) as stage:
        execution_id = await stage.begin("hello")
        told = [event for event in await stage.heard(execution_id) if event]
        run = await stage.over(execution_id)
    assert (run.status, run.retry_count, run.max_retries, run.failure) == (RunStatus.SUCCESS, 2, 2, None)
    tries = [(one.pid, one.exit_code, one.failure, one.usage.cpu_s) for one in run.previous_tries]
    assert tries == [(101, 75, SORRY, 1.0), (102, 75, SORRY, 1.0)]
    assert all(one.started_at <= one.ended_at for one in run.previous_tries)
    assert (words(run), run.output) == ("hello", "hello")
    said = [event["statusUpdate"]["status"].get("message", {}) for event in told if "statusUpdate" in event]
    texts = [part["text"] for message in said for part in message.get("parts", ())]
    assert texts == ["exit code 75; try 2 of 3 begins in 0.0 s", "exit code 75; try 3 of 3 begins in 0.0 s"]


async def test_what_writes_waits_for_what_a_sidecar_left_that_was_killed_before() -> None:
    began = time.monotonic()
    run = await ran(says, strays_s=0.2, access_type="read-write")
    assert run.status is RunStatus.SUCCESS and time.monotonic() - began >= 0.2
    assert (await ran(says, strays_s=60.0)).status is RunStatus.SUCCESS


# --- giving up --------------------------------------------------------------------------------------------------------


async def in_state(state: str) -> tuple[Stage, str, Working]:
    """A run that is just there."""
    work = Working(starts=state != "starting", cleanup_s=0.05 if state == "cleanup" else 0.0)
    if state == "between tries":
        stage = staged(failing(9), retries={"max": 2, "backoff_s": 60})
        execution_id = await stage.begin()
        await stage.until(execution_id, RunState.FAILED)
        return stage, execution_id, work
    stage = staged(work, max_concurrent_executions=1)
    first = await stage.begin()
    await stage.until(first, RunState.STARTING if state == "starting" else RunState.RUNNING)
    if state == "queued":
        return stage, await stage.begin(), work
    if state == "cleanup":
        work.may_end.set()
        await stage.until(first, RunState.CLEANUP)
    return stage, first, work


@pytest.mark.parametrize("state", ["queued", "starting", "running", "between tries"])
async def test_a_run_is_cancelled_in_every_state_and_nothing_is_left_when_that_is_told(state: str) -> None:
    stage, execution_id, work = await in_state(state)
    async with running(stage):
        run, has_started = await stage.get(execution_id), state in ("running", "between tries")
        assert (run.started_at is not None, run.pid is not None) == (has_started, has_started)
        following = asyncio.create_task(stage.heard(execution_id))
        await asyncio.sleep(0)
        run = await stage.executions.cancel(execution_id, "alice cancelled it")
        assert execution_id not in work.there
        assert (run.status, task_state(run)) == (RunStatus.CANCELLED, "TASK_STATE_CANCELED")
        assert (await following)[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_CANCELED"
        kept = await stage.over(execution_id)
    assert kept.transitions[-3].why == "alice cancelled it"
    for one, after in pairwise(one.state for one in kept.transitions):
        assert after in MOVES[one]


async def test_what_has_ended_cannot_be_cancelled_not_even_while_it_is_cleaned_up() -> None:
    stage, execution_id, _ = await in_state("cleanup")
    async with running(stage):
        for _ in range(2):
            with pytest.raises(Refusal) as late:
                await stage.executions.cancel(execution_id, "late")
            assert late.value.reason is Reason.NOT_CANCELABLE
        assert (await stage.over(execution_id)).status is RunStatus.SUCCESS
        with refused(Reason.TASK_UNKNOWN):
            await stage.executions.cancel("another", "why")


async def test_a_run_that_is_cancelled_before_it_could_begin_never_begins_and_two_who_cancel_hear_the_same() -> None:
    work = Working()
    async with running(staged(work)) as stage:
        execution_id = await stage.begin()
        one, two = await asyncio.gather(*(stage.executions.cancel(execution_id, who) for who in ("alice", "operator")))
        assert one == two and one.status is RunStatus.CANCELLED and one.transitions[-3].why == "alice"
        assert (await stage.over(execution_id)).started_at is None
        assert work.most == 0


# --- turns ------------------------------------------------------------------------------------------------------------


async def test_a_turn_that_does_not_come_in_time_is_the_end_of_it() -> None:
    work = Working()
    async with running(staged(work, max_concurrent_executions=1, queue_timeout=0.05)) as stage:
        await stage.begin()
        run = await stage.over(await stage.begin())
    assert (way(run), run.status) == ("idle timeout cleanup idle", RunStatus.TIMEOUT)
    assert run.failure == Failure(Category.SYSTEM, "its turn did not come within 0.05 s")
    assert task_state(run) == "TASK_STATE_FAILED"


async def test_a_full_queue_is_a_refusal_and_nothing_is_kept_of_it() -> None:
    async with running(staged(Working(), max_concurrent_executions=1, max_queue=1)) as stage:
        await stage.at_work()
        await stage.begin()
        with refused(Reason.TOO_MANY_CONCURRENT):
            await stage.begin(caller=BOB)
        assert (await stage.executions.page(None, ("writer",), None, 10, 0))[1] == 2
        assert stage.executions.standing("writer") == (1, 1, 1)
        with refused(Reason.UPSTREAM_UNKNOWN):
            await stage.begin(name="painter")


# --- who listens ------------------------------------------------------------------------------------------------------


async def test_who_reads_too_slowly_is_told_the_whole_task_and_misses_nothing() -> None:
    go_on = asyncio.Event()

    async def script(order: ProgramOrder) -> AsyncGenerator[Event]:
        yield Started(1)
        await go_on.wait()
        for n in range(1_000):
            yield OutputChunk(f"{n} ")
        yield ProgressNote("done", 1, 1)
        yield DONE

    async with running(staged(script)) as stage:
        execution_id = await stage.at_work()
        async with aclosing(stage.executions.follow(execution_id)) as slow:
            assert "task" in ((await anext(slow)) or {})
            quick = [asyncio.create_task(stage.heard(execution_id)) for _ in range(3)]
            await asyncio.sleep(0)
            go_on.set()
            run = await stage.over(execution_id)
            rest = [event async for event in slow]
        assert rest == [{"task": run.task}]
        assert words(run) == "".join(f"{n} " for n in range(1_000))
        assert all([await hearing for hearing in quick])


async def test_who_follows_in_silence_hears_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.tasks.programs.broadcast.SIGN_EVERY_S", 0.01)
    async with running(staged(Working())) as stage:
        execution_id = await stage.at_work()
        async with aclosing(stage.executions.follow(execution_id)) as told:
            assert [await anext(told) for _ in range(3)][1:] == [None, None]


# --- a task that waits for its caller ---------------------------------------------------------------------------------


async def asks(order: ProgramOrder) -> AsyncGenerator[Event]:
    """It asks back until it is told to end."""
    yield Started(1)
    if order.prompt.text == "end":
        yield OutputChunk("done")
        yield DONE
        return
    yield AttemptEnd(Exit(code=0), Usage(), state="TASK_STATE_INPUT_REQUIRED", message=({"text": "which?"},))


async def test_a_run_that_waits_for_its_caller_goes_on_with_their_next_message() -> None:
    async with running(staged(asks)) as stage:
        first = await stage.over(await stage.begin("begin"))
        assert (task_state(first), first.is_done) == ("TASK_STATE_INPUT_REQUIRED", True)
        again = await stage.executions.goes_on(first.id, prompt("end"), ALICE)
        assert (again.id, again.is_done) == (first.id, False)
        assert (again.started_at, again.pid, again.exit_code) == (None, None, None), "those of the turn before"
        run = await stage.over(first.id)
        assert (task_state(run), run.input) == ("TASK_STATE_COMPLETED", "end")
        assert [one["role"] for one in run.task["history"]] == ["ROLE_USER", "ROLE_AGENT", "ROLE_USER"]
        assert way(run) == "idle starting running completed cleanup idle idle starting running completed cleanup idle"
        with refused(Reason.TASK_UNKNOWN):
            await stage.executions.goes_on(first.id, prompt("more"), BOB)
        with refused(Reason.MALFORMED_CALL):
            await stage.executions.goes_on(first.id, prompt("more"), ALICE)


async def test_whoever_answers_as_soon_as_they_are_asked_is_heard() -> None:
    async with running(staged(asks)) as stage:
        for _ in range(20):
            run = await stage.begin("begin")
            while not (await stage.get(run)).is_done:
                await asyncio.sleep(0)
            await stage.executions.goes_on(run, prompt("end"), ALICE)


class Reopening(SqliteRecordStore[Execution]):
    """One that is out as soon as somebody listens to a run that goes on."""

    def __init__(self) -> None:
        super().__init__(SqliteFile(None), RUNS)
        self.asked, self.heard = asyncio.Event(), asyncio.Event()

    async def reopen(self, record: Execution, holder: str, until_s: float) -> bool:
        self.asked.set()
        await self.heard.wait()
        raise RecordStoreOut


async def test_who_listens_to_one_that_could_not_go_on_after_all_hears_its_end() -> None:
    store = Reopening()
    async with running(staged(asks, store=store)) as stage:
        first = await stage.over(await stage.begin())
        going_on = asyncio.create_task(stage.executions.goes_on(first.id, prompt("end"), ALICE))
        await store.asked.wait()
        async with aclosing(stage.executions.follow(first.id)) as told:
            await anext(told)
            store.heard.set()
            assert [event async for event in told] == []
        with refused(Reason.STORE_UNAVAILABLE):
            await going_on
        assert stage.executions.standing("writer")[:2] == (0, 0)


async def test_of_two_messages_at_once_one_goes_on_and_none_of_what_was_cancelled() -> None:
    async with running(staged(asks)) as stage:
        first = await stage.over(await stage.begin("begin"))
        going_on = (stage.executions.goes_on(first.id, prompt("end"), ALICE) for _ in range(5))
        answers = await asyncio.gather(*going_on, return_exceptions=True)
        assert sum(isinstance(one, Execution) for one in answers) == 1
        assert {one.reason for one in answers if isinstance(one, Refusal)} == {Reason.MALFORMED_CALL}
        await stage.over(first.id)
        first = await stage.over(await stage.begin("begin"))
        run = await stage.executions.cancel(first.id, "never mind")
        assert (task_state(run), run.status) == ("TASK_STATE_CANCELED", RunStatus.CANCELLED)
        with refused(Reason.MALFORMED_CALL):
            await stage.executions.goes_on(first.id, prompt("end"), ALICE)


# --- reloads ----------------------------------------------------------------------------------------------------------


async def test_an_agent_that_is_the_same_keeps_what_makes_its_tries_and_another_is_let_go_with_its_last_run() -> None:
    work = Working()
    stage = staged(work)
    async with running(stage):
        stage.executions.offer({"writer": agent()})
        assert len(stage.runners) == 1
        execution_id = await stage.at_work()
        stage.executions.offer({"writer": agent(timeout=1)})
        assert [one.closed for one in stage.runners] == [False, False]
        work.may_end.set()
        assert (await stage.over(execution_id)).status is RunStatus.SUCCESS
        await asyncio.sleep(0.01)
        assert [one.closed for one in stage.runners] == [True, False]


async def test_what_waits_for_an_agent_that_is_gone_has_failed_and_what_runs_ends_as_it_will() -> None:
    work = Working()
    async with running(staged(work, max_concurrent_executions=1)) as stage:
        first, second = await stage.at_work(), await stage.begin()
        stage.executions.offer({"writer": agent(enabled=False)})
        run = await stage.over(second)
        assert run.failure == Failure(Category.PERMANENT, "the agent is not offered any more")
        with refused(Reason.UPSTREAM_UNKNOWN):
            await stage.begin()
        work.may_end.set()
        assert (await stage.over(first)).status is RunStatus.SUCCESS


# --- the end of the process -------------------------------------------------------------------------------------------


async def test_a_sidecar_that_ends_waits_for_what_runs_and_begins_nothing() -> None:
    work = Working()
    stage = staged(work, max_concurrent_executions=1)
    first, second = await stage.at_work(), await stage.begin()
    closing = asyncio.create_task(stage.executions.close(5.0))
    await asyncio.sleep(0.01)
    with refused(Reason.DRAINING):
        await stage.begin()
    work.may_end.set()
    await closing
    one, two = await stage.get(first), await stage.get(second)
    assert (one.status, two.status) == (RunStatus.SUCCESS, RunStatus.FAILURE)
    assert two.failure == Failure(Category.SYSTEM, "the sidecar stopped before it could run")
    assert stage.runners[0].closed


@pytest.mark.parametrize("state", ["queued", "starting", "running", "between tries", "cleanup"])
async def test_a_sidecar_that_has_to_end_ends_what_is_under_way_in_every_state(state: str) -> None:
    stage, execution_id, work = await in_state(state)
    await stage.executions.close(0.0)
    run = await stage.store.get(execution_id)
    assert run.is_done and not work.there
    assert run.status is (RunStatus.SUCCESS if state == "cleanup" else RunStatus.FAILURE)
    assert state == "cleanup" or (run.failure and run.failure.message.startswith("the sidecar stopped"))


async def test_no_try_begins_while_the_sidecar_ends() -> None:
    go_on = asyncio.Event()

    async def script(order: ProgramOrder) -> AsyncGenerator[Event]:
        yield Started(1)
        await go_on.wait()
        yield AttemptEnd(Exit(code=75), Usage(), SORRY)

    stage = staged(script, retries=QUICK)
    execution_id = await stage.at_work()
    closing = asyncio.create_task(stage.executions.close(5.0))
    await asyncio.sleep(0.01)
    go_on.set()
    await closing
    run = await stage.get(execution_id)
    assert (run.status, run.retry_count) == (RunStatus.FAILURE, 0)


# --- figures ----------------------------------------------------------------------------------------------------------


async def test_the_series_say_what_came_of_runs_and_how_agents_stand() -> None:
    work = Working()
    async with running(staged(work, max_concurrent_executions=2)) as stage:
        runs = [await stage.begin() for _ in range(3)]
        await stage.until(runs[1], RunState.RUNNING)
        stage.executions.measure()
        shown = stage.metrics.render("")[1].decode()
        for name, more, value in (
            ("queue_length", "", 1), ("pool_used_ratio", "", 1),
            ("executions", ',state="running"', 2), ("executions", ',state="idle"', 1),
        ):  # fmt: skip
            assert f'sidecar_agent_{name}{{agent="writer"{more}}} {value}.0' in shown
        await stage.executions.cancel(runs[2], "why")
        work.may_end.set()
        for execution_id in runs:
            await stage.over(execution_id)
        shown = stage.metrics.render("")[1].decode()
        assert 'sidecar_agent_runs_total{agent="writer",status="success"} 2.0' in shown
        assert 'sidecar_agent_runs_total{agent="writer",status="cancelled"} 1.0' in shown


# --- all of it at once ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_happens_to_runs_at_whatever_moment_each_ends_once_as_the_table_says(seed: int) -> None:
    chance = Random(seed)
    at_work = set[str]()

    async def leave(order: ProgramOrder) -> None:
        await asyncio.sleep(chance.random() * 0.002)
        at_work.discard(order.execution_id)

    async def script(order: ProgramOrder) -> AsyncGenerator[Event]:
        assert order.execution_id not in at_work
        at_work.add(order.execution_id)
        assert len(at_work) <= 3
        try:
            await asyncio.sleep(chance.random() * 0.003)
            yield Started(1)
            for _ in range(chance.randrange(4)):
                yield OutputChunk("word ")
                await asyncio.sleep(chance.random() * 0.002)
            if chance.random() < 0.1:
                raise RuntimeError("bug")
            yield chance.choice(
                (DONE, DONE, AttemptEnd(Exit(code=75), Usage(), SORRY), AttemptEnd(None, Usage(), timed_out=True))
            )
            await asyncio.sleep(chance.random() * 0.002)
        finally:
            await to_its_end(leave(order))

    async def meddled(stage: Stage, execution_id: str) -> None:
        await asyncio.sleep(chance.random() * 0.06)
        async with asyncio.timeout(5), aclosing(stage.executions.follow(execution_id)) as told:
            async for _ in told:
                if chance.random() < 0.2:
                    break
        if chance.random() < 0.5:
            with suppress(Refusal):
                await stage.executions.cancel(execution_id, "why")

    retries = {"max": 2, "backoff_s": 0.002}
    async with running(staged(script, max_concurrent_executions=3, queue_timeout=0.1, retries=retries)) as stage:
        runs = [await stage.begin(caller=chance.choice((ALICE, BOB))) for _ in range(40)]
        await asyncio.gather(*(meddled(stage, one) for one in runs))
        for one in runs:
            run = await stage.over(one)
            for before, after in pairwise(step.state for step in run.transitions):
                assert after in MOVES[before]
            assert sum(step.state is RunState.CLEANUP for step in run.transitions) == 1
            assert task_state(run) in ("TASK_STATE_COMPLETED", "TASK_STATE_FAILED", "TASK_STATE_CANCELED")
        async with asyncio.timeout(PATIENCE_S):  # an end is told before all that was there for it is gone
            while stage.executions.worker.jobs:
                await asyncio.sleep(0)
        assert (at_work, stage.executions.standing("writer")) == (set(), (0, 0, 3))

"""Does a conversation go on with its own process, and with nobody else's, until it may not?"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bench import conversations as bench
from sidecar.errors import Reason
from sidecar.tasks.programs.attempt import Event, ProgramOrder, ProgressNote, Started, TimeLimit
from sidecar.tasks.programs.conversation import ConversationProcess
from sidecar.tasks.programs.conversations import Conversations, Endings
from sidecar.tasks.programs.run_record import Category, Failure
from sidecar.upstreams.processes.launcher import Exit, Processes, WaitLimit
from sidecar.vocabulary import Caller
from tests.flow.world import until
from tests.unit.tasks.programs.talkers import LINES, RPC, Launcher, definition, end, order, text, tried
from tests.unit.upstreams.processes.test_launcher import dies

pytestmark = pytest.mark.asyncio(loop_scope="module")
JSON_RPC, SECRET = {"agent_type": "json-rpc"}, {"secrets": ("s3cr3t",)}
BEGAN = "the conversation's process ended ({}); a new one began"


@pytest.fixture(autouse=True)
def short_of_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.tasks.programs.conversation.PATIENCE_S", 0.05)
    monkeypatch.setattr("sidecar.tasks.programs.conversation.MAX_STRAYS", 2)


class Clock:
    now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@asynccontextmanager
async def talking(processes: Processes, source: str, secrets: tuple[str, ...] = (), **more: Any) -> AsyncGenerator[Any]:
    """Conversations with a program, and how it is started. What is no setting is the Conversations' own."""
    own = {name: more.pop(name) for name in ("objection", "endings", "clock_mono", "sweep_s") if name in more}
    section = definition(**more)
    launcher = Launcher(processes, source, section, secrets)
    conversations = Conversations("chat", section, launcher, **({"sweep_s": 0.02} | own))
    try:
        yield conversations, launcher
    finally:
        await conversations.close()
        assert (conversations.count, len(conversations._conversations)) == (0, 0)


def told_why(events: list[Event]) -> str:
    return "".join(event.message for event in events if isinstance(event, ProgressNote))


async def said(chat: Conversations, prompt: str, **more: Any) -> tuple[str, str]:
    """Its answer, and why its process is another one."""
    events = await tried(chat, order(prompt, **more))
    return text(events), told_why(events)


async def test_a_turn_is_bounded_and_the_silence_after_it_is_not(processes: Processes) -> None:
    async with talking(processes, RPC, **JSON_RPC) as (conversations, launcher):
        terms = [TimeLimit(WaitLimit(2**40, 2**40)) for _ in range(2)]
        await tried(conversations, order("a")._replace(term=terms[0]))
        terms[0].renew(WaitLimit(0.0, 0.0))
        hanging = asyncio.create_task(tried(conversations, order("hang")._replace(term=terms[1])))
        await until(lambda: bool(terms[1]._hearers))
        assert len(launcher.started) == 1
        terms[1].renew(WaitLimit(0.0, 0.0))
        assert "signal" in end(await hanging).failure.message
        assert not terms[0]._hearers and not terms[1]._hearers


# --- going on ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("source", "more"), [(LINES, {}), (RPC, JSON_RPC)])
async def test_the_next_message_meets_the_same_process(processes: Processes, source: str, more: dict[str, Any]) -> None:
    async with talking(processes, source, **more) as (chat, launcher):
        first, second = [await tried(chat, order(said)) for said in ("one", "two")]
        assert (text(first), text(second)) == ("1 one", "2 two")
        assert first[0] == Started(launcher.started[0].pid, resumed=False)
        assert second[0] == Started(launcher.started[0].pid, resumed=True)
        assert end(first).failure is None and end(first).exit is None and len(launcher.started) == 1


async def test_another_owner_or_another_context_never_meets_it(processes: Processes) -> None:
    async with talking(processes, LINES) as (chat, launcher):
        assert await said(chat, "secret") == ("1 secret", "")
        assert await said(chat, "mine", by="user:bob") == ("1 mine", "")
        assert await said(chat, "new", context="c-2") == ("1 new", "")
        assert await said(chat, "on") == ("2 on", "")
        refused = end(await tried(chat, order("one")._replace(caller=None)))
        assert "unauthenticated" in refused.message[0]["text"] and len(launcher.started) == 3


async def test_two_turns_of_one_conversation_never_overlap_and_come_in_order(processes: Processes) -> None:
    async with talking(processes, LINES) as (chat, _):
        answers = await asyncio.gather(*[said(chat, f"turn {number}") for number in range(20)])
        assert [answer for answer, _ in answers] == [f"{number + 1} turn {number}" for number in range(20)]


async def test_who_waits_for_a_turn_waits_no_longer_than_its_deadline(processes: Processes) -> None:
    async with talking(processes, LINES) as (chat, launcher):
        hanging = asyncio.create_task(tried(chat, order("hang", deadline_s=1.0)))
        await until(lambda: bool(launcher.started))
        (late,) = await tried(chat, order("two", deadline_s=0.05))
        assert late.timed_out and end(await hanging).timed_out


async def test_it_can_ask_for_input_and_say_whose_fault_it_was(processes: Processes) -> None:
    async with talking(processes, RPC, **JSON_RPC) as (chat, launcher):
        asked = end(await tried(chat, order("which")))
        waits = ("TASK_STATE_INPUT_REQUIRED", ({"text": "which?"},), None)
        assert (asked.state, asked.message, asked.failure) == waits
        assert end(await tried(chat, order("fail"))).failure == Failure(Category.TRANSIENT, "busy")
        assert await said(chat, "ask") == ("-326013 ask", "")  # what it asks of us is no method
        assert len(launcher.started) == 1


# --- turns that never shift -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("source", "loud", "more"), [(LINES, "more", {}), (RPC, "late", JSON_RPC)])
async def test_what_it_says_beside_its_turns_is_unidentified_answer(
    processes: Processes, source: str, loud: str, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("MAX_STRAYS", 1_000), ("QUIET_S", 0.4)):  # on a busy machine it takes long to say all of it
        monkeypatch.setattr(f"sidecar.tasks.programs.conversation.{name}", value)
    async with talking(processes, source, **more) as (chat, launcher):
        for number, asked in enumerate((loud, "plain", loud, "plain"), 1):
            answer, _ = await said(chat, asked)
            assert answer.endswith(f"{number} {asked}"), answer
        assert len(launcher.started) == 1


async def test_a_prompt_of_several_lines_starts_nothing_and_disturbs_nothing(processes: Processes) -> None:
    async with talking(processes, LINES) as (chat, launcher):
        refused = end(await tried(chat, order("one\ntwo")))
        assert refused.failure.category is Category.PERMANENT
        assert launcher.started == [] and chat.count == 0
        assert await said(chat, "one") == ("1 one", "")
        assert end(await tried(chat, order("one\r\ntwo"))).failure == refused.failure
        assert await said(chat, "two") == ("2 two", "")


REPL = "print('Welcome')\nwhile True: print(eval(input('> ')))"
STRAYS = "import sys, time\ninput(); print('one', flush=True)\nwhile True: print('.', flush=True); time.sleep(0.005)"
DEAF = LINES.replace('== "deaf": os.close(0)', '== "deaf": print(n, flush=True); os.close(0); time.sleep(600)')
# With what settings a program is told what and says what; what it is told behind "" when its process is gone, or talks.
TALKS: list[tuple[str, dict[str, Any], list[tuple[str, str]], str]] = [
    (LINES, {"newlines": "space"}, [("one\ntwo", "1 one two"), ("three", "2 three")], ""),
    (REPL, {"turn_end": "> ", "greets": True}, [("1 + 1", "2\n"), ("2 + 2", "4\n")], ""),
    # a megabyte of errors, which nobody asked for
    (LINES, SECRET, [("complain", "1 complain"), ("a \x1b]0;title\x07s3cr3t", "2 a [redacted]")], ""),
    (LINES, {}, [("quit", "1 quit"), ("", ""), ("two", "1 two")], "it exited on its own, exit code 0"),
    (DEAF, {}, [("deaf", "1"), ("", ""), ("two", "1 two")], "it closed its pipes"),
    # nobody can tell from an answer what was not written before it was asked for
    (STRAYS, {}, [("one", "one"), ("two", "one")], "it talks without being asked"),
]


@pytest.mark.parametrize(("source", "more", "turns", "why"), TALKS)
async def test_a_program_is_understood_and_what_ends_or_talks_between_two_turns_is_not_asked_again(
    processes: Processes, source: str, more: Any, turns: Any, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if source is STRAYS:
        monkeypatch.setattr("sidecar.tasks.programs.conversation.QUIET_S", 0.4)
    async with talking(processes, source, **more) as (chat, _):
        for prompt, answer in turns:
            if not prompt:
                await until(lambda: chat.count == 0)
                continue
            if source is STRAYS and prompt == "two":
                await asyncio.sleep(0.5)
            heard = await said(chat, prompt)
            assert heard == (answer, BEGAN.format(why) if why and prompt == "two" else "")


# --- how it ends ------------------------------------------------------------------------------------------------------


async def test_silence_ends_it_and_the_next_message_says_so(processes: Processes) -> None:
    clock = Clock()
    async with talking(processes, LINES, clock_mono=clock, idle_timeout=300.0) as (chat, launcher):
        await tried(chat, order("one"))
        clock.now_s += 299
        await tried(chat, order("two"))
        clock.now_s += 300
        await dies(launcher.started[0].pid, 5)
        await until(lambda: chat.count == 0)
        third = await tried(chat, order("three"))
        assert third[:2] == [
            Started(launcher.started[1].pid, resumed=False),
            ProgressNote(BEGAN.format("no output for 300 s"), stays=True),
        ]
        assert text(third) == "1 three"
        assert told_why(await tried(chat, order("four"))) == ""  # said once


async def test_it_lives_no_longer_than_its_session(processes: Processes) -> None:
    clock = Clock()
    async with talking(processes, LINES, clock_mono=clock, session_timeout=900.0, sweep_s=60.0) as (chat, _):
        for _ in range(4):
            await tried(chat, order("on"))
            clock.now_s += 225  # also where nobody has swept yet
        assert await said(chat, "on") == ("1 on", BEGAN.format("it had lived for 900 s"))


ENDS = [
    (LINES, "exit", {}, Failure(Category.AGENT, "exit code 3"), Exit(code=3)),
    (LINES, "die", {}, Failure(Category.TRANSIENT, "signal 11 (SIGSEGV)"), Exit(signal=11)),
    (RPC, "exit", JSON_RPC, Failure(Category.AGENT, "exit code 3"), Exit(code=3)),
    (RPC, "break", JSON_RPC, Failure(Category.AGENT, "it wrote a line that is not a JSON-RPC message"), None),
    (LINES, "mute", {}, Failure(Category.AGENT, "it closed its output before its answer"), None),
    (LINES, "flood", {}, Failure(Category.AGENT, "it said more than 1048576 bytes"), None),
]


@pytest.mark.parametrize(("source", "prompt", "more", "failure", "how"), ENDS)
async def test_what_ends_in_a_turn_fails_it_and_the_next_one_has_a_new_process(
    processes: Processes, source: str, prompt: str, more: dict[str, Any], failure: Failure, how: Exit | None
) -> None:
    async with talking(processes, source, **more) as (chat, launcher):
        await tried(chat, order("one"))
        failed = end(await tried(chat, order(prompt)))
        assert (failed.failure.category, failed.exit, failed.state) == (failure.category, how, "TASK_STATE_FAILED")
        assert failed.failure.message.startswith(failure.message)
        await dies(launcher.started[0].pid, 5)
        answer, why = await said(chat, "two")
        assert answer == "1 two" and why.startswith("the conversation's process ended (it ")


async def test_what_talks_all_the_time_is_ended(processes: Processes) -> None:
    source = "import os\ninput(); print('hello', flush=True)\nwhile True: os.write(1, b'x' * 65536)"
    async with talking(processes, source) as (chat, launcher):
        assert await said(chat, "one") == ("hello", "")
        await dies(launcher.started[0].pid, 5)
        await until(lambda: chat.count == 0)


async def test_who_may_not_speak_any_more_meets_nobody_and_their_process_ends(processes: Processes) -> None:
    disabled: set[str] = set()

    def objection(caller: Caller, name: str, skill: str) -> Reason | None:
        assert name == "chat"
        return Reason.PRINCIPAL_DISABLED if caller.last.name in disabled else None

    async with talking(processes, LINES, objection=objection) as (chat, launcher):
        await tried(chat, order("one"))
        await tried(chat, order("one", by="user:bob"))
        hanging = asyncio.create_task(tried(chat, order("hang", context="c-2")))
        await until(lambda: len(launcher.started) == 3)
        disabled.add("user:alice")
        why = "its owner may not speak with it: principal-disabled"
        revoked = ("TASK_STATE_CANCELED", ({"text": why},), None)
        under_way = end(await hanging)
        await dies(launcher.started[0].pid, 5)
        (refused,) = await tried(chat, order("two"))
        for one in (under_way, refused):
            assert (one.state, one.message, one.failure) == revoked
        assert await said(chat, "two", by="user:bob") == ("2 two", "") and len(launcher.started) == 3
        disabled.clear()
        assert (await said(chat, "three"))[1] == BEGAN.format(why)


async def test_without_room_the_one_that_was_silent_longest_goes_and_nobody_elses(processes: Processes) -> None:
    clock = Clock()
    more = {"max_sessions": 2, "max_concurrent_executions": 2}
    async with talking(processes, LINES, clock_mono=clock, **more) as (chat, launcher):
        for context in ("a", "b", "a", "c"):
            clock.now_s += 1
            await tried(chat, order("on", context=context))
            assert chat.count <= 2
        await dies(launcher.started[1].pid, 5)
        assert await said(chat, "on", context="a") == ("3 on", "")
        assert (await said(chat, "on", context="b"))[1] == BEGAN.format("another conversation needed its place")
    async with talking(processes, LINES, clock_mono=clock, **more) as (chat, _):
        assert await said(chat, "mine", by="user:bob") == ("1 mine", "")
        for number in range(3):
            clock.now_s += 1
            assert await said(chat, "on", context=f"flood-{number}") == ("1 on", "")
        assert await said(chat, "still mine", by="user:bob") == ("2 still mine", "")


async def test_many_at_once_are_never_more_processes_than_there_is_room_for(processes: Processes) -> None:
    async with talking(processes, LINES, max_sessions=3, max_concurrent_executions=3) as (chat, _):
        most = 0

        async def one(number: int) -> str:
            nonlocal most
            answer, _ = await said(chat, "on", context=f"c-{number}", deadline_s=20.0)
            most = max(most, chat.count)
            return answer

        assert await asyncio.gather(*map(one, range(6))) == ["1 on"] * 6
        assert most == 3


async def test_a_changed_definition_ends_them_and_the_next_message_says_so(processes: Processes) -> None:
    endings = Endings()
    async with talking(processes, LINES, endings=endings) as (chat, launcher):
        await tried(chat, order("one"))
        hanging = asyncio.create_task(tried(chat, order("hang", context="c-2")))
        await until(lambda: len(launcher.started) == 2)
        await chat.close()
        assert end(await hanging).failure == Failure(Category.PERMANENT, "the agent was changed")
        assert end(await tried(chat, order("two"))).failure == Failure(Category.PERMANENT, "the agent was changed")
        assert chat.count == 0
    async with talking(processes, LINES, endings=endings, timeout=60.0) as (chat, _):
        assert await said(chat, "two") == ("1 two", BEGAN.format("the agent was changed"))


async def test_closing_ends_what_is_just_being_started(processes: Processes) -> None:
    async with talking(processes, LINES) as (chat, _):
        starting = asyncio.create_task(tried(chat, order("hang")))
        await asyncio.sleep(0)
        await chat.close("the sidecar stopped")
        assert chat.count == 0
        assert end(await starting).failure == Failure(Category.PERMANENT, "the sidecar stopped")


async def test_other_options_than_it_began_with_are_a_new_process(processes: Processes) -> None:
    async with talking(processes, LINES) as (chat, _):
        await tried(chat, order("one", envs={"LEVEL": "1"}))
        assert await said(chat, "two", envs={"LEVEL": "1"}) == ("2 two", "")
        assert await said(chat, "three") == ("3 three", "")  # what is not chosen stays
        assert await said(chat, "four", envs={"LEVEL": "2"}) == ("1 four", BEGAN.format("other options were chosen"))


# --- giving up --------------------------------------------------------------------------------------------------------


async def given_up(chat: Conversations, said: str) -> None:
    """Begin a turn, and stop listening."""
    events = chat.run(order(said))
    assert isinstance(await anext(events), Started)
    waiting = asyncio.create_task(anext(events))
    await asyncio.sleep(0.05)
    waiting.cancel()
    await asyncio.wait({waiting})
    await events.aclose()


async def test_a_program_that_agrees_to_give_up_goes_on(processes: Processes) -> None:
    async with talking(processes, RPC, **JSON_RPC) as (chat, launcher):
        await given_up(chat, "agree")
        assert await said(chat, "two") == ("2 two", "")
        late = end(await tried(chat, order("agree", deadline_s=0.05)))
        assert late.timed_out and late.failure
        assert await said(chat, "four") == ("4 four", "")
        assert len(launcher.started) == 1


@pytest.mark.parametrize(("source", "more"), [(LINES, {}), (RPC, JSON_RPC)])
async def test_one_that_does_not_agree_is_ended_with_its_conversation(
    processes: Processes, source: str, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.tasks.programs.conversation.CANCEL_GRACE_S", 0.03)
    async with talking(processes, source, **more) as (chat, launcher):
        await given_up(chat, "hang")
        await dies(launcher.started[0].pid, 0.5)  # nothing of it is left when the generator is closed
        again = await tried(chat, order("hang", deadline_s=0.08))
        assert told_why(again).startswith(BEGAN.format("a turn was given up"))
        assert end(again).timed_out  # progress does not make its time longer
        assert (await said(chat, "two"))[1] == BEGAN.format("a turn took too long")


async def test_who_takes_nothing_of_it_does_not_keep_it_alive(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.tasks.programs.conversation.CANCEL_GRACE_S", 0.02)
    async with talking(processes, RPC, **JSON_RPC) as (chat, launcher):
        events = chat.run(order("hang", deadline_s=1.0))
        assert isinstance(await anext(events), Started)
        assert isinstance(await anext(events), ProgressNote)
        await dies(launcher.started[0].pid, 5)
        await events.aclose()


@pytest.mark.parametrize(("source", "spoken"), [(bench.LINES, "stdin-stdout"), (bench.RPC, "json-rpc")])
async def test_whatever_callers_and_programs_do_each_hears_its_own_answer(source: str, spoken: str) -> None:
    counts = await bench.run(25, source, seed=2, agent_type=spoken)
    assert counts["own answer"] > 5 and counts["left"] == 0
    assert "another's answer" not in counts and "failed" not in counts


async def test_a_turn_that_is_given_up_just_as_its_process_is_there_leaves_none(processes: Processes) -> None:
    section = definition()
    launcher = Launcher(processes, LINES, section)

    async def launched(given: ProgramOrder) -> ConversationProcess:
        process = await launcher(given)
        asyncio.get_running_loop().call_soon(turn.cancel)  # before the turn is told
        return process

    chat = Conversations("chat", section, launched)
    turn = asyncio.create_task(tried(chat, order("one")))
    with pytest.raises(asyncio.CancelledError):
        await turn
    await dies(launcher.started[0].pid, 5)
    await chat.close()
    assert (chat.count, len(chat._conversations)) == (0, 0)


async def test_why_of_very_many_is_bounded() -> None:
    endings = Endings()
    keys: list[Any] = [("chat", "owner", str(number)) for number in range(1_100)]
    for key in keys:
        endings.keep(key, "why")
    assert [endings.pop(key, "") for key in (keys[0], keys[-1], keys[-1])] == ["", "why", ""]

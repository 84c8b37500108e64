"""Is a program told exactly what its caller said, heard as it speaks, and is nothing of it left?"""

import asyncio
import json
import os
import random
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from bench import children
from sidecar.errors import SettingsError
from sidecar.settings.agents import CliAgent
from sidecar.tasks.programs.attempt import AttemptEnd, OutputChunk, ProgramOrder, ProgramRunner, Started
from sidecar.tasks.programs.command_line import command_from
from sidecar.tasks.programs.one_shot import OneShot
from sidecar.tasks.programs.run_record import Category, Failure
from sidecar.tasks.programs.runners import runner_from
from sidecar.tasks.programs.working_folders import PREFIX
from sidecar.upstreams.processes.launcher import Exit, Processes
from tests.tables import tables
from tests.unit.tasks.programs.talkers import end, order as order_of, text as text_of
from tests.unit.upstreams.processes.test_launcher import dies

TELLER = str(Path(__file__).parents[3] / "programs" / "teller.py")
GIVEN = {"PATH": os.environ.get("PATH", os.defpath), "HOME": "/nowhere"}
ENVIRON = GIVEN | {"AWS_SECRET_ACCESS_KEY": "of the sidecar's own"}
linux = pytest.mark.skipif(sys.platform != "linux", reason="only there a process can adopt")


pytestmark = pytest.mark.asyncio(loop_scope="module")  # one warden for all


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def processes() -> AsyncIterator[Processes]:
    processes = Processes(ENVIRON)
    yield processes
    await processes.close()


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def agent(*args: str, **settings: Any) -> CliAgent:
    own = {"executable": sys.executable, "args": ["-I", "-S", TELLER, *args]}
    return CliAgent.model_validate(own | settings)


def told(source: str, to: str, *more: str, **settings: Any) -> CliAgent:
    """A teller of these patterns; its files are its last arguments."""
    return agent("--from", source, "--to", to, *more, input_pattern=source, output_pattern=to, **settings)


def order(text: str = "hello", deadline_s: float = 20.0, **chosen: Any) -> ProgramOrder:
    return order_of(text, deadline_s=deadline_s, **chosen)


async def tried(runner: ProgramRunner, one: ProgramOrder) -> tuple[str, AttemptEnd]:
    events = [event async for event in runner.run(one)]
    assert end(events).exit is None or isinstance(events[0], Started)
    return text_of(events), end(events)


async def ran(processes: Processes, definition: CliAgent, one: ProgramOrder | None = None) -> tuple[str, AttemptEnd]:
    return await tried(runner_from("teller", definition, processes, ENVIRON), one or order())


def folders() -> set[str]:
    return {path.name for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*")}


PATTERNS = [(source, to) for source in ("stdin", "file", "args") for to in ("stdout", "file")]


@pytest.mark.parametrize(("source", "to"), PATTERNS)
async def test_however_it_is_told_it_is_told_the_same(processes: Processes, source: str, to: str) -> None:
    before = folders()
    for text in ("hällo\n\tworld \U0001f600\r\n", ""):
        said, ended = await ran(processes, told(source, to), order(text))
        assert said == text
        assert (ended.exit, ended.failure, ended.timed_out) == (Exit(code=0), None, False)
        assert ended.usage.cpu_s > 0 and ended.usage.peak_memory_bytes > 1_000_000
    assert folders() == before


async def test_its_files_stand_where_they_should_and_a_conversation_without_process_is_runs(
    processes: Processes,
) -> None:
    files = {"input_file_template": "task.md", "output_file_template": "answer-{execution_id}.md"}
    words = ("--from", "file", "--to", "file", "--", "{input_file}", "{output_file}")
    assert (await ran(processes, agent(*words, agent_type="file-file", **files)))[0] == "hello"
    assert (await ran(processes, told("stdin", "stdout", mode="interactive", keep_alive=False)))[0] == "hello"


# --- what it is given -------------------------------------------------------------------------------------------------


@linux
async def test_it_gets_what_it_is_given_and_nothing_else(processes: Processes, tmp_path: Path) -> None:
    """BL-080."""
    (tmp_path / "env").write_text("TOKEN='s3cr3t-value'\nMODE=secret-mode\n")
    definition = told("file", "stdout", "--as", "json", envs={"MODE": "plain"}, env_path=tmp_path / "env")
    said, _ = await ran(processes, definition)
    assert "s3cr3t-value" not in said
    got = json.loads(said)
    got["env"].pop("LC_CTYPE", None)  # Python's own
    assert got["env"] == {**GIVEN, "TOKEN": "[redacted]", "MODE": "plain"}
    assert got["fds"] in ([0, 1, 2, 3], [0, 1, 2])  # 3 is the listing of them
    assert Path(got["cwd"]).name.startswith(PREFIX) and not Path(got["cwd"]).exists()
    assert (got["folder"], got["files"]) == ("0o700", {"input-x-1.txt": "0o600"})


async def test_without_files_its_folder_is_its_own_and_empty(processes: Processes, tmp_path: Path) -> None:
    got = json.loads((await ran(processes, told("stdin", "stdout", "--as", "json")))[0])
    assert got["files"] == {} and not Path(got["cwd"]).exists()
    there = told("stdin", "stdout", "--as", "json", working_directory=tmp_path)
    assert json.loads((await ran(processes, there))[0])["cwd"] == str(tmp_path)


async def test_what_a_caller_chose_stands_where_the_operator_gave_it_room(processes: Processes, tmp_path: Path) -> None:
    allowed = {"cli_args": {"-B": {"values": [""]}, "-X": {"values": ["utf8"]}}}
    definition = told("args", "stdout", "--as", "json", envs={"LEVEL": "1"}, per_call=allowed)
    chosen = order("say", cli_args={"-B": "", "-X": "utf8"}, envs={"LEVEL": "2"}, folder=str(tmp_path))
    got = json.loads((await ran(processes, definition, chosen))[0])
    assert (got["env"]["LEVEL"], got["cwd"]) == ("2", str(tmp_path))
    assert got["argv"][-2:] == ["--", "say"]


# --- prompts are data -------------------------------------------------------------------------------------------------

REPORTED = [
    *("--version", "-p x", "--", "-", "@/etc/hosts", "--mood=exits", "a\nb", "\n", "--\n--help"),
    *("$(id) `id` ; id | cat", "{prompt}", "{input_file}"),
]
WAYS = [("stdin", "stdout"), ("args", "stdout"), ("file", "stdout")]


@pytest.mark.parametrize(("source", "to"), WAYS)
async def test_the_agent_receives_exactly_the_text(processes: Processes, source: str, to: str) -> None:
    """BL-093."""
    runner = runner_from("teller", told(source, to), processes, ENVIRON)
    texts = REPORTED if source == "args" else [*REPORTED[-3:], "é" * 100_000]
    answers = await asyncio.gather(*(tried(runner, order(text)) for text in texts))
    assert [said for said, _ in answers] == texts


WORDS = [
    *("--", "-", "--help", "-rf", "@file", "=", "'", '"', "\\", "$HOME", "%s", "*", "~", "|", ";", "&", ">", "<"),
    *("/etc/passwd", "{prompt}", "{output_file}", "\n", "\r", "\t", " ", "\x1b[31m", "\x7f", "\u202e", "\U000e0041"),
    *("é", "\ufeff"),
]
ECHO = "for word; do printf '%s\\0' \"$word\"; done"


async def test_five_hundred_hostile_prompts_reach_the_program_as_data_only(processes: Processes) -> None:
    """Few programs each told many, as a process takes its time; `bench.runs` starts one for each."""
    draw = random.Random(7)
    prompts = ["".join(draw.choices(WORDS, k=draw.randint(1, 12))) for _ in range(500)]
    definition = CliAgent.model_validate(
        {"executable": "/bin/sh", "args": ["-c", ECHO, "sh"], "input_pattern": "args", "strip_control": False}
    )
    command = command_from("echo", definition, ENVIRON)
    for text in prompts:
        assert list(command.program(order(text).prompt).argv) == ["/bin/sh", "-c", ECHO, "sh", "--", text]
    for at in range(0, 500, 100):
        batch = prompts[at : at + 100]
        program = command.program(order("").prompt)
        process = await processes.start(replace(program, argv=[*program.argv[:-1], *batch]))
        assert (await process.stdout.read()).split(b"\0")[1:-1] == [text.encode() for text in batch]
        await process.end()
    runner = runner_from("echo", definition, processes, ENVIRON)
    for text in prompts[:20]:
        assert (await tried(runner, order(text)))[0] == f"--\0{text}\0"


# --- how it is heard --------------------------------------------------------------------------------------------------


@linux
async def test_what_it_says_is_shown_as_it_comes_and_safe(processes: Processes, tmp_path: Path) -> None:
    (tmp_path / "env").write_text("TOKEN=s3cr3t-value\n")
    runner = runner_from(
        "t", told("stdin", "stdout", "--mood", "escapes", env_path=tmp_path / "env"), processes, ENVIRON
    )
    events = [event async for event in runner.run(order())]
    texts = [event.text for event in events if isinstance(event, OutputChunk)]
    assert "".join(texts) == "shown and [redacted] é\n" and len(texts) > 1
    assert end(events).failure == Failure(Category.AGENT, "exit code 1: [redacted]")


async def test_who_says_too_much_is_ended(processes: Processes) -> None:
    definition = told("stdin", "stdout", "--mood", "floods", a2a={"capabilities": {"max_output_size": 100_000}})
    said, ended = await ran(processes, definition)
    assert said == "x" * 100_000
    assert ended.failure == Failure(Category.AGENT, "it said more than 100000 bytes")
    assert ended.exit.signal in (signal.SIGTERM, signal.SIGKILL)


FAILS: list[tuple[str, Category, str]] = [
    ("exits", Category.AGENT, "exit code 3: it has no more ink"),
    ("busy", Category.TRANSIENT, "exit code 75"),
    ("crashes", Category.TRANSIENT, "signal 11 (SIGSEGV)"),
]


@pytest.mark.parametrize(("mood", "category", "message"), FAILS)
async def test_its_end_says_who_is_at_fault(processes: Processes, mood: str, category: Category, message: str) -> None:
    definition = told("stdin", "stdout", "--mood", mood, retries={"exit_codes": [75]})
    _, ended = await ran(processes, definition)
    assert (ended.failure, ended.state) == (Failure(category, message), "TASK_STATE_FAILED")


NO_ANSWERS = tables("tasks/programs/one_shot")["no_answers"]


@linux
@pytest.mark.parametrize(("mood", "message"), NO_ANSWERS)
async def test_a_file_that_is_no_answer_is_a_failure(processes: Processes, mood: str, message: str) -> None:
    before = folders()
    definition = told("stdin", "file", "--mood", mood, a2a={"capabilities": {"max_output_size": 2048}})
    said, ended = await ran(processes, definition)
    assert (said, ended.failure) == ("", Failure(Category.AGENT, message))
    assert folders() == before


async def test_where_a_file_holds_its_answer_what_it_prints_is_why_it_failed(processes: Processes) -> None:
    definition = CliAgent.model_validate(
        {"executable": "/bin/sh", "args": ["-c", "echo no ink; exit 4"], "output_pattern": "file"}
    )
    said, ended = await ran(processes, definition)
    assert (said, ended.failure) == ("", Failure(Category.AGENT, "exit code 4: no ink"))


async def test_what_is_not_there_is_said_at_once_and_what_goes_is_permanent(
    processes: Processes, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match="there is no program"):
        runner_from("gone", CliAgent.model_validate({"executable": "/nowhere/at-all"}), processes, ENVIRON)
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    runner = runner_from("goes", CliAgent.model_validate({"executable": str(program)}), processes, ENVIRON)
    program.unlink()
    said, ended = await tried(runner, order())
    assert (said, ended.exit) == ("", None)
    assert ended.failure == Failure(Category.PERMANENT, "it cannot be started: No such file or directory")


# --- how it ends ------------------------------------------------------------------------------------------------------


async def test_when_its_time_is_over_it_is_ended(processes: Processes) -> None:
    _, ended = await ran(processes, told("file", "stdout", "--mood", "hangs"), order(deadline_s=0.1))
    assert ended.timed_out and ended.failure == Failure(Category.AGENT, "it did not answer within 0.1 s")
    assert ended.exit == Exit(signal=signal.SIGTERM)


async def test_a_listener_who_is_too_slow_is_no_reason_to_live_longer(processes: Processes) -> None:
    definition = CliAgent.model_validate({"executable": "/bin/sh", "args": ["-c", "yes"]})
    async with aclosing(runner_from("yes", definition, processes, ENVIRON).run(order(deadline_s=0.1))) as events:
        started = await anext(events)
        await anext(events)
        await dies(started.pid, 5)


@linux
async def test_a_listener_who_leaves_ends_it_with_everything_that_it_started(processes: Processes) -> None:
    """BL-074: the grandchild has a session of its own, and both ignore being asked."""
    before = folders()
    command = command_from("stubborn", told("file", "stdout", "--mood", "stubborn"), ENVIRON)
    runner = OneShot("stubborn", command, processes, grace_s=0.1)
    async with aclosing(runner.run(order())) as events:
        started, said = await anext(events), await anext(events)
    for pid in (started.pid, int(said.text)):
        await dies(pid, 5)
    assert folders() == before


@linux
async def test_who_is_given_up_while_its_rest_is_being_ended_is_over_when_that_has_ended(processes: Processes) -> None:
    """Its turn is another's then: two that write met under `bench.agent_kills`."""
    script = "trap '' TERM; setsid sleep 60 <&- >&- 2>&- & echo $!"
    runner = runner_from("t", CliAgent.model_validate({"executable": "/bin/sh", "args": ["-c", script]}), processes, {})
    hearing = asyncio.ensure_future(tried(runner, order()))
    await asyncio.sleep(0.4)  # the program has ended, and what it left is being asked
    assert any(children._below(processes))
    hearing.cancel()
    await asyncio.wait({hearing})
    async with asyncio.timeout(1.0):  # a keeper goes when its program has gone
        while any(children._below(processes)):
            await asyncio.sleep(0.01)


async def test_a_run_that_is_cancelled_at_any_moment_leaves_nothing(processes: Processes) -> None:
    before = folders()
    runner = runner_from("t", told("file", "file", "--mood", "hangs"), processes, ENVIRON)
    for moment_s in (0.0, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.03):
        task = asyncio.ensure_future(tried(runner, order()))
        await asyncio.sleep(moment_s)
        task.cancel()
        await asyncio.wait({task})
    async with asyncio.timeout(2):
        while folders() != before or any(children._below(processes)):
            await asyncio.sleep(0.01)

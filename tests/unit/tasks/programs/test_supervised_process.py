"""Is a program fed, heard, measured and ended, whatever it does?"""

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from sidecar.settings.agents import Resources
from sidecar.tasks.programs.attempt import TimeLimit, failure_of_exit
from sidecar.tasks.programs.output_cleaner import CleaningRules
from sidecar.tasks.programs.run_record import Category, Failure
from sidecar.tasks.programs.supervised_process import READ_BYTES, SupervisedProcess
from sidecar.tasks.worker import to_its_end
from sidecar.upstreams.processes.launcher import Exit, Processes, Program, StartFailed, WaitLimit
from tests.flow.world import until
from tests.tables import tables
from tests.unit.upstreams.processes.test_launcher import PATH, dies

linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel counts otherwise there")


pytestmark = pytest.mark.asyncio(loop_scope="module")  # one warden for all


def python(code: str, **limits: int) -> Program:
    return Program(sys.executable, ["python", "-I", "-S", "-c", code], PATH, limits=limits)


def shell(script: str, **limits: int) -> Program:
    return Program("/bin/sh", ["sh", "-c", script], PATH, limits=limits)


async def started(processes: Processes, program: Any, term: Any = None) -> SupervisedProcess:
    program = shell(program) if isinstance(program, str) else program
    return await SupervisedProcess.start(processes, program, CleaningRules(secrets=("s3cr3t",)), term)


async def all_of(attended: SupervisedProcess) -> bytes:
    said = b""
    while chunk := await attended.read():
        said += chunk
    return said


async def test_it_is_told_and_heard_and_its_last_words_are_kept(processes: Processes) -> None:
    attended = await started(processes, "cat; printf 'x\\033[1m\\ns3cr3t is wrong\\n' >&2; exit 3")
    attended.tell(b"this " * 100_000)
    attended.tell_no_more()
    assert await all_of(attended) == b"this " * 100_000
    assert await attended.end() == Exit(code=3)
    assert attended.last_words.last == "[redacted] is wrong"


async def test_lines_that_come_together_are_read_together(processes: Processes) -> None:
    attended = await started(processes, "for n in 1 2 3; do echo $n; done; sleep 600")
    assert await attended.read() == b"1\n2\n3\n"
    await attended.end()


async def test_who_is_cancelled_while_reading_loses_nothing(processes: Processes) -> None:
    attended = await started(processes, "echo 1; read more; echo 2")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await attended.read(gather_s=600)
    attended.tell(b"\n")
    assert await all_of(attended) == b"1\n2\n"
    await attended.end()


async def test_a_slow_reader_misses_nothing_of_a_program_that_is_over(processes: Processes) -> None:
    attended = await started(processes, "yes | head -c 60000; yes | head -c 900000 >&2")
    assert attended.exit is None
    await until(lambda: attended.exit is not None)
    await asyncio.sleep(0.25)
    assert len(await all_of(attended)) == 60_000
    assert await attended.end() == Exit(code=0)


async def test_an_answer_that_nobody_takes_stops_its_program(processes: Processes) -> None:
    """Nothing piles up here."""
    attended = await started(processes, "yes 2>/dev/null")
    assert len(await attended.read()) >= 1000
    await asyncio.sleep(0.1)
    held = len(attended._process.stdout._buffer)  # type: ignore[attr-defined]
    assert held <= 3 * READ_BYTES
    await attended.end()


async def test_it_lives_as_long_as_its_term_says_and_a_term_that_was_left_ends_nothing(processes: Processes) -> None:
    past, far = WaitLimit(0.0, 0.0), WaitLimit(2**40, 2**40)
    term, other = TimeLimit(far), TimeLimit(far)
    attended = await started(processes, "exec cat", term=term)
    attended.lives(other)
    term.renew(past)
    attended.tell(b"1\n")
    assert await attended.read() == b"1\n"
    other.renew(past)
    how = await attended.exits()
    assert how is not None and how.signal in (signal.SIGTERM, signal.SIGKILL)
    await attended.end()
    assert not other._hearers


async def test_a_program_that_does_not_read_and_one_that_complains_without_end_are_ended(processes: Processes) -> None:
    attended = await started(processes, "yes complaint >&2")
    attended.tell(b"x" * 1_000_000)
    attended.tell_no_more()
    attended.end_in(0.1)
    assert await all_of(attended) == b""
    assert attended.timed_out and await attended.end() == Exit(signal=signal.SIGTERM)
    assert attended.last_words.last in "complaint", "the very last may have been cut off"


@linux
async def test_what_holds_its_output_open_holds_up_nobody(processes: Processes) -> None:
    attended = await started(processes, "(trap '' TERM; sleep 600) & echo $!")
    async with asyncio.timeout(2.0):
        grandchild = int(await all_of(attended))
        await attended.end(grace_s=0.1)
    await dies(grandchild, 0.1)


@linux
async def test_a_grandchild_that_ignores_being_asked_is_gone_in_time(processes: Processes) -> None:
    """BL-074."""
    script = "trap '' TERM; (setsid sh -c 'trap \"\" TERM; echo $$; sleep 600'); sleep 600"
    attended = await started(processes, script)
    grandchild = int(await attended.read())
    async with asyncio.timeout(1.0):
        await attended.end(grace_s=0.1)
    await dies(grandchild, 0.1)


BUSY = "\ndef busy(s):\n until = time.process_time() + s\n while time.process_time() < until: pass\n"
WORKS = f"import sys, time{BUSY}for line in sys.stdin: busy(0.05); print(1, flush=True)"
FORKS = f"import os, time{BUSY}if not os.fork():\n x = b'x' * 50_000_000; busy(0.12); os._exit(0)\nos.wait()"


@linux
async def test_what_it_took_is_counted_with_all_that_it_started(processes: Processes, tmp_path: Path) -> None:
    attended = await started(processes, python(FORKS))
    assert await all_of(attended) == b""
    await attended.end()
    usage = attended.usage
    assert 0.1 < usage.cpu_s < 1.0 and usage.cpu_percent > 1
    assert 50_000_000 < usage.peak_memory_bytes < 200_000_000


@linux
async def test_while_it_runs_its_usage_is_looked_at_and_a_turn_has_its_own(processes: Processes) -> None:
    attended = await started(processes, python(WORKS))
    for _ in range(2):
        attended.measure_anew()
        attended.tell(b"go\n")
        assert await attended.read() == b"1\n"
        assert 0.02 < attended.usage.cpu_s < 0.3  # told in hundredths, of which two may be cut off
        assert attended.usage.memory_bytes > 1_000_000
    await attended.end()


LIMITS = tables("tasks/programs/supervised_process")["limits"]


@linux
@pytest.mark.parametrize(("code", "limits", "told"), LIMITS)
async def test_what_it_may_take_bounds_it(processes: Processes, code: str, limits: dict[str, int], told: str) -> None:
    attended = await started(processes, python(code, **limits))
    await all_of(attended)
    how = await attended.end()
    assert failure_of_exit(how, attended.last_words.last, Resources(), attended.usage) == Failure(Category.AGENT, told)


async def test_a_program_that_is_not_there_has_a_number(processes: Processes) -> None:
    for path, words, number in (("/nowhere", [], 2), ("/bin/sh", ["x" * 100_000] * 50, 7)):
        with pytest.raises(StartFailed) as failed:
            await started(processes, Program(path, ["sh", *words], {}))
        assert failed.value.number == number
    await (await processes.start(shell("true"))).end()  # and the warden serves on


async def test_who_is_cancelled_once_or_twice_hears_of_it_when_it_is_over() -> None:
    may_end, over = asyncio.Event(), False

    async def end() -> None:
        nonlocal over
        await may_end.wait()
        over = True

    seeing = asyncio.create_task(to_its_end(end()))
    for _ in range(3):
        await asyncio.sleep(0)
        seeing.cancel()
    await asyncio.sleep(0)
    assert not seeing.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await seeing
    assert over


async def test_what_it_comes_to_is_what_is_had_of_it() -> None:
    assert await to_its_end(asyncio.sleep(0, 3)) == 3
    with pytest.raises(TimeoutError):
        await to_its_end(asyncio.wait_for(asyncio.Event().wait(), 0))

"""Is a program started as it was named, and is nothing left of it when it ends, whatever it did?"""

import asyncio
import io
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import pytest
import pytest_asyncio
import uvloop

from bench import children
from sidecar.upstreams.processes.launcher import Exit, Process, Processes, Program, StartFailed, WaitLimit

PATH = {"PATH": os.environ.get("PATH", os.defpath)}
linux = pytest.mark.skipif(sys.platform != "linux", reason="only there a process can adopt")


@pytest_asyncio.fixture
async def processes() -> AsyncIterator[Processes]:
    processes = Processes({})
    yield processes
    await processes.close()


def shell(script: str, cwd: str | None = None) -> Program:
    return Program("/bin/sh", ["sh", "-c", script], PATH, cwd)


def alive(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


async def dies(pid: int, within_s: float) -> None:
    async with asyncio.timeout(within_s):
        while alive(pid):
            await asyncio.sleep(0.01)


async def pid_said(process: Process) -> int:
    return int(await process.stdout.readline())


async def test_its_three_streams_and_its_end_are_ours(processes: Processes) -> None:
    process = await processes.start(shell("read line; echo said $line; echo complained >&2; exit 7"))
    process.stdin.write(b"this\n")
    assert await process.stdout.read() == b"said this\n"
    assert await process.stderr.read() == b"complained\n"
    assert await process.wait() == Exit(code=7)
    await process.followed
    await process.end()


async def test_how_it_ended_is_told(processes: Processes) -> None:
    for script, told in (("exit 0", "exit code 0"), ("kill -SEGV $$", "signal 11 (SIGSEGV)")):
        process = await processes.start(shell(script))
        assert str(await process.wait()) == told
        await process.end()


NO_PROGRAMS = [
    (Program("/nowhere/at-all", ["x"], {}), "/nowhere/at-all: No such file or directory"),
    (Program("/", ["x"], {}), "/: Permission denied"),
    (Program("/bin/sh", ["sh"], {}, cwd="/nowhere"), "/nowhere: No such file or directory"),
    (Program("/bin/sh", ["sh", "x" * 3_000_000], {}), "/bin/sh: Argument list too long"),
]
TEXTS = [  # the system says of two of them that there is no such file
    (b"no first line", "cannot be executed: its first line must name its interpreter"),
    (b"#! /usr/bin/nobody -u\nx\n", "text: its first line names /usr/bin/nobody, which does not exist"),
    (b"#!/bin/sh\r\necho\r\n", "text: its first line ends with a carriage return"),
]


async def test_what_cannot_be_started_says_why(processes: Processes, tmp_path: Path) -> None:
    for program, why in NO_PROGRAMS:
        with pytest.raises(StartFailed, match=f"^{why}$"):
            await processes.start(program)
    for text, why in TEXTS:
        (tmp_path / "text").write_bytes(text)
        (tmp_path / "text").chmod(0o755)
        with pytest.raises(StartFailed, match=why):
            await processes.start(Program(str(tmp_path / "text"), ["text"], {}))


@linux
async def test_signals_are_as_a_program_expects_them(processes: Processes) -> None:
    process = await processes.start(
        shell("grep -E '^Sig(Blk|Ign)' /proc/self/status; grep NoNewPrivs /proc/self/status")
    )
    told = (await process.stdout.read()).split()
    ignored = int(told.pop(3), 16) & ~(0b11 << 31)  # 32 and 33 are the C library's own, and nobody can set them
    assert (told, ignored) == ([b"SigBlk:", b"0" * 16, b"SigIgn:", b"NoNewPrivs:", b"1"], 0)
    await process.end()


def killed_keeper_of(process: Process) -> None:
    os.kill(int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[1]), signal.SIGKILL)


LEAVES = "trap '' TERM; (setsid sleep 600 & echo $!); "


@linux
@pytest.mark.parametrize(
    ("script", "end", "told"),
    [
        (LEAVES + "exit 0", lambda process: None, "exit code 0"),
        (LEAVES + "sleep 600", Process.abandon, ""),
        (LEAVES + "sleep 600", killed_keeper_of, "an unknown status"),
    ],
    ids=["it ends by itself", "the sidecar lets go", "its keeper is killed"],
)
async def test_all_that_a_program_started_ends_within_two_seconds(
    processes: Processes, script: str, end: Callable[[Process], None], told: str
) -> None:
    process = await processes.start(shell(script))
    orphan = await pid_said(process)
    end(process)
    await dies(process.pid, 2.0)
    await dies(orphan, 2.0)
    assert told in str(await process.wait())
    await process.end()


@linux
async def test_when_the_warden_is_killed_programs_go_on_and_the_next_one_has_another(processes: Processes) -> None:
    first = await processes.start(shell("exec cat"))
    os.kill(processes.warden_pid, signal.SIGKILL)
    await dies(processes.warden_pid, 1.0)
    second = await processes.start(shell("exec cat"))
    for process in (first, second):
        process.stdin.write(b"x\n")
        assert await process.stdout.readline() == b"x\n"
        await process.end()


STANDS_STILL = """
import asyncio, os, signal, time
from sidecar.upstreams.processes.launcher import Processes, Program, WaitLimit as Until
async def main():
    until = Until(time.monotonic() + 0.3, time.monotonic() + 0.4)
    script = "trap '' TERM; setsid sleep 600 & echo $! $$; sleep 600"
    process = await Processes({}).start(Program("/bin/sh", ["sh", "-c", script], {}, until=until))
    print((await process.stdout.readline()).decode(), end="", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
asyncio.run(main())
"""


@linux
async def test_when_the_sidecar_stands_still_what_may_live_no_longer_ends_all_the_same() -> None:
    sidecar = await asyncio.create_subprocess_exec(sys.executable, "-c", STANDS_STILL, stdout=asyncio.subprocess.PIPE)
    for pid in map(int, (await sidecar.stdout.readline()).split()):
        await dies(pid, 10.0)
    assert alive(sidecar.pid)
    sidecar.kill()
    await sidecar.wait()


def until(s: float, kills_s: float = 0.0) -> WaitLimit:
    now_s = time.monotonic()
    return WaitLimit(now_s + s, now_s + s + kills_s)


async def test_a_program_is_asked_to_end_when_its_time_is_over_and_then_it_is_not_asked(processes: Processes) -> None:
    heeds = await processes.start(shell("trap 'exit 7' TERM; echo; while :; do sleep 0.01; done"))
    stubborn = await processes.start(shell("trap '' TERM; echo; exec sleep 600"))
    for process, kills_s, end in ((heeds, 600.0, Exit(code=7)), (stubborn, 0.05, Exit(signal=signal.SIGKILL))):
        await process.stdout.readline()
        process.may_live(until(0.0, kills_s))
        assert await process.wait() == end
        await process.followed
        await process.end()


async def test_a_program_lives_as_long_as_was_said_last(processes: Processes) -> None:
    process = await processes.start(Program("/bin/cat", ["cat"], {}, until=until(1.0)))
    process.may_live(until(600.0))
    process.may_live(None)
    await asyncio.sleep(1.1)
    process.stdin.write(b"still there\n")
    assert await process.stdout.readline() == b"still there\n"
    await process.end()


async def test_what_should_have_ended_already_is_not_started(processes: Processes, tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match="timed out"):
        await processes.start(Program("/bin/touch", ["touch", str(tmp_path / "there")], {}, until=until(-0.1)))
    assert not (tmp_path / "there").exists()


async def test_a_start_that_is_given_up_leaves_nothing(processes: Processes) -> None:
    first = await processes.start(shell("exec cat"))
    for pause_s in (0.0, 0.001, 0.003, 0.01):
        task = asyncio.create_task(processes.start(shell("exec sleep 600")))
        await asyncio.sleep(pause_s)
        task.cancel()
        with suppress(asyncio.CancelledError):
            (await task).abandon()
    await first.end()
    await children._settled(processes)
    assert list(children._below(processes)) == []


async def test_an_end_that_nobody_waits_for_is_an_end_all_the_same() -> None:
    processes = Processes({})
    process = await processes.start(shell("trap '' TERM; echo; sleep 600"))
    await process.stdout.readline()
    ending = asyncio.create_task(process.end())
    await asyncio.sleep(0.01)
    ending.cancel()
    left = await processes.start(shell("exec cat"))
    async with asyncio.timeout(2):
        await processes.close()
    assert not alive(process.pid) and not alive(left.pid)
    with pytest.raises(StartFailed):
        await processes.start(shell("true"))


@pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_no_descriptor_is_closed_twice(
    new_loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the two another thread may have opened a file under that number, and loses it."""
    late = 0

    class File(io.FileIO):
        def close(self) -> None:
            nonlocal late
            if not self.closed and self.closefd:
                late += not os.path.exists(f"/dev/fd/{self.fileno()}")  # noqa: PTH110
            super().close()

    def opened(fd: int, mode: str, buffering: int, closefd: bool = True) -> File:
        return File(fd, mode, closefd)

    async def run() -> None:
        processes = Processes({})
        try:
            await (await processes.start(shell("true"))).end()  # the warden is there
            await asyncio.sleep(0.05)
            before = children._descriptors()
            monkeypatch.setattr(os, "fdopen", opened)
            ended, abandoned = [await processes.start(shell("exec cat")) for _ in range(2)]
            await ended.end()
            abandoned.abandon()
            await abandoned.followed
            await asyncio.sleep(0.05)
            assert children._descriptors() == before
        finally:
            await processes.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())
    assert late == 0

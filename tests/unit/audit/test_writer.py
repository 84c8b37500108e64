"""Does nobody but whose evidence it is wait for a disk, and is nothing lost that somebody waited for?"""

import asyncio
import errno
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sidecar.audit.chain import Append, UnfitHead, Unsealed
from sidecar.audit.writer import MAX_AT_ONCE, Counts, RecordWriter, WriteJob
from sidecar.errors import Reason, Refusal
from tests.unit.audit.scenes import FakeClock, append, open_audit, records, understood


def numbered(number: int, counts: Counts = ([0], [0])) -> WriteJob:
    return WriteJob("", str(number), counts)


class Disk:
    """A sink that is as quick as the test says. `go` is whether it answers at all, `full` whether there is room."""

    def __init__(self) -> None:
        self.appends: list[list[int]] = []
        self.go = threading.Event()
        self.go.set()
        self.full = False
        self.most = MAX_AT_ONCE
        self.closed = self.quick = False
        self.settled: list[list[int]] = []  # what was written by then

    def append(self, given: Sequence[Unsealed]) -> int:
        self.go.wait(10)
        if self.full:
            raise OSError(errno.ENOSPC, "no space left on device")
        taken = [int(record.rest) for record in given[: self.most]]
        self.appends.append(taken)
        return len(taken)

    def quick_append(self, count: int) -> Append | None:
        return self.append if self.quick else None

    def settle(self) -> None:
        self.settled.append(self.written)
        if self.full:
            raise OSError(errno.ENOSPC, "no space left on device")

    def close(self) -> None:
        self.closed = True

    @property
    def written(self) -> list[int]:
        return [number for one in self.appends for number in one]


@asynccontextmanager
async def writing(disk: Disk, **more: Any) -> AsyncIterator[RecordWriter]:
    writer = RecordWriter(disk, **more)
    writer.start()
    try:
        yield writer
    finally:
        disk.go.set()
        await writer.close()


def appended(writer: RecordWriter, *numbers: int) -> list[asyncio.Task[None]]:
    return [asyncio.ensure_future(append(writer, numbered(number))) for number in numbers]


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not true():
            await asyncio.sleep(0.001)


async def test_what_comes_while_the_disk_is_busy_is_one_append_in_order() -> None:
    disk = Disk()
    async with writing(disk) as writer:
        disk.go.clear()
        first = appended(writer, 0)
        await until(lambda: writer.depth == 1)
        rest = appended(writer, *range(1, 600))
        await asyncio.sleep(0.01)
        assert writer.depth == 600 and not any(one.done() for one in rest)
        disk.go.set()
        await asyncio.gather(*first, *rest)
        assert disk.written == list(range(600))
        assert [len(one) for one in disk.appends] == [1, MAX_AT_ONCE, MAX_AT_ONCE, 599 - 2 * MAX_AT_ONCE]


async def test_a_sink_that_takes_a_part_is_given_the_rest() -> None:
    disk = Disk()
    disk.most = 7
    async with writing(disk) as writer:
        await asyncio.gather(*appended(writer, *range(50)))
        assert disk.written == list(range(50)) and max(map(len, disk.appends)) == 7


async def test_what_a_full_disk_refuses_is_told_to_everybody_who_waits_and_to_nobody_later() -> None:
    disk = Disk()
    async with writing(disk) as writer:
        disk.full = True
        ends = await asyncio.gather(*appended(writer, 1, 2, 3), return_exceptions=True)
        assert [isinstance(end, OSError) and end.errno for end in ends] == [errno.ENOSPC] * 3
        disk.full = False
        await asyncio.gather(*appended(writer, 4))
        assert disk.written == [4]


async def test_a_sink_that_fails_as_none_should_refuses_as_a_full_disk_does(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk, counts = Disk(), ([0], [0])
    async with writing(disk) as writer:
        with monkeypatch.context() as patched:
            patched.setattr(disk, "append", lambda records: int("no number"))
            with pytest.raises(OSError, match="ValueError"):
                await append(writer, numbered(1, counts))
            assert not writer.up and counts == ([0], [1])
        await append(writer, numbered(2, counts))
        assert writer.up and counts == ([1], [1]) and disk.written == [2]
    assert "an audit sink failed unexpectedly" in caplog.messages


async def test_what_is_too_much_at_once_is_halved_and_only_what_fits_nowhere_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Narrow(Disk):
        def append(self, given: Sequence[Unsealed]) -> int:
            if any(int(record.rest) in (20, 47) for record in given):
                raise UnfitHead(errno.EMSGSIZE, "too large")
            return super().append(given)

    disk = Narrow()
    async with writing(disk) as writer:
        ends = await asyncio.gather(*appended(writer, *range(48)), return_exceptions=True)
        assert [number for number, end in enumerate(ends) if end is not None] == [20, 47] and writer.up
        assert disk.written == [number for number in range(48) if number not in (20, 47)]
    assert caplog.messages == ["an audit record cannot be written anywhere and is lost"] * 2


async def test_operators_are_told_once_why_and_once_that_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk()
    async with writing(disk) as writer:
        for disk.full in (True, True, False, False, True):
            await asyncio.gather(*appended(writer, 1), return_exceptions=True)
            assert writer.up is not disk.full
    told = [(one.message, getattr(one, "error", "")) for one in caplog.records]
    cannot = ("audit records cannot be written; calls that need them are refused", "[Errno 28] no space left on device")
    assert told == [cannot, ("audit records can be written again", ""), cannot]


async def test_a_frozen_disk_refuses_who_waits_in_time_and_who_comes_at_once_until_it_thaws() -> None:
    disk = Disk()
    async with writing(disk, deadline_s=0.05) as writer:
        disk.go.clear()
        (at_work,) = appended(writer, 1)
        await until(lambda: writer.depth == 1)
        (waiting,) = appended(writer, 2)
        ends = await asyncio.gather(at_work, waiting, return_exceptions=True)
        assert [isinstance(end, OSError) and end.errno for end in ends] == [errno.ETIMEDOUT, errno.EBUSY]
        assert writer.stalled
        writer._deadline_s = 3600.0  # refused at once, or never
        for number in range(3, 6):
            with pytest.raises(OSError, match="cannot be written now"):
                await append(writer, numbered(number))
        disk.go.set()
        await until(lambda: not writer.stalled)
        await append(writer, numbered(6))
        assert disk.written == [1, 6], "what the disk had it wrote; what nobody had given it is not there"


async def test_a_thread_that_was_in_time_is_not_late_for_a_loop_that_was_held() -> None:
    disk = Disk()
    async with writing(disk) as writer:
        disk.go.clear()
        (task,) = appended(writer, 1)
        await until(lambda: bool(writer._at_work))
        disk.go.set()
        while writer._finished is not writer._at_work:
            time.sleep(0.001)
        writer._stall()
        assert not writer.stalled and await task is None


@pytest.mark.parametrize("quick", [True, False])
async def test_what_no_append_follows_is_settled_once(quick: bool) -> None:
    disk = Disk()
    disk.quick = quick
    async with writing(disk) as writer:
        for number in range(3):
            await append(writer, numbered(number))
        disk.full = True
        await until(lambda: len(disk.settled) >= 2)
        disk.full = False
        settled = len(disk.settled)
        await until(lambda: len(disk.settled) > settled and writer._settling is None)
        assert disk.settled[0] == [0, 1, 2] and writer.up and not writer._unsettled
        disk.full = True
        with pytest.raises(OSError, match="no space"):
            await append(writer, numbered(4))
        settled = len(disk.settled)
        await asyncio.sleep(0.1)
        assert len(disk.settled) == settled, "after a failure it is for the next append"


async def test_who_goes_away_has_not_undone_what_was_begun() -> None:
    disk = Disk()
    async with writing(disk) as writer:
        disk.go.clear()
        gone, stays = appended(writer, 1, 2)
        await until(lambda: writer.depth == 2)
        gone.cancel()
        disk.go.set()
        await stays
        assert disk.written == [1, 2]


async def test_where_nobody_waits_a_bound_says_what_is_lost() -> None:
    disk, counts = Disk(), ([0], [0])
    async with writing(disk, max_waiting=10) as writer:
        disk.go.clear()
        for number in range(15):
            writer.post(numbered(number, counts))
            await asyncio.sleep(0)
        assert counts == ([0], [4]), "one is at work, ten wait"
        disk.go.set()
        await until(lambda: writer.depth == 0)
        assert disk.written == list(range(11)) and counts == ([11], [4])


async def test_other_work_keeps_its_place_among_the_records() -> None:
    disk, seen = Disk(), []
    async with writing(disk) as writer:
        tasks = appended(writer, 1)
        tasks += [asyncio.ensure_future(writer.run(lambda: seen.append(list(disk.written)) or 7))]
        tasks += appended(writer, 2)
        assert await asyncio.gather(*tasks) == [None, 7, None]
        assert seen == [[1]] and disk.written == [1, 2]

        def fails() -> None:
            raise OSError(errno.EIO, "i/o error")

        with pytest.raises(OSError, match="i/o error"):
            await writer.run(fails)


async def test_closing_writes_what_waits_and_then_nothing() -> None:
    disk = Disk()
    writer = RecordWriter(disk)
    writer.start()
    tasks = appended(writer, *range(1000))
    await asyncio.sleep(0)
    await writer.close()
    await asyncio.gather(*tasks)
    assert disk.written == list(range(1000)) and disk.closed
    with pytest.raises(OSError, match="cannot be written now"):
        await append(writer, numbered(1))
    await writer.close()


# --- in the loop ------------------------------------------------------------------------------------------------------


class Local(Disk):
    """A local file: it says that it is quick, remembers which thread appended, and takes as long as the test says."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self.clock, self.quick, self.takes_s = clock, True, 0.00002
        self.threads: list[threading.Thread] = []

    def append(self, given: Sequence[Unsealed]) -> int:
        self.threads.append(threading.current_thread())
        self.clock.now += self.takes_s
        return super().append(given)


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> Local:
    clock = FakeClock()
    monkeypatch.setattr("sidecar.audit.writer.monotonic", clock.monotonic)
    return Local(clock)


async def test_what_one_turn_of_the_loop_brings_is_one_append_in_the_loop(local: Local) -> None:
    async with writing(local) as writer:
        await append(writer, numbered(0))
        await asyncio.gather(*appended(writer, *range(1, 9)))
        assert [len(one) for one in local.appends] == [1, 8] and local.written == list(range(9))
        ours = threading.current_thread()
        assert [each is ours for each in local.threads] == [False, True], "the first after a pause is the thread's"


async def test_a_record_that_comes_alone_is_written_when_put_returns(local: Local) -> None:
    async with writing(local) as writer:
        await append(writer, numbered(0))
        counts = [0], [0]
        assert writer.put(numbered(1, counts), alone=True) is None
        assert local.written == [0, 1] and counts == ([1], [0])
        local.full = True
        with pytest.raises(OSError, match="no space left"):
            writer.put(numbered(2, counts), alone=True)
        assert not writer.up and counts == ([1], [1])
        local.full = False
        waits = appended(writer, 3)
        await asyncio.sleep(0)
        job = writer.put(numbered(4, counts), alone=True)
        assert job is not None, "one waits already, and order is kept"
        assert await job is None and await waits[0] is None and local.written == [0, 1, 3, 4] and writer.up


async def test_a_slow_append_leaves_the_next_ones_to_the_thread_for_twenty_times_as_long(local: Local) -> None:
    async with writing(local) as writer:
        await append(writer, numbered(0))
        local.takes_s = 5.0
        await append(writer, numbered(1))
        local.takes_s = 0.0
        for number in range(2, 202):  # twice a second, so that no pause is long
            local.clock.now += 0.5
            await append(writer, numbered(number))
        ours = threading.current_thread()
        in_loop = [each is ours for each in local.threads]
        assert in_loop == [False, True, *[False] * 199, True]


async def test_a_pause_leaves_the_first_append_to_the_thread(local: Local) -> None:
    async with writing(local) as writer:
        for number in range(4):
            local.clock.now += 1.5 * (number % 2)
            await append(writer, numbered(number))
        ours = threading.current_thread()
        assert [each is ours for each in local.threads] == [False, False, True, False]


async def test_other_work_keeps_its_place_where_the_loop_appends(local: Local) -> None:
    seen: list[list[int]] = []
    async with writing(local) as writer:
        await append(writer, numbered(0))
        tasks = appended(writer, 1)
        tasks += [asyncio.ensure_future(writer.run(lambda: seen.append(list(local.written))))]
        tasks += appended(writer, 2)
        await asyncio.gather(*tasks)
        await append(writer, numbered(3))
        assert seen == [[0, 1]] and local.written == [0, 1, 2, 3]
        assert local.threads[-1] is threading.current_thread()


async def test_who_leaves_while_the_loop_appends_has_not_undone_it(local: Local) -> None:
    async with writing(local) as writer:
        await append(writer, numbered(0))
        gone, stays = appended(writer, 1, 2)
        await asyncio.sleep(0)
        gone.cancel()
        await stays
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert local.written == [0, 1, 2]


# --- as evidence ------------------------------------------------------------------------------------------------------


async def test_a_caller_who_leaves_in_the_middle_of_a_record_has_one_terminal_record(tmp_path: Path) -> None:
    audit = open_audit(tmp_path / "audit.jsonl")
    audit.writer.start()
    for leaves_in in ("decided", "outcome"):
        recording, goes_on = understood(audit), threading.Event()
        if leaves_in == "outcome":
            await recording.decided()
        end = recording.decided() if leaves_in == "decided" else recording.outcome(http_status=200, bytes_out=1)
        busy = asyncio.ensure_future(audit.writer.run(partial(goes_on.wait, 5)))
        task = asyncio.ensure_future(end)
        await until(lambda: audit.writer.depth == 2)
        task.cancel()
        goes_on.set()
        await busy
        with pytest.raises(asyncio.CancelledError):
            await task
        if not recording.done:
            await recording.refused(Refusal(Reason.CALLER_GONE), http_status=499)
    await audit.close()
    told = [(record["event"], record["reason"]) for record in records(tmp_path / "audit.jsonl")]
    assert told == [("decision", None), ("outcome", "caller-gone"), ("decision", None), ("outcome", None)]


async def test_what_was_late_is_not_told_a_second_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    audit = open_audit(tmp_path / "audit.jsonl")
    monkeypatch.setattr(audit.writer, "_deadline_s", 0.02)
    audit.writer.start()
    recording, thaws = understood(audit), threading.Event()
    await recording.decided()
    freezing = asyncio.ensure_future(audit.writer.run(lambda: thaws.wait(5)))
    ending = asyncio.ensure_future(recording.outcome(http_status=200, bytes_out=1))
    with pytest.raises(Refusal) as refused:
        await ending
    assert refused.value.reason is Reason.AUDIT_UNAVAILABLE and recording.done
    thaws.set()
    await asyncio.gather(freezing, return_exceptions=True)
    await audit.close()
    assert [record["event"] for record in records(tmp_path / "audit.jsonl")] == ["decision", "outcome"]

"""Does every place of the evidence keep the same promises?

One contract over all of them, each with its real counterpart: a file, a pipe with its reader, a Valkey, a receiver of
OpenTelemetry logs. What differs is said in `Place`: whether the chain goes on at the next start.
"""

import asyncio
import fcntl
import os
import re
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import orjson
import pytest
from redis.backoff import NoBackoff
from redis.connection import Connection as TcpConnection, UnixDomainSocketConnection
from redis.exceptions import RedisError
from redis.retry import Retry

from sidecar.audit.carrier import AppendLines, ChainedCarrier, UnsureError
from sidecar.audit.chain import BEGINNING, GENESIS, HEAD_SUFFIX, MAX_LINE_BYTES, ChainEnd, parse_head, unseal
from sidecar.audit.file_sink import AuditFile, FoundEnd
from sidecar.audit.gather import gather
from sidecar.audit.otlp_carrier import OtlpCarrier
from sidecar.audit.record import record_of, unsealed
from sidecar.audit.recorder import Audit
from sidecar.audit.redis_carrier import RedisCarrier
from sidecar.audit.sinks import open_sink
from sidecar.audit.stdout_carrier import StdoutCarrier
from sidecar.audit.verify import verify
from sidecar.audit.writer import RecordSink, WriteJob
from sidecar.errors import Refusal, SettingsError
from sidecar.http.client.origin import parse_origin
from sidecar.settings.load import load_settings
from tests.receiver import Receiver, receiving
from tests.unit.audit.scenes import (
    KEY,
    OTHER_KEY,
    FakeClock,
    append,
    forward_over_a_loop,
    numbered_ids,
    run,
    understood,
)
from tests.valkey import Valkey

STREAM = "evidence"
DEADLINE_S = 0.1


class Place(Protocol):
    """Where evidence goes. `goes_on`: what is there is read back at the start."""

    goes_on: bool

    def open(self) -> tuple[RecordSink, FoundEnd]: ...

    def lines(self) -> list[bytes]:
        """What is there, without newlines."""

    def frozen(self) -> Any:
        """A context in which it takes nothing, and says nothing."""


@dataclass
class InFile:
    folder: Path
    goes_on: bool = True

    @property
    def path(self) -> Path:
        return self.folder / "audit.jsonl"

    def open(self) -> tuple[RecordSink, FoundEnd]:
        file = AuditFile.open(self.path, KEY)
        return file, file.found

    def lines(self) -> list[bytes]:
        return self.path.read_bytes().splitlines()

    def frozen(self) -> Any:
        pytest.skip("a disk that freezes is in test_writer.py")


@dataclass
class InPipe:
    """A reader that reads while `go` is set."""

    goes_on: bool = False
    read: bytearray = field(default_factory=bytearray)
    go: threading.Event = field(default_factory=threading.Event)

    def open(self) -> tuple[RecordSink, FoundEnd]:
        reading, writing = os.pipe()
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
        self.go.set()
        thread = threading.Thread(target=self._read, args=(reading,), daemon=True)
        thread.start()

        def let_go() -> None:
            self.go.set()
            os.close(writing)
            thread.join(5)

        return ChainedCarrier(StdoutCarrier(writing, let_go), BEGINNING), FoundEnd(BEGINNING, 0)

    def _read(self, reading: int) -> None:
        while self.go.wait(5) and (piece := os.read(reading, 4096)):
            self.read += piece
        os.close(reading)

    def lines(self) -> list[bytes]:
        return bytes(self.read).splitlines()

    def frozen(self) -> Any:
        return stopped(self.go)


@contextmanager
def stopped(go: threading.Event) -> Iterator[None]:
    go.clear()
    try:
        yield
    finally:
        go.set()


@dataclass
class InRedis:
    valkey: Valkey
    goes_on: bool = True
    key: Any = KEY
    older: Any = ()
    max_length: int | None = None
    login: Any = None

    def stream(self) -> RedisCarrier:
        timeouts = {"socket_timeout": 0.3, "socket_connect_timeout": 0.3, **(self.login or {})}
        connect = partial(UnixDomainSocketConnection, path=str(self.valkey.path), **timeouts)
        return RedisCarrier(connect, STREAM, self.key, older=self.older, max_length=self.max_length)

    def open(self) -> tuple[RecordSink, FoundEnd]:
        stream = self.stream()
        found = stream.take()
        return ChainedCarrier(stream, found.end), found

    def lines(self) -> list[bytes]:
        with self.valkey.client() as client:
            return [fields["line"].encode() for _, fields in client.xrange(STREAM)]

    def frozen(self) -> Any:
        return self.valkey.frozen()


@dataclass
class AtReceiver:
    receiver: Receiver
    goes_on: bool = False

    def carrier(self) -> OtlpCarrier:
        resource = {"service.name": "sidecar", "service.instance.id": "one"}
        return OtlpCarrier(parse_origin(self.receiver.url), resource, attempt_s=0.3)

    def open(self) -> tuple[RecordSink, FoundEnd]:
        return ChainedCarrier(self.carrier(), BEGINNING), FoundEnd(BEGINNING, 0)

    def lines(self) -> list[bytes]:
        return list(dict.fromkeys(self.receiver.lines))  # once more is allowed, and the same line

    def frozen(self) -> Any:
        return stopped(self.receiver.go)


@pytest.fixture
def emptied(valkey: Valkey) -> Valkey:
    with valkey.client() as client:
        client.flushall()
    return valkey


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as one:
        yield one


PLACES: dict[str, Callable[[Callable[[str], Any]], Place]] = {
    "file": lambda fixture: InFile(fixture("tmp_path")),
    "stdout": lambda fixture: InPipe(),
    "redis": lambda fixture: InRedis(fixture("emptied")),
    "otlp": lambda fixture: AtReceiver(fixture("receiver")),
}


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Place:
    return PLACES[request.param](request.getfixturevalue)


@asynccontextmanager
async def auditing(place: Place, *, durability: Any = "strict", instance: str = "one") -> AsyncIterator[Audit]:
    sink, found = place.open()
    named = {"durability": durability, "instance": instance, "clock": FakeClock(), "new_id": numbered_ids()}
    audit = Audit(sink, found, key=KEY, **named)
    audit.writer._deadline_s = DEADLINE_S * 10
    audit.writer.start()
    try:
        yield audit
    finally:
        await audit.close()


async def until(true: Callable[[], bool], within_s: float = 5) -> None:
    async with asyncio.timeout(within_s):
        while not true():
            await asyncio.sleep(0.005)


def whole(lines: list[bytes]) -> list[dict[str, Any]]:
    """The records of lines that are one chain, each sealed upon the one before."""
    records, prev_hash = [], GENESIS
    for seq, line in enumerate(lines, 1):
        sealed = unseal(line)
        assert sealed.intact and (sealed.seq, sealed.prev_hash) == (seq, prev_hash)
        prev_hash = sealed.hash
        records.append(dict(sealed.fields))
    return records


# --- the contract -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["strict", "best_effort"])
async def test_what_was_told_to_be_written_is_there_in_one_chain(place: Place, durability: str) -> None:
    async with auditing(place, durability=durability) as audit:
        await asyncio.gather(*(forward_over_a_loop(audit) for _ in range(200)))
        if durability == "strict" and not isinstance(place, InPipe):  # what a pipe has, its reader has soon
            assert len(place.lines()) == 400
    events = [record["event"] for record in whole(place.lines())]
    assert (events.count("decision"), events.count("outcome")) == (200, 200)


async def test_a_record_that_fits_nowhere_refuses_none_of_its_neighbours(place: Place) -> None:
    async with auditing(place) as audit:
        told: list[Any] = [*range(8)]
        told[3] = "x" * MAX_LINE_BYTES
        stamped = [
            unsealed("control", record_of({"control": each, "timestamp": "2026-11-28T12:00:00.000001Z"}))
            for each in told
        ]
        jobs = [WriteJob(each.start, each.rest, ([0], [0])) for each in stamped]
        ends = await asyncio.gather(*(append(audit.writer, job) for job in jobs), return_exceptions=True)
        assert [isinstance(end, OSError) for end in ends] == [n == 3 for n in range(8)] and audit.writer.up
    assert [record["control"] for record in whole(place.lines())] == [0, 1, 2, 4, 5, 6, 7]


async def test_a_start_goes_on_with_the_chain_or_begins_one_that_says_whose_it_is(place: Place) -> None:
    for instance in ("one", "two"):
        async with auditing(place, instance=instance) as audit:
            assert audit.found == ()
            await forward_over_a_loop(audit)
    lines = place.lines()
    if place.goes_on:
        assert [record["instance"] for record in whole(lines)] == ["one", "one", "two", "two"]
    else:
        assert {record["instance"] for record in whole(lines[:2])} == {"one"}
        assert {record["instance"] for record in whole(lines[2:])} == {"two"}


async def test_where_nothing_is_taken_who_waits_is_refused_in_time_and_nothing_is_lost_or_there_twice(
    place: Place,
) -> None:
    async with auditing(place) as audit:
        await forward_over_a_loop(audit)
        audit.writer._deadline_s = DEADLINE_S
        with place.frozen():
            ends = []
            while not audit.writer.stalled:  # a pipe takes some yet
                ends += await asyncio.gather(*(understood(audit).decided() for _ in range(20)), return_exceptions=True)
            audit.writer._deadline_s = 3600.0  # who comes now is refused at once, or never
            ends += await asyncio.gather(*(understood(audit).decided() for _ in range(20)), return_exceptions=True)
            assert all(isinstance(end, Refusal) for end in ends[-20:]) and not audit.writer.up
            await asyncio.sleep(0.4)  # longer than an attempt takes
        await until(lambda: not audit.writer.stalled)
        await forward_over_a_loop(audit)
        assert audit.writer.up
        written = ends.count(None)
        await until(lambda: place.lines()[-1].find(b'"outcome"') > 0)
    records = whole(place.lines())
    events = [record["event"] for record in records]
    assert events.count("outcome") == 2
    assert written + 2 <= events.count("decision") <= len(ends) + 2, "none that was told is missing"
    assert len({record["id"] for record in records}) == len(records)


# --- a pipe -----------------------------------------------------------------------------------------------------------


CONTROL = unsealed("control", record_of({}))


def test_a_reader_who_left_is_a_refusal_at_once() -> None:
    reading, writing = os.pipe()
    sink = ChainedCarrier(StdoutCarrier(writing, lambda: os.close(writing)), BEGINNING)
    os.close(reading)
    with pytest.raises(BrokenPipeError):
        sink.append([CONTROL])
    assert sink.end == BEGINNING
    sink.close()


def test_an_output_that_was_closed_from_the_beginning_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next file that is opened has its number, and would be written over with evidence."""
    monkeypatch.setattr("sys.stdout", None)
    with pytest.raises(SettingsError, match="standard output cannot be written"):
        StdoutCarrier.take()


def test_a_line_whose_first_byte_is_out_is_carried_to_its_end() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, True)
    sink = ChainedCarrier(StdoutCarrier(writing, lambda: os.close(writing)), BEGINNING)
    wrote, real, fails = [], os.write, [True]

    def torn(descriptor: int, data: Any) -> int:
        if not wrote:
            wrote.append(real(descriptor, data[:100]))
            return wrote[0]
        if fails:
            raise OSError(28, "no space left on device")
        return real(descriptor, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sidecar.audit.stdout_carrier.os.write", torn)
        with pytest.raises(OSError, match="has a part of it"):
            sink.append([unsealed("control", record_of({"status": "first" + "x" * 100}))])
        with pytest.raises(OSError, match="what came before is not there yet"):
            sink.append([unsealed("control", record_of({"status": "refused"}))])
        fails.clear()
        sink.append([unsealed("control", record_of({"status": "second"}))])
    sink.close()
    lines = os.read(reading, 65536).splitlines()
    os.close(reading)
    assert [record["status"][:6] for record in whole(lines)] == ["firstx", "second"]


# --- a stream ---------------------------------------------------------------------------------------------------------


async def test_a_stream_holds_the_very_lines_and_its_end_under_the_key(emptied: Valkey, tmp_path: Path) -> None:
    place = InRedis(emptied)
    async with auditing(place) as audit:
        await asyncio.gather(*(forward_over_a_loop(audit) for _ in range(300)))
    stream = place.stream()
    assert list(stream.lines()) == place.lines()
    (path,) = gather(stream.lines(), tmp_path / "gathered")
    path.with_name(path.name + HEAD_SUFFIX).write_bytes(stream.head() + b"\n")
    stream.close()
    report = verify([path], key=KEY)
    assert report.ok and report.records == 600


async def test_the_streams_of_workers_are_gathered_into_a_folder_each(emptied: Valkey, tmp_path: Path) -> None:
    text = f'version: 1\naudit: {{sink: redis, redis: {{stream: evidence, store: {{url: "{emptied.url}"}}}}}}\n'
    text += f'server: {{workers: 2}}\nstore: {{url: "{emptied.url}"}}\nsessions: {{store: redis}}\n'
    (tmp_path / "sidecar.yaml").write_text(f"{text}tasks: {{store: redis}}\n")
    for worker in ("1", "2"):
        environ = {"SIDECAR_SERVER__WORKER": worker}
        settings = load_settings(tmp_path / "sidecar.yaml", environ, check_files=False)
        sink, found = open_sink(settings, KEY, worker)
        named: dict[str, Any] = {"clock": FakeClock(), "new_id": numbered_ids()}
        audit = Audit(sink, found, key=KEY, durability="strict", instance=worker, **named)
        audit.writer.start()
        for _ in range(int(worker)):
            await forward_over_a_loop(audit)
        await audit.close()
    folder = tmp_path / "gathered"
    result = await asyncio.to_thread(run, "gather", folder, "--from-store", "-c", tmp_path / "sidecar.yaml")
    assert result.exit_code == 0, result.output
    assert sorted(path.parent.name for path in folder.rglob("*.jsonl")) == ["worker-1", "worker-2"]
    result = run("verify", folder)
    assert result.exit_code == 0 and result.output.count("the evidence holds") == 2, result.output
    assert [f"{count} records in" in result.output for count in (2, 4)] == [True, True]


class Unsure:
    """A receiver whose first answer is lost."""

    lost = False

    def carry(self, append: AppendLines) -> None:
        if not self.lost:
            self.lost = True
            raise UnsureError("timeout", again=True)

    def give_up(self) -> None:
        pass

    def close(self) -> None:
        pass


def test_a_viewer_sees_lines_that_are_delivered_again() -> None:
    sink = ChainedCarrier(Unsure(), BEGINNING)
    recent = sink.recent()
    with pytest.raises(UnsureError):
        sink.append([CONTROL])
    assert not recent.newest()
    sink.append([CONTROL])
    assert [orjson.loads(line)["seq"] for line in recent.newest()] == [1, 2]


async def test_a_command_that_arrives_twice_or_late_does_nothing(emptied: Valkey) -> None:
    """A reply that is lost: the same lines are carried again."""
    place = InRedis(emptied)
    stream = place.stream()
    sink = ChainedCarrier(stream, stream.take().end)
    real, lost = stream._ask, []

    def loses_the_reply(*command: Any) -> Any:
        reply = real(*command)
        if len(lost) < 3:
            lost.append(command)
            raise ConnectionError("reset by peer")
        return reply

    stream._ask = loses_the_reply  # type: ignore[method-assign]
    sink.append([CONTROL, CONTROL])
    sink.append([CONTROL])
    assert len(lost) == 3 and len(whole(place.lines())) == 3
    assert real(*lost[0]) == b"elsewhere" and len(place.lines()) == 3
    sink.close()


async def test_who_starts_takes_the_stream_over_and_the_one_before_is_refused(emptied: Valkey) -> None:
    place = InRedis(emptied)
    async with auditing(place) as old:
        await forward_over_a_loop(old)
        async with auditing(place, instance="two") as new:
            await forward_over_a_loop(new)
            with pytest.raises(Refusal):
                await understood(old).decided()
            await forward_over_a_loop(new)
    assert [record["instance"] for record in whole(place.lines())] == ["one"] * 2 + ["two"] * 4


async def test_a_store_that_died_goes_on_and_one_that_was_emptied_shows_which_lines_it_lost(emptied: Valkey) -> None:
    place = InRedis(emptied)
    async with auditing(place) as audit:
        await forward_over_a_loop(audit)
        emptied.restart()
        await forward_over_a_loop(audit)
        with emptied.client() as client:
            client.flushall()
        await forward_over_a_loop(audit)
        assert audit.writer.up
    (first, *_) = records = [orjson.loads(line) for line in place.lines()]
    assert [record["seq"] for record in records] == [5, 6] and first["prev_hash"] != GENESIS


HEAD = f"{{{STREAM}}}:head"
DONE: dict[str, tuple[Callable[[InRedis, Any], object], tuple[str, ...]]] = {
    "nothing": (lambda place, client: None, ()),
    "other key": (lambda place, client: setattr(place, "key", OTHER_KEY), ("key-changed",)),
    "key in the ring": (lambda place, client: vars(place).update(key=OTHER_KEY, older=[KEY]), ("key-changed",)),
    "head gone": (lambda place, client: client.hdel(HEAD, "head"), ("anchor-missing",)),
    "head forged": (lambda place, client: client.hset(HEAD, "head", "no anchor"), ("anchor-forged",)),
    "end cut": (lambda place, client: client.xdel(STREAM, client.xrange(STREAM)[-1][0]), ("records-lost",)),
    "lines gone": (lambda place, client: client.delete(STREAM), ("continued",)),
}


@pytest.mark.parametrize("done", DONE)
async def test_what_a_start_finds_in_a_stream_is_found_until_it_is_on_record(emptied: Valkey, done: str) -> None:
    act, found = DONE[done]
    place = InRedis(emptied)
    async with auditing(place) as audit:
        await forward_over_a_loop(audit)
    with emptied.client() as client:
        act(place, client)
    for _ in range(2):  # starts that were killed before they could say so
        assert place.stream().take().what == found
    async with auditing(place) as audit:
        assert audit.found == found
    told = [orjson.loads(line)["control"] for line in place.lines()][-1]
    assert (told["found"] if told else []) == list(found)
    if place.older:
        assert (told["old_key_id"], told["anchor_checked"]) == (KEY.id, True)
    with emptied.client() as client:
        assert parse_head(client.hget(HEAD, "head").encode() + b"\n").made_with(place.key)
    assert place.stream().take().what == ()


@pytest.mark.parametrize("lie", [b"+OK\r\n", b":abc\r\n", b"%1\r\n", b"$-7\r\nxx\r\n", b"$" + b"9" * 5000 + b"\r\n"])
def test_what_is_no_reply_is_no_record(lie: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def lies() -> None:
            peer, _ = server.accept()
            with peer:
                while peer.recv(4096):
                    peer.sendall(lie)

        liar = threading.Thread(target=lies, daemon=True)
        liar.start()
        (over := threading.Event()).set()
        port = server.getsockname()[1]
        stream = RedisCarrier(lambda: TcpConnection(port=port, socket_timeout=0.2), STREAM, KEY, over=over)
        with pytest.raises(OSError):
            ChainedCarrier(stream, BEGINNING).append([CONTROL])
        stream.close()
        liar.join(5)


@pytest.mark.parametrize("accepts", [False, True])
def test_of_what_was_never_sent_nothing_is_written_later(accepts: bool) -> None:
    """The store cannot be reached, or hangs up before the login is over."""
    (over := threading.Event()).set()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        hangs_up = threading.Thread(target=lambda: server.accept()[0].close(), daemon=True)
        if accepts:
            hangs_up.start()
        else:
            server.close()
        stream = RedisCarrier(lambda: TcpConnection(port=port, retry=Retry(NoBackoff(), 0)), STREAM, KEY, over=over)
        with pytest.raises(OSError) as no:
            ChainedCarrier(stream, BEGINNING).append([CONTROL])
    assert not isinstance(no.value, UnsureError)
    if accepts:
        hangs_up.join(5)


async def test_a_stream_keeps_about_as_many_lines_as_it_may(emptied: Valkey) -> None:
    place = InRedis(emptied, max_length=1000)
    async with auditing(place) as audit:
        await asyncio.gather(*(forward_over_a_loop(audit) for _ in range(800)))
    assert 1000 <= len(place.lines()) < 1300


def test_a_key_that_is_no_stream_stops_the_start(emptied: Valkey) -> None:
    with emptied.client() as client:
        client.set(STREAM, "something else")
    with pytest.raises(SettingsError, match="WRONGTYPE"):
        InRedis(emptied).open()


EVIDENCE = re.search(
    r"^ACL SETUSER evidence on >PASSWORD (.*)$",
    Path("docs/guides/evidence/ship-the-log.md").read_text("utf-8"),
    re.MULTILINE,
)


def test_the_rights_that_are_told_are_enough_for_the_stream_and_none_of_them_is_too_much(valkey: Valkey) -> None:
    """Written whole, kept short, and read back, by a user who may do this; and with one right less, not."""
    assert EVIDENCE
    rights = EVIDENCE[1].replace("STREAM", STREAM).split()

    def works(*given: str) -> bool:
        with valkey.client() as client:
            client.delete(STREAM, f"{{{STREAM}}}:head")
            client.execute_command("ACL", "SETUSER", "evidence", "reset", "on", ">hush", *given)
        stream = InRedis(valkey, login={"username": "evidence", "password": "hush"}, max_length=10).stream()
        try:
            end = stream.take().end
            stream.carry(AppendLines((b"{}\n",), end, ChainEnd(1, end.hash)))
            return bool(list(stream.lines())) and bool(stream.head())
        except (SettingsError, OSError, RedisError):
            return False
        finally:
            stream.close()

    try:
        assert works(*rights)
        for less in (right for right in rights if right[0] in "+~" and right != "+auth"):  # AUTH is always allowed
            assert not works(*(right for right in rights if right != less)), less
    finally:
        with valkey.client() as client:
            client.execute_command("ACL", "DELUSER", "evidence")

"""What does the shared store do when Redis forgets, lies, loses replies, or its caller goes away?"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from uuid import uuid4

import pytest
import redis

import sidecar
from sidecar.errors import Reason, Refusal
from sidecar.limits import Limiter, LimitPlan, StoreUnavailable, open_store
from sidecar.limits.plan import LimitCharge
from sidecar.limits.redis_store import AT_ONCE, EPOCH, TIDE, RedisCounters, _ForeignReplyError, _verdict
from sidecar.limits.store import StoreObserver
from sidecar.limits.topology import PREFIX, finder_of
from sidecar.settings.store import StoreSettings
from tests.unit.limits.stages import charge
from tests.valkey import Valkey

HOUR, DAY, RATE, SLOTS = (
    charge("hour", 1000),
    charge("day", 1000),
    charge("rate", 1000, interval_us=86_000_000),
    charge("concurrency", 1000),
)
ALL = (HOUR, DAY, RATE, SLOTS)


@asynccontextmanager
async def opened(url: str, deadline_s: float = 2.0) -> AsyncIterator[RedisCounters]:
    """A store that is patient with a busy test machine."""
    store = RedisCounters(finder_of(StoreSettings(url=url)), deadline_s=deadline_s, hold_s=0.0)
    try:
        yield store
    finally:
        await store.close()


async def test_time_for_which_the_loop_was_held_is_not_the_stores(valkey: Valkey) -> None:
    async with opened(valkey.url, deadline_s=0.05) as store:
        await store.ping()
        asked = (
            lambda: store.run("return 7", "held", []),
            lambda: store.look((HOUR,)),
            lambda: store.reserve((HOUR,), uuid4().hex),
        )
        for question in asked:
            answer = asyncio.ensure_future(question())
            for _ in range(4):
                await asyncio.sleep(0)
                time.sleep(0.12)  # the whole process, longer than the deadline
            await answer
        assert store.up


async def used(store: RedisCounters, limit: LimitCharge) -> int:
    """How much of a limit is charged right now."""
    await store.ping()
    probe = uuid4().hex
    verdict = await store.reserve((limit,), probe)
    assert verdict.admitted
    store.give_back((limit,), probe)
    return limit.most - verdict.standings[0].remaining - 1


def stored(client: redis.Redis) -> dict[str, int]:
    """Every key but those that say which store this is, and its time to live in ms; -1 is for ever."""
    return {key: client.pttl(key) for key in client.scan_iter() if not key.startswith((EPOCH, TIDE))}


async def test_every_key_has_an_end(fresh_valkey: Valkey) -> None:
    """BL-059."""
    async with opened(fresh_valkey.url) as store:
        for number in range(4):
            await store.reserve(ALL, f"call-{number}")
        store.give_back(ALL, "call-0")
        store.release((SLOTS,), "call-1")
        store.extend(ALL, "call-2")
        store.give_back(ALL, "never-charged")
        await store.ping()
    with fresh_valkey.client() as client:
        lives = stored(client)
    assert len(lives) == len(ALL) + 4
    assert all(0 < life_ms <= 26 * 3_600_000 for life_ms in lives.values())
    assert all(key.startswith(PREFIX) for key in lives)


async def test_the_epoch_outlives_every_counter_and_ends_too(fresh_valkey: Valkey) -> None:
    async with opened(fresh_valkey.url) as store:
        await store.reserve(ALL, "call")
        await store.ping()
    with fresh_valkey.client() as client:
        lives = {key: client.pttl(key) for key in client.scan_iter("{sidecar}:*e*")}
    told = {key: life_ms for key, life_ms in lives.items() if key.startswith((EPOCH, TIDE))}
    assert len(told) == 2
    assert all(life_ms > 0 for life_ms in told.values())
    assert told[EPOCH] > 31 * 86_400_000


async def test_settling_what_redis_has_forgotten_leaves_nothing_behind(fresh_valkey: Valkey) -> None:
    async with opened(fresh_valkey.url) as store:
        for call in ("back", "released", "extended"):
            await store.reserve(ALL, call)
        with fresh_valkey.client() as client:
            client.delete(*(PREFIX + limit.key for limit in ALL))
            store.give_back(ALL, "back")
            store.release((SLOTS,), "released")
            store.extend(ALL, "extended")
            await store.ping()
            assert set(stored(client)) == {f"{PREFIX}call:back", f"{PREFIX}call:extended"}


GARBAGE = ["-5", "1e9", "abc", "", "9" * 20, "0x10", " 7"]


@pytest.mark.parametrize("value", GARBAGE)
@pytest.mark.parametrize(
    ("limit", "field"), [(HOUR, "n"), (HOUR, "m"), (DAY, "d"), (DAY, "n"), (RATE, "t"), (RATE, "z")]
)
async def test_a_counter_that_is_not_ours_to_understand_refuses_the_call_and_moves_nothing(
    fresh_valkey: Valkey, limit: LimitCharge, field: str, value: str
) -> None:
    other = charge("hour", 1000, "other")
    async with opened(fresh_valkey.url) as store:
        await store.reserve((limit,), "first")
        with fresh_valkey.client() as client:
            client.hset(PREFIX + limit.key, field, value)
        with pytest.raises(StoreUnavailable):
            await store.reserve((other, limit), "second")
        assert await used(store, other) == 0


@pytest.mark.parametrize("limit", ALL, ids=lambda limit: limit.kind)
async def test_a_counter_of_another_type_refuses_the_call(fresh_valkey: Valkey, limit: LimitCharge) -> None:
    async with opened(fresh_valkey.url) as store:
        with fresh_valkey.client() as client:
            client.set(PREFIX + limit.key, "1")
        with pytest.raises(Refusal) as refused:
            async with Limiter(store).reserve(LimitPlan((limit,)), "call"):
                raise AssertionError
    assert refused.value.reason is Reason.STORE_UNAVAILABLE


async def test_forgotten_scripts_cost_no_call(fresh_valkey: Valkey) -> None:
    """BL-041."""
    async with opened(fresh_valkey.url) as store:

        async def calls(worker: int) -> None:
            for number in range(30):
                async with Limiter(store).reserve(LimitPlan(ALL), f"{worker}-{number}") as lease:
                    lease.forwarded = number % 3 > 0

        async def flushes() -> None:
            with fresh_valkey.client() as client:
                for _ in range(20):
                    client.script_flush()
                    await asyncio.sleep(0.005)

        await asyncio.gather(flushes(), *(calls(worker) for worker in range(8)))
        assert await used(store, HOUR) == 8 * 20
        assert await used(store, SLOTS) == 0


async def test_callers_who_vanish_at_any_moment_leave_exact_counters_and_no_foreign_replies(
    fresh_valkey: Valkey,
) -> None:
    """BL-095."""
    chance, forwarded = random.Random(95), 0
    async with opened(fresh_valkey.url) as store:
        limiter = Limiter(store)

        async def call(number: int) -> None:
            nonlocal forwarded
            async with limiter.reserve(LimitPlan((HOUR, SLOTS)), f"call-{number}") as lease:
                await asyncio.sleep(0)
                lease.forwarded = True
                forwarded += 1
                await asyncio.sleep(0)

        for first in range(0, 900, 30):
            tasks = [asyncio.create_task(call(number)) for number in range(first, first + 30)]
            for task in chance.sample(tasks, 20):
                for _ in range(chance.randrange(4)):
                    await asyncio.sleep(0)
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(result is None or isinstance(result, asyncio.CancelledError) for result in results)
        assert 0 < forwarded < 900
        assert await used(store, HOUR) == forwarded
        assert await used(store, SLOTS) == 0


class ReplyEater:
    """Stands before Valkey and passes everything on, until it is told to lose the replies."""

    def __init__(self, upstream: Path, path: Path) -> None:
        self.upstream, self.path = upstream, path
        self.eating = False
        self.eaten = 0

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        server = await asyncio.start_unix_server(self._serve, self.path)
        try:
            yield f"unix://{self.path}"
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_unix_connection(str(self.upstream))
        with suppress(OSError, asyncio.CancelledError):
            await asyncio.gather(self._pass(reader, up_writer, False), self._pass(up_reader, writer, True))
        for side in (writer, up_writer):
            side.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, replies: bool) -> None:
        while data := await reader.read(65536):
            if replies and self.eating:
                self.eaten += 1
                continue
            writer.write(data)
            await writer.drain()
        writer.close()


async def test_a_charge_whose_reply_was_lost_is_refused_and_given_back(fresh_valkey: Valkey) -> None:
    eater = ReplyEater(fresh_valkey.path, fresh_valkey.path.with_name("eater"))
    async with eater.listening() as url, opened(url, deadline_s=0.05) as ours, opened(fresh_valkey.url) as theirs:
        await ours.ping()
        eater.eating = True
        with pytest.raises(StoreUnavailable):
            await ours.reserve(ALL, "lost")
        assert eater.eaten
        assert await used(theirs, HOUR) == 1
        eater.eating = False
        async with asyncio.timeout(5):
            while not ours.up:
                await asyncio.sleep(0.01)
        await ours.ping()
        assert [await used(theirs, limit) for limit in ALL] == [0, 0, 0, 0]


class Listening(StoreObserver):
    """Remembers what the store could not be told."""

    def __init__(self) -> None:
        self.missed: dict[str, int] = {}

    def untold(self, counts: Mapping[str, int]) -> None:
        self.missed = dict(counts)


@pytest.mark.parametrize("back", [True, False], ids=["it is back", "it stays away"])
async def test_who_ends_during_an_outage_tries_once_more_to_say_how_calls_ended_and_tells_what_nobody_heard(
    fresh_valkey: Valkey, back: bool
) -> None:
    eater, listening = ReplyEater(fresh_valkey.path, fresh_valkey.path.with_name("eater")), Listening()
    async with eater.listening() as url, opened(fresh_valkey.url) as theirs:
        ours = RedisCounters(finder_of(StoreSettings(url=url)), deadline_s=0.05, observer=listening)
        for call in ("refused later", "over"):
            await ours.reserve((HOUR, SLOTS), call)
        eater.eating = True
        with pytest.raises(StoreUnavailable):
            await ours.reserve((HOUR, SLOTS), "lost")
        ours.give_back((HOUR, SLOTS), "refused later")
        ours.release((SLOTS,), "over")
        ours.extend((SLOTS,), "over")
        ours.charge_later((HOUR,), "over.here", 3600.0)
        with suppress(StoreUnavailable):
            await ours.ping()
        assert not ours.up
        eater.eating = not back
        began_s = asyncio.get_running_loop().time()
        await ours.close()
        assert asyncio.get_running_loop().time() - began_s < 1.0
        if back:
            assert not listening.missed
            assert [await used(theirs, limit) for limit in (HOUR, SLOTS)] == [2, 0]
        else:
            assert listening.missed == {"give_back": 2, "release": 1, "charge": 1}


async def test_what_was_said_last_of_all_is_heard_even_if_its_script_was_forgotten(fresh_valkey: Valkey) -> None:
    async with opened(fresh_valkey.url) as theirs:
        async with opened(fresh_valkey.url) as ours:
            await ours.reserve((SLOTS,), "call")
            with fresh_valkey.client() as client:
                client.script_flush()
            ours.release((SLOTS,), "call")
        assert await used(theirs, SLOTS) == 0


@pytest.mark.parametrize("ends", [True, False], ids=["at the end", "when it is back"])
async def test_debts_of_many_calls_are_said_some_at_a_time_so_that_none_is_late(
    fresh_valkey: Valkey, ends: bool
) -> None:
    eater, listening = ReplyEater(fresh_valkey.path, fresh_valkey.path.with_name("eater")), Listening()
    async with eater.listening() as url:
        ours = RedisCounters(finder_of(StoreSettings(url=url)), deadline_s=0.05, observer=listening)
        await ours.ping()
        eater.eating = True
        with pytest.raises(StoreUnavailable):
            await ours.reserve((HOUR,), "lost")
        for number in range(2 * AT_ONCE):
            ours.give_back((HOUR,), str(number))
        eater.eating = False
        if ends:
            await ours.close()
        async with asyncio.timeout(5):
            while ours._owed:
                await asyncio.sleep(0.01)
        if not ends:
            await ours.close()
    with fresh_valkey.client() as client:
        assert len(client.keys(f"{PREFIX}call:*")) == 2 * AT_ONCE + 1
    assert not listening.missed


def test_a_reply_is_believed_only_if_it_names_our_call_and_counts_in_whole_numbers() -> None:
    """BL-095."""
    assert _verdict([b"call", 1, 10, 4, 0, 30], (HOUR,), "call").standings == ((4, 0, 30),)
    for reply in (
        b"OK",
        [],
        [b"other", 1, 10, 4, 0, 30],
        [b"call", 1, 10, 4, 0],
        [b"call", 1, 10, 4, 0, b"30"],
        [b"call", 1, 10, -4, 0, 30],
        [b"call", 1, 10, True, 0, 30],
    ):
        with pytest.raises(_ForeignReplyError):
            _verdict(reply, (HOUR,), "call")


async def test_before_the_first_connection_an_absent_store_is_unavailable_and_later_calls_wait_for_nothing() -> None:
    async with opened("unix:///nowhere/at/all", deadline_s=0.08) as store:
        started_s = asyncio.get_running_loop().time()
        for number in range(200):
            with pytest.raises(StoreUnavailable):
                await store.reserve(ALL, str(number))
        assert asyncio.get_running_loop().time() - started_s < 1.0
        assert not store.up
        assert not store._owed


async def test_a_loop_that_was_held_before_the_first_connection_refuses_nothing(fresh_valkey: Valkey) -> None:
    async with opened(fresh_valkey.url, deadline_s=0.4) as store:
        first = asyncio.create_task(store.run("return 7", "x", []))
        await asyncio.sleep(0)
        time.sleep(0.5)
        assert await first == 7


async def test_how_long_a_question_may_take_is_a_setting(fresh_valkey: Valkey) -> None:
    """Also of many that a slow store answers one after the other: 100 of 2 ms each."""
    slow = "local til = os.clock() + 0.002; repeat until os.clock() >= til; return 1"
    patient = open_store(StoreSettings(url=fresh_valkey.url, timeout=5.0), clock=lambda: 0.0)
    hasty = open_store(StoreSettings(url=fresh_valkey.url), clock=lambda: 0.0)
    try:
        await patient.ping()
        assert await asyncio.gather(*[patient.run(slow, "x", []) for _ in range(100)]) == [1] * 100
        await hasty.ping()
        heard = await asyncio.gather(*[hasty.run(slow, "x", []) for _ in range(100)], return_exceptions=True)
        assert any(isinstance(one, StoreUnavailable) for one in heard), "with 80 ms some are refused"
    finally:
        await patient.close()
        await hasty.close()


@pytest.mark.parametrize(
    "url", ["memory://", "redis://h", "rediss://h", "unix:///run/valkey", "redis+sentinel://h/s", "redis+cluster://h"]
)
def test_the_store_kinds_have_names(url: str) -> None:
    kind = {"rediss": "redis", "unix": "redis"}.get(url.partition(":")[0], url.partition(":")[0])
    assert open_store(StoreSettings(url=url), clock=lambda: 0.0).kind == kind


SOURCES = Path(sidecar.__file__).parent
TOLD = re.search(r"^ACL SETUSER sidecar on >PASSWORD (.*)$", Path("docs/limits.md").read_text("utf-8"), re.MULTILINE)


PARTS = {
    "limits and budgets": ("limits/*.lua",),
    "disabled principals and tools, always": ("storage/scripts/kill_switch.lua",),
    "news between replicas, always": ("storage/scripts/peers.lua",),
    "`sessions.store: redis`": ("storage/scripts/sessions.lua",),
    "`tasks.store: redis`": ("storage/scripts/records.lua",),
    "the turns of agents that write, `tasks.store: redis`": ("storage/scripts/write_leases.lua",),
    "proofs of DPoP that are believed once": ("storage/scripts/proof_once.lua",),
    "checkpoints, `to: [store]`": ("storage/scripts/checkpoint_*.lua",),
}


def called(*patterns: str) -> set[str]:
    """What the scripts in these files call."""
    texts = [path.read_text("utf-8") for pattern in patterns for path in SOURCES.glob(pattern)]
    return {name.lower() for text in texts for name in re.findall(r"redis\.call\('([A-Z]+)'", text)}


def test_the_rights_that_are_told_are_those_of_every_script_in_the_store_and_no_more() -> None:
    assert TOLD
    rows = dict(re.findall(r"^\| (.*) \| `(\+.*)` \|$", Path("docs/limits.md").read_text("utf-8"), re.MULTILINE))
    assert {part: set(re.findall(r"\+(\S+)", told)) for part, told in rows.items()} == {
        part: called(*patterns) for part, patterns in PARTS.items()
    }
    assert {path.relative_to(SOURCES).parts[0] for path in SOURCES.rglob("*.lua")} <= {
        pattern.partition("/")[0] for patterns in PARTS.values() for pattern in patterns
    }
    connects = {"auth", "hello", "select", "ping", "eval", "evalsha", "script|load"}
    assert set(re.findall(r"\+(\S+)", TOLD[1])) == connects.union(*(called(*patterns) for patterns in PARTS.values()))


async def test_a_user_who_may_do_nothing_else_is_enough_and_a_wrong_password_is_an_outage(fresh_valkey: Valkey) -> None:
    assert TOLD
    rights = TOLD[1].split()
    with fresh_valkey.client() as client:
        client.execute_command("ACL", "SETUSER", "limits", "reset", "on", ">open sesame", *rights)
        try:
            async with opened(f"unix://limits:open%20sesame@{fresh_valkey.path}") as store:
                for number in range(3):
                    await store.reserve(ALL, f"call-{number}")
                store.give_back(ALL, "call-0")
                store.release((SLOTS,), "call-1")
                store.extend(ALL, "call-2")
                assert [await used(store, limit) for limit in ALL] == [2, 2, 2, 1]
                client.flushall()
                with pytest.raises(StoreUnavailable):
                    await store.reserve(ALL, "emptied")
                await asyncio.sleep(0.1)
                assert await used(store, DAY) == 2, "restored"
            async with opened(f"unix://limits:wrong@{fresh_valkey.path}") as store:
                with pytest.raises(StoreUnavailable, match="invalid username-password"):
                    await store.ping()
        finally:
            client.execute_command("ACL", "DELUSER", "limits")

"""What does the shared store do when Redis forgets, lies, loses replies, or its caller goes away?"""

import asyncio
import random
import re
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import redis
from hypothesis import given, strategies as st
from redis import Redis

import sidecar
from sidecar.limits import Limiter, LimitPlan, StoreUnavailable, open_store
from sidecar.limits.plan import LimitCharge
from sidecar.limits.redis_pipeline import pack
from sidecar.limits.redis_store import (
    AT_ONCE,
    EPOCH,
    ID_HERE,
    NUMBER_HERE,
    TIDE,
    CounterScript,
    PackedCommand,
    RedisCounters,
    _ForeignReplyError,
    _verdict,
)
from sidecar.limits.topology import PREFIX
from sidecar.settings.store import StoreSettings
from tests.flow.world import until
from tests.tables import tables
from tests.unit.limits.stages import Between, Listening, charge, opened
from tests.valkey import Valkey

HOUR, DAY, RATE, SLOTS = (
    charge("hour", 1000),
    charge("day", 1000),
    charge("rate", 1000, interval_us=86_000_000),
    charge("concurrency", 1000),
)
ALL = (HOUR, DAY, RATE, SLOTS)
DEADLINE_S = 0.2  # where some are missed on purpose


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


async def test_every_key_has_an_end(store: RedisCounters, client: Redis) -> None:
    """BL-059."""
    for number in range(4):
        await store.reserve(ALL, f"call-{number}")
    store.give_back(ALL, "call-0")
    store.release((SLOTS,), "call-1")
    store.extend(ALL, "call-2")
    store.give_back(ALL, "never-charged")
    await store.ping()
    lives = stored(client)
    identity = {key: client.pttl(key) for key in client.scan_iter() if key.startswith((EPOCH, TIDE))}
    assert len(lives) == len(ALL) + 4
    assert all(0 < life_ms <= 26 * 3_600_000 for life_ms in lives.values())
    assert all(key.startswith(PREFIX) for key in lives)
    assert len(identity) == 2 and min(identity.values()) > 0 and identity[EPOCH] > 31 * 86_400_000


async def test_settling_what_redis_has_forgotten_leaves_nothing_behind(store: RedisCounters, client: Redis) -> None:
    for call in ("back", "released", "extended"):
        await store.reserve(ALL, call)
    client.delete(*(PREFIX + limit.key for limit in ALL))
    store.give_back(ALL, "back")
    store.release((SLOTS,), "released")
    store.extend(ALL, "extended")
    await store.ping()
    assert set(stored(client)) == {f"{PREFIX}call:back", f"{PREFIX}call:extended"}


GARBAGE = ["-5", "1e9", "abc", "", "9" * 20, "0x10", " 7"]


@pytest.mark.parametrize(("limit", "fields"), [(HOUR, "nm"), (DAY, "dn"), (RATE, "tz"), (SLOTS, "")])
async def test_a_counter_that_is_not_ours_to_understand_refuses_the_call_and_moves_nothing(
    store: RedisCounters, client: Redis, limit: LimitCharge, fields: str
) -> None:
    other, key = charge("hour", 1000, "other"), PREFIX + limit.key
    for number, (field, value) in enumerate(product(fields, GARBAGE)):
        await store.reserve((limit,), f"first-{number}")
        client.hset(key, field, value)
        with pytest.raises(StoreUnavailable):
            await store.reserve((other, limit), f"{field} {value}")
        client.delete(key)
    client.set(key, "1")
    with pytest.raises(StoreUnavailable):
        await store.reserve((other, limit), "another type")
    assert await used(store, other) == 0


async def test_forgotten_scripts_cost_no_call(store: RedisCounters, client: Redis) -> None:
    """BL-041."""

    async def calls(worker: int) -> None:
        for number in range(30):
            async with Limiter(store).reserve(LimitPlan(ALL), f"{worker}-{number}") as lease:
                lease.forwarded = number % 3 > 0

    async def flushes() -> None:
        for _ in range(20):
            client.script_flush()
            await asyncio.sleep(0.005)

    await asyncio.gather(flushes(), *(calls(worker) for worker in range(8)))
    assert await used(store, HOUR) == 8 * 20
    assert await used(store, SLOTS) == 0


async def test_callers_who_vanish_at_any_moment_leave_exact_counters_and_no_foreign_replies(
    store: RedisCounters,
) -> None:
    """BL-095."""
    chance, forwarded = random.Random(95), 0
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


Eaten = tuple[Between, RedisCounters, Listening]


@pytest.fixture
async def eaten(fresh_valkey: Valkey) -> AsyncIterator[Eaten]:
    """A store before which one may eat the replies."""
    eater, listening = Between(fresh_valkey.path), Listening()
    async with eater.listening() as address, opened(f"redis://{address}", DEADLINE_S, listening) as ours:
        await ours.ping()
        yield eater, ours, listening


async def test_a_charge_whose_reply_was_lost_is_refused_and_given_back(eaten: Eaten, store: RedisCounters) -> None:
    eater, ours, _ = eaten
    eater.eating = True
    with pytest.raises(StoreUnavailable):
        await ours.reserve(ALL, "lost")
    assert eater.eaten
    assert await used(store, HOUR) == 1
    eater.eating = False
    await until(lambda: ours.up)
    await ours.ping()
    assert [await used(store, limit) for limit in ALL] == [0, 0, 0, 0]


@pytest.mark.parametrize("back", [True, False], ids=["it is back", "it stays away"])
async def test_who_ends_during_an_outage_tries_once_more_and_tells_what_nobody_heard(
    eaten: Eaten, store: RedisCounters, back: bool
) -> None:
    eater, ours, listening = eaten
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
    await ours.close()
    assert listening.missed == ({} if back else {"give_back": 2, "release": 1, "charge": 1})
    assert not back or [await used(store, limit) for limit in (HOUR, SLOTS)] == [2, 0]


async def test_what_was_said_last_of_all_is_heard_even_if_its_script_was_forgotten(fresh_valkey: Valkey) -> None:
    async with opened(fresh_valkey.url) as theirs:
        async with opened(fresh_valkey.url) as ours:
            await ours.reserve((SLOTS,), "call")
            with fresh_valkey.client() as client:
                client.script_flush()
            ours.release((SLOTS,), "call")
        assert await used(theirs, SLOTS) == 0


@pytest.mark.parametrize("ends", [True, False], ids=["at the end", "when it is back"])
async def test_debts_of_many_calls_are_said_some_at_a_time(eaten: Eaten, client: Redis, ends: bool) -> None:
    eater, ours, listening = eaten
    eater.eating = True
    with pytest.raises(StoreUnavailable):
        await ours.reserve((HOUR,), "lost")
    for number in range(2 * AT_ONCE):
        ours.give_back((HOUR,), str(number))
    eater.eating = False
    if ends:
        await ours.close()
    await until(lambda: not ours._owed)
    assert len(client.keys(f"{PREFIX}call:*")) == 2 * AT_ONCE + 1
    assert not listening.missed


KEYS = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="()"), max_size=20), max_size=5, unique=True)


@given(
    KEYS,
    st.text(st.characters(codec="utf-8", exclude_characters="()"), min_size=1, max_size=40),
    st.integers(0, 10**15),
    st.booleans(),
)
def test_a_command_that_is_filled_in_is_the_one_that_redis_py_would_pack(
    keys: list[str], decision_id: str, number: int, charging: bool
) -> None:
    charges = tuple([charge("hour", number, key) for key in keys])

    def arguments(decision_id: str, number: int) -> list[str | int]:
        record, counters = f"{PREFIX}call:{decision_id}", [one.key for one in charges]
        numbers = [each for one in charges for each in (one.kind, one.amount, one.most, one.interval_us)]
        end = ["epoch", number] if charging else []
        return [len(keys) + 1, record, *counters, "verb", decision_id, 120_000, *numbers, *end]

    script = CounterScript.of("return 1")
    packed = PackedCommand(charges, script, arguments(ID_HERE, NUMBER_HERE))
    whole = pack(("EVALSHA", script.sha, *arguments(decision_id, number)))
    assert packed.filled(decision_id, number if charging else None) == whole


def test_a_reply_is_believed_only_if_it_names_our_call_and_counts_in_whole_numbers() -> None:
    """BL-095."""
    assert _verdict([b"call", 1, 10, 4, 0, 30], (HOUR,), "call").standings == ((4, 0, 30),)
    misnamed, short = [b"other", 1, 10, 4, 0, 30], [b"call", 1, 10, 4, 0]
    for reply in (
        b"OK",
        [],
        misnamed,
        short,
        [*short, b"30"],
        [b"call", 1, 10, -4, 0, 30],
        [b"call", 1, 10, True, 0, 30],
    ):
        with pytest.raises(_ForeignReplyError):
            _verdict(reply, (HOUR,), "call")


async def test_a_store_that_was_never_there_is_owed_nothing() -> None:
    """That nobody waits for it: flow/test_limit_outage.py."""
    async with opened("unix:///nowhere/at/all", deadline_s=0.08) as store:
        for number in range(20):
            with pytest.raises(StoreUnavailable):
                await store.reserve(ALL, str(number))
        assert not store.up and not store._owed


async def test_a_loop_that_was_held_before_the_first_connection_refuses_nothing(fresh_valkey: Valkey) -> None:
    async with opened(fresh_valkey.url, deadline_s=0.4) as store:
        first = asyncio.create_task(store.run("return 7", "x", []))
        await asyncio.sleep(0)
        time.sleep(0.5)
        assert await first == 7


@pytest.mark.parametrize(("settings", "patient"), [({"timeout": 10.0}, True), ({}, False)])
async def test_how_long_a_question_may_take_is_a_setting(
    fresh_valkey: Valkey, settings: dict[str, Any], patient: bool
) -> None:
    """Also of many that a slow store answers one after the other: of 20 ms each, where the default is 80."""
    slow = "local til = os.clock() + 0.02; repeat until os.clock() >= til; return 1"
    store = open_store(StoreSettings(url=fresh_valkey.url, **settings), clock=lambda: 0.0)
    with suppress(StoreUnavailable):
        await store.ping()
    heard = await asyncio.gather(*[store.run(slow, "x", []) for _ in range(20)], return_exceptions=True)
    assert any(isinstance(one, StoreUnavailable) for one in heard) is not patient
    await store.close()


@pytest.mark.parametrize(
    "url", ["memory://", "redis://h", "rediss://h", "unix:///run/valkey", "redis+sentinel://h/s", "redis+cluster://h"]
)
def test_the_store_kinds_have_names(url: str) -> None:
    kind = {"rediss": "redis", "unix": "redis"}.get(url.partition(":")[0], url.partition(":")[0])
    assert open_store(StoreSettings(url=url), clock=lambda: 0.0).kind == kind


SOURCES = Path(sidecar.__file__).parent
TOLD = re.search(
    r"^ACL SETUSER sidecar on >PASSWORD (.*)$", Path("docs/guides/operate/redis.md").read_text("utf-8"), re.MULTILINE
)


PARTS = tables("limits/redis_store")["parts"]


def called(*patterns: str) -> set[str]:
    """What the scripts in these files call."""
    texts = [path.read_text("utf-8") for pattern in patterns for path in SOURCES.glob(pattern)]
    return {name.lower() for text in texts for name in re.findall(r"redis\.call\('([A-Z]+)'", text)}


def test_the_rights_that_are_told_are_those_of_every_script_in_the_store_and_no_more() -> None:
    assert TOLD
    rows = dict(
        re.findall(r"^\| (.*) \| `(\+.*)` \|$", Path("docs/guides/operate/redis.md").read_text("utf-8"), re.MULTILINE)
    )
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
                await until(lambda: bool(client.exists(PREFIX + DAY.key)) and store.up)
                assert await used(store, DAY) == 2, "restored"
            async with opened(f"unix://limits:wrong@{fresh_valkey.path}") as store:
                with pytest.raises(StoreUnavailable, match="invalid username-password"):
                    await store.ping()
        finally:
            client.execute_command("ACL", "DELUSER", "limits")

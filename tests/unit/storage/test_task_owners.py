"""Is a task its owner's alone?"""

from collections.abc import Awaitable
from dataclasses import dataclass, field

import pytest

from sidecar.errors import Reason, Refusal
from sidecar.storage import RecordBounds, RecordStore, RedisRecordStore, SqliteFile, SqliteRecordStore
from sidecar.storage.task_owners import GRACE_S, OWNERS, OwnerRecord, TaskOwners
from sidecar.vocabulary import Caller, Principal, Question

SEARCH = Question("tool:github/search/code", "tools/call", "github", "search/code", {"repo": "secret"})


def caller(*names: str, issuer: str = "https://idp") -> Caller:
    return Caller(tuple(Principal(name, issuer) for name in names), ())


ALICE, BOB, NOBODY = caller("user:alice"), caller("user:bob"), caller("anonymous", issuer="")


@dataclass
class Kept:
    now_s: float = 1000.0
    store: RecordStore[OwnerRecord] = field(default_factory=lambda: SqliteRecordStore(SqliteFile(None), OWNERS))

    @property
    def tasks(self) -> TaskOwners:
        bounds = RecordBounds(10, 20, evicts_open=True)
        return TaskOwners(self.store, lambda: self.now_s, b"secret", keep_s=1000.0, bounds=bounds)

    async def create(self, who: Caller = ALICE, task_id: str = "t", ttl_s: float | None = None) -> OwnerRecord:
        return await self.tasks.created(who, "github", task_id, by=SEARCH, method="tools/call", ttl_s=ttl_s)

    async def record(self) -> OwnerRecord:
        (record,) = await self.tasks.all_owned(ALICE, "github", ("t",))
        return record

    async def has(self, who: Caller, task_id: str = "t", server: str = "github") -> bool:
        try:
            await self.tasks.all_owned(who, server, (task_id,))
        except Refusal as refusal:
            assert (refusal.reason, refusal.detail, refusal.data) == (Reason.TASK_UNKNOWN, "", {})
            return False
        return True


async def test_a_task_is_its_owners_and_nobody_elses() -> None:
    kept = Kept()
    record = await kept.create()
    assert record.owner == ALICE.binding
    assert record.question == SEARCH._replace(arguments={}), "what created it, without its arguments"
    refreshed = Caller(ALICE.chain, (), expires_at=2000.0)
    alikes = caller("user:alice", issuer="https://other"), caller("user:alice", "nhi:bot"), Caller((), ())
    assert [await kept.has(who) for who in (ALICE, refreshed)] == [True, True]
    assert [await kept.has(who) for who in (BOB, NOBODY, *alikes)] == [False] * 5
    assert not await kept.has(ALICE, server="jira")
    assert [await kept.has(ALICE, task_id) for task_id in ("", "T", "t ", "x" * 1025)] == [False] * 4
    assert not await kept.tasks.mine(ALICE, "github", ["t"], namespace="a2a")


async def refused(asked: Awaitable[object]) -> Reason:
    with pytest.raises(Refusal) as caught:
        await asked
    return caught.value.reason


async def test_a_task_never_changes_hands_nor_what_made_it() -> None:
    kept = Kept()
    first = await kept.create()
    assert await kept.create() == first, "a replayed answer is no fault"
    assert await refused(kept.create(BOB)) is Reason.RESPONSE_REFUSED
    other = SEARCH._replace(object="tool:github/delete")
    again = kept.tasks.created(ALICE, "github", "t", by=other, method="tools/call", ttl_s=None)
    assert await refused(again) is Reason.RESPONSE_REFUSED
    assert (await kept.has(ALICE), await kept.has(BOB)) == (True, False)


@pytest.mark.parametrize(("who", "task_id"), [(NOBODY, "t"), (ALICE, ""), (ALICE, "x" * 1025)])
async def test_what_nobody_could_ask_for_is_not_created(who: Caller, task_id: str) -> None:
    kept = Kept()
    assert await refused(kept.create(who, task_id)) is Reason.RESPONSE_REFUSED
    assert await kept.tasks.mine(who, "github", [task_id]) == {}


async def test_anonymous_callers_may_not_ask_for_a_task() -> None:
    await Kept().tasks.may_create(ALICE)
    assert await refused(Kept().tasks.may_create(NOBODY)) is Reason.UNAUTHENTICATED


async def test_it_lasts_as_long_as_its_server_says_and_no_longer_than_we_keep() -> None:
    for ttl_s, lasts_s in ((10.0, 10 + GRACE_S), (0.0, GRACE_S), (-5.0, GRACE_S), (None, 1000), (9e9, 1000)):
        kept = Kept()
        await kept.create(ttl_s=ttl_s)
        kept.now_s += lasts_s - 1
        assert await kept.has(ALICE)
        kept.now_s += 1
        assert not await kept.has(ALICE)


async def test_its_server_may_change_how_long_and_its_end_is_final() -> None:
    kept = Kept()
    record = await kept.create(ttl_s=10.0)
    for said, ttl_s, state in (("working", 500.0, ""), ("completed", None, "completed"), ("failed", None, "completed")):
        await kept.tasks.saw(record, said, ttl_s)
        record = await kept.record()
        assert (record.state, record.expires_at) == (state, 1500 + GRACE_S)


async def test_all_of_several_tasks_must_be_owned() -> None:
    kept = Kept()
    await kept.create(task_id="a")
    await kept.create(BOB, "b")
    assert len(await kept.tasks.all_owned(ALICE, "github", ["a", "a"])) == 1
    with pytest.raises(Refusal):
        await kept.tasks.all_owned(ALICE, "github", ["a", "b"])
    assert (await kept.tasks.mine(ALICE, "github", ["a", "b", "c"])).keys() == {"a"}


async def gone(*_: object) -> None:
    raise ConnectionError("gone")


async def test_without_its_store_nobody_has_a_task() -> None:
    kept = Kept(store=RedisRecordStore(gone, OWNERS))
    record = await Kept().create()
    for asked in (
        kept.record(),
        kept.tasks.mine(ALICE, "github", ["t"]),
        kept.tasks.may_create(ALICE),
        kept.create(),
        kept.tasks.saw(record, "failed", None),
    ):
        assert await refused(asked) is Reason.STORE_UNAVAILABLE


async def test_when_there_is_no_room_the_call_is_refused_before_it_goes() -> None:
    kept = Kept()
    for number in range(20):
        await kept.create(caller(f"user:{number}"), str(number))
    for asked in (kept.tasks.may_create(ALICE), kept.create()):
        assert await refused(asked) is Reason.TOO_MANY_CONCURRENT


async def test_what_its_owner_goes_on_with_is_kept_from_then_on() -> None:
    """Else a conversation that is in use would one day be whoever's names it first."""
    kept = Kept()
    record = await kept.create()
    for _ in range(5):
        kept.now_s += 900.0
        await kept.create()
        assert (await kept.record()).created_at == record.created_at
    await refused(kept.create(BOB))
    record = await kept.record()
    kept.now_s += 100.0
    await kept.tasks.used(record)
    assert (await kept.record()).expires_at == record.expires_at, "not at each word"


async def test_a_task_is_anothers_only_where_that_is_on_record() -> None:
    kept = Kept()
    await kept.create(BOB)
    for who, name, anothers in ((ALICE, "t", True), (BOB, "t", False), (ALICE, "none", False)):
        assert await kept.tasks.is_anothers(who.binding, "github", name, namespace="mcp") is anothers

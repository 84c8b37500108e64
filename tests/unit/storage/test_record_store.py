"""Does every store keep the same promises, of every kind of record? And does the file keep its own?"""

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from sidecar.limits import open_store
from sidecar.settings.store import StoreSettings
from sidecar.storage import (
    AddedRecord,
    RecordBounds,
    RecordCodec,
    RecordPage,
    RecordShare,
    RecordStore,
    RecordStoreOut,
    RedisRecordStore,
    SqliteFile,
    SqliteRecordStore,
    UnreadableRecord,
    check_file,
)
from sidecar.storage.push_configs import PUSHES
from sidecar.storage.sealing import AesSeal
from sidecar.storage.task_owners import OWNERS, OwnerRecord
from sidecar.tasks.api.task_record import TASKS
from sidecar.tasks.programs.run_record import RUNS
from tests.unit.storage.worlds import ALL, ROOM, SHARE, SORTS, Sort, World, after, owner_record, push_record, stores
from tests.valkey import Valkey


@pytest.fixture(params=["memory", "redis"])
def how(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=SORTS)
async def world(how: str, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    sort = SORTS[request.param]
    async with stores(how, tmp_path, lambda: request.getfixturevalue("valkey")) as opened:
        yield World(opened.of(sort.kind), sort)


async def test_what_is_kept_is_found(world: World) -> None:
    made = world.made("1")
    assert await world.store.take("me", 0.0, 1.0, SHARE) == []
    assert await world.store.get("1") is None
    assert await world.add("1") is AddedRecord.KEPT
    assert await world.store.get("1") == made
    assert await world.store.find(["2", "1", "3"]) == [made] and await world.store.find([]) == []
    assert await world.store.counts() == {made.standing: 1}


async def test_an_id_is_taken_once_whoever_wants_it_and_however_full_it_is(world: World) -> None:
    wanted = [world.store.add(world.made("1", owner), owner, 10.0, ROOM) for owner in ("alice", "bob", "carol")]
    answers = await asyncio.gather(*wanted)
    assert sorted(answers, key=str) == [AddedRecord.KEPT, AddedRecord.KNOWN, AddedRecord.KNOWN]
    first = await world.store.get("1")
    await world.store.replace(world.done(first))
    again = await world.store.add(first, "me", 10.0, RecordBounds(1, 1, 0))
    assert again is AddedRecord.KNOWN, "and nothing gives way to it"
    assert await world.store.get("1") == world.done(first)
    assert await world.store.counts() == {world.done(first).standing: 1}


async def test_of_two_who_change_one_revision_the_first_has_it(world: World) -> None:
    await world.add("1")
    changes = [after(world.made("1"), expires_at=200.0 + n) for n in range(20)]
    assert sum(await asyncio.gather(*map(world.store.replace, changes))) == 1
    assert not await world.store.replace(after(world.made("1")))
    assert not await world.store.replace(after(world.made("unknown")))


async def test_a_page_holds_an_owners_own_newest_first(world: World) -> None:
    for at, name in enumerate("abc"):
        await world.add(name, at=at)
    await world.add("d", "bob")
    await world.store.replace(world.done(world.made("b", at=1)))
    done = world.done(world.made("b", at=1)).standing
    for owner, page, expected in [
        ("alice", ALL, (["c", "b", "a"], 3)),
        ("alice", ALL._replace(limit=1, offset=1), (["b"], 3)),
        ("alice", ALL._replace(standing=done), (["b"], 1)),
        *(("alice", RecordPage(targets), ([], 0)) for targets in (("writer",), ())),
        *((nobody, ALL, ([], 0)) for nobody in ("carol", "")),
    ]:
        assert await world.page(owner, page) == expected, (owner, page)


async def test_a_record_that_begins_again_has_its_new_place_in_every_page(world: World) -> None:
    for at, name in enumerate("abc"):
        await world.add_done(name, at=at)
    for name, at in (("a", 3.0), ("c", -1.0)):
        again = world.at_work(await world.store.get(name))._replace(created_at=at)
        assert await world.store.reopen(again, "me", 50.0)
    for owner in ("alice", None):
        assert await world.page(owner, ALL) == (["a", "b", "c"], 3), owner
    assert await world.store.replace(world.done(await world.store.get("c")))
    assert await world.add("d", at=4) is AddedRecord.KEPT
    assert await world.page("alice", ALL) == (["d", "a", "b"], 3), "the oldest that is done gave way"


async def test_a_page_of_everybodys_is_in_order_whatever_became_of_them(world: World) -> None:
    room = RecordBounds(10, 20)
    for at, name in enumerate("abcdef"):
        await world.add(name, name, at=at, target="writer" if name == "c" else "researcher", room=room)
    for name in "ebd":
        await world.store.replace(world.at_work(await world.store.get(name)))
    await world.store.replace(world.done(world.at_work(world.made("d", "d", at=3))))
    both = RecordPage(("researcher", "writer", "researcher", "nobody"))
    new, at_work = world.made("x"), world.at_work(world.made("x"))
    for page, expected in [
        (both, (["f", "e", "d", "c", "b", "a"], 6)),
        (both._replace(limit=2, offset=3), (["c", "b"], 6)),
        (both._replace(offset=6), ([], 6)),
        (ALL, (["f", "e", "d", "b", "a"], 5)),
        (both._replace(standing=at_work.standing), (["e", "b"], 2)),
        (both._replace(standing=new.standing), (["f", "c", "a"], 3)),
        (both._replace(standing=world.done(at_work).standing), (["d"], 1)),
        (RecordPage(()), ([], 0)),
    ]:
        assert await world.page(None, page) == expected, page
    await world.store.sweep(1000.0)
    assert await world.page(None, both) == (["f", "e", "c", "b", "a"], 5)


async def test_a_page_far_back_begins_where_it_should(world: World) -> None:
    room, count = RecordBounds(1000, 1000), 260
    times = [float(number // 9) if number < 200 else 1e9 + number / 7 for number in range(count)]
    made = [world.made(f"{n:03}", at=at, target=("writer", "researcher")[n % 2]) for n, at in enumerate(times)]
    assert set(await asyncio.gather(*(world.store.add(one, "me", 10.0, room) for one in made))) == {AddedRecord.KEPT}
    await asyncio.gather(*(world.store.replace(world.done(one)) for one in made[::3]))
    newest = [one.id for one in reversed(made)]
    for offset in (0, 59, 60, 61, 101, 150, 259, 260, 1000):
        page = RecordPage(("researcher", "writer"), None, 50, offset)
        assert await world.page(None, page) == (newest[offset : offset + 50], count)


async def test_an_owner_has_room_as_long_as_something_of_theirs_is_done(world: World) -> None:
    for name in "abc":
        assert await world.add(name) is AddedRecord.KEPT
    assert await world.add("d") is AddedRecord.FULL
    await world.store.replace(world.done(world.made("b")))
    assert await world.add("d") is AddedRecord.KEPT
    assert await world.store.get("b") is None
    assert {await world.add("x", "bob"), await world.add("y", "bob")} == {AddedRecord.KEPT}
    assert await world.add("z", "carol") is AddedRecord.FULL, "as many as there may be in all"


async def test_of_a_target_so_many_are_kept_that_are_done_and_the_oldest_give_way(world: World) -> None:
    room = RecordBounds(10, 20, done_per_target=2)
    for at, name in enumerate("abcdef"):
        kept = world.add if name == "c" else world.add_done
        await kept(name, at=at, target="writer" if name == "a" else "researcher", room=room)
    assert await world.page("alice", ALL) == (["f", "e", "d", "c"], 4), "one gives way when another is added"
    await world.add("g", at=6.0, room=room)
    assert await world.page("alice", RecordPage(("researcher", "writer"))) == (["g", "f", "e", "c", "a"], 5)
    await world.add("h", "bob", at=7.0, room=room._replace(done_per_target=0))
    assert await world.page(None, ALL) == (["h", "g", "c"], 3), "what is not done stays, and whose it was is the same"


async def test_of_a_target_with_too_many_the_oldest_of_who_has_most_give_way(world: World) -> None:
    """One who orders without end pushes out their own, and nobody else's."""
    room = RecordBounds(20, 30, done_per_target=6)
    for at, name in enumerate(["v1", "v2", "w1", "w2"]):
        await world.add_done(name, name[0], at=float(at), room=room)
    for number in range(9):
        await world.add_done(f"f{number}", "flooder", at=10.0 + number, room=room)
    assert await world.page(None, ALL) == (["f8", "f7", "f6", "w2", "w1", "v2", "v1"], 7)
    await world.store.reopen(world.at_work(await world.store.get("f8")), "me", 50.0)
    await world.add_done("v3", "v", at=30.0, room=room)
    await world.add("w3", "w", at=31.0, room=room)
    there = ["w3", "v3", "f8", "f7", "f6", "w2", "w1", "v2"]
    assert await world.page(None, ALL) == (there, 8), "what goes on is not done"
    await world.store.sweep(1000.0)
    assert await world.page(None, ALL) == (["w3", "f8"], 2)
    for name in ("f8", "w3"):
        await world.store.replace(world.done(await world.store.get(name)))
    await world.add("x1", at=40.0, room=room._replace(done_per_target=1))
    assert await world.page(None, ALL) == (["x1", "w3"], 2), "of those who have as many it is whose oldest is older"


async def test_beyond_the_bound_of_all_the_oldest_of_who_has_most_that_are_done_give_way(world: World) -> None:
    """Nobody's many keep another out."""
    room, both = RecordBounds(4, 6), RecordPage(("researcher", "writer"))
    for at, name in enumerate(["v1", "f0", "f1", "f2", "f3"]):
        await world.add_done(name, name[0], at=at, target="writer" if name == "f1" else "researcher", room=room)
    await world.add("w1", "w", at=5.0, room=room)
    assert await world.add("n1", "new", at=6.0, room=room) is AddedRecord.KEPT
    assert await world.add("n2", "new", at=7.0, target="writer", room=room) is AddedRecord.KEPT
    assert await world.page(None, both) == (["n2", "n1", "w1", "f3", "f2", "v1"], 6)
    few = room._replace(total=4)
    assert await world.add("n3", "new", at=8.0, room=few) is AddedRecord.KEPT, "as many as are too many"
    assert await world.page(None, both) == (["n3", "n2", "n1", "w1"], 4)
    assert await world.add("x", "v", at=9.0, room=few) is AddedRecord.FULL, "nothing is done"


async def test_what_is_done_goes_on_only_if_that_is_said(world: World) -> None:
    await world.add("a", by="one")
    done = world.done(world.made("a"))
    again = world.at_work(done)
    assert not await world.store.reopen(world.at_work(world.made("a")), "two", 30.0), "it is not done"
    assert await world.store.replace(done)
    assert not await world.store.replace(again)
    assert not await world.store.reopen(after(done), "two", 30.0), "it would not go on"
    assert not await world.store.reopen(after(again), "two", 30.0), "that is not what is there"
    assert await world.store.reopen(again, "two", 30.0)
    assert await world.store.sweep(1000.0) == 0
    assert await world.store.counts() == {again.standing: 1}
    assert await world.store.take("one", 12.0, 22.0, SHARE) == [], "another has it"
    assert await world.store.take("two", 12.0, 22.0, SHARE) == [again]
    assert await world.store.replace(world.done(again)) and await world.store.sweep(1000.0) == 1
    assert not await world.store.reopen(after(again), "two", 30.0), "it was forgotten"


async def test_what_nobody_holds_any_more_is_taken_by_one(world: World) -> None:
    store = world.store
    for name in "abc":
        await world.add(name, by="one")
    await store.replace(world.done(world.made("b")))
    assert await store.take("two", 5.0, 20.0, SHARE) == []
    assert {one.id for one in await store.take("one", 5.0, 12.0, SHARE)} == {"a", "c"}, "what is mine is mine again"
    assert await store.take("two", 11.0, 20.0, SHARE) == []
    taken = await asyncio.gather(*(store.take(f"n{n}", 13.0, 20.0, RecordShare(1, 1)) for n in range(5)))
    assert sorted(one.id for some in taken for one in some) == ["a", "c"]
    await store.let_go("n0")
    await store.let_go("n1")
    assert {one.id for one in await store.take("two", 13.0, 20.0, SHARE)} == {"a", "c"}


async def test_who_held_it_by_a_clock_that_was_hours_ahead_holds_it_no_more(world: World) -> None:
    await world.store.add(world.made("a"), "ahead", 50_000.0, ROOM)
    await world.store.add(world.made("b"), "somewhat ahead", 24.0, ROOM)
    assert [one.id for one in await world.store.take("two", 5.0, 15.0, SHARE)] == ["a"]


async def test_nobody_takes_more_of_one_owner_than_their_share(world: World) -> None:
    store, room = world.store, RecordBounds(10, 20)
    for n in range(6):
        await store.add(world.made(f"a{n}", at=float(n)), "me" if n > 3 else "", 0.0, room)
    await store.add(world.made("b0", "bob", at=9.0), "", 0.0, room)
    taken = await store.take("me", 5.0, 12.0, RecordShare(total=4, per_owner=3))
    assert [one.id for one in taken] == ["a4", "a5", "a0", "b0"], "what is mine first, then the oldest"
    assert [one.id for one in await store.take("me", 5.0, 12.0, RecordShare(total=2, per_owner=3))] == ["a0", "a4"]
    assert {one.id for one in await store.take("two", 5.0, 12.0, SHARE)} == {"a1", "a2", "a3"}


async def test_what_is_known_as_it_is_is_held_and_not_told(world: World) -> None:
    store = world.store
    for name in "abc":
        await world.add(name)
    changed = world.at_work(world.made("b"))
    assert await store.replace(changed)
    known = {"a": world.made("a").revision, "b": world.made("b").revision, "another": 7}
    assert [one.id for one in await store.take("me", 5.0, 30.0, SHARE, known)] == ["b", "c"]
    assert await store.take("two", 25.0, 40.0, SHARE) == [], "all of them are held"


async def test_what_is_done_is_forgotten_in_its_time_and_what_is_not_never(world: World) -> None:
    await world.add("a", until=10.0)
    await world.add("b", until=10.0)
    await world.store.replace(world.done(world.made("a"))._replace(expires_at=20.0))
    assert await world.store.sweep(19.0) == 0, "when it is done says how long it is kept"
    assert await world.store.sweep(20.0) == 1
    assert await world.store.get("a") is None and await world.store.get("b") is not None
    assert await world.store.counts() == {world.made("b").standing: 1}


@pytest.mark.parametrize("sort", SORTS.values(), ids=[*SORTS])
@pytest.mark.parametrize("how", ["file", "redis"])
async def test_what_cannot_be_read_is_no_others_trouble(
    how: str, sort: Sort, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A newer version may have put it there, as replicas do where they are changed one after the other."""
    newer = replace(sort.kind, codec=RecordCodec(lambda _: b'{"state": "paused"}', sort.kind.codec.decode))
    async with stores(how, tmp_path, lambda: request.getfixturevalue("valkey")) as opened:
        world = World(opened.of(sort.kind), sort)
        await world.add("good")
        await World(opened.of(newer), sort).add("odd")
        assert [one.id for one in await world.store.take("me", 5.0, 12.0, SHARE)] == ["good"]
        assert await world.page("alice", ALL) == (["good"], 2)
        assert await world.page(None, ALL) == (["good"], 2)
        with pytest.raises(RecordStoreOut):
            await world.store.get("odd")


async def test_kinds_in_one_store_do_not_meet(how: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    async with stores(how, tmp_path, lambda: request.getfixturevalue("valkey")) as opened:
        tasks, runs = (World(opened.of(sort.kind), sort) for sort in SORTS.values())
        only = RecordBounds(1, 1)
        assert {await one.add("1", room=only) for one in (tasks, runs)} == {AddedRecord.KEPT}
        await tasks.store.remove(["1", "unknown"])
        assert await tasks.store.get("1") is None and await runs.store.get("1") == runs.made("1")
        assert await tasks.add("2", room=only) is AddedRecord.KEPT
        assert await runs.add("2", room=only) is AddedRecord.FULL
        assert await tasks.store.counts() == {tasks.made("2").standing: 1}
        assert await runs.store.take("me", 0.0, 20.0, SHARE) == [runs.made("1")]


# --- records that are no work -----------------------------------------------------------------------------------------


@pytest.fixture
async def owners(how: str, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[RecordStore[OwnerRecord]]:
    async with stores(how, tmp_path, lambda: request.getfixturevalue("valkey")) as opened:
        yield opened.of(OWNERS)


OPEN = RecordBounds(per_owner=3, total=5, evicts_open=True)


async def kept(store: RecordStore[OwnerRecord], names: str) -> str:
    return "".join(one.task_id for one in await store.find([owner_record(name).id for name in names]))


async def test_an_id_is_free_again_once_its_record_has_expired(owners: RecordStore[OwnerRecord]) -> None:
    first, second = owner_record("1"), owner_record("1", "bob", created_at=99.0, expires_at=200.0)
    assert await owners.add(first, "", 0.0, OPEN) is AddedRecord.KEPT
    assert await owners.add(second, "", 0.0, OPEN) is AddedRecord.KNOWN
    assert await owners.add(second._replace(created_at=100.0), "", 0.0, OPEN) is AddedRecord.KEPT
    assert await owners.find([first.id]) == [second._replace(created_at=100.0)]
    assert await owners.take("me", 150.0, 160.0, SHARE) == [], "it is no work"
    assert (await owners.sweep(199.0), await owners.sweep(200.0), await owners.sweep(200.0)) == (0, 1, 0)
    assert await owners.counts() == {}


async def test_the_oldest_of_an_owner_gives_way_and_first_one_that_ended(owners: RecordStore[OwnerRecord]) -> None:
    for at, name in enumerate("abc"):
        await owners.add(owner_record(name, created_at=float(at)), "", 0.0, OPEN)
    assert await owners.replace(owner_record("b", created_at=1.0, state="cancelled", revision=1))
    for at, (name, there) in enumerate([("d", "acd"), ("e", "cde"), ("f", "def")], start=4):
        assert await owners.add(owner_record(name, created_at=float(at)), "", 0.0, OPEN) is AddedRecord.KEPT
        assert await kept(owners, "abcdef") == there


async def test_there_is_room_as_long_as_anything_may_give_way(owners: RecordStore[OwnerRecord]) -> None:
    """No owner's many keep another out."""
    room = OPEN._replace(per_owner=4, total=6)
    for name, owner, state in [("a", "a", "failed"), *((n, "flooder", "failed") for n in "xyz"), ("l", "o", "")]:
        await owners.add(owner_record(name, owner, state=state), "", 0.0, room)
    for name, there in [("n", "alnxyz"), ("m", "almnyz"), ("k", "aklmnz"), ("j", "jklmnz"), ("i", "ijklmn")]:
        assert await owners.has_room(room)
        assert await owners.add(owner_record(name, f"new {name}", created_at=1.0), "", 0.0, room) is AddedRecord.KEPT
        assert "".join(sorted(await kept(owners, "aijklmnxyz"))) == there
    assert not await owners.has_room(room)
    assert await owners.add(owner_record("h", "new h"), "", 0.0, room) is AddedRecord.FULL
    assert await owners.add(owner_record("h", "new i"), "", 0.0, room._replace(per_owner=1)) is AddedRecord.KEPT


async def test_an_id_is_any_text(owners: RecordStore[OwnerRecord]) -> None:
    for name in ("é\u4e2d\U0001f600", "' OR 1=1 --", '"', "a\nb", "x" * 1024, " ", "\x01", "[1]", "a/b"):
        await owners.add(owner_record(name, name[:1]), "", 0.0, OPEN._replace(total=20))
        assert await owners.find([owner_record(name).id, owner_record(name + " ").id]) == [owner_record(name, name[:1])]


async def test_what_is_sealed_is_read_with_the_key_alone_and_under_its_own_id(valkey: Valkey, tmp_path: Path) -> None:
    async with stores("redis", tmp_path, lambda: valkey) as opened:
        one, other, stranger = (
            opened.of(PUSHES.sealed(partial(AesSeal, key, b"purpose"))) for key in (b"k" * 32, b"k" * 32, b"x" * 32)
        )
        kept = push_record("h1")
        assert await one.add(kept, "", 0.0, ROOM) is AddedRecord.KEPT
        assert await other.get("h1") == kept
        assert await stranger.page("alice", RecordPage(("planner",))) == ([], 1)
        with pytest.raises(UnreadableRecord):
            await stranger.get("h1")
        with valkey.client() as client:
            (name,) = client.keys("*:record:*")
            held = "".join(client.hgetall(name).values())
            assert held and not any(word in held for word in ("t0ken", "s3cret", "0urs", "h.example"))
            client.rename(name, f"{name[:-2]}h2")  # a writer gives one caller's to another handle
            for body in (None, "é"):
                if body is not None:
                    client.hset(f"{name[:-2]}h2", "body", body)
                with pytest.raises(UnreadableRecord):
                    await one.get("h2")


# --- the file and the server ------------------------------------------------------------------------------------------


async def test_a_server_that_is_gone_is_a_store_that_is_out() -> None:
    shared = open_store(StoreSettings(url="unix:///nowhere.sock"), time.time)
    store = RedisRecordStore(shared.run, TASKS)
    with pytest.raises(RecordStoreOut):
        await store.get("1")
    assert not store.up
    await shared.close()


KILLED = """
import asyncio, sys
from itertools import count
from pathlib import Path
from sidecar.tasks.programs.run_record import RUNS
from sidecar.storage import RecordBounds, SqliteFile, SqliteRecordStore
from tests.unit.tasks.programs.runs import run
async def keep(store, name):
    made = run(id=name)
    await store.add(made, "file", 0.0, RecordBounds())
    print(name, 0, flush=True)
    for revision in (1, 2, 3):
        await store.replace(made._replace(revision=revision))
        print(name, revision, flush=True)
async def main():
    store = SqliteRecordStore(SqliteFile(Path(sys.argv[1])), RUNS)
    for batch in count():
        await asyncio.gather(*(keep(store, f"{batch}-{number}") for number in range(20)))
asyncio.run(main())
"""


async def test_a_kill_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "records.sqlite"
    said = list[str]()
    with subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for line in writer.stdout:
            said.append(line)
            if len(said) == 150:
                writer.kill()
    kept = dict(line.split() for line in said if line.endswith("\n"))
    assert writer.returncode == -9 and len(said) >= 150
    check_file(path)
    file = SqliteFile(path)
    store = SqliteRecordStore(file, RUNS)
    for name, revision in kept.items():
        found = await store.get(name)
        assert found is not None and found.revision >= int(revision)
    assert {one.id for one in await store.take("file", 0.0, 15.0, SHARE)} >= kept.keys(), "and it is its own again"
    await file.close()

"""Do all stores answer the same to the same history, word for word?"""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import HealthCheck, given, settings, strategies as st

from sidecar.storage import RecordBounds, RecordPage, RecordShare, RecordStore
from sidecar.storage.task_owners import OWNERS as OWNER_RECORDS
from tests.unit.storage.worlds import SORTS, World, after, owner_record, stores
from tests.valkey import Valkey

SORT = SORTS["runs"]
OWNERS, TARGETS, NAMES = ["alice", "bob", "carol"], ["writer", "researcher"], [f"r{n}" for n in range(9)]
STANDINGS = [None, "idle", "running", "success"]
CHANGES: list[dict[str, Any]] = [{}, SORT.at_work, SORT.done, SORT.done]
VERBS = ["add", "add", "add", "replace", "replace", "reopen", "take", "let_go", "sweep"]

Step = tuple[str, str, str, str, int, int, int]
STEPS: st.SearchStrategy[Step] = st.tuples(
    st.sampled_from(VERBS),
    st.sampled_from(NAMES),
    st.sampled_from(OWNERS),
    st.sampled_from(TARGETS),
    st.integers(0, 3),
    st.integers(-3, 3),
    st.integers(1, 4),
)


async def told(world: World, steps: list[Step]) -> list[Any]:
    """Play a history; what did the store say, and how does it stand after each step?"""
    store, said = world.store, list[Any]()
    for now, (verb, name, who, target, choice, ahead, few) in enumerate(steps, start=4):
        standing = await store.get(name)
        changed = after(standing or world.made(name, who), **CHANGES[choice], expires_at=float(now + few))
        if verb == "add":
            # A replica's clock may be ahead: what is created later is not always newer.
            made = world.made(name, who, at=now + 1.01 * ahead, until=now + 5.0, target=target)
            said.append(await store.add(made, who, now + few, RecordBounds(3, 6, few if choice else None)))
        elif verb == "replace":
            said.append(await store.replace(changed))
        elif verb == "reopen":
            begun = changed._replace(created_at=now + 1.01 * ahead)
            said.append(await store.reopen(begun, who, now + few))
        elif verb == "take":
            known = {name: choice} if standing is None else {name: standing.revision - choice % 2}
            taken = await store.take(
                who, now, now + few, RecordShare(), known
            )  # in what order is the store's own affair
            said.append(sorted(taken, key=lambda one: one.id))
        elif verb == "let_go":
            said.append(await store.let_go(who))
        else:
            said.append(await store.sweep(now - few))
        said.append(await store.counts())
        for owner in (None, *OWNERS):
            page = RecordPage(TARGETS[: 1 + choice % 2], STANDINGS[choice], few, 1 + ahead // 2)
            said.append(await world.page(owner, page._replace(offset=max(0, page.offset))))
    return said


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEPS, min_size=10, max_size=40))
def test_every_store_says_the_same(valkey: Valkey, steps: list[Step]) -> None:
    async def play() -> None:
        with TemporaryDirectory() as folder:
            answers = []
            for how in ("memory", "file", "redis"):
                async with stores(how, Path(folder), lambda: valkey) as opened:
                    answers.append(await told(World(opened.of(SORT.kind), SORT), steps))
            assert answers[0] == answers[1]
            assert answers[0] == answers[2]

    asyncio.run(play())


BATCHES = st.lists(st.lists(st.tuples(st.sampled_from(OWNERS), st.booleans()), max_size=8), min_size=1, max_size=12)


def unused() -> Valkey:
    raise AssertionError("these stores need no server")


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(BATCHES, st.integers(1, 6), st.integers(4, 20), st.booleans())
def test_what_comes_at_once_is_kept_as_one_after_the_other(
    batches: list[list[tuple[str, bool]]], per_owner: int, total: int, evicts_open: bool
) -> None:
    """A file writes all new records of one iteration of the loop by one statement."""
    bounds = RecordBounds(per_owner, total, evicts_open=evicts_open)
    numbers = [(now, place) for now, batch in enumerate(batches) for place in range(len(batch))]
    names = [owner_record(f"t{now}-{place}").id for now, place in numbers]

    async def at_once(store: RecordStore[Any]) -> list[Any]:
        said = list[Any]()
        for now, batch in enumerate(batches):
            made = [
                owner_record(f"t{now}-{place}", owner, created_at=10.0 * now + place, state="done" * is_done)
                for place, (owner, is_done) in enumerate(batch)
            ]
            pairs = [made[place : place + 2] for place in range(0, len(made), 2)]
            known = [[one for one in await store.find(names) if now % 3 == 2][:2]]
            said.append(await asyncio.gather(*(store.add_all(pair, bounds) for pair in (*pairs, *known))))
            said.append(sorted(await store.find(names)))
        return said

    async def play() -> None:
        with TemporaryDirectory() as folder:
            answers = []
            for how in ("memory", "file"):
                async with stores(how, Path(folder), unused) as opened:
                    answers.append(await at_once(opened.of(OWNER_RECORDS)))
            assert answers[0] == answers[1]

    asyncio.run(play())

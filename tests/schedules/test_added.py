"""Does a schedule that an operator added run at every replica that shares the store, and as long as it is there?"""

from dataclasses import replace
from pathlib import Path

import pytest

from sidecar.errors import Reason, Refusal
from sidecar.settings.schedules import ScheduleSettings
from sidecar.storage import SqliteFile, SqliteRecordStore
from sidecar.tasks.schedules import scheduler
from sidecar.tasks.schedules.schedule_state import SCHEDULES
from sidecar.tasks.schedules.scheduler import Conflict
from tests.schedules.clockwork import MINUTELY, clockwork
from tests.valkey import Valkey


def emptied(valkey: Valkey) -> str:
    with valkey.client() as client:
        client.flushall()
    return valkey.url


ADDED = ScheduleSettings.model_validate(MINUTELY)


async def test_what_was_added_at_one_replica_runs_at_another_and_ends_with_its_removal(
    tmp_path: Path, valkey: Valkey
) -> None:
    async with clockwork(tmp_path, store="redis", url=emptied(valkey), replicas=2) as works:
        works.write()
        one, two = works.replicas
        shown = await one.scheduler.add("minutely", ADDED, "admin:operator")
        assert (shown.source, shown.state) == ("added", "active")
        assert works.witnessed[-1][:2] == ("schedule-add", "admin:operator")
        assert [each.key for each in await two.scheduler.list()] == ["minutely"], "before it looks"
        with pytest.raises(Conflict, match="there is a schedule minutely already"):
            await two.scheduler.add("minutely", ADDED, "admin:operator")
        one.kill()
        await one.scheduler.close()
        await works.through("12:01:00", looks=[two])
        assert len(works.told()) == 1
        caller = (await two.scheduler._of("minutely")).caller
        assert two.live.current.identity.vouches_for(caller)
        await two.scheduler.remove("minutely", "admin:operator")
        assert works.witnessed[-1][:2] == ("schedule-remove", "admin:operator")
        assert not two.live.current.identity.vouches_for(caller), "so what it ordered ends"
        assert two.scheduler.seen() == []
        await works.at("12:02:00", looks=[two])
        assert len(works.told()) == 1
        assert works.counted.added == []


async def test_a_replica_that_has_it_on_its_hands_does_not_order_what_another_removed_or_added_anew(
    tmp_path: Path, valkey: Valkey
) -> None:
    async with clockwork(tmp_path, store="redis", url=emptied(valkey), replicas=2) as works:
        works.write()
        one, two = works.replicas
        await one.scheduler.add("minutely", ADDED, "me")
        await works.at("12:00:59", looks=[one])
        await two.scheduler.remove("minutely", "me")
        await works.at("12:01:00", looks=[one])
        assert works.told() == []
        yearly = ADDED.model_copy(update={"cron": "@yearly"})
        await two.scheduler.add("minutely", yearly, "me")
        await works.at("12:02:00")
        assert works.told() == []
        assert (await one.scheduler.list())[0].schedule.cron == "@yearly"


async def test_what_was_added_is_there_after_a_restart_and_gives_way_to_the_settings(tmp_path: Path) -> None:
    async with clockwork(tmp_path, store="file") as works:
        works.write()
        await works.replicas[0].scheduler.add("minutely", ADDED, "me")
        works.replicas[0].kill()
        await works.replicas[0].scheduler.close()
        works.standings = SqliteRecordStore(SqliteFile(tmp_path / "records.sqlite"), SCHEDULES)
        again = works.replica().scheduler
        await again.recall()
        caller = (await again._of("minutely")).caller
        assert again.live.current.identity.vouches_for(caller), "before anything that it ordered goes on"
        works.write(minutely={**MINUTELY, "cron": "@yearly"})
        (shown,) = await again.list()
        assert (shown.source, shown.schedule.cron) == ("configured", "@yearly")
        with pytest.raises(Conflict, match="remove it there"):
            await again.remove("minutely", "me")


async def test_who_would_call_as_one_that_stands_behind_us_does_not(tmp_path: Path) -> None:
    """The settings may name an upstream so after the schedule was added."""
    async with clockwork(tmp_path) as works:
        works.write()
        one = works.replicas[0].scheduler
        with pytest.raises(Refusal, match="is the name of an upstream or agent of this sidecar"):
            await one.add("researcher", ADDED, "me")
        await one.add("minutely", ADDED.model_copy(update={"principal": "nhi:planner"}), "me")
        now = works.replicas[0].live.current
        named = {**now.settings.upstreams, "planner": now.settings.upstreams["researcher"]}
        works.replicas[0].live.current = replace(now, settings=now.settings.model_copy(update={"upstreams": named}))
        await works.at("12:01:00")
        assert works.told() == []
        assert (await works.standing()).last_why == Reason.BAD_CREDENTIAL


async def test_how_many_may_be_added_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "MOST_ADDED", 1)
    async with clockwork(tmp_path) as works:
        one = works.replicas[0].scheduler
        with pytest.raises(Conflict, match=r"sidecar\.yaml has a schedule minutely already"):
            await one.add("minutely", ADDED, "me")
        as_planner = ADDED.model_copy(update={"principal": "nhi:planner"})
        await one.add("a", as_planner, "me")
        with pytest.raises(Conflict, match="1 schedules were added"):
            await one.add("b", as_planner, "me")
        await one.remove("a", "me")
        await one.add("b", as_planner, "me")
        kept = await works.standings.get("b")
        assert SCHEDULES.codec.decode(SCHEDULES.codec.encode(kept)) == kept

"""What does a whole sidecar tell of a store that is out, or that forgot?"""

import asyncio
from pathlib import Path

from sidecar.limits.topology import PREFIX
from tests.flow.causes import row
from tests.flow.talk import Talk, reason_of, series_moved
from tests.flow.world import PATIENCE_S, World, until, world
from tests.valkey import running_valkey

GOOD = {"repo": "acme/site"}
NOWHERE = "unix:///nonexistent/valkey.sock"


def controls(running: World) -> list[str]:
    said = [record["control"] for record in running.records() if record["event"] == "control"]
    return [one.get("how") for one in said if one["what"] == "store"]


async def test_an_instance_that_counts_by_itself_says_so_on_every_side_and_never_answers_429(tmp_path: Path) -> None:
    store = f'store: {{url: "{NOWHERE}", on_failure: degraded, degraded_calls: 2}}\n'
    async with world(tmp_path, rules=row(per_hour="9"), settings=store) as running:
        before, talk = await running.metrics(), Talk(running, "stateless")
        answers = [await talk.call("search_code", GOOD) for _ in range(4)]
        assert [status for status, *_ in answers] == [200, 200, 503, 503]
        assert {reason_of(answer) for answer in answers[2:]} == {"store-unavailable"}
        told = {"limit": "max_calls_per_hour", "most": 9, "remaining": 0, "retry_after_s": 1}
        assert answers[-1][1]["error"]["data"].items() >= told.items()
        assert [end["enforcement"] for end in running.ends()] == ["degraded"] * 2 + ["enforce"] * 2
        moved = series_moved(before, await running.metrics())
        assert 'sidecar_limit_checks_total{limit="rule:search",outcome="degraded"} +2' in moved
        assert 'sidecar_limit_checks_total{limit="rule:search",outcome="unavailable"} +2' in moved
        assert not [line for line in moved if 'outcome="refused"' in line]
        status = running.app.status()
        assert status["store"].pop("trouble")
        told = {"kind": "redis", "up": False, "warning": None, "on_failure": "degraded", "degraded": True}
        assert status["store"] == told
        assert [banner for banner in status["banners"] if banner.startswith("DEGRADED: the store is unavailable")]
        await until(lambda: controls(running) == ["degraded"])


async def test_a_store_that_was_emptied_is_on_record_and_callers_hear_an_outage_of_a_second(tmp_path: Path) -> None:
    with running_valkey() as valkey:
        store = f'store: {{url: "{valkey.url}"}}\n'
        async with world(tmp_path, rules=row(per_hour="9"), settings=store) as running:
            talk = Talk(running, "stateless")
            assert [(await talk.call("search_code", GOOD))[0] for _ in range(3)] == [200] * 3
            with valkey.client() as client:
                client.flushall()
                heard = {(await talk.call("search_code", GOOD))[0]}
                async with asyncio.timeout(PATIENCE_S):
                    while (status := (await talk.call("search_code", GOOD))[0]) != 200:
                        heard.add(status)
                        await asyncio.sleep(0.02)
                assert heard == {503}
                (key,) = client.keys(f"{PREFIX}hour:*")
                assert client.hget(key, "n") == "4"
            await until(lambda: controls(running) == ["emptied"])
            text = await running.metrics()
            assert 'sidecar_store_forgot_total{how="emptied"} 1' in text
            assert "sidecar_store_duration_seconds_count" in text

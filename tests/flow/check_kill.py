"""What a kill, an outage of the store and reloads cost callers under load."""

import asyncio
import signal
from collections import Counter
from typing import Any

from tests.flow.talk import reason_of
from tests.flow.test_kill import RULES, Client, Held, process, until_control
from tests.flow.world import PATIENCE_S, Upstream
from tests.valkey import running_valkey


async def test_slots_of_a_killed_process_come_back_within_two_leases() -> None:
    """BL-059, a call that is killed. `short_leases` makes a lease a second."""
    held = Held()
    budgets = {"policies/budgets.yaml": 'version: 1\ntools: {"tool:github/*": {concurrency: 4}}\n'}
    with running_valkey() as valkey:
        settings = f'store: {{url: "{valkey.url}"}}\n'
        async with process(held.upstream, settings=settings, files=budgets, module="tests.flow.short_leases") as client:
            calls = [asyncio.create_task(client.call()) for _ in range(4)]
            await held.until(4)
            assert (await client.call())[0] == 429
            await client.running.kill()
            await asyncio.gather(*calls, return_exceptions=True)
            held.go.set()
            await client.running.start()
            async with asyncio.timeout(1.5 * PATIENCE_S):  # less than the minute that a lease has by default
                while told := {reason_of((*answer, {})) for answer in await gathered(client, 4)} - {""}:
                    assert told <= {"too-many-concurrent", "store-unavailable"}
                    await asyncio.sleep(0.05)


async def gathered(client: Client, count: int, *call: Any) -> list[tuple[int, Any]]:
    return await asyncio.gather(*(client.call(*call) for _ in range(count)))


async def test_reloads_under_load_fail_nobody() -> None:
    """BL-081."""
    async with process(Upstream()) as client:
        running, done = client.running, asyncio.Event()
        loaded = asyncio.create_task(client.load(done))
        rules, settings = running.folder / "policies" / "agent_to_tool.csv", running.folder / "sidecar.yaml"
        written = settings.read_text()
        for number in range(8):
            rules.write_text(RULES + f"p, nhi:planner, tool:github/new-{number}, use, -, -, -, allow\n")
            settings.write_text(written.replace('/mcp"', f'/mcp?{number % 2}"') if number % 4 == 3 else written)
            running.signal(signal.SIGHUP)
            await until_control(running, number + 1)
        rules.write_text("p, nhi:planner, nonsense\n")
        running.signal(signal.SIGHUP)
        await until_control(running, 9)
        done.set()
        await loaded
        assert {status for status, _ in client.answers.values()} == {200} and len(client.answers) > 100
        assert running.controls() == ["start", *["reload"] * 8, "reload-failed"]
        revisions = {record["policy_revision"] for record in running.records() if record["event"] == "decision"}
        assert len(revisions) > 4  # each call was decided under one of them
        status, said = await running.ask("/readyz")
        assert status == 200 and "files-refused" in said and "agent_to_tool.csv" not in said


async def test_calls_with_limits_hear_of_an_outage_at_once_and_the_others_nothing() -> None:
    with running_valkey() as valkey:
        async with process(Upstream(), settings=f'store: {{url: "{valkey.url}"}}\n') as client:
            for begin, end in ((valkey.freeze, valkey.thaw), (valkey.server.terminate, valkey.server.start)):
                async with asyncio.timeout(PATIENCE_S):
                    while (await client.call(*LIMITED))[0] != 200:
                        await asyncio.sleep(0.05)
                begin()
                await check_outage(client)
                end()
            heard = Counter(record["reason"] for record in client.running.records() if record["event"] == "refusal")
            assert set(heard) == {"store-unavailable"}


LIMITED = "search_code", {"repo": "a"}


async def check_outage(client: Client) -> None:
    """How little it costs is asked in test_limit_outage.py."""
    for _ in range(5):
        limited, answer = await client.call(*LIMITED)
        assert (limited, reason_of((limited, answer, {}))) == (503, "store-unavailable")
        assert (await client.call("get_file"))[0] == 200
    status, ready = await client.running.ask("/readyz")
    assert status == 200 and "degraded" in ready  # it serves what it can
    assert {status for status, _ in await gathered(client, 50, *LIMITED)} == {503}

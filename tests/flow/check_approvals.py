"""A thousand calls that wait for a person, and a process that is killed between the approval and its use."""

import asyncio
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp

from tests.flow.idp import SETTINGS as IDENTITY, Idp, bearer
from tests.flow.process import Served, served
from tests.flow.test_approvals import KEYS, ROLES, RULES, TOOL, admin, asking, waiting
from tests.flow.world import Upstream, listening

WAITING, KILLS = 1_000, 8
IDP = Idp()
KEY = IDP.api_key("nhi:planner")


async def test_a_thousand_calls_wait_and_each_is_executed_once(tmp_path: Path) -> None:
    async with asking(tmp_path, approvals=f"max_per_principal: {2 * WAITING}") as running:

        async def call(number: int) -> int:
            url = f"{running.url}/mcp/github/tools/{TOOL}"
            return (await running.post({"arguments": {"path": f"p{number}"}}, url=url))[0]

        async def each() -> Counter[int]:
            found = Counter[int]()
            for start in range(0, WAITING, 50):
                found.update(await asyncio.gather(*map(call, range(start, start + 50))))
            return found

        assert await each() == {202: WAITING}
        assert await each() == {202: WAITING}
        offset: int | None = 0
        names: list[str] = []
        while offset is not None:
            _, page = await admin(running, "dmitri", f"/api/approvals?state=waiting&limit=200&offset={offset}")
            names += [one["id"] for one in page["approvals"]]
            offset = page["next_offset"]
        assert len(set(names)) == WAITING
        for name in names:
            assert (await admin(running, "dmitri", f"/api/approvals/{name}/approve", {}))[0] == 200
        assert await each() == {200: WAITING}
        assert await waiting(running) == []
        executed = Counter(message["params"]["arguments"]["path"] for message in running.upstream.calls())
        assert executed == Counter({f"p{number}": 1 for number in range(WAITING)})


async def test_a_kill_between_approval_and_use_executes_nothing_twice_and_loses_no_evidence() -> None:
    executed, problems = await kills(KILLS)
    assert problems == []
    assert executed > 0


async def kills(count: int) -> tuple[int, list[str]]:
    """Kill a process so often while approvals are given and used; how many calls were executed, and what is wrong."""
    upstream, chosen = Upstream(), random.Random(7)
    rules, files = RULES, {"policies/roles.csv": ROLES, **KEYS, **IDP.files()}
    admins = "admin: {listen: '127.0.0.1:0'}\n"
    async with (
        listening(upstream.handle) as base,
        served(f"{base}/mcp", rules=rules, settings=IDENTITY + admins, files=files) as running,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as http,
    ):
        given = Counter[str]()
        for number in range(count):
            path = f"p{number}"
            await _until_asked(running, http, path)
            name = await _approve(running, path)
            given[path] += name is not None
            using = asyncio.create_task(_call(running, http, path))
            await asyncio.sleep(chosen.uniform(0.0, 0.02))
            await running.kill()
            await asyncio.gather(using, return_exceptions=True)
            await running.start()
            for _ in range(3):  # whoever does not know what became of it calls again
                await _call(running, http, path)
        problems = _problems(running, upstream, given)
        return len(upstream.calls()), problems


async def _until_asked(running: Served, http: aiohttp.ClientSession, path: str) -> None:
    assert await _call(running, http, path) == 202


async def _call(running: Served, http: aiohttp.ClientSession, path: str) -> int:
    url = f"{running.url}/mcp/github/tools/{TOOL}"
    async with http.post(url, json={"arguments": {"path": path}}, headers=bearer(KEY)) as response:
        return response.status


async def _approve(running: Served, path: str) -> str | None:
    connector = aiohttp.UnixConnector(str(running.folder / "data" / "control.sock"))
    async with aiohttp.ClientSession(connector=connector) as http:
        async with http.get("http://localhost/api/approvals?state=waiting&limit=200") as response:
            (name,) = [one["id"] for one in (await response.json())["approvals"]][:1]
        body = {"principal": "user:dmitri"}
        async with http.post(f"http://localhost/api/approvals/{name}/approve", json=body) as response:
            return str(name) if response.status == 200 else None


def _problems(running: Served, upstream: Upstream, given: Counter[str]) -> list[str]:
    """What contradicts: more executions than approvals, an approval used twice, one without its event."""
    records, problems = running.records(), list[str]()
    events: dict[str, set[str]] = {}
    for record in records:
        if record["event"] == "control" and "approval" in record["control"]:
            events.setdefault(record["control"]["approval"], set()).add(record["control"]["what"])
    used = Counter(
        record["approval"]["id"] for record in records if record["event"] == "decision" and record["approval"]
    )
    problems += [f"{name} was used {times} times" for name, times in used.items() if times > 1]
    for name in used:
        if not events.get(name, set()) >= {"approval-asked", "approval-given"}:
            problems.append(f"{name} was used, and its events are {events.get(name)}")
    executed = Counter(message["params"]["arguments"]["path"] for message in upstream.calls())
    problems += [f"{path} was executed {times} times" for path, times in executed.items() if times > given[path]]
    if sum(executed.values()) > sum(used.values()):
        problems.append(f"{sum(executed.values())} executions and {sum(used.values())} decisions that used an approval")
    code, said = running.verify()
    return problems if code == 0 else [*problems, said]


if __name__ == "__main__":
    came: Any = asyncio.run(kills(int(sys.argv[1]) if len(sys.argv) > 1 else 50))
    print(f"{came[0]} calls executed, {len(came[1])} problems", *came[1], sep="\n")

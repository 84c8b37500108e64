"""Prometheus scrapes two workers and a replica: every panel of the dashboards has data, and every rule is evaluated.

SCRAPED_S=60 runs it for a minute.
"""

import asyncio
import math
import os
import shutil
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from tests.deploy import DEPLOY
from tests.deploy.monitoring import DASHBOARDS, RULES, questions
from tests.flow.causes import budgets
from tests.flow.test_kill import Client, process
from tests.flow.world import PATIENCE_S, Upstream
from tests.valkey import Valkey, running_valkey

PROMETHEUS = shutil.which("prometheus")
SCRAPED_S = float(os.environ.get("SCRAPED_S", "15"))
RULES_OF_POLICY = """\
p, nhi:planner, tool:github/get_file, use, -, 1000000, -, allow
#: approval=role:oncall
p, nhi:planner, tool:github/search_code, use, -, -, -, allow
"""
FILES = budgets(
    'costs: [{object: "tool:github/*", unit: usd, per_call: 0.0001}]\nbudgets: [{unit: usd, per_day: 100}]'
) | {"policies/roles.csv": "g, user:dmitri, role:oncall\n"}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def settings(store: Valkey, port: int, workers: int) -> str:
    return (
        f'server: {{listen: "127.0.0.1:0", workers: {workers}}}\nstore: {{url: "{store.url}"}}\n'
        "sessions: {store: redis}\ntasks: {store: redis}\n"
        f'metrics: {{listen: "127.0.0.1:{port}", tool_label: {{top: 5}}}}\n'
        'agents: {echo: {executable: "true"}}\nschedules: {nightly: {agent: echo, cron: "0 2 * * *"}}\n'
    )


@asynccontextmanager
async def scraping(folder: Path, targets: list[str]) -> AsyncIterator[str]:
    """A Prometheus with the rules of deploy/; its address."""
    written = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
    written["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    written["rule_files"] = [*map(str, RULES)]
    written["scrape_configs"][0]["static_configs"] = [{"targets": targets}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(written))
    address = f"127.0.0.1:{free_port()}"
    options = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb", "--log.level=error"]
    with (folder / "prometheus.log").open("wb") as log:
        running = await asyncio.create_subprocess_exec(
            str(PROMETHEUS), *options, f"--web.listen-address={address}", stdout=log, stderr=log
        )
    try:
        yield f"http://{address}"
    finally:
        if running.returncode is None:
            running.kill()
            await running.wait()


async def asked(http: aiohttp.ClientSession, url: str, **params: str) -> Any:
    async with http.get(url, params=params) as response:
        answer = await response.json()
        assert answer["status"] == "success", answer
        return answer["data"]


async def scraped(http: aiohttp.ClientSession, url: str, count: int) -> None:
    """Wait until so many sidecars are scraped."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                if len((await asked(http, f"{url}/api/v1/query", query="up == 1"))["result"]) == count:
                    return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)


async def approved(client: Client) -> None:
    """Answer what waits."""
    connector = aiohttp.UnixConnector(str(client.running.folder / "data" / "control.sock"))
    async with aiohttp.ClientSession("http://localhost", connector=connector) as http:
        async with http.get("/api/approvals?state=waiting&limit=1") as response:
            waiting = (await response.json())["approvals"]
        for one in waiting:
            body = {"principal": "user:dmitri"}
            async with http.post(f"/api/approvals/{one['id']}/approve", json=body) as response:
                assert response.status in (200, 409), await response.text()


async def used(clients: list[Client], until_s: float) -> None:
    """Calls of each kind, and for a while a policy with a fault, so that each series moves."""
    rules, number = clients[1].running.folder / "policies/agent_to_tool.csv", 0
    while time.monotonic() < until_s:
        number += 1
        for client in clients:
            for tool in ("get_file", "delete_repo", "no_such_tool"):
                await client.call(tool)
            await client.call("search_code", {"repo": f"acme/{number}"})
            await approved(client)
            await client.post({"jsonrpc": "2.0"}, {"Authorization": "Bearer wrong"})
        is_half_way = time.monotonic() > until_s - SCRAPED_S / 2
        rules.write_text(RULES_OF_POLICY + ("" if is_half_way else "p, nobody\n"))
        await asyncio.sleep(0.1)


@pytest.mark.skipif(PROMETHEUS is None, reason="no Prometheus")
async def test_every_panel_has_data_and_every_rule_is_evaluated(tmp_path: Path) -> None:
    upstream, ports = Upstream(), [free_port(), free_port()]
    more: dict[str, Any] = {"rules": RULES_OF_POLICY, "files": FILES}
    with running_valkey() as store:
        async with (
            process(upstream, settings=settings(store, ports[0], 2), **more) as workers,
            process(upstream, settings=settings(store, ports[1], 1), **more) as replica,
            scraping(tmp_path, [f"127.0.0.1:{port}" for port in ports]) as url,
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as http,
        ):
            await scraped(http, url, 2)
            begun_s = time.time()
            await used([workers, replica], time.monotonic() + SCRAPED_S)
            window = {"start": f"{begun_s}", "end": f"{time.time()}", "step": "1"}
            empty = []
            for path in DASHBOARDS:
                for place, expr in questions(path):
                    found = await asked(http, f"{url}/api/v1/query_range", query=expr, **window)
                    values = [float(value) for one in found["result"] for _, value in one["values"]]
                    if all(map(math.isnan, values)):
                        empty.append(f"{place}: {expr}")
            assert not empty, "\n".join(empty)
            groups = (await asked(http, f"{url}/api/v1/rules"))["groups"]
            rules = [rule for group in groups for rule in group["rules"]]
            assert len(rules) > 25 and {rule["health"] for rule in rules} == {"ok"}, rules
            states = {rule["name"]: rule["state"] for rule in rules if rule["type"] == "alerting"}
            assert states["SidecarDown"] == states["SidecarStoreDown"] == states["SidecarAuditDown"] == "inactive"
            expected = 5 * sum(client.asked // 4 for client in (workers, replica))
            async with asyncio.timeout(PATIENCE_S):  # for the next scrape
                while True:
                    total = await asked(http, f"{url}/api/v1/query", query="sum(sidecar_requests_total)")
                    if float(total["result"][0]["value"][1]) == expected:
                        break
                    await asyncio.sleep(0.2)

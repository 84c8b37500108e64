"""Do several workers behind one address count, reload, stop and survive as one sidecar?"""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from sidecar.cli.free_ports import free_ports
from tests.flow.idp import bearer
from tests.flow.openid import openid_provider
from tests.flow.test_console_oidc import OIDC
from tests.flow.test_kill import KEY, Client, process
from tests.flow.world import ACCEPT, PATIENCE_S, SESSION, STATELESS, Upstream, listening, request, stateless, until
from tests.valkey import Valkey, running_valkey

pytestmark = pytest.mark.asyncio(loop_scope="module")
WORKERS, CALLERS, LIMIT = 4, 256, 1000
PROGRAM = {
    "SIDECAR_UPSTREAMS__PROGRAM__MCP__COMMAND": sys.executable,
    "SIDECAR_UPSTREAMS__PROGRAM__MCP__ARGS": f"[-I, -S, {Path(__file__).with_name('program.py')}]",
    "SIDECAR_UPSTREAMS__PROGRAM__PROBE__ENABLED": "false",
}
ARGUMENTS = {"repo": "acme/site"}
RULES = f"""\
p, nhi:planner, tool:github/get_file, use, -, {LIMIT}, -, allow
p, nhi:planner, tool:github/search_code, use, -, 1000000, -, allow
"""
RULES += "p, nhi:planner, tool:program/*, use, -, -, -, allow\n"
MORE = RULES + "p, nhi:planner, tool:github/delete_repo, use, -, -, -, allow\n"


def settings(store: Valkey, count: int, more: str = "") -> str:
    return (
        f'server: {{listen: "127.0.0.1:0", workers: {count}{more}}}\n'
        f'store: {{url: "{store.url}"}}\nsessions: {{store: redis}}\ntasks: {{store: redis}}\n'
    )


@dataclass
class Workers:
    """A supervisor with its workers, and a client of them."""

    client: Client
    upstream: Upstream
    lost: list[tuple[str, Exception]] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.client.running.folder

    @property
    def supervisor(self) -> int:
        process = self.client.running.process
        assert process is not None
        return process.pid

    def pids(self) -> list[int]:
        return [
            int(pid) for pid in Path(f"/proc/{self.supervisor}/task/{self.supervisor}/children").read_text().split()
        ]

    async def serve(self, count: int = WORKERS) -> None:
        """Wait until all workers serve."""
        async with asyncio.timeout(PATIENCE_S):
            while (await self.status()).get("workers") != {str(number + 1): "ready" for number in range(count)}:
                await asyncio.sleep(0.05)

    async def status(self) -> dict[str, Any]:
        return json.loads((await self.client.running.ask("/status"))[1])

    async def order(self, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, Any]:
        connector = aiohttp.UnixConnector(str(self.folder / "data" / "control.sock"))
        async with (
            aiohttp.ClientSession(connector=connector) as http,
            http.post(f"http://localhost{path}", json=body) as response,
        ):
            return response.status, await response.json()

    async def metric(self, name: str) -> float:
        """The sum of all series of a metric."""
        _, text = await self.client.running.ask("/metrics")
        return sum(float(value) for value in re.findall(rf"^{name}(?:{{[^}}]*}})? ([0-9.e+-]+)$", text, re.MULTILINE))

    async def ask_anew(self, tool: str, count: int = 32) -> Counter[int]:
        """The statuses of calls, each on a connection of its own."""
        found: Counter[int] = Counter()
        for _ in range(count):
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE_S)) as http:
                found[(await Client(self.client.running, http).call(tool, ARGUMENTS))[0]] += 1
        return found

    @asynccontextmanager
    async def under_load(self, callers: int = 24) -> AsyncIterator[Counter[int]]:
        """Calls without a pause while the block runs; their statuses. `lost` has those that were not answered."""
        done, found = asyncio.Event(), Counter[int]()

        async def caller(http: aiohttp.ClientSession) -> None:
            while not done.is_set():
                self.client.asked += 1
                run_id = f"load-{self.client.asked}"
                one = Client(self.client.running, http)
                try:
                    status, _, _ = await one.post(*message(run_id))
                    found[status] += 1
                except aiohttp.ClientError as error:
                    self.lost.append((run_id, error))
                    if isinstance(error, aiohttp.ClientConnectorError):
                        return

        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE_S)) as http:
            tasks = [asyncio.create_task(caller(http)) for _ in range(callers)]
            try:
                await until(lambda: found.total() > 4 * callers)
                yield found
                before = found.total()
                if not self.lost or not isinstance(self.lost[-1][1], aiohttp.ClientConnectorError):
                    await until(lambda: found.total() > before + 4 * callers or all(task.done() for task in tasks))
            finally:
                done.set()
                await asyncio.gather(*tasks)

    def records(self) -> dict[int, list[dict[str, Any]]]:
        """The records of each worker."""
        logs = {int(path.parts[-3]): path for path in self.folder.glob("data/workers/*/audit/audit.jsonl")}
        whole = {worker: path.read_bytes().rpartition(b"\n")[0] for worker, path in logs.items()}
        return {worker: [json.loads(line) for line in raw.splitlines()] for worker, raw in sorted(whole.items())}

    def command(self, *words: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "sidecar", *words], cwd=self.folder, capture_output=True, text=True, timeout=60
        )
        return done.returncode, done.stdout + done.stderr


def message(run_id: str, tool: str = "search_code") -> tuple[Any, dict[str, str]]:
    headers = {"Mcp-Method": "tools/call", "Mcp-Name": tool, "MCP-Protocol-Version": STATELESS, "X-Run-Id": run_id}
    return stateless("tools/call", {"name": tool, "arguments": ARGUMENTS}), headers


@asynccontextmanager
async def serving(
    count: int, more: str = "", rest: str = "", files: dict[str, str] | None = None
) -> AsyncIterator[Workers]:
    upstream = Upstream()
    with running_valkey() as store, patch.dict(os.environ, PROGRAM):
        async with process(upstream, rules=RULES, settings=settings(store, count, more) + rest, files=files) as client:
            workers = Workers(client, upstream)
            await workers.serve(count)
            yield workers


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def workers() -> AsyncIterator[Workers]:
    async with serving(WORKERS) as running:
        yield running


async def test_four_workers_admit_exactly_what_one_limit_says(workers: Workers) -> None:
    attempts, answers = iter(range(LIMIT + 100)), Counter[int]()
    connector = aiohttp.TCPConnector(limit=CALLERS)
    async with aiohttp.ClientSession(connector=connector) as http:
        one = Client(workers.client.running, http)

        async def caller() -> None:
            for _ in attempts:
                answers[(await one.post(*message("exact", "get_file")))[0]] += 1

        await asyncio.gather(*(caller() for _ in range(CALLERS)))
    assert answers == {200: LIMIT, 429: 100}
    assert len(workers.upstream.calls()) == LIMIT
    decided = Counter(
        worker for worker, found in workers.records().items() for one in found if one["event"] == "decision"
    )
    assert decided.total() == LIMIT and len(decided) == WORKERS, decided
    assert await workers.metric("sidecar_requests_total") == LIMIT + 100
    assert await workers.metric("sidecar_request_duration_seconds_count") == LIMIT + 100


async def test_a_reload_and_the_kill_switch_reach_all_before_they_are_answered(workers: Workers) -> None:
    rules = workers.folder / "policies" / "agent_to_tool.csv"
    assert await workers.ask_anew("delete_repo", 4) == {403: 4}
    async with workers.under_load() as answers:
        rules.write_text(MORE)
        status, said = await workers.order("/api/reload")
        assert status == 200, said
        assert await workers.ask_anew("delete_repo") == {200: 32}
    assert set(answers) == {200} and not workers.lost
    rules.write_text(MORE.replace("tool:", "tol:"))
    status, said = await workers.order("/api/reload")
    assert status == 409 and said["faults"]
    rules.write_text(MORE)
    assert (await workers.order("/api/reload"))[0] == 200
    by = [one["control"]["by"] for found in workers.records().values() for one in found if one["event"] == "control"]
    assert {who for who in by if who.startswith("local")} == {f"local:uid={os.getuid()}"}

    assert (await workers.order("/api/principals/nhi:planner/disable", {}))[0] == 200
    assert await workers.ask_anew("search_code") == {403: 32}
    assert (await workers.order("/api/principals/nhi:planner/enable"))[0] == 200
    assert await workers.ask_anew("search_code") == {200: 32}


async def test_the_status_on_one_screen_names_the_workers(workers: Workers) -> None:
    code, text = await asyncio.to_thread(workers.command, "status")
    assert code == 0 and re.search(r"^workers +1 ready, 2 ready, 3 ready, 4 ready; .* worker \d$", text, re.MULTILINE)


async def test_a_login_to_the_console_holds_at_each_worker_and_its_pages_are_of_all() -> None:
    (port,) = free_ports(1)
    credentials = "credentials: [{role: operator, secret_path: op.key}]"
    key, base = "4f1c9f0b7a6d4e52b8c3d1a09e7f6b5c", f"http://127.0.0.1:{port}/console"

    async def anew(verb: str, path: str, **more: Any) -> tuple[int, str, str]:
        """The answer on a connection of its own, which any of the workers may accept; in place of its text, where it
        leads to."""
        headers = {"Accept": "text/html", "Origin": f"http://127.0.0.1:{port}", **more.pop("headers", {})}
        async with (
            aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as http,
            http.request(verb, f"{base}{path}", headers=headers, allow_redirects=False, **more) as response,
        ):
            text = await response.text()
            return response.status, response.headers.get("Location", text), response.headers.get("Set-Cookie", "")

    async with AsyncExitStack() as stack:
        provider = await stack.enter_async_context(openid_provider(secret=""))
        console = "{" + OIDC % (provider.url, "") + "}"
        admin = f'admin: {{listen: "127.0.0.1:{port}", console: {console}, {credentials}}}\n'
        three = await stack.enter_async_context(serving(3, rest=admin, files={"op.key": key}))
        assert await three.ask_anew("search_code", 24) == {200: 24}
        logins = [(await anew("POST", "/login", data={"key": key}))[2].partition(";")[0] for _ in range(6)]
        for cookie in logins:
            pages = [await anew("GET", "/now", headers={"Cookie": cookie}) for _ in range(6)]
            assert {status for status, _, _ in pages} == {200}
            assert {'<dd id="calls">24</dd>' in page for _, page, _ in pages} == {True}
        assert len({cookie.partition("=")[2].partition(".")[0] for cookie in logins}) > 1  # began at several workers
        bearing = {"Authorization": f"Bearer {key}", "Accept": "application/json"}
        for _ in range(4):
            _, page, _ = await anew("GET", "/decisions", headers=bearing)
            shown = json.loads(page)["rows"]
            assert len(shown) == 24 and len({row["worker"] for row in shown}) > 1
            _, page, _ = await anew("GET", "/limits?principal=planner", headers=bearing)
            assert [row["used"] for row in json.loads(page)["rows"]] == [24]
            _, page, _ = await anew("GET", "/tools?name=github", headers=bearing)
            assert [row["calls"] for row in json.loads(page)["rows"]] == [24]
        token = re.search(r'name="csrf" value="([^"]+)"', (await anew("GET", "/now", headers={"Cookie": logins[0]}))[1])
        assert token
        await anew("POST", "/audit/verify", headers={"Cookie": logins[0]}, data={"csrf": token[1]})
        async with asyncio.timeout(PATIENCE_S):
            while (found := json.loads((await anew("GET", "/audit/log", headers=bearing))[1]))["last"] is None:
                await asyncio.sleep(0.05)
        assert found["last"]["holds"] and [one["worker"] for one in found["last"]["logs"]] == [1, 2, 3]
        for cookie in logins:
            token = re.search(
                r'name="csrf" value="([^"]+)"', (await anew("GET", "/now", headers={"Cookie": cookie}))[1]
            )
            assert token
            out = await anew("POST", "/logout", headers={"Cookie": cookie}, data={"csrf": token[1]})
            assert out[0] == 303
            statuses = {(await anew("GET", "/now", headers={"Cookie": cookie}))[0] for _ in range(6)}
            assert statuses == {303}
        events = [one["control"] for found in three.records().values() for one in found if one["event"] == "control"]
        told = Counter(event["what"] for event in events if event["what"].startswith("console"))
        assert told == {"console-login": 6, "console-logout": 6}
        for _ in range(6):  # begun at one worker, and come back to another
            _, address, begun = await anew("GET", "/oidc/login")
            async with aiohttp.ClientSession() as http, http.get(address, allow_redirects=False) as sent:
                back = sent.headers["Location"].removeprefix(base)
            status, _, cookie = await anew("GET", back, headers={"Cookie": begun.partition(";")[0]})
            assert (status, cookie.partition("=")[0]) == (200, f"sidecar-console-{port}")
        assert provider.refused == []


async def test_calls_of_all_workers_are_seen_where_the_log_has_no_file() -> None:
    async def receive(asked: web.Request) -> web.Response:
        await asked.read()
        return web.Response(content_type="application/x-protobuf")

    (port,) = free_ports(1)
    key = "4f1c9f0b7a6d4e52b8c3d1a09e7f6b5c"
    credentials = "credentials: [{role: viewer, secret_path: op.key}]"
    async with listening(receive) as url:
        rest = (
            f'admin: {{listen: "127.0.0.1:{port}", console: {{enabled: true}}, {credentials}}}\n'
            f'audit: {{sink: otlp, otlp: {{url: "{url}/v1/logs"}}}}\n'
        )
        headers = {"Authorization": f"Bearer {key}"}
        async with (
            serving(2, rest=rest, files={"op.key": key}) as two,
            aiohttp.ClientSession(f"http://127.0.0.1:{port}", headers=headers) as http,
            http.get("/console/decisions/live", headers={"Accept": "text/event-stream"}) as stream,
            asyncio.timeout(PATIENCE_S),
        ):
            seen = set[bytes]()
            while len({row.split(b"-")[1] for row in seen}) < 2:
                assert await two.ask_anew("search_code", 4) == {200: 4}
                seen |= set(re.findall(rb'id="(call-[^"]+)"', await stream.content.readany()))


WORK = """\
agents:
  slow: {executable: /bin/sh, args: [-c, "echo begun; exec sleep 60"], max_concurrent_executions: 5}
"""
DEMANDS = """\
#: id=asks approval=role:on-call within=15m
p, nhi:planner, tool:github/delete_repo, use, -, -, -, allow
"""


async def test_runs_and_approvals_are_seen_and_answered_at_whichever_worker() -> None:
    (port,) = free_ports(1)
    key, base = "d0c9b6b8f5e14c0f8f0c3c6e5a7d9b21", f"http://127.0.0.1:{port}"
    person = "credentials: [{role: operator, name: dmitri, secret_path: op.key, principal: user:dmitri}]"
    admin = f'admin: {{listen: "127.0.0.1:{port}", console: {{enabled: true}}, {person}}}\n'
    files = {
        "op.key": key,
        "policies/roles.csv": "g, user:dmitri, role:on-call\n",
        "policies/nhi_to_nhi.csv": "p, nhi:operator, nhi:slow, use, -, -, -, allow\n",
        "policies/agent_to_tool.demands.csv": DEMANDS,
    }
    sent = {"Authorization": f"Bearer {key}", "Accept": "application/json"}

    async def anew(verb: str, path: str, **more: Any) -> Any:
        """What is answered on a connection of its own, which any of the workers may accept."""
        async with aiohttp.ClientSession() as http, http.request(verb, base + path, headers=sent, **more) as response:
            assert response.status < 300, await response.text()
            return await response.json()

    async def becomes(path: str, facts: Callable[[Any], object], expected: object) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while facts(await anew("GET", path)) != expected:
                await asyncio.sleep(0.05)

    async with serving(3, rest=admin + WORK, files=files) as three:
        runs = [(await anew("POST", "/api/agents/slow/runs", json={"prompt": "x"}))["run_id"] for _ in range(4)]
        for _ in range(6):
            await becomes(
                "/console/agents", lambda page: (page["rows"][0]["running"], page["rows"][0]["places"]), (4, 15)
            )
        for run in runs:
            for _ in range(3):
                place = f"/console/agents/runs/{run}"
                await becomes(place, lambda page: (page["run"]["state"], page["output"]), ("running", "begun\n"))
            await anew("POST", f"/api/runs/{run}/cancel", json={})
        runs_page = "/console/agents/runs"
        await becomes(runs_page, lambda page: [one["status"] for one in page["rows"]], ["cancelled"] * 4)

        _, asked = await three.client.call("delete_repo", {"repo": "acme/site"})
        assert asked["result"]["resultType"] == "input_required"
        found = [await anew("GET", "/console/approvals") for _ in range(6)]
        (request_id,) = {one["id"] for page in found for one in page["rows"]}
        await anew("POST", f"/api/approvals/{request_id}/approve", json={})
        shown = [await anew("GET", f"/console/approvals/{request_id}") for _ in range(6)]
        assert {page["one"]["state"] for page in shown} == {"approved"}
        assert {page["questions"][0]["arguments"]["repo"] for page in shown} == {"acme/site"}
        assert [await three.ask_anew("delete_repo", 1)] == [{200: 1}] and len(three.upstream.calls()) == 1
        what = Counter(
            one["control"]["what"] for all_ in three.records().values() for one in all_ if one.get("control")
        )
        assert (what["approval-asked"], what["approval-given"], what["approval-shown"]) == (1, 1, 1)


async def post_anew(
    workers: Workers, path: str, message: Any, session: str = "", *, is_chunked: bool = False
) -> tuple[int, Any, str]:
    """The answer to a message on a connection of its own, and the session's id. What a worker tells another is not
    believed of a caller."""
    lies = {"Sidecar-Peer": "203.0.113.9", "Sidecar-Entrance": "7", "Sidecar-By": "mallory"}
    sent = {"Content-Type": "application/json", "Accept": ACCEPT, **lies, **bearer(KEY)}
    body: Any = json.dumps(message).encode()
    if is_chunked:
        body = pieces_of(body)
    if session:
        sent |= {"Mcp-Session-Id": session, "MCP-Protocol-Version": SESSION}
    url = f"{workers.client.running.url}{path}"
    patience = aiohttp.ClientTimeout(total=PATIENCE_S)
    async with aiohttp.ClientSession(timeout=patience) as http, http.post(url, data=body, headers=sent) as response:
        raw = await response.read()
        return response.status, json.loads(raw) if raw else None, response.headers.get("Mcp-Session-Id", "")


async def test_a_worker_that_does_not_answer_is_a_reason_to_be_degraded(workers: Workers) -> None:
    stopped = workers.pids()[2]
    os.kill(stopped, signal.SIGSTOP)
    try:
        code, said = await workers.client.running.ask("/readyz")
        assert code == 200 and json.loads(said) == {"status": "degraded", "reasons": {"worker-out": 1}}
        assert (await workers.status())["workers"] == {"1": "ready", "2": "ready", "3": "out", "4": "ready"}
        assert await workers.ask_anew("search_code", 8) == {200: 8}
    finally:
        os.kill(stopped, signal.SIGCONT)
    await workers.serve()


async def pieces_of(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), 10):
        yield body[start : start + 10]


HELLO = {"protocolVersion": SESSION, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


async def test_a_session_with_a_program_goes_on_whichever_worker_its_caller_reaches(workers: Workers) -> None:
    """The program counts its calls, and says which process it is."""
    owners = set[str]()
    for _ in range(6):
        status, _, session = await post_anew(workers, "/mcp/program", request("initialize", HELLO))
        assert status == 200
        owners.add(session[0])
        initialized = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        assert (await post_anew(workers, "/mcp/program", initialized, session))[0] == 202
        counts, pids = list[int](), set[str]()
        for number in range(1, 5):
            call = request("tools/call", {"name": "count", "arguments": {}}, id=number)
            status, said, _ = await post_anew(workers, "/mcp/program", call, session, is_chunked=number == 2)
            assert (status, said["id"]) == (200, number), said
            count, pid = said["result"]["content"][0]["text"].split()
            counts.append(int(count))
            pids.add(pid)
        assert counts == list(range(counts[0], counts[0] + 4)) and len(pids) == 1
    assert owners <= set("abcd")
    calls = [one for found in workers.records().values() for one in found if one.get("upstream") == "program"]
    assert calls and {one["peer"] for one in calls} == {"127.0.0.1"}
    assert (await post_anew(workers, "/mcp/program", request("ping"), f"b{'x' * 42}"))[0] == 404


async def data_in(lines: AsyncIterator[bytes]) -> bytes:
    """The data of the next event that has any."""
    async for line in lines:
        if line.startswith(b"data: "):
            return line[6:].strip()
    raise AssertionError("the stream ended")


async def test_a_stream_of_http_and_sse_is_answered_by_the_worker_that_has_it(workers: Workers) -> None:
    url = f"{workers.client.running.url}/mcp/github/sse"
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE_S)) as http,
        http.get(url, headers={"Accept": "text/event-stream", **bearer(KEY)}) as stream,
    ):
        lines = aiter(stream.content)
        endpoint = (await data_in(lines)).decode()
        for number in range(1, 9):
            hello = request("initialize", {**HELLO, "protocolVersion": "2024-11-05"}, id=number)
            assert (await post_anew(workers, endpoint, hello))[0] == 202
            assert json.loads(await data_in(lines))["id"] == number


async def session_of(workers: Workers, path: str, mark: str) -> str:
    """A session that the worker with this mark began."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            status, _, session = await post_anew(workers, path, request("initialize", HELLO))
            assert status == 200
            if session.startswith(mark):
                return session


async def test_a_worker_that_is_killed_under_load_takes_only_its_own_calls_along(workers: Workers) -> None:
    shared, lone = [await session_of(workers, path, "b") for path in ("/mcp/github", "/mcp/program")]
    counted = await workers.metric("sidecar_requests_total")
    async with workers.under_load() as answers:
        victim = workers.pids()[1]
        os.kill(victim, signal.SIGKILL)
        await until(lambda: victim not in workers.pids())
        assert (await post_anew(workers, "/mcp/github", request("ping"), shared))[0] == 200
        assert (await post_anew(workers, "/mcp/program", request("ping"), lone))[0] == 404
        assert await workers.metric("sidecar_requests_total") >= counted
    assert set(answers) == {200}
    assert not [error for _, error in workers.lost if isinstance(error, aiohttp.ClientConnectorError)]
    await workers.serve()
    assert victim not in workers.pids() and len(workers.pids()) == WORKERS
    instances = [{one["instance"] for one in found} for found in workers.records().values()]
    assert sorted(map(len, instances)) == [1] * (WORKERS - 1) + [2]
    (its_own,) = (number for number, found in workers.records().items() if len({one["instance"] for one in found}) == 2)
    of_others = {one["run_id"] for number, found in workers.records().items() if number != its_own for one in found}
    assert not of_others & {run_id for run_id, _ in workers.lost}, "a call of another worker was not answered"
    assert await workers.metric("sidecar_requests_total") >= counted
    assert await workers.metric("sidecar_worker_restarts_total") == 1
    assert await workers.metric("sidecar_workers") == WORKERS
    workers.lost.clear()


async def test_workers_end_with_their_supervisor_and_fewer_can_take_their_place(workers: Workers) -> None:
    pids = workers.pids()
    assert (await workers.order("/api/principals/nhi:stranger/disable", {}))[0] == 200
    await workers.client.running.kill()
    with patch.dict(os.environ, {"SIDECAR_SERVER__WORKERS": "2"}):
        await workers.client.running.start()
    assert not any(Path(f"/proc/{pid}/exe").exists() for pid in pids)
    await workers.serve(2)
    assert await workers.ask_anew("search_code", 4) == {200: 4}
    disabled = json.loads((await workers.client.running.ask("/api/principals"))[1])["disabled"]
    assert [one["principal"] for one in disabled] == ["nhi:stranger"]
    kept = [path.parts[-2] for path in sorted(workers.folder.glob("data/**/disabled.json"))]
    assert kept in (["1"], ["1", "2"]), "those of workers that are no more were taken over"
    lines = [json.loads(line) for line in workers.client.running.log().splitlines()]
    assert {line.get("worker") for line in lines if line["logger"] == "sidecar.serve"} == {"1", "2", "3", "4"}


async def test_a_stop_under_load_loses_no_call_and_all_logs_verify(workers: Workers) -> None:
    async with workers.under_load() as answers:
        os.kill(workers.supervisor, signal.SIGTERM)
        assert await workers.client.running.ended() == 0
    assert set(answers) <= {200, 503}
    decided = {one["run_id"] for found in workers.records().values() for one in found if one["event"] == "decision"}
    assert not decided & {run_id for run_id, _ in workers.lost}, "a call was decided and not answered"
    code, said = workers.command("audit", "verify")
    assert code == 0 and said.count("the evidence holds") == WORKERS, said
    _, shown = workers.command("audit", "show", "--event", "control", "--json")
    stamps = [json.loads(line)["timestamp"] for line in shown.splitlines()]
    assert stamps == sorted(stamps) and len(stamps) >= 2 * WORKERS
    log = workers.folder / "data" / "workers" / "3" / "audit" / "audit.jsonl"
    log.write_bytes(log.read_bytes().replace(b"success", b"succesS", 1))
    code, said = workers.command("audit", "verify", "data")
    assert code == 5 and said.count("the evidence holds") == WORKERS - 1
    assert not [*workers.folder.glob("data/**/*.sock")]

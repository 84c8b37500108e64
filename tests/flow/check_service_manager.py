"""A restart of a unit with sockets loses no connection."""

import asyncio
import re
import signal
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import aiohttp

from tests.flow.test_service_manager import bound, notify_socket, start
from tests.flow.world import PATIENCE_S, RULES, STATELESS, Upstream, listening, stateless, write_folder


async def heard(manager: socket.socket, state: str) -> dict[str, str]:
    """The next message that has this state."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            message = (await asyncio.get_running_loop().sock_recv(manager, 4096)).decode()
            if state in message.split("\n"):
                return dict(line.split("=", 1) for line in message.split("\n"))


async def call(base: str, connector: aiohttp.BaseConnector | None = None) -> aiohttp.ClientResponse:
    message = stateless("tools/call", {"name": "get_file", "arguments": {}}, id=1)
    headers = {
        "Accept": "application/json, text/event-stream",
        "Mcp-Method": "tools/call",
        "Mcp-Name": "get_file",
        "MCP-Protocol-Version": STATELESS,
    }
    async with (
        aiohttp.ClientSession(connector=connector) as http,
        http.post(f"{base}/mcp/github", json=message, headers=headers) as response,
    ):
        await response.read()
        return response


async def test_a_unit_with_sockets_reports_each_state_and_a_restart_loses_no_connection(tmp_path: Path) -> None:
    with ExitStack() as stack:
        manager = stack.enter_context(notify_socket(tmp_path / "notify"))
        data, local = stack.enter_context(bound()), stack.enter_context(bound(tmp_path / "planner.sock"))
        base = f"127.0.0.1:{data.getsockname()[1]}"
        settings = f'server: {{listen: "{base}", drain_delay_s: 30}}\n'
        settings += 'local: [{listen: "unix:planner.sock", principal: "nhi:planner"}]\n'
        under = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "400000"}
        async with listening(Upstream().handle) as upstream:
            write_folder(tmp_path, f"{upstream}/mcp", RULES, settings=settings, principal="")
            process = await start(tmp_path, data, local, **under)
            ready = await heard(manager, "READY=1")
            assert re.fullmatch(rf"serves http://{base}, policy [0-9a-f]+", ready["STATUS"])
            beside = aiohttp.UnixConnector(str(tmp_path / "planner.sock"))
            response = await call("http://localhost", beside)
            assert response.status == 200 and response.headers.get("Connection") != "close"
            await heard(manager, "WATCHDOG=1")

            (tmp_path / "policies" / "agent_to_tool.csv").write_text("p, nothing")
            process.send_signal(signal.SIGHUP)
            since = await heard(manager, "RELOADING=1")
            assert 0 <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000 - int(since["MONOTONIC_USEC"]) < 60e6
            assert (await heard(manager, "READY=1"))["STATUS"].endswith("; the newest files are refused")
            (tmp_path / "policies" / "agent_to_tool.csv").write_text(RULES)
            process.send_signal(signal.SIGHUP)
            await heard(manager, "RELOADING=1")
            assert "refused" not in (await heard(manager, "READY=1"))["STATUS"]

            process.send_signal(signal.SIGTERM)
            stopping = await heard(manager, "STOPPING=1")
            assert int(stopping["EXTEND_TIMEOUT_USEC"]) >= (30 + 30) * 1e6
            control = aiohttp.UnixConnector(str(tmp_path / "data" / "control.sock"))
            async with aiohttp.ClientSession(connector=control) as http, http.get("http://localhost/readyz") as answer:
                assert (answer.status, await answer.json()) == (503, {"status": "draining"})
            response = await call("http://localhost", aiohttp.UnixConnector(str(tmp_path / "planner.sock")))
            assert (response.status, response.headers["Connection"]) == (200, "close"), "served on, on its last answer"
            await heard(manager, "WATCHDOG=1")
            process.kill()
            await process.wait()

            waiting = asyncio.ensure_future(
                call("http://localhost", aiohttp.UnixConnector(str(tmp_path / "planner.sock")))
            )
            process = await start(tmp_path, data, local, **under)
            assert (await waiting).status == 200
            process.kill()
            await process.wait()

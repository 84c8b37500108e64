"""Does a rolling restart of two replicas behind a real nginx lose no call?

The test is what an orchestrator is: it asks a replica to stop, takes it out of the balancer when it is not ready any
more, waits for its end, starts it anew, and puts it back when it is ready.
"""

import asyncio
import os
import signal
from collections import Counter
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import aiohttp
import pytest

from sidecar.cli.free_ports import free_ports
from tests.flow.idp import bearer
from tests.flow.test_kill import KEY, Client, process
from tests.flow.world import ACCEPT, PATIENCE_S, STATELESS, Upstream, stateless, until
from tests.peers.test_nginx import NGINX, nginx
from tests.valkey import Valkey

pytestmark = pytest.mark.skipif(NGINX is None, reason="no nginx")
CALLERS, DRAIN_S = 4, 0.5
BALANCER = """\
worker_processes 1;
pid nginx.pid;
daemon off;
events {{ worker_connections 256; }}
http {{
  access_log off;
  client_body_temp_path tmp; proxy_temp_path tmp; fastcgi_temp_path tmp; uwsgi_temp_path tmp; scgi_temp_path tmp;
  upstream replicas {{ {servers} keepalive 16; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://replicas;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Host $http_host;
      proxy_next_upstream off;
    }}
  }}
}}
"""


def balanced(folder: Path, port: int, replicas: list[int], down: int | None = None) -> None:
    servers = "".join(f"server 127.0.0.1:{one}{' down' if one == down else ''}; " for one in replicas)
    (folder / "nginx.conf").write_text(BALANCER.format(servers=servers, port=port))
    with suppress(FileNotFoundError):
        os.kill(int((folder / "nginx.pid").read_text()), signal.SIGHUP)


async def readiness(replica: Client) -> str:
    with suppress(OSError, aiohttp.ClientError):
        return "ready" if (await replica.running.ask("/readyz"))[0] == 200 else "draining"
    return "gone"


async def test_a_rolling_restart_behind_nginx_loses_no_call(tmp_path: Path, valkey: Valkey) -> None:
    port, *ports = free_ports(3)
    upstream, answers, done = Upstream(), Counter[int](), asyncio.Event()
    message = stateless("tools/call", {"name": "get_file", "arguments": {"path": "a"}})
    headers = {"Mcp-Method": "tools/call", "Mcp-Name": "get_file", "MCP-Protocol-Version": STATELESS, "Accept": ACCEPT}
    url = f"http://127.0.0.1:{port}/mcp/github"

    async def caller(http: aiohttp.ClientSession) -> None:
        while not done.is_set():
            async with http.post(url, json=message, headers={**headers, **bearer(KEY)}) as response:
                await response.read()
                answers[response.status] += 1

    async with AsyncExitStack() as stack:
        replicas = []
        for one in ports:
            settings = (
                f'server: {{listen: "127.0.0.1:{one}", allowed_hosts: ["127.0.0.1:{port}"], '
                f"drain_delay_s: {DRAIN_S}}}\n"
                f'store: {{url: "{valkey.url}"}}\n'
            )
            replicas.append(await stack.enter_async_context(process(upstream, settings=settings)))
        balanced(tmp_path, port, ports)
        stack.enter_context(nginx(tmp_path))
        patience = aiohttp.ClientTimeout(total=PATIENCE_S)
        anew = aiohttp.TCPConnector(force_close=True)  # a reload of nginx closes idle connections
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=anew, timeout=patience))
        load = [asyncio.create_task(caller(http)) for _ in range(CALLERS)]
        try:
            for replica, one in zip(replicas, ports, strict=True):
                before = answers.total()
                await until(lambda before=before: answers.total() > before + 4 * CALLERS)  # type: ignore[misc]
                replica.running.signal(signal.SIGTERM)
                while await readiness(replica) == "ready":
                    await asyncio.sleep(0.02)
                balanced(tmp_path, port, ports, down=one)
                assert await replica.running.ended() == 0
                await replica.running.start()
                balanced(tmp_path, port, ports)
            before = answers.total()
            await until(lambda: answers.total() > before + 4 * CALLERS)
        finally:
            done.set()
            await asyncio.gather(*load)
        assert set(answers) == {200}, answers
        assert all(replica.running.controls().count("start") == 2 for replica in replicas)

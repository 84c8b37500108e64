"""Tries the clients: see the package."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from sidecar import __version__
from sidecar.cli.free_ports import free_ports
from sidecar.settings.shipped_files import shipped
from tests.a2a.agents import agent
from tests.flow.process import Served
from tests.peers.clients.roster import CLIENTS, HERE, HOME, ROOT, STYLES, Entry
from tests.peers.clients.table import RESULTS, block, results as last
from tests.peers.stage import EVERYTHING, running
from tests.valkey import running_valkey

CLIENT_S = 150.0
REPORT_S = 1.0
PARTS = {"auto": "whole", "valkey": "restart"}
TO_TOOL = """\
p, nhi:*, tool:demo/echo, tools/call, -, -, args.text != 'forbidden', allow
p, nhi:*, tool:demo/weather, tools/call, -, 1, -, allow
p, nhi:*, tool:demo/steps, tools/call, -, -, -, allow
p, nhi:*, tool:demo/slow, tools/call, -, -, -, allow
"""
TO_NHI = """\
p, nhi:*, nhi:player, use|card/extended, -, -, -, allow
p, nhi:*, nhi:closed, tasks/get, -, -, -, allow
p, nhi:*, nhi:metered, use, -, 1, -, allow
"""


@dataclass
class Stand:
    """The sidecar of one `deny_style`, with a listener for each client."""

    style: str
    served: Served
    ports: dict[str, int]
    server: str
    player: str
    http: aiohttp.ClientSession

    def url(self, entry: Entry) -> str:
        base = f"http://127.0.0.1:{self.ports[entry.key]}"
        return f"{base}/mcp/demo" if entry.protocol == "MCP" else f"{base}/agents"

    async def restart(self) -> None:
        self.served.signal(signal.SIGTERM)
        await self.served.ended(20)
        await self.served.start()

    async def let_go_on(self, tag: str) -> None:
        """Open the gate that the tool `steps` waits at, after its first report had time to arrive."""
        await asyncio.sleep(REPORT_S)
        async with self.http.post(f"{self.server}/open/{tag}") as response:
            assert response.status == 204

    async def begun(self, entry: Entry, tag: str) -> bool:
        """Whether the call that never ends has reached the server or agent."""
        return await self._seen(entry, '"slow-begun"' if entry.protocol == "MCP" else "SendStreaming", tag, 10)

    async def cancelled(self, entry: Entry, tag: str) -> bool:
        """Whether the server or agent hears that this call is cancelled."""
        return await self._seen(entry, '"slow-cancelled"' if entry.protocol == "MCP" else "CancelTask", tag, 3)

    async def _seen(self, entry: Entry, what: str, tag: str, within_s: float) -> bool:
        where = self.server if entry.protocol == "MCP" else self.player
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while True:
                    async with self.http.get(f"{where}/seen") as response:
                        log = [json.dumps(one) for one in await response.json()]
                    first = next((at for at, one in enumerate(log) if tag in one), len(log))
                    if any(what in one for one in log[first:]):
                        return True
                    await asyncio.sleep(0.05)
        return False

    def versions(self, entry: Entry) -> list[str]:
        """The protocol revisions that the audit has of this client."""
        records = (one for one in self.served.records() if one.get("agent_id") == f"nhi:{entry.key}")
        return sorted({str(one["protocol_version"]) for one in records if one.get("protocol_version")})


def write_folder(folder: Path, settings: str, ports: dict[str, int], server: str, player: str) -> None:
    local = "".join(f'  - {{listen: "127.0.0.1:{port}", principal: "nhi:{key}"}}\n' for key, port in ports.items())
    agents = "".join(f'  {name}: {{a2a: {{url: "{player}/"}}}}\n' for name in ("player", "closed", "metered"))
    (folder / "sidecar.yaml").write_text(
        f'version: 1\nserver: {{listen: "127.0.0.1:0", shutdown_grace_s: 1s}}\nadmin: {{listen: "127.0.0.1:0"}}\n'
        f"{settings}\nlocal:\n{local}"
        f'upstreams:\n  demo: {{mcp: {{url: "{server}/mcp"}}}}\n{agents}'
    )
    shutil.copytree(str(shipped("models")), folder / "models")
    (folder / "policies").mkdir()
    (folder / "policies" / "agent_to_tool.csv").write_text(TO_TOOL)
    (folder / "policies" / "nhi_to_nhi.csv").write_text(TO_NHI)


@asynccontextmanager
async def stands(entries: Sequence[Entry]) -> AsyncIterator[list[Stand]]:
    """One stand for each style, before one server and one agent."""
    async with AsyncExitStack() as stack:
        server = stack.enter_context(running(*EVERYTHING))
        player = stack.enter_context(agent("sdk1", "--compat")).url
        http = await stack.enter_async_context(aiohttp.ClientSession())
        found = []
        store = stack.enter_context(running_valkey()).url
        settings = {style: f"answers: {{deny_style: {style}}}" for style in STYLES}
        for style, setting in {**settings, "valkey": f'store: {{url: "{store}"}}\nsessions: {{store: redis}}'}.items():
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="clients")))
            ports = dict(zip((entry.key for entry in entries), free_ports(len(entries)), strict=True))
            write_folder(folder, setting, ports, server, player)
            served = Served(folder)
            stack.push_async_callback(ended, served)
            await served.start()
            found.append(Stand(style, served, ports, server, player, http))
        yield found


async def ended(served: Served) -> None:
    with suppress(ProcessLookupError, AssertionError):
        await served.kill()


async def played(entry: Entry, on: Stand) -> dict[str, Any]:
    """What one client told of one style, by step."""
    tag = f"{entry.key}-{on.style}"
    process = await asyncio.create_subprocess_exec(
        *entry.command,
        *(on.url(entry), tag, PARTS.get(on.style, "short")),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=1 << 24,
        env={**os.environ, "SIDECAR_PYTHON": sys.executable},
    )
    steps: dict[str, Any] = {}
    complaints = asyncio.create_task(process.stderr.read()) if process.stderr else None
    try:
        async with asyncio.timeout(CLIENT_S):
            await _heard(process, entry, on, steps)
    except TimeoutError:
        steps["broken"] = {"how": "hung", "text": "the script did not end"}
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        await process.wait()
    if complaints is not None and (not steps or "broken" in steps):
        print((await complaints).decode(errors="replace")[-3000:], file=sys.stderr)
    return steps


async def _heard(process: asyncio.subprocess.Process, entry: Entry, on: Stand, steps: dict[str, Any]) -> None:
    assert process.stdout is not None and process.stdin is not None
    async for line in process.stdout:
        if not line.startswith(b"@@"):
            continue
        told = json.loads(line[2:])
        if "step" in told:
            steps[told["step"]] = {"how": told["how"], "text": told["text"].strip()[:2000]}
            continue
        process.stdin.write(f"{await _answered(told['ask'], entry, on, steps)}\n".encode())


async def _answered(what: str, entry: Entry, on: Stand, steps: dict[str, Any]) -> str:
    tag = f"{entry.key}-{on.style}"
    if what == "restart":
        await on.restart()
        return "done"
    if what == "reported":
        await on.let_go_on(tag)
        return "done"
    if what == "begun":
        return str(await on.begun(entry, tag))
    steps["server-cancelled"] = await on.cancelled(entry, tag)
    return str(steps["server-cancelled"])


def chosen(argv: Sequence[str]) -> list[Entry]:
    return [entry for entry in CLIENTS if not argv or entry.key in argv]


def put_scripts_beside_packages() -> None:
    """Node looks for packages beside a script."""
    if (HOME / "npm" / "node_modules").is_dir():
        for path in HERE.glob("*.mjs"):
            shutil.copy(path, HOME / "npm" / path.name)


def _lines(results: dict[str, Any]) -> Iterator[str]:
    """Everything that was heard, a line for each step."""
    for key, found in results["clients"].items():
        yield f"{key} {found['version']} speaks {', '.join(found['speaks'])}"
        for style, steps in found["styles"].items():
            yield from (f"  {style:11} {name:16} {told}" for name, told in steps.items())


async def main(argv: Sequence[str]) -> int:
    entries = chosen(argv)
    results: dict[str, Any] = {"sidecar": __version__, "clients": {}}
    put_scripts_beside_packages()
    async with stands(entries) as all_styles:
        for entry in entries:
            if not all(Path(word).exists() for word in entry.command):
                results["clients"][entry.key] = {"version": entry.version, "missing": "not installed here"}
                continue
            styles = {}
            for on in all_styles:
                styles[on.style] = await played(entry, on)
                print(f"{entry.name}, {on.style}: {len(styles[on.style])} steps", file=sys.stderr, flush=True)
            versions = sorted({version for on in all_styles for version in on.versions(entry)})
            results["clients"][entry.key] = {"version": entry.version, "speaks": versions, "styles": styles}
    if argv:
        print(*_lines(results), sep="\n")
        results["clients"] = {**last()["clients"], **results["clients"]}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    print(block())
    return subprocess.call([sys.executable, "-m", "docs.make"], cwd=ROOT)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))

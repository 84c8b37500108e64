"""`sidecar mcp test`: checks that a server responds and lists its tools, without a running sidecar."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import click

from sidecar.cli.command import NO, check_known, config_and_json, print_json, settings_in
from sidecar.http.client import egress_from
from sidecar.protocols.hidden_characters import shown
from sidecar.settings.sidecar_file import Settings
from sidecar.upstreams.credentials.signed_tokens import signer_from
from sidecar.upstreams.health_report import UNHEALTHY, HealthReport, report_on
from sidecar.upstreams.mcp.assembly import upstream_from
from sidecar.upstreams.mcp.transport import McpTransport
from sidecar.upstreams.processes.launcher import Processes


@click.command()
@click.argument("server")
@config_and_json
def test(server: str, config: Path, as_json: bool) -> None:
    """Connect to SERVER, list its tools, and report. Exits with 1 if it is unhealthy."""
    settings = settings_in(config, check_files=True)
    check_known(server, settings.upstreams, "server", config)
    report = asyncio.run(_report(settings, server))
    if as_json:
        print_json(report.plain())
    else:
        _print(report)
    if report.status == UNHEALTHY:
        raise SystemExit(NO)


async def _report(settings: Settings, server: str) -> HealthReport:
    async with reached(settings, server) as upstream:
        return await report_on(upstream, now_s=time.time())


@asynccontextmanager
async def reached(settings: Settings, server: str) -> AsyncIterator[McpTransport]:
    """Connects to the MCP server of that name; connections and processes end with the block."""
    processes = Processes(os.environ)
    try:
        upstream = upstream_from(
            server,
            settings.upstreams[server],
            max_response_bytes=settings.server.max_response_bytes,
            processes=processes,
            signer=signer_from(settings, settings.base_url, make=False),
            egress=egress_from(settings.egress, os.environ),
        )
        try:
            yield upstream
        finally:
            await upstream.close()
    finally:
        await processes.close()


def _print(report: HealthReport) -> None:
    click.echo(f"{report.tool_name}  {report.status}")
    for name, value in report.plain().items():
        if name in ("tool_name", "status") or value in (None, (), []):
            continue
        if name in ("stderr", "left_out"):
            lines = value if name == "stderr" else [f"{one.kind} {one.name!r}: {one.reason}" for one in report.left_out]
            click.echo("\n".join([f"  {name.replace('_', ' ')}", *(f"    {shown(line)}" for line in lines)]))
            continue
        told = ", ".join(value) if isinstance(value, tuple) else value
        click.echo(f"  {name.replace('_', ' '):<22}{told}")

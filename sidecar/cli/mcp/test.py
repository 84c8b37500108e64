"""`sidecar mcp test`: checks that a server responds and lists its tools, without a running sidecar."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import click
import orjson

from sidecar.cli.mcp.upstream_connection import reached
from sidecar.errors import ConfigError
from sidecar.protocols.hidden_characters import shown
from sidecar.settings import Settings, load_settings
from sidecar.upstreams.health_report import UNHEALTHY, HealthReport, report_on

NO, USAGE, INVALID = 1, 2, 3


@click.command()
@click.argument("server")
@click.option(
    "-c", "--config", "path", type=click.Path(dir_okay=False, path_type=Path), default="sidecar.yaml", show_default=True
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def test(server: str, path: Path, as_json: bool) -> None:
    """Begin a conversation with SERVER, list its tools, and report. Exit 1 when it is unhealthy."""
    try:
        settings = load_settings(path, os.environ)
        if server not in settings.upstreams:
            known = ", ".join(settings.upstreams) or "none at all"
            click.echo(f"{path} names no server {server!r}: there is {known}", err=True)
            raise SystemExit(USAGE)
        report = asyncio.run(_report(settings, server))
    except ConfigError as error:
        click.echo("\n".join(str(fault) for fault in error.faults), err=True)
        raise SystemExit(INVALID) from None
    if as_json:
        click.echo(orjson.dumps(report.plain(), option=orjson.OPT_INDENT_2))
    else:
        _print(report)
    if report.status == UNHEALTHY:
        raise SystemExit(NO)


async def _report(settings: Settings, server: str) -> HealthReport:
    async with reached(settings, server) as upstream:
        return await report_on(upstream, now_s=time.time())


def _print(report: HealthReport) -> None:
    click.echo(f"{report.tool_name}  {report.status}")
    for name, value in report.plain().items():
        if name in ("tool_name", "status") or value in (None, []):
            continue
        if name in ("stderr", "left_out"):
            lines = value if name == "stderr" else [f"{one.kind} {one.name!r}: {one.reason}" for one in report.left_out]
            click.echo("\n".join([f"  {name.replace('_', ' ')}", *(f"    {shown(line)}" for line in lines)]))
            continue
        told = ", ".join(value) if isinstance(value, list) else value
        click.echo(f"  {name.replace('_', ' '):<22}{told}")

"""`sidecar client-config`: prints what an MCP client writes to reach the upstreams of a sidecar."""

from __future__ import annotations

from pathlib import Path

import click

from sidecar.cli.client_files.formats import (
    CLIENTS,
    KEY_FILE,
    KEY_VARIABLE,
    NO_ADDRESS,
    entrance_of,
    snippet,
    written,
)
from sidecar.cli.command import CommandFailed, config_and_json, print_json, settings_in


@click.command("client-config")
@click.option("--for", "client", type=click.Choice(sorted(CLIENTS)), required=True, help="The client.")
@click.option("--server", metavar="NAME", help="Only this upstream.")
@config_and_json
def client_config(client: str, server: str | None, config: Path, as_json: bool) -> None:
    """Print what an MCP client writes in its configuration to reach the upstreams of a sidecar."""
    settings, kind = settings_in(config), CLIENTS[client]
    if server is not None and server not in settings.upstreams:
        there = ", ".join(settings.upstreams) or "none"
        raise CommandFailed(f"{config} has no upstream {server}: it has {there}")
    entrance = entrance_of(settings)
    if entrance is None:
        raise CommandFailed(f"{config} {NO_ADDRESS}")
    said = snippet(kind, entrance, [server] if server else settings.upstreams)
    if as_json:
        print_json(said)
        return
    click.echo(f"# {kind.file}", err=True)
    if entrance.needs_key:
        where = f"in {KEY_FILE}" if kind.programs_only else f"as {KEY_VARIABLE} in its environment"
        click.echo(f"# with an API key (sidecar token api-key) {where}", err=True)
    click.echo(written(kind, said))

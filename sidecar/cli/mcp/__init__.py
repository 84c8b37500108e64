"""`sidecar mcp`: inspects and switches MCP servers. One file per command."""

from __future__ import annotations

from collections.abc import Mapping

import click

from sidecar.cli.lazy_group import Group

COMMANDS: Mapping[str, tuple[str, str]] = {
    "list": ("sidecar.cli.mcp.switch", "The state of each server, and what is switched off."),
    "test": ("sidecar.cli.mcp.test", "Connect to a server and report on it; needs no running sidecar."),
    "tools": ("sidecar.cli.mcp.tools", "A server's tools, how they differ from their pins, and pinning them."),
    "disable": ("sidecar.cli.mcp.switch", "Switch off a server, or one tool of it, at once and everywhere."),
    "enable": ("sidecar.cli.mcp.switch", "Switch it on again."),
}


@click.group(cls=Group, commands_in=COMMANDS)
def mcp() -> None:
    """The MCP servers behind the sidecar."""

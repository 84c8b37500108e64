"""`sidecar mcp`: inspects and switches MCP servers. One file per command."""

from __future__ import annotations

from collections.abc import Mapping

import click

from sidecar.cli.lazy_group import LazyGroup

COMMANDS: Mapping[str, tuple[str, str]] = {
    "list": ("sidecar.cli.mcp.switch", "How each server stands, and what is switched off."),
    "test": ("sidecar.cli.mcp.test", "Connect to a server and say how it is; needs no running sidecar."),
    "tools": ("sidecar.cli.mcp.tools", "A server's tools, what differs from what was approved, and approving them."),
    "disable": ("sidecar.cli.mcp.switch", "Switch off a server, or one tool of it, at once and everywhere."),
    "enable": ("sidecar.cli.mcp.switch", "Switch it on again."),
}


@click.group(cls=LazyGroup, commands_in=COMMANDS)
def mcp() -> None:
    """The MCP servers behind us."""

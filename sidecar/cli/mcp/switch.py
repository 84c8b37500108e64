"""`sidecar mcp list`, `disable` and `enable`: lists MCP servers, and switches servers or tools off and on."""

from pathlib import Path

import click

from sidecar.cli.command import config_and_json
from sidecar.cli.operator_socket import ask, path_of


@click.command()
@click.argument("server")
@click.argument("tool", default="")
@click.option("--reason", default="", help="Reason, for the audit log.")
@click.option("--until", default=None, help="Time at which it ends automatically, such as 2027-03-31T00:00:00Z.")
@config_and_json
def disable(server: str, tool: str, reason: str, until: str | None, config: Path, as_json: bool) -> None:
    """Stop listing and calling TOOL of SERVER; without TOOL, all of SERVER."""
    order = {"tool": tool, "reason": reason, "until": until}
    answer = ask(config, path_of("upstreams", server, "disable"), as_json, order)
    if as_json:
        return
    ends = answer["entry"]["until"]
    click.echo(f"{_named(server, tool)} is disabled" + (f" until {ends}" if ends else ""))
    if not answer["known"]:
        click.echo(f"   note: {server} lists no tool of this name now", err=True)


@click.command()
@click.argument("server")
@click.argument("tool", default="")
@config_and_json
def enable(server: str, tool: str, config: Path, as_json: bool) -> None:
    """Undo `disable`, with the same arguments."""
    answer = ask(config, path_of("upstreams", server, "enable"), as_json, {"tool": tool})
    if not as_json:
        name = _named(server, tool)
        click.echo(f"{name} is enabled" if answer["changed"] else f"{name} was not disabled")


@click.command(name="list")
@config_and_json
def list_(config: Path, as_json: bool) -> None:
    """List the MCP servers with their state, and what is switched off."""
    answer = ask(config, path_of("upstreams"), as_json)
    if as_json:
        return
    servers = {name: one for name, one in answer["upstreams"].items() if one.get("protocol") != "a2a"}
    for name, one in servers.items():
        words = [name, one["status"] if one["enabled"] else "disabled", f"{one['tools']} tools"]
        words += [f"breaker {one['breaker']['state']}"] if one["breaker"]["state"] != "closed" else []
        words += [f"without {', '.join(one['disabled_tools'])}"] if one["disabled_tools"] else []
        words += [f"last error: {one['last_error']}"] if one["last_error"] and one["status"] != "ready" else []
        click.echo("  ".join(words))
    if not servers:
        click.echo("there is no server")


def _named(server: str, tool: str) -> str:
    return f"{server}/{tool}" if tool else server

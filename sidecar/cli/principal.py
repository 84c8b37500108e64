"""How does an operator stop an agent, now and everywhere, whatever policy says?

sidecar principal disable nhi:planner --reason "Incident 12" --until 2027-03-31T00:00:00Z
sidecar principal list
sidecar principal enable nhi:planner
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import click
import orjson

from sidecar.cli.control import ask_control, control_socket
from sidecar.errors import ConfigError

NO, USAGE, INVALID = 1, 2, 3

_config = click.option(
    "-c", "--config", "path", type=click.Path(dir_okay=False, path_type=Path), default="sidecar.yaml", show_default=True
)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def principal() -> None:
    """The kill switch: disable a user, an agent or an MCP server (nhi:<server>) at every replica."""


@principal.command()
@click.argument("name")
@click.option("--reason", default="", help="Why, for whoever reads the list and the evidence.")
@click.option("--until", default=None, help="When it ends by itself, such as 2027-03-31T00:00:00Z.")
@_config
@_json
def disable(name: str, reason: str, until: str | None, path: Path, as_json: bool) -> None:
    """Refuse everything that NAME (user:<id> or nhi:<id>) calls, takes part in or is the target of."""
    order = {"reason": reason, "until": until}
    answer = _told(path, f"/api/principals/{quote(name, safe='')}/disable", as_json, order)
    if not as_json:
        ends = answer["entry"]["until"]
        click.echo(f"{name} is disabled" + (f" until {ends}" if ends else ""))


@principal.command()
@click.argument("name")
@_config
@_json
def enable(name: str, path: Path, as_json: bool) -> None:
    """Take back what was disabled by hand. What policies/disabled.yaml disables is enabled there."""
    answer = _told(path, f"/api/principals/{quote(name, safe='')}/enable", as_json, {})
    if not as_json:
        click.echo(f"{name} is enabled" if answer["changed"] else f"{name} was not disabled")


@principal.command(name="list")
@_config
@_json
def list_(path: Path, as_json: bool) -> None:
    """Everybody who is disabled, by hand and by policies/disabled.yaml."""
    answer = _told(path, "/api/principals", as_json)
    if as_json:
        return
    for entry in answer["disabled"]:
        told = [entry["principal"], entry["source"]]
        told += [f"until {entry['until']}"] if entry["until"] else []
        told += [f"by {entry['by']}"] if entry["by"] else []
        told += [entry["reason"]] if entry["reason"] else []
        click.echo("  ".join(told))
    if not answer["disabled"]:
        click.echo("nobody is disabled")


def _told(path: Path, target: str, as_json: bool, order: object = None) -> Any:
    """The running sidecar's answer, printed if it is wanted as JSON. Ends the command if the answer is no."""
    try:
        status, body = ask_control(control_socket(path), target, verb="GET" if order is None else "POST", order=order)
    except ConfigError as error:
        click.echo("\n".join(str(fault) for fault in error.faults), err=True)
        raise SystemExit(INVALID) from None
    except OSError as error:
        click.echo(f"no sidecar answers here: {error.strerror or error}", err=True)
        click.echo("   hint: is it running? policies/disabled.yaml disables from the next start on", err=True)
        raise SystemExit(NO) from None
    answer = orjson.loads(body)
    if as_json:
        click.echo(body, nl=False)
    elif status != 200:
        click.echo(answer["error"], err=True)
    if status != 200:
        raise SystemExit(USAGE if status == 400 else NO)
    return answer

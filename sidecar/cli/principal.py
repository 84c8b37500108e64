"""`sidecar principal`: disables, enables and lists principals.

sidecar principal disable nhi:planner --reason "Incident 12" --until 2027-03-31T00:00:00Z
sidecar principal list
sidecar principal enable nhi:planner
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import click

from sidecar.cli.lazy_group import Group
from sidecar.cli.operator_socket import told

HINT = "is it running? policies/disabled.yaml disables from the next start on"
HINTS = {"principal-unknown": "an issuer may name anybody: --force disables the name as it stands"}
DEADLINE_S = 10.0  # it is written to disk, to the audit log and to a store that may be down

_config = click.option(
    "-c", "--config", "path", type=click.Path(dir_okay=False, path_type=Path), default="sidecar.yaml", show_default=True
)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group(cls=Group)
def principal() -> None:
    """The kill switch: disable a user, an agent or an MCP server (nhi:<server>) at every replica."""


@principal.command()
@click.argument("name")
@click.option("--reason", default="", help="Why, for whoever reads the list and the evidence.")
@click.option("--until", default=None, help="When it ends by itself, such as 2027-03-31T00:00:00Z.")
@click.option("--force", is_flag=True, help="Also a name that nothing here knows.")
@_config
@_json
def disable(name: str, reason: str, until: str | None, force: bool, path: Path, as_json: bool) -> None:
    """Refuse everything that NAME (user:<id> or nhi:<id>) calls, takes part in or is the target of."""
    order = {"reason": reason, "until": until, "if_known": not force}
    where = f"/api/principals/{quote(name, safe='')}/disable"
    answer = told(path, where, as_json, order, hint=HINT, hints=HINTS, deadline_s=DEADLINE_S)
    if not as_json:
        ends = answer["entry"]["until"]
        click.echo(f"{name} is disabled" + (f" until {ends}" if ends else ""))


@principal.command()
@click.argument("name")
@_config
@_json
def enable(name: str, path: Path, as_json: bool) -> None:
    """Take back what was disabled by hand. What policies/disabled.yaml disables is enabled there."""
    answer = told(path, f"/api/principals/{quote(name, safe='')}/enable", as_json, {}, hint=HINT)
    if not as_json:
        click.echo(f"{name} is enabled" if answer["changed"] else f"{name} was not disabled")


@principal.command(name="list")
@_config
@_json
def list_(path: Path, as_json: bool) -> None:
    """Everybody who is disabled, by hand and by policies/disabled.yaml."""
    answer = told(path, "/api/principals", as_json, hint=HINT)
    if as_json:
        return
    for entry in answer["disabled"]:
        words = [entry["principal"], entry["source"]]
        words += [f"until {entry['until']}"] if entry["until"] else []
        words += [f"by {entry['by']}"] if entry["by"] else []
        words += [entry["reason"]] if entry["reason"] else []
        click.echo("  ".join(words))
    if not answer["disabled"]:
        click.echo("nobody is disabled")

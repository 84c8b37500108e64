"""`sidecar principal`: disables, enables and lists principals."""

from pathlib import Path

import click

from sidecar.cli.command import config_and_json
from sidecar.cli.lazy_group import Group
from sidecar.cli.operator_socket import ask, path_of

HINT = "is it running? policies/disabled.yaml disables from the next start on"
HINTS = {"principal-unknown": "tokens can name any principal: use --force to disable this name"}


@click.group(cls=Group)
def principal() -> None:
    """The kill switch: disable a user, an agent or an MCP server (nhi:<server>) at every replica."""


@principal.command()
@click.argument("name")
@click.option("--reason", default="", help="Reason, for the list and the audit log.")
@click.option("--until", default=None, help="Time at which it ends automatically, such as 2027-03-31T00:00:00Z.")
@click.option("--force", is_flag=True, help="Also accept an unknown name.")
@config_and_json
def disable(name: str, reason: str, until: str | None, force: bool, config: Path, as_json: bool) -> None:
    """Refuse all calls in which NAME (user:<id> or nhi:<id>) is a caller, a link of the chain, or the target."""
    order = {"reason": reason, "until": until, "if_known": not force}
    answer = ask(config, path_of("principals", name, "disable"), as_json, order, hint=HINT, hints=HINTS)
    if not as_json:
        ends = answer["entry"]["until"]
        click.echo(f"{name} is disabled" + (f" until {ends}" if ends else ""))


@principal.command()
@click.argument("name")
@config_and_json
def enable(name: str, config: Path, as_json: bool) -> None:
    """Undo `disable`. To enable a principal that policies/disabled.yaml disables, edit that file."""
    answer = ask(config, path_of("principals", name, "enable"), as_json, {}, hint=HINT)
    if not as_json:
        click.echo(f"{name} is enabled" if answer["changed"] else f"{name} was not disabled")


@principal.command(name="list")
@config_and_json
def list_(config: Path, as_json: bool) -> None:
    """List the principals that `disable` and policies/disabled.yaml disable."""
    answer = ask(config, path_of("principals"), as_json, hint=HINT)
    if as_json:
        return
    for entry in answer["disabled"]:
        words = [entry["principal"], entry["source"]]
        words += [f"until {entry['until']}"] if entry["until"] else []
        words += [f"by {entry['by']}"] if entry["by"] else []
        words += [entry["reason"]] if entry["reason"] else []
        click.echo("  ".join(words))
    if not answer["disabled"]:
        click.echo("no principal is disabled")

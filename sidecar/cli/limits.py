"""`sidecar limits`: shows used and remaining limits, and resets them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import click

from sidecar.cli.command import config_and_json
from sidecar.cli.lazy_group import Group
from sidecar.cli.operator_socket import ask
from sidecar.cli.terminal import print_table

HINTS = {"principal-unknown": "tokens can name any principal: use --force to reset the limits of this name"}
_KINDS = ("tool:", "prompt:", "resource:", "nhi:")


@click.group(cls=Group)
def limits() -> None:
    """Limits and budgets of a running sidecar."""


@limits.command()
@click.option("--principal", default="", help="All limits of this principal (user:<id> or nhi:<id>), used or not.")
@click.option(
    "--tool", default="", help="Limits that a call of it may charge: <server>/<tool>, nhi:<agent>, resource:…"
)
@click.option("--limit", default="", help="Limits of this name; * matches any run of characters.")
@config_and_json
def show(principal: str, tool: str, limit: str, config: Path, as_json: bool) -> None:
    """Show the usage of each limit, highest first. This charges nothing.

    Without --principal: shared limits, and the limits of principals that this sidecar has charged since it started."""
    named = tool if not tool or tool.startswith(_KINDS) else f"tool:{tool}"
    asked = {"principal": principal, "object": named, "limit": limit}
    query = urlencode({word: value for word, value in asked.items() if value})
    answer = ask(config, f"/api/limits?{query}", as_json)
    if as_json:
        return
    if not answer["limits"]:
        of_that_name = f" of the name {limit}" if limit else ""
        unlisted = "is used: only principals are known that this sidecar charged since it started"
        click.echo(f"no limit{of_that_name} {f'counts {principal}' if principal else unlisted}")
        return
    print_table(("limit", "for", "used", "left", "resets at"), [*map(_row, answer["limits"])])
    if answer["more"]:
        click.echo("and more: narrow them by --principal, --tool or --limit")


@limits.command()
@click.option("--principal", required=True, help="Whose limits (user:<id> or nhi:<id>).")
@click.option("--limit", default="", help="Only limits of this name; * matches any run of characters. Default: all.")
@click.option("--force", is_flag=True, help="Also accept an unknown name.")
@config_and_json
def reset(principal: str, limit: str, force: bool, config: Path, as_json: bool) -> None:
    """Reset the limits of --principal at every replica that shares the store. The audit log records it.

    Limits shared with other principals, and slots of calls in progress, are not reset."""
    order = {"principal": principal, "if_known": not force} | ({"limit": limit} if limit else {})
    answer = ask(config, "/api/limits/reset", as_json, order, hints=HINTS)
    if not as_json:
        click.echo("\n".join(f"{name} is unused" for name in answer["reset"]) or f"no limit counts {principal} alone")


def _row(one: Mapping[str, Any]) -> tuple[str, ...]:
    unit = f" {one['unit']}" if one["unit"] else ""
    used = f"{_number(one['used'])} of {_number(one['most'])}{unit}"
    return one["limit"], one["counted_for"] or "all", used, _number(one["remaining"]), one["reset_at"] or "-"


def _number(value: float) -> str:
    """Formats a number without scientific notation such as 1e-06."""
    return f"{value:.6f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)

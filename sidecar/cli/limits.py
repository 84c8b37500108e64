"""`sidecar limits`: shows used and remaining limits.

sidecar limits show
sidecar limits show --principal nhi:researcher
sidecar limits show --tool llm/complete
sidecar limits show --limit 'budgets:*' --json
sidecar limits reset --principal nhi:researcher
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import click

from sidecar.cli.lazy_group import Group
from sidecar.cli.operator_socket import told
from sidecar.cli.text_tables import aligned

HINTS = {"principal-unknown": "an issuer may name anybody: --force resets the limits of the name as it stands"}
DEADLINE_S = 10.0  # a reset is written to the audit log and to a store that may be slow
_KINDS = ("tool:", "prompt:", "resource:", "nhi:")
_HEAD = ("limit", "for", "used", "left", "begins anew")


@click.group(cls=Group)
def limits() -> None:
    """Limits and budgets of a running sidecar."""


@limits.command()
@click.option("--principal", default="", help="All limits of this one (user:<id> or nhi:<id>), used or not.")
@click.option("--tool", default="", help="What a call of it may move: <server>/<tool>, nhi:<agent>, resource:…")
@click.option("--limit", default="", help="Limits of this name; * matches any run.")
@click.option(
    "-c", "--config", "path", type=click.Path(dir_okay=False, path_type=Path), default="sidecar.yaml", show_default=True
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(principal: str, tool: str, limit: str, path: Path, as_json: bool) -> None:
    """How much of each limit is used, the fullest first. Looking charges nothing.

    Without --principal: limits that many share, and of the others what those have used whom this sidecar has charged
    since it started.
    """
    named = tool if not tool or tool.startswith(_KINDS) else f"tool:{tool}"
    asked = {"principal": principal, "object": named, "limit": limit}
    query = urlencode({word: value for word, value in asked.items() if value})
    answer = told(path, f"/api/limits?{query}" if query else "/api/limits", as_json)
    if as_json:
        return
    rows = [_HEAD, *map(_row, answer["limits"])]
    if len(rows) == 1:
        click.echo(_nothing(principal, limit))
        return
    for line in aligned(rows):
        click.echo(line)
    if answer["more"]:
        click.echo("and more: ask for a principal, a tool or a limit")


@limits.command()
@click.option("--principal", required=True, help="Whose limits (user:<id> or nhi:<id>).")
@click.option("--limit", default="", help="Only limits of this name; * matches any run. By default all of them.")
@click.option("--force", is_flag=True, help="Also for a name that nothing here knows.")
@click.option(
    "-c", "--config", "path", type=click.Path(dir_okay=False, path_type=Path), default="sidecar.yaml", show_default=True
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def reset(principal: str, limit: str, force: bool, path: Path, as_json: bool) -> None:
    """Set what counts --principal alone back to unused, at every replica that shares the store. It is on record.

    Counters that others share with it stay, and so do slots of calls that go on.
    """
    order = {"principal": principal, "if_known": not force} | ({"limit": limit} if limit else {})
    answer = told(path, "/api/limits/reset", as_json, order, hints=HINTS, deadline_s=DEADLINE_S)
    if not as_json:
        click.echo("\n".join(f"{name} is unused" for name in answer["reset"]) or f"no limit counts {principal} alone")


def _nothing(principal: str, limit: str) -> str:
    of_that_name = f" of the name {limit}" if limit else ""
    if principal:  # listed even if unused
        return f"no limit{of_that_name} counts {principal}"
    return f"no limit{of_that_name} is used: of principals, this sidecar knows whom it charged since it started"


def _row(one: Mapping[str, Any]) -> tuple[str, ...]:
    unit = f" {one['unit']}" if one["unit"] else ""
    used = f"{_number(one['used'])} of {_number(one['most'])}{unit}"
    return one["limit"], one["counted_for"] or "all", used, _number(one["remaining"]), one["reset_at"] or "-"


def _number(value: float) -> str:
    """Format a number without scientific notation such as 1e-06."""
    return f"{value:.6f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)

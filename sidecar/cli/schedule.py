"""`sidecar schedule`: lists, runs, pauses and resumes schedules.

sidecar schedule list
sidecar schedule next nightly --count 10
sidecar schedule add hourly --agent researcher --cron '@hourly' --prompt 'what is new?'
sidecar schedule remove hourly
sidecar schedule run nightly
sidecar schedule pause nightly
sidecar schedule resume nightly
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote
from zoneinfo import ZoneInfo

import click
import orjson

from sidecar.cli.agent.formatting import row_for
from sidecar.cli.agent.options import DEADLINE_S, as_json, config
from sidecar.cli.lazy_group import Group
from sidecar.cli.operator_socket import NO_HINTS, USAGE, ended_well, told
from sidecar.cli.text_tables import aligned
from sidecar.protocols.hidden_characters import shown
from sidecar.settings import load_settings
from sidecar.settings.schedules import ScheduleSettings, acts_as
from sidecar.settings.timestamps import rfc3339


@click.group(cls=Group)
def schedule() -> None:
    """Agents that run by the clock."""


@schedule.command(name="list")
@config
@as_json
def list_(path: Path, as_json: bool) -> None:
    """Every schedule: when it is due next, when it was due last, and whether it is paused."""
    answer = told(path, "/api/schedules", as_json)
    if as_json:
        return
    rows = [("schedule", "source", "agent", "as", "when", "next", "last"), *map(_row, answer["schedules"])]
    click.echo("\n".join(aligned(rows)) if len(rows) > 1 else "there is no schedule")


@schedule.command(name="next")
@click.argument("name", default="")
@click.option("--count", type=click.IntRange(1, 1_000), default=5, show_default=True, help="How many times.")
@config
@as_json
def next_(name: str, count: int, path: Path, as_json: bool) -> None:
    """When the schedule NAME of sidecar.yaml, or each of them, is due next; needs no running sidecar, and asks none
    whether it is paused. `sidecar schedule list` has those that were added."""
    with ended_well():
        schedules = load_settings(path, os.environ, check_files=False).schedules
    if name and name not in schedules:
        click.echo(f"{path} names no schedule {name!r}: there is {', '.join(schedules) or 'none at all'}", err=True)
        click.echo("   hint: one that was added is in sidecar schedule list", err=True)
        raise SystemExit(USAGE)
    chosen = {name: schedules[name]} if name else schedules
    due = {each: list(_due(one, count, time.time())) for each, one in chosen.items()}
    if as_json:
        plain = {each: [rfc3339(moment) for moment in moments] for each, moments in due.items()}
        click.echo(orjson.dumps({"schedules": plain}, option=orjson.OPT_INDENT_2))
        return
    for each, moments in due.items():
        click.echo(f"{each}  {chosen[each].cron}  {chosen[each].timezone}{'' if moments else '  disabled'}")
        for moment in moments:
            click.echo(f"  {_local(moment, chosen[each])}  {rfc3339(moment)}")
    if not due:
        click.echo("there is no schedule")


@schedule.command()
@click.argument("name")
@click.option("--agent", required=True, help="Whom it calls.")
@click.option("--cron", required=True, help='When, such as "30 2 * * *" or @daily.')
@click.option("--timezone", help="The time zone of --cron; UTC by default.")
@click.option("--title", help="Its name for people.")
@click.option("--principal", help="Who it acts as; nhi:NAME by default.")
@click.option("--prompt", help="What the agent is told.")
@click.option("--input", "parameters", help="What the agent is told, as a JSON object: input_parameters.")
@click.option("--task-type", help="What its task is called; rules read it as call.tool.")
@click.option("--missed", type=click.Choice(["once", "skip"]), help="What becomes of runs that were missed.")
@click.option("--missed-within", type=float, metavar="SECONDS", help="How late a run may begin.")
@click.option("--overlap", type=click.Choice(["skip", "allow"]), help="Whether a run may begin beside the one before.")
@click.option("--disabled", is_flag=True, help="Keep it, and do not run it.")
@config
@as_json
def add(
    name: str,
    path: Path,
    as_json: bool,
    prompt: str | None,
    parameters: str | None,
    disabled: bool,
    **given: str | float | None,
) -> None:
    """Add the schedule NAME to those of sidecar.yaml. It is kept in the store, for all replicas, and survives a restart
    unless tasks.store is memory."""
    order: dict[str, Any] = {"name": name, **{key: value for key, value in given.items() if value is not None}}
    if said := _said(prompt, parameters):
        order["input_parameters"] = said
    if disabled:
        order["enabled"] = False
    answer = told(path, "/api/schedules", as_json, order, deadline_s=DEADLINE_S)
    if not as_json:
        click.echo(f"{answer['name']} is added, and due next at {answer['next_due'] or 'no time'}")


@schedule.command()
@click.argument("name")
@config
@as_json
def remove(name: str, path: Path, as_json: bool) -> None:
    """Take away the schedule NAME that was added. What it ordered and goes on ends."""
    target = f"/api/schedules/{quote(name, safe='')}"
    answer = told(path, target, as_json, deadline_s=DEADLINE_S, verb="DELETE")
    if not as_json:
        click.echo(f"{answer['name']} is removed")


@schedule.command()
@click.argument("name")
@config
@as_json
def run(name: str, path: Path, as_json: bool) -> None:
    """Run the schedule NAME now, as it would run when it is due; its next time stays as it is."""
    with ended_well():
        one = load_settings(path, os.environ, check_files=False).schedules.get(name)
    hints = NO_HINTS if one is None else row_for(acts_as(name, one), one.agent)
    answer = _done(path, name, "run", as_json, hints)
    if not as_json:
        click.echo(
            answer["run_id"] or f"task {answer['task_id']}" + (f": {answer['error']}" if answer["error"] else "")
        )


@schedule.command()
@click.argument("name")
@config
@as_json
def pause(name: str, path: Path, as_json: bool) -> None:
    """Let the schedule NAME order nothing more, at every replica, until it is resumed. What runs goes on."""
    answer = _done(path, name, "pause", as_json)
    if not as_json:
        click.echo(f"{answer['name']} is paused")


@schedule.command()
@click.argument("name")
@config
@as_json
def resume(name: str, path: Path, as_json: bool) -> None:
    """Take that back. What was due meanwhile is not made up for."""
    answer = _done(path, name, "resume", as_json)
    if not as_json:
        click.echo(f"{answer['name']} is due next at {answer['next_due'] or 'no time'}")


def _done(path: Path, name: str, verb: str, as_json: bool, hints: Mapping[str, str] = NO_HINTS) -> Any:
    target = f"/api/schedules/{quote(name, safe='')}/{verb}"
    return told(path, target, as_json, {}, hints=hints, deadline_s=DEADLINE_S)


def _said(prompt: str | None, parameters: str | None) -> dict[str, Any]:
    try:
        said = orjson.loads(parameters) if parameters is not None else {}
    except orjson.JSONDecodeError as error:
        raise click.BadParameter(f"this is not JSON: {error}", param_hint="--input") from None
    if not isinstance(said, dict):
        raise click.BadParameter("write a JSON object", param_hint="--input")
    return {**said, "prompt": prompt} if prompt is not None else said


def _due(schedule: ScheduleSettings, count: int, now_s: float) -> Iterator[float]:
    return islice(schedule.calendar.after(now_s), count) if schedule.enabled else iter(())


def _local(moment_s: float, schedule: ScheduleSettings) -> str:
    """Format a time in the schedule's time zone with its UTC offset, which changes with daylight saving."""
    moment = datetime.fromtimestamp(moment_s, UTC).astimezone(ZoneInfo(schedule.timezone))
    return moment.strftime("%a %Y-%m-%d %H:%M %z")


def _row(one: Mapping[str, Any]) -> tuple[str, ...]:
    when = f"{one['cron']} {one['timezone']}"
    stands = (one["next_due"] or "-") if one["enabled"] else "disabled"
    if one["state"] in ("paused", "unreadable"):
        stands = one["state"]
    last = "-" if one["last_result"] is None else f"{one['last_result']}  {one['last_due'] or 'by hand'}"
    if one["last_result"] not in (None, "success") and one["last_why"]:
        last += f"  {shown(one['last_why'])}"
    return one["name"], one["source"], one["agent"], one["principal"], when, stands, last

"""`sidecar schedule`: lists, adds, removes, runs, pauses and resumes schedules."""

import time
from collections.abc import Mapping
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import click

from sidecar.cli.agent.formatting import row_for
from sidecar.cli.command import check_known, config_and_json, json_object, print_json, settings_in
from sidecar.cli.lazy_group import Group
from sidecar.cli.operator_socket import ask, path_of
from sidecar.cli.terminal import print_table
from sidecar.protocols.hidden_characters import shown
from sidecar.settings.schedules import acts_as
from sidecar.settings.timestamps import rfc3339

NONE = "there is no schedule"


@click.group(cls=Group)
def schedule() -> None:
    """Agents that run by the clock."""


@schedule.command(name="list")
@config_and_json
def list_(config: Path, as_json: bool) -> None:
    """List the schedules: next run, last run, and whether they are paused."""
    found = ask(config, path_of("schedules"), as_json)["schedules"]
    if not as_json and found:
        print_table(("schedule", "source", "agent", "as", "when", "next", "last"), [*map(_row, found)])
    elif not as_json:
        click.echo(NONE)


@schedule.command(name="next")
@click.argument("name", default="")
@click.option("--count", type=click.IntRange(1, 1_000), default=5, show_default=True, help="Number of times to show.")
@config_and_json
def next_(name: str, count: int, config: Path, as_json: bool) -> None:
    """Show the next times of the schedule NAME of sidecar.yaml, or of all. Needs no running sidecar, and does not
    include added or paused schedules: use `sidecar schedule list` for these."""
    schedules = settings_in(config).schedules
    if name:
        check_known(name, schedules, "schedule", config, hint="one that was added is in sidecar schedule list")
    chosen = {name: schedules[name]} if name else schedules
    due = {
        each: [*islice(one.calendar.after(time.time()), count)] if one.enabled else [] for each, one in chosen.items()
    }
    if as_json:
        print_json({"schedules": {each: [rfc3339(moment) for moment in moments] for each, moments in due.items()}})
        return
    for each, moments in due.items():
        zone = chosen[each].timezone
        click.echo(f"{each}  {chosen[each].cron}  {zone}{'' if moments else '  disabled'}")
        for moment in moments:  # with its UTC offset, which changes with daylight saving
            click.echo(f"  {datetime.fromtimestamp(moment, ZoneInfo(zone)):%a %Y-%m-%d %H:%M %z}  {rfc3339(moment)}")
    if not due:
        click.echo(NONE)


@schedule.command()
@click.argument("name")
@click.option("--agent", required=True, help="The agent to call.")
@click.option("--cron", required=True, help='When to run, such as "30 2 * * *" or @daily.')
@click.option("--timezone", help="The time zone of --cron; UTC by default.")
@click.option("--title", help="Display name.")
@click.option("--principal", help="The principal of the runs; by default nhi:NAME.")
@click.option("--prompt", help="The prompt for the agent.")
@click.option("--input", "parameters", help="The agent's input as a JSON object: input_parameters.")
@click.option("--task-type", help="The task type, which conditions read as call.tool.")
@click.option("--missed", type=click.Choice(["once", "skip"]), help="What to do about missed runs.")
@click.option("--missed-within", type=float, metavar="SECONDS", help="How late a run may start.")
@click.option(
    "--overlap",
    type=click.Choice(["skip", "allow"]),
    help="Whether a run may start while the previous one is in progress.",
)
@click.option("--disabled", is_flag=True, help="Add the schedule without running it.")
@config_and_json
def add(
    name: str,
    config: Path,
    as_json: bool,
    prompt: str | None,
    parameters: str | None,
    disabled: bool,
    **given: str | float | None,
) -> None:
    """Add the schedule NAME to those of sidecar.yaml. It is in the store, for all replicas, and survives a restart
    unless tasks.store is memory."""
    order: dict[str, Any] = {"name": name, **{key: value for key, value in given.items() if value is not None}}
    said = json_object(parameters, "--input") if parameters is not None else {}
    if prompt is not None:
        said["prompt"] = prompt
    if said:
        order["input_parameters"] = said
    if disabled:
        order["enabled"] = False
    answer = ask(config, path_of("schedules"), as_json, order)
    if not as_json:
        click.echo(f"{answer['name']} is added, and due next at {answer['next_due'] or 'no time'}")


@schedule.command()
@click.argument("name")
@config_and_json
def remove(name: str, config: Path, as_json: bool) -> None:
    """Remove the schedule NAME, which was added by command, and cancel its runs."""
    answer = ask(config, path_of("schedules", name), as_json, verb="DELETE")
    if not as_json:
        click.echo(f"{answer['name']} is removed")


@schedule.command()
@click.argument("name")
@config_and_json
def run(name: str, config: Path, as_json: bool) -> None:
    """Run the schedule NAME now. Its next time does not change."""
    one = settings_in(config).schedules.get(name)
    hints = {} if one is None else row_for(acts_as(name, one), one.agent)
    answer = ask(config, path_of("schedules", name, "run"), as_json, {}, hints=hints)
    if not as_json:
        why = f": {answer['error']}" if answer["error"] else ""
        if answer["approval"]:
            why = f" waits for approval {answer['approval']}"
        click.echo(answer["run_id"] or f"task {answer['task_id']}{why}")


@schedule.command()
@click.argument("name")
@config_and_json
def pause(name: str, config: Path, as_json: bool) -> None:
    """Pause the schedule NAME at every replica until it is resumed. Runs in progress continue."""
    answer = ask(config, path_of("schedules", name, "pause"), as_json, {})
    if not as_json:
        click.echo(f"{answer['name']} is paused")


@schedule.command()
@click.argument("name")
@config_and_json
def resume(name: str, config: Path, as_json: bool) -> None:
    """Resume the schedule NAME. Runs that were due in the meantime are skipped."""
    answer = ask(config, path_of("schedules", name, "resume"), as_json, {})
    if not as_json:
        click.echo(f"{answer['name']} is due next at {answer['next_due'] or 'no time'}")


def _row(one: Mapping[str, Any]) -> tuple[str, ...]:
    when = f"{one['cron']} {one['timezone']}"
    stands = (one["next_due"] or "-") if one["enabled"] else "disabled"
    if one["state"] in ("paused", "waiting", "unreadable"):
        stands = one["state"]
    last = "-" if one["last_result"] is None else f"{one['last_result']}  {one['last_due'] or 'by hand'}"
    if one["last_result"] not in (None, "success") and one["last_why"]:
        last += f"  {shown(one['last_why'])}"
    return one["name"], one["source"], one["agent"], one["principal"], when, stands, last

"""`sidecar agent list`, `runs` and `show`."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import click

from sidecar.cli.agent.formatting import amount, cause, facts, figures
from sidecar.cli.command import config_and_json
from sidecar.cli.operator_socket import ask, path_of
from sidecar.cli.terminal import print_table
from sidecar.protocols.hidden_characters import shown
from sidecar.tasks.programs.run_record import RunState, RunStatus, standing_of

TAIL_LINES = 20
STATES, STATUSES = [one.value for one in RunState], [one.value for one in RunStatus]


@click.command(name="list")
@config_and_json
def list_(config: Path, as_json: bool) -> None:
    """List the agents that are CLI programs, with their active and waiting runs and the last run."""
    found = ask(config, path_of("agents"), as_json)["agents"]
    if not as_json and found:
        print_table(("agent", "mode", "access", "running", "waiting", "last run"), [*map(_agent, found)])
    elif not as_json:
        click.echo("there is no agent")


@click.command()
@click.option("--agent", default="", help="Only runs of this agent.")
@click.option("--active", is_flag=True, help="Only runs that have not ended.")
@click.option("--state", type=click.Choice(STATES), help="Only runs in this state; waiting runs are idle.")
@click.option("--status", type=click.Choice(STATUSES), help="Only runs with this result.")
@click.option("--schedule", default="", help="Only runs of this schedule.")
@click.option("--owner", default="", help="Only runs for this principal (user:<id> or nhi:<id>).")
@click.option("--limit", type=click.IntRange(1, 200), default=20, show_default=True, help="Maximum number of runs.")
@click.option(
    "--offset",
    type=click.IntRange(0),
    default=0,
    help="Number of entries to skip; the end of a list shows the next one.",
)
@config_and_json
def runs(config: Path, as_json: bool, **asked: Any) -> None:
    """List runs, newest first."""
    asked["active"] = "true" if asked["active"] else ""
    query = urlencode({word: value for word, value in asked.items() if value})
    answer = ask(config, f"/api/runs?{query}", as_json)
    if as_json:
        return
    if answer["runs"]:
        print_table(("run", "agent", "state", "began", "took", "for"), [*map(_run, answer["runs"])])
    else:
        narrowed = any(value for word, value in asked.items() if word != "limit")
        none = "no run matches" if narrowed else "there are no runs yet: `sidecar agent run AGENT` orders one"
        click.echo(none if answer["next_offset"] is None else "none among the newest runs")
    if answer["next_offset"] is not None:
        click.echo(f"and more: --offset {answer['next_offset']}")


@click.command()
@click.argument("run")
@config_and_json
def show(run: str, config: Path, as_json: bool) -> None:
    """Show one run: states, attempts, resource usage, and the end of its output."""
    answer = ask(config, path_of("runs", run), as_json)
    if not as_json:
        click.echo("\n".join(_in_full(answer)))


def _agent(one: Mapping[str, Any]) -> tuple[str, ...]:
    last = one["last_run"]
    busy = f"{one['running']} of {one['places']}" if one["enabled"] else "disabled"
    ended = "-" if last is None else f"{standing_of(last)}  {last['created_at']}"
    return one["name"], one["mode"], one["access_type"], busy, str(one["waiting"]), ended


def _run(one: Mapping[str, Any]) -> tuple[str, ...]:
    took = "-" if one["duration_s"] is None else f"{one['duration_s']:.1f} s"
    whom = " → ".join(one["caller"]) + (f" ({one['schedule']})" if one["schedule"] else "")
    return one["id"], one["agent"], standing_of(one), one["started_at"] or "-", took, whom


def _in_full(one: Mapping[str, Any]) -> Iterator[str]:
    yield f"{one['id']}  {one['agent']}  {standing_of(one)}"
    yield from facts(
        {
            "on behalf of": " → ".join(one["caller"]),
            "conversation": one["context"],
            "schedule": one["schedule"],
            "ordered": one["created_at"],
            "began": one["started_at"],
            "ended": one["ended_at"],
            "took": None if one["duration_s"] is None else f"{one['duration_s']:.3f} s of {one['timeout_s']:g} s",
            "tries": f"{one['retries'] + 1} of {one['max_retries'] + 1}",
            "exit code": one["exit_code"],
            "signal": one["signal"],
            "error": cause(one["error"]),
            "usage": figures(one["usage"]),
            "said": amount(one["output_bytes"]),
        }
    )
    for name, lines in (
        ("states", [f"{each['at']}  {each['state']:<9}  {each['why'] or ''}" for each in one["transitions"]]),
        ("earlier tries", [f"{each['started_at']}  {cause(each['error']) or each['status']}" for each in one["tries"]]),
        ("told", one["input"].splitlines()[-TAIL_LINES:]),
        ("output", one["output"].splitlines()[-TAIL_LINES:]),
    ):
        if lines:
            yield f"  {name}"
            yield from (f"    {shown(line.expandtabs())}".rstrip() for line in lines)

"""`sidecar agent run`, `answer` and `cancel`.

sidecar agent run summariser "Three sentences about RFC 9457"
git diff | sidecar agent run reviewer - --param language=en
sidecar agent answer 0199a2b4-… "in English"
sidecar agent logs -f 0199a2b4-…
sidecar agent cancel 0199a2b4-…
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import click
import orjson

from sidecar.cli.agent.formatting import asks, ending, row_for
from sidecar.cli.agent.options import DEADLINE_S, OPERATOR, as_json, config
from sidecar.cli.agent.run_output import RunOutput, written
from sidecar.cli.operator_socket import (
    NO,
    NO_HINTS,
    USAGE,
    SidecarUnreachable,
    answer_in,
    ask_control,
    control_socket,
    ended_well,
    events,
    print_json,
    refused,
    told,
)
from sidecar.protocols.hidden_characters import revealed, shown

MAX_PROMPT_BYTES: Final = 64 * 2**20  # definitions accept far less
GIVING_UP_S: Final = 5.0


def _pairs(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    pairs = [one.partition("=") for one in given]
    if not all(equals and name for name, equals, _ in pairs):
        raise click.BadParameter("write name=value")
    return {name: value for name, _, value in pairs}


def _choices(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that a call may set beside its prompt, as far as the agent's `per_call` permits."""
    for option in (
        click.option("--folder", default="", help="A working folder."),
        click.option("--env", "environment", multiple=True, callback=_pairs, help="A variable: NAME=value."),
        click.option("--param", "parameters", multiple=True, callback=_pairs, help="An option: name=value."),
    ):
        command = option(command)
    return command


def _order(prompt: str, **chosen: object) -> dict[str, object]:
    """Return a request body: the prompt and the chosen options."""
    return {"prompt": _prompt(prompt), **{member: value for member, value in chosen.items() if value}}


@click.command()
@click.argument("name")
@click.argument("prompt", default="")
@click.option("--as", "principal", default=OPERATOR, show_default=True, help="Who calls.")
@_choices
@click.option("--skill", default="", help="The skill that is asked for; rules read it as call.tool.")
@click.option("--context", default="", help="Go on with this conversation.")
@click.option("--detach", is_flag=True, help="Do not wait: print its id.")
@config
@as_json
def run(
    name: str,
    prompt: str,
    principal: str,
    parameters: Mapping[str, str],
    environment: Mapping[str, str],
    folder: str,
    skill: str,
    context: str,
    detach: bool,
    path: Path,
    as_json: bool,
) -> None:
    """Run the agent NAME with PROMPT, or with what stands on standard input for `-`; ^C gives it up.

    Policy, limits and evidence are those of every caller. Options, variables and folders are those that the agent's
    `per_call` lets a call choose. Exit code 0 when it did what it was told, 1 when not.
    """
    order = _order(
        prompt,
        parameters=parameters,
        environment=environment,
        working_directory=folder,
        task_type=skill,
        context=context,
        principal=principal,
    )
    hints = row_for(principal, name)
    _told(path, f"/api/agents/{quote(name, safe='')}/runs", order, hints, detach=detach, as_json=as_json)


@click.command()
@click.argument("run")
@click.argument("prompt", default="")
@_choices
@click.option("--detach", is_flag=True, help="Do not wait: print its id.")
@config
@as_json
def answer(
    run: str,
    prompt: str,
    parameters: Mapping[str, str],
    environment: Mapping[str, str],
    folder: str,
    detach: bool,
    path: Path,
    as_json: bool,
) -> None:
    """Tell the run RUN, which asked, PROMPT, or what stands on standard input for `-`; ^C gives it up.

    What an operator ordered is answered here, and what a schedule did; all else its caller answers over A2A. Policy,
    limits and evidence are those of the run's caller. Exit code 0 when it did what it was told, or asks for more.
    """
    order = _order(prompt, parameters=parameters, environment=environment, working_directory=folder)
    _told(path, f"/api/runs/{quote(run, safe='')}/answer", order, NO_HINTS, detach=detach, as_json=as_json)


@click.command()
@click.argument("run")
@click.option("-f", "--follow", is_flag=True, help="Go on until it is over.")
@config
@as_json
def logs(run: str, follow: bool, path: Path, as_json: bool) -> None:
    """What the run RUN said, as far as it is kept. As JSON it is one object; with -f one on each line, as it comes."""
    with ended_well():
        control = control_socket(path)
    if follow:
        _watched(control, run, quiet=as_json, gives_up=False, as_lines=as_json)
        return
    with ended_well():
        status, body = ask_control(control, f"/api/runs/{quote(run, safe='')}/output")
    if status != 200:
        refused(status, answer_in(status, body), quiet=as_json)
    text = body.decode("utf-8", "replace")
    if as_json:
        print_json({"run": run, "output": text})
        return
    written(text)
    if sys.stdout.isatty() and text and not text.endswith("\n"):
        click.echo()


@click.command()
@click.argument("run")
@click.option("--reason", default="", help="Why, for whoever reads the evidence.")
@config
@as_json
def cancel(run: str, reason: str, path: Path, as_json: bool) -> None:
    """Give the run RUN up, wherever it is: all of its processes end."""
    order = {"reason": reason} if reason else {}
    answer = told(path, f"/api/runs/{quote(run, safe='')}/cancel", as_json, order, deadline_s=DEADLINE_S)
    if not as_json:
        click.echo(f"{answer['id']} of {answer['agent']}: {ending(answer)}")


def _told(path: Path, target: str, order: object, hints: Mapping[str, str], *, detach: bool, as_json: bool) -> None:
    """Start or answer a run, and show its progress. `hints` are suggestions by refusal reason."""
    with ended_well():
        control = control_socket(path)
        status, body = ask_control(control, target, verb="POST", order=order, deadline_s=DEADLINE_S)
        answer = answer_in(status, body)
    if status >= 300:
        if as_json:
            print_json(answer)
        refused(status, answer, quiet=as_json, hints=hints)
    if detach or answer["run_id"] is None:
        _print_taken(answer, as_json)
        raise SystemExit(0 if detach and answer["error"] is None else NO)
    _finish(_watched(control, answer["run_id"], quiet=as_json, gives_up=True), as_json)


def _prompt(given: str) -> str:
    if given != "-":
        return given
    raw = sys.stdin.buffer.read(MAX_PROMPT_BYTES + 1)
    if len(raw) > MAX_PROMPT_BYTES:
        click.echo(f"standard input has more than {MAX_PROMPT_BYTES} bytes", err=True)
        raise SystemExit(USAGE)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        click.echo("standard input is not UTF-8", err=True)
        raise SystemExit(USAGE) from None


def _watched(control: Path, run: str, *, quiet: bool, gives_up: bool, as_lines: bool = False) -> Mapping[str, Any]:
    """Return the run when it has ended, and print its output meanwhile; with `as_lines`, print every event as a line of
    JSON.
    """
    screen, target = RunOutput(quiet=quiet), f"/api/runs/{quote(run, safe='')}/output?follow=true"
    try:
        for event in events(control, target):
            if event is not None and as_lines:
                click.echo(revealed(orjson.dumps({"event": event.name, "data": event.data}).decode()))
            if event is None:
                screen.tick()
            elif event.name == "status":
                screen.status(event.data)
            elif event.name == "output":
                screen.output(event.data)
            elif event.name == "end":
                screen.end()
                return event.data
        why = "the sidecar is stopping"
    except (KeyboardInterrupt, BrokenPipeError) as error:  # interrupted, or standard output closed
        if isinstance(error, KeyboardInterrupt):
            screen.end()
        if gives_up:
            _give_up(control, run)
        raise SystemExit(NO) from None
    except SidecarUnreachable as error:
        why = str(error)
    screen.end()
    click.echo(f"nothing more is heard of {run}: {why}", err=True)
    raise SystemExit(NO)


def _give_up(control: Path, run: str) -> None:
    target = f"/api/runs/{quote(run, safe='')}/cancel"
    order = {"reason": "interrupted at the terminal"}
    try:
        status, body = ask_control(control, target, verb="POST", order=order, deadline_s=GIVING_UP_S)
        answer = answer_in(status, body)
    except OSError:
        click.echo(f"{run} may go on: sidecar agent cancel {run}", err=True)
        return
    click.echo(f"{run}: {ending(answer) if status == 200 else shown(answer['error'])}", err=True)


def _print_taken(answer: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(answer)
    elif answer["run_id"]:
        click.echo(answer["run_id"])
    else:
        why = shown(answer["error"] or "its agent has not taken it yet")
        click.echo(f"task {answer['task_id']} has no run: {why}", err=True)


def _finish(run: Mapping[str, Any], as_json: bool) -> None:
    """Print how the run ended where its output does not show it."""
    if as_json:
        print_json(run)
    elif run["status"] != "success":
        why = f"{run['error']['category']}: {run['error']['message']}" if run["error"] else run["message"]
        click.echo(f"{run['id']}: {ending(run)}" + (f": {shown(why)}" if why else ""), err=True)
    elif asks(run):
        click.echo(f"{run['id']}: it asks: {shown(run['message'] or 'for more')}", err=True)
        click.echo(f"   hint: sidecar agent answer {run['id']} TEXT", err=True)
    if run["status"] != "success":
        raise SystemExit(NO)

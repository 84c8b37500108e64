"""`sidecar agent run`, `answer`, `logs` and `cancel`."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import click

from sidecar.cli.agent.formatting import OPERATOR, cause, row_for
from sidecar.cli.agent.run_output import RunOutput, written
from sidecar.cli.command import NO, USAGE, CommandFailed, config_and_json, print_json, settings_in
from sidecar.cli.operator_socket import answer_in, ask, ask_control, events, exchange, path_of, reaching, refused
from sidecar.protocols.hidden_characters import shown
from sidecar.tasks.programs.run_record import asks, standing_of

MAX_PROMPT_BYTES: Final = 64 * 2**20  # definitions accept far less
GIVING_UP_S: Final = 5.0


def _pairs(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    pairs = [one.partition("=") for one in given]
    if not all(equals and name for name, equals, _ in pairs):
        raise click.BadParameter("write name=value")
    return {name: value for name, _, value in pairs}


def _choices(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that a call may set with its prompt, as far as the agent's `per_call` permits."""
    for option in (
        click.option("--detach", is_flag=True, help="Do not wait: print its id."),
        click.option("--folder", "working_directory", default="", help="A working folder."),
        click.option("--env", "environment", multiple=True, callback=_pairs, help="A variable: NAME=value."),
        click.option("--param", "parameters", multiple=True, callback=_pairs, help="An option: name=value."),
    ):
        command = option(command)
    return command


@click.command()
@click.argument("name")
@click.argument("prompt", default="")
@click.option("--as", "principal", default=OPERATOR, show_default=True, help="The caller.")
@_choices
@click.option("--skill", "task_type", default="", help="The skill; rules read it as call.tool.")
@click.option("--context", default="", help="The conversation to continue.")
@config_and_json
def run(name: str, detach: bool, config: Path, as_json: bool, **order: Any) -> None:
    """Run the agent NAME with PROMPT, or with standard input for `-`. Ctrl-C cancels the run.

    Policy, limits and audit apply as to every caller. The agent's `per_call` lists the options, variables and folders
    that a call may choose. Exits with 0 if the run succeeded, with 1 if not."""
    hints = row_for(order["principal"], name)
    _order(config, path_of("agents", name, "runs"), order, hints, detach=detach, as_json=as_json)


@click.command()
@click.argument("run")
@click.argument("prompt", default="")
@_choices
@config_and_json
def answer(run: str, detach: bool, config: Path, as_json: bool, **order: Any) -> None:
    """Answer RUN, which waits for input, with PROMPT, or with standard input for `-`. Ctrl-C cancels the run.

    Use this for runs of operators and schedules; the callers of other runs answer over A2A. Policy, limits and audit
    apply to the run's caller. Exits with 0 if the run succeeded or asks again."""
    _order(config, path_of("runs", run, "answer"), order, {}, detach=detach, as_json=as_json)


@click.command()
@click.argument("run")
@click.option("-f", "--follow", is_flag=True, help="Follow the output until the run ends.")
@config_and_json
def logs(run: str, follow: bool, config: Path, as_json: bool) -> None:
    """Show the stored output of RUN. JSON output is one object, or with -f one object per line."""
    control = settings_in(config).control_path
    if follow:
        _watched(control, run, quiet=as_json, gives_up=False, as_lines=as_json)
        return
    with reaching():
        status, body = ask_control(control, path_of("runs", run, "output"))
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
@click.option("--reason", default="", help="Reason, for the audit log.")
@config_and_json
def cancel(run: str, reason: str, config: Path, as_json: bool) -> None:
    """Cancel RUN in any state. All of its processes end."""
    answer = ask(config, path_of("runs", run, "cancel"), as_json, {"reason": reason} if reason else {})
    if not as_json:
        click.echo(f"{answer['id']} of {answer['agent']}: {standing_of(answer)}")


def _order(
    config: Path, target: str, chosen: Mapping[str, Any], hints: Mapping[str, str], *, detach: bool, as_json: bool
) -> None:
    """Starts or answers a run, and shows its progress. `hints` are suggestions by refusal reason."""
    order = {member: value for member, value in chosen.items() if value}
    order["prompt"] = _prompt(chosen["prompt"])
    control = settings_in(config).control_path
    status, answer = exchange(control, target, order)
    if as_json and status >= 300:
        print_json(answer)
    if status >= 300:
        refused(status, answer, quiet=as_json, hints=hints)
    if detach or answer["run_id"] is None:
        if as_json:
            print_json(answer)
        elif answer["run_id"]:
            click.echo(answer["run_id"])
        else:
            why = shown(answer["error"] or "its agent has not taken it yet")
            if answer["approval"]:
                why = f"it waits for a person's approval: sidecar approval show {answer['approval']}"
            click.echo(f"task {answer['task_id']} has no run: {why}", err=True)
        raise SystemExit(0 if detach and answer["error"] is None else NO)
    _finish(_watched(control, answer["run_id"], quiet=as_json, gives_up=True), as_json)


def _prompt(given: str) -> str:
    if given != "-":
        return given
    raw = sys.stdin.buffer.read(MAX_PROMPT_BYTES + 1)
    if len(raw) > MAX_PROMPT_BYTES:
        raise CommandFailed(f"standard input has more than {MAX_PROMPT_BYTES} bytes", USAGE)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise CommandFailed("standard input is not UTF-8", USAGE)


def _watched(control: Path, run: str, *, quiet: bool, gives_up: bool, as_lines: bool = False) -> Mapping[str, Any]:
    """Returns the run when it has ended. Prints its output in the meantime, or with `as_lines` every event as JSON."""
    screen, target = RunOutput(quiet=quiet), f"{path_of('runs', run, 'output')}?follow=true"
    try:
        for name, data in events(control, target):
            if as_lines:
                print_json({"event": name, "data": data}, as_line=True)
            if name == "status":
                screen.status(data)
            elif name == "output":
                screen.output(data)
            elif name == "end":
                screen.end()
                return data
        why = "the sidecar is stopping"
    except (KeyboardInterrupt, BrokenPipeError) as error:  # interrupted, or standard output closed
        if isinstance(error, KeyboardInterrupt):
            screen.end()
        if gives_up:
            _give_up(control, run)
        raise SystemExit(NO) from None
    except OSError as error:
        why = error.strerror or str(error)
    screen.end()
    raise CommandFailed(f"the connection to {run} ended: {why}")


def _give_up(control: Path, run: str) -> None:
    order = {"reason": "interrupted at the terminal"}
    try:
        target = path_of("runs", run, "cancel")
        status, body = ask_control(control, target, verb="POST", order=order, deadline_s=GIVING_UP_S)
        answer = answer_in(status, body)
    except OSError:
        click.echo(f"{run} may go on: sidecar agent cancel {run}", err=True)
        return
    click.echo(f"{run}: {standing_of(answer) if status == 200 else shown(answer['error'])}", err=True)


def _finish(run: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(run)
    elif run["status"] != "success":
        why = cause(run["error"]) or run["message"]
        click.echo(f"{run['id']}: {standing_of(run)}" + (f": {shown(why)}" if why else ""), err=True)
    elif asks(run):
        click.echo(f"{run['id']}: it asks: {shown(run['message'] or 'for more')}", err=True)
        click.echo(f"   hint: sidecar agent answer {run['id']} TEXT", err=True)
    if run["status"] != "success":
        raise SystemExit(NO)

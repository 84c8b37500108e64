"""`sidecar agent check`: starts a program as a run would start it, without a running sidecar."""

import asyncio
import logging
import os
import secrets
import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import aclosing
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any, Final

import click
import orjson

from sidecar.cli.agent.formatting import OPERATOR, cause, facts, figures
from sidecar.cli.command import NO, check_known, config_and_json, print_result, settings_in
from sidecar.protocols.hidden_characters import shown
from sidecar.settings.agents import CliAgent
from sidecar.settings.sidecar_file import Settings
from sidecar.tasks.programs.attempt import AttemptEnd, Event, OutputArtifact, OutputChunk, ProgramOrder, Prompt
from sidecar.tasks.programs.command_line import command_from
from sidecar.tasks.programs.run_record import Usage
from sidecar.tasks.programs.runners import runner_from
from sidecar.upstreams.processes.launcher import Exit, Processes
from sidecar.vocabulary import Caller, Credential, Principal

DEADLINE_S: Final = 30.0
HEAD_LINES, HEAD_CHARS, LINE_CHARS = 8, 4_000, 100
UNWELL: Final = frozenset({"TASK_STATE_FAILED", "TASK_STATE_REJECTED"})


@click.command()
@click.argument("name", default="")
@click.option("--prompt", help="The prompt; by default empty.")
@click.option("--no-run", is_flag=True, help="Inspect the agent without running it.")
@click.option("--timeout", "timeout_s", type=click.FloatRange(0, min_open=True), help="Time limit in seconds.")
@config_and_json
def check(name: str, prompt: str | None, no_run: bool, timeout_s: float | None, config: Path, as_json: bool) -> None:
    """Check whether the agent NAME, or each enabled agent, can run, and run it once. Exits with 1 if one fails.

    A read-write agent runs only with --prompt, because it can change data. All others run with an empty prompt."""
    settings = settings_in(config, check_files=True)
    if name:
        check_known(name, settings.agents, "agent", config)
    names = [name] if name else [each for each, definition in settings.agents.items() if definition.enabled]
    found = asyncio.run(_inspected(settings, names, prompt, timeout_s, no_run))
    lines = (line for one in found for line in _lines(one, settings.agents[one["name"]]))
    print_result({"agents": found}, "\n".join(lines) or "there is no agent", as_json)
    if any(one["status"] == "not well" for one in found):
        raise SystemExit(NO)


async def _inspected(
    settings: Settings, names: list[str], prompt: str | None, timeout_s: float | None, no_run: bool
) -> list[dict[str, Any]]:
    """How each agent's program would be started, and the result. Raises SettingsError if one cannot be started."""
    processes, found = Processes(os.environ), []
    try:
        for name in names:
            definition = settings.agents[name]
            start = command_from(name, definition, os.environ).shown()
            untried = "only inspected" if no_run else None
            if definition.writes and prompt is None:
                untried = "it is read-write, and may change something: --prompt runs it"
            limit_s = timeout_s or min(definition.timeout, DEADLINE_S)
            tried = None if untried else await _tried(name, definition, processes, prompt or "", limit_s)
            failed = tried and (tried["error"] or tried["timed_out"] or tried["task_state"] in UNWELL)
            status = "there" if tried is None else "not well" if failed else "well"
            known = {"name": name, "status": status, "enabled": definition.enabled}
            found.append({**known, **start, "untried": untried, "tried": tried})
    finally:
        await processes.close()
    return found


async def _tried(name: str, definition: CliAgent, processes: Processes, text: str, limit_s: float) -> dict[str, Any]:
    """Runs the program once, until all its processes have ended. `why` is what a sidecar would log about it."""
    runner = runner_from(name, definition, processes, os.environ)
    run_id, began_s, said = f"check-{secrets.token_hex(8)}", time.monotonic(), ""
    message = {"messageId": run_id, "role": "ROLE_USER", "parts": [{"text": text}]}
    caller = Caller((Principal(OPERATOR),), (Credential("local"),))
    prompt = Prompt(text, {}, {}, None, message)
    order = ProgramOrder(run_id, run_id, run_id, caller.binding, prompt, limit_s, caller=caller)
    ended = AttemptEnd(None, Usage())
    # The log of agents has the reasons. Events lack them, because callers must not learn where a program is.
    handler, logger = BufferingHandler(1_000), logging.getLogger("sidecar.tasks.programs")
    handler.setLevel(logging.WARNING)
    logger.addHandler(handler)
    try:
        async with aclosing(runner.run(order)) as events:
            async for event in events:
                said = (said + _text(event))[:HEAD_CHARS]
                if isinstance(event, AttemptEnd):
                    ended = event
    finally:
        logger.removeHandler(handler)
        await runner.close()
    failure, whys = ended.failure, (str(getattr(record, "why", record.getMessage())) for record in handler.buffer)
    return {
        "exit_code": ended.exit and ended.exit.code,
        "signal": ended.exit and ended.exit.signal,
        "timed_out": ended.timed_out,
        "task_state": ended.state,
        "error": failure and {"category": failure.category, "message": failure.message},
        "why": "; ".join(whys) or None,
        "took_s": round(time.monotonic() - began_s, 3),
        "usage": ended.usage._asdict(),
        "output": said,
    }


def _text(event: Event) -> str:
    match event:
        case OutputChunk():
            return event.text
        case OutputArtifact():
            parts = event.update["artifact"].get("parts", ())
        case AttemptEnd():
            parts = event.message
        case _:
            return ""
    return "".join(part["text"] if "text" in part else orjson.dumps(part).decode() for part in parts)


def _lines(one: Mapping[str, Any], definition: CliAgent) -> Iterator[str]:
    yield f"{one['name']}  {one['status']}" + ("" if definition.enabled else "  (disabled)")
    yield from facts(
        {
            "program": one["path"],
            "run as": shlex.join(one["argv"]),
            "prompt": definition.patterns.input,
            "answer": definition.patterns.output,
            "folder": one["folder"] or "a new one for each run",
            "environment": " ".join(one["environment"]) or "nothing",
            "not tried": one["untried"],
        }
    )
    tried = one["tried"]
    if tried is None:
        return
    error, exited = tried["error"], Exit(tried["exit_code"], tried["signal"])
    ended = None if error else "it continues"
    if tried["timed_out"]:
        ended = "its time was over"
    elif exited != Exit():
        ended = str(exited)
    yield from facts(
        {
            "ended": ended,
            "error": cause(error),
            "why": tried["why"],
            "took": f"{tried['took_s']:.3f} s",
            "usage": figures(tried["usage"]),
        }
    )
    lines = tried["output"].splitlines()[:HEAD_LINES]
    if lines:
        yield "  output"
        yield from (f"    {shown(line.expandtabs())[:LINE_CHARS]}".rstrip() for line in lines)

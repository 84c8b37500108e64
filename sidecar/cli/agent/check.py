"""`sidecar agent check`: checks whether a program can run as an agent, without a running sidecar.

sidecar agent check
sidecar agent check summariser --prompt "Three sentences about RFC 9457"
sidecar agent check summariser --no-run

The program is started as a run would start it: by the same warden, with the same arguments, environment and bounds.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
import orjson

from sidecar.cli.agent.formatting import OPERATOR, facts, figures
from sidecar.cli.command import NO, check_known, config_option, json_option, print_json, settings_in
from sidecar.protocols.hidden_characters import shown
from sidecar.settings import Settings
from sidecar.settings.agents import CliAgent
from sidecar.tasks.programs.attempt import AttemptEnd, Event, OutputArtifact, OutputChunk, ProgramOrder, Prompt
from sidecar.tasks.programs.command_line import command_from
from sidecar.tasks.programs.run_record import Usage
from sidecar.tasks.programs.runners import runner_from
from sidecar.upstreams.processes import Processes
from sidecar.vocabulary import Caller, Credential, Principal

DEADLINE_S: Final = 30.0
HEAD_LINES, HEAD_CHARS, LINE_CHARS = 8, 4_000, 100
UNWELL: Final = frozenset({"TASK_STATE_FAILED", "TASK_STATE_REJECTED"})
UNTRIED: Final = "it is read-write, and may change something: --prompt runs it"


@dataclass(frozen=True, slots=True)
class TriedAgent:
    """The result of one run. `whys` is what a running sidecar would log about it, for operators only."""

    ended: AttemptEnd
    took_s: float
    output: str
    whys: Sequence[str]

    @property
    def is_well(self) -> bool:
        ended = self.ended
        return ended.failure is None and not ended.timed_out and ended.state not in UNWELL


@dataclass(frozen=True, slots=True)
class InspectedAgent:
    """One agent: how its program would be started, and the result. `untried` says why it was not run."""

    name: str
    definition: CliAgent
    start: Mapping[str, Any]
    tried: TriedAgent | None = None
    untried: str = ""

    @property
    def status(self) -> str:
        if self.tried is None:
            return "there"
        return "well" if self.tried.is_well else "not well"

    def plain(self) -> dict[str, Any]:
        """Return the values for `--json`."""
        tried = self.tried
        return {
            "name": self.name,
            "status": self.status,
            "enabled": self.definition.enabled,
            **self.start,
            "untried": self.untried or None,
            "tried": None if tried is None else _plain(tried),
        }


@click.command()
@click.argument("name", default="")
@click.option("--prompt", help="Its prompt; by default empty.")
@click.option("--no-run", is_flag=True, help="Only inspect: start nothing.")
@click.option("--timeout", "timeout_s", type=click.FloatRange(0, min_open=True), help="Seconds that it may take.")
@config_option
@json_option
def check(name: str, prompt: str | None, no_run: bool, timeout_s: float | None, config: Path, as_json: bool) -> None:
    """Check whether the agent NAME, or each that is enabled, can run, and run it once. Exits with 1 if one fails.

    A read-write agent is run only with --prompt, because it may change something. All others do what they do with an
    empty prompt.
    """
    settings = settings_in(config, check_files=True)
    if name:
        check_known(name, settings.agents, "agent", config)
    names = [name] if name else [each for each, definition in settings.agents.items() if definition.enabled]
    looked = asyncio.run(_looked_at(settings, names, prompt, timeout_s, no_run))
    if as_json:
        print_json({"agents": [one.plain() for one in looked]})
    else:
        click.echo("\n".join(line for one in looked for line in _lines(one)) or "there is no agent")
    if any(one.tried is not None and not one.tried.is_well for one in looked):
        raise SystemExit(NO)


async def _looked_at(
    settings: Settings, names: list[str], prompt: str | None, timeout_s: float | None, no_run: bool
) -> list[InspectedAgent]:
    """Check one agent. Raises SettingsError for one that cannot be started."""
    processes, looked = Processes(os.environ), []
    try:
        for name in names:
            definition = settings.agents[name]
            start = command_from(name, definition, os.environ).shown()
            untried = "" if not no_run else "only looked at"
            if definition.writes and prompt is None:
                untried = UNTRIED
            limit_s = timeout_s or min(definition.timeout, DEADLINE_S)
            tried = None if untried else await _tried(name, definition, processes, prompt or "", limit_s)
            looked.append(InspectedAgent(name, definition, start, tried, untried))
    finally:
        await processes.close()
    return looked


async def _tried(name: str, definition: CliAgent, processes: Processes, text: str, limit_s: float) -> TriedAgent:
    """Run the program once, from its start until all its processes have ended."""
    runner = runner_from(name, definition, processes, os.environ)
    run_id, began_s, said = f"check-{secrets.token_hex(8)}", time.monotonic(), ""
    message = {"messageId": run_id, "role": "ROLE_USER", "parts": [{"text": text}]}
    caller = Caller((Principal(OPERATOR),), (Credential("local"),))
    prompt = Prompt(text, {}, {}, None, message)
    order = ProgramOrder(run_id, run_id, run_id, caller.binding, prompt, limit_s, caller=caller)
    ended = AttemptEnd(None, Usage())
    try:
        with _logged() as whys:
            async with aclosing(runner.run(order)) as events:
                async for event in events:
                    said = (said + _text(event))[:HEAD_CHARS]
                    if isinstance(event, AttemptEnd):
                        ended = event
    finally:
        await runner.close()
    return TriedAgent(ended, time.monotonic() - began_s, said, whys)


class _Whys(logging.Handler):
    """Collects the reasons of log records that have one."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.kept: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.kept.append(str(getattr(record, "why", record.getMessage())))


@contextmanager
def _logged() -> Iterator[Sequence[str]]:
    """Collect the reasons that agents log. Events do not contain them, because callers must not learn where a
    program is.
    """
    handler, logger = _Whys(), logging.getLogger("sidecar.tasks.programs")
    logger.addHandler(handler)
    try:
        yield handler.kept
    finally:
        logger.removeHandler(handler)


def _text(event: Event) -> str:
    """Return the text of an event's answer; parts that are not text as JSON."""
    if isinstance(event, OutputChunk):
        return event.text
    parts: Sequence[Mapping[str, Any]] = ()
    if isinstance(event, OutputArtifact):
        parts = event.update["artifact"].get("parts", ())
    elif isinstance(event, AttemptEnd):
        parts = event.message
    return "".join(part["text"] if "text" in part else orjson.dumps(part).decode() for part in parts)


def _plain(tried: TriedAgent) -> dict[str, Any]:
    failure, exit_ = tried.ended.failure, tried.ended.exit
    return {
        "exit_code": None if exit_ is None else exit_.code,
        "signal": None if exit_ is None else exit_.signal,
        "timed_out": tried.ended.timed_out,
        "task_state": tried.ended.state,
        "error": None if failure is None else {"category": failure.category, "message": failure.message},
        "why": "; ".join(tried.whys) or None,
        "took_s": round(tried.took_s, 3),
        "usage": tried.ended.usage._asdict(),
        "output": tried.output,
    }


def _lines(one: InspectedAgent) -> Iterator[str]:
    definition, tried = one.definition, one.tried
    yield f"{one.name}  {one.status}" + ("" if definition.enabled else "  (disabled)")
    yield from facts(
        {
            "program": one.start["path"],
            "run as": shlex.join(one.start["argv"]),
            "told": definition.patterns.input,
            "answers": definition.patterns.output,
            "folder": one.start["folder"] or "a new one for each run",
            "environment": " ".join(one.start["environment"]) or "nothing",
            "not tried": one.untried,
        }
    )
    if tried is None:
        return
    failure = tried.ended.failure
    goes_on = "it goes on" if failure is None else None
    yield from facts(
        {
            "ended": "its time was over" if tried.ended.timed_out else tried.ended.exit or goes_on,
            "error": failure and f"{failure.category}: {failure.message}",
            "why": "; ".join(tried.whys),
            "took": f"{tried.took_s:.3f} s",
            "usage": figures(tried.ended.usage._asdict()),
        }
    )
    lines = tried.output.splitlines()[:HEAD_LINES]
    if lines:
        yield "  output"
        yield from (f"    {shown(line.expandtabs())[:LINE_CHARS]}".rstrip() for line in lines)

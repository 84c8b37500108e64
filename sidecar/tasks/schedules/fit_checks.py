"""Checks schedules against the agents and rules that they need.

Asked of schedules in sidecar.yaml when they are checked, and of one that an operator adds before it is kept.
"""

from __future__ import annotations

from collections.abc import Mapping

from sidecar.errors import Reason, Refusal
from sidecar.policy import Engine
from sidecar.protocols.a2a.errors import AgentError
from sidecar.protocols.jsonrpc import malformed
from sidecar.settings.agents import CliAgent
from sidecar.settings.schedules import ScheduleSettings, acts_as, schedule_faults
from sidecar.settings.sidecar_file import Settings
from sidecar.settings.validation_errors import ValidationFinding
from sidecar.tasks.api.request_reader import sends
from sidecar.tasks.programs.prompts import prompt_from
from sidecar.vocabulary import Call, Principal


def refused_input(schedule: ScheduleSettings, programs: Mapping[str, CliAgent]) -> str:
    """Why its program would refuse what it is told; "" where it would not, or the agent is no program."""
    program = programs.get(schedule.agent)
    if program is None:
        return ""
    part = {"data": schedule.input_parameters, "mediaType": "application/json"}
    refused = prompt_from({"parts": [part]}, program)
    return f"{schedule.agent} refuses it: {refused.message}" if isinstance(refused, AgentError) else ""


def refused_run(key: str, schedule: ScheduleSettings, engine: Engine, at_s: float) -> Reason | None:
    """Why policy would refuse its run at that moment; None where it would not, or the schedule is not enabled."""
    call = _run_of(key, schedule)
    if not schedule.enabled or call is None:
        return None
    who = (Principal(acts_as(key, schedule)),)
    answers = (engine.decide(who, question, at_s) for question in call.questions)
    return next((answer.reason for answer in answers if not answer.allowed), None)


def check_fits(
    key: str,
    schedule: ScheduleSettings,
    others: Mapping[str, ScheduleSettings],
    settings: Settings,
    engine: Engine,
    now_s: float,
) -> None:
    """Check that a schedule that an operator adds beside the others fits, as those of sidecar.yaml have to, and that a
    rule lets it run when it is due next. Raises Refusal."""
    agents = {name for name, _, _ in settings.offers()}
    faults = schedule_faults({**others, key: schedule}, agents, (*settings.upstreams, *settings.agents))
    if found := next((fault for fault in faults if fault.at[:2] == ("schedules", key)), None):
        raise malformed(told(found))
    if refused := refused_input(schedule, settings.agents):
        raise malformed(f"input_parameters: {refused} (S180)")
    at_s = schedule.calendar.next_after(now_s) or now_s
    reason = refused_run(key, schedule, engine, at_s) if settings.policy.mode == "enforce" else None
    if reason is not None:
        who = acts_as(key, schedule)
        row = f"p, {who}, nhi:{schedule.agent}, message/send, -, -, -, allow"
        raise Refusal(
            reason, f"no rule lets {who} send messages to {schedule.agent} (S181); write {row} in nhi_to_nhi.csv"
        )


def told(finding: ValidationFinding) -> str:
    """A fault of a definition that stands in no file, in a sentence: where, what, how to mend, and its code."""
    at = ".".join(str(part) for part in finding.at[2:] if part != "")
    hint = f"; {finding.hint}" if finding.hint else ""
    return f"{at + ': ' if at else ''}{finding.message}{hint} ({finding.code})"


def _run_of(key: str, schedule: ScheduleSettings) -> Call | None:
    """What a run asks; None for one that is no message, which is told elsewhere."""
    try:
        return sends(key, schedule.agent, schedule.task_type, schedule.input_parameters).call
    except Refusal:
        return None

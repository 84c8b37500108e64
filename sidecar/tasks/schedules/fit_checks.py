"""Checks schedules, of sidecar.yaml or an operator's, against the agents and rules that they need."""

from collections.abc import Mapping

from sidecar.errors import Reason, Refusal
from sidecar.policy import Engine
from sidecar.protocols.a2a.errors import AgentError
from sidecar.protocols.jsonrpc import malformed
from sidecar.settings.agents import CliAgent
from sidecar.settings.schedules import ScheduleSettings, acts_as, schedule_faults
from sidecar.settings.sidecar_file import Settings
from sidecar.settings.validation_errors import Finding
from sidecar.tasks.api.request_reader import sends
from sidecar.tasks.programs.prompts import prompt_from
from sidecar.vocabulary import Principal


def refused_input(schedule: ScheduleSettings, programs: Mapping[str, CliAgent]) -> str:
    """Returns why the program would refuse the input, or "" if it would not or the agent is not a program."""
    program = programs.get(schedule.agent)
    if program is None:
        return ""
    part = {"data": schedule.input_parameters, "mediaType": "application/json"}
    refused = prompt_from({"parts": [part]}, program)
    return f"{schedule.agent} refuses it: {refused.message}" if isinstance(refused, AgentError) else ""


def refused_run(key: str, schedule: ScheduleSettings, engine: Engine, at_s: float) -> Reason | None:
    """Returns why policy would refuse the run at that time; None if it would not, the schedule is disabled, or its
    input is not a valid message."""
    if not schedule.enabled:
        return None
    try:
        call = sends(key, schedule.agent, schedule.task_type, schedule.input_parameters).call
    except Refusal:  # its input is not a valid message, which another check reports
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
    """Checks an operator's schedule like those in sidecar.yaml, and, unless policy is in shadow mode, that a rule
    allows its next run. Raises Refusal."""
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
            reason, f"no rule allows {who} to send messages to {schedule.agent} (S181); write {row} in nhi_to_nhi.csv"
        )


def told(finding: Finding) -> str:
    """Formats a finding as one sentence: the place, the fault, the remedy, and its code."""
    at = ".".join(str(part) for part in finding.at[2:] if part != "")
    hint = f"; {finding.hint}" if finding.hint else ""
    return f"{at + ': ' if at else ''}{finding.message}{hint} ({finding.code})"

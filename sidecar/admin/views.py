"""Converts runs, agents, tasks, schedules and requests for approval to response models."""

from typing import cast

from sidecar.admin.models import (
    Agent,
    AgentInFull,
    ApprovalInFull,
    ApprovalQuestion,
    ApprovalRequest,
    OrderedTask,
    Run,
    RunError,
    RunInFull,
    RunTry,
    RunUsage,
    Schedule,
)
from sidecar.admin.run_stream import message_of
from sidecar.gateway.approvals import ApprovalRecord
from sidecar.settings.agents import CliAgent
from sidecar.settings.schedules import acts_as
from sidecar.tasks.api.task_record import Task, TaskState, moment
from sidecar.tasks.programs.executions import RunPool
from sidecar.tasks.programs.run_record import Attempt, Execution, Failure, Usage
from sidecar.tasks.programs.stored_text import sanitized
from sidecar.tasks.schedules.scheduler import ShownSchedule


def run_of(record: Execution) -> Run:
    began, ended = record.started_at, record.ended_at
    return {
        "id": record.id,
        "agent": record.target,
        "caller": [principal.name for principal in record.caller.chain],
        "context": record.context,
        "schedule": record.schedule or None,
        "state": record.state,
        "previous_state": record.previous_state,
        "status": record.status,
        "is_over": record.is_done,
        "task_state": record.task.get("status", {}).get("state"),
        "created_at": moment(record.created_at),
        "started_at": moment(began),
        "ended_at": moment(ended),
        "duration_s": None if began is None or ended is None else round(ended - began, 3),
        "retries": record.retry_count,
        "max_retries": record.max_retries,
        "timeout_s": record.timeout_s,
        "cancel_requested": record.cancel_requested,
        "pid": record.pid,
        "exit_code": record.exit_code,
        "signal": record.signal,
        "error": _error(record.failure),
        "output_bytes": record.output_bytes,
    }


def run_in_full(record: Execution) -> RunInFull:
    return {
        **run_of(record),
        "input": record.input,
        "output": record.output,
        "message": sanitized(message_of(record.task.get("status", {}))) or None,
        "usage": usage_of(record.usage),
        "transitions": [
            {"state": one.state, "at": moment(one.at), "why": one.why or None} for one in record.transitions
        ],
        "tries": [_try(one) for one in record.previous_tries],
    }


def agent_of(name: str, definition: CliAgent, pool: RunPool, last: Execution | None) -> Agent:
    return {
        "name": name,
        "id": definition.id or name,
        "title": definition.name or name,
        "enabled": definition.enabled,
        "mode": definition.mode,
        "access_type": definition.access_type,
        "running": pool.running,
        "waiting": pool.waiting,
        "places": pool.places,
        "last_run": None if last is None else run_of(last),
    }


def agent_in_full(agent: Agent, definition: CliAgent) -> AgentInFull:
    """An agent with its definition. Arguments are omitted, because they may contain the values of `${VAR}`."""
    told, offered, chosen = definition.patterns, definition.a2a.capabilities, definition.per_call
    folder = definition.working_directory
    return {
        **agent,
        "description": definition.description,
        "executable": definition.executable,
        "input_pattern": told.input,
        "output_pattern": told.output,
        "working_directory": None if folder is None else str(folder),
        "environment": sorted(definition.envs),
        "options": sorted(chosen.cli_args),
        "variables": sorted(chosen.envs),
        "working_directories": [str(one) for one in chosen.working_directories],
        "timeout_s": definition.timeout,
        "max_queue": definition.max_queue,
        "max_input_bytes": offered.max_input_size,
        "max_output_bytes": offered.max_output_size,
        "max_retries": definition.tries - 1,
    }


def approval_of(record: ApprovalRecord) -> ApprovalRequest:
    return {
        "id": record.name,
        "state": record.state,
        "caller": [principal.name for principal in record.caller.chain],
        "protocol": record.protocol,
        "upstream": record.upstream,
        "object": record.object_name,
        "action": record.questions[0].action,
        "args_hash": record.args_hash,
        "rules": [demand.rule for demand in record.demands],
        "roles": list(dict.fromkeys(demand.role for demand in record.demands)),
        "open_roles": list(record.open_roles),
        "needs_reason": record.needs_reason,
        "asked_at": moment(record.created_at),
        "answer_before": moment(record.deadline_s),
        "valid_s": record.valid_s,
        "usable_until": moment(record.usable_until_s) if record.usable_until_s else None,
        "decision_id": record.decision_id,
        "used_by": record.used_by or None,
        "policy_revision": record.policy_revision,
        "answers": [
            {
                "principal": verdict.name,
                "by": verdict.by,
                "roles": list(verdict.roles),
                "at": moment(verdict.at_s),
                "reason": verdict.reason or None,
            }
            for verdict in record.given
        ],
        "seen_by": list(record.shown),
    }


def approval_in_full(record: ApprovalRecord, objection: str | None) -> ApprovalInFull:
    """A request for approval. `objection` is why its reader may not see the arguments; None: it contains them."""
    shown = None
    if objection is None:
        shown = [cast(ApprovalQuestion, question._asdict()) for question in record.questions]
    return {**approval_of(record), "objection": objection, "questions": shown}


def task_of(record: Task, *, is_of_program: bool) -> OrderedTask:
    return {
        "id": record.id,
        "agent": record.target,
        "caller": [principal.name for principal in record.caller.chain],
        "task_type": record.task_type,
        "state": record.state,
        "agent_state": record.a2a_state or None,
        "created_at": moment(record.created_at),
        "started_at": moment(record.started_at),
        "completed_at": moment(record.completed_at),
        "error": sanitized(record.error_message) or None,
        "run_id": record.a2a_task or None if is_of_program else None,
        "approval": record.approval if record.state is TaskState.WAITING else None,
    }


def schedule_of(shown: ShownSchedule) -> Schedule:
    chosen, standing = shown.schedule, shown.standing
    return {
        "name": shown.key,
        "source": shown.source,
        "added_by": shown.added.by if shown.added else None,
        "added_at": moment(shown.added.at_s) if shown.added else None,
        "id": chosen.id or shown.key,
        "title": chosen.name or shown.key,
        "agent": chosen.agent,
        "principal": acts_as(shown.key, chosen),
        "cron": chosen.cron,
        "timezone": chosen.timezone,
        "enabled": chosen.enabled,
        "state": shown.state,
        "paused_by": standing.paused_by or None,
        "paused_at": moment(standing.paused_s),
        "next_due": moment(shown.next_s),
        "last_due": moment(standing.last_due_s),
        "last_task": standing.last_task or None,
        "last_result": standing.last_result,
        "last_why": standing.last_why or None,
        "last_success_at": moment(standing.last_success_s),
        "running": [run.task for run in standing.running],
    }


def _error(failure: Failure | None) -> RunError | None:
    return None if failure is None else {"category": failure.category, "message": failure.message}


def usage_of(usage: Usage) -> RunUsage:
    rounded = usage._replace(cpu_s=round(usage.cpu_s, 3), cpu_percent=round(usage.cpu_percent, 1))
    return cast(RunUsage, rounded._asdict())


def _try(one: Attempt) -> RunTry:
    return {
        "status": one.status,
        "started_at": moment(one.started_at),
        "ended_at": moment(one.ended_at),
        "pid": one.pid,
        "exit_code": one.exit_code,
        "signal": one.signal,
        "error": _error(one.failure),
        "usage": usage_of(one.usage),
    }

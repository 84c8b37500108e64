"""The operator API of CLI-program agents, their runs and schedules.

An operator acts as `nhi:operator`, or over the control socket as any principal, under policy, limits and audit. Callers
cannot reach the runs and tasks of operators. Texts of runs that others ordered are shown without secrets.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, TypeVar

from pydantic import ValidationError

from sidecar.admin import models
from sidecar.admin.run_stream import END, RunNews, RunStream, RunVisibility, text_of
from sidecar.admin.views import agent_in_full, agent_of, run_in_full, run_of, schedule_of, task_of
from sidecar.errors import Reason, Refusal
from sidecar.gateway.snapshot import Live
from sidecar.protocols.jsonrpc import malformed
from sidecar.settings.agents import CliAgent
from sidecar.settings.schedules import ScheduleSettings, acts_as
from sidecar.settings.validation_errors import findings_of, nothing_like
from sidecar.storage import RecordPage, RecordStoreOut
from sidecar.tasks.api.task_orders import TaskOrders
from sidecar.tasks.api.task_record import Task, TaskState
from sidecar.tasks.programs.executions import Executions, RunPool
from sidecar.tasks.programs.run_events import WAITS, is_over, skill_of
from sidecar.tasks.programs.run_record import Execution, RunState
from sidecar.tasks.programs.stored_text import all_sanitized
from sidecar.tasks.schedules.fit_checks import told
from sidecar.tasks.schedules.scheduler import Scheduler
from sidecar.vocabulary import Caller, Credential, Principal

OPERATOR: Final = "nhi:operator"
TASK_TYPE: Final = "operator"
OPERATORS: Final = "operator"  # issuer of operators: no credential with that name reaches their objects
TAKEN_S: Final = 5.0  # maximum wait for an agent to accept a task
LOOK_S, SLOWEST_LOOK_S = 0.01, 0.2
TICK_S: Final = 0.5
GIVEN_UP: Final = "an operator gave it up"
PAGE: Final = 25
MAX_LOOKED_AT, MAX_LOOK_S = 2_000, 0.15  # for one request: the next page continues where it ended
DEFAULT_LIMIT: Final = 20
MAX_LIMIT: Final = 200
MAX_OFFSET: Final = 1_000_000
_INPUT: Final = ("prompt", "parameters", "environment", "working_directory")

T = TypeVar("T")


class RunQuery(NamedTuple):
    """A query for runs. "" and False select all. `owner` selects runs whose chain includes this principal, `active`
    runs that have not ended."""

    agent: str = ""
    state: str = ""
    status: str = ""
    schedule: str = ""
    owner: str = ""
    limit: int = DEFAULT_LIMIT
    offset: int = 0
    active: bool = False

    def means(self, run: Execution) -> bool:
        """Whether a run passes all filters except `agent`."""
        return (
            not (self.active and run.is_done)
            and self.state in ("", run.state)
            and self.status in ("", run.status)
            and self.schedule in ("", run.schedule)
            and (not self.owner or any(principal.name == self.owner for principal in run.caller.chain))
        )


@dataclass(slots=True)
class OperatorApi:
    """The operations of operators on agents. `witness` records an action, or raises Refusal(AUDIT_UNAVAILABLE). Streams
    end when `is_draining`."""

    live: Live
    executions: Executions
    scheduler: Scheduler
    orders: TaskOrders
    new_id: Callable[[], str]
    witness: Callable[..., Awaitable[None]]
    is_draining: Callable[[], bool]

    async def agents(self) -> models.Agents:
        """All agents and their state in this process. Raises Refusal(STORE_UNAVAILABLE)."""
        return {"agents": [await self._agent(name) for name in sorted(self._definitions)]}

    async def agent(self, name: str) -> models.AgentInFull:
        """One agent with its definition. Raises Refusal: UPSTREAM_UNKNOWN, STORE_UNAVAILABLE."""
        return agent_in_full(await self._agent(name), self._definition(name))

    async def runs(self, wanted: RunQuery) -> models.Runs:
        """A page of runs, newest first. It may be shorter than the limit and have a `next_offset`, if only a few of
        many runs match. Raises Refusal: UPSTREAM_UNKNOWN, STORE_UNAVAILABLE."""
        targets = list(self._definitions)
        if wanted.agent:
            self._definition(wanted.agent)
            targets = [wanted.agent]
        if wanted.active:
            return await self._active(wanted, targets)
        found: list[Execution] = []
        at, last = wanted.offset, wanted.offset + MAX_LOOKED_AT
        now_s = asyncio.get_running_loop().time
        until_s = now_s() + MAX_LOOK_S
        narrow = wanted.schedule or wanted.owner or (wanted.status and wanted.state)  # stores do not filter by these
        while len(found) < wanted.limit and at < last and (at == wanted.offset or now_s() < until_s):
            size = PAGE if narrow else wanted.limit - len(found)
            page, total = await self.executions.page(None, targets, wanted.status or wanted.state or None, size, at)
            begins, at = at, at + size  # unreadable runs count too
            for after, run in enumerate(page, begins + 1):
                if wanted.means(run):
                    found.append(run)
                if len(found) == wanted.limit:
                    at = after  # or less: the next page may repeat a run, but never skips one
                    break
            if at >= total:
                return {"runs": [run_of(run) for run in found], "next_offset": None}
        return {"runs": [run_of(run) for run in found], "next_offset": at}

    async def tasks(self, agent: str, state: str, limit: int, offset: int) -> models.OrderedTasks:
        """A page of the tasks of all callers, newest first; "" selects all. Raises Refusal: UPSTREAM_UNKNOWN,
        STORE_UNAVAILABLE."""
        now = self.live.current
        if agent:
            now.agent(agent)
        page = RecordPage([agent] if agent else list(now.agents), state or None, limit, offset)
        records, total = await self.orders.runner.means.store.page(None, page)
        shown = [task_of(record, is_of_program=record.target in self._definitions) for record in records]
        return {"tasks": shown, "total": total}

    async def run(self, run_id: str) -> models.RunInFull:
        """One run. Raises Refusal: TASK_UNKNOWN, STORE_UNAVAILABLE."""
        return run_in_full(await self._run(run_id))

    async def output(self, run_id: str) -> str:
        """The output of a run so far, as far as it is stored. Raises Refusal: TASK_UNKNOWN, STORE_UNAVAILABLE."""
        record = await self._run(run_id)
        text = text_of(record.task)
        return (text if _is_ours(record) else await all_sanitized(text)) or record.output

    async def follow(self, run_id: str) -> AsyncGenerator[RunNews | None]:
        """The events of a run until it ends or the sidecar drains. None is a keep-alive. Raises Refusal: TASK_UNKNOWN,
        STORE_UNAVAILABLE."""
        hearing = RunStream()
        discretion = RunVisibility(is_theirs=_is_ours(await self._run(run_id)))
        async with (
            aclosing(self.executions.follow(run_id)) as updates,
            aclosing(_unless(self.is_draining, updates)) as responses,
        ):
            async for response in responses:
                if response is None:
                    yield None
                    continue
                for heard in hearing.of(response):
                    for shown in await discretion.of(heard):
                        yield shown
        for waited in await discretion.rest():
            yield waited
        if not self.is_draining():
            yield RunNews(END, run_in_full(await self._run(run_id)))

    async def order(self, name: str, body: Mapping[str, Any], by: str, *, here: bool) -> models.RunOrdered:
        """Runs an agent on behalf of the operator `by`, as `nhi:operator`, or over the control socket (`here`) as any
        principal. Raises Refusal, as for a caller's request."""
        if not self._definition(name).enabled:
            raise Refusal(Reason.UPSTREAM_UNKNOWN, "the agent is not enabled")
        principal, task_id = body.get("principal", OPERATOR), self.new_id()
        _check_principal(principal, here=here)
        await self.witness("run-ordered", by, agent=name, principal=principal, task=task_id)
        about = (name, body.get("task_type", TASK_TYPE), _input(body), task_id)
        caller = _speaking_as(principal, by)
        record = await self.orders.place(caller, *about, peer=by, context=body.get("context", ""))
        return {"agent": name, "principal": principal, **self._ordered(await self._taken(record))}

    async def answer(self, run_id: str, body: Mapping[str, Any], by: str, *, here: bool) -> models.RunOrdered:
        """Answers a run as its caller. Raises Refusal, as for a caller's request; MALFORMED_CALL if the run does not
        wait for input, INSUFFICIENT_SCOPE if it is another caller's."""
        run = await self._run(run_id)
        caller = _answering(run, by, here=here)
        if run.task["status"]["state"] not in WAITS:
            raise malformed("the run does not ask anything")
        task_id, whom = self.new_id(), caller.last.name
        await self.witness("run-answered", by, run=run_id, agent=run.target, principal=whom, task=task_id)
        about = (run.target, body.get("task_type") or skill_of(run.task) or TASK_TYPE, _input(body), task_id)
        record = await self.orders.place(caller, *about, peer=by, context=run.context, answers=run_id)
        return {"agent": run.target, "principal": whom, **self._ordered(await self._taken(record))}

    async def cancel(self, run_id: str, reason: str, by: str) -> models.Run:
        """Cancels a run. Raises Refusal: TASK_UNKNOWN, NOT_CANCELABLE, STORE_UNAVAILABLE, and AUDIT_UNAVAILABLE if the
        run is cancelled but cannot be recorded."""
        if is_over((await self._run(run_id)).task):
            raise Refusal(Reason.NOT_CANCELABLE, "it is over")
        record = await self.executions.cancel(run_id, GIVEN_UP)  # for the caller; the audit record has who and why
        try:
            await self.witness("run-cancelled", by, run=run_id, agent=record.target, why=reason)
        except Refusal as refusal:
            raise Refusal(refusal.reason, "it is given up nevertheless") from None
        return run_of(record)

    async def run_schedule(self, name: str, by: str) -> models.ScheduleOrdered:
        """Runs a schedule now, as its own principal. Raises Refusal, as for a caller's request."""
        record = await self._taken(await self.scheduler.run_now(name, by))
        return {"schedule": name, **self._ordered(record)}

    async def add_schedule(self, body: Mapping[str, Any], by: str, *, here: bool) -> models.Schedule:
        """Stores a schedule that is not in sidecar.yaml. Over the admin listener it can act only as `nhi:operator`, or
        as `nhi:<its name>` if no API key and no other schedule has that principal. Raises Refusal, Conflict."""
        key, wanted = body["name"], _schedule_in(body)
        if not here:
            self._check_own(key, wanted)
        return schedule_of(await self.scheduler.add(key, wanted, by))

    async def _active(self, wanted: RunQuery, targets: Sequence[str]) -> models.Runs:
        """Reads states in the order of a run's life: a run that changes in the meantime is read twice instead of
        missed."""
        found: dict[str, Execution] = {}
        for state in RunState:
            page, _ = await self.executions.page(None, targets, state, MAX_LOOKED_AT, 0)
            found |= {run.id: run for run in page if wanted.means(run)}
        newest = sorted(found.values(), key=lambda run: (run.created_at, run.id), reverse=True)
        end = wanted.offset + wanted.limit
        shown = [run_of(run) for run in newest[wanted.offset : end]]
        return {"runs": shown, "next_offset": end if end < len(newest) else None}

    async def _agent(self, name: str) -> models.Agent:
        definition = self._definition(name)
        last, _ = await self.executions.page(None, [name], None, 1, 0)
        pool = self.executions.standing(name) if definition.enabled else RunPool(0, 0, definition.places)
        return agent_of(name, definition, pool, last[0] if last else None)

    def _check_own(self, key: str, wanted: ScheduleSettings) -> None:
        """Checks that a schedule acts as `nhi:operator`, or as a principal of its own. Raises
        Refusal(INSUFFICIENT_SCOPE)."""
        now, who = self.live.current, acts_as(key, wanted)
        others = {acts_as(each, one) for each, one in now.settings.schedules.items() if each != key}
        if who == OPERATOR:
            return
        if who != f"nhi:{key}":
            what = f"a schedule acts as nhi:<its name> or {OPERATOR}"
        elif who in now.identity.key_owners() or who in others:
            what = f"{who} has an API key or a schedule of its own: choose another name"
        else:
            return
        detail = f"over the admin listener {what}; over the control socket (sidecar schedule add) it may be any NHI"
        raise Refusal(Reason.INSUFFICIENT_SCOPE, detail)

    async def _taken(self, record: Task) -> Task:
        """The task once its agent has accepted it, or it waits for a person's approval, or after TAKEN_S. Raises
        Refusal if the task was refused."""
        pause_s = LOOK_S
        with suppress(TimeoutError, RecordStoreOut):
            async with asyncio.timeout(TAKEN_S):
                while not record.is_sent and record.state is not TaskState.WAITING:
                    await asyncio.sleep(pause_s)
                    pause_s = min(SLOWEST_LOOK_S, 2 * pause_s)
                    record = await self.orders.runner.means.store.get(record.id) or record
        if record.refused is not None:
            raise Refusal(record.refused, words=record.error_message)
        return record

    def _ordered(self, record: Task) -> models.Taken:
        run = record.a2a_task if record.target in self._definitions else ""  # other agents have no runs
        approval = record.approval if record.state is TaskState.WAITING else None
        return {
            "task_id": record.id,
            "run_id": run or None,
            "error": record.error_message or None,
            "approval": approval,
        }

    async def _run(self, run_id: str) -> Execution:
        record = await self.executions.get(run_id)
        if record is None:
            raise Refusal(Reason.TASK_UNKNOWN, "no run has this id")
        return record

    @property
    def _definitions(self) -> Mapping[str, CliAgent]:
        return self.live.current.settings.agents

    def _definition(self, name: str) -> CliAgent:
        definition = self._definitions.get(name)
        if definition is None:
            why = nothing_like("no program under agents has this name", name, self._definitions)
            raise Refusal(Reason.UPSTREAM_UNKNOWN, why)
        return definition


def _input(body: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"prompt": "", **{member: body[member] for member in _INPUT if member in body}}


def _schedule_in(body: Mapping[str, Any]) -> ScheduleSettings:
    """The schedule that a body defines, whose display name is `title`. Raises Refusal(MALFORMED_CALL)."""
    members = {{"title": "name"}.get(name, name): value for name, value in body.items() if name != "name"}
    try:
        return ScheduleSettings.model_validate(members)
    except ValidationError as error:
        found = next(findings_of(error, ScheduleSettings))
        at = ("title", *found.at[1:]) if found.at[:1] == ("name",) else found.at
        raise malformed(told(replace(found, at=("schedules", body["name"], *at)))) from None


def _speaking_as(principal: str, by: str) -> Caller:
    return Caller((Principal(principal, OPERATORS),), (Credential("local", OPERATORS, by),))


def _check_principal(name: str, *, here: bool) -> None:
    if name != OPERATOR and not here:
        detail = f"over the admin listener an operator is {OPERATOR}; only over the control socket also others"
        raise Refusal(Reason.INSUFFICIENT_SCOPE, detail)


def _answering(run: Execution, by: str, *, here: bool) -> Caller:
    """The caller as whom a run can be answered: the operator who ordered it, or over the control socket its schedule.
    Raises Refusal(INSUFFICIENT_SCOPE) for the run of another caller."""
    asked = run.caller.last.name
    caller = run.caller if run.schedule and here else _speaking_as(asked, by)
    if caller.binding != run.owner:
        raise Refusal(Reason.INSUFFICIENT_SCOPE, f"the run is another's: the answer is a message of {asked}'s own")
    _check_principal(asked, here=here or asked == OPERATOR)
    return caller


def _is_ours(run: Execution) -> bool:
    """Whether an operator ordered the run, so that its texts are shown unchanged."""
    return run.caller.last.issuer == OPERATORS


async def _unless(is_over: Callable[[], bool], events: AsyncGenerator[T]) -> AsyncGenerator[T]:
    """The events until `is_over`, which is also checked while no event comes."""
    while not is_over():
        coming = asyncio.ensure_future(anext(events))
        try:
            while not coming.done() and not is_over():
                await asyncio.wait({coming}, timeout=TICK_S)
            if not coming.done():
                return
            yield coming.result()
        except StopAsyncIteration:
            return
        finally:
            coming.cancel()
            await asyncio.wait({coming})

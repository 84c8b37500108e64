"""Builds the objects of the request path and connects them."""

import hmac
import secrets
import time
from functools import cache, partial
from typing import Any, Final, NamedTuple

from sidecar.app.control_records import ControlRecords
from sidecar.app.shared_store import SharedStore
from sidecar.gateway.approvals import APPROVALS, Approvals
from sidecar.gateway.forwarder import Forwarder
from sidecar.gateway.frontends.a2a.frontend import AgentFrontend
from sidecar.gateway.frontends.a2a.task_ownership import TASKS as OF_AGENTS, shown_to
from sidecar.gateway.frontends.a2a.task_pages import TaskPages
from sidecar.gateway.frontends.aggregate.frontend import AggregateFrontend
from sidecar.gateway.frontends.mcp import McpFrontend
from sidecar.gateway.frontends.rest import RestFrontend
from sidecar.gateway.kill_switch import KillSwitch, SwitchLedger
from sidecar.gateway.pipeline import Pipeline
from sidecar.gateway.reauthorization import ContinuedPermission, Reauthorization
from sidecar.gateway.request_state import RequestStates, Seal
from sidecar.gateway.snapshot import Live, Snapshot
from sidecar.gateway.stages import Stages
from sidecar.http.server.load_shedding import LoadShedding
from sidecar.http.server.refusal_throttle import RefusalThrottle
from sidecar.http.server.stream_limits import StreamLimits
from sidecar.limits import SessionCalls
from sidecar.observability.metrics import Metrics
from sidecar.settings.sidecar_file import Settings
from sidecar.storage.sealing import AesSeal
from sidecar.tasks.api.frontend import TaskFrontend
from sidecar.tasks.api.task_lifecycle import TaskServices
from sidecar.tasks.api.task_orders import TaskOrders
from sidecar.tasks.api.task_runner import FILE, TaskRunner
from sidecar.tasks.api.waiting_messages import WaitingMessages
from sidecar.tasks.schedules.schedule_state import SCHEDULES
from sidecar.tasks.schedules.scheduler import Scheduler
from sidecar.tasks.webhooks import Webhooks, callbacks_from
from sidecar.tasks.webhooks.approval_notices import ApprovalNotices
from sidecar.upstreams.mcp.session_store import SessionStore
from sidecar.upstreams.mcp.sessions import Sessions

CURSORS: Final = b"sidecar/aggregate-cursor/1"
SEALED_TASKS: Final = b"sidecar/waiting-tasks/1"
SEALED_APPROVALS: Final = b"sidecar/approvals/1"


class RequestPath(NamedTuple):
    pipeline: Pipeline
    callbacks: Webhooks
    scheduler: Scheduler
    task_api: TaskFrontend


def way_from(
    settings: Settings,
    first: Snapshot,
    ledger: SwitchLedger,
    shared: SharedStore,
    evidence: ControlRecords,
    metrics: Metrics,
) -> RequestPath:
    """Builds the request path. Starts nothing."""
    audit, random = evidence.audit, secrets.SystemRandom().random
    first.identity.share_proofs(shared.proof)
    live = Live(first, time.time)
    switch = KillSwitch(ledger, share=shared.limiter.store.run, witness=audit.control, clock=time.time)
    forwarder = _forwarder(settings, live, switch, shared, RequestStates(Seal(audit.key.secret), time.time))
    session_calls = SessionCalls(settings.sessions.session_calls_per_minute, time.monotonic)
    callbacks = callbacks_from(
        lambda: live.current.settings,
        lambda: live.current.base_url,
        metrics,
        ContinuedPermission(live, switch).objection,
        audit.control,
        partial(shared.tasks.is_anothers, namespace=OF_AGENTS),
        partial(shown_to, shared.tasks),
        shared.records,
        lambda: live.current.egress,
    )

    async def jumped(seconds: float) -> None:
        callbacks.outbox.clock_was_set(seconds)
        await evidence.witness_jump(seconds)

    load_shedding = LoadShedding(settings.server.max_lag_s, metrics.loop_lagged, jumped, random)
    refusals = RefusalThrottle(lambda: live.current.settings.refusals, metrics.refusal_unanswered, time.monotonic)
    key = audit.key.secret
    stored = shared.records.of(APPROVALS.sealed(lambda: AesSeal(key, SEALED_APPROVALS)))
    notices = ApprovalNotices(lambda: live.current.settings, callbacks.outbox, time.time)
    approvals = Approvals(live, switch, stored, key, audit.control, metrics, audit.new_id, time.time, notices.queue)
    stages = Stages(shared.limiter, session_calls, switch, shared.tasks, load_shedding, refusals, approvals, time.time)
    seal = cache(lambda: AesSeal(key, SEALED_TASKS))
    served = (shared.tasks, live, switch, audit, callbacks.outbox, stages, callbacks.pushes, seal)
    means = TaskServices(shared.task_store, *served)
    holder = FILE if settings.tasks.store == "file" else secrets.token_hex(8)
    runner = TaskRunner(means, metrics, holder)
    orders = TaskOrders(runner, stages, metrics)
    task_api = TaskFrontend(forwarder, orders, callbacks.guard.check, audit.new_id)
    mcp: dict[str, Any] = {"forwarder": forwarder, "switch": switch, "clock": time.time}
    pipeline = Pipeline(
        live=live,
        stages=stages,
        audit=audit,
        metrics=metrics,
        forwarder=forwarder,
        mcp=McpFrontend(**mcp),
        aggregate=AggregateFrontend(
            **mcp,
            metrics=metrics,
            seal=Seal(hmac.digest(audit.key.secret, CURSORS, "sha256")),
            session_calls=session_calls,
        ),
        rest=RestFrontend(**mcp, session_calls=session_calls),
        agents=AgentFrontend(forwarder, callbacks.pushes, TaskPages(audit.key.secret), WaitingMessages(runner)),
        task_api=task_api,
    )
    scheduler = Scheduler(live, shared.records.of(SCHEDULES), orders, audit.control, metrics, holder, audit.new_id)
    return RequestPath(pipeline, callbacks, scheduler, task_api)


def _forwarder(
    settings: Settings, live: Live, switch: KillSwitch, shared: SharedStore, states: RequestStates
) -> Forwarder:
    sessions = Sessions(
        time.monotonic,
        idle_s=settings.sessions.idle_s,
        max_sessions=settings.sessions.max,
        max_per_principal=settings.sessions.max_per_principal,
        worker=settings.server.worker,
    )
    run = shared.limiter.store.run if settings.sessions.store == "redis" else None
    roaming = SessionStore(sessions, run, time.time)
    places = StreamLimits(secrets.SystemRandom().random)
    return Forwarder(live, sessions, switch, shared.tasks, Reauthorization(live, switch), places, states, roaming)

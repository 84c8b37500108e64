"""Which objects stand on a call's way, and who holds whom?"""

from __future__ import annotations

import secrets
import time
from functools import partial
from typing import NamedTuple

from sidecar.a2a.contexts import Contexts
from sidecar.a2a.front import AgentFront
from sidecar.a2a.owning import TASKS as OF_AGENTS
from sidecar.a2a.pages import Pages
from sidecar.callbacks import Callbacks, callbacks_from
from sidecar.disabled import KillSwitch, Ledger
from sidecar.evidence import Evidence
from sidecar.exchanges import Exchanges
from sidecar.federation import Federation
from sidecar.fronts import Fronts
from sidecar.limits import SessionCalls
from sidecar.metrics import Metrics
from sidecar.oversight import Oversight, Standing
from sidecar.pipeline import Pipeline
from sidecar.places import Places
from sidecar.plain import Plain
from sidecar.pressure import Pressure
from sidecar.records import Bounds
from sidecar.refusals import Refusals
from sidecar.schedules.scheduler import Scheduler
from sidecar.settings import Settings
from sidecar.shared import Shared
from sidecar.snapshot import Live, Snapshot
from sidecar.states import States
from sidecar.task_api.calling_back import announces
from sidecar.task_api.following import Means, Patience
from sidecar.task_api.front import TaskFront
from sidecar.task_api.orders import Orders
from sidecar.task_api.running import FILE, Runner
from sidecar.upstreams.roaming import Roaming
from sidecar.upstreams.sessions import Sessions


class Way(NamedTuple):
    """The pipeline, and what lives beside it."""

    pipeline: Pipeline
    callbacks: Callbacks
    scheduler: Scheduler


def way_from(
    settings: Settings, first: Snapshot, ledger: Ledger, shared: Shared, evidence: Evidence, metrics: Metrics
) -> Way:
    """A call's way, of which nothing runs yet."""
    audit, random = evidence.audit, secrets.SystemRandom().random
    first.identity.share_proofs(shared.proof)
    live = Live(first, time.time)
    switch = KillSwitch(ledger, share=shared.run, witness=audit.control, clock=time.time)
    exchanges = _exchanges(settings, live, switch, shared, States(audit.key.secret, time.time))
    session_calls = SessionCalls(settings.sessions.session_calls_per_minute, time.monotonic)
    federation = Federation(live, exchanges.sessions, exchanges, metrics, key=secrets.token_bytes(32))
    callbacks = callbacks_from(
        lambda: live.current.settings,
        lambda: live.current.base_url,
        metrics,
        Standing(live, switch).objection,
        audit.control,
        partial(shared.tasks.is_anothers, namespace=OF_AGENTS),
        lambda owner, agent, said: Contexts(shared.tasks.secret, owner, agent).shown(said),
        shared.run,
    )

    async def jumped(seconds: float) -> None:
        callbacks.outbox.clock_was_set(seconds)
        await evidence.witness_jump(seconds)

    announce = announces(callbacks.outbox)
    means = Means(
        shared.task_store, shared.tasks, live, switch, audit, announce, shared.limiter, partial(_patience, live)
    )
    holder = FILE if settings.tasks.store == "file" else secrets.token_hex(8)
    runner = Runner(means, metrics, holder, partial(_bounds, live))
    pressure = Pressure(settings.server.max_lag_s, metrics.loop_lagged, jumped, random)
    refusals = Refusals(lambda: live.current.settings.refusals, metrics, time.monotonic)
    orders = Orders(runner, pressure, refusals, metrics)
    pipeline = Pipeline(
        live=live,
        session_calls=session_calls,
        limiter=shared.limiter,
        audit=audit,
        metrics=metrics,
        exchanges=exchanges,
        fronts=Fronts(exchanges.sessions, federation, Plain(exchanges, session_calls), exchanges.recall),
        agents=AgentFront(exchanges, callbacks.pushes, Pages(audit.key.secret)),
        task_front=TaskFront(exchanges, orders, callbacks.guard.check, audit.new_id),
        switch=switch,
        tasks=shared.tasks,
        pressure=pressure,
        refusals=refusals,
        clock=time.time,
    )
    scheduler = Scheduler(live, shared.schedule_store, orders, audit.control, metrics, holder, audit.new_id)
    return Way(pipeline, callbacks, scheduler)


def _exchanges(settings: Settings, live: Live, switch: KillSwitch, shared: Shared, states: States) -> Exchanges:
    sessions = Sessions(
        time.monotonic,
        idle_s=settings.sessions.idle_s,
        max_sessions=settings.sessions.max,
        max_per_principal=settings.sessions.max_per_principal,
    )
    roaming = Roaming(sessions, shared.run if settings.sessions.store == "redis" else None, time.time)
    places = Places(secrets.SystemRandom().random)
    return Exchanges(live, sessions, switch, shared.tasks, Oversight(live, switch), places, states, roaming)


def _patience(live: Live) -> Patience:
    chosen = live.current.settings.tasks
    return Patience(chosen.follow_s, chosen.away_s, chosen.ask_every_s, chosen.max_result)


def _bounds(live: Live) -> Bounds:
    chosen = live.current.settings.tasks
    return Bounds(chosen.max_per_principal, chosen.max)

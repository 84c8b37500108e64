"""Records the metrics of one request.

The stages say what happened in values; here, in one place, they become series. Nothing is measured twice: durations
and statuses are the audit's own, so that the two can be summed against one another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sidecar.audit import Recording
from sidecar.errors import Reason, Refusal
from sidecar.gateway.request import RequestContext
from sidecar.limits import LimitPlan
from sidecar.observability.metrics import TOOL_ERROR, Metrics
from sidecar.vocabulary import Decision, PermissionKind

AUTHENTICATION = frozenset(
    {
        Reason.UNAUTHENTICATED,
        Reason.BAD_CREDENTIAL,
        Reason.CREDENTIAL_CONFLICT,
        Reason.CLIENT_UNKNOWN,
        Reason.INSUFFICIENT_SCOPE,
    }
)
BEFORE_POLICY = frozenset({Reason.METHOD_UNKNOWN, Reason.PRINCIPAL_DISABLED})  # denied before policy was asked


def measure(metrics: Metrics, turn: RequestContext) -> None:
    """Count one finished request."""
    record, refusal = turn.record, turn.refusal
    if turn.unanswered:
        metrics.request_unanswered(turn.protocol)
        if refusal is not None and refusal.reason in AUTHENTICATION:
            metrics.auth_failed(turn.presented_kind, refusal.reason)
        return
    status = refusal.answer.status if refusal else TOOL_ERROR if record.tool_error else "success"
    metrics.request_finished(turn.protocol, turn.server, turn.method, status, record.duration_s, record.stages_s)
    judged(metrics, JudgedRequest(record, turn.plan, refusal, turn.excused, turn.shadow))
    if refusal is not None and refusal.reason in AUTHENTICATION:
        metrics.auth_failed(turn.presented_kind, refusal.reason)
    if refusal is not None and refusal.reason is Reason.BAD_ARGUMENTS:
        metrics.schema_violated(turn.server)
    upstream_s = record.stages_s.get("upstream")
    if not turn.server:  # nobody's, or a call to all servers: who answers for them counts them one by one
        return
    if upstream_s is not None:
        metrics.upstream_answered(turn.server, upstream_s)


class JudgedRequest(NamedTuple):
    """What policy and limits said of a call, whoever asked them. `excused` are the limits' refusals that shadow mode
    passed by."""

    record: Recording
    plan: LimitPlan | None
    refusal: Refusal | None
    excused: Sequence[Refusal] = ()
    shadow: bool = False


def judged(metrics: Metrics, call: JudgedRequest) -> None:
    """Count what was said."""
    record, refusal = call.record, call.refusal
    if record.decision is not None:
        _count_decision(metrics, record.decision, "would_deny" if call.shadow else "deny")
    for state in record.limits:
        if state.unit:
            metrics.budget_used(state.name, 1 - state.remaining / state.limit, state.reset_at or 0.0)
    for excused in call.excused:
        _count_limit(metrics, call.plan, excused)
    if refusal is not None:
        if refusal.reason in BEFORE_POLICY:
            metrics.decided(PermissionKind.AGENT_TO_TOOL, "deny", refusal.reason)
        _count_limit(metrics, call.plan, refusal)
    elif call.plan is not None and not call.excused:
        for charge in call.plan.charges:
            metrics.limit_checked(charge.limit, "degraded" if record.enforcement == "degraded" else "admitted")


def _count_decision(metrics: Metrics, decision: Decision, no: str) -> None:
    """By the link that decided: the first that was denied, or the last of those that were all allowed."""
    denied = [link for link in decision.links if not link.allowed]
    deciding = denied[0] if denied else decision.links[-1]
    metrics.decided(deciding.kind, "allow" if decision.allowed else no, decision.reason)


def _count_limit(metrics: Metrics, plan: LimitPlan | None, refusal: Refusal) -> None:
    if refusal.limit is not None and refusal.reason is not Reason.STORE_UNAVAILABLE:
        metrics.limit_checked(refusal.limit.name, "refused")
    if refusal.reason is Reason.STORE_UNAVAILABLE and plan is not None:
        for charge in plan.charges:
            metrics.limit_checked(charge.limit, "unavailable")

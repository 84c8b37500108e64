"""Records the metrics of one request.

The stages report values; only this module turns them into series. Durations and statuses are those of the audit record,
so that the two can be compared.
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
BEFORE_POLICY = frozenset({Reason.METHOD_UNKNOWN, Reason.PRINCIPAL_DISABLED})  # denied before policy was evaluated


def measure(metrics: Metrics, request: RequestContext) -> None:
    record, refusal = request.record, request.refusal
    if request.unanswered:
        metrics.request_unanswered(request.protocol)
        if refusal is not None and refusal.reason in AUTHENTICATION:
            metrics.auth_failed(request.presented_kind, refusal.reason)
        return
    status = refusal.answer.status if refusal else TOOL_ERROR if record.tool_error else "success"
    metrics.request_finished(
        request.protocol, request.server, request.method, status, record.duration_s, record.stages_s
    )
    judged(metrics, JudgedRequest(record, request.plan, refusal, request.excused, request.shadow))
    if refusal is not None and refusal.reason in AUTHENTICATION:
        metrics.auth_failed(request.presented_kind, refusal.reason)
    if refusal is not None and refusal.reason is Reason.BAD_ARGUMENTS:
        metrics.schema_violated(request.server)
    upstream_s = record.stages_s.get("upstream")
    if not request.server:  # a call to no server, or to all of them: the aggregate frontend counts each server
        return
    if upstream_s is not None:
        metrics.upstream_answered(request.server, upstream_s)


class JudgedRequest(NamedTuple):
    """The decisions of policy and limits on a call. `excused` are the refusals by limits that shadow mode let pass."""

    record: Recording
    plan: LimitPlan | None
    refusal: Refusal | None
    excused: Sequence[Refusal] = ()
    shadow: bool = False


def judged(metrics: Metrics, call: JudgedRequest) -> None:
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
    """Counts a decision by its deciding link: the first denied one, or the last if all were allowed."""
    denied = [link for link in decision.links if not link.allowed]
    deciding = denied[0] if denied else decision.links[-1]
    metrics.decided(deciding.kind, "allow" if decision.allowed else no, decision.reason)


def _count_limit(metrics: Metrics, plan: LimitPlan | None, refusal: Refusal) -> None:
    if refusal.limit is not None and refusal.reason is not Reason.STORE_UNAVAILABLE:
        metrics.limit_checked(refusal.limit.name, "refused")
    if refusal.reason is Reason.STORE_UNAVAILABLE and plan is not None:
        for charge in plan.charges:
            metrics.limit_checked(charge.limit, "unavailable")

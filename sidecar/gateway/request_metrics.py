"""Records the metrics of one request.

The stages report values; only this module turns them into series. Durations and statuses are those of the audit record,
so that the two can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence

from sidecar.audit import Recording
from sidecar.errors import Reason, Refusal
from sidecar.gateway.request import RequestContext
from sidecar.limits import LimitPlan
from sidecar.observability.metrics import TOOL_ERROR, Metrics
from sidecar.vocabulary import Decision, PermissionKind

AUTHENTICATION = frozenset(
    {Reason.UNAUTHENTICATED, Reason.BAD_CREDENTIAL, Reason.CREDENTIAL_CONFLICT, Reason.CLIENT_UNKNOWN}
    | {Reason.INSUFFICIENT_SCOPE}
)
BEFORE_POLICY = frozenset({Reason.METHOD_UNKNOWN, Reason.PRINCIPAL_DISABLED})  # denied before policy was evaluated


def measure(metrics: Metrics, request: RequestContext) -> None:
    """Counts a finished request."""
    record, refusal, server = request.record, request.refusal, request.server
    if refusal is not None and refusal.reason in AUTHENTICATION:
        metrics.auth_failed(request.presented_kind, refusal.reason)
    if request.unanswered:
        metrics.request_unanswered(request.protocol)
        return
    status = refusal.answer.status if refusal else TOOL_ERROR if record.tool_error else "success"
    metrics.request_finished(request.protocol, server, request.method, status, record.duration_s, record.stages_s)
    judged(metrics, record, request.plan, refusal, request.excused, shadow=request.shadow)
    if refusal is not None and refusal.reason is Reason.BAD_ARGUMENTS:
        metrics.schema_violated(server)
    # Of a call to no server, or to all of them, the aggregate frontend counts each server.
    if server and (upstream_s := record.stages_s.get("upstream")) is not None:
        metrics.upstream_answered(server, upstream_s)


def judged(
    metrics: Metrics,
    record: Recording,
    plan: LimitPlan | None,
    refusal: Refusal | None,
    excused: Sequence[Refusal],
    *,
    shadow: bool,
) -> None:
    """Counts the decisions of policy and limits on a call. `excused` are the refusals by limits that shadow mode let
    pass."""
    if record.decision is not None:
        _count_decision(metrics, record.decision, "would_deny" if shadow else "deny")
    for state in record.limits:
        if state.unit:
            metrics.budget_used(state.name, 1 - state.remaining / state.limit, state.reset_at or 0.0)
    if refusal is not None and refusal.reason in BEFORE_POLICY:
        metrics.decided(PermissionKind.AGENT_TO_TOOL, "deny", refusal.reason)
    for each in (*excused, *([refusal] if refusal is not None else ())):
        _count_limit(metrics, plan, each)
    if refusal is None and plan is not None and not excused:
        for charge in plan.charges:
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

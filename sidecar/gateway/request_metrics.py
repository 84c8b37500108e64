"""Records the metrics of one request, and describes it for the operator's log.

The stages report values; only this module turns them into series and fields. Durations and statuses are those of the
audit record, so they can be compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sidecar.audit.recorder import Recording
from sidecar.errors import Reason, Refusal
from sidecar.gateway.request import RequestContext
from sidecar.limits import LimitPlan
from sidecar.observability.metrics import AUTH_REASONS, MAX_ENDED, TOOL_ERROR, Metrics
from sidecar.observability.registry import Row
from sidecar.observability.tool_labels import ToolLabels
from sidecar.vocabulary import PermissionKind

BEFORE_POLICY = frozenset({Reason.METHOD_UNKNOWN, Reason.PRINCIPAL_DISABLED})  # denied before policy was evaluated


def measure(metrics: Metrics, request: RequestContext) -> None:
    """Counts a finished request."""
    record, refusal, server, plan = request.record, request.refusal, request.server, request.plan
    if refusal is not None:
        if refusal.reason in AUTH_REASONS:
            metrics.auth_failed(request.presented_kind, refusal.reason)
        if request.unanswered:
            return
        if refusal.reason is Reason.BAD_ARGUMENTS:
            metrics.schema_violated(server)
    decision, marks, series = record.decision, record.marks, None
    # For a call that names no server, the aggregate frontend measures each server.
    answered = "upstream" in marks and bool(server)
    kind = None if decision is None else decision.links[-1].kind
    tool = "" if metrics.tool_labels is None else _tool_label(metrics.tool_labels, request)
    key = request.protocol, server, request.method, record.tool_error, answered, id(kind), id(plan), tool
    is_usual = refusal is None and record.enforcement == "enforce" and (decision is None or decision.allowed)
    if not is_usual or (series := metrics.known_series.get(key)) is None:
        status = status_of(record, refusal)
        counts = _judgement(metrics, record, plan, refusal, request.excused, shadow=request.shadow)
        called = request.protocol, server, request.method, status
        series = metrics.request_series(*called, *counts, answered=answered, about=plan, tool=tool)
        if is_usual:
            metrics.keep_series(key, series)
    metrics.ended.append((series, record.started_s, record.now_s(), marks))
    if len(metrics.ended) >= MAX_ENDED:
        metrics.settle()
    if plan is not None and plan.paid:
        _count_spending(metrics, record)


def _tool_label(labels: ToolLabels, request: RequestContext) -> str:
    call = request.record.call
    if call is None or call.question.action != "tools/call":
        return ""
    service = request.now.services.get(request.server)
    return labels.label(request.server, call.question.name, () if service is None else service.catalogue.tools)


def status_of(record: Recording, refusal: Refusal | None) -> str:
    """How a request ended: one of `STATUSES`."""
    return refusal.answer.status if refusal else TOOL_ERROR if record.tool_error else "success"


def request_line(record: Recording, refusal: Refusal | None) -> Mapping[str, object]:
    """The fields of the log line of an answered request. None comes from the arguments."""
    return {
        **record.named(),
        "principal": None if record.caller is None else record.caller.last.name,
        "status": status_of(record, refusal),
        "reason": None if refusal is None else refusal.reason.value,
        "duration_ms": round(record.duration_s * 1000, 3),
        "decision_id": record.decision_id,
        "trace_id": record.trace_id,
    }


def judged(
    metrics: Metrics,
    record: Recording,
    plan: LimitPlan | None,
    refusal: Refusal | None,
    excused: Sequence[Refusal],
    *,
    shadow: bool,
) -> None:
    """Counts the decisions of policy and limits on a call; `excused` are refusals that shadow mode ignored."""
    for row in _judgement(metrics, record, plan, refusal, excused, shadow=shadow):
        row[0] += 1
    if plan is not None and plan.paid:
        _count_spending(metrics, record)


def _judgement(
    metrics: Metrics,
    record: Recording,
    plan: LimitPlan | None,
    refusal: Refusal | None,
    excused: Sequence[Refusal],
    *,
    shadow: bool,
) -> Iterator[Row]:
    """Yields the rows that count the decisions of policy and limits."""
    if (decision := record.decision) is not None:  # by its deciding link: the first denied one, otherwise the last
        deciding = next((link for link in decision.links if not link.allowed), decision.links[-1])
        word = "allow" if decision.allowed else "would_deny" if shadow else "deny"
        yield metrics.decision_row(deciding.kind, word, decision.reason)
    if refusal is not None and refusal.reason in BEFORE_POLICY:
        yield metrics.decision_row(PermissionKind.AGENT_TO_TOOL, "deny", refusal.reason)
    charges = () if plan is None else plan.charges
    for each in excused if refusal is None else (*excused, refusal):
        if each.reason is Reason.STORE_UNAVAILABLE:
            yield from (metrics.limit_row(charge.limit, "unavailable") for charge in charges)
        elif each.limit is not None:
            yield metrics.limit_row(each.limit.name, "refused")
    if refusal is None and not excused:
        outcome = "degraded" if record.enforcement == "degraded" else "admitted"
        yield from (metrics.limit_row(charge.limit, outcome) for charge in charges)


def _count_spending(metrics: Metrics, record: Recording) -> None:
    for state in record.limits:
        if state.unit:
            metrics.budget_used(state.name, 1 - state.remaining / state.limit, state.reset_at or 0.0)

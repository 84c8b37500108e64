"""Lints for rules that have expired, expire soon, or stay in shadow mode."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from sidecar.policy.grammar import Wrong, expires_at
from sidecar.policy_tools.check.linted_policy import LintedPolicy, PolicyFinding

DAY_S = 86_400
SHADOW_DAYS = 30  # CONTRACT 4: the maximum duration of `mode: shadow`


def ended(policy: LintedPolicy) -> Iterator[PolicyFinding]:
    """P621: expired. P622: expires within the given number of days."""
    for rule in policy.rules:
        if rule.expires_at is None:
            continue
        left_s = rule.expires_at - policy.now_s
        if left_s <= 0:
            hint = "take it away, or renew it"
            yield PolicyFinding("P621", f"expired at {_told(rule.expires_at)}", hint, rule, "expires_at")
        elif left_s <= policy.soon_days * DAY_S:
            message = f"expires in {_span(left_s)}, at {_told(rule.expires_at)}"
            yield PolicyFinding("P622", message, "renew it, or let it end", rule, "expires_at")


def long_in_shadow(policy: LintedPolicy) -> Iterator[PolicyFinding]:
    """P623: a shadow rule whose `created_at` is more than 30 days ago."""
    for rule in policy.rules:
        created_s = _created(policy.written.note(rule, "created_at")) if rule.shadow else None
        if created_s is not None and policy.now_s - created_s > SHADOW_DAYS * DAY_S:
            message = f"in the shadow for {_span(policy.now_s - created_s)}: it decides nothing"
            yield PolicyFinding("P623", message, "enforce it, or take it away", rule, "shadow")


def _created(text: str) -> float | None:
    try:
        return expires_at(text) if text else None
    except Wrong:
        return None


def _told(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _span(seconds: float) -> str:
    """Format a duration in days, or in hours below two days."""
    days, hours = int(seconds // DAY_S), int(seconds // 3600)
    return f"{days} days" if days >= 2 else f"{hours} hours" if hours >= 2 else f"{int(seconds // 60)} minutes"

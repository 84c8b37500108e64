"""What several workers know, on one page."""

from typing import Any

from sidecar.admin.console.pages.limits import _from, _united
from sidecar.admin.console.pages.tools import _upstream_row


def limit(name: str, who: str | None, used: int) -> dict[str, Any]:
    return {"limit": name, "counted_for": who, "used": used, "most": 10}


def test_each_worker_knows_its_own_callers_and_all_read_the_same_counters() -> None:
    own = [limit("rule:a", "user:x", 3), limit("rule:all", None, 9)]
    others = [{"limits": [limit("rule:a", "user:y", 5), limit("rule:all", None, 8)]}]
    rows = [(one["limit"], one["counted_for"], one["used"]) for one in _united(own, others)]
    assert rows == [("rule:all", None, 9), ("rule:a", "user:y", 5), ("rule:a", "user:x", 3)]
    assert [_from(share, _united(own, others)) for share in (1.0, 0.8, 0.5, 0.0)] == [0, 1, 2, 3]


def upstream(status: str, calls: int, **more: Any) -> dict[str, Any]:
    standing = {"status": status, "calls": calls, "errors": 1, "tool_errors": 0, "sessions": 2, "enabled": True}
    told = {"average_latency_ms": None, "last_error": None, "last_error_at": None, "last_health_check": None}
    return {**standing, **told, "breaker": {"state": "closed"}, **more}


def test_an_upstream_is_as_bad_as_at_the_worst_worker() -> None:
    out = upstream(
        "offline", 5, breaker={"state": "open"}, last_error="it is gone", last_error_at="2026-11-30T00:00:00Z"
    )
    row = _upstream_row("github", upstream("ready", 3, changed={"a": []}), [{"github": out}, {}])
    assert (row["status"], row["statuses"], row["calls"], row["sessions"]) == ("offline", ["offline", "ready"], 8, 4)
    assert (row["breaker"]["state"], row["last_error"], row["changed"], row["attention"]) == (
        "open",
        "it is gone",
        1,
        True,
    )
    assert _upstream_row("github", upstream("ready", 3), [])["attention"] is False

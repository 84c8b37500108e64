"""Who bounds lists and pings?"""

from __future__ import annotations

import pytest

from sidecar.errors import Reason, Refusal
from sidecar.limits import SessionCalls


class Clock:
    now_s = 1000.5

    def __call__(self) -> float:
        return self.now_s


def refused(calls: SessionCalls, principal: str) -> Refusal | None:
    try:
        calls.charge(principal)
    except Refusal as refusal:
        return refusal
    return None


def test_each_principal_has_as_many_a_minute_as_the_setting_says() -> None:
    calls = SessionCalls(3, Clock())
    assert [refused(calls, "user:alice") is None for _ in range(5)] == [True] * 3 + [False] * 2
    assert refused(calls, "user:bob") is None


def test_the_refusal_says_when_to_come_back_and_keeps_its_word() -> None:
    clock = Clock()
    calls = SessionCalls(1, clock)
    calls.charge("user:alice")
    refusal = refused(calls, "user:alice")
    assert refusal is not None
    assert refusal.reason is Reason.RATE_LIMITED
    assert refusal.limit is not None
    assert (refusal.limit.limit, refusal.limit.remaining, refusal.limit.window_s) == (1, 0, 60.0)
    assert refusal.retry_after_s is not None
    clock.now_s += refusal.retry_after_s - 0.01
    assert refused(calls, "user:alice")
    clock.now_s += 0.02
    assert refused(calls, "user:alice") is None


def test_the_table_forgets_the_quiet_and_never_the_busy() -> None:
    clock = Clock()
    calls = SessionCalls(1, clock, max_principals=2)
    calls.charge("user:a")
    calls.charge("user:b")
    with pytest.raises(Refusal):
        calls.charge("user:c")
    clock.now_s += 62
    calls.charge("user:c")
    calls.charge("user:a")
    assert refused(calls, "user:c")

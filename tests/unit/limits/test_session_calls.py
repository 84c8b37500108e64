"""Who bounds lists and pings?"""

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


def test_each_principal_has_as_many_a_minute_as_the_setting_says_and_hears_when_to_come_back() -> None:
    clock = Clock()
    calls = SessionCalls(3, clock)
    assert [refused(calls, "user:alice") is None for _ in range(4)] == [True] * 3 + [False]
    assert refused(calls, "user:bob") is None
    refusal = refused(calls, "user:alice")
    assert refusal and refusal.limit and refusal.retry_after_s and refusal.reason is Reason.RATE_LIMITED
    assert (refusal.limit.limit, refusal.limit.remaining, refusal.limit.window_s) == (3, 0, 60.0)
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

"""Who is refused too often?"""

from typing import Any

import pytest

from sidecar.errors import ANSWERS, Reason, Refusal
from sidecar.http.server.refusal_throttle import CLOSED, COUNTED, MAX_TOLD, OTHERS, MinuteCounts, RefusalThrottle
from sidecar.settings.server import RefusalSettings
from sidecar.vocabulary import ANONYMOUS, Caller, Credential, Principal


def caller(name: str) -> Caller:
    return Caller((Principal(name, "local"),), (Credential("local"),))


PLANNER, OTHER = caller("nhi:planner"), caller("nhi:other")
NOBODY = Caller((Principal(ANONYMOUS),), (Credential("anonymous"),))
NO, LIMIT = Refusal(Reason.BAD_CREDENTIAL), Refusal(Reason.RATE_LIMITED)


class Ground:
    """Refusals, their clock, and what was counted."""

    def __init__(self, *, max_names: int = 10) -> None:
        self.now, self.unanswered, self.told = 0.0, 0, list[dict[str, Any]]()
        chosen = RefusalSettings(per_peer_per_minute=3, per_principal_per_minute=3, recorded_per_principal_per_minute=3)
        self.refusals = RefusalThrottle(lambda: chosen, self.refusal_unanswered, lambda: self.now, max_names)

    def refusal_unanswered(self) -> None:
        self.unanswered += 1

    def knock(self, peer: str, times: int = 1, caller: Caller | None = None) -> int:
        """How many of so many are closed."""
        return sum(self.refusals.closes(caller, peer, NO) for _ in range(times))

    def is_refused(self, caller: Caller) -> bool:
        try:
            self.refusals.check(caller)
        except Refusal as refusal:
            assert refusal.reason is Reason.TOO_MANY_REFUSALS
            return True
        return False

    async def witness(self, what: str, by: str, **facts: Any) -> None:
        assert what == (COUNTED if "reason" in facts or "chains" in facts else CLOSED) and by == "sidecar"
        self.told.append(facts)


def test_a_stranger_has_a_minute_from_the_first_refusal_on() -> None:
    ground = Ground()
    assert ground.knock("192.0.2.1", 5) == 2 == ground.unanswered
    assert ground.knock("192.0.2.2", 3) == 0, "another address"
    ground.now = 59.9
    assert ground.knock("192.0.2.1") == 1
    ground.now = 60
    assert ground.knock("192.0.2.1", 4) == 1


def test_an_ipv6_subnet_is_one_and_its_mapped_addresses_are_theirs() -> None:
    ground = Ground()
    assert ground.knock("2001:db8::1", 3) == 0 and ground.knock("2001:db8:0:0:ffff::9") == 1
    assert ground.knock("2001:db8:0:1::1") == 0
    assert ground.knock("192.0.2.1", 3) == 0 and ground.knock("::ffff:192.0.2.1") == 1
    for peer in ("local", "", "::nonsense", "fe80::1%eth0"):
        assert Ground().knock(peer, 4) == 1, "whatever it is called"
    assert Ground().knock("192.0.2.1", 4, NOBODY) == 1 and not ground.is_refused(NOBODY), "a stranger"


def test_a_principal_is_answered_always_and_told_to_come_later() -> None:
    ground = Ground()
    assert ground.knock("192.0.2.1", 3, PLANNER) == 0
    assert ground.is_refused(PLANNER) and not ground.is_refused(OTHER)
    with pytest.raises(Refusal) as refused:
        ground.now = 20
        ground.refusals.check(PLANNER)
    limit = refused.value.limit
    assert (limit.limit, limit.remaining, refused.value.retry_after_s) == (3, 0, 40)
    ground.now = 60
    assert not ground.is_refused(PLANNER)


def test_strangers_take_nothing_from_a_principal_at_their_address_nor_the_other_way_round() -> None:
    ground = Ground()
    ground.knock("192.0.2.1", 10)
    assert not ground.is_refused(PLANNER)
    ground = Ground()
    ground.knock("192.0.2.1", 10, PLANNER)
    assert ground.knock("192.0.2.1", 3) == 0


OWN_DOING = {reason for reason, answer in ANSWERS.items() if answer.http < 500 and answer.status != "rate_limited"}
OWN_DOING.remove(Reason.APPROVAL_PENDING)  # its caller comes again, as it was asked to


def test_what_counts_is_the_callers_own_doing() -> None:
    assert not {Reason.UPSTREAM_TIMEOUT, Reason.TOO_MANY_REFUSALS, Reason.DRAINING} & OWN_DOING
    for reason in Reason:
        ground = Ground()
        for _ in range(4):
            ground.refusals.closes(None, "192.0.2.1", Refusal(reason))
            ground.refusals.closes(PLANNER, "192.0.2.1", Refusal(reason))
        assert (ground.unanswered > 0) == (reason in OWN_DOING), reason
        assert ground.is_refused(PLANNER) == (reason in OWN_DOING - {Reason.CALLER_GONE}), reason


async def test_a_limits_refusals_of_one_chain_are_recorded_up_to_a_bound_and_counted_beyond() -> None:
    """14.6 MiB of records in 5 s were one throttled caller's choice."""
    ground = Ground()

    def counted(caller: Caller | None, reason: Reason, times: int, peer: str = "192.0.2.1") -> int:
        return sum(ground.refusals.only_counts(caller, peer, Refusal(reason)) for _ in range(times))

    assert counted(PLANNER, Reason.RATE_LIMITED, 10) == 7 and counted(PLANNER, Reason.OVERLOADED, 2) == 2
    assert counted(OTHER, Reason.TOO_MANY_REFUSALS, 3) == 0 and counted(OTHER, Reason.NO_MATCHING_RULE, 9) == 0
    assert counted(None, Reason.OVERLOADED, 9) == 0 and counted(NOBODY, Reason.RATE_LIMITED, 4) == 1
    await ground.refusals.tell(ground.witness)
    assert ground.told == [
        {"chain": ("nhi:planner",), "reason": "rate-limited", "count": 7},
        {"chain": ("nhi:planner",), "reason": "overloaded", "count": 2},
        {"peer": "192.0.2.1", "reason": "rate-limited", "count": 1},
    ]
    ground.now = 60
    assert counted(PLANNER, Reason.RATE_LIMITED, 4) == 1


async def test_chains_that_do_not_fit_are_counted_together() -> None:
    ground = Ground(max_names=2)
    for number in range(9):
        for _ in range(4):
            ground.refusals.only_counts(caller(f"nhi:n{number}"), "", LIMIT)
    await ground.refusals.tell(ground.witness)
    assert sum(one["count"] for one in ground.told) == 2 * 1 + 7 * 4 and len(ground.told) == 3


def test_more_addresses_than_fit_are_one_together() -> None:
    ground = Ground(max_names=10)
    assert sum(ground.knock(f"192.0.2.{number}") for number in range(10)) == 0
    assert sum(ground.knock(f"198.51.100.{number}") for number in range(10)) == 7
    assert ground.knock("192.0.2.1", 3) == 1, "who is known is counted as before"
    ground.now = 60
    assert ground.knock("198.51.100.7", 3) == 0


async def test_what_was_closed_is_told_once_the_most_first_and_the_rest_together() -> None:
    ground = Ground(max_names=1000)
    for number in range(MAX_TOLD + 20):
        ground.knock(f"10.0.{number}.1", 4)
    ground.knock("192.0.2.1", 53)
    await ground.refusals.tell(ground.witness)
    assert ground.told[0] == {"peer": "192.0.2.1", "count": 50}
    assert len(ground.told) == MAX_TOLD + 1 and ground.told[-1] == {"peers": 21, "count": 21}
    assert sum(one["count"] for one in ground.told) == ground.unanswered
    ground.told.clear()
    await ground.refusals.tell(ground.witness)
    assert ground.told == []


async def test_what_could_not_be_told_is_told_later_and_does_not_grow() -> None:
    ground = Ground(max_names=5)

    async def cannot(*_: Any, **__: Any) -> None:
        raise Refusal(Reason.AUDIT_UNAVAILABLE)

    for minute in range(20):
        ground.now = minute * 60.0
        ground.knock(f"10.0.{minute}.1", 4)
        with pytest.raises(Refusal):
            await ground.refusals.tell(cannot)
    await ground.refusals.tell(ground.witness)
    assert {one["peer"] for one in ground.told} == {f"10.0.{minute}.1" for minute in range(5)} | {OTHERS}
    assert sum(one["count"] for one in ground.told) == ground.unanswered == 20


def test_a_table_is_as_large_as_it_may_be_and_forgets_what_is_over() -> None:
    now = [0.0]
    minutes = MinuteCounts(lambda: now[0], 3)
    assert [minutes.count(name) for name in "abcda"] == [1, 1, 1, None, 2]
    now[0] = 60
    assert minutes.count("d") == 1 and len(minutes.minutes) == 1 and minutes.standing("a") == (0, 0.0)

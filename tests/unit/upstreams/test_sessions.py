"""Does a session belong to one chain at one server, end when it must, and leave nothing behind?"""

import gc
from dataclasses import replace

import pytest

from sidecar.errors import Reason, Refusal
from sidecar.upstreams.mcp.sessions import (
    MAX_AWAITED,
    MAX_REMEMBERED,
    MAX_STREAMS,
    PendingRequest,
    Session,
    Sessions,
    upstream_id_from,
)
from sidecar.vocabulary import Caller, Credential, Principal
from tests.unit.upstreams.lines import refuses
from tests.unit.upstreams.peer import Clock

ALICE = Caller((Principal("user:alice", "https://idp"),), (Credential("jwt", "https://idp"),))
BOB = Caller((Principal("user:bob", "https://idp"),), (Credential("jwt", "https://idp"),))
PLANNER = Principal("nhi:planner", "local")
ASKED = PendingRequest("tools/call", "search", "decision-1", None)


def opened(sessions: Sessions, caller: Caller = ALICE, server: str = "github") -> Session:
    session, _ = sessions.start(caller, server, version="2025-11-25", upstream_id="upstream-session")
    return session


def found(sessions: Sessions, session: Session, caller: Caller = ALICE, server: str = "github") -> bool:
    try:
        return sessions.find(session.id, caller, server) is session
    except Refusal as refusal:
        assert refusal.reason is Reason.SESSION_UNKNOWN
        return False


@pytest.mark.parametrize(
    ("caller", "server", "theirs"),
    [
        (ALICE, "github", True),
        (replace(ALICE, credentials=(Credential("api_key"),), expires_at=9.0), "github", True),
        (ALICE, "gitlab", False),
        (BOB, "github", False),
        (replace(ALICE, chain=(Principal("user:alice", "https://other"),)), "github", False),
        (replace(ALICE, chain=(*ALICE.chain, PLANNER)), "github", False),
        (replace(ALICE, chain=(PLANNER, *ALICE.chain)), "github", False),
        (replace(ALICE, chain=()), "github", False),
    ],
    ids=["itself", "a-new-token", "another-server", "bob", "another-issuer", "lent", "borrowed", "nobody"],
)
def test_a_session_is_found_by_its_own_chain_at_its_own_server(caller: Caller, server: str, theirs: bool) -> None:
    sessions = Sessions(Clock())
    assert found(sessions, opened(sessions), caller, server) is theirs


def test_names_that_run_together_are_other_owners() -> None:
    one = replace(ALICE, chain=(Principal("user:a", "x"), Principal("user:b", "y")))
    for names in ((("user:ab", "xy"),), (("user:a", "xuser:b"), ("", "y")), (("user:b", "y"), ("user:a", "x"))):
        other = replace(ALICE, chain=tuple(Principal(*name) for name in names))
        assert one.binding != other.binding


def test_ids_are_long_random_and_never_the_upstreams() -> None:
    sessions = Sessions(Clock(), max_per_principal=2000)
    ids = {opened(sessions).id for _ in range(1000)}
    assert len(ids) == 1000 and all(len(identity) >= 43 and "upstream-session" not in identity for identity in ids)


def test_the_least_recently_used_session_of_a_chain_gives_way_and_nobody_elses() -> None:
    sessions = Sessions(Clock(), max_per_principal=3)
    others = opened(sessions, BOB)
    first, second, third = (opened(sessions) for _ in range(3))
    assert found(sessions, first)
    fourth, ended = sessions.start(ALICE, "github", version="", upstream_id=None)
    assert ended == [second] and second.ended
    assert [found(sessions, one) for one in (first, second, third, fourth)] == [True, False, True, True]
    assert found(sessions, others, BOB)


def test_a_full_table_refuses_newcomers_but_lets_a_chain_replace_its_own() -> None:
    sessions = Sessions(Clock(), max_sessions=3, max_per_principal=2)
    mine = [opened(sessions), opened(sessions)]
    opened(sessions, BOB)
    with refuses(Reason.TOO_MANY_CONCURRENT):
        opened(sessions, BOB)
    opened(sessions)
    assert len(sessions) == 3 and not found(sessions, mine[0])


def test_idle_and_old_sessions_end_and_those_with_an_open_stream_are_not_idle() -> None:
    clock = Clock()
    sessions = Sessions(clock, idle_s=60, lifetime_s=1000)
    idle, used, listening = (opened(sessions) for _ in range(3))
    closed: list[str] = []
    listening.open_stream(lambda: closed.append("stream"))
    clock.now += 50
    assert found(sessions, used)
    clock.now += 50
    assert not found(sessions, idle), "over is over, before any sweep"
    assert sessions.sweep() == [idle]
    assert found(sessions, used) and found(sessions, listening)
    clock.now += 1000
    assert not found(sessions, listening)
    assert set(sessions.sweep()) == {used, listening} and len(sessions) == 0
    assert closed == ["stream"]


def test_the_oldest_of_too_many_streams_gives_way_and_a_session_that_ended_opens_none() -> None:
    sessions, closed = Sessions(Clock()), list[int]()
    session = opened(sessions)
    closers = [lambda number=number: closed.append(number) for number in range(MAX_STREAMS + 2)]
    for close in closers:
        session.open_stream(close)
    assert closed == [0, 1] and len(session.streams) == MAX_STREAMS
    for close in closers + closers:
        session.close_stream(close)
    assert not session.streams
    sessions.end(session)
    with refuses(Reason.SESSION_UNKNOWN):
        session.open_stream(lambda: None)
    assert not session.streams


def test_an_event_id_comes_back_as_it_was_or_is_not_told_where_no_header_can_bring_it_back() -> None:
    session = opened(Sessions(Clock()))
    for upstreams in ("1", "17", "a b", "~", "x" * 1024, "=?base64?", "0"):
        sealed = session.sealed_event_id(upstreams)
        assert upstreams not in sealed[16:] and sealed.isascii() and " " not in sealed
        assert session.opened_event_id(sealed) == upstreams
    for upstreams in ("", " 1", "1 ", "é", "\n", "a\x7f", "x" * 1025):
        assert session.sealed_event_id(upstreams) is None


def test_foreign_guessed_and_incremented_event_ids_open_nothing() -> None:
    sessions = Sessions(Clock())
    mine, other = opened(sessions), opened(sessions)
    sealed = mine.sealed_event_id("41")
    forged = sealed[:-2] + ("Mg" if sealed[-2:] != "Mg" else "Mw")
    foreign = other.sealed_event_id("41")
    assert foreign != sealed
    for guess in (foreign, forged, sealed[:-1], sealed + "A", sealed[1:], "41", "42", "", "=", "é", "A" * 40, "!" * 30):
        assert mine.opened_event_id(guess) is None, guess


def test_what_is_remembered_of_a_session_is_bounded() -> None:
    session = opened(Sessions(Clock()))
    for number in range(1000):
        session.remember(number, ASKED)
        session.expect(str(number), "ping")
    assert len(session.sent) == MAX_REMEMBERED and 999 in session.sent and 0 not in session.sent
    assert len(session.awaited) == MAX_AWAITED and "999" in session.awaited


def test_of_an_id_that_is_used_twice_nobody_knows_what_an_answer_is_to() -> None:
    session = opened(Sessions(Clock()))
    session.remember(1, ASKED)
    assert session.sent[1] == ASKED and "1" not in session.sent
    for number in range(2, 4):
        session.remember(1, ASKED._replace(decision_id=f"decision-{number}"))
        assert session.sent[1] is None


def test_an_upstreams_session_id_is_taken_as_it_is_or_refused_where_it_cannot_go_back() -> None:
    for header in (None, "a", "~" * 1024, "upstream-1"):
        assert upstream_id_from(header) == header
    for header in ("", " ", "a b", "a\tb", "é", "x" * 1025, "a\x7f"):
        with refuses(Reason.RESPONSE_REFUSED):
            upstream_id_from(header)


def test_hundreds_of_each_cycle_leave_nothing() -> None:
    """BL-043."""

    def alive() -> int:
        gc.collect()
        return sum(type(one) is Session for one in gc.get_objects())

    def open_and_end() -> None:
        session = opened(sessions)
        session.open_stream(lambda: session.close_stream(session.streams.popitem))  # a cycle, as real streams make them
        sessions.end(session)

    before, clock = alive(), Clock()
    sessions, full = Sessions(clock, idle_s=30), Sessions(Clock(), max_sessions=1)
    kept = opened(full)
    for _ in range(400):
        open_and_end()
    assert len(sessions) == 0
    for _ in range(400):
        opened(sessions)
        clock.now += 1
    assert len(sessions) <= sessions.max_per_principal
    clock.now += 31
    sessions.sweep()
    for _ in range(400):
        with pytest.raises(Refusal):
            opened(full, BOB)
    full.end(kept)
    assert len(sessions) == len(full) == 0 and not sessions._by_owner and not full._by_owner
    del kept
    assert alive() <= before

"""Who gets a place, and who gives one up?"""

from dataclasses import dataclass

import pytest

from sidecar.http.server.connection_limits import LOCAL, Activity, ConnectionLimits, Seat, peer_of
from tests.tables import tables

TABLES = tables("http/server/connection_limits")


@dataclass
class Guest:
    """The protocol of a connection."""

    activity: Activity
    dismissed: bool = False

    def dismiss(self) -> None:
        self.dismissed = True


def seat_of(seats: ConnectionLimits, name: str) -> tuple[Seat, Guest]:
    """A connection such as "a-busy-1": of peer a, busy."""
    peer, state, _ = name.split("-")
    guest = Guest(Activity.IDLE if state == "lingers" else Activity[state.upper()])
    return Seat(seats, peer, guest=guest), guest


def seated(seats: ConnectionLimits, *names: str) -> dict[str, Guest]:
    made = {}
    for name in names:
        seat, made[name] = seat_of(seats, name)
        assert seats.take(seat)
        if "lingers" in name:
            seats.linger(seat)
    return made


# (who sits there when all four places are taken, the newcomer's peer) → who leaves; "" is nobody: it is turned away.
CASES: dict[str, tuple[tuple[str, ...], str, str]] = TABLES["cases"]


@pytest.mark.parametrize(("there", "newcomer", "leaves"), CASES.values(), ids=CASES)
def test_when_all_places_are_taken(there: tuple[str, ...], newcomer: str, leaves: str) -> None:
    seats = ConnectionLimits(4)
    guests = seated(seats, *there)
    assert seats.take(Seat(seats, newcomer)) is bool(leaves)
    assert [name for name, guest in guests.items() if guest.dismissed] == ([leaves] if leaves else [])
    assert len(seats) == 4
    assert (seats.given_up, seats.turned_away) == (int(bool(leaves)), int(not leaves))


def test_a_peer_at_its_bound_makes_room_by_itself() -> None:
    seats = ConnectionLimits(10, max_per_peer=2)
    guests = seated(seats, "a-busy-1", "a-idle-2", "b-idle-3")
    assert seats.take(seat_of(seats, "a-busy-4")[0])
    assert guests["a-idle-2"].dismissed and not guests["b-idle-3"].dismissed
    assert not seats.take(Seat(seats, "a"))
    assert seats.take(Seat(seats, "b"))


def test_a_place_is_free_once_and_without_descriptors_room_is_made_by_those_who_do_nothing() -> None:
    seats = ConnectionLimits(100)
    guests = seated(seats, "a-idle-1", "a-busy-2", "b-silent-3")
    assert seats.make_room(8) == 2 and len(seats) == 1
    assert not guests["a-busy-2"].dismissed
    seat = Seat(seats, "a")
    assert seats.take(seat)
    for _ in range(2):
        seats.leave(seat)
        assert len(seats) == 1


def test_those_that_linger_have_a_bound_of_their_own() -> None:
    seats = ConnectionLimits(24)
    assert seats.max_lingering == 3
    guests = seated(seats, *[f"a-lingers-{number}" for number in range(5)])
    assert [guest.dismissed for guest in guests.values()] == [True, True, False, False, False]
    assert len(seats) == 3
    seats.stay(next(iter(seats.lingering)))
    guests |= seated(seats, "a-lingers-6")
    assert [guest.dismissed for guest in guests.values()] == [True, True, False, False, False, False]
    seats.linger(Seat(seats, "a"))
    assert len(seats) == 4, "who has no place takes none by it"


@pytest.mark.parametrize(("host", "peer"), [*TABLES["peers"], (LOCAL, LOCAL)])
def test_a_subnet_of_ipv6_is_one_peer(host: str, peer: str) -> None:
    assert peer_of(host) == peer

"""When is memory given back? Once for each crowd, when it has left and the place is quiet."""

import pytest

from sidecar.http.server.memory_trim import CROWD, MemoryTrim, give_memory_back


@pytest.mark.parametrize(
    ("seen", "times"),
    [
        ([0, 10, 400, 10, 10, 10], 0),  # no crowd
        ([0, CROWD, CROWD, CROWD // 2, CROWD // 2], 0),  # half of it is still there
        ([0, CROWD, CROWD // 5, CROWD // 6, CROWD // 7], 0),  # still leaving
        ([0, CROWD, 20, 20], 1),
        ([0, CROWD, 20, 20, 20, 20], 1),
        ([0, CROWD, 0, 0, 9 * CROWD, CROWD, CROWD], 2),
    ],
)
def test_memory_is_given_back_once_for_each_crowd_that_left(seen: list[int], times: int) -> None:
    given: list[int] = []
    crowds = MemoryTrim(lambda: given.append(1))
    for present in seen:
        crowds.look(present)
    assert len(given) == times


def test_giving_back_needs_nothing_of_the_system() -> None:
    give_memory_back()

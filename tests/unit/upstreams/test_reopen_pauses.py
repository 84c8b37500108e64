"""When is a stream that ended opened again?"""

from sidecar.upstreams.mcp.streams import ReopenPauses


def test_the_first_pause_is_the_shortest_and_each_further_one_twice_as_long_up_to_the_longest() -> None:
    pauses = ReopenPauses(1.0, 5.0)
    assert [pauses.after(0.0) for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_after_a_stream_that_lasted_the_pauses_begin_again() -> None:
    pauses = ReopenPauses(1.0, 5.0)
    assert [pauses.after(lasted_s) for lasted_s in (0.0, 0.0, 5.1, 5.0)] == [1.0, 2.0, 1.0, 2.0]

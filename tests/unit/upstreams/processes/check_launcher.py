"""Forty programs of every kind leave nothing."""

from bench import children
from tests.unit.upstreams.processes.test_launcher import linux


@linux
async def test_forty_programs_of_every_kind_leave_nothing() -> None:
    """`python -m bench.children` does ten thousand."""
    left = await children.run(40)
    assert left.nothing, left

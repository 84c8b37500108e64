"""Do the laboratories of programs find what is wrong, and nothing now? A small part of each."""

from pathlib import Path

import pytest

from bench import agent_kills, agents_many


async def test_a_kill_under_load_leaves_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m bench.agent_kills` kills two hundred times, and is less patient."""
    numbers = {"FIRST_S": 1.0, "GONE_WITHIN_S": 20.0, "WORKS_WITHIN_S": 60.0, "OVER_WITHIN_S": {1: 60.0}}
    for name, number in numbers.items():
        monkeypatch.setattr(agent_kills, name, number)
    told = await agent_kills.measured(tmp_path, kills=1, replicas=1, last_s=1.2)
    assert told["evidence_verifies"]
    assert {name: told[name] for name in agent_kills.MUST_BE_NOTHING if told[name]} == {}
    assert told["kills"] == 1 and sum(told["at_the_kill"].values()) > 0


async def test_programs_that_are_called_over_and_over_leave_nothing(tmp_path: Path) -> None:
    """BL-100. `python -m bench.agents_many` calls ten thousand times, and waits for what takes too long."""
    lots = {lot: weight for lot, weight in agents_many.LOTS.items() if lot != ("waits", "hangs")}
    told = await agents_many.measured(tmp_path, runs=12, timeout_s=60.0, lots=lots)
    assert agents_many.is_well(told), told
    assert told["came_to"]["TASK_STATE_COMPLETED"] > 8

"""Reports on the policy's files: made once for each state of them, within bounds, by a process."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sidecar.app import policy_examinations
from sidecar.app.policy_examinations import PolicyExaminations
from sidecar.upstreams.processes.launcher import Processes


@pytest_asyncio.fixture
async def processes() -> AsyncIterator[Processes]:
    started = Processes({})
    yield started
    await started.close()


async def finished(examinations: PolicyExaminations) -> Any:
    async with asyncio.timeout(30):
        while examinations._tasks:
            await asyncio.sleep(0.02)
    return examinations._last["check"].plain()


async def test_a_report_is_made_once_for_each_state_of_the_files(
    tmp_path: Path, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_examinations, "MAX_REPORT_BYTES", 10)
    (tmp_path / "policies").mkdir()
    files = [object()]
    examinations = PolicyExaminations(tmp_path / "sidecar.yaml", processes, lambda: files[0])
    assert [examinations.see("check")["state"] for _ in range(3)] == ["running"] * 3
    assert len(examinations._tasks) == 1
    told = await finished(examinations)
    assert told["state"] == "failed" and "is larger than" in told["why"] and told["took_s"] > 0
    assert examinations.see("check") == told and not examinations._tasks
    files[0] = object()
    assert examinations.see("check")["state"] == "running"
    await examinations.close()
    assert not examinations._tasks


async def test_a_report_has_a_deadline(tmp_path: Path, processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_examinations, "DEADLINE_S", 0.01)
    examinations = PolicyExaminations(tmp_path / "sidecar.yaml", processes, lambda: None)
    examinations.see("check")
    told = await finished(examinations)
    assert told["state"] == "failed" and "longer than" in told["why"]

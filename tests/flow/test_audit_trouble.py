"""What do callers and operators hear when the evidence cannot be written? (BL-028)"""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sidecar.app.application import Application
from sidecar.audit.chain import Append, Unsealed
from sidecar.audit.file_sink import LOOK_S
from sidecar.audit.verify import verify
from sidecar.audit.writer import RecordSink
from tests.flow.causes import GOOD
from tests.flow.talk import Talk
from tests.flow.world import PATIENCE_S, world

RULES = "p, nhi:planner, tool:github/search_code, use, -, -, -, allow\n"
DEADLINE_S = 0.2


class Frozen:
    """A disk that answers again once it thaws."""

    def __init__(self, disk: RecordSink) -> None:
        self.disk = disk
        self.thawed = threading.Event()

    def append(self, records: Sequence[Unsealed]) -> int:
        self.thawed.wait(20)
        return self.disk.append(records)

    def quick_append(self, count: int) -> Append | None:
        return self.append if self.thawed.is_set() and self.disk.quick_append(count) else None

    def settle(self) -> None:
        self.thawed.wait(20)
        self.disk.settle()

    def close(self) -> None:
        self.disk.close()


@contextmanager
def frozen(app: Application) -> Iterator[None]:
    writer: Any = app.audit.writer
    disk, writer._deadline_s = writer.sink, DEADLINE_S
    writer.sink = frost = Frozen(disk)
    try:
        yield
    finally:
        frost.thawed.set()
        writer.sink = disk


async def test_a_frozen_disk_is_a_503_in_time_and_holds_up_nothing_else(tmp_path: Path) -> None:
    """BL-028, a slow sink."""
    async with world(tmp_path, rules=RULES) as running:
        talk = Talk(running, "stateless")
        assert (await talk.call("search_code", GOOD))[0] == 200
        reached = len(running.upstream.calls())
        with frozen(running.app):
            crowd = await asyncio.gather(*(talk.call("search_code", GOOD) for _ in range(20)))
            assert {code for code, _, _ in crowd} == {503}
            assert {body["error"]["data"]["reason"] for _, body, _ in crowd} == {"audit-unavailable"}
            vars(running.app.audit.writer)["_deadline_s"] = 3600.0  # who comes now is refused at once, or never
            async with asyncio.timeout(PATIENCE_S):
                assert (await talk.call("search_code", GOOD))[0] == 503
                async with running.http.get(f"{running.admin_url}/livez") as alive:
                    assert alive.status == 200
            assert len(running.upstream.calls()) == reached, "what cannot be recorded does not happen"
        async with asyncio.timeout(PATIENCE_S):
            while (await talk.call("search_code", GOOD))[0] != 200:
                await asyncio.sleep(0.01)
    assert verify([running.app.settings.audit_path]).ok
    ends = [one["decision_id"] for one in running.records() if one["event"] in ("outcome", "refusal")]
    assert len(ends) == len(set(ends)), "no decision has two ends"


@pytest.mark.parametrize("act", [Path.unlink, lambda log: log.rename(log.with_name("moved.jsonl"))])
async def test_a_log_that_was_deleted_or_moved_beneath_us_lets_nothing_pass_until_a_start_has_said_so(
    tmp_path: Path, act: Callable[[Path], object]
) -> None:
    async with world(tmp_path, rules=RULES) as running:
        talk = Talk(running, "stateless")
        assert (await talk.call("search_code", GOOD))[0] == 200
        reached = len(running.upstream.calls())
        act(running.app.settings.audit_path)
        await asyncio.sleep(LOOK_S)
        assert (await talk.call("search_code", GOOD))[0] == 503
        assert len(running.upstream.calls()) == reached and not running.app.audit.writer.up
        assert running.app.readiness()[1]["status"] == "degraded"
    async with world(tmp_path, rules=RULES) as running:
        assert (await Talk(running, "stateless").call("search_code", GOOD))[0] == 200
    assert [problem.kind for problem in verify([running.app.settings.audit_path]).problems] == ["removed"]


async def test_calls_are_on_record_on_the_disk_too(tmp_path: Path) -> None:
    async with world(tmp_path, rules=RULES, settings="audit: {durability: disk}\n") as running:
        talk = Talk(running, "stateless")
        crowd = await asyncio.gather(*(talk.call("search_code", GOOD) for _ in range(50)))
        assert {code for code, _, _ in crowd} == {200}
    assert verify([running.app.settings.audit_path]).ok
    events = [record["event"] for record in running.records()]
    assert (events.count("decision"), events.count("outcome")) == (50, 50)


async def test_best_effort_goes_on_while_the_disk_does_not(tmp_path: Path) -> None:
    async with world(tmp_path, rules=RULES, settings="audit: {durability: best_effort}\n") as running:
        talk = Talk(running, "stateless")
        with frozen(running.app):
            for pause_s in (0.0, DEADLINE_S * 1.5):
                await asyncio.sleep(pause_s)
                assert {(await talk.call("search_code", GOOD))[0] for _ in range(5)} == {200}
        async with asyncio.timeout(PATIENCE_S):
            while running.app.audit.writer.depth:
                await asyncio.sleep(0.01)
        events = [record["event"] for record in running.records()]
        assert (events.count("decision"), events.count("outcome")) == (10, 10), "nothing was lost: there was room"
    assert verify([running.app.settings.audit_path]).ok

"""Are records found newest first, page by page and in time, wherever in the logs they are?"""

import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from sidecar.audit.log_blocks import LogFiles, RecentLines
from sidecar.audit.record_filter import RecordFilter, earlier
from sidecar.audit.record_ids import time_ordered_ids, timestamp
from sidecar.audit.search import SearchPage, following, record_at, records_of, search, time_of_id
from sidecar.audit.segments import files_of
from sidecar.audit.tail import NewestLines
from sidecar.errors import Reason
from tests.at_once import at_once
from tests.unit.audit.scenes import START_S, FakeClock, Rotation, forward, open_audit, records, refuse
from tests.unit.audit.test_rotation import SELDOM

CALLS = 60


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[dict[int, LogFiles]]:
    """Those of two workers that take turns, a second between calls; every tenth call is refused."""
    clock = FakeClock()
    paths = {1: tmp_path / "1" / "audit.jsonl", 2: tmp_path / "2" / "audit.jsonl"}
    rotation = {"attester": SELDOM, "rotation": Rotation(max_bytes=20_000), "new_id": time_ordered_ids(clock)}
    audits = {worker: open_audit(path, clock=clock, **rotation) for worker, path in paths.items()}
    for number in range(CALLS):
        audit = audits[1 + number % 2]
        if number % 10:
            forward(audit, object=f"tool:github/tool-{number}")
        else:
            refuse(audit)
        clock.now += 1
    for audit in audits.values():
        at_once(audit.close())
    assert all(len(files_of(path)) > 2 for path in paths.values())
    yield {worker: LogFiles(path) for worker, path in paths.items()}


def all_records(logs: dict[int, LogFiles]) -> list[dict[str, Any]]:
    found = [record for log in logs.values() for file in files_of(log.path) for record in records(file)]
    return sorted(found, key=lambda record: (record["timestamp"], record["seq"]), reverse=True)


def ids_of(page: SearchPage) -> list[str]:
    return [one.record["id"] for one in page.found]


def test_pages_give_each_record_once_newest_first(logs: dict[int, LogFiles]) -> None:
    wanted, seen, places = RecordFilter(event="outcome"), list[str](), None
    while True:
        page = search(logs, wanted, limit=7, within_s=30.0, before=places)
        seen += ids_of(page)
        if page.next is None:
            break
        assert len(page.found) == 7
        places = page.next
    assert seen == [record["id"] for record in all_records(logs) if record["event"] == "outcome"]
    assert len(seen) == CALLS * 9 // 10


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (RecordFilter(reason="denied-by-rule"), 6),
        (RecordFilter(object="tool:github/tool-1*", event="decision"), 10),
        (RecordFilter(principal="user:*/alice", event="refusal"), 6),
        (RecordFilter(principal="user:mallory"), 0),
        (RecordFilter(object='tool:"quoted"*'), 0),
        (RecordFilter(since=timestamp(START_S + 50), event="outcome"), 9),
        (RecordFilter(until=timestamp(START_S + 11), event="outcome"), 9),
        (RecordFilter(since=timestamp(START_S + 20), until=timestamp(START_S + 30)), 19),
    ],
)
def test_filters_find_what_they_name(logs: dict[int, LogFiles], wanted: RecordFilter, expected: int) -> None:
    page = search(logs, wanted, limit=1000, within_s=30.0, takes=lambda record: record["event"] != "control")
    assert len(page.found) == expected and page.next is None
    assert ids_of(page) == [r["id"] for r in all_records(logs) if wanted.wants(r) and r["event"] != "control"]


def test_a_search_ends_in_time_and_says_where_it_goes_on(logs: dict[int, LogFiles]) -> None:
    wanted, places, looks = RecordFilter(object="tool:github/tool-1"), None, 0
    while True:
        ticks = count()
        page = search(logs, wanted, limit=9, within_s=1.0, before=places, clock_mono=lambda ticks=ticks: next(ticks))
        looks += 1
        if page.found or page.next is None:
            break
        assert page.back_to > timestamp(START_S)
        places = page.next
    assert looks > 2 and page.found[0].record["object"] == "tool:github/tool-1"


def test_only_what_came_after_some_places_is_found(logs: dict[int, LogFiles]) -> None:
    newest = search(logs, RecordFilter(), limit=1, within_s=30.0).found[0]
    ends = {worker: records(log.path)[-1]["seq"] for worker, log in logs.items()}
    assert search(logs, RecordFilter(), limit=9, within_s=30.0, after=ends).found == []
    found = search(logs, RecordFilter(), limit=9, within_s=30.0, after={**ends, newest.worker: ends[newest.worker] - 1})
    assert ids_of(found) == [newest.record["id"]]


def test_a_decision_is_found_by_the_time_in_its_id(logs: dict[int, LogFiles]) -> None:
    for record in all_records(logs)[:: CALLS // 4]:
        if (decision_id := record["decision_id"]) is None:
            continue
        found = records_of(logs, decision_id, within_s=30.0)
        expected = [r["id"] for r in reversed(all_records(logs)) if r["decision_id"] == decision_id]
        assert [one.record["id"] for one in found] == expected
        began_s = time_of_id(decision_id)
        assert began_s is not None and timestamp(began_s)[:23] <= record["timestamp"]
    assert records_of(logs, "019a0000-0000-7000-8000-000000000000", within_s=30.0) == []
    assert records_of(logs, "no-such-decision", within_s=30.0) == []
    assert time_of_id("zzzzzzzz-zzzz-7zzz-8zzz-zzzzzzzzzzzz") is None


def test_a_record_is_found_by_its_place_and_with_what_came_after_it(logs: dict[int, LogFiles]) -> None:
    for worker, log in logs.items():
        for file in files_of(log.path):
            for expected in records(file)[::5]:
                found = record_at(logs, worker, expected["seq"])
                assert found is not None and found.record == expected
    assert record_at(logs, 1, 10**9) is None and record_at(logs, 9, 1) is None
    since = timestamp(START_S + 30)
    after = following(logs, RecordFilter(event="refusal"), since, limit=2, within_s=30.0)
    assert [one.record["timestamp"] for one in after] == [since, timestamp(START_S + 40)]
    assert earlier(timestamp(START_S + 40), 10) == since


def test_lines_that_are_no_records_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    audit = open_audit(path)
    refuse(audit, Reason.UNAUTHENTICATED, 401)
    at_once(audit.close())
    line = path.read_bytes()
    path.write_bytes(b"no record\n" + line + b'{"v":2,"x":\n' + b"y" * 3_000_000 + b"\n" + line[:50])
    found = search({0: LogFiles(path)}, RecordFilter(), limit=9, within_s=30.0).found
    assert [one.record["seq"] for one in found] == [1]
    assert record_at({0: LogFiles(path)}, 0, 1) is not None
    assert search({0: LogFiles(tmp_path / "none.jsonl")}, RecordFilter(), limit=9, within_s=30.0) == SearchPage(
        [], None, ""
    )


def test_the_newest_lines_come_whole_and_across_files(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    late = NewestLines(path)
    path.write_bytes(b'{"seq":1}\n')
    tail = NewestLines(path)
    assert late.read(100) == (b'{"seq":1}\n', 0)
    assert tail.read(100) == (b"", 0)
    with path.open("ab") as file:
        file.write(b'{"seq":2}\n{"se')
    assert tail.read(100) == (b'{"seq":2}\n', 0)
    with path.open("ab") as file:
        file.write(b'q":3}\n')
    path.rename(tmp_path / "audit-20261130T000000Z-000000000003.jsonl")
    path.write_bytes(b'{"seq":4}\n{"seq":5}\n')
    assert tail.read(100) == (b'{"seq":3}\n{"seq":4}\n{"seq":5}\n', 0)
    with path.open("ab") as file:
        file.write(b'{"seq":6}\n{"seq":7}\n{"seq":8}\n')
    assert tail.read(25) == (b'{"seq":7}\n{"seq":8}\n', 10)
    path.write_bytes(b'{"seq":4}\n')  # appends were undone
    assert tail.read(100) == (b"", 0)
    with path.open("ab") as file:
        file.write(b'{"seq":5}\n')
    assert tail.read(100) == (b'{"seq":5}\n', 0)
    tail.close()
    late.close()


def test_what_is_kept_of_a_log_without_a_file_is_searched_alike(tmp_path: Path) -> None:
    path, recent = tmp_path / "audit.jsonl", RecentLines()
    audit = open_audit(path)
    for _ in range(5):
        forward(audit)
    at_once(audit.close())
    recent.add(path.read_bytes().splitlines(keepends=True))
    for wanted, before in ((RecordFilter(event="outcome"), None), (RecordFilter(), {0: 4})):
        in_file = search({0: LogFiles(path)}, wanted, limit=3, within_s=30.0, before=before)
        assert search({0: recent}, wanted, limit=3, within_s=30.0, before=before).found == in_file.found
    assert record_at({0: recent}, 0, 7) == record_at({0: LogFiles(path)}, 0, 7)
    assert (recent.count, len(recent.newest())) == (10, 10)


def test_a_viewer_of_a_log_without_a_file_misses_and_repeats_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(5):
            recent, seen = RecentLines(), b""
            tail, lines = recent.tail(), [b"%d\n" % number for number in range(1_500)]
            writing = Thread(target=lambda recent=recent, lines=lines: [recent.add([line]) for line in lines])
            writing.start()
            while writing.is_alive():
                seen += tail.read(1)[0]
            assert seen + tail.read(1)[0] == b"".join(lines)
    finally:
        sys.setswitchinterval(interval_s)

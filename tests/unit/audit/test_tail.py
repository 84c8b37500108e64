"""Does nobody who follows a log miss a line, or see one twice, whatever becomes of its file?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import orjson

from sidecar.audit.rotation import Rotation
from sidecar.audit.segments import files_of, given
from sidecar.audit.statistics import MAX_NAMES, OTHERS, Durations, Statistics
from sidecar.audit.tail import follow, lines
from tests.at_once import at_once
from tests.unit.audit.scenes import forward, open_audit
from tests.unit.audit.test_rotation import SELDOM


class Enough(Exception):
    """Nobody waits any longer."""


def followed(path: Path, acts: list[Callable[[], object]]) -> list[int]:
    """The sequences of all that is seen, when each act comes while nothing is new."""

    def wait() -> None:
        if not acts:
            raise Enough
        acts.pop(0)()

    seen = []
    try:
        for line in follow(files_of(path), wait):
            seen.append(orjson.loads(line)["seq"])
    except Enough:
        return seen
    raise AssertionError("it ended")


def test_who_follows_sees_each_record_once_across_new_files(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    audit = open_audit(path, attester=SELDOM, rotation=Rotation(max_bytes=8000))

    def calls(count: int) -> Callable[[], object]:
        return lambda: [forward(audit) for _ in range(count)]

    calls(4)()
    seen = followed(path, [calls(1), calls(2), lambda: None, calls(30), calls(1), calls(3)])
    end = audit.trail.end.seq
    at_once(audit.close())
    assert seen == list(range(1, end + 1)) and len(given(tmp_path)) > 6
    assert [orjson.loads(line)["seq"] for line in lines(given(tmp_path))] == seen


def test_half_a_line_is_not_shown_before_it_is_whole_and_one_that_was_taken_back_never(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_bytes(b'{"seq":1}\n')

    def appends(data: bytes) -> Callable[[], object]:
        return lambda: path.write_bytes(path.read_bytes() + data)

    def takes_back() -> None:
        path.write_bytes(path.read_bytes().rpartition(b"\n")[0] + b"\n")

    acts = [appends(b'{"se'), appends(b'q":2}\n'), appends(b'{"seq":99'), takes_back, appends(b'{"seq":3}\n')]
    assert followed(path, acts) == [1, 2, 3]


def test_a_file_that_is_between_two_names_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_bytes(b'{"seq":1}\n')
    part = tmp_path / "audit-20261128T120000Z-000000000002.jsonl"

    def renames() -> None:
        path.write_bytes(b'{"seq":1}\n{"seq":2}\n')
        path.rename(part)

    assert followed(path, [renames, lambda: None, lambda: path.write_bytes(b'{"seq":3}\n')]) == [1, 2, 3]


def test_no_line_hides_those_that_come_behind_it(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_bytes(b'{"seq":1}\n{"seq":9223372036854775807}\n')

    def appends() -> None:
        path.write_bytes(path.read_bytes() + b'{"seq":2}\n')

    assert followed(path, [appends]) == [1, 2**63 - 1, 2]


def test_what_was_taken_back_or_cut_is_gone_and_what_is_written_in_its_place_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_bytes(b'{"seq":1}\n{"seq":2}\n')

    def becomes(content: bytes) -> Callable[[], object]:
        return lambda: path.write_bytes(content)

    cut = b'{"seq":1}\n'
    acts = [becomes(cut), becomes(cut + b'{"seq":2}\n'), becomes(b""), becomes(b'{"seq":3}\n')]
    assert followed(path, acts) == [1, 2, 2, 3]


def test_what_was_set_aside_before_it_could_be_opened_is_seen_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_bytes(b'{"seq":3}\n')
    parts = [tmp_path / f"audit-20261128T120000Z-{seq:012d}.jsonl" for seq in (1, 2)]
    parts[0].write_bytes(b'{"seq":1}\n')
    found = follow([parts[0], path], list)
    parts[1].write_bytes(b'{"seq":2}\n')
    assert [orjson.loads(next(found))["seq"] for _ in range(3)] == [1, 2, 3]


def records(count: int) -> Iterator[dict[str, object]]:
    for number in range(count):
        status = "success" if number % 4 else "permission_denied"
        yield {
            "event": "outcome" if number % 4 else "refusal",
            "timestamp": f"2026-11-28T12:00:{number % 60:02d}.000000Z",
            "status": status,
            "agent_id": f"nhi:agent-{number}",
            "duration_ms": float(number),
        }


def test_counts_and_times_need_no_more_memory_for_more_records() -> None:
    statistics = Statistics()
    for record in records(MAX_NAMES + 5000):
        statistics.add(record)
    statistics.add({"event": "decision", "timestamp": "2026-11-28T11:00:00.000000Z"})
    data = statistics.as_data()
    assert data["by_status"] == {"success": 11250, "permission_denied": 3750}
    assert len(data["by_principal"]) == MAX_NAMES + 1 and data["by_principal"][OTHERS] == 5000
    assert data["by_event"]["decision"] == 1 and data["first"].startswith("2026-11-28T11")
    for percent, exact in ((50, 7500), (90, 13500), (99, 14850)):
        assert exact * 0.99 <= data["duration_ms"][f"p{percent}"] <= exact * 1.03
    assert data["duration_ms"]["max"] == 14999.0


def test_a_percentile_of_nothing_is_nothing_and_of_one_is_it() -> None:
    durations = Durations()
    assert durations.percentile(99) == 0.0
    durations.add(3.0)
    assert durations.percentile(50) == 3.0

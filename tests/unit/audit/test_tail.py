"""Does nobody who follows a log miss a line, or see one twice, whatever becomes of its file?"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import orjson
import pytest

from sidecar.audit.segments import files_of, given
from sidecar.audit.tail import follow, lines
from tests.at_once import at_once
from tests.unit.audit.scenes import Rotation, forward, open_audit
from tests.unit.audit.test_rotation import SELDOM


def followed(path: Path, acts: list[Callable[[], object]]) -> list[int]:
    """The sequences of all that is seen, when each act comes while nothing is new."""
    seen: list[int] = []
    with suppress(IndexError):  # no act is left
        for line in follow(files_of(path), lambda: acts.pop(0)()):
            seen.append(orjson.loads(line)["seq"])
        raise AssertionError("it ended")
    return seen


def of(*sequences: int) -> bytes:
    return b"".join(b'{"seq":%d}\n' % seq for seq in sequences)


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


BIG = 2**63 - 1


@pytest.mark.parametrize(
    ("contents", "seen"),
    [
        ([of(1), of(1) + b'{"se', of(1, 2), of(1, 2) + b'{"seq":99', of(1, 2), of(1, 2, 3)], [1, 2, 3]),
        ([of(1, BIG), of(1, BIG, 2)], [1, BIG, 2]),
        ([of(1, 2), of(1), of(1, 2), b"", of(3)], [1, 2, 2, 3]),
    ],
    ids=["half a line, and one that was taken back", "no line hides another", "what was cut is written anew"],
)
def test_what_is_whole_is_shown_once(tmp_path: Path, contents: list[bytes], seen: list[int]) -> None:
    first, *later = contents
    (path := tmp_path / "audit.jsonl").write_bytes(first)
    assert followed(path, [partial(path.write_bytes, content) for content in later]) == seen


def test_a_file_that_is_between_two_names_is_waited_for(tmp_path: Path) -> None:
    (path := tmp_path / "audit.jsonl").write_bytes(of(1))

    def renames() -> None:
        path.write_bytes(of(1, 2))
        path.rename(tmp_path / "audit-20261128T120000Z-000000000002.jsonl")

    assert followed(path, [renames, lambda: None, lambda: path.write_bytes(of(3))]) == [1, 2, 3]


def test_what_was_set_aside_before_it_could_be_opened_is_seen_in_its_place(tmp_path: Path) -> None:
    (path := tmp_path / "audit.jsonl").write_bytes(of(3))
    parts = [tmp_path / f"audit-20261128T120000Z-{seq:012d}.jsonl" for seq in (1, 2)]
    parts[0].write_bytes(of(1))
    found = follow([parts[0], path], list)
    parts[1].write_bytes(of(2))
    assert [orjson.loads(next(found))["seq"] for _ in range(3)] == [1, 2, 3]

"""Does verification find whatever was done to a log, and claim no more than it proved?"""

from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from sidecar.audit.chain import MAX_LINE_BYTES, ChainEnd, head_line
from sidecar.audit.verification_report import MAX_PROBLEMS
from sidecar.audit.verify import verify
from tests.at_once import at_once
from tests.unit.audit.scenes import (
    KEY,
    OTHER_KEY,
    forward,
    head_of,
    kinds,
    open_audit,
    records,
    seal,
    understood,
    write_log,
)

Lines = list[bytes]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "audit.jsonl"
    write_log(path)
    return path


def edit(path: Path, change: Callable[[Lines], Lines]) -> None:
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))


def resealed(line: bytes, old: bytes, new: bytes) -> bytes:
    """A changed line with a hash that fits it."""
    fields = orjson.loads(line.replace(old, new))
    del fields["hash"]
    return seal(fields)[0]


def test_a_log_in_order_is_proved_and_the_rest_is_said(path: Path) -> None:
    report = verify([path], key=KEY)
    assert report.ok
    assert (report.records, report.first_seq, report.last_seq) == (10, 1, 10)
    assert report.events == {"decision": 5, "outcome": 5}
    assert len(report.proved) == 2 and KEY.id in report.proved[1]
    assert any("both replaced" in what for what in report.unproved)
    without_key = verify([path])
    assert without_key.ok and len(without_key.proved) == 1
    assert any("without a key" in what for what in without_key.unproved)


CHANGED = b'"bytes_out":513'
TAMPERINGS: dict[str, tuple[Callable[[Lines], Lines], list[str]]] = {
    "a byte changed": (lambda s: [*s[:3], s[3].replace(b'"bytes_out":512', CHANGED), *s[4:]], ["changed"]),
    "changed and resealed": (lambda s: [*s[:3], resealed(s[3], b'"bytes_out":512', CHANGED), *s[4:]], ["changed"]),
    "the last line changed and resealed": (lambda s: [*s[:9], resealed(s[9], b":512", b":513")], ["changed"]),
    "a line removed": (lambda s: s[:4] + s[5:], ["removed"]),
    "many lines removed": (lambda s: s[:2] + s[8:], ["removed"]),
    "the first lines removed": (lambda s: s[3:], ["removed"]),
    "the end cut off": (lambda s: s[:-1], ["cut-end"]),
    "half the last line cut off": (lambda s: [*s[:-1], s[-1][:100]], ["cut-end"]),
    "everything cut off": (lambda s: [], ["cut-end"]),
    "two neighbours exchanged": (lambda s: [*s[:3], s[4], s[3], *s[5:]], ["reordered"]),
    "a line moved to the end": (lambda s: [*s[:3], *s[4:], s[3]], ["reordered"]),
    "a line moved to the front": (lambda s: [s[6], *s[:6], *s[7:]], ["reordered"] * 6),
    "a line repeated": (lambda s: [*s[:4], s[3], *s[4:]], ["inserted"]),
    "garbage put in": (lambda s: [*s[:4], b"hello\n", *s[4:]], ["unreadable"]),
    "an empty line put in": (lambda s: [*s[:4], b"\n", *s[4:]], ["unreadable"]),
    "a line replaced by garbage": (lambda s: [*s[:4], b"{}\n", *s[5:]], ["unreadable"]),
    "a newline lost": (lambda s: [*s[:4], s[4][:-1], *s[5:]], ["unreadable", "removed"]),
    "bytes before a line": (lambda s: [*s[:4], b" " + s[4], *s[5:]], ["changed"]),
    "a line added at the end": (lambda s: [*s, *extra_lines(s[-1], 2)], ["inserted"]),
}


def extra_lines(last: bytes, count: int) -> Lines:
    """Lines that continue the chain, by someone without the key."""
    added = []
    for _ in range(count):
        fields = orjson.loads(last)
        fields["seq"], fields["prev_hash"] = fields["seq"] + 1, fields.pop("hash")
        last, _ = seal(fields)
        added.append(last)
    return added


@pytest.mark.parametrize("name", TAMPERINGS)
def test_whatever_was_done_to_the_lines_is_found_and_named(path: Path, name: str) -> None:
    change, expected = TAMPERINGS[name]
    edit(path, change)
    report = verify([path], key=KEY)
    assert sorted(kinds(report)) == sorted(expected), report.problems
    assert not report.ok and report.proved == []


# --- the anchor ------------------------------------------------------------------------------------------------------


def test_without_an_anchor_a_cut_end_would_not_show_and_that_is_a_problem(path: Path) -> None:
    head_of(path).unlink()
    assert kinds(verify([path], key=KEY)) == ["no-anchor"]
    report = verify([path], key=KEY, part=True)
    assert report.ok and len(report.proved) == 1
    assert any("are a part" in what for what in report.unproved)


def test_what_is_no_anchor_or_of_another_key_is_called_forged(path: Path) -> None:
    last = records(path)[-1]
    others = head_line(OTHER_KEY, ChainEnd(last["seq"], last["hash"]))
    for content in (b"", b"hello", b"sidecar-audit-head 1\n", b"\0" * 188, others):
        head_of(path).write_bytes(content)
        assert kinds(verify([path], key=KEY)) == ["forged"], content


def test_a_log_rewritten_from_end_to_end_needs_the_key(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    forged = [lines[0]]
    for line in lines[2:]:
        fields = orjson.loads(line)
        fields["seq"], fields["prev_hash"] = len(forged) + 1, orjson.loads(forged[-1])["hash"]
        del fields["hash"]
        forged.append(seal(fields)[0])
    path.write_bytes(b"".join(forged))
    assert kinds(verify([path])) == ["cut-end"]
    last = orjson.loads(forged[-1])
    head_of(path).write_bytes(head_line(OTHER_KEY, ChainEnd(last["seq"], last["hash"])))
    assert verify([path]).ok, "a chain alone cannot know; the report says so"
    assert kinds(verify([path], key=KEY)) == ["forged"]


def test_lines_that_the_anchor_did_not_announce_are_nobodys(path: Path) -> None:
    seven, eight, nine, ten = (ChainEnd(each["seq"], each["hash"]) for each in records(path)[6:10])
    for ends, found in (
        ([(eight, ten), (ten,), (nine, ten)], []),
        ([(nine,), (seven, nine)], ["inserted"]),
        ([(eight, ChainEnd(10, "ab" * 32)), (ChainEnd(8, "ab" * 32), ten)], ["changed"]),
    ):
        for end in ends:
            head_of(path).write_bytes(head_line(KEY, *end))
            assert kinds(verify([path], key=KEY)) == found


def test_a_log_that_is_being_written_verifies(path: Path) -> None:
    audit = open_audit(path)
    report = verify([path], key=KEY, progress=lambda _: [forward(audit) for _ in range(5)])
    at_once(audit.close())
    assert report.ok and report.last_seq == 20


def test_a_tampered_control_record_is_read_without_harm(path: Path) -> None:
    first, *rest = path.read_bytes().splitlines(keepends=True)
    fields = {name: value for name, value in orjson.loads(first).items() if name != "hash"}
    for control in (None, 5, "recovered", {"what": "recovered"}, {"what": "recovered", "found": 7}):
        line, _ = seal({**fields, "event": "control", "control": control})
        path.write_bytes(b"".join([line, *rest]))
        assert kinds(verify([path], key=KEY)) == ["changed"]


# --- several files, calls that have no end, bounds -------------------------------------------------------------------


def test_files_of_one_log_are_one_chain(path: Path, tmp_path: Path) -> None:
    older = path.rename(tmp_path / "older")
    write_log(path, calls=2)
    assert verify([older, path], key=KEY).ok
    edit(older, lambda lines: lines[:-2])
    assert kinds(verify([older, path], key=KEY)) == ["removed"]


def test_decisions_without_an_outcome_are_counted(path: Path) -> None:
    audit = open_audit(path)
    at_once(understood(audit).decided())
    at_once(audit.close())
    report = verify([path], key=KEY)
    assert report.ok and len(report.unfinished) == 1


def test_a_line_without_end_is_not_read_to_its_end(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x" * (MAX_LINE_BYTES + 10))
    assert kinds(verify([path], key=KEY)) == ["unreadable"]


def test_problems_without_end_are_counted_but_not_kept(path: Path) -> None:
    edit(path, lambda lines: [*lines, *[b"{}\n"] * 1000])
    report = verify([path], key=KEY)
    assert (report.problem_count, len(report.problems)) == (1000, MAX_PROBLEMS)


@pytest.mark.parametrize("version", [1, 2])
def test_records_of_every_version_verify(path: Path, version: int) -> None:
    """`verify` reads every older audit version."""
    lines: Lines = []
    end = "0" * 64
    for record in map(orjson.loads, path.read_bytes().splitlines()):
        line, end = seal({**{k: v for k, v in record.items() if k != "hash"}, "v": version, "prev_hash": end})
        lines.append(line)
    path.write_bytes(b"".join(lines))
    head_of(path).write_bytes(head_line(KEY, ChainEnd(len(lines), end)))
    report = verify([path], key=KEY)
    assert report.ok and report.records == len(lines)


def test_an_empty_log_with_its_anchor_holds(tmp_path: Path) -> None:
    path = tmp_path / "empty"
    at_once(open_audit(path).close())
    report = verify([path], key=KEY)
    assert report.ok and report.records == 0 and report.proved == []

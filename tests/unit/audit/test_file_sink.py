"""Is every acknowledged record on disk, whatever kills us?"""

import contextlib
import errno
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.audit.chain import BEGINNING, HEAD_BYTES, ChainEnd, head_line
from sidecar.audit.file_sink import HARMLESS, LOOK_S
from sidecar.audit.verify import verify
from sidecar.errors import Reason, Refusal, SettingsError
from tests.at_once import at_once
from tests.peers import recompute_audit as peer
from tests.unit.audit.scenes import (
    KEY,
    OTHER_KEY,
    Counted,
    FakeClock,
    forward,
    head_of,
    kinds,
    open_audit,
    records,
    refuse,
    understood,
    write_log,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """The clock by which the file is looked for in its place."""
    monkeypatch.setattr("sidecar.audit.file_sink.monotonic", (clock := FakeClock()).monotonic)
    return clock


def found_at_start(path: Path) -> tuple[str, ...]:
    audit = open_audit(path)
    at_once(audit.close())
    return audit.found


# --- in good order ---------------------------------------------------------------------------------------------------


def test_a_second_program_agrees_on_chain_and_anchor(path: Path) -> None:
    write_log(path, calls=20)
    last = peer.check_chain(path)
    assert last == peer.check_head(path, KEY.secret) == (40, records(path)[-1]["hash"])


def test_a_restart_goes_on_where_the_last_run_ended(path: Path) -> None:
    for _ in range(3):
        write_log(path, calls=2)
    assert peer.check_chain(path)[0] == 12
    assert [record["event"] for record in records(path)] == ["decision", "outcome"] * 6


def test_the_anchor_is_one_line_of_fixed_length_and_for_the_owner_alone(path: Path) -> None:
    lengths = {len(head_line(KEY, ChainEnd(seq, BEGINNING.hash))) for seq in (0, 9, 10**6, 2**63)}
    write_log(path)
    assert lengths == {HEAD_BYTES} == {head_of(path).stat().st_size}
    assert [each.stat().st_mode & 0o777 for each in (path, head_of(path))] == [0o600, 0o600]


def test_a_second_writer_is_refused_and_says_why(path: Path) -> None:
    audit = open_audit(path)
    with pytest.raises(SettingsError, match="being written by another sidecar"):
        open_audit(path)
    at_once(audit.close())
    at_once(open_audit(path).close())


@pytest.mark.parametrize(
    "content", [b"hello\n", b"hello", b'{"v":1}\n', b"{}\n\n", b'{"v":1,"hash":"' + b"0" * 64 + b'"}\n']
)
def test_somebody_elses_file_is_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(SettingsError, match="not an audit record"):
        open_audit(path)
    assert path.read_bytes() == content


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(SettingsError, match="not a regular file"):
        open_audit(tmp_path / "fifo")
    with pytest.raises(SettingsError, match="cannot be written"):
        open_audit(tmp_path)


def test_each_record_is_counted_by_event_and_result(path: Path) -> None:
    audit = open_audit(path, metrics=(counted := Counted()))
    forward(audit)
    refuse(audit)
    at_once(audit.control("stop", "signal"))
    at_once(audit.close())
    assert counted.counts == {(event, "written"): 1 for event in ("decision", "outcome", "refusal", "control")}


# --- what a start finds ----------------------------------------------------------------------------------------------


def test_a_tail_torn_anywhere_is_taken_away_and_reported(path: Path) -> None:
    write_log(path, calls=1)
    whole, anchor = path.read_bytes(), head_of(path).read_bytes()
    first = whole.index(b"\n") + 1
    lines = records(path)
    behind = head_line(KEY, ChainEnd(1, lines[0]["hash"]), ChainEnd(2, lines[1]["hash"]))
    for cut in [*range(first + 1, len(whole) - 90, 17), *range(len(whole) - 90, len(whole), 3)]:
        path.write_bytes(whole[:cut])
        head_of(path).write_bytes(behind)
        assert found_at_start(path) == ("torn-tail", "cut-short")
        control = records(path)[-1]["control"]
        assert (control["what"], control["torn_bytes"]) == ("recovered", cut - first)
        assert peer.check_chain(path)[0] == 2
        report = verify([path], key=KEY)
        assert report.ok and len(report.notes) == 2
    path.write_bytes(whole)
    head_of(path).write_bytes(anchor)
    assert found_at_start(path) == ()


def test_the_very_first_append_may_be_torn_too(path: Path) -> None:
    at_once(open_audit(path).close())
    path.write_bytes(b'{"v":1,"eve')
    assert found_at_start(path) == ("torn-tail",)
    assert verify([path], key=KEY).ok


@pytest.mark.parametrize("written", range(4))
def test_an_append_that_was_cut_short_anywhere_is_closed_by_a_control_record(path: Path, written: int) -> None:
    write_log(path)
    lines, whole = records(path), path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(whole[: 7 + written]))
    head_of(path).write_bytes(head_line(KEY, ChainEnd(7, lines[6]["hash"]), ChainEnd(10, lines[9]["hash"])))
    before = verify([path], key=KEY)
    assert before.ok and "up to record 10: a cut in" in before.notes[0]
    assert found_at_start(path) == ("cut-short",)
    control = records(path)[-1]["control"]
    assert (control["last_seq"], control["anchor_seq"], control["found"]) == (7 + written, 7, ["cut-short"])
    assert verify([path], key=KEY).ok
    assert found_at_start(path) == ()


DAMAGES: dict[str, Callable[[Path, list[bytes]], object]] = {
    "records-lost": lambda path, lines: path.write_bytes(b"".join(lines[:-3])),
    "anchor-missing": lambda path, lines: head_of(path).unlink() or path.write_bytes(b"".join(lines[:-3])),
    "anchor-forged": lambda path, lines: head_of(path).write_bytes(with_a_digit_changed(head_of(path).read_bytes())),
    "anchor-differs": lambda path, lines: head_of(path).write_bytes(head_line(KEY, ChainEnd(10, "ab" * 32))),
    "line-changed": lambda path, lines: path.write_bytes(b"".join(lines[:-1]) + lines[-1].replace(b":512", b":513")),
}


def with_a_digit_changed(anchor: bytes) -> bytes:
    return anchor[:40] + b"%x" % (15 - int(anchor[40:41], 16)) + anchor[41:]


def damaged(path: Path, kind: str) -> None:
    DAMAGES[kind](path, path.read_bytes().splitlines(keepends=True))


@pytest.mark.parametrize("kind", ["records-lost", "anchor-missing", "anchor-forged", "anchor-differs", "line-changed"])
def test_damage_is_recorded_at_the_start_and_never_forgiven(path: Path, kind: str) -> None:
    write_log(path)
    damaged(path, kind)
    assert not verify([path], key=KEY).ok
    assert found_at_start(path) == (kind,)
    write_log(path)
    report = verify([path], key=KEY)
    assert not report.ok
    assert "at-start" in kinds(report)
    assert kind not in HARMLESS


def test_no_sequence_is_given_out_twice_after_records_were_lost(path: Path) -> None:
    write_log(path)
    damaged(path, "records-lost")
    write_log(path, calls=1)
    assert [record["seq"] for record in records(path)] == [1, 2, 3, 4, 5, 6, 7, 11, 12, 13]


def test_a_file_that_was_moved_away_is_continued(path: Path, tmp_path: Path) -> None:
    write_log(path)
    older = path.rename(tmp_path / "audit.1.jsonl")
    assert found_at_start(path) == ("continued",)
    assert records(path)[0]["seq"] == 11
    assert verify([older, path], key=KEY).ok and verify([path], key=KEY, part=True).ok
    assert kinds(verify([path], key=KEY)) == ["removed"]


def test_another_key_starts_anew_and_says_so(path: Path) -> None:
    write_log(path)
    audit = open_audit(path, key=OTHER_KEY)
    at_once(audit.close())
    assert audit.found == ("key-changed",)
    assert kinds(verify([path], key=OTHER_KEY)) == ["at-start"]
    report = verify([path], key=OTHER_KEY, older=[KEY])
    assert report.ok and any("the anchor of the previous key was checked" in note for note in report.notes)


# --- disks that fail -------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def no_file_may_grow_beyond(size: int) -> Iterator[None]:
    """The kernel takes what fits and then says EFBIG, as a full disk says ENOSPC."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("room", [0, 1, 700])
def test_what_is_written_in_part_is_taken_back_and_refused(path: Path, room: int) -> None:
    """BL-028, a full disk."""
    counted = Counted()
    audit = open_audit(path, metrics=counted)
    forward(audit)
    before = path.read_bytes()
    recording = understood(audit)
    with no_file_may_grow_beyond(len(before) + room), pytest.raises(Refusal) as refused:
        at_once(recording.decided())
    assert refused.value.reason is Reason.AUDIT_UNAVAILABLE
    assert path.read_bytes() == before
    at_once(recording.refused(refused.value, http_status=503))  # by now there is room again
    at_once(audit.close())
    assert records(path)[-1]["reason"] == "audit-unavailable"
    assert records(path)[-1]["event"] == "refusal"
    assert verify([path], key=KEY).ok
    assert counted.counts["decision", "failed"] == 1


@pytest.mark.parametrize("decided", [True, False])
def test_an_end_that_cannot_be_written_is_refused_and_may_be_told_once_more(path: Path, decided: bool) -> None:
    audit = open_audit(path)
    recording = understood(audit)
    if decided:
        at_once(recording.decided())
    with no_file_may_grow_beyond(path.stat().st_size), pytest.raises(Refusal, match="audit-unavailable") as refused:
        if decided:
            at_once(recording.outcome(http_status=200, bytes_out=1))
        at_once(recording.refused(Refusal(Reason.NO_MATCHING_RULE), http_status=403))
    assert not recording.done
    at_once(recording.refused(refused.value, http_status=503))
    at_once(audit.close())
    ends = [(record["event"], record["reason"]) for record in records(path)]
    unavailable = "audit-unavailable"
    assert ends == ([("decision", None), ("outcome", unavailable)] if decided else [("refusal", unavailable)])


def test_best_effort_counts_what_it_loses_and_goes_on(path: Path) -> None:
    """BL-028: drops are counted."""
    audit = open_audit(path, durability="best_effort", metrics=(counted := Counted()))
    with no_file_may_grow_beyond(0):
        recording = forward(audit)
        at_once(audit.control("reload", "signal"))
    forward(audit)
    at_once(audit.close())
    assert recording.done
    lost = {(event, "failed"): 1 for event in ("decision", "outcome", "control")}
    assert counted.counts == lost | {("decision", "written"): 1, ("outcome", "written"): 1}
    assert verify([path], key=KEY).ok


FAULTS = [OSError(code, os.strerror(code)) for code in (errno.EIO, errno.ENOSPC)]


@pytest.mark.parametrize("fault", [*FAULTS, KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("broken", ["pwrite", "write", "ftruncate"])
def test_any_failing_call_leaves_a_log_that_verifies(
    path: Path, monkeypatch: pytest.MonkeyPatch, broken: str, fault: BaseException
) -> None:
    audit = open_audit(path)
    forward(audit)
    limit = path.stat().st_size + 100

    def fails(*_: Any) -> Any:
        raise fault

    with monkeypatch.context() as patched, no_file_may_grow_beyond(limit):
        patched.setattr(os, broken, fails)
        for _ in range(2):
            with pytest.raises((Refusal, KeyboardInterrupt)):
                at_once(audit.control("reload", "signal"))
    forward(audit)
    at_once(audit.close())
    assert peer.check_chain(path)[0] == 4
    assert verify([path], key=KEY).ok


BENEATH: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "deleted": (lambda path: path.unlink(), ["removed"]),
    "emptied by who copied it": (lambda path: os.truncate(path, 0), ["removed"]),
    "cut": (lambda path: os.truncate(path, path.stat().st_size - 1), ["at-start", "removed"]),
    "added to": (lambda path: path.write_bytes(path.read_bytes() + b"hello"), []),
    "its anchor deleted": (lambda path: head_of(path).unlink(), ["at-start"]),
}


@pytest.mark.parametrize("name", BENEATH)
def test_a_file_that_somebody_else_had_his_hands_on_takes_no_record(path: Path, name: str, looks: FakeClock) -> None:
    """What went there would be lost, or stand in the wrong place; a start says what is left."""
    act, found = BENEATH[name]
    audit = open_audit(path)
    forward(audit)
    act(path)
    looks.now += LOOK_S * name.endswith("deleted")
    left = path.read_bytes() if path.exists() else b""
    for _ in range(2):
        with pytest.raises(Refusal):
            at_once(audit.control("reload", "signal"))
    at_once(audit.close())
    assert (path.read_bytes() if path.exists() else b"") == left
    at_once(open_audit(path).close())
    forward(again := open_audit(path))
    at_once(again.close())
    assert kinds(verify([path], key=KEY)) == found


@pytest.mark.parametrize("instead", [None, b"", b"of somebody else"])
def test_a_file_that_was_moved_away_takes_no_record_until_it_is_back(
    path: Path, tmp_path: Path, instead: bytes | None, looks: FakeClock
) -> None:
    """It went on being written where nobody looks for it, and the sidecar was ready."""
    audit = open_audit(path)
    forward(audit)
    moved = path.rename(tmp_path / "audit.1.jsonl")
    forward(audit)  # the records of the time until the next look go with the file
    looks.now += LOOK_S
    written = moved.read_bytes()
    if instead is not None:
        path.write_bytes(instead)
    for _ in range(2):
        with pytest.raises(Refusal):
            at_once(audit.control("reload", "signal"))
    assert moved.read_bytes() == written and (instead is None or path.read_bytes() == instead)
    moved.rename(path)
    forward(audit)
    looks.now += LOOK_S
    head_of(path).rename(tmp_path / "head")
    with pytest.raises(Refusal):
        at_once(audit.control("reload", "signal"))
    (tmp_path / "head").rename(head_of(path))
    at_once(audit.close())
    moved = path.rename(tmp_path / "audit.1.jsonl")
    assert len(records(moved)) == 6 and found_at_start(path) == ("continued",)
    assert verify([moved, path], key=KEY).ok


def test_what_is_behind_an_anchor_is_told_once_and_taken_away(path: Path) -> None:
    write_log(path)
    with head_of(path).open("ab") as file:
        file.write(b"more")
    assert found_at_start(path) == ("anchor-forged",)
    assert found_at_start(path) == ()

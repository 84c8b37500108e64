"""Can whoever writes the files, and has no key, have something untrue called proved?"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from sidecar.audit.chain import BEGINNING, MAX_SEQ, ChainEnd, head_line, unseal
from sidecar.audit.digest import AuditKey
from sidecar.audit.rotation import Attester
from sidecar.audit.segments import aside
from sidecar.audit.verify import verify
from sidecar.http.signing_keys import generate
from tests.at_once import at_once
from tests.unit.audit.scenes import (
    KEY,
    OTHER_KEY,
    START_S,
    forward,
    head_of,
    kinds,
    open_audit,
    records,
    run,
    seal,
    write_log,
    written_key,
)

EVIL = AuditKey.from_secret(b"a key that a forger made himself.")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "audit" / "audit.jsonl"
    write_log(path)
    return path


@pytest.fixture
def key_path(tmp_path: Path) -> Path:
    return written_key(tmp_path / "audit.key", KEY.secret.hex())


def forge(path: Path, change: Callable[[dict[str, Any]], object]) -> ChainEnd:
    """Every line as somebody wants it, sealed anew: nobody needs a key for that."""
    end, lines = BEGINNING, []
    for record in records(path):
        del record["hash"]
        change(record)
        line, digest = seal(record | {"prev_hash": end.hash})
        lines.append(line)
        end = ChainEnd(record["seq"], digest)
    path.write_bytes(b"".join(lines))
    return end


def a_success(record: dict[str, Any]) -> None:
    record["status"] = "success"


# --- anchors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("emptied", [False, True])
def test_a_log_that_was_written_anew_under_a_foreign_anchor_is_not_taken_over_by_a_start(
    path: Path, emptied: bool
) -> None:
    path.write_bytes(b"" if emptied else path.read_bytes())
    head_of(path).write_bytes(head_line(EVIL, forge(path, a_success)))
    at_once(open_audit(path).close())
    for ring in ([], [KEY], [KEY, OTHER_KEY]):
        report = verify([path], key=ring[0] if ring else None, older=ring[1:])
        assert kinds(report) == ["at-start"] and not report.proved


@pytest.mark.parametrize("forged", [False, True])
def test_a_key_that_the_start_had_not_proves_afterwards_what_it_anchored(path: Path, forged: bool) -> None:
    if forged:
        forge(path, a_success)
    at_once(open_audit(path, key=OTHER_KEY).close())
    report = verify([path], key=OTHER_KEY, older=[KEY])
    assert report.ok is not forged
    assert not verify([path], key=OTHER_KEY).ok


def test_an_anchor_of_a_key_that_was_changed_since_is_told(path: Path) -> None:
    report = verify([path], key=OTHER_KEY, older=[KEY])
    assert report.ok and any(KEY.id in what for what in report.unproved)
    assert not any(KEY.id in what for what in verify([path], key=KEY, older=[OTHER_KEY]).unproved)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_an_anchor_or_part_that_is_no_file_is_none_and_delays_no_check(
    path: Path, key_path: Path, make: Callable[[Path], None]
) -> None:
    make(aside(path, START_S, 3))
    assert run("verify", path.parent, "--key", key_path).exit_code == 0
    head_of(path).unlink()
    make(head_of(path))
    assert kinds(verify([path], key=KEY)) == ["forged"]


def test_a_folder_of_which_only_the_anchor_is_left_is_said_so(path: Path) -> None:
    path.unlink()
    result = run("verify", path.parent)
    assert result.exit_code == 2 and "only the anchor is left" in result.output


# --- checkpoints ------------------------------------------------------------------------------------------------------


def test_what_signatures_prove_is_said_to_the_record_and_not_without_their_key(tmp_path: Path) -> None:
    path, key = tmp_path / "audit.jsonl", generate("EdDSA")
    log = open_audit(path, attester=Attester(key, 1000, 1e9))
    forward(log)
    at_once(log.seal())
    forward(log)
    at_once(log.close())
    public = {key.kid: key.private.public_key()}
    report = verify([path], key=KEY, public_keys=public)
    assert (report.signed_up_to, report.end, report.instances) == (2, "open", ["one"])
    assert any("up to record 2 it is what the sidecar attested" in what for what in report.proved)
    unchecked = verify([path], key=KEY)
    assert unchecked.signed_up_to == 0 and any("--public-key" in what for what in unchecked.unproved)


def test_an_end_that_another_key_attests_is_open(tmp_path: Path) -> None:
    path, ours = tmp_path / "audit.jsonl", generate("EdDSA")
    log = open_audit(path, attester=Attester(generate("EdDSA"), 1000, 1e9))
    at_once(log.control("stop", "sidecar"))
    at_once(log.seal())
    at_once(log.close())
    assert verify([path], key=KEY).end == "sealed"
    assert verify([path], key=KEY, public_keys={ours.kid: ours.private.public_key()}).end == "open"


@pytest.mark.parametrize(
    ("option", "content", "told"),
    [
        ("--public-key", "ab" * 32, "neither a key in PEM nor a key set"),
        ("--public-key", '{"keys": []}', "no Ed25519 key for checkpoints"),
        ("--key", "-----BEGIN PRIVATE KEY-----", "is not one line of hexadecimal digits"),
    ],
)
def test_a_key_of_another_kind_is_named(path: Path, tmp_path: Path, option: str, content: str, told: str) -> None:
    key = written_key(tmp_path / "key", content)
    result = run("verify", path, option, key)
    assert result.exit_code == 3 and str(key) in result.stderr and told in result.stderr.replace("\n", " ")


def test_a_log_is_no_witness_of_itself(path: Path) -> None:
    for log in (path, path.parent):
        result = run("verify", log, "--checkpoints", path)
        assert result.exit_code == 2 and "cannot be its own checkpoint" in result.output


# --- lines that are none ----------------------------------------------------------------------------------------------


def test_a_record_without_an_end_is_not_shown_and_not_passed_over_in_a_part(path: Path, key_path: Path) -> None:
    part = path.rename(aside(path, START_S, 10))
    at_once(open_audit(path).close())
    false = seal(records(part)[0] | {"run_id": "forged"})[0].rstrip(b"\n")
    with path.open("ab") as file:
        file.write(false)
    assert "no record; a start takes them away" in run("verify", path.parent, "--key", key_path).output
    with part.open("ab") as file:
        file.write(false)
    assert "forged" not in run("show", path.parent, "--json").output
    result = run("verify", path.parent, "--key", key_path)
    assert result.exit_code == 5 and f"{part}:11: unreadable" in result.output


@pytest.mark.parametrize("seq", [0, -1, MAX_SEQ, 2**64 - 1, True, 1.0, "1", None])
def test_a_sequence_that_no_log_reaches_is_no_record(seq: Any) -> None:
    line = seal({"v": 1, "event": "outcome", "seq": seq, "instance": "one", "prev_hash": "0" * 64})[0]
    assert unseal(line.rstrip(b"\n")) is None
    assert run("verify", "-", given=line).exit_code == 2


def test_a_file_that_cannot_be_read_is_said_so(key_path: Path) -> None:
    for command in (("verify",), ("show",), ("prove", "--decision", "x", "--args", "{}")):
        key = ("--key", key_path) if command[0] in ("verify", "prove") else ()
        result = run(*command, "/proc/self/mem", *key)  # its first byte is an EIO
        assert result.exit_code == 1 and "Input/output error" in result.output


def test_more_chains_than_anybody_has_are_said_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.audit.gather.MAX_CHAINS", 0)
    result = run("verify", "-", given=path.read_bytes())
    assert result.exit_code == 1 and "more than 0 chains" in result.output


# --- words that speak to a terminal -----------------------------------------------------------------------------------

SPEAKING = "\x1b[2J\x1b[Hthe evidence holds\u202e\x9b2J"


def speaking_event(record: dict[str, Any]) -> None:
    record["event"] = SPEAKING


def speaking_checkpoint(record: dict[str, Any]) -> None:
    said = {"seq": record["seq"] - 1, "hash": "0" * 64, "time": SPEAKING, "kid": SPEAKING, "signature": SPEAKING}
    record["control"] = {"what": "checkpoint", **said}
    record["event"], record["instance"] = "control", SPEAKING


def speaking_start(record: dict[str, Any]) -> None:
    record["event"], record["control"] = "control", {"what": "recovered", "found": [SPEAKING]}


@pytest.mark.parametrize("speak", [speaking_event, speaking_checkpoint, speaking_start])
@pytest.mark.parametrize("more", [(), ("--json",)])
def test_no_record_speaks_to_the_terminal_of_who_verifies(path: Path, speak: Any, more: tuple[str, ...]) -> None:
    forge(path, speak)
    result = run("verify", path, *more)
    assert result.exit_code == 5
    assert all(line.isprintable() for line in result.output.splitlines())


def test_no_name_of_a_file_or_of_a_lost_result_does(path: Path) -> None:
    named = path.with_name(os.fsdecode(b"\xff\x1b[2J.jsonl"))
    forge(path, lambda record: record.update(evidence=[{"id": SPEAKING, "sha256": "0"}]))
    path.rename(named)
    told = run("verify", named, "--json")
    assert told.exit_code == 5 and "\\xff" not in told.output
    assert orjson.loads(told.output)["problems"]
    for output in (run("verify", named).output, run("show", named, "--evidence").output):
        assert output and all(line.isprintable() for line in output.splitlines())

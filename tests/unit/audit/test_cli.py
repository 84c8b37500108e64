"""What does a person see of the evidence?"""

import io
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from sidecar.audit.checkpoints import public_jwk
from sidecar.audit.digest import load_or_make_key
from sidecar.audit.rendering import render_record, wants_colour
from sidecar.audit.rotation import Attester
from sidecar.audit.verify import verify as verified
from sidecar.errors import Reason
from tests.at_once import at_once
from tests.flow.forks import sidecar
from tests.tables import tables
from tests.unit.audit.scenes import FakeClock, Rotation, forward, open_audit, records, refuse, run, written_key
from tests.unit.audit.test_rotation import SIGNER


@pytest.fixture
def key_path(tmp_path: Path) -> Path:
    return tmp_path / "keys" / "audit.key"


@pytest.fixture
def path(tmp_path: Path, key_path: Path) -> Path:
    path = tmp_path / "audit.jsonl"
    clock = FakeClock()
    audit = open_audit(path, key=load_or_make_key(key_path), clock=clock)
    at_once(audit.control("start", "sidecar", version="1"))
    forward(audit)
    clock.now += 3600
    refuse(audit)
    refuse(audit, Reason.RATE_LIMITED, 429)
    forward(audit, object="nhi:github", action="tools/list", name="", arguments={})
    at_once(audit.close())
    return path


def test_verify_says_what_it_proved_and_what_not(path: Path, key_path: Path) -> None:
    result = run("verify", path, "--key", key_path)
    assert result.exit_code == 0
    assert "7 records in" in result.output
    assert "proved      records 1 to 7" in result.output
    assert "not proved  that log and anchor were not both replaced" in result.output
    assert result.output.endswith("the evidence holds\n")


def test_the_configured_log_and_its_keys_are_the_default(
    path: Path, key_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "there is no sidecar.yaml" in run("verify").output
    Path("sidecar.yaml").write_text("version: 1\naudit: {path: audit.jsonl, key_path: keys/audit.key}\n")
    verify, show = run("verify"), run("show", "--status", "rate_limited", "--json")
    assert verify.exit_code == 0 and "proved      the anchor was made with the key" in verify.output
    assert orjson.loads(show.output)["reason"] == "rate-limited"
    Path("sidecar.yaml").write_text("version: 1\n")
    assert run("show").exit_code == 2 and "there is no log yet" in run("show").output
    Path("sidecar.yaml").write_text("version: 1\naudit: {sink: stdout}\n")
    assert run("verify").exit_code == 2 and "to stdout, not to a file" in run("verify").output


def test_verify_exits_5_when_the_evidence_does_not_hold(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"bytes_in", b"bytes_On", 1))
    result = run("verify", path)
    assert result.exit_code == 5
    assert f"{path}:1: changed" in result.output and "does NOT hold: 1 problem" in result.output
    data = orjson.loads(run("verify", path, "--json").output)
    assert (data["ok"], data["problems"][0]["kind"]) == (False, "changed")


def test_verify_warns_of_a_key_that_lies_beside_the_log_and_refuses_one_that_others_can_read(
    path: Path, key_path: Path
) -> None:
    warning = "an attacker who can write both log and key"
    assert warning not in run("verify", path, "--key", key_path).output
    beside = key_path.rename(path.with_name("audit.key"))
    assert warning in run("verify", path, "--key", beside).output
    beside.chmod(0o644)
    result = run("verify", path, "--key", beside)
    assert result.exit_code == 3 and "is open to others" in result.output


@pytest.mark.parametrize(("options", "expected"), tables("audit/cli")["filters"])
def test_show_prints_the_records_that_were_asked_for(path: Path, options: tuple[str, ...], expected: list[int]) -> None:
    result = run("show", path, "--json", *options)
    assert result.exit_code == 0, result.output
    assert [orjson.loads(line)["seq"] for line in result.output.splitlines()] == expected


def test_show_as_json_gives_the_very_lines_of_the_file(path: Path) -> None:
    assert run("show", path, "--json").stdout_bytes == path.read_bytes()
    wanted = run("show", path, "--json", "--decision-id", records(path)[1]["decision_id"]).output.splitlines()
    assert [orjson.loads(line)["seq"] for line in wanted] == [2, 3]


def test_show_has_the_seeds_names_too(path: Path) -> None:
    ours = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    seeds = [orjson.loads(line) for line in run("show", path, "--seed").output.splitlines()]
    assert [one["id"] for one in seeds] == [one["id"] for one in ours]
    named = next(index for index, one in enumerate(ours) if one["tool"])
    said = (seeds[named]["tool_name"], seeds[named]["method"])
    assert said == (ours[named]["server"], ours[named]["tool"]) and "links" not in seeds[named]
    assert run("show", path, "--seed", "--evidence").exit_code == 2


@pytest.mark.parametrize(
    "options",
    [("--since", "yesterday"), ("--since", "0001-01-01T00:00:00+01:00"), ("--reason", "because"), ("--event", "party")],
)
def test_show_refuses_what_it_does_not_understand(path: Path, options: tuple[str, ...]) -> None:
    assert run("show", path, *options).exit_code == run("show").exit_code == run("verify", path / "none").exit_code == 2


def test_show_for_people_is_two_lines_for_each_record(path: Path) -> None:
    lines = run("show", path).output.splitlines()
    assert len(lines) == 14
    assert lines[0] == "11:06:40.250  control  start  by sidecar  version=1"
    assert re.fullmatch(
        r"11:06:40\.250  done     user:corp/alice → nhi:corp/researcher → tool:github/search  tools/call  200  0\.0 ms",
        lines[4],
    )
    assert re.fullmatch(
        r" {14}reads-github · left: row:reads-github 119/120 · args [0-9a-f]{16} · id-\d+ · #3", lines[5]
    )
    assert "  deny     " in lines[6] and "403  denied-by-rule" in lines[6]
    assert "  limit    " in lines[8] and "429  rate-limited" in lines[8]


def test_show_goes_past_garbage_and_says_so(path: Path) -> None:
    path.write_bytes(b"garbage\n[1]\n" + path.read_bytes())
    result = run("show", path)
    assert result.exit_code == 0
    assert "2 lines are not records" in result.stderr
    assert len(result.stdout.splitlines()) == 14


def test_show_reads_records_of_any_shape(path: Path) -> None:
    odd = b'{"chain":{"a":1},"links":7,"limits":[1],"control":[]}\n'
    path.write_bytes(b'{}\n{"chain":5,"object":[],"timestamp":{}}\n' + odd + path.read_bytes())
    assert len(run("show", path).output.splitlines()) == 14 + 2 * 3
    filtered = run("show", path, "--principal", "nhi:*", "--object", "*", "--since", "2000-01-01")
    assert filtered.exit_code == 0 and len(filtered.output.splitlines()) == 12


def test_a_tampered_record_cannot_speak_to_the_terminal() -> None:
    evil = "\x1b[2J\r\n\x9b31m\u202e\u2028é"
    texts = {"timestamp": evil, "event": evil, "object": evil, "action": evil, "http_status": evil, "seq": evil}
    texts |= {"reason": evil, "decision_id": evil}
    for extra in (
        {"chain": [evil], "links": [{"rules": [evil]}], "limits": [{"name": evil}], "args_hash": evil},
        {"control": {"what": evil, "by": evil, evil: evil}},
        {"chain": evil, "links": [evil], "limits": evil, "duration_ms": evil},
    ):
        shown = render_record({**texts, **extra})
        assert shown.count("\n") == 1 and shown.replace("\n", "").isprintable()
        assert "é" in shown


def test_colour_is_for_terminals_whose_owner_did_not_say_no() -> None:
    terminal = SimpleNamespace(isatty=lambda: True)
    assert wants_colour(terminal, {}) and not wants_colour(terminal, {"NO_COLOR": "1"})
    assert not wants_colour(io.StringIO(), {})
    record = {"event": "refusal", "status": "permission_denied", "seq": 1}
    assert "\x1b[31mdeny" in render_record(record, colour=True)
    assert "\x1b" not in render_record(record)


# --- folders, parts, checkpoints --------------------------------------------------------------------------------------


@pytest.fixture
def rotated(tmp_path: Path, key_path: Path) -> Path:
    folder, key = tmp_path / "audit", load_or_make_key(key_path)
    more = {"attester": Attester(SIGNER, 20, 300.0), "rotation": Rotation(max_bytes=20_000)}
    audit = open_audit(folder / "audit.jsonl", key=key, **more)
    for _ in range(40):
        forward(audit)
    at_once(audit.close())
    (tmp_path / "jwks.json").write_bytes(orjson.dumps({"keys": [public_jwk(SIGNER)]}))
    (tmp_path / "published").write_bytes(audit.trail.newest.published)
    return folder


def test_verify_takes_a_folder_and_a_file_together_with_its_parts(rotated: Path, key_path: Path) -> None:
    for given in (rotated, rotated / "audit.jsonl"):
        data = orjson.loads(run("verify", given, "--key", key_path, "--json").output)
        assert data["ok"] and data["first_seq"] == 1 and data["last_seq"] > 80, data
    part = min(rotated.glob("audit-*"))
    assert run("verify", part, "--part").exit_code == 0
    part.unlink()
    result = run("verify", rotated, "--key", key_path)
    assert result.exit_code == 5 and "audit-" in result.output and ":1: removed: records 1 to " in result.output


def test_verify_reads_again_what_was_set_aside_while_it_read(
    rotated: Path, key_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit = open_audit(rotated / "audit.jsonl", key=load_or_make_key(key_path), rotation=Rotation(max_bytes=1))
    happened: list[int] = []

    def meanwhile(*given: Any, **more: Any) -> Any:
        if not happened:
            happened.append(1)
            forward(audit)
        return verified(*given, **more)

    monkeypatch.setattr("sidecar.cli.audit.verify.verified", meanwhile)
    result = run("verify", rotated, "--key", key_path)
    at_once(audit.close())
    assert happened and result.exit_code == 0, result.output


def test_verify_proves_with_what_was_published(rotated: Path, tmp_path: Path, key_path: Path) -> None:
    more = ("--key", key_path, "--checkpoints", tmp_path / "published", "--jwks", tmp_path / "jwks.json")
    result = run("verify", rotated, *more)
    assert result.exit_code == 0
    assert "published checkpoints that match the log: 1; up to record" in result.output
    assert "signed checkpoints in the log: " in result.output
    assert run("verify", rotated, "--jwks", tmp_path / "published").exit_code == 3


def test_a_folder_without_one_log_is_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert run("verify", tmp_path / "empty").exit_code == 2
    for name in ("a", "b"):
        at_once(open_audit(tmp_path / "two" / f"{name}.jsonl").close())
    result = run("show", tmp_path / "two")
    assert result.exit_code == 2 and "2 logs in one folder" in result.output


def test_show_reads_a_folder_in_order(rotated: Path) -> None:
    shown = run("show", rotated, "--json").output.splitlines()
    sequences = [orjson.loads(line)["seq"] for line in shown]
    assert sequences == list(range(1, len(sequences) + 1))


# --- prove ------------------------------------------------------------------------------------------------------------


def test_prove_says_whether_a_hash_stands_for_arguments(path: Path, key_path: Path, tmp_path: Path) -> None:
    recorded, good = records(path)[1], '{"limit": 10, "repo": "acme/site"}'
    other = written_key(tmp_path / "keys" / "other.key", "ab" * 32)
    given = ("prove", path, "--decision", recorded["decision_id"], "--key", key_path, "--args")
    result = run(*given, good)
    assert result.exit_code == 0 and result.output.startswith("proved  record 2 of 2026-11-18T11:06:40.250000Z: ")
    for code, *wrong in (
        (1, '{"limit": 11, "repo": "acme/site"}'),
        (1, good, "--namespace", "evil"),
        (1, good, "--object", "tool:github/other"),
        (1, good, "--action", "prompts/get"),
        (2, '{"limit": 1, "limit": 10, "repo": "acme/site"}'),
        (2, '{"limit": 18446744073709551617}'),
        (0, '{"limit": 10.0, "repo": "acme/site"}'),  # RFC 8785 has one way to write a value
        (0, '{"limit": 1e1, "repo": "\\u0061cme/site"}'),
        (0, good, "--key", other),  # one of several keys is the one
    ):
        assert run(*given, *wrong).exit_code == code, wrong
    told = orjson.loads(run(*given, good, "--namespace", "corp", "--json").output)
    assert told["proved"] and told["args_hash"] == told["computed"] == recorded["args_hash"]
    foreign = run("prove", path, "--decision", recorded["decision_id"], "--key", other, "--args", "{}")
    assert foreign.exit_code == 1 and "was hashed with the key" in foreign.stderr


def test_prove_believes_no_record_that_was_changed(path: Path, key_path: Path) -> None:
    decision_id = records(path)[1]["decision_id"]
    given = ("--decision", decision_id, "--key", key_path, "--args", "{}")
    assert run("prove", path, "--decision", "nobody", "--key", key_path, "--args", "{}").exit_code == 1
    assert run("prove", path, "--decision", decision_id, "--key", key_path, "--args", "[]").exit_code == 2
    path.write_bytes(path.read_bytes().replace(b"bytes_in", b"bytes_On"))
    result = run("prove", path, *given)
    assert result.exit_code == 5 and "was changed" in result.stderr


# --- the logs of several workers --------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, key_path: Path) -> Path:
    """A data folder with the logs of two workers and of a process before them; their records alternate."""
    data, clock = tmp_path / "data", FakeClock()
    paths = [data / part / "audit" / "audit.jsonl" for part in ("", "workers/1", "workers/2")]
    for path in paths:
        path.parent.mkdir(parents=True)
    audits = [open_audit(path, key=load_or_make_key(key_path), clock=clock) for path in paths]
    for _ in range(2):
        for audit in audits:
            clock.now += 1
            refuse(audit)
    for audit in audits:
        at_once(audit.close())
    return data


def test_every_log_below_a_folder_is_verified_by_itself(folder: Path, key_path: Path) -> None:
    result = run("verify", folder, "--key", key_path)
    assert result.exit_code == 0 and result.output.count("the evidence holds") == 3
    named = re.findall(r"^log +(.+)$", result.output, re.MULTILINE)
    assert [Path(name).relative_to(folder).parts[-3:-2] for name in named] == [(), ("1",), ("2",)]
    broken = folder / "workers" / "1" / "audit" / "audit.jsonl"
    broken.write_bytes(broken.read_bytes().replace(b"denied-by-rule", b"denied-by-rulE", 1))
    result = run("verify", folder, "--key", key_path)
    assert result.exit_code == 5 and result.output.count("the evidence holds") == 2
    assert run("verify", folder / "workers" / "2" / "audit", "--key", key_path).exit_code == 0


@pytest.mark.parametrize("option", ["--checkpoints", "--evidence"])
def test_what_is_of_one_log_is_not_held_against_several(folder: Path, key_path: Path, option: str) -> None:
    result = run("verify", folder, "--key", key_path, option, folder / "workers" / "1" / "audit" / "audit.jsonl")
    assert result.exit_code == 2 and f"{option} needs one log, and there are 3" in result.output


def test_the_records_of_all_logs_are_shown_by_their_time(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stamps = [orjson.loads(line)["timestamp"] for line in run("show", folder, "--json").output.splitlines()]
    assert len(stamps) == 6 and stamps == sorted(stamps)
    monkeypatch.chdir(tmp_path)
    Path("sidecar.yaml").write_text("version: 1\naudit: {key_path: keys/audit.key}\n")
    assert len(run("show", "--json").output.splitlines()) == 6
    assert run("verify").output.count("the evidence holds") == 3


def test_logs_that_are_followed_are_read_no_faster_than_they_are_printed(folder: Path) -> None:
    logs = [folder / part / "audit" / "audit.jsonl" for part in ("", "workers/1", "workers/2")]
    for log in logs:
        log.write_bytes(log.read_bytes() * 500)

    def read_bytes(pid: int) -> int:
        """The positions in the open logs; they include what the reader has buffered."""
        found = [one.name for one in Path(f"/proc/{pid}/fd").iterdir() if one.readlink() in logs]
        return sum(int(Path(f"/proc/{pid}/fdinfo/{name}").read_text().split()[1]) for name in found)

    command = [sys.executable, "-m", "sidecar", "audit", "show", str(folder), "--follow", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as following:
        try:
            assert following.stdout
            following.stdout.readline()  # and none of the others
            until_s = time.monotonic() + 1.0
            while time.monotonic() < until_s:
                assert 0 < read_bytes(following.pid) < sum(log.stat().st_size for log in logs) / 2
                time.sleep(0.05)
        finally:
            following.kill()


def test_what_is_added_to_any_log_is_followed(folder: Path) -> None:
    command = [sidecar(), "audit", "show", str(folder), "--follow", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as following:
        assert following.stdout
        try:
            for _ in range(6):
                following.stdout.readline()
            path = folder / "workers" / "2" / "audit" / "audit.jsonl"
            audit = open_audit(path, key=load_or_make_key(folder.parent / "keys" / "audit.key"))
            told = refuse(audit)
            assert orjson.loads(following.stdout.readline())["decision_id"] == told.decision_id
            at_once(audit.close())
        finally:
            following.kill()

"""Is the log's end attested where its host has no say, and does the log go on in new files as one chain?"""

import errno
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest

from sidecar.audit.chain import GENESIS, ChainEnd, head_line
from sidecar.audit.checkpoint_publisher import CheckpointPublisher
from sidecar.audit.checkpoints import USE, Checkpoint, attest, public_jwk, read_checkpoints, read_public_keys
from sidecar.audit.file_sink import HARMLESS
from sidecar.audit.recorder import Audit
from sidecar.audit.rotation import RETRY_S, Attester
from sidecar.audit.segments import aside, files_of, given, last_seq_of, parts_of
from sidecar.audit.verify import verify
from sidecar.errors import Refusal
from sidecar.http.signing_keys import generate
from tests.at_once import at_once
from tests.peers import recompute_audit as peer
from tests.unit.audit.scenes import (
    KEY,
    OTHER_KEY,
    FakeClock,
    Rotation,
    forward,
    kinds,
    numbered_ids,
    open_audit,
    records,
    seal,
    understood,
)

SIGNER, OTHERS = generate("EdDSA"), generate("EdDSA")
KEYS = {SIGNER.kid: SIGNER.private.public_key()}
EVERY_10 = Attester(SIGNER, 10, 300.0)
SELDOM = Attester(SIGNER, 10**6, 300.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


def write(path: Path, calls: int, **given: Any) -> Audit:
    """A log that is closed as a stop closes it."""
    audit = open_audit(path, **({"attester": SELDOM} | given))
    for _ in range(calls):
        forward(audit)
    stop(audit)
    return audit


def stop(audit: Audit) -> None:
    at_once(audit.control("stop", "sidecar"))
    at_once(audit.seal())
    at_once(audit.close())


def whats(path: Path) -> list[str]:
    return [record["control"]["what"] for record in records(path) if record["control"]]


def problems(*paths: Path, **more: Any) -> list[str]:
    return kinds(verify(paths, key=KEY, **more))


# --- checkpoints ------------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_about_the_record_before_it_and_a_second_program_believes_it(path: Path) -> None:
    write(path, 25, attester=EVERY_10)
    lines = records(path)
    attested = [record for record in lines if record["control"] and record["control"]["what"] == "checkpoint"]
    assert len(attested) == 6 and attested[-1] == lines[-1]
    for record in attested:
        control = record["control"]
        assert (control["seq"], control["hash"], control["kid"]) == (record["seq"] - 1, record["prev_hash"], SIGNER.kid)
    jwks = path.with_name("jwks.json")
    jwks.write_bytes(orjson.dumps({"keys": [public_jwk(OTHERS), public_jwk(SIGNER)]}))
    assert peer.check_checkpoints(path, jwks) == (6, lines[-2]["seq"])
    report = verify([path], key=KEY, public_keys=read_public_keys(jwks))
    assert report.ok and report.end == "sealed" and report.checkpoints == 6
    assert any("signed checkpoints in the log: 6;" in what for what in report.proved)


def test_where_nothing_is_new_there_is_no_checkpoint(path: Path) -> None:
    audit = open_audit(path, attester=SELDOM, clock=(clock := FakeClock()))
    at_once(audit.look())
    forward(audit)
    at_once(audit.look())
    assert whats(path) == []
    for _ in range(3):
        clock.now += 301
        at_once(audit.look())
    at_once(audit.seal())
    at_once(audit.close())
    assert whats(path) == ["checkpoint"]


def test_an_end_is_open_attested_or_sealed(path: Path) -> None:
    audit = open_audit(path, attester=SELDOM)
    forward(audit)
    assert verify([path], key=KEY).end == "open"
    at_once(audit.seal())
    assert verify([path], key=KEY).end == "attested"
    forward(audit)
    report = verify([path], key=KEY)
    assert report.end == "open" and "2 records after the last checkpoint" in report.notes[0]
    stop(audit)
    assert verify([path], key=KEY).end == "sealed"


def published(path: Path, *checkpoints: Checkpoint) -> Path:
    """As a log collector keeps standard output."""
    file = path.with_name("collected")
    lines = [b"2026-11-28T12:00:00Z stdout F " + each.published + b"\n" for each in checkpoints]
    file.write_bytes(b"hello\n" + b"".join(lines) + b"bye")
    return file


def test_who_owns_host_and_keys_cannot_cut_the_log_back_unnoticed(path: Path) -> None:
    audit = open_audit(path, attester=SELDOM)
    for _ in range(10):
        forward(audit)
    at_once(audit.seal())
    outside = published(path, audit.trail.newest)
    forward(audit)
    at_once(audit.close())
    report = verify([path], key=KEY, checkpoints=[outside], public_keys=KEYS)
    assert report.ok and any("; up to record 20" in what for what in report.proved)

    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:14]))  # with its anchor, made with the very key
    Path(f"{path}.head").write_bytes(head_line(KEY, ChainEnd(14, orjson.loads(lines[13])["hash"])))
    assert problems(path) == [], "the log and its key alone cannot know"
    assert problems(path, checkpoints=[outside], public_keys=KEYS) == ["cut-end"]

    write(path, 10)  # and written on, so that it is long enough
    assert problems(path, checkpoints=[outside], public_keys=KEYS) == ["changed"]


def test_a_checkpoint_that_its_key_did_not_sign_is_forged(path: Path) -> None:
    write(path, 3)
    true = next(read_checkpoints(path))
    forged = [
        true._replace(seq=5),
        true._replace(hash="0" * 64),
        true._replace(time="2020-01-01T00:00:00.000000Z"),
        true._replace(signature=attest(OTHERS, ChainEnd(true.seq, true.hash), true.time).signature),
        true._replace(signature="?"),
    ]
    for one in forged:
        assert "forged" in problems(path, checkpoints=[published(path, one)], public_keys=KEYS)
    strangers = attest(OTHERS, ChainEnd(true.seq, true.hash), true.time)
    report = verify([path], key=KEY, checkpoints=[published(path, strangers)], public_keys=KEYS)
    assert report.ok and any("who signed the published" in what for what in report.unproved)
    assert problems(path, checkpoints=[published(path)]) == ["no-checkpoint"]


def test_a_checkpoint_in_the_log_is_about_its_own_place(path: Path) -> None:
    write(path, 3)
    lines = path.read_bytes().splitlines(keepends=True)
    fields = orjson.loads(lines[-1])
    del fields["hash"]
    for name, value in (("seq", 3), ("hash", "0" * 64)):
        path.write_bytes(b"".join([*lines[:-1], seal({**fields, "control": {**fields["control"], name: value}})[0]]))
        assert "checkpoint-differs" in problems(path)


def test_public_keys_come_as_pem_or_as_we_serve_them(tmp_path: Path) -> None:
    pem, jwks = tmp_path / "key.pem", tmp_path / "jwks.json"
    pem.write_text(SIGNER.pem())
    jwks.write_bytes(orjson.dumps({"keys": [generate("ES256").public_jwk, OTHERS.public_jwk, public_jwk(SIGNER)]}))
    assert public_jwk(SIGNER)["use"] == USE
    assert list(read_public_keys(pem)) == list(read_public_keys(jwks)) == [SIGNER.kid], "one is of tokens"
    for content in (b"{}", b"{", b"", b'{"keys":[{"kty":"OKP","crv":"Ed25519","x":"AA"}]}'):
        jwks.write_bytes(content)
        with pytest.raises(ValueError):
            read_public_keys(jwks)


async def test_a_place_that_is_out_hears_the_newest_later_and_delays_no_other() -> None:
    heard, out = {"good": [], "bad": []}, {"bad"}

    def place(name: str) -> Callable[[Checkpoint], Awaitable[None]]:
        async def hear(checkpoint: Checkpoint) -> None:
            if name in out:
                raise OSError("it is out")
            heard[name].append(checkpoint.seq)

        return hear

    herald = CheckpointPublisher({"bad": place("bad"), "good": place("good")})
    await herald.tell(None)
    for seq in (1, 2, 2, 3, 3):
        out -= {"bad"} if seq == 3 else set()
        await herald.tell(attest(SIGNER, ChainEnd(seq, "0" * 64), ""))
    assert heard == {"good": [1, 2, 3], "bad": [3]}


# --- new files --------------------------------------------------------------------------------------------------------

SMALL = Rotation(max_bytes=20_000)


def test_a_log_goes_on_in_new_files_as_one_chain_and_each_part_can_be_checked_alone(path: Path) -> None:
    write(path, 50, rotation=SMALL)
    files = given(path.parent)
    assert len(files) > 5 and files[-1] == path and list(files[:-1]) == sorted(files[:-1])
    assert all(20_000 <= part.stat().st_size < 30_000 for part in files[:-1])
    assert all(whats(part)[-1] == "checkpoint" for part in files)
    report = verify(files, key=KEY, public_keys=KEYS)
    assert report.ok and report.end == "sealed" and report.first_seq == 1
    for part in files[:-1]:
        alone = verify([part], part=True, public_keys=KEYS)
        assert alone.ok and alone.end == "attested"
    assert peer.check_chain(*files) == peer.check_head(path, KEY.secret)
    for missing in range(len(files) - 1):
        assert problems(*files[:missing], *files[missing + 1 :]) == ["removed"]


def test_a_restart_goes_on_in_the_file_and_one_after_a_rotation_finds_it_in_order(path: Path) -> None:
    for _ in range(4):
        assert write(path, 3, rotation=Rotation(max_bytes=1)).found == ()
    audit = open_audit(path, attester=SELDOM, rotation=Rotation(every_s=10), clock=(clock := FakeClock()))
    clock.now += 3600
    at_once(audit.look())
    assert path.stat().st_size == 0
    at_once(audit.close())
    assert write(path, 1).found == ()
    assert problems(*given(path.parent)) == []


def test_a_file_is_set_aside_when_its_first_record_is_old_also_after_a_restart(path: Path) -> None:
    clock = FakeClock()
    day = {"rotation": Rotation(every_s=86400.0), "clock": clock, "attester": SELDOM}
    for _ in range(2):
        audit = open_audit(path, **day)
        forward(audit)
        clock.now += 40_000
        at_once(audit.look())
        at_once(audit.close())
        assert parts_of(path) == ()
    audit = open_audit(path, **day)
    clock.now += 6_400
    at_once(audit.look())
    assert len(parts_of(path)) == 1
    clock.now += 90_000
    at_once(audit.look())
    at_once(audit.close())
    assert len(parts_of(path)) == 1, "an empty file is as old as nothing"


def test_the_oldest_go_only_after_it_is_on_record_what_they_were(path: Path) -> None:
    write(path, 60, rotation=Rotation(max_bytes=20_000, keep=3))
    files = given(path.parent)
    assert len(files) == 4
    report = verify(files, key=KEY, public_keys=KEYS)
    assert report.ok and report.first_seq > 1
    assert "deleted as configured" in report.notes[0] and any("they are deleted" in what for what in report.unproved)
    assert problems(*files[1:]) == ["removed"], "of this one nobody said so"
    first = records(files[0])[0]
    said = [record["control"] for file in files for record in records(file) if record["control"]]
    (told,) = [one for one in said if one["what"] == "part-removed" and one["last_seq"] == first["seq"] - 1]
    assert told["last_hash"] == first["prev_hash"]


def test_what_only_has_the_name_of_a_part_takes_no_part_s_place(path: Path) -> None:
    three = Rotation(max_bytes=20_000, keep=3)
    write(path, 30, rotation=three)
    whole = parts_of(path)
    copies = [aside(path, 2e9, last_seq_of(whole[-1]) + 1 + number) for number in range(5)]
    copies[0].write_text("no audit")
    for copy in copies[1:]:
        copy.write_bytes(whole[-1].read_bytes())
    write(path, 20, rotation=three)
    assert set(copies) < set(parts_of(path))
    for copy in copies:
        copy.unlink()
    assert len(parts_of(path)) == 3 and problems(*given(path.parent)) == []


def test_a_clock_that_was_ahead_for_a_while_does_not_keep_a_file_for_ever(path: Path) -> None:
    clock = FakeClock()
    clock.now += 365 * 86400
    daily = {"rotation": Rotation(every_s=86400.0), "clock": clock}
    write(path, 1, **daily)
    clock.now -= 365 * 86400
    audit = open_audit(path, attester=SELDOM, **daily)
    at_once(audit.look())
    clock.now += 86400
    at_once(audit.look())
    at_once(audit.close())
    assert len(parts_of(path)) == 1


def test_no_first_line_of_anybody_stops_the_looks_at_the_clock(path: Path) -> None:
    line, digest = seal({"v": 1, "seq": 1, "event": "control", "prev_hash": GENESIS})
    path.write_bytes(line)
    Path(f"{path}.head").write_bytes(head_line(KEY, ChainEnd(1, digest)))
    audit = open_audit(path, attester=SELDOM, rotation=Rotation(every_s=1.0))
    at_once(audit.look())
    at_once(audit.close())
    assert path.read_bytes().startswith(line) and not parts_of(path)


@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
def test_what_lies_where_a_new_file_is_made_is_not_written_to(path: Path, tmp_path: Path, link: Any) -> None:
    another = tmp_path / "another"
    another.write_text("somebody else's")
    link(path.with_name(f"{path.name}.new"), another)
    write(path, 20, rotation=SMALL)
    assert another.read_text() == "somebody else's" and not path.is_symlink()
    assert len(parts_of(path)) > 1 and problems(*given(path.parent)) == []


def test_without_checkpoints_nothing_is_deleted(path: Path) -> None:
    write(path, 60, rotation=Rotation(max_bytes=20_000, keep=1), attester=None)
    assert len(given(path.parent)) > 5


def test_a_log_by_another_name_is_found_in_its_folder(tmp_path: Path) -> None:
    for name in ("sidecar.log", "evidence"):
        folder = tmp_path / name.replace(".", "-")
        write(folder / name, 30, rotation=SMALL)
        files = given(folder)
        assert files[-1].name == name and len(files) > 2 and problems(*files) == []


def test_evidence_is_set_aside_with_the_log_and_outlives_what_names_it(tmp_path: Path) -> None:
    path, kept = tmp_path / "audit" / "audit.jsonl", tmp_path / "evidence" / "evidence.jsonl"
    audit = open_audit(path, attester=SELDOM, rotation=Rotation(max_bytes=20_000, keep=2), evidence_path=kept)
    for number in range(60):
        forward_and_keep(audit, number)
    at_once(audit.close())
    files, results = given(path.parent), [*parts_of(kept), kept]
    assert len(files) == 3 and len(results) == 4
    assert problems(*files, evidence=results) == []
    assert "evidence-missing" in problems(*files, evidence=results[2:])


def forward_and_keep(audit: Audit, number: int) -> None:
    recording = understood(audit)
    at_once(recording.decided())
    named = {"invocation": recording.decision_id, "args_hash": recording.args_hash, "redacted": False}
    at_once(recording.keep(server="github", tool="search", data={"n": number, "text": "x" * 1000}, **named))
    at_once(recording.outcome(http_status=200, bytes_out=1))
    assert recording.done


@contextmanager
def failing(monkeypatch: pytest.MonkeyPatch, at: int, error: OSError) -> Iterator[list[int]]:
    """The `at`th of the calls that change files fails."""
    calls = [0]

    def counted(act: Callable[..., Any]) -> Callable[..., Any]:
        def acts(*given: Any, **more: Any) -> Any:
            calls[0] += 1
            if calls[0] == at:
                raise error
            return act(*given, **more)

        return acts

    with monkeypatch.context() as patched:
        for each in ("open", "rename", "unlink"):
            patched.setattr(os, each, counted(getattr(os, each)))
        yield calls


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_rotation_that_fails_anywhere_refuses_no_record_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    for at in range(1, 12):
        path, clock = tmp_path / str(at) / "audit.jsonl", FakeClock()
        audit = open_audit(path, attester=SELDOM, rotation=Rotation(max_bytes=10_000, keep=1), clock=clock)
        while path.stat().st_size < 10_000:
            forward(audit)
        with failing(monkeypatch, at, OSError(code, os.strerror(code))) as calls:
            forward(audit)
        clock.now += RETRY_S + 1
        for _ in range(20):
            forward(audit)
        at_once(audit.close())
        files = given(path.parent)
        assert problems(*files) == [] and len(files) > 1, at
        if calls[0] < at:
            return
    raise AssertionError(at)


def test_what_stands_in_the_way_of_a_part_is_left_alone(path: Path) -> None:
    clock = FakeClock()
    audit = open_audit(path, attester=SELDOM, rotation=Rotation(max_bytes=1), clock=clock)
    forward(audit)
    for part in [each for each in path.parent.iterdir() if each != path and each.suffix == ".jsonl"]:
        part.unlink()
    blocking = aside(path, clock.now, 4)
    blocking.write_text("hello")
    path.rename(moved := path.with_name("moved"))
    path.write_text("somebody else's")
    with pytest.raises(Refusal):
        forward(audit)
    at_once(audit.close())
    assert blocking.read_text() == "hello" and path.read_text() == "somebody else's"
    assert moved.read_bytes().endswith(b"}\n")


# --- keys -------------------------------------------------------------------------------------------------------------


def test_a_key_in_the_ring_checks_the_anchor_that_it_made_before_another_goes_on(path: Path) -> None:
    write(path, 3)
    audit = write(path, 3, key=OTHER_KEY, older=[KEY])
    assert audit.found == ("key-changed",)
    (told,) = [record["control"] for record in records(path) if record["control"] and "old_key_id" in record["control"]]
    assert (told["old_key_id"], told["anchor_checked"]) == (KEY.id, True)
    assert {record["key_id"] for record in records(path)} == {KEY.id, OTHER_KEY.id}
    report = verify([path], key=OTHER_KEY, older=[KEY])
    assert report.ok and not any("another key" in what for what in report.unproved)
    assert any("the anchor of the previous key was checked" in note for note in report.notes)
    assert write(path, 1, key=OTHER_KEY, older=[KEY]).found == ()


def test_a_log_that_was_cut_while_its_key_was_changed_is_found(path: Path) -> None:
    write(path, 3)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    assert write(path, 1, key=OTHER_KEY, older=[KEY]).found == ("records-lost", "key-changed")
    assert "at-start" in [problem.kind for problem in verify([path], key=OTHER_KEY).problems]


STEPS = "open rename write pwrite ftruncate unlink fdatasync fsync"


def ended_before_step(at: int, act: Callable[[Callable[[int], object]], object]) -> tuple[int, bool]:
    """`act` in a process of its own that ends, as by kill -9, before the `at`th of its calls that change files. Which
    sequence it said last was acknowledged, and whether it came to its end."""
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        say, calls = os.write, [0]

        def counted(call: Callable[..., Any]) -> Callable[..., Any]:
            def calling(*given: Any, **more: Any) -> Any:
                calls[0] += 1
                if calls[0] == at:
                    os._exit(9)
                return call(*given, **more)

            return calling

        try:
            for name in STEPS.split():
                setattr(os, name, counted(getattr(os, name)))
            act(lambda seq: say(writing, bytes([seq])))
            os._exit(0)
        finally:
            os._exit(1)
    os.close(writing)
    _, status = os.waitpid(pid, 0)
    with os.fdopen(reading, "rb") as said:
        acknowledged = max(said.read(), default=0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, 9)
    return acknowledged, code == 0


def test_a_process_that_ends_between_any_two_of_its_steps_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """From the first start on an empty folder, over checkpoints, results and a file that is set aside, to the stop."""
    more: dict[str, Any] = {"attester": SELDOM, "rotation": Rotation(max_bytes=2_500, keep=1), "durability": "disk"}

    def live(folder: Path, say: Callable[[int], object]) -> None:
        audit = open_audit(folder / "audit.jsonl", evidence_path=folder / "evidence.jsonl", **more)
        for number in range(2):
            forward_and_keep(audit, number)
            say(audit.trail.end.seq)
        stop(audit)

    for at in range(1, 400):
        folder = tmp_path / str(at)
        folder.mkdir()
        acknowledged, whole = ended_before_step(at, partial(live, folder))
        path, kept = folder / "audit.jsonl", folder / "evidence.jsonl"
        others = numbered_ids()
        audit = open_audit(path, evidence_path=kept, new_id=lambda others=others: f"again-{others()}", **more)
        assert set(audit.found) <= HARMLESS, (at, audit.found)
        forward_and_keep(audit, 99)
        at_once(audit.close())
        files = files_of(path)
        report = verify(files, key=KEY, public_keys=KEYS, evidence=files_of(kept))
        assert report.ok, (at, report.problems)
        assert report.last_seq >= acknowledged + 2, at
        if whole:
            break
    assert 40 < at < 399

"""Is a log that was put back told from one that goes on, and from whatever somebody else published?"""

from pathlib import Path

import pytest

from sidecar.audit import rollback
from sidecar.audit.chain import ChainEnd
from sidecar.audit.checkpoints import attest
from sidecar.audit.rollback import hash_in, newest_of, rolled_back
from sidecar.http.signing_keys import generate
from tests.at_once import at_once
from tests.unit.audit.scenes import Rotation, forward, open_audit, records

OURS, THEIRS = generate("EdDSA"), generate("EdDSA")
A, B = "a" * 64, "b" * 64


def test_the_newest_is_the_latest_that_our_key_signed() -> None:
    old = attest(OURS, ChainEnd(9, A), "2026-11-28T12:00:00.000000Z")
    new = attest(OURS, ChainEnd(5, B), "2026-11-28T13:00:00.0Z")
    theirs, forged = attest(THEIRS, ChainEnd(99, A), "2027-01-01T00:00:00Z"), new._replace(seq=99)
    found = newest_of([old, new, theirs, forged, old], OURS)
    assert (found.newest, found.passed_over) == (new, 2), "an old one, shown once more, says nothing new"
    assert newest_of([theirs, forged], OURS) == (None, 2)


@pytest.mark.parametrize(
    ("end", "known", "how"),
    [
        (ChainEnd(4, A), {}, "shorter"),
        (ChainEnd(0, "0" * 64), {}, "shorter"),
        (ChainEnd(5, A), {}, ""),
        (ChainEnd(5, B), {}, "another"),
        (ChainEnd(9, B), {5: A}, ""),
        (ChainEnd(9, B), {5: B}, "another"),
        (ChainEnd(9, B), {}, ""),
    ],
)
def test_what_cannot_be_the_log_that_was_attested_is_told(end: ChainEnd, known: dict[int, str], how: str) -> None:
    said = rolled_back(attest(OURS, ChainEnd(5, A), "2026-11-28T12:00:00Z"), end, known.get)
    assert said.get("how", "") == how and bool(said) is bool(how)
    assert not said or (said["found"], said["attested_seq"], said["last_seq"]) == (["rolled-back"], 5, end.seq)


def test_the_hash_of_any_record_is_found_in_whatever_part_it_is(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    audit = open_audit(path, rotation=Rotation(max_bytes=60_000))
    for _ in range(40):
        forward(audit)
    at_once(audit.close())
    written = [record for file in rollback.files_of(path) for record in records(file)]
    assert len(rollback.files_of(path)) > 1 and len(written) == 80
    hash_at = hash_in(path)
    assert [hash_at(record["seq"]) for record in written] == [record["hash"] for record in written]
    assert hash_at(81) is None and hash_in(tmp_path / "none.jsonl")(1) is None

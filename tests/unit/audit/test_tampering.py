"""Whatever is done to a long log, wherever: is it found, and where it was done?"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.tamper import ACTS, record, run, write_log
from sidecar.audit.chain import seal
from sidecar.audit.scan import scan
from sidecar.audit.verify import verify
from tests.unit.audit.scenes import KEY


def test_every_kind_of_tampering_is_found_with_its_place(tmp_path: Path) -> None:
    """`python -m bench.tamper` does the same to 100,000 lines, and far more often."""
    tried, found, placed = run(tmp_path, 4000, 2 * len(ACTS), seed=20261128)
    assert tried == found == placed and tried.total() == 2 * len(ACTS)


@pytest.fixture(scope="module")
def block(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return b"".join(write_log(tmp_path_factory.mktemp("log") / "audit.jsonl", 40))


@given(at=st.integers(0, 10**9), bit=st.integers(0, 7))
@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_changed_bit_is_a_run(block: bytes, at: int, bit: int) -> None:
    changed = bytearray(block)
    changed[at % len(block)] ^= 1 << bit
    assert scan(bytes(changed)) is None


def test_a_run_says_where_it_begins_and_ends_and_what_is_open(block: bytes) -> None:
    run_ = scan(block, wanted=(1, 7, 99))
    assert run_ is not None
    assert (run_.first_seq, run_.last_seq, run_.prev_hash) == (1, 40, "0" * 64)
    assert run_.events == {"decision": 20, "outcome": 20} and not run_.opened and not run_.closed
    assert sorted(run_.hashes) == [1, 7]
    lines = block.splitlines(keepends=True)
    inner = scan(b"".join(lines[3:11]))
    assert inner is not None and (len(inner.closed), len(inner.opened)) == (1, 1)
    for shape in (b"", b"\n", block[:-1], block + b"\n", block + lines[0], b"".join(lines[::-1]), b"{}\n" + block):
        assert scan(shape) is None


def test_runs_and_single_lines_come_to_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "audit.jsonl"
    write_log(path, 3000)
    quick = verify([path], key=KEY)
    monkeypatch.setattr("sidecar.audit.walk.BLOCK_BYTES", 50_000)
    small, several = (verify([path], key=KEY, processes=processes) for processes in (1, 2))
    monkeypatch.setattr("sidecar.audit.walk.scan", lambda *given, **more: None)
    slow = verify([path], key=KEY)
    assert quick.as_data() == several.as_data() == small.as_data() == slow.as_data() and quick.ok


def test_what_is_sealed_and_is_not_as_we_write_it_is_looked_at_line_by_line() -> None:
    for change in ({"event": "party"}, {"event": "decision", "decision_id": None}, {"v": 2}):
        line, _ = seal({**record(0), "seq": 1, "prev_hash": "0" * 64, **change})
        assert scan(line) is None

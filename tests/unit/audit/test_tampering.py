"""Whatever is done to a long log, wherever: is it found, and where it was done?"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.tamper import ACTS, KEY, record, run, write_log
from bench.windows import COMPARED, OF_EVERY_LINE, Attempt, Log, differing, everywhere, tasks_of
from sidecar.audit.chain import seal
from sidecar.audit.fast_scan import scan
from sidecar.audit.verify import verify


def test_every_kind_of_tampering_is_found_with_its_place(tmp_path: Path) -> None:
    """`python -m bench.tamper` does the same to 100,000 lines, and far more often."""
    tried, found, placed = run(tmp_path, 4000, 2 * len(ACTS), seed=20261128)
    assert tried == found == placed and tried.total() == 2 * len(ACTS)


def test_every_line_is_guarded_and_a_piece_is_judged_as_the_whole_is(tmp_path: Path) -> None:
    chance = random.Random(20261128)
    log = Log.of(write_log(tmp_path / "log.jsonl", 120), KEY)
    tally = everywhere(tmp_path, log, [task for task in tasks_of(log, 1, 1, chance) if "values" not in task.way], 1)
    assert tally.missed == [] and tally.tried == tally.found == tally.placed
    assert tally.tried.total() > 6 * 120 + 1000
    tried, differ = differing(tmp_path, log, 6 * len(COMPARED), chance)
    assert differ == [] and tried > 5 * len(COMPARED)


def test_a_log_is_verified_from_where_it_is_known(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = Log.of(write_log(path, 60), KEY)
    path.write_bytes(b"".join(log.lines[40:]))
    report = verify([path], key=KEY, after=log.ends[40])
    assert (report.ok, report.first_seq, report.last_seq, report.records) == (True, 41, 60, 20)
    assert [problem.kind for problem in verify([path], key=KEY).problems] == ["removed"]
    wrong = verify([path], key=KEY, after=log.ends[40]._replace(hash="0" * 64))
    assert [(problem.line, problem.kind) for problem in wrong.problems] == [(1, "changed")]
    assert [problem.line for problem in verify([path], key=KEY, after=log.ends[50]).problems] == [*range(1, 11)]
    path.write_bytes(b"")
    assert verify([path], key=KEY, after=log.ends[60]).ok
    assert [problem.kind for problem in verify([path], key=KEY, after=log.ends[59]).problems] == ["cut-end"]


def test_every_line_is_guarded_in_a_log_of_several_parts(tmp_path: Path) -> None:
    log, chance = Log.of(write_log(tmp_path / "log.jsonl", 30), KEY), random.Random(20261128)
    paths = [tmp_path / name for name in ("audit.1", "audit.2", "audit.jsonl")]
    Path(f"{paths[-1]}.head").write_bytes((tmp_path / "log.jsonl.head").read_bytes())

    def problems(parts: Sequence[bytes]) -> list[str]:
        for path, part in zip(paths, parts, strict=True):
            path.write_bytes(part)
        return [f"{Path(problem.path).name}:{problem.line}" for problem in verify(paths, key=KEY).problems]

    def parts(attempt: Attempt) -> list[bytes]:
        """The log in three files of ten lines; what is put in stands where it begins."""
        bounds, found = (0, 10, 20, 30), []
        for start, end in pairwise(bounds):
            before = log.lines[start : max(start, min(end, attempt.at))]
            put = [attempt.lines] if start <= attempt.at < end else []
            found.append(b"".join([*before, *put, *log.lines[max(start, attempt.at + attempt.taken) : end]]))
        return found

    assert problems(parts(Attempt(0, log.lines[0], 1, ()))) == []
    for at in range(30):
        for name in ("one byte changed", "changed and sealed anew", "removed", "swapped with the next", "doubled"):
            for attempt in OF_EVERY_LINE[name](log, at, chance):
                assert problems(parts(attempt)), f"{name}: line {at + 1}"


@pytest.fixture(scope="module")
def block(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return b"".join(write_log(tmp_path_factory.mktemp("log") / "audit.jsonl", 40))


@given(at=st.integers(0, 10**9), bit=st.integers(0, 7))
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
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
    monkeypatch.setattr("sidecar.audit.line_walk.BLOCK_BYTES", 50_000)
    small, several = (verify([path], key=KEY, processes=processes) for processes in (1, 2))
    monkeypatch.setattr("sidecar.audit.line_walk.scan", lambda *given, **more: None)
    slow = verify([path], key=KEY)
    assert quick.as_data() == several.as_data() == small.as_data() == slow.as_data() and quick.ok


def test_what_is_sealed_and_is_not_as_we_write_it_is_looked_at_line_by_line() -> None:
    for change in ({"event": "party"}, {"event": "decision", "decision_id": None}, {"v": 3}):
        line, _ = seal({**record(0), "seq": 1, "prev_hash": "0" * 64, **change})
        assert scan(line) is None


@pytest.mark.parametrize("version", [1, 2])
def test_lines_of_older_versions_are_a_run_too(version: int) -> None:
    assert scan(seal({**record(0), "v": version, "seq": 1, "prev_hash": "0" * 64})[0]) is not None

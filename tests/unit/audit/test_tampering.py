"""Whatever is done to a long log, wherever: is it found, and where it was done?"""

import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from bench.tamper import ACTS, KEY, run, write_log
from bench.windows import COMPARED, OF_EVERY_LINE, Attempt, Log, differing, everywhere, tasks_of
from sidecar.audit.verify import verify


def test_every_kind_of_tampering_is_found_with_its_place(tmp_path: Path) -> None:
    """`python -m bench.tamper` does the same to 100,000 lines, and far more often."""
    tried, found, placed = run(tmp_path, 1000, 2 * len(ACTS), seed=20261128)
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

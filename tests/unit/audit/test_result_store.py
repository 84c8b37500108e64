"""Is a result kept whole, or not at all?"""

import resource
from pathlib import Path

import pytest

from sidecar.audit.result_store import MAX_LINE_BYTES, NamedResult, ResultFile, evidence_line, named_in, read_evidence
from sidecar.errors import Reason, Refusal


def test_a_line_that_does_not_fit_on_the_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "evidence" / "evidence.jsonl"
    file = ResultFile(path)
    file.append(b'{"id":"1"}')
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, hard))
    try:
        with pytest.raises(OSError):
            file.append(b'{"id":"2","data":"%b"}' % (b"x" * 100))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == b'{"id":"1"}\n'
    file.append(b'{"id":"3"}')
    file.close()
    assert [kept.id for kept in read_evidence(path)] == ["1", "3"]
    with pytest.raises(OSError):
        file.append(b"{}")


ONE = b'{"id":"1"}\n'
BEFORE = [(b"", b""), (b"{", b""), (ONE, ONE), (ONE + b'{"id":', ONE), (ONE + b"x" * MAX_LINE_BYTES, ONE)]


@pytest.mark.parametrize(("before", "after"), BEFORE)
def test_a_start_takes_only_an_unfinished_line_away(tmp_path: Path, before: bytes, after: bytes) -> None:
    path = tmp_path / "evidence.jsonl"
    path.write_bytes(before)
    file = ResultFile(path)
    assert file.append(b"{}") == len(before) - len(after)
    file.close()
    assert path.read_bytes() == after + b"{}\n"


def test_a_file_that_was_deleted_or_cut_takes_no_further_results_with_it(tmp_path: Path) -> None:
    path = tmp_path / "evidence.jsonl"
    file = ResultFile(path)
    for number in range(3):
        file.append(b'{"id":"%d"}' % number)
        path.unlink() if number else path.write_bytes(b"")
    file.append(b'{"id":"3"}')
    path.rename(tmp_path / "moved")
    file.append(b'{"id":"4"}')
    file.close()
    assert path.read_bytes() == b'{"id":"4"}\n' and (tmp_path / "moved").read_bytes() == b'{"id":"3"}\n'


@pytest.mark.parametrize("before", [b"my diary", b"{" + b"x" * (MAX_LINE_BYTES + 10)])
def test_what_is_no_evidence_is_not_cut(tmp_path: Path, before: bytes) -> None:
    path = tmp_path / "evidence.jsonl"
    path.write_bytes(before)
    with pytest.raises(OSError):
        ResultFile(path).append(b"{}")
    assert path.read_bytes() == before


def test_a_line_is_named_by_its_bytes() -> None:
    line = evidence_line({"b": 1, "a": "ü"})
    assert line == '{"a":"ü","b":1}'.encode()
    assert NamedResult.of("x", line).sha256 != NamedResult.of("x", line + b" ").sha256
    with pytest.raises(Refusal) as refused:
        evidence_line({"data": "x" * MAX_LINE_BYTES})
    assert refused.value.reason is Reason.RESPONSE_REFUSED


@pytest.mark.parametrize("record", [{}, {"evidence": None}, {"evidence": [1, {"id": 1, "sha256": ""}, {"id": "x"}]}])
def test_a_log_of_before_there_was_evidence_names_none(record: dict[str, object]) -> None:
    assert list(named_in(record)) == []

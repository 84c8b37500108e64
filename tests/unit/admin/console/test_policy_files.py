"""Lines of files of any size."""

from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from sidecar.admin.console import policy_files
from sidecar.admin.console.policy_files import LineReader, files_of, pieces_in
from sidecar.settings.policy import PolicySettings


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("policy")


@settings(max_examples=60)
@given(st.lists(st.text("ab", max_size=12), max_size=12), st.booleans(), st.integers(1, 14), st.integers(1, 5))
def test_any_lines_are_found(folder: Path, lines: list[str], ends: bool, first: int, most: int) -> None:
    text = "\n".join(lines) + "\n" * ends
    lines = text.split("\n")[: -1 if text.endswith("\n") or not text else None]
    (folder / "agent_to_tool.csv").write_text(text)
    (file,) = [one for one in files_of(_policy(folder)) if one.name.endswith(".csv")]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(policy_files, "CHUNK_BYTES", 7)
        shown = LineReader().read(file, first, most)
    assert shown.total == len(lines)
    if lines:
        assert shown.first == min(first, len(lines))
        assert list(shown.lines) == lines[shown.first - 1 :][:most]


def _policy(folder: Path) -> PolicySettings:
    return PolicySettings.model_construct(models={}, path=folder, source=None, casbin=None, adapter_rows=None)


def test_a_line_is_shown_with_what_decides() -> None:
    assert pieces_in("p, a, b, deny", ".csv") == [("p, a, b,", ""), (" deny", "deny")]
    assert pieces_in("#: id=x", ".csv") == [("#: id=x", "note")]
    assert pieces_in("# x", ".yaml") == [("# x", "comment")]
    assert pieces_in("  - name: x", ".yaml") == [("  - name:", "key"), (" x", "")]
    assert pieces_in("[matchers]", ".conf") == [("[matchers]", "key")]
    assert pieces_in("m = r.sub == p.sub", ".conf") == [("m =", "key"), (" r.sub == p.sub", "")]

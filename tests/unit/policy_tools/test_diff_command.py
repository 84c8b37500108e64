"""How does `sidecar policy diff` end, and what does it take for a policy: folders, and revisions of git?"""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sidecar.cli import main
from sidecar.errors import SettingsError
from sidecar.policy_tools import git_revisions
from sidecar.policy_tools.diff import regions
from sidecar.policy_tools.git_revisions import opened

OLD = "#: id=r\np, nhi:a, tool:s/t, use, -, 10, -, allow\n"
WIDER = "#: id=r\np, nhi:a, tool:s/*, use, -, 10, -, allow\n"
NARROWER = "#: id=r\np, nhi:a, tool:s/t, tools/call, -, 10, -, allow\n"
MORE_CALLS = "#: id=r\np, nhi:a, tool:s/t, use, -, 20, -, allow\n"
RENAMED = "#: id=other\np, nhi:a, tool:s/t, use, -, 10, -, allow\n"
AUTHOR = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(folder: Path, rows: str, more: Mapping[str, str] | None = None) -> None:
    for name, text in {"policies/agent_to_tool.csv": rows, **(more or {})}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def compared(new: str, *more: str) -> Result:
    """OLD held against these rows."""
    for name, rows in (("old", OLD), ("new", new)):
        write(Path(name), rows)
    return run("old", "new", *more)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["policy", "diff", *arguments])


@pytest.mark.parametrize(
    ("new", "plain", "wider", "anything"),
    [(OLD, 0, 0, 0), (WIDER, 6, 6, 6), (NARROWER, 6, 0, 6), (MORE_CALLS, 0, 6, 6), (RENAMED, 0, 0, 6)],
)
def test_it_ends_as_asked(new: str, plain: int, wider: int, anything: int) -> None:
    endings = [compared(new, *more).exit_code for more in ((), ("--fail-on", "wider"), ("--fail-on", "any"))]
    assert endings == [plain, wider, anything]


def test_a_policy_with_faults_is_told_with_its_place() -> None:
    result = compared(OLD.replace("use", "tool/call"))
    assert result.exit_code == 3
    assert 'new/policies/agent_to_tool.csv:2:21: error[P104]: action "tool/call" is unknown' in result.stderr
    assert run("old", "new", "--json", "--markdown").exit_code == 2, "two forms at once are wrong usage"


def test_markup_in_a_policy_stays_text() -> None:
    more = "p, nhi:`<b>`, tool:s/u, use, -, -, args.x == '```|<script>', allow\n"
    told = compared(OLD + more, "--markdown").stdout
    assert "`` nhi:`<b>` × tool:s/u × use ``" in told
    assert "```` when args.x == '```\\|<script>' ````" in told


def test_what_was_not_worked_out_is_told_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regions, "MAX_DRAFTS", 0)
    assert compared(WIDER).stdout.splitlines()[2].startswith("NOT WORKED OUT: agent_to_tool: so much is different")
    assert "> ⚠️ **Not worked out.**" in run("old", "new", "--markdown").stdout
    found = json.loads(run("old", "new", "--json").stdout)
    assert [(region["decided"], region["witness"]) for region in found["regions"]] == [(False, None)]
    assert run("old", "new", "--fail-on", "wider").exit_code == 6


# --- git --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two commits: OLD, then WIDER; and a policy of its own under deploy/."""
    for name, value in {**AUTHOR, "GIT_CONFIG_GLOBAL": os.devnull}.items():
        monkeypatch.setenv(name, value)
    git("init", "-q", "-b", "main")
    write(tmp_path, OLD, {"deploy/policies/agent_to_tool.csv": NARROWER})
    commit()
    write(tmp_path, WIDER)
    commit()
    return tmp_path


def git(*arguments: str) -> None:
    subprocess.run(["git", *arguments], check=True, capture_output=True)


def commit() -> None:
    git("add", "-A")
    git("commit", "-q", "-m", "x")


def test_a_revision_is_held_against_the_working_tree(repository: Path) -> None:
    assert run("HEAD").exit_code == 0
    write(repository, NARROWER)
    result = run("main~1", "--json")
    assert result.exit_code == 6
    found = json.loads(result.stdout)
    assert (found["old"], found["new"]) == ("main~1", "working tree")
    counts = dict.fromkeys(("wider", "unknown", "rules_added", "rules_removed"), 0)
    assert found["summary"] == counts | {"narrower": 1, "rules_changed": 1}


def test_files_of_a_revision_are_named_as_git_names_them(repository: Path) -> None:
    found = json.loads(run("HEAD", "HEAD~1", "--json").stdout)
    assert [(cause["rule"], cause["file"]) for cause in found["regions"][0]["because"]] == [
        ("r", "HEAD:policies/agent_to_tool.csv")
    ]
    write(repository, OLD.replace("use", "us"))
    commit()
    assert "HEAD:policies/agent_to_tool.csv:2:21: error[P104]" in run("HEAD", "HEAD~1").stderr


def test_a_policy_elsewhere_in_a_revision_is_named_by_its_path_or_from_there(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for where in ("HEAD:deploy", "HEAD:deploy/policies"):
        assert json.loads(run("HEAD~1", where, "--json").stdout)["summary"]["narrower"] == 1
    monkeypatch.chdir(repository / "deploy")
    assert run("HEAD").exit_code == 0  # deploy/policies of HEAD, and of the working tree


@pytest.mark.parametrize("name", ["HEAD:", "HEAD:."])
def test_the_rows_of_a_revision_can_be_at_its_top(
    tmp_path: Path, name: str, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing next to the temporary folder belongs to the revision."""
    (top := tmp_path / "rows").mkdir()
    monkeypatch.chdir(top)
    git("init", "-q", "-b", "main")
    (top / "agent_to_tool.csv").write_text(OLD)
    commit()
    (top / "agent_to_tool.csv").write_text(NARROWER)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary" / "models").mkdir(parents=True)
    found = json.loads(run(name, ".", "--json").stdout)
    assert (found["summary"]["narrower"], found["rules"]["changed"][0]["file"]) == (1, "agent_to_tool.csv")


NO_REVISIONS = ("nosuch", "", "-x", "--output=x", ":policies", "HEAD^{tree}", "a;touch x")


def test_what_is_neither_folder_nor_revision_is_refused(repository: Path) -> None:
    before = sorted(repository.iterdir())
    for name in (*NO_REVISIONS, "HEAD:../x", "HEAD:/etc", "HEAD:-x", "HEAD:nosuch"):
        assert run("--", name, "HEAD").exit_code == 3, name
    assert sorted(repository.iterdir()) == before
    result = run("HEAD:policies/agent_to_tool.csv", "HEAD")
    assert (result.exit_code, result.stderr.startswith("HEAD:policies/agent_to_tool.csv: ")) == (3, True)


def test_outside_of_a_repository_there_are_no_revisions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    write(tmp_path, OLD)
    assert "git knows no such revision" in run("main").stderr


def test_a_link_and_a_revision_that_is_too_large_are_refused(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (repository / "policies" / "roles.csv").symlink_to("/etc/passwd")
    commit()
    assert "policies/roles.csv is not a regular file" in run("HEAD", "HEAD~1").stderr
    monkeypatch.setattr(git_revisions, "MAX_BYTES", 10)
    assert (run("HEAD~1", "HEAD~2").exit_code, "more than" in run("HEAD~1", "HEAD~2").stderr) == (3, True)


def test_a_git_that_hangs_is_ended(
    repository: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("bin")
    (folder / "git").write_text("#!/bin/sh\nexec sleep 60\n")
    (folder / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(git_revisions, "DEADLINE_S", 0.2)
    with pytest.raises(SettingsError, match="longer than"), opened("HEAD", directory=Path()):
        pass


def test_no_file_of_a_revision_outlives_its_use(repository: Path) -> None:
    with opened("HEAD", directory=Path()) as revision:
        assert (revision.root / "policies" / "agent_to_tool.csv").read_text() == WIDER
        assert revision.root.stat().st_mode & 0o077 == 0
    assert not revision.root.exists()

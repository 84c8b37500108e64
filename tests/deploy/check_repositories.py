"""What repositories of policies take from this one: the hooks of pre-commit, and the GitHub action."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from sidecar.cli.init import starting_files, write_files
from tests.deploy import ROOT, TOOLS

pytestmark = pytest.mark.skipif(not TOOLS.exists(), reason="no tools: make deploy-check")
HOOKS = ("sidecar-check", "sidecar-policy-check", "sidecar-policy-test", "sidecar-policy-fmt")
GIT = ("git", "-c", "user.name=you", "-c", "user.email=you@acme.example", "-c", "protocol.file.allow=always")
TIDY, UNTIDY = "p, nhi:b, tool:example/search, use, -, -, -, allow\n", "p,nhi:b,tool:example/search,use,-,-,-,allow\n"


def run(folder: Path, *words: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PATH": f"{TOOLS}:{os.environ['PATH']}", **more}
    return subprocess.run(words, cwd=folder, env=environ, capture_output=True, text=True, timeout=300)


def well(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def committed(folder: Path) -> None:
    well(run(folder, "git", "init", "-q", "-b", "main"))
    well(run(folder, "git", "add", "."))
    well(run(folder, *GIT, "commit", "-q", "-m", "x"))


def test_the_files_are_what_their_readers_take() -> None:
    well(run(ROOT, "pre-commit", "validate-manifest", ".pre-commit-hooks.yaml"))
    well(run(ROOT, "check-jsonschema", "--builtin-schema", "vendor.github-actions", "action.yml"))
    well(run(ROOT, "zizmor", "--offline", "--quiet", "action.yml"))
    templates = ".github/ISSUE_TEMPLATE"
    forms = (f"{templates}/bug.yml", f"{templates}/feature.yml")
    well(run(ROOT, "check-jsonschema", "--builtin-schema", "vendor.github-issue-forms", *forms))
    well(run(ROOT, "check-jsonschema", "--builtin-schema", "vendor.github-issue-config", f"{templates}/config.yml"))


def test_the_hooks_install_themselves_and_stop_what_is_wrong(tmp_path: Path) -> None:
    """pre-commit clones a commit, so what is not committed yet is copied into a repository of its own."""
    ours, theirs, home = (tmp_path / name for name in ("ours", "theirs", "home"))
    files = well(run(ROOT, "git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"))
    for name in files.rstrip("\0").split("\0"):
        if name.startswith((".pre-commit", "pyproject", "README", "LICENSE", "sidecar/", "models/", "policies/")):
            (ours / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, ours / name)
    committed(ours)
    write_files(theirs, starting_files())
    hooks = [{"id": name} for name in HOOKS]
    revision = well(run(ours, "git", "rev-parse", "HEAD")).strip()
    config = {"repos": [{"repo": str(ours), "rev": revision, "hooks": hooks}]}
    (theirs / ".pre-commit-config.yaml").write_text(yaml.safe_dump(config), "utf-8")
    committed(theirs)

    def hooked() -> list[str]:
        """The hooks that fail."""
        done = run(theirs, *("pre-commit", "run", "--all-files", "--color=never"), PRE_COMMIT_HOME=str(home))
        assert done.stdout.count("\n") >= len(HOOKS), done.stdout + done.stderr
        return [line.split(".")[0] for line in done.stdout.splitlines() if line.endswith("Failed")]

    assert hooked() == []
    rows = theirs / "policies" / "agent_to_tool.csv"
    before = rows.read_text("utf-8")
    rows.write_text(before + UNTIDY, "utf-8")
    well(run(theirs, "git", "add", "."))
    assert hooked() == ["sidecar policy fmt"]
    assert rows.read_text("utf-8") == before + TIDY
    rows.write_text(before + TIDY.replace("use", "useful"), "utf-8")
    well(run(theirs, "git", "add", "."))
    assert hooked() == ["sidecar check", "sidecar policy check", "sidecar policy test", "sidecar policy fmt"]


def test_the_action_installs_the_program_of_its_revision(tmp_path: Path) -> None:
    (step, *_) = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))["runs"]["steps"]
    assert step["name"] == "Install"
    bash = ("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"])
    well(run(tmp_path, *bash, RUNNER_TEMP=str(tmp_path), GITHUB_ACTION_PATH=str(ROOT)))
    write_files(tmp_path / "work", starting_files())
    checked = run(tmp_path / "work", tmp_path / "sidecar/bin/sidecar", "policy", "check", "--format", "github")
    assert "valid" in well(checked)

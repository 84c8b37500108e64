"""The GitHub action: its steps are run as a runner runs them, on the pull request of an example.

The step that installs is run by `make deploy-check`, because it needs the network.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from sidecar import __version__
from tests.pages import ROOT, blocks_of

EXAMPLE = ROOT / "examples" / "acme"
ACTION = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
STEPS: list[dict[str, Any]] = ACTION["runs"]["steps"]
PULL = 7
_EXPRESSION = re.compile(r"\$\{\{ *(.+?) *\}\}")
_TOKEN = re.compile(r"'[^']*'|&&|\|\||!=|==|!?cancelled\(\)|[\w.-]+|[()]")
_WORDS = {"&&": " and ", "||": " or ", "!=": "!=", "==": "==", "(": "(", ")": ")", "!cancelled()": "True"}
# GitHub's program, with the comments of the pull request in a file.
GH = f"""\
#!/usr/bin/env python3
import json, os, pathlib, sys
assert os.environ["GH_TOKEN"] == "secret" and sys.argv[1] == "api"
store = pathlib.Path(__file__).with_name("comments.json")
comments = json.loads(store.read_text()) if store.exists() else []
words = sys.argv[2:]
body = next((pathlib.Path(word.removeprefix("body=@")).read_text() for word in words if word.startswith("body=@")), "")
if "--jq" in words:
    assert "repos/acme/policies/issues/{PULL}/comments?per_page=100" in words
    for comment in comments:
        print(comment["id"], comment["body"].split("\\n")[0].rstrip("\\r"), sep="\\t")
elif "PATCH" in words:
    (changed,) = [one for one in comments if f"repos/acme/policies/issues/comments/{{one['id']}}" in words]
    changed["body"] = body
else:
    assert "POST" in words and "repos/acme/policies/issues/{PULL}/comments" in words
    comments.append({{"id": len(comments) + 1, "body": body}})
store.write_text(json.dumps(comments))
"""


@dataclass
class Runner:
    """Runs the steps after the installation, in a repository whose origin has the branch `main`."""

    folder: Path
    repository: Path
    outputs: dict[str, str] = field(default_factory=dict)
    printed: str = ""

    def run(self, *only: str, **inputs: str) -> dict[str, int]:
        """Each step that is not skipped, or each of `only`, with its exit code."""
        given = {name: str(about["default"]) for name, about in ACTION["inputs"].items()}
        given |= {name.replace("_", "-"): value for name, value in inputs.items()} | {"token": "secret"}
        self.outputs, self.printed, codes = {}, "", dict[str, int]()
        for step in STEPS[1:]:
            context = {
                **{f"inputs.{name}": value for name, value in given.items()},
                "steps.diff.outputs.file": self.outputs.get("file", ""),
                "github.base_ref": "main",
                "github.event.number": str(PULL),
            }
            failed = any(codes.values())
            skipped = not holds(step["if"], context) if "if" in step else failed
            if skipped or (only and step["name"] not in only):
                continue
            codes[step["name"]] = self._run(step, context)
        return codes

    def _run(self, step: Mapping[str, Any], context: Mapping[str, str]) -> int:
        said = {name: self.folder / name for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
        for path in said.values():
            path.write_text("", "utf-8")
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=self.repository / filled(step.get("working-directory", "."), context),
            env={
                **{name: filled(value, context) for name, value in step["env"].items()},
                **{name: str(path) for name, path in said.items()},
                "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
                "RUNNER_TEMP": str(self.folder),
                "GITHUB_REPOSITORY": "acme/policies",
                "HOME": str(self.folder),
            },
            capture_output=True,
            text=True,
            timeout=60,
        )
        self.printed += done.stdout + done.stderr
        lines = said["GITHUB_OUTPUT"].read_text("utf-8").splitlines()
        self.outputs |= dict(line.split("=", 1) for line in lines)
        return done.returncode

    def comments(self) -> list[str]:
        store = self.folder / "bin" / "comments.json"
        return [one["body"] for one in json.loads(store.read_text("utf-8"))] if store.exists() else []


def filled(value: str, context: Mapping[str, str]) -> str:
    return _EXPRESSION.sub(lambda found: context[found[1]], value)


def holds(condition: str, context: Mapping[str, str]) -> bool:
    """The value of a condition. It has names, texts, and the operators of `_WORDS`."""
    found = _EXPRESSION.fullmatch(condition)
    assert found is not None and not re.sub(_TOKEN, "", found[1]).strip(), condition
    words = (
        _WORDS.get(token) or (token if token[0] == "'" else repr(context[token])) for token in _TOKEN.findall(found[1])
    )
    return bool(eval(" ".join(words), {}))


@pytest.fixture
def runner(tmp_path: Path, commands: Path) -> Iterator[Runner]:
    if shutil.which("git") is None:
        pytest.skip("no git")
    repository = tmp_path / "repository"
    shutil.copytree(EXAMPLE, repository)
    commit = "git init -q -b main && git add . && git -c user.name=you -c user.email=you@acme.example commit -q -m x"
    clone = "git clone -q --bare . ../origin.git && git remote add origin ../origin.git"
    subprocess.run(["bash", "-ec", f"{commit} && {clone}"], cwd=repository, check=True, capture_output=True, timeout=30)
    (tmp_path / "bin").mkdir()
    (tmp_path / "sidecar" / "bin").mkdir(parents=True)
    (tmp_path / "sidecar" / "bin" / "sidecar").symlink_to(commands / "sidecar")
    (tmp_path / "bin" / "gh").write_text(GH, "utf-8")
    (tmp_path / "bin" / "gh").chmod(0o755)
    yield Runner(tmp_path, repository)


def test_what_is_wider_fails_the_job_and_the_comment_is_renewed(runner: Runner) -> None:
    assert runner.run(coverage="100") == {"Check": 0, "Test": 0, "Compare": 0, "Comment": 0}, runner.printed
    (before,) = runner.comments()
    subprocess.run(["git", "apply", "pull-request.patch"], cwd=runner.repository, check=True, timeout=30)
    assert runner.run() == {"Check": 0, "Test": 0, "Compare": 6, "Comment": 0}, runner.printed
    (after,) = runner.comments()
    assert after != before and after.startswith("<!-- sidecar policy: ./sidecar.yaml -->\n**Policy:** ")
    assert "`nhi:refund-bot × tool:stripe/create_refund × tools/call`" in after
    assert runner.outputs["file"] == str(runner.folder / "policy-diff.md")
    assert runner.run("Compare", "Comment", fail_on="none", comment="false") == {"Compare": 0}


def test_a_policy_that_does_not_load_is_marked_and_not_commented_on(runner: Runner) -> None:
    rows = runner.repository / "policies" / "platform" / "agent_to_tool.csv"
    rows.write_text(rows.read_text("utf-8") + "p, nhi:a, tool:jira/x, tool/call, -, -, -, allow\n", "utf-8")
    assert runner.run() == {"Check": 3, "Test": 3, "Compare": 3}
    assert "::error file=policies/platform/agent_to_tool.csv,line=" in runner.printed and "P104" in runner.printed
    assert runner.comments() == []


def test_an_input_that_is_none_is_named(runner: Runner) -> None:
    assert runner.run("Compare", fail_on="sometimes") == {"Compare": 2}
    assert '::error::fail-on is "sometimes": write wider, any or none' in runner.printed


def test_the_workflow_of_the_page_uses_it_as_it_is() -> None:
    page = (ROOT / "docs" / "guides" / "policy" / "policy-in-ci.md").read_text("utf-8")
    (text,) = [block.text for block in blocks_of(page) if block.file == ".github/workflows/policy.yaml"]
    workflow = yaml.safe_load(text)
    *_, step = workflow["jobs"]["policy"]["steps"]
    assert step["uses"] == f"acme/sidecar@v{__version__}" and step["with"].keys() <= ACTION["inputs"].keys()
    assert all(f"| `{name}` |" in page for name in ACTION["inputs"])
    assert workflow["permissions"]["pull-requests"] == "write"


def test_no_value_becomes_part_of_a_script() -> None:
    """The name of a branch may hold a command."""
    assert not [step["name"] for step in STEPS if "${{" in step["run"]]

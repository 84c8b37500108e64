"""Do the examples do what their READMEs tell people to type, and does the CI workflow that we hand out work on one?

Each README is run as it stands (tests/pages.py has the convention), in a copy of its folder. The steps of the workflow
in docs/policy-as-code.md are run as GitHub would, on the example's own pull request.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.flow.test_docs import PORTS, check_claims, run, script_of
from tests.pages import ROOT, blocks_of

EXAMPLE = ROOT / "examples" / "acme"
READMES = sorted((ROOT / "examples").glob("*/README.md"))
WORKFLOW = ".github/workflows/policy.yaml"
ELSEWHERE = ("pip install", "gh pr comment")  # steps that need the network


@pytest.mark.parametrize("readme", READMES, ids=lambda readme: readme.parent.name)
def test_the_readme_of_an_example_does_what_it_says(readme: Path, tmp_path: Path, commands: Path) -> None:
    blocks = list(blocks_of(readme.read_text("utf-8")))
    # `run` moves each second port to a free one.
    moved = " ".join(f"-e 's/{port[:-1]}[{port[-1]}]/{port}/'" for port in PORTS)
    copied = (
        f"set -e\ncp -R '{readme.parent}/.' .\n"
        f"find . -maxdepth 1 -name '*.*' -type f -exec sed -i {moved} {{}} +\n"
        f"export PYTHONPATH='{ROOT}'\n"
    )
    code, text = run(copied + script_of(blocks), tmp_path, commands)
    assert code == 0, f"ended with {code}:\n{text}"
    check_claims(blocks, text, readme.relative_to(ROOT).as_posix())


@pytest.mark.parametrize("readme", READMES, ids=lambda readme: readme.parent.name)
def test_what_the_readme_of_an_example_links_to_is_there(readme: Path) -> None:
    for target in re.findall(r"\]\(([^)\s#]+)", readme.read_text("utf-8")):
        assert "://" in target or (readme.parent / target).exists(), target


@pytest.mark.skipif(shutil.which("git") is None, reason="the workflow compares with a branch")
def test_the_workflow_stops_what_is_wider_and_nothing_else(tmp_path: Path, commands: Path) -> None:
    shutil.copytree(EXAMPLE, tmp_path, dirs_exist_ok=True)
    commit = "git init -q -b main && git add . && git -c user.name=you -c user.email=you@acme.example commit -q -m x"
    assert not bash(f"{commit} && git update-ref refs/remotes/origin/main HEAD", tmp_path, {}).returncode
    (job,) = handed_out()["jobs"].values()
    assert job["defaults"] == {"run": {"shell": "bash"}}, "without pipefail a pipe hides what the diff says"
    env = {name: value.replace("${{ github.base_ref }}", "main") for name, value in job["env"].items()}
    env["PATH"] = f"{commands}:{os.environ['PATH']}"
    steps = [step["run"] for step in job["steps"] if "run" in step and not step["run"].startswith(ELSEWHERE)]
    for changed, codes in (("true", [0, 0, 0]), ("git apply pull-request.patch", [0, 0, 6])):
        ended = [bash(step, tmp_path, env) for step in (changed, *steps)]
        assert [step.returncode for step in ended] == [0, *codes], "\n".join(step.stdout for step in ended)
        assert (tmp_path / "policy-tests.xml").read_text("utf-8").startswith("<?xml")
        told = (tmp_path / "policy-diff.md").read_text("utf-8")
        assert ("`nhi:refund-bot × tool:stripe/create_refund × tools/call`" in told) is (codes[-1] == 6), told


def handed_out() -> Any:
    """The workflow, as it stands on the page."""
    page = (ROOT / "docs" / "policy-as-code.md").read_text("utf-8")
    (text,) = [block.text for block in blocks_of(page) if block.file == WORKFLOW]
    return yaml.safe_load(text)


def bash(step: str, folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run one step as GitHub runs `shell: bash`."""
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step],
        cwd=folder,
        env={"PATH": os.environ["PATH"], **env, "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
    )

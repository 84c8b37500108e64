"""How do these tests write a policy with its suites, and run them?"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sidecar.errors import Fault, PolicyError
from sidecar.limits import load_budgets
from sidecar.policy import Engine, PolicySource, load_policy
from sidecar.policy_tools.suites.loading import read_suites
from sidecar.policy_tools.suites.suite import SuiteReport, run_suites, self_test
from tests.tables import tables

REPOSITORY = Path(__file__).parents[4]
MODELS = REPOSITORY / "models"
NOW = 1_800_000_000.0  # 2027-01-15T08:00:00Z
HEAD = "suite: s\nnow: 2027-01-15T08:00:00Z\ntests:\n"

TOOLS = tables("policy_tools/suites/rig")["tools"]
USERS = """
#: id=lends
p, user:u, nhi:a, use, -, -, -, allow
"""


def write(folder: Path, files: Mapping[str, str]) -> Path:
    """A folder with models, and with these files under `policies`."""
    for name, text in {"agent_to_tool.csv": TOOLS, "user_to_nhi.csv": USERS, **files}.items():
        path = folder / "policies" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    if not (folder / "models").exists():
        (folder / "models").symlink_to(MODELS)
    return folder


def policy(folder: Path) -> tuple[Engine, PolicySource]:
    source = load_policy(folder / "models", folder / "policies")
    return Engine(source), source


def run(folder: Path, tests: str, *, files: Mapping[str, str] | None = None, **more: Any) -> SuiteReport:
    """The report on a suite of these tests, each a line of YAML beginning with `- `."""
    text = tests if tests.lstrip().startswith("suite:") else HEAD + tests
    write(folder, {"tests/s.yaml": text, **(files or {})})
    engine, source = policy(folder)
    budgets = load_budgets(folder / "policies" / "budgets.yaml")
    return run_suites(engine, source, read_suites([folder / "policies" / "tests"]), budgets, now_s=NOW, **more)


def one(folder: Path, test: str, *, files: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """What is wrong with the only test; () if it passes."""
    (result,) = run(folder, f"- {{name: t, {test}}}\n", files=files).results
    return result.problems


def faults(folder: Path, text: str) -> list[Fault]:
    """What is wrong with a file of tests; [] if nothing is."""
    path = folder / "s.yaml"
    path.write_text(text, "utf-8")
    try:
        read_suites([path])
    except PolicyError as error:
        return list(error.faults)
    return []


def self_tested(folder: Path) -> list[Fault]:
    """The faults of a self-test."""
    engine, source = policy(folder)
    budgets = load_budgets(folder / "policies" / "budgets.yaml")
    return self_test(engine, source, folder / "policies", budgets, now_s=NOW)

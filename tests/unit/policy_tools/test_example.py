"""Is the example company what its README says, and does its policy hold together?"""

import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from click.testing import CliRunner

from sidecar.cli.policy.diff import diff as policy_diff
from sidecar.cli.policy.suggest import suggest as policy_suggest
from sidecar.cli.policy.test import test as policy_test
from sidecar.errors import PolicyError
from sidecar.limits import load_budgets
from sidecar.policy import Engine, PolicySource
from sidecar.policy.patterns import file_matches, glob
from sidecar.policy_tools.audit_records import question_of
from sidecar.policy_tools.policy_location import configured, in_folder
from sidecar.settings.load import load_settings
from sidecar.settings.sidecar_file import Settings
from sidecar.vocabulary import Chain, PermissionKind, Principal, Question, RuleRef
from tests.flow.acme_traffic import TRAFFIC, write_traffic
from tests.tables import tables

ROOT = Path(__file__).parents[3]
ACME = ROOT / "examples" / "acme"
POLICIES = ACME / "policies"
DIRECTORY = "directory/roles.csv"
FOREIGN = tables("policy_tools/example")["foreign"]
"""By the stem of a file, a row that no team may write; `{}` makes it another one in each file."""


@pytest.fixture(scope="module")
def settings() -> Settings:
    return load_settings(ACME / "sidecar.yaml", {}, check_files=False)


@pytest.fixture(scope="module")
def source() -> PolicySource:
    return configured(ACME / "sidecar.yaml", {}).load()


@pytest.fixture(scope="module")
def rules(source: PolicySource) -> list[RuleRef]:
    return list(source.rules)


@pytest.fixture(scope="module")
def tools() -> frozenset[str]:
    """`tool:<server>/<name>` of the whole catalogue."""
    catalogue = yaml.safe_load((ACME / "catalogue.yaml").read_text("utf-8"))
    named = [f"tool:{server}/{name}" for server, names in catalogue.items() for name in names]
    assert len(named) == len(set(named))
    return frozenset(named)


@pytest.fixture(scope="module")
def agents(source: PolicySource) -> frozenset[str]:
    return frozenset(name for name in source.roles.contents()["role:agents"] if name.startswith("nhi:"))


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The audit log of the traffic."""
    path = tmp_path_factory.mktemp("acme") / "audit.jsonl"
    write_traffic(ACME, path)
    return path


@pytest.fixture(scope="module")
def week() -> dict[str, Any]:
    return yaml.safe_load((ACME / TRAFFIC).read_text("utf-8"))


# --- its size ---------------------------------------------------------------------------------------------------------


def test_there_are_40_agents_30_servers_400_tools_and_300_users(
    source: PolicySource, settings: Settings, tools: frozenset[str], agents: frozenset[str]
) -> None:
    users = {name for name in source.roles.parents if name.startswith("user:")}
    assert (len(agents), len(settings.upstreams), len(tools), len(users)) == (40, 30, 400, 300)
    assert {tool.partition(":")[2].partition("/")[0] for tool in tools} == set(settings.upstreams)


def test_everybody_is_in_one_team() -> None:
    rows = re.findall(r"^g, (user:[a-z]+\.[a-z]+), (role:[a-z-]+)$", (POLICIES / DIRECTORY).read_text("utf-8"), re.M)
    assert len(rows) == len(dict(rows)) == 300
    assert len(set(dict(rows).values())) == 17


def test_all_kinds_of_rules_are_there(rules: list[RuleRef]) -> None:
    assert {rule.kind for rule in rules} == set(PermissionKind)
    number = len({rule.id for rule in rules})
    assert 100 <= number <= 160 and f"{number} rules" in (ACME / "README.md").read_text("utf-8")
    assert {rule.per for rule in rules} == {"subject", "origin", "rule"}
    assert {rule.effect for rule in rules if rule.kind is PermissionKind.AGENT_TO_TOOL} == {"allow", "deny"}
    assert any(rule.shadow for rule in rules)
    assert any(rule.expires_at for rule in rules)
    assert {Path(rule.file).suffix for rule in rules} == {".csv", ".yaml"}


# --- it holds together ------------------------------------------------------------------------------------------------


def test_it_loads_with_the_shipped_models_and_every_rule_has_a_name_and_an_owner(
    source: PolicySource, rules: list[RuleRef]
) -> None:
    assert source.warnings == () and load_budgets(POLICIES / "budgets.yaml").tools
    for path in (ROOT / "models").iterdir():
        assert (ACME / "models" / path.name).read_bytes() == path.read_bytes(), path.name
    assert [rule.id for rule in rules if not rule.owner.endswith("@acme.example")] == []
    assert [rule.id for rule in rules if re.fullmatch(r"[0-9a-f]{16}", rule.id)] == []
    assert [rule.id for rule in rules if rule.kind is PermissionKind.GUARDRAIL and not rule.reason] == []


def test_every_tool_agent_and_role_that_is_named_exists(
    source: PolicySource, rules: list[RuleRef], tools: frozenset[str], agents: frozenset[str], settings: Settings
) -> None:
    named = {name for rule in rules for name in (rule.subject, rule.object)} | set(source.sets.parents)
    patterns = [name for name in named if name.startswith("tool:")]
    assert len(patterns) > 100
    assert [pattern for pattern in patterns if not any(glob(tool, pattern) for tool in tools)] == []
    exact = {name for name in named if name.startswith("nhi:") and "*" not in name}
    assert exact - {f"nhi:{server}" for server in settings.upstreams} <= agents
    roles = {name for name in named if name.startswith("role:")}
    roles |= {role for rule in rules for role in re.findall(r"'(role:[^']+)'", rule.when)}
    assert roles - set(source.roles.contents()) == {"role:corp/auditors"}, "tokens grant it"


def test_every_agent_may_use_something_and_is_used_by_somebody(
    source: PolicySource, rules: list[RuleRef], agents: frozenset[str]
) -> None:
    allows = [rule for rule in rules if rule.effect == "allow"]
    acting = {rule.subject for rule in allows if rule.kind is PermissionKind.AGENT_TO_TOOL}
    used = {rule.object for rule in allows if rule.kind is not PermissionKind.AGENT_TO_TOOL}
    for agent in agents:
        own_roles = source.roles.closure([agent]) - {"role:agents"}  # beyond what every agent may
        assert acting & ({agent} | own_roles), f"{agent} may use nothing"
        by_itself = agent == "nhi:dependency-updater"
        assert used & ({agent} | source.sets.closure([agent])) or by_itself, f"{agent} is used by no principal"


# --- who may say what -------------------------------------------------------------------------------------------------


def test_every_folder_of_a_team_has_a_scope_of_its_own(settings: Settings) -> None:
    for path in _policy_files(POLICIES):
        relative = path.relative_to(POLICIES).as_posix()
        bounding = [scope for scope in settings.policy.scopes if file_matches(relative, scope.files)]
        assert len(bounding) == (0 if relative.startswith("platform/") else 1), relative


def test_no_team_may_speak_about_what_is_not_its_own(tmp_path: Path) -> None:
    """A foreign row in each file of each team: each of them is refused, at its place."""
    folder = _copy(tmp_path)
    expected: set[tuple[str, int]] = set()
    for path in _policy_files(folder / "policies"):
        if "platform" not in path.parts:
            expected.add((str(path), _write_foreign(path, len(expected))))
    with pytest.raises(PolicyError) as error:
        configured(folder / "sidecar.yaml", {}).load()
    assert len(expected) > 20
    assert {(fault.file, fault.line) for fault in error.value.faults if fault.code == "P112"} == expected
    assert {fault.code for fault in error.value.faults} == {"P112"}


def test_payments_agents_reach_no_people_data_by_any_way(
    source: PolicySource, agents: frozenset[str], tools: frozenset[str]
) -> None:
    """Not only what the tests of the example ask: every tool about people, behind those who could lend most."""
    engine = Engine(source)
    people = [tool for tool in sorted(tools) if tool.startswith(("tool:workday/", "tool:greenhouse/"))]
    payments = sorted(name for name in source.roles.contents()["role:payments-agents"] if name in agents)
    assert (len(people), len(payments)) == (25, 5)
    for first in ("user:rosa.silva", "user:ines.castillo", "user:paula.hoffman"):
        for agent in payments:
            for tool in people:
                server, _, name = tool.partition(":")[2].partition("/")
                arguments = {"employee": first.partition(":")[2]}
                question = Question(tool, "tools/call", server, name, arguments)
                assert not engine.decide(_chain(first, agent), question, 1_795_780_800.0).allowed


# --- its tests, its pull request, its traffic -------------------------------------------------------------------------


def test_its_tests_notice_each_change_of_the_pull_request(tmp_path: Path) -> None:
    """With the new policy and the old tests, some fail: they are worth something."""
    folder = _copy(tmp_path)
    rows = folder / "policies" / "teams" / "payments" / "agent_to_tool.csv"
    rows.write_text(rows.read_text("utf-8").replace('args.amount <= 50"', 'args.amount <= 100"'), "utf-8")
    run = CliRunner().invoke(policy_test, ["-c", str(folder / "sidecar.yaml")])
    assert run.exit_code == 4
    assert "and not more" in run.output


def test_the_traffic_names_what_exists(week: dict[str, Any], tools: frozenset[str], agents: frozenset[str]) -> None:
    for entry in week["calls"]:
        assert entry["calls"] in tools | agents, entry
        assert {name for name in entry["as"] if name.startswith("nhi:")} <= agents, entry


def test_the_traffic_is_recorded_by_the_real_writer_with_real_decisions(log: Path, source: PolicySource) -> None:
    records = [orjson.loads(line) for line in log.read_bytes().splitlines()]
    events = Counter(record["event"] for record in records)
    reasons = Counter(record["reason"] for record in records if record["event"] == "refusal")
    assert events["decision"] == events["outcome"] > 3000
    assert set(reasons) == {"condition-false", "denied-by-rule", "no-matching-rule"}
    assert {record["policy_revision"] for record in records} == {source.revision}
    assert [record["seq"] for record in records] == list(range(1, len(records) + 1))


def _copy(tmp_path: Path) -> Path:
    """The example without what a sidecar that ran in it has left."""

    def left_behind(folder: str, names: list[str]) -> set[str]:
        return {"data"} if Path(folder) == ACME else set()

    return Path(shutil.copytree(ACME, tmp_path / "acme", ignore=left_behind))


def _write_foreign(path: Path, number: int) -> int:
    """A foreign row into a file: at the end of a CSV file, as the first rule of a YAML file. The line of it."""
    lines = path.read_text("utf-8").splitlines()
    at = lines.index("rules:") + 1 if path.suffix == ".yaml" else len(lines)
    lines.insert(at, FOREIGN[path.name.partition(".")[0]].format(number))
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return at + 1


def _policy_files(policies: Path) -> Iterator[Path]:
    """The files of rules, in the order of their names."""
    for path in sorted(policies.rglob("*")):
        if path.is_file() and "tests" not in path.relative_to(policies).parts and path.name != "budgets.yaml":
            yield path


def _chain(*names: str) -> Chain:
    return tuple(Principal(name) for name in names)


def test_what_is_suggested_from_its_traffic_is_what_the_traffic_needs_and_nothing_else(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all that the company has: one row for each recorded use on one side, the suggestion on the other."""
    catalogue = str(ACME / "catalogue.yaml")
    suggested = tmp_path / "suggested" / "policies"
    monkeypatch.chdir(tmp_path)  # without a present policy, whose terms it would keep
    options = ["--catalogue", catalogue, "-o", str(suggested)]
    assert CliRunner().invoke(policy_suggest, [str(log), *options]).exit_code == 0
    needs = tmp_path / "needs" / "policies"
    needs.mkdir(parents=True)
    for kind, rows in needed(log).items():
        (needs / f"{kind}.csv").write_text("".join(sorted(rows)))
    compared = [str(needs.parent), str(suggested.parent), "--catalogue", catalogue, "--json"]
    told = CliRunner().invoke(policy_diff, compared)
    found = orjson.loads(told.stdout)
    assert (told.exit_code, found["regions"], found["notes"]) == (0, [], [])
    with (suggested / "agent_to_tool.csv").open("a") as rows:
        rows.write("p, nhi:concierge, tool:stripe/create_refund, tools/call, -, -, -, allow\n")
    found = orjson.loads(CliRunner().invoke(policy_diff, compared).stdout)
    assert [region["change"] for region in found["regions"]] == ["wider"]


def test_what_is_suggested_from_its_traffic_allows_nothing_that_its_policy_does_not(tmp_path: Path, log: Path) -> None:
    catalogue = str(ACME / "catalogue.yaml")
    suggested = tmp_path / "suggested" / "policies"
    options = ["-c", str(ACME / "sidecar.yaml"), "--catalogue", catalogue, "-o", str(suggested)]
    told = CliRunner().invoke(policy_suggest, [str(log), *options])
    assert told.exit_code == 0, told.stderr
    told = CliRunner().invoke(policy_diff, [str(ACME), str(suggested.parent), "--catalogue", catalogue, "--json"])
    found = orjson.loads(told.stdout)
    assert [region["text"] for region in found["regions"] if region["change"] != "narrower"] == []
    assert found["notes"] == []
    before, after = (Engine(in_folder(folder).load()) for folder in (ACME, suggested))
    records = map(orjson.loads, log.read_bytes().splitlines())
    decided = (record for record in records if record["event"] == "decision")
    for names, obj, action in {(tuple(record["chain"]), record["object"], record["action"]) for record in decided}:
        chain, question = _chain(*names), question_of(obj, action)
        old, new = (one.decide(chain, question, 0.0) for one in (before, after))
        limits = [[(each.counted_for, each.per_hour) for each in decision.limits] for decision in (old, new)]
        assert not new.allowed or set(limits[0]) <= set(limits[1])


def needed(log: Path) -> dict[str, set[str]]:
    """By kind, a row for each link of each call that was let through."""
    rows: dict[str, set[str]] = {}
    for record in map(orjson.loads, log.read_bytes().splitlines()):
        if record["event"] != "decision":
            continue
        asked = [*record["chain"][1:], record["object"]]
        for name, obj, link in zip(record["chain"], asked, record["links"], strict=False):
            if link["kind"] != "guardrail":
                row = f"p, {name}, {obj}, {link['action']}, -, -, -, allow\n"
                rows.setdefault(link["kind"], set()).add(row)
    return rows

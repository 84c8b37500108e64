"""What does a log suggest as a policy?

`UPDATE_GOLDEN=1 pytest tests/unit/policy_tools` writes the golden text anew; the diff is then to be read.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from sidecar.audit.recorder import Audit
from sidecar.cli import main
from sidecar.cli.policy.diff import diff as policy_diff
from sidecar.errors import SettingsError
from sidecar.policy_tools.catalogue import Known, read_catalogue
from sidecar.policy_tools.suggest import evidence as reading
from sidecar.policy_tools.suggest.evidence import SuggestQuery, UsageEvidence
from sidecar.policy_tools.suggest.rule_shape import RuleDraft, pattern_of
from sidecar.policy_tools.suggest.suggestion import role_name, rule_id, set_name
from sidecar.vocabulary import Chain, PermissionKind, Principal, Question
from tests.at_once import at_once
from tests.tables import tables
from tests.unit.audit.scenes import FakeClock, open_audit
from tests.unit.policy.world import REPOSITORY, chain, engine, write
from tests.unit.policy_tools.traffic import write_down

TABLES = tables("policy_tools/suggest")

GOLDEN = REPOSITORY / "tests" / "golden" / "suggest"
CASES = yaml.load((GOLDEN / "cases.yaml").read_text("utf-8"), yaml.CSafeLoader)
TOOL = PermissionKind.AGENT_TO_TOOL

POLICY = TABLES["policy"]
ACME = {"repo": "acme/site"}


class World:
    """A policy, its engine, and a log that the real writer keeps of what the engine says."""

    def __init__(self, folder: Path, policy: Mapping[str, str] = POLICY) -> None:
        self.folder = folder
        self.engine = engine(folder / "policies", policy)
        self.log = folder / "audit.jsonl"
        self.clock = FakeClock()
        self.audit: Audit = open_audit(self.log, clock=self.clock)
        self.asked: list[tuple[tuple[str, ...], str, str]] = []

    def call(self, who: str, obj: str, action: str = "tools/call", *, args: Any = None, by: Chain = ()) -> bool:
        """One call, recorded as the pipeline does it."""
        names = who.split(" ")
        server, _, name = obj.partition(":")[2].partition("/")
        session = action == "initialize"
        question = Question(obj, action, server, name, args or {})
        decision = (self.engine.enter if session else self.engine.decide)(by or chain(*names), question, self.clock.now)
        self.clock.now += 60
        write_down(self.audit, decision, by or chain(*names), question, session=session)
        if decision.allowed and not session:
            self.asked.append((tuple(names), obj, action))
        return decision.allowed

    def suggest(self, *more: str) -> Result:
        config = ["-c", str(self.folder / "sidecar.yaml")]
        return CliRunner().invoke(main, ["policy", "suggest", str(self.log), *config, *more], catch_exceptions=False)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def a_day_at_work(world: World) -> None:
    for _ in range(2):
        for agent in ("pay-ledger", "pay-refunds", "pay-audit"):
            for tool in ("get_balance", "get_entries", "get_rates", "post_entry"):
                world.call(f"nhi:{agent}", f"tool:bank/{tool}")
        world.call("nhi:pay-refunds", "tool:bank/post_refund")
        for user in ("ann", "ben"):
            for tool in ("get_file", "get_issue", "get_pull_request"):
                world.call(f"user:{user}", f"tool:github/{tool}")
        world.call("user:ann nhi:planner nhi:researcher", "tool:github/search_code", args=ACME)
        world.call("user:ann nhi:researcher", "tool:github/create_issue", args=ACME)
    world.call("nhi:planner", "nhi:github", "initialize")
    world.call("nhi:researcher", "nhi:github", "initialize")
    assert not world.call("nhi:pay-ledger", "tool:bank/delete_all")
    assert not world.call("user:eve", "tool:github/get_file")
    assert not world.call("nhi:researcher", "tool:github/search_code", args={"repo": "evil/x"})
    at_once(world.audit.close())


ASKING = {
    "agent_to_tool": "#: id=wide approval=role:oncall within=1h valid=2h reason=required\n"
    "p, nhi:*, tool:bank/*, use, -, -, -, allow\n"
    "#: id=free\np, nhi:*, tool:bank/get_*, use, -, -, -, allow\n"
    "#: id=plain\np, nhi:*, tool:github/*, use, -, -, -, allow\n",
    "user_to_nhi": "#: id=lends approval=role:lead\np, user:*, nhi:planner, use, -, -, -, allow\n",
}


def test_a_suggestion_keeps_the_approvals_of_the_rows_that_it_tightens(tmp_path: Path) -> None:
    world = World(tmp_path, ASKING)
    for obj in ("tool:bank/get_balance", "tool:bank/post_refund", "tool:github/get_file"):
        world.call("nhi:planner", obj)
    world.call("user:ann nhi:planner", "tool:bank/post_refund")
    world.call("user:ann", "nhi:planner", "tasks/get")
    at_once(world.audit.close())
    assert wider(world) == []
    suggested = engine(world.folder / "out" / "policies", {})
    for names, obj, action in world.asked:
        server = "" if obj.startswith("nhi:") else obj[5:].split("/")[0]
        question = Question(obj, action, server, "", {})
        before, after = (each.decide(chain(*names), question, world.clock.now) for each in (world.engine, suggested))
        assert after.allowed
        assert {rule.approval for rule in after.approvals} == {rule.approval for rule in before.approvals}
    rules = json.loads(world.suggest("--json").stdout)["rules"]
    (refund,) = [rule for rule in rules if "tool:bank/post_refund" in rule["objects"]]
    assert refund["approval"] == {"role": "role:oncall", "within_s": 3600.0, "valid_s": 7200.0, "reason": True}


def test_without_the_present_policy_what_a_person_approved_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    link = {"kind": "agent_to_tool", "action": "tools/call", "decision": "allow", "rules": ["r"]}
    line = {"event": "decision", "timestamp": "2027-01-15T08:00:00Z", "decision_id": "d", "reason": None}
    line |= {"chain": ["nhi:a"], "object": "tool:s/t", "action": "tools/call", "links": [link]}
    shadow = line | {"object": "tool:s/v", "enforcement": "shadow", "would_deny": ["approval-pending"]}
    lines = [line | {"object": "tool:s/u"}, line, line | {"approval": {"id": "a"}}, shadow]
    (tmp_path / "audit.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    done = CliRunner().invoke(main, ["policy", "suggest", "audit.jsonl", "--json"])
    data = json.loads(done.stdout)
    assert [rule["object"] for rule in data["rules"]] == ["tool:s/u"]
    why = "it needed a person's approval, and without the current policy it is not known whose"
    assert [(one["why"], one["records"]) for one in data["left_out"]] == [(why, 2)]


def test_a_day_at_work_is_suggested_as_agreed(world: World) -> None:
    a_day_at_work(world)
    result = world.suggest()
    told = f"{result.stdout}---- on standard error ----\n{result.stderr}"
    expected = GOLDEN / "day.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        expected.write_text(told, encoding="utf-8")
    assert (result.exit_code, told) == (0, expected.read_text(encoding="utf-8"))


def test_the_suggested_folder_answers_every_recorded_call_as_the_recorded_policy_did(world: World) -> None:
    a_day_at_work(world)
    assert wider(world) == []
    suggested = engine(world.folder / "out" / "policies", {})
    for names, obj, action in world.asked:
        server, _, name = obj.partition(":")[2].partition("/")
        assert suggested.decide(chain(*names), Question(obj, action, server, name, ACME), world.clock.now).allowed
    refused = (
        "nhi:pay-ledger tool:bank/post_refund, nhi:pay-ledger tool:bank/delete_all, user:eve tool:github/get_file, "
        "user:ann tool:github/search_code, nhi:researcher tool:github/search_code"
    )
    for who, obj in (words.split(" ") for words in refused.split(", ")):
        asked = Question(obj, "tools/call", obj[5:].split("/")[0], "", {"repo": "evil/x"})
        assert not suggested.decide(chain(who), asked, 0.0).allowed


def test_rules_cite_their_records_and_the_terms_they_rested_on(world: World) -> None:
    a_day_at_work(world)
    data = json.loads(world.suggest("--json").stdout)
    assert data["fewest"] is True
    rules = {(rule["subject"], rule["object"]): rule for rule in data["rules"]}
    entries = rules["role:pay-agents", "set:bank-tools"]
    assert (entries["uses"], entries["triples"], len(entries["decisions"])) == (24, 12, 3)
    assert entries["first_seen"] < entries["last_seen"]
    assert entries["rests_on"] == ["payments"]
    assert data["roles"]["role:pay-agents"] == ["nhi:pay-audit", "nhi:pay-ledger", "nhi:pay-refunds"]
    assert (data["reused"], data["carried"]) == (["role:engineers"], ["no-deletes"])
    assert data["proof"]["cells"] > 0
    recorded = [json.loads(line) for line in world.log.read_text().splitlines()]
    ids = {record["decision_id"] for record in recorded if record["event"] == "decision"}
    assert all(set(rule["decisions"]) <= ids for rule in data["rules"])


def test_a_catalogue_keeps_patterns_from_covering_what_was_never_used(world: World) -> None:
    a_day_at_work(world)
    catalogue = world.folder / "catalogue.yaml"
    catalogue.write_text("github: [get_file, get_issue, get_pull_request, get_secret]\n")
    exact = json.loads(world.suggest("--json", "--catalogue", str(catalogue)).stdout)
    assert "tool:github/get_*" not in {rule["object"] for rule in exact["rules"]}
    wide = json.loads(world.suggest("--json", "--catalogue", str(catalogue), "--widen", "1").stdout)
    widened = {rule["object"]: rule["widened"] for rule in wide["rules"] if rule["widened"]}
    assert widened["tool:github/get_*"] == ["tool:github/get_secret"]
    assert any("is widened by tool:github/get_secret" in note for note in wide["notes"])


def test_what_was_refused_for_want_of_a_rule_is_taken_when_asked_for(world: World) -> None:
    world.call("user:eve", "tool:github/get_file")
    at_once(world.audit.close())
    nothing = world.suggest()
    assert (nothing.exit_code, "nothing was recorded" in nothing.stderr) == (1, True)
    data = json.loads(world.suggest("--include", "denied", "--json").stdout)
    assert [(rule["subject"], rule["object"]) for rule in data["rules"]] == [("user:eve", "tool:github/get_file")]


def test_only_the_time_that_is_asked_for_counts(world: World) -> None:
    for tool in ("get_a", "get_b"):
        world.call("user:ann", f"tool:github/{tool}")
    at_once(world.audit.close())
    second = json.loads(world.log.read_text().splitlines()[2])["timestamp"]
    for option, tool in (("--since", "get_b"), ("--until", "get_a")):
        data = json.loads(world.suggest("--json", option, second).stdout)
        assert [rule["object"] for rule in data["rules"]] == [f"tool:github/{tool}"]


def test_a_suggestion_that_cannot_be_given_says_why(world: World) -> None:
    a_day_at_work(world)
    write(world.folder / "broken", {"policies/user_to_nhi.csv": "p, user:ann\n"})
    for words, code, said in (
        (("--since", "yesterday"), 2, "write a time like"),
        (("-o", str(world.folder / "policies")), 2, "is not empty"),
        (("-o", "/proc/nowhere/policies"), 2, "cannot be written"),
        (("-c", str(world.folder / "broken" / "sidecar.yaml")), 3, "user_to_nhi.csv:1:1: error[P102]"),
    ):
        result = world.suggest(*words)
        assert (result.exit_code, said in result.stderr) == (code, True), result.stderr


# --- terms ------------------------------------------------------------------------------------------------------------

TOOLS = "agent_to_tool"


def rows_of(world: World) -> list[str]:
    """The rows of a suggestion, of all files."""
    at_once(world.audit.close())
    told = world.suggest()
    assert told.exit_code == 0, told.stderr
    return [line for line in told.stdout.splitlines() if line.startswith("p, ")]


def wider(world: World) -> list[str]:
    """What a suggestion would allow that the present policy does not."""
    out = world.folder / "out" / "policies"
    assert world.suggest("-o", str(out)).exit_code == 0
    told = CliRunner().invoke(policy_diff, [str(world.folder), str(out.parent), "--json"])
    found = json.loads(told.stdout)
    return [str(one) for one in found["regions"] if one["change"] != "narrower"] + found["notes"]


@pytest.mark.parametrize("case", CASES["terms"], ids=lambda case: case["id"])
def test_terms_of_the_rows_that_allowed_a_call_are_kept(tmp_path: Path, case: dict[str, Any]) -> None:
    world = World(tmp_path, {TOOLS: case["rows"] + "\n"})
    for tool in case["calls"]:
        assert world.call("nhi:a", f"tool:s/{tool}", args=ACME)
    assert rows_of(world) == case["suggested"]
    assert wider(world) == []


def test_what_the_present_policy_no_longer_allows_is_not_taken(world: World) -> None:
    world.call("nhi:pay-ledger", "tool:bank/get_a")
    world.call("user:ann", "tool:github/get_file")
    write(world.folder / "policies", {"agent_to_tool.csv": "p, nhi:pay-*, tool:bank/*, use, -, -, -, allow\n"})
    kept, deny = rows_of(world)
    assert kept == "p, nhi:pay-ledger, tool:bank/get_a, tools/call, -, -, -, allow"
    assert deny == "p, *, tool:*/delete_*, tools/call, -, -, -, deny"
    assert "1 call that the current policy no longer allows" in world.suggest().stderr


def test_a_role_that_a_token_granted_stays_a_condition(tmp_path: Path) -> None:
    world = World(tmp_path, {TOOLS: "p, role:corp/eng, tool:s/*, use, -, -, args.repo == 'acme/site', allow\n"})
    ann = Principal("user:ann", "", frozenset({"role:corp/eng"}))
    assert world.call("user:ann", "tool:s/get", args=ACME, by=(ann,))
    asked = "has_role(principal, 'role:corp/eng') && (args.repo == 'acme/site')"
    assert rows_of(world) == [f'p, user:ann, tool:s/get, tools/call, -, -, "{asked}", allow']
    out = tmp_path / "out"
    assert world.suggest("-o", str(out)).exit_code == 0
    suggested = engine(out, {})
    question = Question("tool:s/get", "tools/call", "s", "get", ACME)
    assert suggested.decide((ann,), question, 0.0).allowed
    assert not suggested.decide(chain("user:ann"), question, 0.0).allowed


def test_roles_that_kept_conditions_and_denies_ask_for_go_along(tmp_path: Path) -> None:
    rules = {
        TOOLS: "p, nhi:a, tool:s/*, use, -, -, \"has_role(principal, 'role:day')\", allow\n",
        "guardrails": "#: id=no\np, role:blocked, set:risky, use, -, -, -, deny\n",
        "roles": "g, nhi:a, role:in\ng, role:in, role:day\ng, nhi:b, role:blocked\ng2, tool:s/x, set:risky\n",
    }
    world = World(tmp_path, rules)
    assert world.call("nhi:a", "tool:s/x")
    at_once(world.audit.close())
    told = world.suggest().stdout.splitlines()
    assert [line for line in told if line.startswith(("g, ", "g2, "))] == [
        "g, nhi:b, role:blocked",
        "g, role:in, role:day",
        "g, nhi:a, role:in",
        "g2, tool:s/x, set:risky",
    ]
    assert wider(world) == []


# --- reading ----------------------------------------------------------------------------------------------------------

LINK = {"kind": "agent_to_tool", "action": "tools/call", "decision": "allow", "rules": ["r"]}
RECORD: dict[str, Any] = TABLES["record"]
DENIED = LINK | {"decision": "deny", "rules": []}
FORBIDDEN = LINK | {"decision": "deny", "rules": ["no"]}
GUARD = FORBIDDEN | {"kind": "guardrail"}
REFUSED = {"event": "refusal", "links": [DENIED], "reason": "no-matching-rule"}
SHADOW = {"enforcement": "shadow", "links": [DENIED]}


@pytest.mark.parametrize(
    ("change", "denied", "counted"), [*TABLES["counted"], (SHADOW | {"links": [LINK, GUARD]}, True, "denied-by-rule")]
)
def test_what_of_a_log_counts_as_used(change: dict[str, Any], denied: bool, counted: str) -> None:
    evidence = read([RECORD | change], SuggestQuery(denied=denied))
    assert evidence.counts[counted] == 1
    assert bool(evidence.traces) is (counted == "taken")


@pytest.mark.parametrize("case", CASES["left out"], ids=lambda case: case["why"])
def test_what_cannot_be_a_rule_is_left_out_and_told(case: dict[str, Any]) -> None:
    evidence = read([RECORD | case["change"]])
    assert not evidence.traces
    assert list(evidence.left_out.values()) == [(1, "d-1")]
    assert next(iter(evidence.left_out)).startswith(case["why"])


def test_every_link_of_a_call_is_a_use_of_its_kind() -> None:
    lends = {"action": "delegate", "decision": "allow", "rules": []}
    links = [lends | {"kind": "user_to_nhi"}, lends | {"kind": "nhi_to_nhi"}, LINK]
    evidence = read([RECORD | {"chain": ["user:u", "nhi:a", "nhi:b"], "links": links}])
    assert {tuple(triple) for triple in evidence.traces} == {
        ("user_to_nhi", "user:u", "nhi:a", "delegate"),
        ("nhi_to_nhi", "nhi:a", "nhi:b", "delegate"),
        ("agent_to_tool", "nhi:b", "tool:s/t", "tools/call"),
    }


def test_lines_that_are_no_records_are_counted() -> None:
    evidence = UsageEvidence()
    evidence.read([b"{", b"[]\n", b"\n", b"\xff"], SuggestQuery(), "log")
    assert (evidence.counts["lines"], evidence.counts["unreadable"]) == (4, 3)


def test_more_than_memory_is_meant_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_TRIPLES", 1)
    with pytest.raises(SettingsError, match="more than 1 distinct uses"):
        read([RECORD, RECORD | {"object": "tool:s/u"}])


@pytest.mark.parametrize(
    ("action", "obj", "more"),
    [("message/send", "nhi:b", "push/set"), ("subscriptions/listen", "nhi:s", "resources/read")],
)
def test_what_a_call_asked_besides_is_told_and_not_silently_forgotten(action: str, obj: str, more: str) -> None:
    link = {"kind": "nhi_to_nhi", "decision": "allow", "rules": ["r"]}
    guarded = {"kind": "guardrail", "action": action, "decision": "allow", "rules": []}
    links = [{**link, "action": action}, guarded, {**link, "action": more}, {**guarded, "action": more}]
    asked = RECORD | {"object": obj, "action": action}
    evidence = read([asked | {"links": links}])
    assert evidence.left_out == {"it contains several questions, and its record names only the first": (1, "d-1")}
    assert not read([asked | {"links": links[:2]}]).left_out


def test_a_left_out_record_makes_the_answer_incomplete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    log = tmp_path / "log"
    log.write_text("\n".join(json.dumps(RECORD | change) for change in ({}, {"object": "tool:s/x*"})))
    result = CliRunner().invoke(main, ["policy", "suggest", str(log)])
    assert (result.exit_code, "1 record left out" in result.stderr) == (1, True)
    assert "p, nhi:a, tool:s/t, tools/call" in result.stdout


def read(records: list[dict[str, Any]], wanted: SuggestQuery = SuggestQuery()) -> UsageEvidence:  # noqa: B008 - frozen
    evidence = UsageEvidence()
    evidence.read([json.dumps(record).encode() for record in records], wanted, "log")
    return evidence


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES["patterns"], ids=lambda case: case["names"][0])
def test_a_pattern_stays_on_one_server_and_ends_between_words(case: dict[str, Any]) -> None:
    assert pattern_of(case["names"], TOOL, {"listed"}) == case["pattern"]


def test_names_say_what_members_have_in_common_and_never_clash() -> None:
    taken = {"role:pay-agents", "role:suggested-1"}
    both = frozenset({"nhi:pay-a", "nhi:pay-b"})
    assert role_name(both, taken) == "role:pay-agents-2"
    assert role_name(both, taken) == "role:pay-agents-3"
    assert role_name(frozenset({"nhi:a", "user:b"}), taken) == "role:suggested-2"
    assert role_name(frozenset({"user:acme/ann", "user:acme/ben"}), taken) == "role:acme-users"
    assert set_name(frozenset({"tool:s/a", "tool:t/b"}), "nhi:planner", taken) == "set:planner-tools"
    assert set_name(frozenset({"tool:s/get_a", "tool:s/get_b"}), "nhi:planner", taken) == "set:s-get"
    assert set_name(frozenset({"tool:s-1/a", "tool:s-2/b"}), "role:pay-agents", taken) == "set:pay-agents-tools"
    assert set_name(frozenset({"tool:s/a", "tool:s/b"}), "nhi:planner", taken) == "set:s-tools"
    assert role_name(frozenset({"nhi:ops-agent-1", "nhi:ops-agent-2"}), taken) == "role:ops-agents"
    draft = RuleDraft(TOOL, both, frozenset({"tool:s/a"}), ("tools/call",), "tool:s/a")
    first, second = (rule_id(draft, "role:pay-agents", "tool:s/a", taken) for _ in range(2))
    assert first == "suggested-pay-agents-s-a" and second.startswith(f"{first}-")
    assert len(rule_id(draft, "nhi:" + "x" * 256, "tool:s/" + "y" * 128, taken)) <= 128


def test_a_role_that_tokens_may_grant_is_not_reused(tmp_path: Path) -> None:
    roles = "g, user:ann, role:corp/eng\ng, user:ben, role:corp/eng\n"
    world = World(tmp_path, POLICY | {"roles": POLICY["roles"] + roles})
    a_day_at_work(world)
    data = json.loads(world.suggest("--json").stdout)
    assert data["reused"] == ["role:engineers"]


@pytest.mark.parametrize(
    ("text", "objects", "servers"),
    [
        ("git: [a, resource:git/x://y]", {"nhi:git", "tool:git/a", "resource:git/x://y"}, {"git"}),
        ('{"git": [{"name": "a", "description": "x"}]}', {"nhi:git", "tool:git/a"}, {"git"}),
        ("[tool:git/a, nhi:bot]", {"tool:git/a", "nhi:bot"}, set[str]()),
    ],
)
def test_a_catalogue_lists_what_exists(tmp_path: Path, text: str, objects: set[str], servers: set[str]) -> None:
    path = tmp_path / "catalogue.yaml"
    path.write_text(text)
    found = read_catalogue(path)
    assert (found.objects, found.servers) == (objects, servers)


@pytest.mark.parametrize("text", ["git: a", "git: [1]", "git: ['a b']", "Git: [a]", "[set:x]", "just text", "[a]"])
def test_a_catalogue_that_cannot_be_meant_is_refused_with_its_place(tmp_path: Path, text: str) -> None:
    path = tmp_path / "catalogue.yaml"
    path.write_text(f"{text}\n")
    with pytest.raises(SettingsError, match=r"catalogue\.yaml:1:\d+: error\[W302\]"):
        read_catalogue(path)


def test_every_nhi_is_a_known_object_too() -> None:
    known = Known.of(["nhi:a", "user:b"], ["tool:s/t"])
    assert known.objects == ("nhi:a", "tool:s/t")
    assert known.fitting("nhi:*") == ["nhi:a"]

"""What rows demand of approvals, and the decisions that rest on them."""

from pathlib import Path

import pytest

from sidecar.vocabulary import ApprovalTerms, Decision, Question
from tests.unit.policy.world import NOW, agent, chain, engine, faults, source, tool

ROW = "p, nhi:planner, tool:github/delete_repo, tools/call, -, -, -, allow\n"
NOTE = "#: id=deletes approval=role:oncall within=15m valid=once reason=required\n"


def decided(folder: Path, rows: str, question: Question, *who: str, **more: str) -> Decision:
    return engine(folder, {"agent_to_tool": rows, **more}).decide(chain(*who or ("nhi:planner",)), question, NOW)


def test_a_row_with_an_approval_allows_and_says_what_it_demands(tmp_path: Path) -> None:
    decision = decided(tmp_path, NOTE + ROW, tool("github/delete_repo"))
    assert decision.allowed
    (rule,) = decision.approvals
    assert (rule.id, rule.approval) == ("deletes", ApprovalTerms("role:oncall", 900.0, None, reason=True))


def test_yaml_says_the_same(tmp_path: Path) -> None:
    text = (
        "version: 1\nrules:\n  - {id: deletes, kind: agent_to_tool, subject: nhi:planner,"
        " object: tool:github/delete_repo, actions: [tools/call],\n"
        "     approval: {by: role:oncall, within: 15m, valid: once, reason: required}}\n"
    )
    written = source(tmp_path / "yaml", {"rules.yaml": text})
    assert written.revision == source(tmp_path / "csv", {"agent_to_tool.csv": NOTE + ROW}).revision


def test_terms_are_part_of_the_revision_and_their_absence_is_not(tmp_path: Path) -> None:
    plain = source(tmp_path / "a", {"agent_to_tool.csv": f"#: id=deletes\n{ROW}"}).revision
    asked = source(tmp_path / "b", {"agent_to_tool.csv": f"#: id=deletes approval=role:oncall\n{ROW}"}).revision
    other = source(tmp_path / "c", {"agent_to_tool.csv": f"#: id=deletes approval=role:lead\n{ROW}"}).revision
    assert len({plain, asked, other}) == 3


@pytest.mark.parametrize(
    ("notes", "terms"),
    [
        ("approval=role:oncall", ApprovalTerms("role:oncall")),
        ("approval=role:oncall within=2h valid=1h", ApprovalTerms("role:oncall", 7200.0, 3600.0)),
        ('approval=role:oncall reason="Runbook 12"', ApprovalTerms("role:oncall")),
        (
            'approval=role:oncall reason="Runbook 12" approval_reason=required',
            ApprovalTerms("role:oncall", reason=True),
        ),
    ],
)
def test_terms(tmp_path: Path, notes: str, terms: ApprovalTerms) -> None:
    (rule,) = decided(tmp_path, f"#: {notes}\n{ROW}", tool("github/delete_repo")).approvals
    assert rule.approval == terms
    assert rule.reason == ("Runbook 12" if "Runbook" in notes else "")


def test_every_row_that_allows_counts_as_with_limits(tmp_path: Path) -> None:
    wide = "p, nhi:planner, tool:github/*, use, -, -, -, allow\n"
    decision = decided(tmp_path, wide + NOTE + ROW, tool("github/delete_repo"))
    assert [rule.id for rule in decision.approvals] == ["deletes"]
    assert not decided(tmp_path, wide + NOTE + ROW, tool("github/get_file")).approvals


def test_each_link_of_the_chain_may_demand_one(tmp_path: Path) -> None:
    lends = "#: id=lends approval=role:lead\np, user:alice, nhi:planner, delegate, -, -, -, allow\n"
    rows = {"user_to_nhi": lends}
    decision = decided(tmp_path, NOTE + ROW, tool("github/delete_repo"), "user:alice", "nhi:planner", **rows)
    assert [rule.id for rule in decision.approvals] == ["lends", "deletes"]


def test_what_follows_a_message_waits_for_none_unless_a_row_names_it(tmp_path: Path) -> None:
    rows = "#: id=talks approval=role:oncall\np, nhi:planner, nhi:scribe, use, -, -, -, allow\n"
    named = "#: id=cancels approval=role:lead\np, nhi:planner, nhi:scribe, tasks/cancel, -, -, -, allow\n"
    policy = engine(tmp_path, {"agent_to_tool": ROW, "nhi_to_nhi": rows + named})
    asked = {
        action: [rule.id for rule in policy.decide(chain("nhi:planner"), agent("scribe", action), NOW).approvals]
        for action in ("message/send", "tasks/get", "tasks/cancel")
    }
    assert asked == {"message/send": ["talks"], "tasks/get": [], "tasks/cancel": ["cancels"]}


def test_lists_and_sessions_wait_for_none(tmp_path: Path) -> None:
    policy = engine(tmp_path, {"agent_to_tool": NOTE + ROW})
    planner = chain("nhi:planner")
    assert policy.may_list(planner, tool("github/delete_repo"), NOW)
    assert not policy.reconsider(planner, tool("github/delete_repo"), NOW).approvals
    assert not policy.enter(planner, Question("nhi:github", "initialize", "github"), NOW).approvals


@pytest.mark.parametrize(
    ("notes", "row", "message"),
    [
        ("within=15m", ROW, "within has no effect without approval"),
        ("approval=oncall", ROW, '"oncall" is not role:…'),
        ("approval=role:on*", ROW, '"role:on*" contains a wildcard'),
        ("approval=role:oncall within=5s", ROW, '"5s" is not a duration here'),
        ("approval=role:oncall within=8d", ROW, '"8d" is not a duration here'),
        ("approval=role:oncall valid=twice", ROW, '"twice" is not a duration here'),
        ("approval=role:oncall", ROW.replace("allow", "deny"), "a deny row cannot require an approval"),
        ("approval=role:oncall", ROW.replace("tools/call", "ping"), "no action of this row can wait for an approval"),
        (
            "approval=role:oncall",
            "p, nhi:planner, nhi:github, use|elicitation/create, -, -, -, allow\n",
            "elicitation/create is a request of a server, which cannot wait for an approval",
        ),
    ],
)
def test_wrong_terms_are_faults_with_their_place(tmp_path: Path, notes: str, row: str, message: str) -> None:
    found = faults(tmp_path, {"agent_to_tool.csv": f"#: {notes}\n{row}"})
    assert [fault.message for fault in found] == [message]
    assert (found[0].line, found[0].column) > (0, 0)


@pytest.mark.parametrize(
    ("approval", "message"),
    [
        ("role:oncall", "approval is a mapping of keys to values"),
        ("{within: 15m}", 'the key "by" is missing'),
        ("{by: role:oncall, until: 15m}", '"until" is unknown here'),
        ("{by: role:oncall, within: 900}", "within must be text, not 900"),
        ("{by: role:oncall, reason: please}", '"please" is not one of required'),
    ],
)
def test_wrong_terms_in_yaml(tmp_path: Path, approval: str, message: str) -> None:
    rule = f"{{kind: agent_to_tool, subject: nhi:a, object: tool:s/t, approval: {approval}}}"
    found = faults(tmp_path, {"rules.yaml": f"version: 1\nrules:\n  - {rule}\n"})
    assert [fault.message for fault in found] == [message]
    assert found[0].line == 3

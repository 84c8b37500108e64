"""What the policy tools say of calls that wait for a person's approval."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner, Result

from sidecar.cli import main
from sidecar.policy_tools.audit_records import asked_in
from sidecar.policy_tools.policy_location import in_folder
from sidecar.policy_tools.replay import Candidate
from tests.unit.policy.world import MODELS
from tests.unit.policy_tools.traffic import Sent, engine_of, record, write_policy

ASKS = "#: id=deletes approval=role:oncall within=1h approval_reason=required\n"
ROW = "p, nhi:r, tool:g/delete, tools/call, -, 5, -, allow\n"
SEARCH = "#: id=searches\np, nhi:r, tool:g/search, use, -, -, -, allow\n"
LENDS = "#: id=lends approval=role:corp/lead valid=2h\np, user:alice, nhi:r, delegate, -, -, -, allow\n"
ROLES = (
    "g, user:dmitri, role:oncall\ng, nhi:r, role:oncall\ng, user:alice, role:oncall\ng, role:corp/lead, role:oncall\n"
)
PLAIN = {"agent_to_tool": "#: id=deletes\n" + ROW + SEARCH, "roles": ROLES}
ASKING = {"agent_to_tool": ASKS + ROW + SEARCH, "roles": ROLES}
DELETE = ("--as", "nhi:r", "--calls", "tool:g/delete")
LENT = ("--as", "user:alice,nhi:r", "--calls", "tool:g/delete")
DELETED = Sent(("nhi:r",), "tool:g/delete")


def run(command: str, *arguments: Any) -> Result:
    return CliRunner().invoke(main, ["policy", command, *map(str, arguments)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_policy(tmp_path, {**ASKING, "user_to_nhi": LENDS})


def explained(folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    result = run("explain", "--policy", folder, "--json", *arguments)
    return result.exit_code, orjson.loads(result.stdout)


def test_an_explanation_says_who_may_approve(folder: Path) -> None:
    result = run("explain", "--policy", folder, *DELETE)
    told = result.output.splitlines()
    assert (result.exit_code, told[0]) == (1, "APPROVAL  a person with role:oncall must approve it")
    assert "    approval: role:oncall, within 1h, valid once, with a reason" in told
    at = told.index("approval by a user who is not in the chain")
    assert told[at + 1] == ("  role:oncall: user:alice, user:dmitri, users with a token that grants role:corp/lead")
    assert told[at + 2 : at + 4] == ["limits that would be charged", "  rule:deletes  5 in an hour, counted for nhi:r"]
    code, data = explained(folder, *DELETE)
    assert (code, data["outcome"], data["allowed"], data["reason"]) == (1, "approval", False, "approval-pending")
    assert data["approval"] == {
        "rules": ["deletes"],
        "holders": [
            {"role": "role:oncall", "users": ["user:alice", "user:dmitri"], "total": 2, "tokens": ["role:corp/lead"]}
        ],
        "approved_by": [],
        "objection": None,
    }
    (rule,) = data["links"][0]["rules"]
    assert rule["approval"] == {"role": "role:oncall", "within_s": 3600.0, "valid_s": None, "reason": True}


@pytest.mark.parametrize(
    ("arguments", "code", "first"),
    [
        ((*DELETE, "--approved-by", "user:dmitri"), 0, "ALLOW  approved by user:dmitri"),
        ((*DELETE, "--approved-by", "user:eve"), 1, "APPROVAL  user:eve does not have role:oncall"),
        (
            (*DELETE, "--approved-by", "user:eve", "--roles", "user:eve=role:corp/lead"),
            0,
            "ALLOW  approved by user:eve",
        ),
        (LENT, 1, "APPROVAL  a person with role:corp/lead and one with role:oncall must approve it"),
        ((*LENT, "--approved-by", "user:alice"), 1, "APPROVAL  user:alice is in the chain"),
        ((*LENT, "--approved-by", "user:dmitri"), 1, "APPROVAL  no one with role:corp/lead has approved it"),
        (
            (*LENT, "--approved-by", "user:dmitri,user:eve", "--roles", "user:eve=role:corp/lead"),
            0,
            "ALLOW  approved by user:dmitri and user:eve",
        ),
        (("--as", "nhi:r", "--calls", "tool:g/search"), 0, "ALLOW"),
        (("--as", "nhi:q", "--calls", "tool:g/delete", "--approved-by", "user:dmitri"), 1, "DENY  no-matching-rule"),
    ],
)
def test_a_call_is_explained_as_if_persons_had_approved_it(
    folder: Path, arguments: tuple[str, ...], code: int, first: str
) -> None:
    result = run("explain", "--policy", folder, *arguments)
    assert (result.exit_code, result.output.splitlines()[0]) == (code, first)


def test_only_a_user_approves_and_no_user_may_have_the_role(tmp_path: Path) -> None:
    folder = write_policy(tmp_path, {"agent_to_tool": ASKS + ROW})
    result = run("explain", "--policy", folder, *DELETE, "--approved-by", "nhi:r")
    assert (result.exit_code, "'nhi:r' is not a person: write user:<id>" in result.output) == (2, True)
    assert "  role:oncall: no user has it" in run("explain", "--policy", folder, *DELETE).output


def test_of_many_users_the_first_are_named(tmp_path: Path) -> None:
    links = "".join(f"g, user:u{number:03}, role:oncall\n" for number in range(250))
    folder = write_policy(tmp_path, {"agent_to_tool": ASKS + ROW, "roles": links})
    (holders,) = explained(folder, *DELETE)[1]["approval"]["holders"]
    assert (len(holders["users"]), holders["total"]) == (100, 250)
    told = run("explain", "--policy", folder, *DELETE).output
    assert "user:u008, user:u009, 240 more users\n" in told


def test_where_a_model_has_domains_a_user_has_the_roles_of_its_own(tmp_path: Path) -> None:
    folder = write_policy(tmp_path, {"agent_to_tool": ASKS + ROW})
    (folder / "models").mkdir()
    for path in MODELS.glob("*.conf"):
        text = path.read_text().replace("r = sub, obj, act, ctx", "r = sub, obj, act, ctx, dom")
        text = text.replace("g = _, _\n", "g = _, _, _\n").replace("g(r.sub, p.sub)", "g(r.sub, p.sub, r.dom)")
        (folder / "models" / path.name).write_text(text)
    links = "g, user:corp/a, role:oncall, corp\ng, user:corp/b, role:oncall, other\ng, user:c, role:oncall, -\n"
    (folder / "policies" / "roles.csv").write_text(links)
    (holders,) = explained(folder, *DELETE)[1]["approval"]["holders"]
    assert holders["users"] == ["user:c", "user:corp/a"]


# --- recorded decisions -----------------------------------------------------------------------------------------------


def test_a_replay_counts_what_would_wait_now(tmp_path: Path) -> None:
    old, new = (write_policy(tmp_path / name, files) for name, files in (("old", PLAIN), ("new", ASKING)))
    record(tmp_path / "audit.jsonl", engine_of(old), [DELETED, Sent(("nhi:r",), "tool:g/search")])
    result = run("replay", tmp_path / "audit.jsonl", "--policy", new, "--json")
    data = orjson.loads(result.stdout)
    counted = {name: data[name] for name in ("same", "wider", "narrower", "now_waits", "waits_no_more")}
    assert counted == {"same": 1, "wider": 0, "narrower": 1, "now_waits": 1, "waits_no_more": 0}
    (example,) = data["examples"]
    assert (result.exit_code, example["was"], example["now"], example["new_rules"]) == (
        6,
        "allow",
        "approval",
        ["deletes"],
    )
    told = run("replay", tmp_path / "audit.jsonl", "--policy", new).output
    assert "1 would wait for a person's approval now; 0 no longer would" in told


def test_a_replay_counts_what_waits_no_more(tmp_path: Path) -> None:
    old, new = (write_policy(tmp_path / name, files) for name, files in (("old", ASKING), ("new", PLAIN)))
    record(tmp_path / "audit.jsonl", engine_of(old), [DELETED])
    arguments = (tmp_path / "audit.jsonl", "--policy", new)
    data = orjson.loads(run("replay", *arguments, "--json").stdout)
    assert (data["wider"], data["waits_no_more"], data["now_waits"]) == (1, 1, 0)
    (example,) = data["examples"]
    assert (example["was"], example["now"]) == ("approval", "allow")
    assert run("replay", *arguments, "--fail-on", "narrower").exit_code == 0
    same = orjson.loads(run("replay", tmp_path / "audit.jsonl", "--policy", old, "--json").stdout)
    assert (same["same"], same["wider"]) == (1, 0)


def test_a_record_is_explained_with_who_approved_it(tmp_path: Path) -> None:
    folder = write_policy(tmp_path / "old", ASKING)
    record(tmp_path / "audit.jsonl", engine_of(folder), [DELETED])
    line = next(line for line in (tmp_path / "audit.jsonl").read_text().splitlines() if '"event":"decision"' in line)
    (tmp_path / "line").write_text(line)
    result = run("explain", "--record", tmp_path / "line", "--policy", folder)
    told = result.output.splitlines()
    assert (result.exit_code, told[0]) == (1, "APPROVAL  a person with role:oncall must approve it")
    assert told[3].startswith("  on record as allowed with the approval of user:dmitri (record ")


@pytest.mark.parametrize(
    ("fields", "files", "answers", "answer"),
    [
        ({"approval": {"id": "a"}}, PLAIN, ("approval",), "allow"),
        ({"approval": {"id": "a"}}, ASKING, ("approval",), "approval"),
        ({"event": "refusal", "reason": "approval-refused"}, ASKING, ("approval",), "approval"),
        ({"would_deny": ["approval-pending"], "enforcement": "shadow"}, ASKING, ("approval",), "approval"),
        ({"event": "refusal", "reason": "bad-arguments"}, ASKING, ("allow", "approval"), "approval"),
        ({}, ASKING, ("allow",), "approval"),
    ],
)
def test_a_record_says_whether_the_call_needed_an_approval(
    tmp_path: Path, fields: dict[str, Any], files: dict[str, str], answers: tuple[str, ...], answer: str
) -> None:
    path = tmp_path / "audit.jsonl"
    record(path, engine_of(write_policy(tmp_path / "old", PLAIN)), [DELETED])
    line = next(line for line in map(orjson.loads, path.read_bytes().splitlines()) if line["event"] == "decision")
    asked = asked_in(line | fields)
    assert asked is not None and asked.answers == answers
    assert Candidate(in_folder(write_policy(tmp_path / "new", files)).load()).decide(asked).answer == answer


def test_an_approval_that_depends_on_hashed_arguments_is_not_guessed(tmp_path: Path) -> None:
    when = ROW.replace("tools/call, -, 5, -", "tools/call, -, 5, args.all == 'yes'")
    files = {**PLAIN, "agent_to_tool": PLAIN["agent_to_tool"] + ASKS.replace("=deletes", "=all") + when}
    record(tmp_path / "audit.jsonl", engine_of(write_policy(tmp_path / "old", PLAIN)), [
        Sent(("nhi:r",), "tool:g/delete", args={"all": "no"})
    ])  # fmt: skip
    new = write_policy(tmp_path / "new", files)
    data = orjson.loads(run("replay", tmp_path / "audit.jsonl", "--policy", new, "--json").stdout)
    assert (data["undecidable"], data["same"]) == (1, 0)


# --- differences ------------------------------------------------------------------------------------------------------

ROWED = "#: id=deletes{notes}\n" + ROW
TERMS = " approval=role:oncall"
DENIED = "p, *, tool:g/delete, use, -, -, -, deny\n"


def differing(folder: Path, old: dict[str, str], new: dict[str, str], *options: str) -> Result:
    for name, files in (("old", old), ("new", new)):
        write_policy(folder / name, files)
    return run("diff", folder / "old", folder / "new", *options)


def noted(notes: str, more: str = "", roles: str = ROLES) -> dict[str, str]:
    return {"agent_to_tool": ROWED.format(notes=notes) + more, "roles": roles}


@pytest.mark.parametrize(
    ("old", "new", "regions"),
    [
        (noted(""), noted(TERMS), [("narrower", "allowed", "allowed once approved")]),
        (noted(TERMS), noted(""), [("wider", "allowed once approved", "allowed")]),
        (noted(TERMS), noted(TERMS + " valid=1h"), []),
        (noted(TERMS), {**noted(TERMS), "agent_to_tool": DENIED}, [("narrower", "allowed once approved", "denied")]),
        (noted("", DENIED), noted(TERMS), [("wider", "denied", "allowed once approved")]),
        (noted(TERMS, DENIED), noted(""), [("wider", "denied", "allowed")]),
        # another row demands the same approval, a stricter one, a looser one, and that of another role
        (noted(TERMS), noted("", f"#: id=new{TERMS}\n{ROW}"), []),
        (
            noted(TERMS),
            noted("", f"#: id=new{TERMS} reason=required\n{ROW}"),
            [("narrower", "allowed once approved otherwise", "allowed once approved")],
        ),
        (
            noted(TERMS + " reason=required"),
            noted("", f"#: id=new{TERMS}\n{ROW}"),
            [("wider", "allowed once approved", "allowed once approved otherwise")],
        ),
        (
            noted(TERMS),
            noted("", f"#: id=new approval=role:lead\n{ROW}"),
            [
                ("wider", "allowed once approved", "allowed once approved otherwise"),
                ("narrower", "allowed once approved otherwise", "allowed once approved"),
            ],
        ),
        # a deny of both policies, and a condition
        (noted(TERMS, DENIED), noted("", DENIED), []),
        (
            noted(TERMS + "\n" + ROW.replace("-, allow", "args.a == 1, allow") + "#: id=more"),
            noted(""),
            [("wider", "allowed once approved", "allowed")],
        ),
    ],
)
def test_access_that_needs_a_person_now_or_no_longer_is_a_region(
    tmp_path: Path, old: dict[str, str], new: dict[str, str], regions: list[tuple[str, str, str]]
) -> None:
    data = orjson.loads(differing(tmp_path, old, new, "--json").stdout)
    found = [(one["change"], one["witness"]["old"], one["witness"]["new"]) for one in data["regions"]]
    assert found == regions


@pytest.mark.parametrize(
    ("old", "new", "change"),
    [
        (TERMS, TERMS + " within=1h", "wider"),
        (TERMS + " within=1h", TERMS, "narrower"),
        (TERMS, TERMS + " valid=1h", "wider"),
        (TERMS + " valid=2h", TERMS + " valid=1h", "narrower"),
        (TERMS + " reason=required", TERMS, "wider"),
        (TERMS, TERMS + " reason=required", "narrower"),
        (TERMS + " reason=required", TERMS + " within=1m", "unknown"),
        (TERMS, " approval=role:lead", "unknown"),
        (TERMS, "", "wider"),
        ("", TERMS, "narrower"),
    ],
)
def test_a_row_whose_terms_changed_says_in_which_direction(tmp_path: Path, old: str, new: str, change: str) -> None:
    result = differing(tmp_path, noted(old), noted(new), "--json", "--fail-on", "wider")
    (edit,) = orjson.loads(result.stdout)["approvals"]
    assert (edit["rule"], edit["field"], edit["change"]) == ("deletes", "approval", change)
    assert result.exit_code == (0 if change == "narrower" else 6)


@pytest.mark.parametrize(
    ("roles", "change"),
    [
        (ROLES + "g, user:eve, role:oncall\n", "wider"),
        (ROLES.replace("g, user:dmitri, role:oncall\n", ""), "narrower"),
        (ROLES.replace("user:dmitri", "user:eve"), "unknown"),
        (ROLES.replace("role:corp/lead", "role:corp/boss"), "unknown"),
        (ROLES.replace("nhi:r", "nhi:q"), ""),
    ],
)
def test_a_role_whose_users_changed_has_other_approvers(tmp_path: Path, roles: str, change: str) -> None:
    result = differing(tmp_path, noted(TERMS), noted(TERMS, roles=roles), "--json", "--fail-on", "wider")
    edits = orjson.loads(result.stdout)["approvers"]
    assert [(edit["role"], edit["change"]) for edit in edits] == ([("role:oncall", change)] if change else [])
    assert result.exit_code == (6 if change in ("wider", "unknown") else 0)


def test_a_difference_in_approvals_is_told_in_words(tmp_path: Path) -> None:
    old, new = noted(""), noted(TERMS + " valid=1h", roles=ROLES + "g, user:eve, role:oncall\n")
    told = differing(tmp_path, old, new).output
    assert "narrower  agent_to_tool: nhi:r × tool:g/delete × tools/call\n" in told
    assert "          the approval of role:oncall, within 15m, valid for 1h, is demanded now\n" in told
    assert "nhi:r, tool:g/delete, tools/call: was allowed, is allowed once approved\n" in told
    assert "  deletes: approval none → role:oncall, within 15m, valid for 1h [narrower]" in told
    told = run("diff", tmp_path / "new", tmp_path / "old", "--markdown").output
    assert "is not demanded now" in told


# --- other forms ------------------------------------------------------------------------------------------------------


def test_a_policy_goes_to_yaml_and_back_with_its_terms(tmp_path: Path) -> None:
    rows = f"{ASKS}{ROW}\n#: id=more approval=role:oncall valid=1d reason=required\n{ROW}"
    files = {"agent_to_tool": rows.replace("approval_reason", 'reason="Runbook 12" approval_reason')}
    policies = write_policy(tmp_path, files) / "policies"
    assert run("convert", policies, "--to", "yaml", "-o", tmp_path / "yaml").exit_code == 0
    text = (tmp_path / "yaml" / "agent_to_tool.yaml").read_text()
    assert "approval: {by: role:oncall, within: 1h, reason: required}\n    reason: Runbook 12" in text
    assert "approval: {by: role:oncall, valid: 1d, reason: required}" in text
    assert run("convert", tmp_path / "yaml", "--to", "csv", "-o", tmp_path / "csv").exit_code == 0
    back = (tmp_path / "csv" / "agent_to_tool.csv").read_text()
    assert "#: id=more approval=role:oncall valid=1d reason=required\n" in back
    revisions = [in_folder(tmp_path / name).load().revision for name in (".", "yaml", "csv")]
    assert len(set(revisions)) == 1
    assert run("fmt", "--check", tmp_path / "csv").exit_code == 0


def test_terms_without_an_approval_are_no_row_of_the_other_form(tmp_path: Path) -> None:
    policies = write_policy(tmp_path, {"agent_to_tool": f"#: id=a within=15m\n{ROW}"}) / "policies"
    result = run("convert", policies, "--to", "yaml", "-o", tmp_path / "yaml")
    assert (result.exit_code, "within has no effect without approval" in result.output) == (3, True)

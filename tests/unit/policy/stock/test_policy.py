"""Casbin models in the engine: names, roles that tokens grant, attributes, our own columns, sessions and lists."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sidecar.errors import PolicyError, Reason
from sidecar.policy import Engine, load_policy
from sidecar.policy.worker_process import load_policy_aside
from sidecar.settings.policy import CasbinSettings, ModelFiles
from sidecar.vocabulary import Decision, Principal, Question
from tests.unit.policy.stock.setups import ALLOW_AND_DENY, BY_ROLE, DENY_OVERRIDE, PRIORITY, ROLES, SAME, conf

NOW_S = 1_800_000_000.0
NAMES = {
    "subjects": {"user:*": "*", "nhi:planner": "alice"},
    "objects": {"tool:*/*": {"obj": "*", "act": "*2"}, "nhi:*": {"obj": "agents", "act": "lend"}},
    "roles": {"role:*": "*"},
}
RBAC = "p, alice, data1, read\np, bob, data2, write\np, admin, data2, read\ng, carol, admin\n"


def engine_of(folder: Path, model: str, rows: str, files: Mapping[str, str] | None = None, **settings: Any) -> Engine:
    """An engine in which one Casbin model decides every kind."""
    written = {"models/model.conf": model, "policies/policy.csv": rows, **(files or {})}
    for name, text in written.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")
    casbin = CasbinSettings.model_validate({"names": NAMES, **settings})
    return Engine(load_policy(folder / "models", folder / "policies", casbin=casbin))


def decided(engine: Engine, chain: str, obj: str, arguments: Mapping[str, Any] | None = None, **more: Any) -> Decision:
    """The decision on a call; `chain` is names with `>` between them."""
    roles = frozenset(more.pop("roles", ()))
    principals = tuple(Principal(name, "test", roles) for name in chain.split(">"))
    server = obj.partition(":")[2].partition("/")[0] if obj.startswith("tool:") else ""
    question = Question(
        obj, "tools/call" if server else "message/send", server, obj.rpartition("/")[2], arguments or {}
    )
    return engine.decide(principals, question, more.pop("now_s", NOW_S), more.pop("mode", "call"))


@pytest.mark.parametrize(
    ("chain", "obj", "allowed"),
    [
        ("user:alice", "tool:data1/read", True),
        ("user:alice", "tool:data1/write", False),
        ("user:alice", "tool:data2/read", False),
        ("nhi:planner", "tool:data1/read", True),  # by an entry of its own
        ("nhi:other", "tool:data1/read", False),  # no name
        ("user:carol", "tool:data2/read", True),  # by a role
        ("user:admin", "tool:data2/read", False),  # a user who chose the name of a role
        ("anonymous", "tool:data1/read", False),
        ("user:bob", "tool:data2/write", True),
    ],
)
def test_our_names_become_those_of_the_policy(tmp_path: Path, chain: str, obj: str, allowed: bool) -> None:
    engine = engine_of(tmp_path, conf(BY_ROLE, roles=ROLES), RBAC)
    answer = decided(engine, chain, obj)
    assert answer.allowed is allowed
    assert answer.reason is (None if allowed else Reason.NO_MATCHING_RULE)


def test_a_decision_names_its_row_and_the_role_on_the_way(tmp_path: Path) -> None:
    engine = engine_of(tmp_path, conf(BY_ROLE, roles=ROLES), RBAC)
    answer = decided(engine, "user:carol", "tool:data2/read")
    (rule,) = answer.links[0].rules
    assert (rule.subject, rule.object, rule.actions, rule.effect) == ("admin", "data2", ("read",), "allow")
    assert (Path(rule.file).name, rule.line) == ("policy.csv", 3)
    assert answer.roles == ("admin",)


def test_an_entry_may_name_a_role_for_one_principal(tmp_path: Path) -> None:
    names = {**NAMES, "subjects": {"user:admin": "admin", "user:*": "*"}}
    engine = engine_of(tmp_path, conf(BY_ROLE, roles=ROLES), RBAC, names=names)
    assert decided(engine, "user:admin", "tool:data2/read").allowed


def test_roles_of_a_token_count_if_the_names_say_so(tmp_path: Path) -> None:
    rows = RBAC + "g, admin, root\np, root, data9, read\n"
    engine = engine_of(tmp_path / "named", conf(BY_ROLE, roles=ROLES), rows)
    assert decided(engine, "user:dave", "tool:data2/read", roles=["role:admin"]).allowed
    answer = decided(engine, "user:dave", "tool:data9/read", roles=["role:admin"])
    assert answer.allowed and answer.roles == ("root",)
    assert not decided(engine, "user:dave", "tool:data2/read").allowed
    silent = engine_of(tmp_path / "silent", conf(BY_ROLE, roles=ROLES), rows, names={**NAMES, "roles": {}})
    assert not decided(silent, "user:dave", "tool:data2/read", roles=["role:admin"]).allowed


def test_one_model_decides_every_link_of_a_chain(tmp_path: Path) -> None:
    engine = engine_of(tmp_path, conf(BY_ROLE, roles=ROLES), RBAC + "p, bob, agents, lend\n")
    assert decided(engine, "user:bob>nhi:planner", "tool:data1/read").allowed
    answer = decided(engine, "user:alice>nhi:planner", "tool:data1/read")
    assert [link.allowed for link in answer.links] == [False, True]


def test_a_model_of_each_kind_may_be_named_with_its_rows(tmp_path: Path) -> None:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "rbac_policy.csv").write_text(RBAC + "p2, bob, data9\n")
    model = (
        conf(BY_ROLE, roles=ROLES)
        .replace("\n\n[role", "\np2 = sub, obj\n\n[role")
        .replace("r = sub, obj, act", "r = sub, obj, act\nr2 = sub, obj")
    )
    (tmp_path / "rbac_model.conf").write_text(model + "m2 = r2.sub == p2.sub && r2.obj == p2.obj\n")
    files = {"model": tmp_path / "rbac_model.conf", "policy": (tmp_path / "policies" / "rbac_policy.csv",)}
    models = {"agent_to_tool": ModelFiles(**files), "user_to_nhi": ModelFiles(**files, use=2)}
    names = {**NAMES, "objects": {"tool:*/*": {"obj": "*", "act": "*2"}, "nhi:*": "data9"}}
    source = load_policy(models, tmp_path / "policies", casbin=CasbinSettings.model_validate({"names": names}))
    engine = Engine(source)
    assert decided(engine, "user:alice", "tool:data1/read").allowed
    assert decided(engine, "user:bob>nhi:planner", "tool:data1/read").allowed
    assert not decided(engine, "user:alice>nhi:planner", "tool:data1/read").allowed
    assert not decided(engine, "nhi:planner>nhi:planner", "tool:data1/read").allowed  # our model, without rows


ABAC = conf("r.sub.Age >= 18 && r.sub.name == r.obj.Owner && r.act == p.act", columns="act")
ATTRIBUTES = (
    "version: 1\nattributes:\n  user:alice: {Age: 30}\n  user:bob: {Age: 12}\n  tool:data1/*: {Owner: user:alice}\n"
)


def test_attributes_come_from_their_file(tmp_path: Path) -> None:
    engine = engine_of(tmp_path, ABAC, "p, read\n", {"policies/attributes.yaml": ATTRIBUTES})
    assert decided(engine, "user:alice", "tool:data1/read").allowed
    assert decided(engine, "user:alice", "tool:data2/read").reason is Reason.CONDITION_FALSE  # no owner
    assert not decided(engine, "user:bob", "tool:data1/read").allowed
    assert decided(engine, "user:carol", "tool:data1/read").reason is Reason.CONDITION_FALSE  # no age


def test_arguments_are_read_only_where_the_settings_say_so(tmp_path: Path) -> None:
    attributes = {"policies/attributes.yaml": ATTRIBUTES}
    mine, other = {"owner": "user:alice"}, {"owner": "user:bob"}
    silent = engine_of(tmp_path / "silent", ABAC, "p, read\n", attributes)
    assert not decided(silent, "user:alice", "tool:data2/read", mine).allowed
    asked = engine_of(tmp_path / "asked", ABAC, "p, read\n", attributes, request={"obj.Owner": "args.owner"})
    answer = decided(asked, "user:alice", "tool:data2/read", mine)
    assert answer.allowed and answer.facts[0].inputs == {"args.owner": "user:alice"}
    assert answer.names_read[0].tree == {"owner": {}}
    assert not decided(asked, "user:alice", "tool:data2/read", other).allowed
    assert not decided(asked, "user:alice", "tool:data2/read").allowed
    assert decided(asked, "user:alice", "tool:data2/read", mode="list").allowed  # the caller will write it
    assert not decided(asked, "nhi:other", "tool:data2/read", mode="list").allowed


def test_a_field_of_the_request_may_be_an_argument(tmp_path: Path) -> None:
    model = conf("r.sub == p.sub && r.amount < 100", request="sub, obj, act, amount", columns="sub")
    engine = engine_of(tmp_path, model, "p, alice\n", request={"amount": "args.amount"})
    assert decided(engine, "user:alice", "tool:bank/pay", {"amount": 99}).allowed
    for arguments in ({"amount": 100}, {"amount": "99"}, {}, {"amount": None}, {"amount": [1]}):
        assert not decided(engine, "user:alice", "tool:bank/pay", arguments).allowed, arguments


def test_our_columns_keep_their_meaning(tmp_path: Path) -> None:
    model = conf(SAME, columns="sub, obj, act, expires_at, max_calls_per_hour, when, eft", effect=ALLOW_AND_DENY)
    rows = (
        "p, alice, data1, read, 2027-02-01T00:00:00Z, 5, args.repo == 'a', allow\n"
        "p, alice, data1, read, -, -, args.repo.startsWith('secret'), deny\n"
    )
    engine = engine_of(tmp_path, model, rows)
    answer = decided(engine, "user:alice", "tool:data1/read", {"repo": "a"})
    assert answer.allowed and answer.limits[0].per_hour == 5 and answer.until == 1_801_440_000.0
    assert decided(engine, "user:alice", "tool:data1/read", {"repo": "b"}).reason is Reason.NO_MATCHING_RULE
    assert decided(engine, "user:alice", "tool:data1/read", {"repo": "secret"}).reason is Reason.DENIED_BY_RULE
    late = decided(engine, "user:alice", "tool:data1/read", {"repo": "a"}, now_s=1_801_440_000.0)
    assert late.reason is Reason.EXPIRED
    failing = decided(engine, "user:alice", "tool:data1/read", {"repo": 7})  # the deny row's condition fails: it denies
    assert failing.reason is Reason.DENIED_BY_RULE


def test_priority_decides_in_order_and_a_denial_names_its_row(tmp_path: Path) -> None:
    model = conf(BY_ROLE, columns="priority, sub, obj, act, eft", effect=PRIORITY, roles=ROLES)
    rows = "p, 20, alice, data1, read, allow\np, 10, staff, data1, read, deny\ng, alice, staff\n"
    answer = decided(engine_of(tmp_path, model, rows), "user:alice", "tool:data1/read")
    assert answer.reason is Reason.DENIED_BY_RULE
    assert (answer.links[0].rules[0].subject, answer.links[0].rules[0].line) == ("staff", 2)


def test_what_no_row_denies_is_allowed_only_where_the_settings_say_so(tmp_path: Path) -> None:
    model, rows = conf(SAME, columns="sub, obj, act, eft", effect=DENY_OVERRIDE), "p, alice, data1, read, deny\n"
    with pytest.raises(PolicyError) as refused:
        engine_of(tmp_path, model, rows)
    assert [fault.code for fault in refused.value.faults] == ["P203"]
    assert "policy.default: allow" in refused.value.faults[0].hint
    engine = engine_of(tmp_path, model, rows, default="allow")
    assert [fault.code for fault in engine.warnings] == ["P209"]
    assert decided(engine, "user:bob", "tool:data1/read").allowed
    assert decided(engine, "user:alice", "tool:data1/read").reason is Reason.DENIED_BY_RULE
    assert not decided(engine, "nhi:other", "tool:data1/read").allowed  # without a name


@pytest.mark.parametrize(
    ("caller", "server", "opens"),
    [
        ("user:alice", "data1", True),
        ("user:carol", "data7", True),
        ("user:dave", "data1", False),
        ("nhi:x", "d", False),
    ],
)
def test_a_session_opens_for_callers_whom_a_row_may_concern(
    tmp_path: Path, caller: str, server: str, opens: bool
) -> None:
    engine = engine_of(tmp_path, conf(BY_ROLE, roles=ROLES), RBAC)
    question = Question(f"nhi:{server}", "initialize", server)
    assert engine.enter((Principal(caller, "test"),), question, NOW_S).allowed is opens


def test_guardrails_hold_over_casbin_models(tmp_path: Path) -> None:
    guard = "p, user:alice, tool:data1/*, tools/call, -, -, -, deny\n"
    engine = engine_of(tmp_path, conf(BY_ROLE, roles=ROLES), RBAC, {"policies/guardrails.csv": guard})
    assert decided(engine, "user:alice", "tool:data1/read").reason is Reason.DENIED_BY_RULE


def test_the_revision_changes_with_whatever_decides(tmp_path: Path) -> None:
    model, seen = conf(BY_ROLE, roles=ROLES), set[str]()
    for number, (rows, files, settings) in enumerate(
        [
            (RBAC, {}, {}),
            (RBAC + "p, eve, data1, read\n", {}, {}),
            (RBAC + "g, eve, admin\n", {}, {}),
            (RBAC, {"policies/attributes.yaml": ATTRIBUTES}, {}),
            (RBAC, {}, {"names": {}}),
            (RBAC, {}, {"roles": {"g": {"match": "keyMatch"}}}),
        ]
    ):
        seen.add(engine_of(tmp_path / str(number), model, rows, files, **settings).revision)
    assert len(seen) == 6
    assert engine_of(tmp_path / "same", model, f"# a comment\n\n{RBAC}").revision in seen


def test_a_policy_read_in_a_process_of_its_own_is_the_same(tmp_path: Path) -> None:
    engine = engine_of(tmp_path, ABAC, "p, read\n", {"policies/attributes.yaml": ATTRIBUTES})
    casbin = CasbinSettings.model_validate({"names": NAMES})
    aside = Engine(load_policy_aside(tmp_path / "models", tmp_path / "policies", casbin=casbin, small_bytes=0))
    assert aside.revision == engine.revision
    assert decided(aside, "user:alice", "tool:data1/read") == decided(engine, "user:alice", "tool:data1/read")


def test_a_matcher_that_looks_no_row_up_is_told_with_its_cost(tmp_path: Path) -> None:
    model = conf("eval(p.rule) && r.act == p.act", columns="rule, act")
    rows = "".join(f"p, r.sub.Age > {age}, read\n" for age in range(500))
    (warning,) = engine_of(tmp_path, model, rows).warnings
    assert (warning.code, warning.message) == (
        "P206",
        "no part can be looked up: each decision evaluates 500 rows, some 1.0 ms",
    )


@pytest.mark.parametrize(
    "fields", ["user, thing, action", "sub, path, method", "username, resource, operation", "subject, url, verb"]
)
def test_the_usual_names_of_fields_are_known(tmp_path: Path, fields: str) -> None:
    one, two, three = fields.split(", ")
    matcher = f"r.{one} == p.{one} && r.{two} == p.{two} && r.{three} == p.{three}"
    engine = engine_of(tmp_path, conf(matcher, request=fields, columns=fields), "p, alice, data1, read\n")
    answer = decided(engine, "user:alice", "tool:data1/read")
    assert answer.allowed and answer.links[0].rules[0].object == "data1"
    assert not decided(engine, "user:alice", "tool:data1/write").allowed


def test_a_second_field_of_the_same_meaning_has_to_be_explained(tmp_path: Path) -> None:
    model = conf("r.obj == p.obj && r.path == p.obj", request="sub, obj, act, path")
    with pytest.raises(PolicyError) as refused:
        engine_of(tmp_path, model, "p, alice, data1, read\n")
    assert [(fault.code, fault.message) for fault in refused.value.faults] == [("P202", "r.path is not defined")]


def test_a_long_name_is_matched_in_linear_time(tmp_path: Path) -> None:
    """Backtracking over 1,900 slashes and seven wildcards would take longer than anyone waits."""
    names = {**NAMES, "objects": {"resource:*/*/*/*/*/*/*/x": "*2"}}
    engine = engine_of(tmp_path, conf(SAME), "p, alice, data1, read\n", names=names)
    assert not decided(engine, "user:alice", f"resource:files/{'/' * 1_900}y").allowed


def test_a_wildcard_before_the_first_slash_stays_before_it(tmp_path: Path) -> None:
    engine = engine_of(tmp_path, conf(SAME), "p, alice, data1, a/b/read\n")
    assert decided(engine, "user:alice", "tool:data1/a/b/read").allowed


def test_an_argument_that_is_left_out_is_not_there(tmp_path: Path) -> None:
    """Whatever attributes.yaml says in its place: the caller chooses what it leaves out."""
    attributes = {"policies/attributes.yaml": ATTRIBUTES}
    engine = engine_of(tmp_path, ABAC, "p, read\n", attributes, request={"obj.Owner": "args.owner"})
    assert decided(engine, "user:alice", "tool:data1/read", {"owner": "user:alice"}).allowed
    assert decided(engine, "user:alice", "tool:data1/read").reason is Reason.CONDITION_FALSE


def test_no_role_definition_is_a_way_to_a_role_by_name(tmp_path: Path) -> None:
    model = conf("g2(r.sub, p.sub) && r.obj == p.obj && r.act == p.act", roles={"g2": "_, _"})
    engine = engine_of(tmp_path, model, "p, admin, data1, read\ng2, carol, admin\n")
    assert decided(engine, "user:carol", "tool:data1/read").allowed
    assert not decided(engine, "user:admin", "tool:data1/read").allowed


def test_a_session_that_is_open_by_default_does_not_end_with_a_row(tmp_path: Path) -> None:
    model = conf(SAME, columns="sub, obj, act, expires_at, eft", effect=DENY_OVERRIDE)
    rows = "p, alice, data1, read, 2020-01-01T00:00:00Z, allow\np, bob, data1, read, -, deny\n"
    engine = engine_of(tmp_path, model, rows, default="allow")
    entered = engine.enter((Principal("user:alice", "test"),), Question("nhi:data1", "initialize", "data1"), NOW_S)
    assert entered.allowed and entered.until is None

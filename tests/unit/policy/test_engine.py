"""What does a chain get, link by link?"""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from sidecar.errors import Reason, Refusal
from sidecar.policy.patterns import globs
from sidecar.vocabulary import DELEGATE, PermissionKind, Question, RowLimit
from tests.unit.policy.world import AFTER, BEFORE, NOW, agent, at, chain, engine, faults, session, tool

TABLES = json.loads((Path(__file__).parents[2] / "golden" / "policy" / "engine.json").read_text())

CHAINED = {
    "user_to_nhi": "p, user:alice, nhi:planner, delegate, -, 5, -, allow\n",
    "nhi_to_nhi": "p, nhi:planner, nhi:researcher, delegate, -, -, -, allow\n",
    "agent_to_tool": "p, nhi:researcher, tool:github/search, tools/call, -, -, -, allow\n",
}


def test_every_link_is_asked_in_its_own_kind(tmp_path: Path) -> None:
    decision = engine(tmp_path, CHAINED).decide(
        chain("user:alice", "nhi:planner", "nhi:researcher"), tool("github/search"), NOW
    )
    assert decision.allowed
    assert [(link.kind, link.subject, link.object, link.action) for link in decision.links] == [
        (PermissionKind.USER_TO_NHI, "user:alice", "nhi:planner", DELEGATE),
        (PermissionKind.NHI_TO_NHI, "nhi:planner", "nhi:researcher", DELEGATE),
        (PermissionKind.AGENT_TO_TOOL, "nhi:researcher", "tool:github/search", "tools/call"),
    ]
    assert all(link.rules for link in decision.links)


@pytest.mark.parametrize("kind", list(CHAINED))
def test_a_chain_without_one_of_its_links_is_denied(tmp_path: Path, kind: str) -> None:
    asked = engine(tmp_path, {name: rows for name, rows in CHAINED.items() if name != kind})
    decision = asked.decide(chain("user:alice", "nhi:planner", "nhi:researcher"), tool("github/search"), NOW)
    assert [link.allowed for link in decision.links].count(False) == 1
    assert decision.reason is Reason.NO_MATCHING_RULE
    with pytest.raises(Refusal):
        decision.or_refuse()


@pytest.mark.parametrize(
    "names",
    [
        ("nhi:planner", "nhi:researcher"),  # a shorter chain needs only its own links
        ("nhi:researcher",),
    ],
)
def test_a_shorter_chain_needs_only_its_own_links(tmp_path: Path, names: tuple[str, ...]) -> None:
    assert engine(tmp_path, CHAINED).decide(chain(*names), tool("github/search"), NOW).allowed


@pytest.mark.parametrize("names", TABLES["test_another_chain_is_denied"])
def test_another_chain_is_denied(tmp_path: Path, names: tuple[str, ...]) -> None:
    assert not engine(tmp_path, CHAINED).decide(chain(*names), tool("github/search"), NOW).allowed


def test_talking_to_an_agent_lends_it_nothing(tmp_path: Path) -> None:
    rows = {**CHAINED, "user_to_nhi": "p, user:alice, nhi:planner, message/send, -, -, -, allow\n"}
    asked = engine(tmp_path, rows)
    assert asked.decide(chain("user:alice"), agent("planner"), NOW).allowed
    through = chain("user:alice", "nhi:planner", "nhi:researcher")
    assert not asked.decide(through, tool("github/search"), NOW).allowed


def test_an_agent_is_asked_by_the_kind_of_the_last_principal(tmp_path: Path) -> None:
    asked = engine(
        tmp_path,
        {
            "user_to_nhi": "p, user:a, nhi:bot, message/send, -, -, -, allow\n",
            "nhi_to_nhi": "p, nhi:b, nhi:bot, tasks/get, -, -, -, allow\n",
            "agent_to_tool": "p, user:a, nhi:bot, sampling/createMessage, -, -, -, allow\n",
        },
    )
    assert asked.decide(chain("user:a"), agent("bot"), NOW).allowed
    assert not asked.decide(chain("nhi:b"), agent("bot"), NOW).allowed
    assert asked.decide(chain("nhi:b"), agent("bot", "tasks/get"), NOW).allowed
    assert not asked.decide(chain("user:a"), agent("bot", "sampling/createMessage"), NOW).allowed
    assert asked.decide(chain("user:a"), session("bot", "sampling/createMessage"), NOW).allowed


@pytest.mark.parametrize(("action", "used"), TABLES["test_use_is_what_the_contract_lists"])
def test_use_is_what_the_contract_lists(tmp_path: Path, action: str, used: bool) -> None:
    asked = engine(tmp_path, {"agent_to_tool": "p, user:a, nhi:s, use, -, -, -, allow\n"})
    assert asked.decide(chain("user:a"), session("s", action), NOW).allowed is used


def test_anonymous_is_allowed_by_name_only(tmp_path: Path) -> None:
    rows = "p, *, tool:s/*, use, -, -, -, allow\np, anonymous, tool:s/open, tools/call, -, -, -, allow\n"
    asked = engine(tmp_path, {"agent_to_tool": rows})
    assert asked.decide(chain("anonymous"), tool("s/open"), NOW).allowed
    assert not asked.decide(chain("anonymous"), tool("s/shut"), NOW).allowed
    assert asked.decide(chain("user:a"), tool("s/shut"), NOW).allowed


# --- guardrails -------------------------------------------------------------------------------------------------------

OPEN = {
    "user_to_nhi": "p, user:*, nhi:*, use, -, -, -, allow\n",
    "nhi_to_nhi": "p, *, nhi:*, use, -, -, -, allow\n",
    "agent_to_tool": "p, *, *, *, -, -, -, allow\n",
}


@pytest.mark.parametrize(("guardrail", "names", "denied"), TABLES["test_a_guardrail_is_asked_of_everybody"])
def test_a_guardrail_is_asked_of_everybody(
    tmp_path: Path, guardrail: str, names: tuple[str, ...], denied: bool
) -> None:
    """A link that lends has no arguments, so a condition on them is an error there, and an error matches."""
    asked = engine(tmp_path, {**OPEN, "guardrails": guardrail, "roles": "g, user:mallory, role:suspects\n"})
    decision = asked.decide(chain(*names), tool("prod/delete_x", {"force": True}), NOW)
    assert decision.allowed is not denied
    assert decision.reason is (Reason.DENIED_BY_RULE if denied else None)
    refused = [link for link in decision.links if not link.allowed]
    assert all(link.kind is PermissionKind.GUARDRAIL and link.rules for link in refused)


def test_guardrails_alone_allow_nothing(tmp_path: Path) -> None:
    asked = engine(tmp_path, {"guardrails": "p, user:mallory, *, *, -, -, -, deny\n"})
    assert asked.decide(chain("user:alice"), tool("s/t"), NOW).reason is Reason.NO_MATCHING_RULE


# --- expiry, limits, roles, shadow ------------------------------------------------------------------------------------


def test_a_row_lives_while_now_is_before_its_end(tmp_path: Path) -> None:
    end = "2027-03-31T00:00:00Z"
    asked = engine(tmp_path, {"agent_to_tool": f"p, user:a, tool:s/t, tools/call, {end}, -, -, allow\n"})
    for now_s, allowed in ((at(end) - 1, True), (at(end), False), (at(end) + 1, False), (at(end) - 0.001, True)):
        decision = asked.decide(chain("user:a"), tool("s/t"), now_s)  # backwards too: nothing remembered misleads
        assert decision.allowed is allowed
        assert decision.reason is (None if allowed else Reason.EXPIRED)
        assert decision.until == (at(end) if allowed else None)


def test_until_is_the_nearest_end_of_all_links(tmp_path: Path) -> None:
    rows = {
        "user_to_nhi": "p, user:a, nhi:b, use, 2027-05-01T00:00:00Z, -, -, allow\n",
        "agent_to_tool": "p, nhi:b, tool:s/t, use, 2027-07-01T00:00:00+02:00, -, -, allow\n"
        "p, nhi:b, *, use, -, -, -, allow\n"
        "p, nhi:b, tool:s/*, use, 2027-06-01T00:00:00Z, -, args.x == 1, allow\n",
    }
    asked = engine(tmp_path, rows)
    through = chain("user:a", "nhi:b")
    assert asked.decide(through, tool("s/t", {"x": 1}), NOW).until == at("2027-05-01T00:00:00Z")
    assert asked.decide(through[1:], tool("s/t", {"x": 1}), NOW).until == at("2027-06-01T00:00:00Z")
    assert asked.decide(through[1:], tool("s/t", {"x": 2}), NOW).until == at("2027-06-30T22:00:00Z")
    assert asked.decide(through[1:], tool("s/u"), NOW).until is None


def test_an_expired_deny_denies_no_more_and_is_warned_of(tmp_path: Path) -> None:
    rows = f"p, *, tool:s/t, use, -, -, -, allow\np, *, tool:s/t, use, {BEFORE}, -, -, deny\n"
    asked = engine(tmp_path, {"agent_to_tool": rows})
    assert asked.decide(chain("user:a"), tool("s/t"), NOW).allowed
    assert not asked.decide(chain("user:a"), tool("s/t"), NOW - 3600).allowed
    assert [(fault.code, fault.line, fault.severity) for fault in asked.warnings] == [("P120", 2, "warning")]


def test_all_matching_rows_limits_apply_to_the_last_link_only(tmp_path: Path) -> None:
    rows = {
        **CHAINED,
        "agent_to_tool": """
#: id=wide
p, nhi:researcher, tool:github/*, use, -, 100, -, allow
#: id=narrow per=origin
p, nhi:researcher, tool:github/search, use, -, 10, -, allow
#: id=together per=rule
p, nhi:researcher, tool:*, use, -, 1000, -, allow
#: id=unlimited
p, nhi:researcher, *, use, -, -, -, allow
#: id=expired
p, nhi:researcher, *, use, 2020-01-01T00:00:00Z, 1, -, allow
#: id=unmet
p, nhi:researcher, *, use, -, 2, args.x == 1, allow
#: id=shadow shadow=true
p, nhi:researcher, *, use, -, 3, -, allow
""",
    }
    decision = engine(tmp_path, rows).decide(
        chain("user:alice", "nhi:planner", "nhi:researcher"), tool("github/search"), NOW
    )
    assert set(decision.limits) == {
        RowLimit("wide", "nhi:researcher", 100),
        RowLimit("narrow", "user:alice", 10),
        RowLimit("together", "", 1000),
    }


def test_what_stops_work_is_charged_only_by_a_row_that_names_it(tmp_path: Path) -> None:
    rows = """
#: id=used
p, user:a, nhi:r, use, -, 1, -, allow
#: id=every
p, user:a, nhi:r, tasks/*, -, 2, -, allow
#: id=named
p, user:a, nhi:r, tasks/cancel|tasks/get, -, 3, -, allow
"""
    asked = engine(tmp_path, {"user_to_nhi": rows})
    charged = {
        action: {limit.rule_id for limit in asked.decide(chain("user:a"), Question("nhi:r", action, ""), NOW).limits}
        for action in ("tasks/cancel", "tasks/get")
    }
    assert charged == {"tasks/cancel": {"named"}, "tasks/get": {"used", "every", "named"}}


def test_a_denied_call_is_charged_nothing(tmp_path: Path) -> None:
    rows = "p, user:a, tool:s/t, use, -, 5, -, allow\np, user:a, tool:s/t, use, -, -, -, deny\n"
    assert engine(tmp_path, {"agent_to_tool": rows}).decide(chain("user:a"), tool("s/t"), NOW).limits == ()


def test_the_roles_of_the_deciding_way_are_told(tmp_path: Path) -> None:
    rows = "p, role:staff, tool:s/t, use, -, -, -, allow\np, role:other, tool:s/u, use, -, -, -, allow\n"
    roles = "g, user:a, role:eng\ng, role:eng, role:staff\ng, user:a, role:other\n"
    asked = engine(tmp_path, {"agent_to_tool": rows, "roles": roles})
    assert asked.decide(chain("user:a"), tool("s/t"), NOW).roles == ("role:eng", "role:staff")


def test_shadow_rules_are_recorded_and_change_nothing(tmp_path: Path) -> None:
    rows = """
p, user:a, tool:s/t, use, -, -, -, allow
#: id=try-deny shadow=true
p, user:a, tool:s/*, use, -, -, -, deny
#: id=try-allow shadow=true
p, user:b, tool:s/*, use, -, -, args.x == 1, allow
"""
    guardrails = "#: id=try-guardrail shadow=true\np, user:a, tool:s/t, *, -, -, -, deny\n"
    asked = engine(tmp_path, {"agent_to_tool": rows, "guardrails": guardrails})
    allowed = asked.decide(chain("user:a"), tool("s/t"), NOW)
    assert (allowed.allowed, allowed.would_deny, allowed.would_allow) == (True, ("try-deny", "try-guardrail"), ())
    denied = asked.decide(chain("user:b"), tool("s/t", {"x": 1}), NOW)
    assert (denied.allowed, denied.would_deny, denied.would_allow) == (False, (), ("try-allow",))
    assert denied.reason is Reason.NO_MATCHING_RULE
    assert asked.decide(chain("user:b"), tool("s/t", {"x": 2}), NOW).would_allow == ()


# --- reasons ----------------------------------------------------------------------------------------------------------

DENY = "p, *, tool:s/t, use, -, -, -, deny\n"
DENY_IF = "p, *, tool:s/t, use, -, -, args.x == 0, deny\n"
EXPIRED = f"p, user:a, tool:s/t, use, {BEFORE}, -, -, allow\n"
EXPIRED_UNMET = f"p, user:a, tool:s/t, use, {BEFORE}, -, args.x == 0, allow\n"
UNMET = "p, user:a, tool:s/t, use, -, -, args.x == 0, allow\n"
BROKEN = f"p, user:a, tool:s/t, use, {AFTER}, -, args.x.y.z, allow\n"
OTHER = "p, user:b, tool:s/t, use, -, -, -, allow\n"


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (OTHER, Reason.NO_MATCHING_RULE),
        (UNMET + OTHER, Reason.CONDITION_FALSE),
        (BROKEN, Reason.CONDITION_FALSE),
        (EXPIRED + UNMET, Reason.EXPIRED),
        (EXPIRED_UNMET, Reason.EXPIRED),
        (EXPIRED_UNMET + UNMET, Reason.CONDITION_FALSE),  # renewing the expired one would not help
        (EXPIRED + UNMET + DENY, Reason.DENIED_BY_RULE),
        (EXPIRED + DENY_IF, Reason.EXPIRED),
        (DENY + OTHER, Reason.DENIED_BY_RULE),
    ],
)
def test_the_reason_says_what_stands_in_the_way(tmp_path: Path, rows: str, reason: Reason) -> None:
    assert (
        engine(tmp_path, {"agent_to_tool": rows}).decide(chain("user:a"), tool("s/t", {"x": 1}), NOW).reason is reason
    )


def test_of_several_links_the_weightiest_reason_is_told(tmp_path: Path) -> None:
    rows = {
        "user_to_nhi": "p, user:a, nhi:b, use, -, -, -, deny\n",
        "agent_to_tool": EXPIRED.replace("user:a", "nhi:b"),
    }
    decision = engine(tmp_path, rows).decide(chain("user:a", "nhi:b"), tool("s/t"), NOW)
    assert [link.reason for link in decision.links] == [Reason.DENIED_BY_RULE, Reason.EXPIRED]
    assert decision.reason is Reason.DENIED_BY_RULE


# --- earlier links and arguments --------------------------------------------------------------------------------------


def test_arguments_belong_to_the_last_link(tmp_path: Path) -> None:
    rows = {
        "user_to_nhi": "p, user:a, nhi:b, delegate, -, -, args.x == 1, allow\n",
        "agent_to_tool": "p, nhi:b, tool:s/t, use, -, -, args.x == 1, allow\n",
    }
    asked = engine(tmp_path, rows)
    assert asked.decide(chain("nhi:b"), tool("s/t", {"x": 1}), NOW).allowed
    assert not asked.decide(chain("user:a", "nhi:b"), tool("s/t", {"x": 1}), NOW).allowed
    assert not asked.may_list(chain("user:a", "nhi:b"), tool("s/t"), NOW)


def test_an_earlier_link_may_be_bound_to_the_call(tmp_path: Path) -> None:
    rows = {
        "user_to_nhi": "p, user:a, nhi:b, delegate, -, -, call.server == 's' && call.action == 'tools/call', allow\n",
        "agent_to_tool": "p, nhi:b, *, use, -, -, -, allow\n",
    }
    asked = engine(tmp_path, rows)
    assert asked.decide(chain("user:a", "nhi:b"), tool("s/t"), NOW).allowed
    assert not asked.decide(chain("user:a", "nhi:b"), tool("other/t"), NOW).allowed


# --- listing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "listed"), TABLES["test_a_list_shows_what_could_be_called"])
def test_a_list_shows_what_could_be_called(tmp_path: Path, rows: str, listed: bool) -> None:
    rows = rows.replace("origin.ok", "origin.scopes[0] == 'x'").replace("origin.id[5]", "origin.scopes[5]")
    assert engine(tmp_path, {"agent_to_tool": rows + "\n"}).may_list(chain("user:a"), tool("s/t"), NOW) is listed


def test_a_list_obeys_every_link_and_guardrail(tmp_path: Path) -> None:
    asked = engine(tmp_path, {**CHAINED, "guardrails": "p, user:mallory, tool:*, *, -, -, -, deny\n"})
    assert asked.may_list(chain("user:alice", "nhi:planner", "nhi:researcher"), tool("github/search"), NOW)
    assert not asked.may_list(chain("user:alice", "nhi:researcher"), tool("github/search"), NOW)
    asked = engine(tmp_path, {**OPEN, "guardrails": "p, user:mallory, tool:*, *, -, -, args.x == 1, deny\n"})
    assert asked.may_list(chain("user:mallory", "nhi:p"), tool("s/t"), NOW)
    asked = engine(tmp_path, {**OPEN, "guardrails": "p, user:mallory, tool:*, *, -, -, -, deny\n"})
    assert not asked.may_list(chain("user:mallory", "nhi:p"), tool("s/t"), NOW)


def test_sets_nest(tmp_path: Path) -> None:
    sets = "g2, tool:s/t, set:inner\ng2, set:inner, set:outer\n"
    asked = engine(tmp_path, {"agent_to_tool": "p, user:a, set:outer, use, -, -, -, allow\n", "roles": sets})
    assert asked.decide(chain("user:a"), tool("s/t"), NOW).allowed
    assert not asked.decide(chain("user:a"), tool("s/u"), NOW).allowed


# --- sessions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("row", "opens"), TABLES["test_any_live_grant_on_the_server_opens_a_session"])
def test_any_live_grant_on_the_server_opens_a_session(tmp_path: Path, row: str, opens: bool) -> None:
    roles = "g, user:a, role:r\ng2, tool:s/t, set:inner\ng2, set:inner, set:things\ng2, tool:other/t, set:none\n"
    asked = engine(tmp_path, {"agent_to_tool": row + "\n", "roles": roles})
    decision = asked.enter(chain("user:a"), session("s"), NOW)
    assert decision.allowed is opens
    assert decision.limits == ()
    assert bool(decision.links[0].rules) is opens


def test_what_opens_a_session_grants_nothing_else(tmp_path: Path) -> None:
    asked = engine(tmp_path, {"agent_to_tool": "p, user:a, tool:s/t, use, -, -, -, allow\n"})
    for _ in range(2):  # the second time from memory
        assert asked.enter(chain("user:a"), session("s"), NOW).allowed
        assert not asked.decide(chain("user:a"), session("s"), NOW).allowed
        assert not asked.may_list(chain("user:a"), session("s"), NOW)


def test_a_deny_on_the_server_closes_sessions(tmp_path: Path) -> None:
    rows = "p, user:*, tool:s/t, use, -, 7, -, allow\np, user:a, nhi:s, tools/list|ping, -, -, -, deny\n"
    asked = engine(tmp_path, {"agent_to_tool": rows})
    assert asked.enter(chain("user:a"), session("s", "tools/list"), NOW).reason is Reason.DENIED_BY_RULE
    assert asked.enter(chain("user:a"), session("s", "initialize"), NOW).allowed
    assert asked.enter(chain("user:b"), session("s", "tools/list"), NOW).allowed


def test_a_guardrail_closes_sessions(tmp_path: Path) -> None:
    asked = engine(tmp_path, {**OPEN, "guardrails": "p, user:mallory, *, *, -, -, -, deny\n"})
    assert not asked.enter(chain("user:mallory", "nhi:p"), session("s"), NOW).allowed
    assert asked.enter(chain("user:alice", "nhi:p"), session("s"), NOW).allowed


def test_a_session_needs_every_earlier_link_too(tmp_path: Path) -> None:
    asked = engine(tmp_path, CHAINED)
    assert asked.enter(chain("user:alice", "nhi:planner", "nhi:researcher"), session("github"), NOW).allowed
    assert not asked.enter(chain("user:bob", "nhi:planner", "nhi:researcher"), session("github"), NOW).allowed
    assert not asked.enter(chain("user:alice", "nhi:planner"), session("github"), NOW).allowed


def test_a_session_ends_with_the_last_grant_that_opens_it(tmp_path: Path) -> None:
    rows = "".join(f"p, user:a, tool:s/t{month}, use, 2027-0{month}-01T00:00:00Z, -, -, allow\n" for month in (3, 5, 4))
    asked = engine(tmp_path, {"agent_to_tool": rows})
    assert asked.enter(chain("user:a"), session("s"), NOW).until == at("2027-05-01T00:00:00Z")
    late = asked.enter(chain("user:a"), session("s"), at("2027-05-01T00:00:00Z"))
    assert late.reason is Reason.EXPIRED
    permanent = engine(tmp_path, {"agent_to_tool.more.csv": "p, user:a, tool:s/t, use, -, -, -, allow\n"})
    assert permanent.enter(chain("user:a"), session("s"), NOW).until is None


def test_what_is_remembered_is_bounded(tmp_path: Path) -> None:
    asked = engine(tmp_path, {"agent_to_tool": "p, nhi:*, tool:s/*, use, -, -, -, allow\n"})
    for number in range(10_000):
        assert asked.decide(chain(f"nhi:a{number}"), tool(f"s/t{number}"), NOW).allowed
        asked.enter(chain("nhi:a"), session(f"s{number}"), NOW)
    matcher = asked._dockets[PermissionKind.AGENT_TO_TOOL]._matcher
    assert len(asked._askers._memo) <= 2 * 4096
    assert len(matcher._on_server) <= 2 * 256
    for number in range(1000):
        asked.decide(chain("nhi:a"), Question("tool:s/t", f"action/{number}", "s"), NOW)
    assert len(matcher._actions) <= 128


def test_a_decision_looks_at_its_own_rows_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """BL-099: ten thousand rows; allowed, denied, and by somebody whom no row knows."""
    rows = "".join(f"p, nhi:a{number}, tool:s/t{number}, use, -, 120, -, allow\n" for number in range(10_000))
    asked = engine(tmp_path, {"agent_to_tool": rows})
    docket = asked._dockets[PermissionKind.AGENT_TO_TOOL]
    looked: list[str] = []
    monkeypatch.setattr("sidecar.policy.matching.globs", lambda act, text: looked.append(text) or globs(act, text))
    monkeypatch.setattr(type(docket.table), "rule", lambda table, row: looked.append("row") or table._made(row))
    for name, called, allowed in (("nhi:a7", "s/t7", True), ("nhi:a7", "s/t8", False), ("nhi:unknown", "s/t7", False)):
        assert asked.decide(chain(name), tool(called), NOW).allowed is allowed
    assert len(looked) <= 2  # one list of actions, one row


def test_every_condition_of_many_rows_counts(tmp_path: Path) -> None:
    rows = "".join(f"p, user:a, tool:s/t, use, -, -, args.n{number} == 1, allow\n" for number in range(7))
    asked = engine(tmp_path, {"agent_to_tool": rows})
    for outcomes in range(2**7):
        met = {f"n{number}": outcomes >> number & 1 for number in range(7)}
        decision = asked.decide(chain("user:a"), tool("s/t", met), NOW)
        assert decision.allowed is bool(outcomes)
        assert len(decision.links[0].rules) == outcomes.bit_count()


def test_a_rule_of_several_rows_is_one_rule(tmp_path: Path) -> None:
    rows = (
        "#: id=reads owner=me per=rule\np, nhi:a, tool:s/t*, use, -, 10, -, allow\n"
        "#: part_of=reads\np, nhi:a, tool:s/t1, use, -, 10, -, allow\n"
        "#: part_of=reads\np, nhi:b, prompt:s/*, use, -, 10, -, allow\n"
    )
    asked = engine(tmp_path, {"agent_to_tool": rows})
    decision = asked.decide(chain("nhi:a"), tool("s/t1"), NOW)
    assert [(rule.id, rule.owner, rule.line) for rule in decision.links[0].rules] == [
        ("reads", "me", 2),
        ("reads", "me", 4),
    ]
    assert decision.limits == (RowLimit("reads", "", 10),)  # charged once


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ("#: part_of=x\np, nhi:a, tool:s/t, use, -, -, -, allow\n", "P114"),
        ("{whole}#: part_of=y\np, nhi:a, tool:s/u, use, -, -, -, allow\n", "P114"),
        ("{whole}#: part_of=x owner=me\np, nhi:a, tool:s/u, use, -, -, -, allow\n", "P114"),
        ("{whole}#: part_of=x\np, nhi:a, tool:s/u, tools/call, -, -, -, allow\n", "P114"),
        ("{whole}#: id=x\np, nhi:a, tool:s/u, use, -, -, -, allow\n", "P108"),
    ],
)
def test_a_part_that_does_not_fit_its_rule_is_a_fault(tmp_path: Path, rows: str, code: str) -> None:
    whole = "#: id=x\np, nhi:a, tool:s/t, use, -, -, -, allow\n"
    assert [fault.code for fault in faults(tmp_path, {"agent_to_tool.csv": rows.format(whole=whole)})] == [code]


def test_a_thousand_roles_on_an_object_in_a_thousand_sets_is_no_product_of_both(tmp_path: Path) -> None:
    """Every row of every role was once held against every set: a tenth of a second on the event loop."""
    rows = [f"p, role:r{n}, tool:z/{m}, use, -, -, -, allow" for n in range(1000) for m in range(10)]
    rows += [f"p, nhi:q, set:m{n}, use, -, -, -, allow" for n in range(1000)]
    rows.append("p, role:r7, set:m5, use, -, -, -, allow")
    links = [f"g, nhi:a, role:r{n}" for n in range(1000)] + [f"g2, tool:s/t, set:m{n}" for n in range(1000)]
    asked = engine(tmp_path, {"agent_to_tool": "\n".join(rows), "roles": "\n".join(links)})
    took = []
    for _ in range(5):
        began = time.perf_counter()
        assert asked.decide(chain("nhi:a"), tool("s/t"), NOW).allowed
        assert not asked.decide(chain("nhi:a"), tool("s/other"), NOW).allowed
        took.append(time.perf_counter() - began)
    assert min(took) < 0.05

"""What does a chain get, link by link?"""

import sys
from collections import Counter
from pathlib import Path

import pytest

from sidecar.errors import Reason
from sidecar.policy.patterns import globs
from sidecar.vocabulary import DELEGATE, PermissionKind, Question, RowLimit
from tests.tables import tables
from tests.unit.policy.world import BEFORE, NOW, agent, at, chain, engine, faults, session, tool

TABLES = tables("policy/engine")

CHAINED = {
    "user_to_nhi": "p, user:alice, nhi:planner, delegate, -, 5, -, allow\n",
    "nhi_to_nhi": "p, nhi:planner, nhi:researcher, delegate, -, -, -, allow\n",
    "agent_to_tool": "p, nhi:researcher, tool:github/search, tools/call, -, -, -, allow\n",
}


def test_every_link_is_asked_in_its_own_kind(tmp_path: Path) -> None:
    through = chain("user:alice", "nhi:planner", "nhi:researcher")
    decision = engine(tmp_path, CHAINED).decide(through, tool("github/search"), NOW)
    assert decision.allowed
    assert [(link.kind, link.subject, link.object, link.action) for link in decision.links] == [
        (PermissionKind.USER_TO_NHI, "user:alice", "nhi:planner", DELEGATE),
        (PermissionKind.NHI_TO_NHI, "nhi:planner", "nhi:researcher", DELEGATE),
        (PermissionKind.AGENT_TO_TOOL, "nhi:researcher", "tool:github/search", "tools/call"),
    ]
    assert all(link.rules for link in decision.links)


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
    rows = {
        "user_to_nhi": "p, user:a, nhi:bot, message/send, -, -, -, allow\n",
        "nhi_to_nhi": "p, nhi:b, nhi:bot, tasks/get, -, -, -, allow\n",
        "agent_to_tool": "p, user:a, nhi:bot, sampling/createMessage, -, -, -, allow\n",
    }
    asked = engine(tmp_path, rows)
    for name, question, allowed in (
        ("user:a", agent("bot"), True),
        ("nhi:b", agent("bot"), False),
        ("nhi:b", agent("bot", "tasks/get"), True),
        ("user:a", agent("bot", "sampling/createMessage"), False),
        ("user:a", session("bot", "sampling/createMessage"), True),
    ):
        assert asked.decide(chain(name), question, NOW).allowed is allowed


@pytest.mark.parametrize(("action", "used"), TABLES["test_use_stands_for_these_actions"])
def test_use_stands_for_these_actions(tmp_path: Path, action: str, used: bool) -> None:
    asked = engine(tmp_path, {"agent_to_tool": "p, user:a, nhi:s, use, -, -, -, allow\n"})
    assert asked.decide(chain("user:a"), session("s", action), NOW).allowed is used


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


def test_all_matching_rows_limits_apply_to_the_last_link_only_and_to_no_denied_call(tmp_path: Path) -> None:
    rows = TABLES["limited_rows"]
    asked = engine(tmp_path, {**CHAINED, "agent_to_tool": rows})
    through = chain("user:alice", "nhi:planner", "nhi:researcher")
    assert set(asked.decide(through, tool("github/search"), NOW).limits) == {
        RowLimit("wide", "nhi:researcher", 100),
        RowLimit("narrow", "user:alice", 10),
        RowLimit("together", "", 1000),
    }
    assert asked.decide(through, tool("github/shut"), NOW).limits == ()


def test_what_stops_work_is_charged_only_by_a_row_that_names_it(tmp_path: Path) -> None:
    rows = TABLES["stopping_rows"]
    asked = engine(tmp_path, {"user_to_nhi": rows})
    charged = {
        action: {limit.rule_id for limit in asked.decide(chain("user:a"), Question("nhi:r", action, ""), NOW).limits}
        for action in ("tasks/cancel", "tasks/get")
    }
    assert charged == {"tasks/cancel": {"named"}, "tasks/get": {"used", "every", "named"}}


def test_the_roles_of_the_deciding_way_are_told(tmp_path: Path) -> None:
    rows = "p, role:staff, tool:s/t, use, -, -, -, allow\np, role:other, tool:s/u, use, -, -, -, allow\n"
    roles = "g, user:a, role:eng\ng, role:eng, role:staff\ng, user:a, role:other\n"
    asked = engine(tmp_path, {"agent_to_tool": rows, "roles": roles})
    assert asked.decide(chain("user:a"), tool("s/t"), NOW).roles == ("role:eng", "role:staff")


def test_shadow_rules_are_recorded_and_change_nothing(tmp_path: Path) -> None:
    rows = TABLES["shadow_rows"]
    guardrails = "#: id=try-guardrail shadow=true\np, user:a, tool:s/t, *, -, -, -, deny\n"
    asked = engine(tmp_path, {"agent_to_tool": rows, "guardrails": guardrails})
    allowed = asked.decide(chain("user:a"), tool("s/t"), NOW)
    assert (allowed.allowed, allowed.would_deny, allowed.would_allow) == (True, ("try-deny", "try-guardrail"), ())
    denied = asked.decide(chain("user:b"), tool("s/t", {"x": 1}), NOW)
    assert (denied.allowed, denied.would_deny, denied.would_allow) == (False, (), ("try-allow",))
    assert denied.reason is Reason.NO_MATCHING_RULE
    assert asked.decide(chain("user:b"), tool("s/t", {"x": 2}), NOW).would_allow == ()


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
    assert asked._askers._known.cache_info().currsize <= 8192
    assert len(matcher._servers) <= 512
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


WHOLE = "#: id=x\np, nhi:a, tool:s/t, use, -, -, -, allow\n"
PART = "p, nhi:a, tool:s/u, use, -, -, -, allow\n"


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        (f"#: part_of=x\n{PART}", "P114"),
        (f"{WHOLE}#: part_of=y\n{PART}", "P114"),
        (f"{WHOLE}#: part_of=x owner=me\n{PART}", "P114"),
        (f"{WHOLE}#: part_of=x\n{PART.replace('use', 'tools/call')}", "P114"),
        (f"{WHOLE}#: id=x\n{PART}", "P108"),
    ],
)
def test_a_part_that_does_not_fit_its_rule_is_a_fault(tmp_path: Path, rows: str, code: str) -> None:
    assert [fault.code for fault in faults(tmp_path, {"agent_to_tool.csv": rows})] == [code]


def test_a_thousand_roles_on_an_object_in_a_thousand_sets_is_no_product_of_both(tmp_path: Path) -> None:
    """Every row of every role was once held against every set: a million of calls, on the event loop."""
    rows = [f"p, role:r{n}, tool:z/{m}, use, -, -, -, allow" for n in range(1000) for m in range(10)]
    rows += [f"p, nhi:q, set:m{n}, use, -, -, -, allow" for n in range(1000)]
    rows.append("p, role:r7, set:m5, use, -, -, -, allow")
    links = [f"g, nhi:a, role:r{n}" for n in range(1000)] + [f"g2, tool:s/t, set:m{n}" for n in range(1000)]
    asked = engine(tmp_path, {"agent_to_tool": "\n".join(rows), "roles": "\n".join(links)})
    for name, allowed in (("s/t", True), ("s/other", False)):
        calls: Counter[str] = Counter()
        sys.setprofile(lambda frame, event, _, calls=calls: calls.update([event]))
        try:
            decision = asked.decide(chain("nhi:a"), tool(name), NOW)
        finally:
            sys.setprofile(None)
        assert decision.allowed is allowed and calls.total() < 100_000, calls


SURVEYED = """\
#: id=plain
p, nhi:a, tool:s/plain, use, -, -, -, allow
p, nhi:a, tool:s/asks, use, -, -, args.x == 1, allow
#: id=both
p, nhi:a, tool:s/both, use, -, -, -, allow
p, nhi:a, tool:s/both, use, -, -, args.x == 1, deny
p, nhi:a, tool:s/now, use, -, -, now < timestamp('2020-01-01T00:00:00Z'), allow
#: approval=role:boss
p, nhi:a, tool:s/waits, use, -, -, -, allow
p, nhi:a, tool:s/may_wait, use, -, -, -, allow
#: approval=role:boss
p, nhi:a, tool:s/may_wait, use, -, -, args.x == 1, allow
p, nhi:a, tool:s/may_ask, use, -, -, -, allow
p, nhi:a, tool:s/gone, use, 2020-01-01T00:00:00Z, -, -, allow
"""
POSSIBLE = {
    "plain": "allow", "asks": "conditional", "both": "conditional", "now": "deny", "waits": "approval",
    "may_wait": "conditional", "may_ask": "allow", "gone": "deny", "nothing": "deny",
}  # fmt: skip


def test_a_survey_tells_what_calls_can_get_whatever_they_write(tmp_path: Path) -> None:
    rules = engine(tmp_path, {"agent_to_tool": SURVEYED})
    for name, expected in POSSIBLE.items():
        said, decision = rules.survey(chain("nhi:a"), Question(f"tool:s/{name}", "tools/call", "s", name), NOW)
        calls = {
            rules.decide(chain("nhi:a"), Question(f"tool:s/{name}", "tools/call", "s", name, {"x": x}), NOW).answer
            for x in (0, 1)
        }
        assert said == expected, name
        assert calls == ({expected} if expected != "conditional" else calls) and len(calls) <= 2
        assert (len(calls) > 1) == (expected == "conditional"), name
        assert decision.allowed == (expected != "deny")


def test_names_are_merged_block_by_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.policy.engine.BLOCK", 3)
    rows = [f"p, nhi:p{number}, tool:s/t, use, -, -, -, allow\n" for number in range(0, 40, 2)]
    links = [f"g, nhi:p{number}, role:r\n" for number in range(0, 40, 3)]
    rules = engine(tmp_path, {"agent_to_tool": "".join(rows), "roles": "".join(links)})
    more = [f"nhi:p{number}" for number in range(0, 40, 5)]
    blocks = list(rules.names_with("nhi:p", more))
    assert [name for block in blocks for name in block] == sorted(
        {f"nhi:p{number}" for step in (2, 3, 5) for number in range(0, 40, step)}
    )
    assert all(0 < len(block) <= 9 for block in blocks)


def test_names_and_rules_are_found_by_their_texts(tmp_path: Path) -> None:
    files = {"agent_to_tool": SURVEYED + "p, role:r, tool:t/*, use, -, -, -, allow\n", "roles": "g, user:u, role:r\n"}
    rules = engine(tmp_path, files)
    assert list(rules.names_with("user:")) == [["user:u"]] and list(rules.names_with("nhi:")) == [["nhi:a"]]
    assert list(rules.names_with("nhi:", ["nhi:b", "nhi:a", "user:x"])) == [["nhi:a", "nhi:b"]]
    (tools,) = rules.names_with("tool:")
    assert tools[:2] == ["tool:s/asks", "tool:s/both"] and "tool:t/*" not in tools
    assert rules.has_name("user:u") and not rules.has_name("user:x")
    assert rules.names_around("tool:s/b", "tool:", 2) == {"tool:s/asks", "tool:s/both"}
    assert [rule.object for rule in rules.rules_of("role:r")] == ["tool:t/*"]
    assert [rule.id for rule in rules.rules_of("tool:s/plain")] == ["plain"]
    assert list(rules.rules_of("tool:s/unheard")) == []

"""Which limits does a call touch, and whose counters are they?"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.limits.plan import NOTHING, REMEMBERED_PLANS, BudgetRule, Budgets, LimitCap, LimitPlan, _key, plan_charges
from sidecar.vocabulary import Call, Chain, Decision, Principal, Question, RowLimit

ALICE, BOB = Principal("user:alice"), Principal("user:bob")
PLANNER, RESEARCHER = Principal("nhi:planner"), Principal("nhi:researcher")
HOUR, SLOTS = (LimitCap("hour", 10),), (LimitCap("concurrency", 2),)


def call(target: str = "tool:github/search", *, session: bool = False) -> Call:
    question = Question(target, "tools/call", "github")
    return Call("mcp", "2026-07-28", "github", "tools/call", (question,), session=session)


def plan(
    budgets: Budgets,
    *chain: Principal,
    target: str = "tool:github/search",
    rows: tuple[RowLimit, ...] = (),
    roles: Mapping[str, set[str]] | None = None,
) -> LimitPlan:
    held = {name: frozenset(words) for name, words in (roles or {}).items()}
    return plan_charges(
        budgets,
        chain,
        lambda principal: held.get(principal.name, frozenset()),
        call(target),
        Decision(True, "r1", (), limits=rows),
    )


def labels(planned: LimitPlan) -> list[str]:
    return [charge.limit for charge in planned.charges]


def keys(planned: LimitPlan) -> list[str]:
    return [charge.key for charge in planned.charges]


def tools(*entries: BudgetRule) -> Budgets:
    return Budgets(tools=entries)


def principals(*entries: BudgetRule) -> Budgets:
    return Budgets(principals=entries)


def test_who_has_spent_a_rows_limit_can_end_a_subscription() -> None:
    rows = (RowLimit("narrow", "nhi:researcher", 5),)
    question = Question("resource:notes/a", "resources/read", "notes")
    for method, charged in (("resources/subscribe", 1), ("resources/unsubscribe", 0)):
        asked = Call("mcp", "2025-06-18", "notes", method, (question,))
        planned = plan_charges(
            Budgets(), (RESEARCHER,), lambda _: frozenset(), asked, Decision(True, "r1", (), limits=rows)
        )
        assert len(planned.charges) == charged


def test_every_matching_row_is_charged_for_whom_it_counts() -> None:
    narrow, wide = RowLimit("narrow", "nhi:researcher", 5), RowLimit("wide", "nhi:researcher", 500)
    planned = plan(Budgets(), ALICE, RESEARCHER, rows=(narrow, wide))
    assert [(charge.limit, charge.kind, charge.most) for charge in planned.charges] == [
        ("rule:narrow", "hour", 5),
        ("rule:wide", "hour", 500),
    ]
    other = plan(Budgets(), ALICE, PLANNER, rows=(RowLimit("narrow", "nhi:planner", 5),))
    assert keys(other)[0] not in keys(planned)


def test_one_row_counts_for_one_principal_whatever_the_chain_and_the_object() -> None:
    rows = (RowLimit("narrow", "nhi:researcher", 5),)
    through_alice = plan(Budgets(), ALICE, RESEARCHER, rows=rows)
    through_bob = plan(Budgets(), BOB, RESEARCHER, rows=rows, target="tool:github/get")
    assert keys(through_alice) == keys(through_bob)


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("tool:github/search", True),
        ("tool:github/*", True),
        ("*", True),
        ("tool:*search", True),
        ("tool:GitHub/*", False),
        ("tool:git", False),
        ("prompt:github/*", False),
    ],
)
def test_a_tools_entry_matches_as_policy_matches(pattern: str, matches: bool) -> None:
    assert labels(plan(tools(BudgetRule("tools", pattern, False, HOUR)), ALICE)) == [f"tools:{pattern}:hour"] * matches


def test_all_objects_and_callers_of_a_tools_entry_share_its_counter() -> None:
    budgets = tools(BudgetRule("tools", "tool:github/*", False, HOUR))
    assert keys(plan(budgets, ALICE)) == keys(plan(budgets, BOB, RESEARCHER, target="tool:github/get"))


def test_per_principal_counts_the_last_of_the_chain() -> None:
    budgets = tools(BudgetRule("tools", "tool:github/*", True, HOUR))
    assert keys(plan(budgets, ALICE, RESEARCHER)) == keys(plan(budgets, BOB, RESEARCHER))
    assert keys(plan(budgets, ALICE, RESEARCHER)) != keys(plan(budgets, ALICE, PLANNER))


def test_the_smallest_matching_timeout_wins() -> None:
    entries = [
        BudgetRule("tools", pattern, False, (), timeout_s) for pattern, timeout_s in [("*", 30.0), ("tool:*", 5.0)]
    ]
    assert plan(tools(*entries, BudgetRule("tools", "prompt:*", False, (), 1.0)), ALICE).timeout_s == 5.0
    assert plan(tools(BudgetRule("tools", "*", False, HOUR)), ALICE).timeout_s is None


def test_everyone_in_the_chain_who_matches_has_a_counter_of_their_own() -> None:
    budgets = principals(
        BudgetRule("principals", "nhi:*", True, HOUR), BudgetRule("principals", "user:alice", True, SLOTS)
    )
    planned = plan(budgets, ALICE, PLANNER, RESEARCHER)
    assert labels(planned) == ["principals:nhi:*:hour"] * 2 + ["principals:user:alice:concurrency"]
    assert len(set(keys(planned))) == 3


def test_a_team_that_shares_is_charged_once_also_when_two_of_it_stand_in_the_chain() -> None:
    budgets = principals(BudgetRule("principals", "nhi:*", False, HOUR))
    assert keys(plan(budgets, PLANNER, RESEARCHER)) == keys(plan(budgets, RESEARCHER))


def test_a_principal_who_stands_in_the_chain_twice_is_charged_once() -> None:
    budgets = principals(BudgetRule("principals", "nhi:*", True, HOUR))
    assert len(plan(budgets, PLANNER, RESEARCHER, PLANNER).charges) == 2


def test_a_role_means_those_who_have_it() -> None:
    budgets = principals(BudgetRule("principals", "role:interns", True, HOUR))
    roles = {"user:alice": {"role:interns", "role:eng"}, "user:bob": {"role:eng"}}
    assert labels(plan(budgets, ALICE, RESEARCHER, roles=roles)) == ["principals:role:interns:hour"]
    assert labels(plan(budgets, BOB, RESEARCHER, roles=roles)) == []
    assert labels(plan(budgets, Principal("role:interns"), roles=roles)) == []


def test_a_plan_is_not_remembered_across_a_change_of_roles() -> None:
    budgets = principals(BudgetRule("principals", "role:interns", True, HOUR))
    assert not plan(budgets, ALICE).charges
    assert plan(budgets, ALICE, roles={"user:alice": {"role:interns"}}).charges


def test_roles_are_not_asked_for_where_no_entry_names_one() -> None:
    def never(principal: Principal) -> frozenset[str]:
        raise AssertionError

    budgets = principals(BudgetRule("principals", "user:*", True, HOUR))
    assert plan_charges(budgets, (ALICE,), never, call(), Decision(True, "r1", ())).charges


def test_a_call_of_the_session_itself_is_charged_to_nobody() -> None:
    budgets = Budgets((BudgetRule("tools", "*", False, HOUR, 1.0),), (BudgetRule("principals", "*", True, HOUR),))
    chain: Chain = (ALICE,)
    planned = plan_charges(budgets, chain, lambda _: frozenset(), call(session=True), Decision(True, "r1", ()))
    assert planned is NOTHING


def test_what_is_remembered_is_bounded() -> None:
    budgets = tools(BudgetRule("tools", "*", False, HOUR))
    for number in range(REMEMBERED_PLANS + 10):
        plan(budgets, ALICE, target=f"resource:files/{number}")
    assert len(budgets.remembered) == REMEMBERED_PLANS


PARTS = st.lists(st.text(alphabet="ab:/*\x00é", max_size=4), max_size=4).map(tuple)


@given(PARTS, PARTS)
def test_two_counters_have_one_name_only_if_they_are_one(ours: tuple[str, ...], theirs: tuple[str, ...]) -> None:
    assert (_key("hour", *ours) == _key("hour", *theirs)) == (ours == theirs)


def test_a_key_names_nobody() -> None:
    planned = plan(principals(BudgetRule("principals", "user:*", True, HOUR)), ALICE)
    assert "alice" not in keys(planned)[0]

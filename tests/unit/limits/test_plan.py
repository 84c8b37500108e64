"""Which limits does a call touch, and whose counters are they?"""

from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st

from sidecar.limits.plan import NOTHING, REMEMBERED_PLANS, BudgetRule, Budgets, LimitCap, LimitPlan, _key, plan_charges
from sidecar.vocabulary import Call, Decision, Principal, Question, RowLimit
from tests.tables import tables

ALICE, BOB = Principal("user:alice"), Principal("user:bob")
PLANNER, RESEARCHER = Principal("nhi:planner"), Principal("nhi:researcher")
HOUR, SLOTS = (LimitCap("hour", 10),), (LimitCap("concurrency", 2),)


def plan(
    budgets: Budgets,
    *chain: Principal,
    target: str = "tool:github/search",
    method: str = "tools/call",
    session: bool = False,
    rows: tuple[RowLimit, ...] = (),
    roles: Callable[[Principal], set[str]] = lambda _: set(),
) -> LimitPlan:
    call = Call("mcp", "2026-07-28", "github", method, (Question(target, method, "github"),), session=session)
    return plan_charges(budgets, chain, lambda who: frozenset(roles(who)), call, Decision(True, "r1", (), limits=rows))


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
    for method, charged in (("resources/subscribe", 1), ("resources/unsubscribe", 0)):
        assert len(plan(Budgets(), RESEARCHER, target="resource:notes/a", rows=rows, method=method).charges) == charged


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


@pytest.mark.parametrize(("pattern", "matches"), tables("limits/plan")["tools"])
def test_a_tools_entry_matches_as_policy_matches(pattern: str, matches: bool) -> None:
    assert labels(plan(tools(BudgetRule("tools", pattern, False, HOUR)), ALICE)) == [f"tools:{pattern}:hour"] * matches


def test_per_principal_counts_the_last_of_the_chain_and_else_all_objects_and_callers_share_a_counter() -> None:
    for per, stranger_shares in ((False, True), (True, False)):
        budgets = tools(BudgetRule("tools", "tool:github/*", per, HOUR))
        ours = keys(plan(budgets, ALICE, RESEARCHER))
        assert ours == keys(plan(budgets, BOB, RESEARCHER, target="tool:github/get"))
        assert (ours == keys(plan(budgets, ALICE, PLANNER))) is stranger_shares


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


@pytest.mark.parametrize(("own", "count"), [(True, 2), (False, 1)])
def test_who_stands_in_the_chain_twice_is_charged_once_and_a_team_once_for_all(own: bool, count: int) -> None:
    budgets = principals(BudgetRule("principals", "nhi:*", own, HOUR))
    planned = keys(plan(budgets, PLANNER, RESEARCHER, PLANNER))
    assert len(planned) == count and own == (planned != keys(plan(budgets, RESEARCHER)))


def test_a_role_means_those_who_have_it_now_and_is_asked_for_only_where_an_entry_names_one() -> None:
    asked: list[Principal] = []

    def roles(who: Principal) -> set[str]:
        asked.append(who)
        return {"user:alice": {"role:interns", "role:eng"}, "user:bob": {"role:eng"}}.get(who.name, set())

    assert plan(principals(BudgetRule("principals", "user:*", True, HOUR)), ALICE, roles=roles).charges and not asked
    budgets = principals(BudgetRule("principals", "role:interns", True, HOUR))
    assert not plan(budgets, ALICE).charges, "nor is the plan remembered across a change of roles"
    assert labels(plan(budgets, ALICE, RESEARCHER, roles=roles)) == ["principals:role:interns:hour"]
    assert labels(plan(budgets, BOB, RESEARCHER, roles=roles)) == []
    assert labels(plan(budgets, Principal("role:interns"), roles=roles)) == []


def test_a_call_of_the_session_itself_is_charged_to_nobody() -> None:
    budgets = Budgets((BudgetRule("tools", "*", False, HOUR, 1.0),), (BudgetRule("principals", "*", True, HOUR),))
    assert plan(budgets, ALICE, session=True) is NOTHING


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

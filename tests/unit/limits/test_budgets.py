"""What does budgets.yaml say, and what is refused with its place?"""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.errors import PolicyError
from sidecar.limits.budgets import load_budgets
from sidecar.limits.plan import BudgetRule, Budgets, CallCost, LimitCap

SHIPPED = Path(__file__).parents[3] / "policies" / "budgets.yaml"


def load(folder: Path, text: str) -> Budgets:
    path = folder / "budgets.yaml"
    path.write_text(text, encoding="utf-8")
    return load_budgets(path)


def test_the_shipped_example_is_valid_and_without_the_file_nothing_is_limited(tmp_path: Path) -> None:
    assert load_budgets(SHIPPED).tools
    assert load_budgets(tmp_path / "budgets.yaml") == Budgets()


def test_a_link_that_leads_nowhere_is_a_fault_and_lifts_no_limit_by_silence(tmp_path: Path) -> None:
    (tmp_path / "budgets.yaml").symlink_to(tmp_path / "gone.yaml")
    with pytest.raises(PolicyError, match=r"budgets\.yaml: error\[Y001\]: cannot be read"):
        load_budgets(tmp_path / "budgets.yaml")


def test_every_key_of_a_tool_and_of_a_principal_becomes_a_cap(tmp_path: Path) -> None:
    budgets = load(
        tmp_path,
        """
version: 1
tools:
  "tool:github/*": {requests_per_second: 10, burst: 20, concurrency: 5, timeout: 30s, daily_quota: 5000}
  "resource:files/*": {requests_per_second: 2.5, per: principal}
principals:
  nhi:researcher: {per_hour: 1000, per_day: 8000, per_month: 90000, concurrency: 4}
  "user:*": {per_hour: 300}
  role:interns: {per_hour: 500, shared: true}
""",
    )
    caps = (LimitCap("rate", 20, 100_000), LimitCap("concurrency", 5), LimitCap("day", 5000))
    assert budgets.tools == (
        BudgetRule("tools", "tool:github/*", False, caps, 30.0),
        BudgetRule("tools", "resource:files/*", True, (LimitCap("rate", 3, 400_000),)),
    )
    bounds = (LimitCap("hour", 1000), LimitCap("day", 8000), LimitCap("month", 90000), LimitCap("concurrency", 4))
    assert budgets.principals == (
        BudgetRule("principals", "nhi:researcher", True, bounds),
        BudgetRule("principals", "user:*", True, (LimitCap("hour", 300),)),
        BudgetRule("principals", "role:interns", False, (LimitCap("hour", 500),)),
    )


def test_costs_and_budgets_are_counted_in_whole_millionths(tmp_path: Path) -> None:
    budgets = load(
        tmp_path,
        """
version: 1
costs:
  - {object: "tool:llm/complete", unit: usd, per_call: 0.002, from_result: "_meta.usage.cost", max_per_call: 0.50}
  - {object: "tool:llm/*", unit: tokens, from_result: "/_meta/acme.example~1tokens", max_per_call: "4000"}
  - {object: "tool:maps/*", unit: usd, per_call: 0.00001}
budgets:
  - {principal: "nhi:*", unit: usd, per_day: 5.00, per_month: 60.00}
  - {principal: role:interns, object: "tool:llm/*", unit: tokens, per_hour: 100000, shared: true}
  - {unit: usd, per_month: 999999999.999999}
  - {tool: maps, dailyQuota: 5}
""",
    )
    assert budgets.costs == (
        CallCost("tool:llm/complete", "usd", 2_000, 500_000, ("_meta", "usage", "cost")),
        CallCost("tool:llm/*", "tokens", 4_000_000_000, 4_000_000_000, ("_meta", "acme.example/tokens")),
        CallCost("tool:maps/*", "usd", 10, 10),
    )
    assert budgets.spending == (
        BudgetRule("budgets", "nhi:*", True, (LimitCap("day", 5_000_000), LimitCap("month", 60_000_000)), unit="usd"),
        BudgetRule("budgets", "role:interns", False, (LimitCap("hour", 10**11),), object="tool:llm/*", unit="tokens"),
        BudgetRule("budgets", "", False, (LimitCap("month", 999_999_999_999_999),), unit="usd"),
    )
    assert budgets.tools == (BudgetRule("tools", "tool:maps/*", False, (LimitCap("day", 5),)),)
    assert budgets.spending_labels == (
        "budgets:nhi:*:usd:day",
        "budgets:nhi:*:usd:month",
        "budgets:role:interns:tool:llm/*:tokens:hour",
        "budgets:usd:month",
    )


KEYS = """
    rateLimit: {requestsPerSecond: 10, burstSize: 20}
    concurrencyLimit: 5
    timeout: 30s
    dailyQuota: 5000
"""
OURS = "{requests_per_second: 10, burst: 20, concurrency: 5, timeout: 30s, daily_quota: 5000}"


@pytest.mark.parametrize("text", ["budgets:\n  - tool: github", 'tools:\n  "tool:github/*":'])
def test_the_seeds_spelling_says_the_same(tmp_path: Path, text: str) -> None:
    ours = load(tmp_path, f'version: 1\ntools:\n  "tool:github/*": {OURS}\n')
    assert load(tmp_path, f"version: 1\n{text}{KEYS}") == ours


@pytest.mark.parametrize("key", ["daily_quota", "dailyQuota"])
def test_a_daily_quota_of_0_means_unlimited(tmp_path: Path, key: str) -> None:
    budgets = load(tmp_path, f'version: 1\ntools:\n  "tool:demo/*": {{{key}: 0, concurrency: 1}}\n')
    assert budgets.tools[0].caps == (LimitCap("concurrency", 1),)


ONE = "version: 1\n"
TOOL, COST = f"{ONE}tools:\n  tool:a/b: ", f"{ONE}costs: [{{object: tool:a/b, unit: "
PAID = f"{ONE}costs: [{{object: '*', unit: usd, per_call: 1}}]\n"
HALF = PAID.replace("per_call: 1", "from_result: a, max_per_call: 0.5")
FAULTS = [
    ("tools: {}", (1, 1), "version"),
    ("version: 2", (1, 10), "known values"),
    (TOOL + "{rps: 1}", (3, 14), "unknown key"),
    (ONE + "tools:\n  github: {concurrency: 1}", (3, 3), "names no object"),
    (TOOL + "{burst: 2}", (3, 14), "needs requests_per_second"),
    (TOOL + "{concurrency: 0}", (3, 27), "at least 1"),
    (TOOL + "{daily_quota: -1}", (3, 27), "at least 0"),
    (TOOL + "{requests_per_second: 0}", (3, 35), "more than 0"),
    (TOOL + "{requests_per_second: 20000}", (3, 35), "at most 10000"),
    (TOOL + "{requests_per_second: 0.001, burst: 1000}", (3, 3), "more than a day"),
    (TOOL + "{timeout: 30}\n  tool:a/c: {timeout: 0s}", (4, 23), "more than 0"),
    (TOOL + "{timeout: soon}", (3, 23), "no duration"),
    (TOOL + "{per: caller}", (3, 19), "known values"),
    (TOOL + "{concurrency: 1, concurrencyLimit: 2}", (3, 30), "says again"),
    (ONE + "principals:\n  alice: {per_hour: 1}", (3, 3), "names no principal"),
    (ONE + "principals:\n  user:a: {per_hour: 0}", (3, 22), "at least 1"),
    (ONE + "principals:\n  user:a: {per_month: 0}", (3, 23), "at least 1"),
    (COST + "usd}]", (2, 9), "says what it costs"),
    (COST + "U S, per_call: 1}]", (2, 34), "names no unit"),
    (COST + "usd, per_call: 0.0000001}]", (2, 49), "no amount"),
    (COST + "usd, per_call: -1}]", (2, 49), "no amount"),
    (COST + "usd, per_call: 1000000000}]", (2, 49), "no amount"),
    (COST + "usd, from_result: a}]", (2, 39), "needs max_per_call"),
    (COST + "usd, per_call: 1, max_per_call: 2}]", (2, 52), "needs from_result"),
    (COST + "usd, per_call: 3, from_result: a, max_per_call: 2}]", (2, 49), "more than max_per_call"),
    (COST + "usd, from_result: a..b, max_per_call: 1}]", (2, 52), "no path"),
    (ONE + "budgets: [{principal: nhi:a, unit: usd, per_day: 1}]", (2, 36), "no call costs any usd"),
    (PAID + "budgets: [{unit: usd}]", (3, 11), "nothing of how much"),
    (PAID + "budgets: [{unit: usd, per_day: 0}]", (3, 32), "more than 0"),
    (PAID + "budgets: [{unit: usd, per_day: 1, shared: true}]", (3, 35), "needs a principal"),
    (PAID + "budgets:\n  - {unit: usd, per_day: 1}\n  - {unit: usd, per_month: 2}", (5, 12), "unit has an entry"),
    (ONE + "budgets: [{unit: usd, tool: a}]", (2, 23), "unknown key"),
    (HALF + "budgets: [{unit: usd, per_day: 0.499999}]", (3, 32), "each reserves 0.5 or more"),
    (ONE + "budgets: [{concurrencyLimit: 1}]", (2, 11), '"tool" is missing'),
    (ONE + "budgets: [{tool: Git Hub}]", (2, 18), "names no tool"),
    (ONE + "budgets:\n  - {tool: a}\n  - {tool: a}", (4, 12), "has an entry already"),
    (ONE + "principals:\n  user:a: {per_hour: 1}\n  user:a: {per_hour: 2}", (4, 3), "user:a"),
]


@pytest.mark.parametrize(("text", "place", "words"), FAULTS, ids=[words for _, _, words in FAULTS])
def test_what_cannot_be_meant_is_refused_at_its_place(
    tmp_path: Path, text: str, place: tuple[int, int], words: str
) -> None:
    with pytest.raises(PolicyError) as refused:
        load(tmp_path, text)
    places = {(fault.line, fault.column): str(fault) for fault in refused.value.faults}
    assert words in places.get(place, ""), "\n".join(places.values())


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(PolicyError) as refused:
        load(tmp_path, "version: 1\ntools:\n  a: {}\n  tool:b/c: {burst: 0}\ncosts: [{unit: usd}]\n")
    assert len(refused.value.faults) == 3

"""What does budgets.yaml say, and what is refused with its place?"""

from pathlib import Path

import pytest

from sidecar.errors import PolicyError
from sidecar.limits.budgets import load_budgets
from sidecar.limits.plan import BudgetRule, Budgets, CallCost, LimitCap
from tests.tables import tables

TABLES = tables("limits/budgets")

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
    budgets = load(tmp_path, TABLES["keys"])
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
    budgets = load(tmp_path, TABLES["costs"])
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
FAULTS = TABLES["faults"]


@pytest.mark.parametrize(("text", "place", "words"), FAULTS, ids=[words for _, _, words in FAULTS])
def test_what_cannot_be_meant_is_refused_at_its_place(tmp_path: Path, text: str, place: list[int], words: str) -> None:
    with pytest.raises(PolicyError) as refused:
        load(tmp_path, text)
    places = {(fault.line, fault.column): str(fault) for fault in refused.value.faults}
    assert words in places.get(tuple(place), ""), "\n".join(places.values())


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(PolicyError) as refused:
        load(tmp_path, "version: 1\ntools:\n  a: {}\n  tool:b/c: {burst: 0}\ncosts: [{unit: usd}]\n")
    assert len(refused.value.faults) == 3

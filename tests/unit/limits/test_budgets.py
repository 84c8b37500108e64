"""What does budgets.yaml say, and what is refused with its place?"""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.errors import PolicyError
from sidecar.limits.budgets import load_budgets
from sidecar.limits.plan import Budgets, Cap, Entry

SHIPPED = Path(__file__).parents[3] / "policies" / "budgets.yaml"


def load(folder: Path, text: str) -> Budgets:
    path = folder / "budgets.yaml"
    path.write_text(text, encoding="utf-8")
    return load_budgets(path)


def test_without_the_file_nothing_is_limited(tmp_path: Path) -> None:
    assert load_budgets(tmp_path / "budgets.yaml") == Budgets()


def test_a_link_that_leads_nowhere_is_a_fault_and_lifts_no_limit_by_silence(tmp_path: Path) -> None:
    (tmp_path / "budgets.yaml").symlink_to(tmp_path / "gone.yaml")
    with pytest.raises(PolicyError, match=r"budgets\.yaml: error\[Y001\]: cannot be read"):
        load_budgets(tmp_path / "budgets.yaml")


def test_the_shipped_example_is_valid() -> None:
    assert load_budgets(SHIPPED).tools


def test_every_key_of_a_tool_becomes_a_cap(tmp_path: Path) -> None:
    budgets = load(
        tmp_path,
        """
version: 1
tools:
  "tool:github/*": {requests_per_second: 10, burst: 20, concurrency: 5, timeout: 30s, daily_quota: 5000}
  "resource:files/*": {requests_per_second: 2.5, per: principal}
""",
    )
    caps = (Cap("rate", 20, 100_000), Cap("concurrency", 5), Cap("day", 5000))
    assert budgets.tools == (
        Entry("tools", "tool:github/*", False, caps, 30.0),
        Entry("tools", "resource:files/*", True, (Cap("rate", 3, 400_000),)),
    )


def test_every_key_of_a_principal_becomes_a_cap(tmp_path: Path) -> None:
    budgets = load(
        tmp_path,
        """
version: 1
principals:
  nhi:researcher: {per_hour: 1000, per_day: 8000, concurrency: 4}
  "user:*": {per_hour: 300}
  role:interns: {per_hour: 500, shared: true}
""",
    )
    caps = (Cap("hour", 1000), Cap("day", 8000), Cap("concurrency", 4))
    assert budgets.principals == (
        Entry("principals", "nhi:researcher", True, caps),
        Entry("principals", "user:*", True, (Cap("hour", 300),)),
        Entry("principals", "role:interns", False, (Cap("hour", 500),)),
    )


SEED = """
version: 1
budgets:
  - tool: github
    rateLimit: {requestsPerSecond: 10, burstSize: 20}
    concurrencyLimit: 5
    timeout: 30s
    dailyQuota: 5000
"""
SEED_IN_TOOLS = """
version: 1
tools:
  "tool:github/*":
    rateLimit: {requestsPerSecond: 10, burstSize: 20}
    concurrencyLimit: 5
    timeout: 30s
    dailyQuota: 5000
"""
OURS = """
version: 1
tools:
  "tool:github/*": {requests_per_second: 10, burst: 20, concurrency: 5, timeout: 30s, daily_quota: 5000}
"""


@pytest.mark.parametrize("text", [SEED, SEED_IN_TOOLS])
def test_the_seeds_spelling_says_the_same(tmp_path: Path, text: str) -> None:
    assert load(tmp_path, text) == load(tmp_path, OURS)


@pytest.mark.parametrize("key", ["daily_quota", "dailyQuota"])
def test_a_daily_quota_of_0_means_unlimited(tmp_path: Path, key: str) -> None:
    budgets = load(tmp_path, f'version: 1\ntools:\n  "tool:demo/*": {{{key}: 0, concurrency: 1}}\n')
    assert budgets.tools[0].caps == (Cap("concurrency", 1),)


FAULTS = [
    ("tools: {}", (1, 1), "version"),
    ("version: 2", (1, 10), "known values"),
    ("version: 1\ntools:\n  tool:a/b: {rps: 1}", (3, 14), "unknown key"),
    ("version: 1\ntools:\n  github: {concurrency: 1}", (3, 3), "names no object"),
    ("version: 1\ntools:\n  tool:a/b: {burst: 2}", (3, 14), "needs requests_per_second"),
    ("version: 1\ntools:\n  tool:a/b: {concurrency: 0}", (3, 27), "at least 1"),
    ("version: 1\ntools:\n  tool:a/b: {daily_quota: -1}", (3, 27), "at least 0"),
    ("version: 1\ntools:\n  tool:a/b: {requests_per_second: 0}", (3, 35), "more than 0"),
    ("version: 1\ntools:\n  tool:a/b: {requests_per_second: 20000}", (3, 35), "at most 10000"),
    ("version: 1\ntools:\n  tool:a/b: {requests_per_second: 0.001, burst: 1000}", (3, 3), "more than a day"),
    ("version: 1\ntools:\n  tool:a/b: {timeout: 30}\n  tool:a/c: {timeout: 0s}", (4, 23), "more than 0"),
    ("version: 1\ntools:\n  tool:a/b: {timeout: soon}", (3, 23), "no duration"),
    ("version: 1\ntools:\n  tool:a/b: {per: caller}", (3, 19), "known values"),
    ("version: 1\ntools:\n  tool:a/b: {concurrency: 1, concurrencyLimit: 2}", (3, 30), "says again"),
    ("version: 1\nprincipals:\n  alice: {per_hour: 1}", (3, 3), "names no principal"),
    ("version: 1\nprincipals:\n  user:a: {per_hour: 0}", (3, 22), "at least 1"),
    ("version: 1\nprincipals:\n  user:a: {per_month: 5}", (3, 23), "comes with a later version"),
    ("version: 1\ncosts: [{object: tool:a/b}]", (2, 1), "comes with a later version"),
    ("version: 1\nbudgets: [{principal: nhi:a, unit: usd}]", (2, 23), "comes with a later version"),
    ("version: 1\nbudgets: [{concurrencyLimit: 1}]", (2, 11), '"tool" is missing'),
    ("version: 1\nbudgets: [{tool: Git Hub}]", (2, 18), "names no tool"),
    ("version: 1\nbudgets:\n  - {tool: a}\n  - {tool: a}", (4, 12), "has an entry already"),
    ("version: 1\nprincipals:\n  user:a: {per_hour: 1}\n  user:a: {per_hour: 2}", (4, 3), "user:a"),
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
        load(tmp_path, "version: 1\ntools:\n  a: {}\n  tool:b/c: {burst: 0}\ncosts: {}\n")
    assert len(refused.value.faults) == 3

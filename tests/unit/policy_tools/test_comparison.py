"""Comparisons in a separate process: what they find, what they refuse, and that they end."""

from pathlib import Path

import pytest

from sidecar.errors import PolicyError
from sidecar.limits import Budgets
from sidecar.policy_tools import comparison
from sidecar.policy_tools.comparison import ComparisonFailed, ComparisonOrder, ReplacedFile, compare_aside
from sidecar.policy_tools.policy_location import in_folder
from tests.unit.policy.world import NOW, chain, tool
from tests.unit.policy_tools.traffic import write_policy

READS = "p, nhi:a, tool:s/read, use, -, 10, -, allow\n"
WRITES = "p, nhi:a, tool:s/write, use, -, -, -, allow\n"


def test_a_policy_that_is_sent_is_compared_with_the_rows_that_it_had(tmp_path: Path) -> None:
    folder = write_policy(tmp_path, {"agent_to_tool": READS})
    before = in_folder(folder).load()
    (folder / "policies" / "agent_to_tool.csv").write_text(WRITES)
    order = ComparisonOrder("before", None, None, (Budgets(), Budgets()), (chain("nhi:a"), tool("s/read"), NOW))
    found = compare_aside(order, in_folder(folder).load(), before)
    rule = found["explanation"]["links"][0]["rules"][0]
    assert rule["text"] == "p, nhi:a, tool:s/read, use, -, 10, -, allow"


def test_one_file_is_replaced_in_a_copy(tmp_path: Path) -> None:
    folder = write_policy(tmp_path, {"agent_to_tool": READS})
    asked = chain("nhi:a"), tool("s/write"), NOW
    place, files = in_folder(folder), sorted(tmp_path.rglob("*"))
    order = ComparisonOrder("one", place, ReplacedFile("agent_to_tool.csv", WRITES), (Budgets(), None), asked)
    found = compare_aside(order, place.load())
    assert (found["summary"], found["is_same"]) == ("1 wider, 1 narrower, 0 unknown", False)
    assert found["explanation"]["links"][0]["rules"][0]["file"] == "policies/agent_to_tool.csv"
    assert {section["title"] for section in found["sections"]} >= {"rules added", "rules removed"}
    wrong = order._replace(file=ReplacedFile("agent_to_tool.csv", "p, nhi:a\n"))
    with pytest.raises(PolicyError) as found:
        compare_aside(wrong, place.load())
    assert [(fault.file, fault.line) for fault in found.value.faults] == [("policies/agent_to_tool.csv", 1)]
    assert sorted(tmp_path.rglob("*")) == files


def test_what_takes_too_long_or_is_too_large_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_policy(tmp_path, {"agent_to_tool": READS})
    place = in_folder(folder)
    order = ComparisonOrder("one", place, None, (Budgets(), None), None)
    source = place.load()
    monkeypatch.setattr(comparison, "DEADLINE_S", 0.0)
    with pytest.raises(ComparisonFailed, match="took longer"):
        compare_aside(order, source)
    with pytest.raises(PolicyError, match="sidecar policy diff"):
        comparison._replace(place.policies, tmp_path / "copy", ReplacedFile("x.csv", ""), most=4)

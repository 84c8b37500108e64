"""What is the answer to a call that asks several questions?"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sidecar.gateway.snapshot import Snapshot
from sidecar.vocabulary import Call, Question, RowLimit
from tests.tables import tables
from tests.unit.policy.world import NOW, chain, engine, tool

ROWS = tables("gateway/snapshot")["rows"]


def decided(tmp_path: Path, *questions: Question) -> Any:
    asked: Any = SimpleNamespace(engine=engine(tmp_path, {"agent_to_tool": ROWS}))
    return Snapshot.decide(asked, chain("nhi:a"), Call("mcp", "2026-07-28", "s", "x", questions), NOW)


def test_every_question_is_answered_and_each_rule_that_allows_is_charged_once(tmp_path: Path) -> None:
    decision = decided(tmp_path, tool("s/one"), tool("s/two"))
    assert decision.allowed
    assert set(decision.limits) == {
        RowLimit("first", "nhi:a", 5),
        RowLimit("both", "nhi:a", 7),
        RowLimit("second", "nhi:a", 3),
    }
    assert len(decision.limits) == 3
    assert decision.would_deny == ("rehearsed",)
    assert (len(decision.links), decision.until) == (2, 1893456000.0)


def test_the_first_no_is_the_answer_and_charges_nothing(tmp_path: Path) -> None:
    decision = decided(tmp_path, tool("s/one"), tool("s/three"), tool("s/four"))
    assert (decision.allowed, decision.reason, decision.limits) == (False, "denied-by-rule", ())
    assert len(decision.links) == 3

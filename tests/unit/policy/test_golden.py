"""What does an operator read when models or rows are wrong? The whole text, as it stands on the screen.

`UPDATE_GOLDEN=1 pytest tests/unit/policy` writes the answers anew; the diff is then to be read.
"""

import os
from pathlib import Path

import pytest

from sidecar.errors import PolicyError
from sidecar.policy import Engine, load_policy
from sidecar.policy.grammar import ACTIONS
from sidecar.vocabulary import Question
from tests.tables import tables
from tests.unit.policy.world import MODELS, NOW, REPOSITORY, chain, scope

TABLES = tables("policy/golden")

GOLDEN = REPOSITORY / "tests" / "golden" / "policy"
PAYMENTS = scope("teams/payments/**", ("role:payments-*",), ("tool:payments/*",), ("role:payments-*",))


def same(told: str, expected: Path) -> None:
    if os.environ.get("UPDATE_GOLDEN"):
        expected.write_text(told, encoding="utf-8")
    assert told == expected.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "models", "policies"), [("rows", MODELS, "rows"), ("models", "models/models", "models/policies")]
)
def test_every_fault_is_told_as_agreed(name: str, models: str, policies: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(GOLDEN)
    with pytest.raises(PolicyError) as error:
        load_policy(Path(models), Path(policies), scopes=[PAYMENTS])
    same(f"{error.value}\n", GOLDEN / f"{name}.txt")


CHAINS = [
    *((name,) for name in ("user:alice", "user:bob", "user:eve", "nhi:planner", "nhi:researcher", "anonymous")),
    *TABLES["chains"],
]
USING = {"tool": "tools/call", "resource": "resources/read", "prompt": "prompts/get"}


def test_the_shipped_policy_decides_as_pinned() -> None:
    """BL-102: the same table under the lowest and the newest supported pycasbin; a changed line is a change of
    meaning."""
    engine = Engine(load_policy(REPOSITORY / "models", REPOSITORY / "policies"))
    lines = []
    for names in CHAINS:
        for obj, arguments in TABLES["calls"]:
            server, _, name = obj.partition(":")[2].partition("/")
            question = Question(obj, USING[obj.partition(":")[0]], server, name, arguments)
            decision = engine.decide(chain(*names), question, NOW)
            answer = "allow" if decision.allowed else str(decision.reason)
            rules = [rule.id for link in decision.links for rule in link.rules]
            lines.append(f"{' > '.join(names)} | {obj!r} {arguments} | {answer} | {' '.join(rules)}\n")
    assert len(lines) >= 200
    same("".join(lines), GOLDEN / "decisions.txt")


def test_the_shipped_policy_has_no_warnings() -> None:
    assert (
        load_policy(REPOSITORY / "models", REPOSITORY / "policies", names=frozenset({"demo", "github"})).warnings == ()
    )


def test_every_action_that_mcp_asks_is_known() -> None:
    from sidecar.protocols.mcp.messages import METHODS, NOTIFICATIONS, SERVER_REQUESTS

    asked_otherwise = {"resources/subscribe", "resources/unsubscribe", "completion/complete"}
    assert {*METHODS, *NOTIFICATIONS, *SERVER_REQUESTS} - asked_otherwise <= ACTIONS

"""Do roles nest as far as they may, and no further?"""

from itertools import pairwise
from pathlib import Path

import pytest

from sidecar.policy.roles import RoleLinks
from tests.unit.policy.world import NOW, chain, engine, faults, tool

GRANT = "p, role:r1, tool:s/t, tools/call, -, -, -, allow\n"


def ladder(first: str, levels: int) -> str:
    """`first` in role:r<levels>, in role:r<levels-1>, … in role:r1."""
    names = [first, *(f"role:r{level}" for level in range(levels, 0, -1))]
    return "".join(f"g, {below}, {above}\n" for below, above in pairwise(names))


def test_eight_roles_deep_is_followed(tmp_path: Path) -> None:
    asked = engine(tmp_path, {"agent_to_tool": GRANT, "roles": ladder("user:a", 8)})
    decision = asked.decide(chain("user:a"), tool("s/t"), NOW)
    assert decision.allowed
    assert decision.roles == tuple(f"role:r{level}" for level in range(8, 0, -1))


SETS = "g2, tool:s/t, set:s0\n" + "".join(f"g2, set:s{i}, set:s{i + 1}\n" for i in range(8))


@pytest.mark.parametrize(
    ("rows", "code", "line"), [(ladder("user:a", 9), "P302", 2), (SETS, "P302", 2), ("g, role:x, role:x\n", "P301", 1)]
)
def test_nine_roles_or_sets_deep_or_a_role_in_itself_is_refused_once(
    tmp_path: Path, rows: str, code: str, line: int
) -> None:
    (fault,) = faults(tmp_path, {"agent_to_tool.csv": GRANT, "roles.csv": rows})
    assert (fault.code, fault.line) == (code, line)


def test_a_cycle_is_refused_and_shown(tmp_path: Path) -> None:
    rows = "g, user:a, role:x\ng, role:x, role:y\ng, role:y, role:z\ng, role:z, role:x\n"
    (fault,) = faults(tmp_path, {"agent_to_tool.csv": GRANT, "roles.csv": rows})
    assert fault.code == "P301"
    assert "role:x in role:y in role:z in role:x" in fault.message


def test_a_role_from_a_token_nests_like_any_other(tmp_path: Path) -> None:
    asked = engine(tmp_path, {"agent_to_tool": GRANT, "roles": "g, role:corp/eng, role:r1\n"})
    token = {"user:a": frozenset({"role:corp/eng"})}
    decision = asked.decide(chain("user:a", roles=token), tool("s/t"), NOW)
    assert decision.allowed
    assert decision.roles == ("role:corp/eng", "role:r1")
    assert not asked.decide(chain("user:a"), tool("s/t"), NOW).allowed


def test_a_role_from_a_token_is_its_bearers_alone(tmp_path: Path) -> None:
    rows = {"agent_to_tool": GRANT, "user_to_nhi": "p, *, nhi:bot, delegate, -, -, -, allow\n"}
    asked = engine(tmp_path, rows)
    through = chain("user:a", "nhi:bot", roles={"user:a": frozenset({"role:r1"})})
    assert not asked.decide(through, tool("s/t"), NOW).allowed
    assert asked.decide(through[:1], tool("s/t"), NOW).allowed


def test_another_callers_roles_change_nothing(tmp_path: Path) -> None:
    """BL-087: a grant of one principal never changes another's result."""
    asked = engine(tmp_path, {"agent_to_tool": GRANT, "roles": "g, user:x, role:r1\n"})
    assert asked.decide(chain("user:x"), tool("s/t"), NOW).allowed
    assert not asked.decide(chain("user:y"), tool("s/t"), NOW).allowed
    assert not asked.decide(chain("nhi:x"), tool("s/t"), NOW).allowed


def test_all_roles_of_a_principal_can_be_had(tmp_path: Path) -> None:
    asked = engine(tmp_path, {"agent_to_tool": GRANT, "roles": "g, user:a, role:x\ng, role:x, role:y\n"})
    (principal,) = chain("user:a", roles={"user:a": frozenset({"role:t"})})
    assert asked.roles_of(principal) == {"role:x", "role:y", "role:t"}


def test_the_shortest_way_is_told() -> None:
    links = RoleLinks.of([("user:a", "role:x"), ("role:x", "role:y"), ("role:y", "role:z"), ("user:a", "role:y")])
    assert links.way(("user:a",), "role:z") == ("role:y", "role:z")
    assert links.way(("user:b",), "role:z") == ()

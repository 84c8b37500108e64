"""What `policy check` says about the names and rows of Casbin models, and where it keeps silent."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sidecar.policy_tools.check import check
from sidecar.policy_tools.policy_location import PolicyLocation
from sidecar.settings.policy import CasbinSettings
from tests.unit.policy.stock.setups import ALLOW_OVERRIDE, BY_ROLE, ROLES, SAME, conf

NOW_S = 1_800_000_000.0  # 2027-01-15T08:00:00Z
ROWS = "p, alice, data1, read\np, admin, data2, write\ng, bob, admin\n"
IN_DOMAINS = conf(
    "g(r.sub, p.sub, r.dom) && r.dom == p.dom && r.act == p.act",
    request="sub, dom, obj, act",
    columns="sub, dom, act",
    roles={"g": "_, _, _"},
)
NAMES = {"subjects": {"user:*": "*"}, "objects": {"tool:*/*": {"obj": "*", "act": "*2"}}}


def told(folder: Path, model: str, rows: str, names: Mapping[str, Any], **casbin: Any) -> list[str]:
    (folder / "models").mkdir()
    (folder / "policies").mkdir()
    (folder / "models/model.conf").write_text(model)
    (folder / "policies/policy.csv").write_text(rows)
    settings = CasbinSettings.model_validate({"names": {**NAMES, **names}, **casbin})
    place = PolicyLocation(folder / "models", folder / "policies", casbin=settings)
    return [f"{fault.code}:{fault.line}:{fault.column}" for fault in check(place, now_s=NOW_S).faults]


@pytest.mark.parametrize(
    ("model", "rows", "names", "expected"),
    [
        (conf(BY_ROLE, roles=ROLES), ROWS, {}, []),
        (conf(BY_ROLE, roles=ROLES), ROWS, {"subjects": {"nhi:a": "admin", "user:*": "*"}}, []),
        (conf(BY_ROLE, roles=ROLES), ROWS, {"subjects": {"nhi:a": "alice"}}, ["P672:2:4"]),
        (conf(BY_ROLE, roles=ROLES), ROWS, {"subjects": {"user:a": "alice"}, "roles": {"role:c/*": "*"}}, []),
        (conf(BY_ROLE, roles=ROLES), ROWS, {"subjects": {"user:*": "team-*"}}, ["P672:1:4", "P672:2:4"]),
        (conf(SAME), "p, alice, data1, read\n", {"objects": {"tool:x/*": "data*"}}, ["P672:1:18"]),
        (conf(SAME), "p, a, b, c\n", {"actions": {"*": "d"}, "objects": {"tool:*": "*"}}, ["P671:0:0", "P672:1:10"]),
        (conf(f'{SAME} || r.sub == "root"'), "p, a, b, c\n", {"subjects": {"nhi:a": "root"}}, []),
        (conf("keyMatch(r.obj, p.obj)"), "p, a, /x/*, c\n", {"objects": {"tool:x/*": "/y/z"}}, []),
        (IN_DOMAINS, "p, admin, d1, read\ng, bob, admin, d1\n", {"domains": {"-": "d2"}}, ["P671:0:0", "P672:1:11"]),
        (conf("eval(p.rule) && r.obj == p.obj", columns="rule, obj"), "p, 1 > 0, a\n", {"objects": {"*": "b"}}, []),
    ],
)  # fmt: skip
def test_names_that_miss_are_told(
    model: str, rows: str, names: Mapping[str, Any], expected: list[str], tmp_path: Path
) -> None:
    assert told(tmp_path, model, rows, names) == expected


def test_roles_that_match_patterns_are_not_judged(tmp_path: Path) -> None:
    rows = "p, /book/:id, data1, read\ng, alice, /book/:id\n"
    model, names = conf(BY_ROLE, roles=ROLES), {"subjects": {"nhi:a": "/book/1"}}
    assert told(tmp_path, model, rows, names, roles={"g": {"match": "keyMatch2"}}) == []


def test_a_row_that_has_ended_is_told(tmp_path: Path) -> None:
    model = conf("r.sub == p.sub", columns="sub, expires_at", effect=ALLOW_OVERRIDE)
    rows = "p, alice, 2026-01-01T00:00:00Z\np, bob, 2027-01-20T00:00:00Z\np, carol, -\n"
    assert told(tmp_path, model, rows, {}) == ["P621:1:11", "P622:2:9"]

"""`sidecar policy explain` shows how a Casbin model was asked, and why it was not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner

from sidecar.cli import main
from tests.unit.policy.stock.setups import ALLOW_AND_DENY, ALLOW_OVERRIDE, DENY_OVERRIDE, SETUPS, conf

SETTINGS = """\
version: 1
data: data
local: [{listen: 127.0.0.1:0, principal: "nhi:planner"}]
policy:
  names:
    subjects: {"nhi:planner": alice, "user:*": "*"}
    objects: {"tool:*/*": {obj: "*", act: "*2"}}
    domains: {"acme": "d1", "-": "d1", "other": "d2"}
    roles: {"role:corp/*": "*"}
upstreams: {data1: {mcp: {url: "http://127.0.0.1:1/mcp"}}}
"""
STAFF = conf(
    "g(r.sub, p.sub, r.dom) && r.dom == p.dom && keyMatch2(r.obj, p.obj) && r.act == p.act",
    request="sub, dom, obj, act",
    columns="sub, dom, obj, act, eft",
    effect=ALLOW_AND_DENY,
    roles={"g": "_, _, _"},
)
ROWS = """\
p, admin, d1, data1, read, allow
p, staff, d1, data1, write, allow
p, staff, d1, data1, drop, deny
p, bob, d2, data1, read, allow
g, alice, staff, d1
g, staff, admin, d1
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    monkeypatch.chdir(tmp_path)

    def written(model: str, rows: str, attributes: str = "{}") -> None:
        (tmp_path / "models").mkdir()
        (tmp_path / "policies").mkdir()
        (tmp_path / "models/model.conf").write_text(model)
        (tmp_path / "policies/policy.csv").write_text(rows)
        (tmp_path / "policies/attributes.yaml").write_text(f"version: 1\nattributes: {attributes}\n")
        (tmp_path / "sidecar.yaml").write_text(SETTINGS)

    return written


def explain(*arguments: str) -> list[str]:
    """The lines about the links."""
    result = CliRunner().invoke(main, ["policy", "explain", *arguments])
    assert result.exit_code in (0, 1), result.output
    return result.output.split("\n\n")[1].splitlines()[1:]


def data(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(main, ["policy", "explain", "--json", *arguments])
    return dict(orjson.loads(result.stdout)["links"][0])


def test_an_allowed_request_has_its_values_its_row_and_its_roles(write: Callable[..., None]) -> None:
    write(STAFF, ROWS)
    asked, rule, text, roles, *_ = explain("--as", "nhi:planner", "--calls", "tool:data1/read")
    assert asked == '  models/model.conf is asked: sub "alice", dom "d1", obj "data1", act "read"'
    assert rule.startswith("  allow by rule ")
    assert rule.endswith("policies/policy.csv:1")
    assert text == "    p, admin, d1, data1, read, allow"
    assert roles == "    role: alice → staff → admin"


def test_a_denying_row_is_shown(write: Callable[..., None]) -> None:
    write(STAFF, ROWS)
    _, rule, *_ = explain("--as", "nhi:planner", "--calls", "tool:data1/drop")
    assert rule.startswith("  deny by rule ")
    assert rule.endswith("policies/policy.csv:3")


def test_the_nearest_rows_miss_one_column(write: Callable[..., None]) -> None:
    write(STAFF, ROWS)
    lines = explain("--as", "user:bob", "--calls", "tool:data1/read")
    assert lines[1] == "  nearest rows"
    assert lines[3:5] == ["      p, bob, d2, data1, read, allow", "      dom does not fit: d2"]
    assert lines[6:8] == [
        "      p, admin, d1, data1, read, allow",
        "      sub does not fit: admin  (bob does not have admin in d1)",
    ]
    assert len(lines) == 8


@pytest.mark.parametrize(
    ("caller", "calls", "why"),
    [
        (
            "user:admin",
            "tool:data1/read",
            "user:admin would be admin, which is a role of the policy, and only an entry",
        ),
        ("anonymous", "tool:data1/read", "policy.names.subjects has no entry for anonymous"),
        ("nhi:other", "tool:data1/read", "policy.names.subjects has no entry for nhi:other"),
        ("user:x/bob", "tool:data1/read", "policy.names.domains has no entry for x, the namespace of user:x/bob"),
        ("user:bob", "prompt:data1/read", "policy.names.objects has no entry for prompt:data1/read"),
    ],
)
def test_a_request_without_a_name_is_not_asked(caller: str, calls: str, why: str, write: Callable[..., None]) -> None:
    write(STAFF, ROWS)
    lines = explain("--as", caller, "--calls", calls)
    assert lines[0].startswith(f"  models/model.conf is not asked: {why}")
    assert not [line for line in lines if "near" in line]
    assert data("--as", caller, "--calls", calls)["casbin"]["unnamed"].startswith(why)


def test_a_role_of_the_token_begins_the_way(write: Callable[..., None]) -> None:
    write(STAFF, ROWS)
    lines = explain("--as", "user:eve", "--roles", "user:eve=role:corp/staff", "--calls", "tool:data1/read")
    assert "    role: eve → staff (from the token) → admin" in lines


def test_attributes_and_failures_are_told(write: Callable[..., None]) -> None:
    write(SETUPS["rules in rows"].model, SETUPS["rules in rows"].policy, '{"user:bob": {Age: 30}}')
    lines = explain("--as", "user:bob", "--calls", "tool:data1/read")
    assert lines[1:3] == ["    sub.Age = 30", "    sub.Role = not there"]
    assert explain("--as", "user:eve", "--calls", "tool:data1/read")[-1] == (
        "  the evaluation failed, and so it is denied: there is no attribute Age"
    )
    found = data("--as", "user:eve", "--calls", "tool:data1/read")["casbin"]
    assert found == {
        "model": "models/model.conf",
        "request": {"sub": "eve", "obj": "data1", "act": "read"},
        "attributes": {"sub.Age": None, "sub.Role": None},
        "unnamed": None,
        "failed": "there is no attribute Age",
        "compares": False,
    }


def test_what_no_column_decides_is_told_as_the_rest(write: Callable[..., None]) -> None:
    write(
        conf("r.obj == p.obj && r.sub.Age > 18", columns="obj", effect=ALLOW_OVERRIDE),
        "p, data1\n",
        '{"user:*": {Age: 3}}',
    )
    lines = explain("--as", "user:bob", "--calls", "tool:data1/read")
    assert lines[-2:] == ["      p, data1", "      the rest of the matcher does not hold"]


def test_the_nearest_row_of_a_long_name_is_the_most_similar_one(write: Callable[..., None]) -> None:
    name = "ab" * 110
    matcher = "r.sub == p.sub && r.obj == p.obj && r.act == p.act"
    write(conf(matcher, columns="sub, obj, act"), f"p, a, data1, read\np, c{name}, data1, read\n")
    lines = explain("--as", f"user:{name}", "--calls", "tool:data1/read")
    assert [line.strip() for line in lines if line.startswith("      p, ")] == [
        f"p, c{name}, data1, read",
        "p, a, data1, read",
    ]


def test_without_tests_of_columns_no_row_is_near(write: Callable[..., None]) -> None:
    write(conf("r.sub.Age > 18 && r.obj == p.obj", columns="obj"), "p, data2\n", '{"user:*": {Age: 3}}')
    assert explain("--as", "user:bob", "--calls", "tool:data1/read")[-1] == (
        "  rows are not compared with the request: no test of the matcher that is compiled is about one column"
    )


def test_the_way_of_an_object_through_its_roles(write: Callable[..., None]) -> None:
    write(SETUPS["resource roles"].model, SETUPS["resource roles"].policy)
    lines = explain("--as", "nhi:planner", "--calls", "tool:data2/write")
    assert lines[-2:] == ["    role: alice → group_admin", "    set: data2 → group"]


def test_a_session_opens_for_a_caller_with_a_row(write: Callable[..., None]) -> None:
    write(STAFF, ROWS)
    session = ("--calls", "nhi:data1", "--action", "initialize")
    assert data("--as", "nhi:planner", *session)["casbin"]["request"] == {"sub": "alice", "dom": "d1"}
    assert data("--as", "user:x/bob", *session)["casbin"]["unnamed"].startswith("policy.names.domains has no entry")


def test_it_is_said_who_decides_and_what_is_allowed_by_default(write: Callable[..., None], tmp_path: Path) -> None:
    model = conf(
        "[r.sub][0] == p.sub && r.obj == p.obj && r.act == p.act", columns="sub, obj, act, eft", effect=DENY_OVERRIDE
    )
    write(model, "p, alice, data1, drop, deny\n")
    settings = tmp_path / "sidecar.yaml"
    settings.write_text(SETTINGS.replace("policy:\n", "policy:\n  default: allow\n"))
    read, drop = ("--as", "nhi:planner", "--calls", "tool:data1/read"), ("--calls", "tool:data1/drop")
    said = ("  decided by pycasbin", "  allowed because no row denies it (policy.default: allow)")
    assert set(said) <= set(explain(*read))
    found = data(*read)
    assert (found["engine"], found["by_default"], found["rules"]) == ("casbin", True, [])
    found = data(*read[:2], *drop)
    assert (found["allowed"], found["by_default"], len(found["rules"])) == (False, False, 1)
    (tmp_path / "models/model.conf").write_text(model.replace("[r.sub][0]", "r.sub"))
    settings.write_text(SETTINGS.replace("policy:\n", "policy:\n  default: allow\n  engine: both\n"))
    assert "  decided by compiled rules and pycasbin, which must agree" in explain(*read)
    assert data(*read)["engine"] == "both"

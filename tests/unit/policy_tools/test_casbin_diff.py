"""`sidecar policy diff` on kinds that Casbin models decide: what changed as written, and that no answer is promised."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pytest
from click.testing import CliRunner, Result

from sidecar.cli import main
from sidecar.policy_tools.diff.casbin_rows import casbin_difference
from sidecar.policy_tools.policy_location import configured
from sidecar.vocabulary import PermissionKind
from tests.unit.policy.stock.setups import ALLOW_AND_DENY, ALLOW_OVERRIDE, BY_ROLE, PRIORITY, ROLES, SAME, SETUPS, conf
from tests.unit.policy.stock.working_folder import served, values_of

# Their rows have an order, or hold rules, or an evaluation can fail.
UNKNOWN = {
    *("priority by order", "priority by column", "priority by subject", "rules in rows", "rules in rows, looked up"),
    *("ipMatch", "conditional roles", "a second definition"),
}
MODEL = conf(BY_ROLE, roles=ROLES)
ROWS = "p, alice, data1, read\np, admin, data2, write\ng, bob, admin\n"
SETTINGS = """\
policy:
  names:
    subjects: {"nhi:planner": %s, "user:*": "*"}
    objects: {"tool:*/*": {obj: "*", act: "*2"}}
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)


def write(folder: str, model: str = MODEL, rows: str = ROWS, settings: str = SETTINGS % "alice") -> None:
    files = {"models/model.conf": model, "policies/policy.csv": rows, "sidecar.yaml": settings}
    for name, text in files.items():
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def diff(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["policy", "diff", *arguments])


def found(*arguments: str) -> dict[str, Any]:
    return dict(orjson.loads(diff(*arguments, "--json").stdout))


def test_rows_and_links_are_compared_and_answers_are_not() -> None:
    write("old")
    write("new", rows=ROWS.replace("write", "drop") + "g, carol, admin\n")
    result = diff("old", "new", "--fail-on", "wider")
    assert result.exit_code == 6
    assert result.stdout.splitlines()[:3] == [
        "old → new: 0 wider, 0 narrower, 1 unknown",
        "Also different. Casbin rows: 3",
        "NOT WORKED OUT: agent_to_tool: decided by a Casbin model; which answers change is not worked out",
    ]
    assert result.stdout.endswith(
        "\nCasbin rows\n  + p, admin, data2, drop (new/policies/policy.csv:2)\n  + g, carol, admin\n"
        "  - p, admin, data2, write (old/policies/policy.csv:2)\n"
    )
    row = {"how": "added", "kinds": ["agent_to_tool"], "row": "g, carol, admin", "file": "", "line": 0, "effect": ""}
    assert row in found("old", "new")["casbin_rows"]


@pytest.mark.parametrize(
    ("rows", "effect", "matcher", "change"),
    [
        ("p, alice, data1, read, allow\n", ALLOW_AND_DENY, BY_ROLE, "narrower"),
        ("p, alice, data1, read, deny\n", ALLOW_AND_DENY, BY_ROLE, "narrower"),
        ("p, alice, data1, read, allow\np, bob, x, y, allow\n", ALLOW_AND_DENY, BY_ROLE, "unknown"),
        ("p, alice, data1, read, allow\np, bob, x, y, deny\np, bob, x, y, allow\n", ALLOW_OVERRIDE, BY_ROLE, "unknown"),
        ("p, alice, data1, read, allow\np, bob, x, y, allow\np, bob, x, z, deny\n", ALLOW_OVERRIDE, BY_ROLE, "wider"),
        ("p, alice, data1, read, allow\n", PRIORITY, BY_ROLE, "unknown"),
        ("p, alice, data1, read, allow\n", ALLOW_AND_DENY, f"{BY_ROLE} && r.sub.Age > 1", "unknown"),
    ],
)  # fmt: skip
def test_the_direction_of_changed_rows(rows: str, effect: str, matcher: str, change: str) -> None:
    before = "p, alice, data1, read, allow\np, alice, data1, write, allow\ng, bob, admin\n"
    if change == "wider":
        before = before.replace("p, alice, data1, write, allow\n", "")
    model = conf(matcher, columns="sub, obj, act, eft", effect=effect, roles=ROLES)
    write("old", model, before)
    write("new", model, f"{rows}g, bob, admin\n")
    told = found("old", "new")
    assert [(region["change"], region["decided"]) for region in told["regions"]] == [(change, False)]
    expected = {"narrower": "but none becomes wider", "wider": "but none becomes narrower", "unknown": "not worked out"}
    assert expected[change] in told["notes"][0]
    assert diff("old", "new", "--fail-on", "wider").exit_code == (0 if change == "narrower" else 6)


def test_the_same_policy_in_another_order_is_the_same() -> None:
    write("old")
    write("new", rows="g, bob, admin\np, admin, data2, write\n# moved\np, alice, data1, read\n")
    assert diff("old", "new", "--fail-on", "any").exit_code == 0


def test_where_the_order_decides_it_is_compared() -> None:
    rows = ("p, alice, data1, read, allow\n", "p, alice, data1, read, deny\n")
    model = conf(SAME, columns="sub, obj, act, eft", effect=PRIORITY)
    write("old", model, "".join(rows))
    write("new", model, "".join(reversed(rows)))
    assert [row["row"] for row in found("old", "new")["casbin_rows"]] == ["the order of rows, which decides"]


def test_models_and_names_are_compared() -> None:
    write("old")
    write(
        "new",
        conf(SAME, columns="sub, obj, act, eft", effect=ALLOW_AND_DENY),
        settings=SETTINGS % "bob",
        rows="p, alice, data1, read, allow\n",
    )
    fields = {change["field"]: (change["old"], change["new"]) for change in found("old", "new")["models"]}
    assert fields["names.subjects.nhi:planner"] == ("alice", "bob")
    assert fields["columns"] == ("sub, obj, act", "sub, obj, act, eft")
    assert fields["roles g"] == ("_, _", "")
    assert fields.keys() == {"names.subjects.nhi:planner", "columns", "roles g", "effect", "matcher"}


def test_attributes_are_compared() -> None:
    write("old")
    write("new")
    Path("new/policies/attributes.yaml").write_text("version: 1\nattributes: {user:a: {Age: 3}}\n")
    assert found("old", "new")["notes"][1] == "attributes.yaml: the attributes of principals or objects changed"


def test_a_kind_that_becomes_casbins_is_told() -> None:
    write("old")
    Path("new/policies").mkdir(parents=True)
    Path("new/policies/agent_to_tool.csv").write_text("p, user:alice, tool:data1/read, use, -, -, -, allow\n")
    changes = found("new", "old")
    assert {"kind": "agent_to_tool", "field": "form", "old": "our own", "new": "a Casbin model"} in changes["models"]
    assert "unknown" in [region["change"] for region in changes["regions"]]


def test_a_revision_has_the_names_and_the_files_that_its_settings_name() -> None:
    settings = "policy:\n  models: {agent_to_tool: {model: casbin/m.conf, policy: [casbin/p.csv]}}\n"
    files = {"casbin/m.conf": MODEL, "casbin/p.csv": ROWS, "sidecar.yaml": settings, "policies/.keep": ""}
    for path, text in files.items():
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_text(text)
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "x"]):
        subprocess.run(["git", *arguments], check=True)
    Path("casbin/p.csv").write_text(ROWS.replace("read", "write"))
    rows = [(row["how"], row["row"], row["file"]) for row in found("HEAD", ".")["casbin_rows"]]
    assert rows == [
        ("added", "p, alice, data1, write", str(Path("casbin/p.csv").absolute())),
        ("removed", "p, alice, data1, read", "HEAD:casbin/p.csv"),
    ]


@pytest.mark.parametrize("name", [name for name, setup in SETUPS.items() if setup.policy.count("\n") > 1])
def test_no_request_contradicts_the_direction(name: str, tmp_path: Path) -> None:
    setup, drawn = SETUPS[name], Random(name)
    rows = setup.policy.splitlines(keepends=True)
    del rows[drawn.choice([at for at, row in enumerate(rows) if row.startswith("p")])]
    whole, part = served(setup, tmp_path / "a"), served(replace(setup, policy="".join(rows)), tmp_path / "b")
    old, new = (configured(one.folder / "sidecar.yaml", {}).load() for one in (whole, part))
    removed, added = (
        casbin_difference(*pair, lambda file, _: file).kinds[PermissionKind.AGENT_TO_TOOL]
        for pair in ((old, new), (new, old))
    )
    assert (removed, added) in (("narrower", "wider"), ("wider", "narrower"), ("unknown", "unknown"))
    for _ in range(60):
        request = tuple(drawn.choice(known) for known in values_of(setup))
        was, now = whole.allows(request), part.allows(request)
        assert was is now or removed in ("unknown", "wider" if now else "narrower")
    assert (removed == "unknown") is (name in UNKNOWN)

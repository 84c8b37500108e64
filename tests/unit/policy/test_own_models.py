"""What may a user's own model be, and is it compiled?"""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.errors import PolicyError, Reason
from sidecar.policy import Engine
from sidecar.policy.compiler import plan_of
from sidecar.policy.faults import Faults
from sidecar.policy.model import parse_model
from sidecar.policy.patterns import glob
from sidecar.vocabulary import PermissionKind
from tests.unit.policy.world import MODELS, NOW, chain, engine, session, source, tool, write

KINDS = ("agent_to_tool", "user_to_nhi", "nhi_to_nhi")
SHIPPED = (MODELS / "agent_to_tool.conf").read_text()


def models(folder: Path, *changes: tuple[str, str]) -> Path:
    text = SHIPPED
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return write(folder / "models", {f"{kind}.conf": text for kind in KINDS})


def asked(tmp_path: Path, rows: dict[str, str], *changes: tuple[str, str]) -> Engine:
    return engine(tmp_path / "policies", rows, models=models(tmp_path, *changes))


@pytest.mark.parametrize("kind", KINDS)
def test_the_shipped_models_are_compiled_and_indexed_wholly(kind: str) -> None:
    model = parse_model(PermissionKind(kind), kind, (MODELS / f"{kind}.conf").read_text(), Faults())
    assert model is not None
    plan = plan_of(model)
    assert [(facet.field, facet.column) for facet in plan.index] == [("sub", "sub"), ("obj", "obj")]
    assert (len(plan.checks), plan.foreign) == (1, ())  # the list of actions, remembered by action


BY_DOMAIN = (
    ("r = sub,", "r = sub, dom,"),
    ("g = _, _\n", "g = _, _, _\n"),
    ("g(r.sub, p.sub)", "g(r.sub, p.sub, r.dom)"),
)


def test_a_role_in_one_tenant_is_none_in_another(tmp_path: Path) -> None:
    """BL-087: one user has the role in each tenant, one in another than its own; no grant changes another's answer."""
    roles = "g, user:one/x, role:lead, one\ng, user:two/x, role:lead, two\ng, user:one/y, role:lead, two\n"
    rows = "p, role:lead, tool:s/t, tools/call, -, -, -, allow\n"
    tenants = asked(tmp_path, {"agent_to_tool": rows, "roles": roles}, *BY_DOMAIN)
    told = {
        name: tenants.decide(chain(name), tool("s/t"), NOW).allowed
        for name in ("user:one/x", "user:two/x", "user:one/y")
    }
    assert told == {"user:one/x": True, "user:two/x": True, "user:one/y": False}


def test_roles_nest_within_their_domain_only(tmp_path: Path) -> None:
    roles = "g, user:one/x, role:a, one\ng, role:a, role:b, one\ng, role:a, role:c, two\n"
    rows = "p, role:b, tool:s/b, tools/call, -, -, -, allow\np, role:c, tool:s/c, tools/call, -, -, -, allow\n"
    tenants = asked(tmp_path, {"agent_to_tool": rows, "roles": roles}, *BY_DOMAIN)
    assert tenants.decide(chain("user:one/x"), tool("s/b"), NOW).allowed
    assert not tenants.decide(chain("user:one/x"), tool("s/c"), NOW).allowed


def test_a_row_may_be_one_tenants(tmp_path: Path) -> None:
    changes = (
        *BY_DOMAIN,
        ("when, eft", "when, eft, dom"),
        ("globs(r.act, p.act)", "globs(r.act, p.act) && r.dom == p.dom"),
    )
    rows = "p, user:*, tool:s/t, tools/call, -, -, -, allow, one\np, *, tool:s/t, tools/call, -, -, -, allow, -\n"
    tenants = asked(tmp_path, {"agent_to_tool": rows}, *changes)
    told = {
        name: tenants.decide(chain(name), tool("s/t"), NOW).allowed for name in ("user:one/x", "user:two/x", "user:x")
    }
    assert told == {"user:one/x": True, "user:two/x": False, "user:x": True}


def test_the_first_row_decides_under_priority_and_the_revision_knows_the_order(tmp_path: Path) -> None:
    effect = ("some(where (p.eft == allow)) && !some(where (p.eft == deny))", "priority(p.eft) || deny")
    allow, deny = (f"p, user:a, tool:s/*, tools/call, -, 5, -, {eft}\n" for eft in ("allow", "deny"))
    deny = deny.replace(", 5,", ", -,")
    one = asked(tmp_path / "one", {"agent_to_tool": allow + deny}, effect)
    other = asked(tmp_path / "other", {"agent_to_tool": deny + allow}, effect)
    assert one.decide(chain("user:a"), tool("s/t"), NOW).allowed
    assert other.decide(chain("user:a"), tool("s/t"), NOW).reason is Reason.DENIED_BY_RULE
    assert one.revision != other.revision


def test_the_revision_does_not_know_the_order_of_rows_whatever_the_index_is(tmp_path: Path) -> None:
    by_subject_alone = ("(glob(r.obj, p.obj) || g2(r.obj, p.obj))", "!(glob(r.obj, p.obj))")
    rows = [f"p, user:a, tool:s/t{number}, tools/call, -, -, -, allow\n" for number in range(5)]
    one = asked(tmp_path / "one", {"agent_to_tool": "".join(rows)}, by_subject_alone)
    other = asked(tmp_path / "other", {"agent_to_tool": "".join(reversed(rows))}, by_subject_alone)
    assert one.revision == other.revision


def test_a_part_that_is_not_indexed_is_still_right_and_its_cost_is_said(tmp_path: Path) -> None:
    changes = (
        ("(who(r.sub, p.sub, p.eft) || g(r.sub, p.sub))", "!(glob(r.sub, p.sub))"),
        ("(glob(r.obj, p.obj) || g2(r.obj, p.obj))", "!(glob(r.obj, p.obj))"),
    )
    rows = "".join(f"p, user:u{n}, tool:s/t{n}, tools/call, -, -, -, allow\n" for n in range(600))
    odd = asked(tmp_path, {"agent_to_tool": rows}, *changes)
    assert odd.decide(chain("user:u1"), tool("s/t2"), NOW).allowed
    codes = [warning.code for warning in odd.warnings]
    assert codes == ["P206"]
    assert "600 rows" in odd.warnings[0].message


def test_a_very_large_model_or_a_very_deep_one_is_refused_and_not_obeyed(tmp_path: Path) -> None:
    faults = Faults()
    deep = "(" * 3000 + "r.sub == p.sub" + ")" * 3000
    text = SHIPPED.replace("globs(r.act, p.act)", f"globs(r.act, p.act) && {deep}")
    assert parse_model(PermissionKind.AGENT_TO_TOOL, "m", text, faults) is None
    assert [fault.code for fault in faults.errors] == ["P204"]


def test_rows_are_found_however_their_numbers_lie(tmp_path: Path) -> None:
    """Walked runs and searched runs, sets and patterns: against one look at each row."""
    rng = random.Random(5)
    lines = {
        f"p, {rng.choice(('role:x', 'nhi:a', 'nhi:*', '*'))}, tool:s{rng.randrange(4)}/"
        f"{rng.choice(('t', 't*', '*', 'u'))}{rng.randrange(30)}, tools/call, -, -, -, allow\n"
        for _ in range(400)
    }
    rules = source(tmp_path, {"agent_to_tool.csv": "".join(sorted(lines)), "roles.csv": "g, nhi:a, role:x\n"})
    looked_up, by_hand = Engine(rules), list(rules.rules)
    for _ in range(300):
        name, obj = rng.choice(("nhi:a", "nhi:b")), f"s{rng.randrange(4)}/t{rng.randrange(30)}"
        found = {rule.line for rule in looked_up.decide(chain(name), tool(obj), NOW).links[0].rules}
        subjects = {"nhi:a": ("role:x", "nhi:a", "nhi:*", "*"), "nhi:b": ("nhi:*", "*")}[name]
        assert found == {r.line for r in by_hand if r.subject in subjects and glob(f"tool:{obj}", r.object)}


@pytest.mark.parametrize("obj", ["tool:s/*", "tool:*", "*", "set:m", "tool:s/t", "nhi:s", "tool:*/t"])
def test_a_grant_opens_its_server_where_the_index_has_no_objects(tmp_path: Path, obj: str) -> None:
    """The matcher asks more of the object than one comparison, so it is no part of the index."""
    change = ("(glob(r.obj, p.obj) || g2(r.obj, p.obj))", "(glob(r.obj, p.obj) || g2(r.obj, p.obj) || r.act == p.obj)")
    rows = {"agent_to_tool": f"p, nhi:a, {obj}, use, -, -, -, allow\n", "roles": "g2, tool:s/t, set:m\n"}
    own = asked(tmp_path, rows, change)
    assert own.decide(chain("nhi:a"), tool("s/t"), NOW).allowed is (obj != "nhi:s")
    assert own.enter(chain("nhi:a"), session("s"), NOW).allowed
    assert own.enter(chain("nhi:a"), session("other"), NOW).allowed is (obj in ("tool:*", "*", "tool:*/t"))
    assert not own.enter(chain("nhi:b"), session("s"), NOW).allowed


@pytest.mark.parametrize("nested", ["!" * 100 + "(r.act == 'x')", "!" * 700 + "(r.act == 'x')"])
def test_a_matcher_that_is_nested_too_deeply_is_refused(tmp_path: Path, nested: str) -> None:
    """Otherwise the load, or a decision, ends with a RecursionError."""
    with pytest.raises(PolicyError) as found:
        asked(tmp_path, {}, ("&& globs(r.act, p.act)", f"&& globs(r.act, p.act) && {nested}"))
    assert {(fault.code, fault.message) for fault in found.value.faults if fault.file.endswith(".conf")} == {
        ("P204", "a matcher is nested at most 60 deep")
    }


def test_a_policy_without_casbin_models_loads_neither_casbin_nor_re2() -> None:
    code = (
        "import sys; from pathlib import Path; from sidecar.policy import Engine, load_policy\n"
        f"Engine(load_policy(Path({str(MODELS)!r}), Path({str(MODELS.with_name('policies'))!r})))\n"
        "print(*({'casbin', 're2', 'sidecar.policy.stock'} & sys.modules.keys()))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.split() == []

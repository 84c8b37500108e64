"""Is none of Casbin's traps open? Each allows, drops or matches more than its writer meant."""

import logging
from pathlib import Path

import casbin
import pytest

from sidecar.errors import PolicyError, Reason
from sidecar.policy import Engine
from sidecar.policy.link_decision import KindPolicy
from sidecar.vocabulary import PermissionKind, Question
from tests.tables import tables
from tests.unit.policy.world import MODELS, NOW, SOMETHING, chain, engine, faults, source, tool, write

TABLES = tables("policy/casbin_traps")

MODEL = (MODELS / "agent_to_tool.conf").read_text()


def model_faults(tmp_path: Path, old: str, new: str, *, rows: str = SOMETHING) -> list[str]:
    """The codes of the shipped model with one change."""
    assert old in MODEL
    models = tmp_path / "models"
    kinds = ("agent_to_tool", "user_to_nhi", "nhi_to_nhi")
    write(models, {f"{kind}.conf": MODEL for kind in kinds} | {"agent_to_tool.conf": MODEL.replace(old, new)})
    found = faults(tmp_path / "policies", {"agent_to_tool.csv": rows}, models=models)
    return [fault.code for fault in found]


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "p"])
def test_k1_an_empty_policy_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(PolicyError):
        source(tmp_path, {"agent_to_tool.csv": text})


def test_k1_a_policy_of_roles_only_is_refused(tmp_path: Path) -> None:
    assert [fault.code for fault in faults(tmp_path, {"roles.csv": "g, user:a, role:x\n"})] == ["P004"]


def test_k1_casbin_itself_still_allows_nobody_everything_when_it_is_empty() -> None:
    """Why the next test must hold: this is what asking Casbin about no rows does."""
    model = casbin.Model()
    for section, text in (("r", "sub"), ("p", "sub"), ("e", "some(where (p.eft == allow))"), ("m", "r.sub == p.sub")):
        model.add_def(section, section, text)
    assert casbin.Enforcer(model).enforce("") is True


def test_k1_a_kind_without_rows_denies_without_asking_casbin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = engine(tmp_path, {"user_to_nhi": "p, user:a, nhi:b, delegate, -, -, -, allow\n"})
    monkeypatch.setattr(casbin.Enforcer, "enforce", lambda *_: pytest.fail("Casbin was asked about no rows"))
    decision = asked.decide(chain("user:a"), tool("s/t"), NOW)
    assert decision.reason is Reason.NO_MATCHING_RULE


@pytest.mark.parametrize(
    ("subject", "obj", "action"),
    [("", "tool:s/t", "tools/call"), ("user:a", "", "tools/call"), ("user:a", "tool:s/t", ""), ("", "", "")],
)
def test_k1_empty_fields_are_denied_by_whatever_policy(tmp_path: Path, subject: str, obj: str, action: str) -> None:
    asked = engine(tmp_path, {"agent_to_tool": "p, *, *, *, -, -, -, allow\n"})
    assert not asked.decide(chain(subject), Question(obj, action, "s"), NOW).allowed
    assert not asked.may_list(chain(subject), Question(obj, action, "s"), NOW)


def test_nobody_is_denied(tmp_path: Path) -> None:
    asked = engine(tmp_path, {"agent_to_tool": "p, *, *, *, -, -, -, allow\n"})
    assert asked.decide((), tool("s/t"), NOW).reason is Reason.NO_MATCHING_RULE
    assert not asked.may_list((), tool("s/t"), NOW)
    assert not asked.enter((), tool("s/t"), NOW).allowed


@pytest.mark.parametrize("function", ["regexMatch", "keyMatch", "keyMatch2", "keyMatch5", "globMatch", "ipMatch"])
def test_k2_k3_casbins_own_matchers_are_refused(tmp_path: Path, function: str) -> None:
    assert model_faults(tmp_path, "glob(r.obj, p.obj)", f"{function}(r.obj, p.obj)") == ["P204"]


@pytest.mark.parametrize("word", ["Deny", "DENY", "denied", "true", "-", "", "allow # for now"])
def test_k4_an_effect_is_allow_or_deny_to_the_letter(tmp_path: Path, word: str) -> None:
    rows = f"p, *, tool:s/t, tools/call, -, -, -, {word}\n"
    assert [fault.code for fault in faults(tmp_path, {"agent_to_tool.csv": rows})] == ["P105"]


@pytest.mark.parametrize("effect", TABLES["effects"])
def test_k4_no_effect_that_allows_by_default(tmp_path: Path, effect: str) -> None:
    good = "some(where (p.eft == allow)) && !some(where (p.eft == deny))"
    assert model_faults(tmp_path, good, effect) == ["P203"]


def test_k4_a_deny_row_under_an_effect_that_knows_none_is_refused(tmp_path: Path) -> None:
    good = "some(where (p.eft == allow)) && !some(where (p.eft == deny))"
    rows = SOMETHING + "\np, *, tool:s/t, tools/call, -, -, -, deny\n"
    assert model_faults(tmp_path, good, "some(where (p.eft == allow))", rows=rows) == ["P115"]


@pytest.mark.parametrize("kind", ["P", "p2", "p9", "P2", "G", "q", "", "\u0440", "\ufeffp"])
def test_k5_an_unknown_row_type_is_refused(tmp_path: Path, kind: str) -> None:
    rows = f"{SOMETHING}\n{kind}, *, tool:s/t, tools/call, -, -, -, deny\n"
    (fault,) = faults(tmp_path, {"agent_to_tool.csv": rows})
    assert (fault.code, fault.line) in {("P101", 2), ("P110", 2)}


@pytest.mark.parametrize("rest", ["", ", allow, allow", ", -, -, allow, x"])
def test_k6_a_row_of_another_length_is_refused(tmp_path: Path, rest: str) -> None:
    rows = f"p, *, tool:s/t, tools/call, -, -, -{rest}\n"
    assert [fault.code for fault in faults(tmp_path, {"agent_to_tool.csv": rows})] == ["P102"]


@pytest.mark.parametrize(("field", "code"), TABLES["test_k7_what_casbins_reader_would_swallow_is_refused"])
def test_k7_what_casbins_reader_would_swallow_is_refused(tmp_path: Path, field: str, code: str) -> None:
    rows = f"p, *, tool:s/t, {field}, -, -, -, allow\n"
    assert faults(tmp_path, {"agent_to_tool.csv": rows})[0].code == code


@pytest.mark.parametrize("call", ["eval(p.when)", "eval(p.sub) == p.sub", "r.sub.eval(p.when)"])
def test_k8_eval_is_refused(tmp_path: Path, call: str) -> None:
    assert "P204" in model_faults(tmp_path, "globs(r.act, p.act)", f"globs(r.act, p.act) && {call}")


@pytest.mark.parametrize(
    "literal",
    ['r.sub == "r.x"', "r.sub == 'a!b'", "r.sub == 'a && b'", "p.sub != 1", "True", "r.sub == f'x'", "r.sub == ''"],
)
def test_k9_literals_that_casbin_rewrites_are_refused(tmp_path: Path, literal: str) -> None:
    assert "P204" in model_faults(tmp_path, "globs(r.act, p.act)", f"globs(r.act, p.act) && {literal}")


def test_k11_depth_and_cycles_are_load_errors(tmp_path: Path) -> None:
    rows = "".join(f"g, role:r{i}, role:r{i + 1}\n" for i in range(15))
    found = faults(tmp_path, {"agent_to_tool.csv": SOMETHING, "roles.csv": rows})
    assert [fault.code for fault in found] == ["P302"]


@pytest.mark.parametrize("name", ["role:admin", "admin", "set:all", "tool:s/t", "*", "user", "anonymous "])
def test_k12_nobody_can_be_called_like_a_role(tmp_path: Path, name: str) -> None:
    rows = "p, role:admin, tool:*, use, -, -, -, allow\np, *, tool:*, use, -, -, -, allow\n"
    asked = engine(tmp_path, {"agent_to_tool": rows, "roles": "g, user:root, role:admin\n"})
    assert asked.decide(chain("user:root"), tool("s/t"), NOW).allowed
    assert not asked.decide(chain(name), tool("s/t"), NOW).allowed


def test_k12_a_link_to_what_is_no_nhi_is_denied(tmp_path: Path) -> None:
    rows = {"user_to_nhi": "p, user:a, *, *, -, -, -, allow\n", "agent_to_tool": "p, *, *, *, -, -, -, allow\n"}
    asked = engine(tmp_path, rows)
    assert asked.decide(chain("user:a", "nhi:b"), tool("s/t"), NOW).allowed
    assert not asked.decide(chain("user:a", "user:b"), tool("s/t"), NOW).allowed
    assert not asked.decide(chain("user:a", "role:b"), tool("s/t"), NOW).allowed


def test_k13_domains_have_exact_names(tmp_path: Path) -> None:
    assert model_faults(tmp_path, "g = _, _\n", "g = _, _, _\n") == ["P202"]  # no domain in the request
    assert model_faults(tmp_path / "again", "g = _, _\n", "g = _, _, (_, _)\n") == ["P202"]
    models = tmp_path / "models"
    text = MODEL.replace("r = sub,", "r = sub, dom,").replace("g = _, _\n", "g = _, _, _\n")
    kinds = ("agent_to_tool", "user_to_nhi", "nhi_to_nhi")
    write(models, {f"{kind}.conf": text.replace("g(r.sub, p.sub)", "g(r.sub, p.sub, r.dom)") for kind in kinds})
    rows = {"agent_to_tool.csv": SOMETHING, "roles.csv": "g, user:a, role:x, *\n"}
    assert [fault.code for fault in faults(tmp_path / "policies", rows, models=models)] == ["P116"]


def test_k14_a_bad_policy_leaves_the_engine_that_serves_alone(tmp_path: Path) -> None:
    rows = "p, user:a, tool:s/t, tools/call, -, -, -, allow\n"
    serving = engine(tmp_path, {"agent_to_tool": rows, "roles": "g, user:a, role:x\n"})
    with pytest.raises(PolicyError):
        source(tmp_path, {"agent_to_tool.csv": rows.replace("allow", "alow"), "roles.csv": ""})
    assert serving.decide(chain("user:a"), tool("s/t"), NOW).allowed


def by_order(tmp_path: Path) -> Engine:
    """An engine whose model is not compiled."""
    models = tmp_path / "models"
    ordered = MODEL.replace("globs(r.act, p.act)", "globs(r.act, p.act) && p.sub <= r.sub")
    write(models, {f"{kind}.conf": ordered for kind in ("agent_to_tool", "user_to_nhi", "nhi_to_nhi")})
    rows = "p, user:a, tool:s/t, tools/call, -, -, -, allow\n"
    return engine(tmp_path / "policies", {"agent_to_tool": rows}, models=models)


def test_k15_a_disabled_enforcer_is_not_believed(tmp_path: Path) -> None:
    asked = by_order(tmp_path)
    assert asked.decide(chain("user:a"), tool("s/t"), NOW).allowed
    policy = asked._dockets[PermissionKind.AGENT_TO_TOOL]
    assert isinstance(policy, KindPolicy) and policy._casbin is not None
    policy._casbin._engine._enforcer.enable_enforce(False)
    assert not asked.decide(chain("user:a"), tool("s/t"), NOW).allowed
    assert not asked.decide(chain("user:b"), tool("s/t"), NOW).allowed


def test_k16_what_is_not_compiled_is_said_with_what_it_costs(tmp_path: Path) -> None:
    warnings = by_order(tmp_path).warnings
    assert [warning.code for warning in warnings] == ["P207"] * 3  # one for each model
    assert all("p_sub <= r_sub" in warning.message for warning in warnings)


def test_k17_casbin_logs_nothing_of_a_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    asked = by_order(tmp_path)
    for name in ("casbin", "casbin.enforcer", "casbin.policy", "casbin.role"):
        logging.getLogger(name).disabled = False  # as an application's logging configuration would
        caplog.set_level(logging.DEBUG, logger=name)
    asked.decide(chain("user:canary"), tool("s/canary"), NOW)
    by_order(tmp_path / "again").decide(chain("user:canary"), tool("s/canary"), NOW)
    assert "canary" not in caplog.text


@pytest.mark.parametrize(("old", "new", "code"), TABLES["test_a_model_that_would_let_too_much_through_is_refused"])
def test_a_model_that_would_let_too_much_through_is_refused(tmp_path: Path, old: str, new: str, code: str) -> None:
    assert code in model_faults(tmp_path, old, new)

"""Does pycasbin decide what it is given to decide, and does nobody get more where it fails or differs?"""

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import casbin
import pytest
from casbin.effect import Effector
from casbin.effect.default_effectors import AllowAndDenyEffector

from sidecar.errors import PolicyError, Reason
from sidecar.policy import Engine
from sidecar.policy.casbin_engine import CasbinEngine
from sidecar.policy.stock.rules import Rules
from sidecar.settings.policy import CasbinSettings
from sidecar.vocabulary import EngineName, PermissionKind
from tests.unit.policy.stock.generated import ModelDrawer
from tests.unit.policy.stock.judge import Judge, loaded, rows_of, rules_of
from tests.unit.policy.stock.setups import ALLOW_AND_DENY, BY_ROLE, DENY_OVERRIDE, ROLES, SAME, SETUPS, conf
from tests.unit.policy.stock.test_policy import decided, engine_of
from tests.unit.policy.world import AFTER, BEFORE, NOW, chain, engine, faults, source, tool

KIND = PermissionKind.AGENT_TO_TOOL
BOTH, CASBIN = CasbinSettings(engine="both"), CasbinSettings(engine="casbin")
NOT_COMPILED = conf("r.sub[0] == p.sub[0] && r.obj == p.obj && r.act == p.act")


def casbin_of(rules: Rules, rows: Sequence[Any]) -> CasbinEngine:
    holds = {name: graph.holds for name, graph in rules.roles.items()}
    return CasbinEngine(rules.model, rules.rows if rows else (), holds, reads_rows=rules.expression.reads_rows)


@pytest.mark.parametrize("name", SETUPS)
def test_a_setup_is_decided_as_by_pycasbins_own_parts(name: str) -> None:
    setup, drawn = SETUPS[name], Random(name)
    rows = rows_of(setup.policy)
    rules = rules_of(setup.model, rows, setup.options, setup.suffix)
    judge = Judge(setup.model, rows, setup.options, setup.suffix)
    ours = casbin_of(rules, rows.get(f"p{setup.suffix}", ()))
    for _ in range(100):
        request = [drawn.choice(values) for values in setup.values]
        found, compiled = ours.decide(request), rules.decide(request)
        assert found.allowed is judge.allows(request), request
        assert set(found.rows) <= set(compiled.rows) and bool(found.failed) is bool(compiled.failed), request
        if rows:
            (matching, failed), (expected, why) = ours.matching(request), rules.matching(request)
            assert (list(matching), bool(failed)) == (list(expected), bool(why)), request


def test_models_that_are_drawn_are_decided_the_same() -> None:
    drawn, allowed = Random(3), 0
    for _ in range(60):
        model = ModelDrawer(drawn).model()
        rules = loaded(model)
        if rules is None:
            continue
        ours = casbin_of(rules, model.rows[f"p{model.suffix}"])
        for _ in range(10):
            request = model.request()
            assert ours.decide(request).allowed is rules.decide(request).allowed, (model, request)
            allowed += ours.decide(request).allowed
    assert allowed > 20


CALLS = [(who, f"tool:{obj}/{act}") for who in ("user:alice", "user:bob", "user:carol", "nhi:planner", "anonymous")
         for obj in ("data1", "data2") for act in ("read", "write")]  # fmt: skip


@pytest.mark.parametrize("by", ["casbin", "both"])
def test_a_policy_answers_the_same_whoever_decides(tmp_path: Path, by: EngineName) -> None:
    rows = "p, alice, data1, read, allow\np, admin, data2, read, allow\np, bob, data2, write, deny\ng, carol, admin\n"
    model = conf(BY_ROLE, roles=ROLES, columns="sub, obj, act, eft", effect=ALLOW_AND_DENY)
    compiled, other = (engine_of(tmp_path, model, rows, engine=name) for name in ("compiled", by))
    for who, obj in CALLS:
        for roles in ((), ("role:admin",)):
            one, two = (decided(each, who, obj, roles=roles) for each in (compiled, other))
            assert (one.allowed, one.reason, one.roles) == (two.allowed, two.reason, two.roles), (who, obj, roles)
            assert [link.rules for link in one.links] == [link.rules for link in two.links]
            assert (one.engine, two.engine) == ("compiled", by)
    assert not other.differences.counts


def test_columns_of_ours_count_where_pycasbin_decides(tmp_path: Path) -> None:
    model = conf(SAME, columns="sub, obj, act, expires_at, max_calls_per_hour, when")
    rows = f"p, alice, data1, read, {AFTER}, 5, args.x == 1\np, bob, data1, read, {BEFORE}, -, -\n"
    asked = engine_of(tmp_path, model, rows, engine="casbin")
    answer = decided(asked, "user:alice", "tool:data1/read", {"x": 1}, now_s=NOW)
    assert answer.allowed and [limit.per_hour for limit in answer.limits] == [5]
    assert not decided(asked, "user:alice", "tool:data1/read", {"x": 2}, now_s=NOW).allowed
    assert decided(asked, "user:bob", "tool:data1/read", now_s=NOW).reason is Reason.EXPIRED


def test_a_model_that_is_not_compiled_decides_lists_and_opens_sessions(tmp_path: Path) -> None:
    asked = engine_of(tmp_path, NOT_COMPILED, "p, alice, data1, read\n")
    assert asked.engines[KIND] == "casbin"
    assert decided(asked, "user:alice", "tool:data1/read").allowed
    assert decided(asked, "user:anton", "tool:data1/read").engine == "casbin"
    assert not decided(asked, "user:bob", "tool:data1/read").allowed
    assert decided(asked, "user:alice", "tool:data1/read", mode="list").allowed
    assert decided(asked, "user:alice", "tool:data1/", mode="session").allowed


@pytest.mark.parametrize("by", ["compiled", "casbin", "both"])
@pytest.mark.parametrize("rest", ["", "[r.sub][0] == r.sub && "])
def test_an_attribute_is_never_a_method_of_pythons_texts(tmp_path: Path, by: EngineName, rest: str) -> None:
    """`r.sub.title` of a caller without a title is an error, and not unlike `boss`."""
    files = {
        "policies/attributes.yaml": 'version: 1\nattributes: {"user:alice": {title: x}, "user:bob": {title: boss}}\n'
    }
    for name in ("title", "granted", "attributes", "name.title", "scopes.count"):
        model = conf(f'{rest}r.sub.{name} != "boss" && r.obj == p.obj')
        asked = engine_of(tmp_path / name, model, "p, x, data1, read\n", files, engine=by)
        allowed = [decided(asked, f"user:{who}", "tool:data1/read").allowed for who in ("alice", "bob", "carol")]
        assert allowed == [name == "title", False, False]
        assert not asked.differences.counts


def test_an_error_of_pycasbin_denies_whatever_the_effect(tmp_path: Path) -> None:
    model = conf("r.sub[p.obj] == p.sub", columns="sub, obj, act, eft", effect=DENY_OVERRIDE)
    asked = engine_of(tmp_path, model, "p, alice, data1, read, deny\n", default="allow")
    assert KIND in asked.allowing and asked.engines[KIND] == "casbin"
    assert not decided(asked, "user:alice", "tool:data1/read").allowed


def test_rows_of_our_own_models_are_bounded_and_their_cost_is_said(tmp_path: Path) -> None:
    rows = "".join(f"p, user:u{n}, tool:s/t, tools/call, -, -, -, allow\n" for n in range(4))
    files = {"agent_to_tool.csv": rows, "guardrails.csv": "p, *, tool:s/x, tools/call, -, -, -, deny\n"}
    found = faults(tmp_path, files, casbin=CasbinSettings(engine="both", casbin_max_rows=3))
    assert [(fault.code, Path(fault.file).name) for fault in found] == [("P210", "agent_to_tool.conf")]
    said = [(fault.code, Path(fault.file).name) for fault in source(tmp_path, files, casbin=BOTH).warnings]
    assert said == [("P207", "guardrails.csv"), ("P207", "agent_to_tool.conf")]


def test_rows_of_a_model_that_is_not_compiled_are_bounded(tmp_path: Path) -> None:
    with pytest.raises(PolicyError) as refused:
        engine_of(tmp_path, NOT_COMPILED, "p, a, b, c\np, a, b, d\n", casbin_max_rows=1)
    assert [fault.code for fault in refused.value.faults] == ["P210"]


# --- where the two differ -------------------------------------------------------------------------------------------


def test_where_keymatch_differs_the_call_is_refused_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("casbin.util.key_match_func", lambda text, pattern: text == pattern)
    model = conf("r.sub == p.sub && keyMatch(r.obj, p.obj) && r.act == p.act")
    rows = "p, alice, data*, read\np, bob, data1, read\n"
    both, by_casbin = (engine_of(tmp_path, model, rows, engine=name) for name in ("both", "casbin"))
    for number in (1, 2):
        answer = decided(both, "user:alice", "tool:data1/read")
        assert (answer.allowed, answer.reason) == (False, Reason.CONDITION_FALSE)
        assert both.differences.counts == {KIND: number}
    assert both.differences.first[KIND].object == "tool:data1/read"
    assert decided(both, "user:bob", "tool:data1/read").allowed
    assert not decided(by_casbin, "user:alice", "tool:data1/read").allowed
    assert not by_casbin.differences.counts


@pytest.mark.parametrize("effect", [Effector.ALLOW, Effector.DENY])
def test_where_the_effect_differs_a_link_of_our_own_models_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, effect: int
) -> None:
    monkeypatch.setattr(AllowAndDenyEffector, "final_effect", lambda *_: effect)
    rows = {"agent_to_tool": "p, user:a, tool:s/t, tools/call, -, -, args.x == 1, allow\n"}
    asked, alone = engine(tmp_path, rows, casbin=BOTH), engine(tmp_path, rows, casbin=CASBIN)
    question = tool("s/t", {"x": 1 if effect == Effector.DENY else 2})
    decision = asked.decide(chain("user:a"), question, NOW)
    assert (decision.allowed, decision.reason, decision.engine) == (False, Reason.CONDITION_FALSE, "both")
    assert asked.differences.counts == {KIND: 1}
    assert alone.decide(chain("user:a"), question, NOW).allowed is (effect == Effector.ALLOW)


GUARDED = {
    "agent_to_tool": "p, *, tool:s/*, tools/call, -, -, -, allow\n",
    "guardrails": "p, *, tool:s/x, tools/call, -, -, has(args.force), deny\n",
    "roles": "g, user:a, role:r\n",
}


@pytest.mark.parametrize("by", [BOTH, CASBIN])
def test_guardrails_are_pycasbins_too(tmp_path: Path, by: CasbinSettings) -> None:
    asked = engine(tmp_path, GUARDED, casbin=by)
    assert asked.decide(chain("user:a"), tool("s/x"), NOW).allowed
    denied = asked.decide(chain("user:a"), tool("s/x", {"force": True}), NOW)
    assert denied.reason is Reason.DENIED_BY_RULE and denied.links[-1].kind is PermissionKind.GUARDRAIL
    assert set(asked.engines.values()) == {by.engine}


def test_a_row_in_shadow_decides_nothing(tmp_path: Path) -> None:
    rows = "p, user:a, tool:s/t, tools/call, -, -, -, allow\n#: shadow=true id=later\np, *, tool:*, *, -, -, -, deny\n"
    asked = engine(tmp_path, {"agent_to_tool": rows}, casbin=BOTH)
    decision = asked.decide(chain("user:a"), tool("s/t"), NOW)
    assert decision.allowed and decision.would_deny == ("later",)
    guards = "#: shadow=true id=soon\np, *, tool:*, *, -, -, -, deny\n"
    files = {"agent_to_tool": rows.partition("#:")[0], "guardrails": guards}
    asked = engine(tmp_path / "guarded", files, casbin=BOTH)
    decision = asked.decide(chain("user:a"), tool("s/t"), NOW)
    assert decision.allowed and decision.would_deny == ("soon",) and not asked.differences.counts


# --- safety ---------------------------------------------------------------------------------------------------------


def test_several_threads_get_their_own_answers(tmp_path: Path) -> None:
    rows = "".join(f"p, user:u{n}, tool:s/t{n}, tools/call, -, -, -, allow\n" for n in range(8))
    asked = engine(tmp_path, {"agent_to_tool": rows}, casbin=BOTH)

    def ask(number: int) -> bool:
        who, what = number % 8, number // 8 % 8
        return asked.decide(chain(f"user:u{who}"), tool(f"s/t{what}"), NOW).allowed is (who == what)

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(ask, range(256)))
    assert not asked.differences.counts


def test_casbin_logs_nothing_of_a_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    asked = engine_of(tmp_path, NOT_COMPILED, "p, alice, data1, read\n")
    caplog.set_level(logging.DEBUG)
    for name in ("casbin", "casbin.enforcer", "casbin.policy", "casbin.role"):
        logging.getLogger(name).disabled = False
        caplog.set_level(logging.DEBUG, logger=name)
    decided(asked, "user:canary", "tool:canary/read")
    assert "canary" not in caplog.text


def test_a_slow_pattern_is_linear_in_the_callers_text(tmp_path: Path) -> None:
    """`(a+)+b` over 64 a's would take a backtracking engine longer than anyone waits."""
    model = conf("r.sub[0] == p.sub[0] && regexMatch(r.obj, p.obj) && r.act == p.act")
    asked = engine_of(tmp_path, model, "p, alice, (a+)+b, read\n")
    assert asked.engines[KIND] == "casbin"
    assert not decided(asked, "user:alice", f"tool:{'a' * 64}/read").allowed


def test_no_name_that_is_asked_about_is_kept(tmp_path: Path) -> None:
    model = conf(f"r.sub[0] != '' && {BY_ROLE}", roles=ROLES)
    asked = engine_of(tmp_path, model, "p, admin, data1, read\ng, alice, admin\n")
    policy: Any = asked.casbin(KIND)
    enforcer: casbin.Enforcer = policy.decider.decide.__self__._enforcer
    for number in range(20):
        assert not decided(asked, f"user:u{number}", "tool:data1/read").allowed
    assert decided(asked, "user:alice", "tool:data1/read").allowed
    assert not enforcer.rm_map["g"].all_roles


def test_kinds_are_told_apart(tmp_path: Path) -> None:
    rows = {"agent_to_tool": "p, user:a, tool:s/t, tools/call, -, -, -, allow\n"}
    assert set(engine(tmp_path, rows).engines.values()) == {"compiled"}
    decision = Engine(source(tmp_path, {}, casbin=BOTH)).decide(chain("user:a"), tool("s/t"), NOW)
    assert decision.allowed and decision.engine == "both"

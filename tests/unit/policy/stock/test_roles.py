"""Roles are found as pycasbin finds them, whatever it was asked before."""

from random import Random

import pytest

from sidecar.policy.stock.functions import FUNCTIONS
from sidecar.policy.stock.pattern_roles import PatternRoles
from sidecar.policy.stock.roles import RequestCaller, RoleForm, RoleGraph, RoleOptions
from tests.unit.policy.stock.judge import Judge, Rows, rules_of
from tests.unit.policy.stock.setups import BY_ROLE, conf

_NAMES = ("a", "b", "/x", "/x/1", "/x/1/2", "/x/*", "/x/:id", "*", "r1", "r2", "/y/1")


def decided(model: str, rows: Rows, options: dict[str, dict[str, str]], *request: str) -> bool:
    """Return what both decide."""
    expected = Judge(model, rows, options).allows(request)
    assert rules_of(model, rows, options).decide(request).allowed is expected
    return expected


@pytest.mark.parametrize("function", ["keyMatch", "keyMatch2", "globMatch", "regexMatch"])
def test_names_that_match_patterns_have_the_roles_that_pycasbin_gives_them(function: str) -> None:
    drawn = Random(function)
    model = conf("g(r.sub, p.sub)", request="sub", columns="sub", roles={"g": "_, _"})
    options, held = {"g": {"match": function}}, 0
    for _ in range(12):
        links = [(drawn.choice(_NAMES), drawn.choice(_NAMES)) for _ in range(drawn.randint(1, 6))]
        for member in _NAMES[:6]:
            rows = {"p": [(drawn.choice(_NAMES),)], "g": links}
            judge = Judge(model, rows, options, forgets=True)
            assert rules_of(model, rows, options).decide([member]).allowed is judge.allows([member]), (
                links,
                rows,
                member,
            )
            held += judge.allows([member])
    assert held > 10


def test_a_decision_about_patterns_does_not_depend_on_those_before_it() -> None:
    rules = rules_of(
        conf("g(r.sub, p.sub)", request="sub", columns="sub", roles={"g": "_, _"}),
        {"p": [("a",)], "g": [("10.0.0.1", "*"), ("/x", "/x/*")]},
        {"g": {"match": "keyMatch2"}},
    )
    before = rules.decide(["/x"])
    for name in ("/x/:id", "/x/1", "a", "*"):
        rules.decide([name])
    assert rules.decide(["/x"]) == before


def test_roles_reach_as_far_as_in_pycasbin() -> None:
    links = [(f"k{at}", f"k{at + 1}") for at in range(12)]
    model = conf(BY_ROLE, roles={"g": "_, _"})
    found = [decided(model, {"p": [(f"k{at}", "d", "x")], "g": links}, {}, "k0", "d", "x") for at in range(13)]
    assert found == [True] * 10 + [False] * 3


def test_conditions_are_asked_on_the_way_alone() -> None:
    bad, good = ("0000-01-01 00:00:00", "_"), ("_", "_")  # Python knows no year 0
    model, options = conf(BY_ROLE, roles={"g": "_, _, (_, _)"}), {"g": {"condition": "timeMatch"}}
    rows: Rows = {"p": [("r1", "d", "x"), ("r2", "e", "x")], "g": [("a", "r1", *good), ("r1", "r2", *bad)]}
    assert decided(model, rows, options, "a", "d", "x")
    assert not decided(model, rows, options, "a", "e", "x")
    rows["g"] = [("a", "r1", *good), ("a", "r2", *bad)]
    assert not decided(model, rows, options, "a", "d", "x")


def test_the_last_link_between_two_names_has_the_condition() -> None:
    never, always = ("_", "2001-01-01 00:00:00"), ("_", "_")
    model, options = conf(BY_ROLE, roles={"g": "_, _, (_, _)"}), {"g": {"condition": "timeMatch"}}
    for links, expected in (((never, always), True), ((always, never), False)):
        rows: Rows = {"p": [("r1", "d", "x")], "g": [("a", "r1", *link) for link in links]}
        assert decided(model, rows, options, "a", "d", "x") is expected


def test_beside_conditional_roles_all_others_compare_names() -> None:
    model = conf("g(r.sub, p.sub) && g2(r.obj, p.obj) && r.act == p.act", roles={"g": "_, _, (_, _)", "g2": "_, _"})
    rows: Rows = {"p": [("a", "docs", "x")], "g": [], "g2": [("d1", "docs")]}
    options = {"g": {"condition": "timeMatch"}}
    assert not decided(model, rows, options, "a", "d1", "x")
    assert decided(model, rows, options, "a", "docs", "x")


def test_roles_that_a_token_grants_count_beside_those_of_rows() -> None:
    links = [("r1", "r2"), ("/x/*", "r3")]
    for options in (RoleOptions(), RoleOptions(match=FUNCTIONS["keyMatch"])):
        graph = RoleGraph(RoleForm(), links, options)
        caller = RequestCaller("a", {}, ("r1",))
        assert [graph.holds(caller, role) for role in ("a", "r1", "r2", "r3")] == [True, True, True, False]
        assert not graph.holds("a", "r2")


def test_the_way_to_a_role_is_a_shortest_one() -> None:
    links = [("a", "r1"), ("r1", "r2"), ("r2", "r3"), ("a", "r2"), ("/x/*", "/y/*"), ("b", "/x/1")]
    plain, patterns = (RoleGraph(RoleForm(), links, RoleOptions(match=one)) for one in (None, FUNCTIONS["keyMatch"]))
    for graph in (plain, patterns):
        assert graph.way("a", "r3") == ("r2", "r3")
        assert graph.way(RequestCaller("c", {}, ("r1",)), "r3") == ("r1", "r2", "r3")
        assert graph.way("a", "a") == graph.way("a", "/x/1") == ()
    assert plain.way("b", "/y/1") == ()
    assert patterns.way("b", "/y/1") == ("/x/1", "/y/*", "/y/1")


def test_a_domain_is_compared_as_text() -> None:
    graph = RoleGraph(RoleForm(by_domain=True), [("a", "r", "5")])
    assert graph.holds("a", "r", 5)  # type: ignore[arg-type]
    assert not graph.holds("a", "r", True)  # type: ignore[arg-type]


def test_many_patterns_are_looked_up_by_what_they_begin_with() -> None:
    links = [(f"/team{number}/:id", f"team{number}") for number in range(1_500)]
    roles = PatternRoles(FUNCTIONS["keyMatch2"], links)
    assert roles.holds("/team7/x", "team7")
    assert not roles.holds("/team7/x", "team70")
    assert not roles.holds("/team7/x/y", "team7")

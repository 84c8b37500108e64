"""Rules with an index decide as rules that try every row, and try few of them."""

import pickle
import random
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from sidecar.policy.stock.expression import Attributed
from sidecar.policy.stock.functions import FUNCTIONS, BadPatternError
from sidecar.policy.stock.model import StockModel, model_of
from sidecar.policy.stock.roles import RoleOptions
from sidecar.policy.stock.row_index import AlternativeIndex, CompactRows, IndexSearch, Row
from sidecar.policy.stock.rules import MAX_OPENING, MAX_OPENING_TRIED, MAX_REASONS, Rules, index_of_rules
from tests.unit.policy.stock.judge import Judge, entries_of
from tests.unit.policy.stock.setups import ALLOW_AND_DENY, ALLOW_OVERRIDE, DENY_OVERRIDE, PRIORITY, conf

ROWS, REQUESTS = 2_000, 40
NAMES = ("alice", "bob", "r1", "r2", "r3", "r4")
LINKS: Mapping[str, Sequence[Row]] = {"g": [("alice", "r1"), ("r1", "r2"), ("bob", "r3"), ("bob", "r2"), ("bob", "r4")]}
PARTS = ("/", "/a", "/ab", "/b/", "/*", "/:id", "/{id}", "/**", "a", "*", "|c", "^")
MATCHERS = (
    "r.sub == p.sub && r.obj == p.obj && r.act == p.act",
    "g(r.sub, p.sub) && keyMatch(r.obj, p.obj) && r.act == p.act",
    "g(r.sub, p.sub) && keyMatch2(r.obj, p.obj) && regexMatch(r.act, p.act)",
    "g(r.sub, p.sub) && globMatch(r.obj, p.obj)",
    "r.sub == p.sub && keyMatch3(r.obj, p.obj) || keyMatch(r.obj, p.obj) && r.act == p.act",
    'r.sub == p.sub && keyMatch5(r.obj, p.obj) || r.sub == "bob" && r.act == "get"',
    'g(r.sub, p.sub) && (r.obj == p.obj || p.obj == "*") && (r.act == p.act || "put" == p.act)',
    '(r.sub == p.sub || r.sub == "carol") && (keyMatch(r.obj, p.obj) || r.obj == p.obj && p.act == "get")',
    "regexMatch(r.obj, p.obj)",
    "g(r.sub, p.sub) && r.sub.age > 18 && r.obj == p.obj",
    "r.act == p.act && r.obj.owner == r.sub || g(r.sub, p.sub) && keyMatch4(r.obj, p.obj)",
    "r.sub != p.sub",
)
EFFECTS = (ALLOW_OVERRIDE, DENY_OVERRIDE, ALLOW_AND_DENY, PRIORITY)


def stock_model(matcher: str, effect: str = ALLOW_OVERRIDE, columns: str = "sub, obj, act, eft") -> StockModel:
    return model_of(entries_of(conf(matcher, columns=columns, effect=effect, roles={"g": "_, _"})))


def walking(model: StockModel, rows: CompactRows) -> Rules:
    """Return rules that try every row."""
    every = AlternativeIndex(array("I", range(len(rows))), (), len(rows))
    alternatives = Rules(model, [], LINKS).expression.alternatives
    return Rules(model, rows, LINKS, {}, tuple(every for _ in alternatives))


def drawn_rows(drawn: random.Random, functions: Sequence[str]) -> list[Row]:
    patterns: list[str] = []
    while len(patterns) < 150:
        pattern = "".join(drawn.choices(PARTS, k=drawn.randint(1, 4)))
        try:
            for function in functions:
                FUNCTIONS[function].compiled(pattern)
        except BadPatternError:
            continue
        patterns.append(pattern)
    return [
        (drawn.choice(NAMES), drawn.choice(patterns), drawn.choice(("get", "put")), drawn.choice(("allow", "deny")))
        for _ in range(ROWS)
    ]


def drawn_request(drawn: random.Random, rows: Sequence[Row]) -> list[Any]:
    pattern = drawn.choice(rows)[1]
    obj = pattern.replace("*", "x").replace(":id", "x").replace("{id}", "x").replace("/", drawn.choice(("/", "//")))
    obj = drawn.choice((obj, pattern))
    owner = {"owner": drawn.choice(NAMES)} if drawn.random() < 0.7 else {}
    subject = Attributed(drawn.choice((*NAMES, "carol")), {"age": drawn.choice((17, 20, 20, 20, "x"))})
    return [subject, Attributed(obj, owner), drawn.choice(("get", "put"))]


@pytest.mark.parametrize("matcher", MATCHERS)
def test_an_index_changes_no_decision(matcher: str) -> None:
    drawn = random.Random(matcher)
    rows = drawn_rows(drawn, [name for name in FUNCTIONS if f"{name}(" in matcher])
    model = stock_model(matcher, drawn.choice(EFFECTS))
    compact = CompactRows.of(rows, 4)
    index = pickle.loads(pickle.dumps(index_of_rules(model, compact)))
    rules, judge, matched = Rules(model, compact, LINKS, {}, index), walking(model, compact), 0
    for _ in range(REQUESTS):
        request = drawn_request(drawn, rows)
        assert rules.decide(request) == judge.decide(request), request
        matching = rules.matching(request)
        assert matching == judge.matching(request), request
        matched += len(matching[0])
    assert matched >= 10


def test_what_a_pattern_matches_begins_with_its_prefix() -> None:
    drawn, matched = random.Random(3), 0
    for name, function in FUNCTIONS.items():
        if not function.total:  # these are no lookups
            continue
        for _ in range(600):
            pattern = "".join(drawn.choices((*PARTS, "?", "[a]", "\\", "$", "(a)", "{a,b}"), k=drawn.randint(0, 4)))
            text = pattern.replace("*", "").replace(":id", "b").replace("{id}", "ab").replace("/", "//")
            text = drawn.choice((text, text.replace("//", "/")))
            try:
                test = function.compiled(pattern)
            except BadPatternError:
                continue
            if test(text):
                matched += 1
                assert function.form(text).startswith(function.prefix(pattern)), (name, pattern, text)
    assert matched > 300


def test_a_glob_of_everything_below_a_folder_is_that_folder_too() -> None:
    rules = Rules(stock_model("globMatch(r.obj, p.obj)"), [("", "/a/b/**", "", "allow")], {})
    for obj in ("/a/b", "//a/b", "/a/b/", "/a/b/c/d", "/a//b"):
        assert rules.decide(("", obj, "")).allowed, obj
    assert not rules.decide(("", "/a", "")).allowed


def tried(model: StockModel, rows: Sequence[Row], request: Sequence[str]) -> int:
    """Return the number of rows that are evaluated for a request."""
    rules = Rules(model, rows, LINKS)
    found = zip(rules.expression.alternatives, index_of_rules(model, rules.rows), strict=True)
    return sum(len(list(IndexSearch(*both, rules.rows, rules.roles).rows(request))) for both in found)


MANY = [(f"r{at % 50}", f"/data/{at}/*", "get", "allow") for at in range(3_000)]


@pytest.mark.parametrize("matcher", MATCHERS[:7])
def test_few_rows_are_tried(matcher: str) -> None:
    assert 1 <= tried(stock_model(matcher), MANY, ("r7", "/data/57/*", "get")) <= 3
    assert tried(stock_model(matcher), MANY, ("nobody", "/none", "put")) <= 3


def test_a_short_run_is_narrowed_down_too() -> None:
    rows = [(f"r{at}", "a", "get", "allow") for at in range(8)]
    assert tried(stock_model("g(r.sub, p.sub) && r.obj == p.obj"), rows, ("r5", "a", "get")) == 1


def test_of_a_pattern_with_many_rows_none_is_tried_if_it_does_not_match() -> None:
    model = stock_model("g(r.sub, p.sub) && keyMatch2(r.obj, p.obj)")
    rows = [("r1", "/:id", "get", "allow")] * 1_000 + [("r1", f"/:id/{at}", "get", "allow") for at in range(100)]
    assert tried(model, rows, ("r1", "/data/7", "get")) == 100
    assert tried(model, rows, ("r1", "/data", "get")) == 1_100


def test_a_caller_with_many_roles_is_found_in_rows_with_many_prefixes() -> None:
    model = stock_model("g(r.sub, p.sub) && keyMatch(r.obj, p.obj) && r.act == p.act")
    rows = [(f"r{at % 100}", "/" + "a" * (at % 90) + "*", "get", "allow") for at in range(4_000)]
    links = {"g": [("alice", f"r{at}") for at in range(40)]}
    rules, request = Rules(model, rows, links), ("alice", "/" + "a" * 60, "get")
    expected = tuple(at for at, row in enumerate(rows) if at % 100 < 40 and row[1][:-1] in request[1])
    assert rules.matching(request) == (expected, "")
    assert len(expected) > 512  # so many are merged
    assert rules.decide(request).rows == expected[:1]


def test_rows_that_fail_end_the_matching() -> None:
    rules = Rules(stock_model("r.sub.age > 18 && r.obj == p.obj"), [("", "a", "", "allow"), ("", "b", "", "allow")], {})
    assert rules.matching((Attributed("x", {"age": 20}), "b", "")) == ((1,), "")
    assert rules.matching((Attributed("x", {}), "b", "")) == ((), "there is no attribute age")
    later = Rules(stock_model('r.obj == p.obj || p.obj == "b" && r.sub.age > 1'), [*rules.rows], {})
    assert later.matching((Attributed("x", {}), "a", "")) == ((0,), "there is no attribute age")


def test_rows_are_compact_and_read_as_they_were() -> None:
    rows = [("a", "b"), ("b", "b"), ("", "a")]
    compact = CompactRows.of(rows, 2)
    assert list(compact) == rows and len(compact) == 3 and compact[1] == ("b", "b")
    assert list(compact.texts) == ["a", "b", ""]
    assert not CompactRows.of([], 2)


# --- walks ------------------------------------------------------------------------------------------------------------


def walked(matcher: str, rows: Sequence[Row], options: Mapping[str, RoleOptions] = {}) -> int:
    """The most rows that every request tries for one alternative."""
    index = index_of_rules(stock_model(matcher), CompactRows.of(rows, len(rows[0])), options)
    return max(one.walks for one in index)


@pytest.mark.parametrize(
    ("matcher", "walks"),
    [
        ("r.sub == p.sub", 0),
        ("r.sub != p.sub", 3),
        ("r.sub == p.sub || r.obj != p.obj", 3),
        ('r.sub == p.sub || r.sub == "root"', 0),
        ("regexMatch(r.obj, p.obj)", 2),
        ("regexMatch(r.obj, p.obj) && r.act == p.act", 0),
        ("r.sub.age > 18 && r.sub == p.sub", 3),
        ('r.sub == p.sub || p.sub == "b" && r.obj != p.obj', 1),
    ],
)
def test_rows_that_every_request_tries_are_counted(matcher: str, walks: int) -> None:
    rows = [("a", ".*x", "get", "allow"), ("b", "a|b", "get", "allow"), ("c", "/c.*", "get", "allow")]
    assert walked(matcher, rows) == walks


def test_a_matcher_that_reads_no_row_tries_none() -> None:
    rules = Rules(stock_model("r.sub.age > 18"), [], {})
    assert rules.decide((Attributed("x", {"age": 20}), "", "")).allowed


def test_roles_with_a_matching_function_are_not_looked_up() -> None:
    rows, options = [("/r/*", "a", "get", "allow")] * 3, {"g": RoleOptions(FUNCTIONS["keyMatch"])}
    rules = Rules(stock_model("g(r.sub, p.sub)"), rows, {"g": [("alice", "/r/1")]}, options)
    assert walked("g(r.sub, p.sub)", rows, options) == 3
    assert rules.matching(("alice", "", ""))[0] == rules.matching(("/r/2", "", ""))[0] == ()
    assert walked("g(r.sub, p.sub) && r.act == p.act", rows, options) == 0


def test_disjunctions_within_a_matcher_are_looked_up() -> None:
    model = stock_model('g(r.sub, p.sub) && (r.obj == p.obj || p.obj == "*") && (r.act == p.act || p.act == "*")')
    rows = [("r1", f"o{at}", "get", "allow") for at in range(500)] + [("r1", "*", "put", "allow")]
    rules = Rules(model, rows, LINKS)
    assert len(rules.expression.alternatives) == 4
    assert tried(model, rows, ("r1", "o7", "get")) <= 4
    assert rules.matching(("r1", "o7", "put")) == ((500,), "")
    assert rules.matching(("r1", "o7", "get")) == ((7,), "")
    unequal = stock_model('g(r.sub, p.sub) && (r.obj == p.obj || p.obj != "*")')
    assert len(Rules(unequal, rows, LINKS).expression.alternatives) == 1  # one that looks up less would not help
    many = " && ".join(f'(r.obj == p.obj || p.obj == "{at}")' for at in range(9))
    assert len(Rules(stock_model(many), rows, LINKS).expression.alternatives) == 8


@pytest.mark.parametrize("effect", EFFECTS)
def test_what_reads_no_row_is_decided_for_every_row_at_once(effect: str) -> None:
    matcher = 'r.sub == p.sub || r.sub == "root" && r.act == "get" || r.sub == "boss" && r.env == 7'
    text = conf(matcher, request="sub, obj, act, env", columns="sub, obj, act, eft", effect=effect)
    for rows in ([("x", "o", "get", "other")] * 2, [("x", "o", "get", "allow")], OPEN, [*OPEN[1:], *OPEN]):
        rules, judge = Rules(model_of(entries_of(text)), rows, {}), Judge(text, {"p": rows}, {})
        for request in (
            ("root", "get", 1),
            ("root", "put", 1),
            ("x", "get", 1),
            ("boss", "get", 7),
            ("boss", "get", 8),
        ):
            subject, act, env = request
            assert rules.decide((subject, "o", act, env)).allowed == judge.allows((subject, "o", act, env)), request
    assert rules.decide(("root", "o", "get", 1)) == rules.decide(("root", "a", "get", 2))


def test_a_decision_names_some_of_many_rows() -> None:
    rows = [("a", "o", "get", "allow")] * 300
    decision = Rules(stock_model(MATCHERS[0], ALLOW_AND_DENY), rows, {}).decide(("a", "o", "get"))
    assert decision.allowed and decision.rows == tuple(range(MAX_REASONS))
    denied = Rules(stock_model(MATCHERS[0], ALLOW_AND_DENY), [*rows, ("a", "o", "get", "deny")], {})
    assert denied.decide(("a", "o", "get")).rows == (300,)


# --- opening ----------------------------------------------------------------------------------------------------------

OPEN = [
    ("alice", "a", "get", "deny"),
    ("r2", "b", "put", "allow"),
    ("bob", "c", "get", "allow"),
    ("alice", "d", "get", "allow"),
]


def test_a_subject_opens_by_its_allowing_rows_whatever_the_object() -> None:
    for matcher in MATCHERS[:2]:
        rules = Rules(stock_model(matcher), OPEN, LINKS)
        by_role = (1,) if "g(" in matcher else ()
        assert rules.opening(("alice", "none", "none")) == (*by_role, 3)
        assert rules.opening(("bob", "none", "none")) == (*by_role, 2)
        assert rules.opening(("carol", "c", "get")) == ()


def test_a_condition_of_the_subject_alone_counts_and_one_of_the_action_does_not() -> None:
    root = Rules(stock_model('r.sub == p.sub || r.sub == "root"'), OPEN, LINKS)
    assert root.opening(("root", "", "")) == (1, 2, 3)
    assert root.opening(("carol", "", "")) == ()
    put = Rules(stock_model('r.sub == p.sub && r.act == "put"'), OPEN, LINKS)
    assert put.opening(("bob", "", "get")) == (2,)


def test_a_row_for_every_subject_opens_for_each() -> None:
    rules = Rules(stock_model('(g(r.sub, p.sub) || p.sub == "*") && r.obj == p.obj'), OPEN, LINKS)
    assert rules.opening(("carol", "", "")) == ()
    rules = Rules(rules.model, [*OPEN, ("*", "x", "get", "allow")], LINKS)
    for_all, *_ = (one for one in index_of_rules(rules.model, rules.rows) if len(one.rows) < len(rules.rows))
    assert list(for_all.rows) == [4]  # an index of these rows alone
    assert rules.opening(("carol", "", "")) == (4,)
    assert rules.opening(("bob", "", "")) == (1, 2, 4)


def test_without_a_test_of_the_subject_any_allowing_row_opens() -> None:
    assert Rules(stock_model("r.obj == p.obj"), OPEN, {}).opening(("carol", "", "")) == (1, 2, 3)
    assert Rules(stock_model("r.obj == p.obj"), OPEN[:1], {}).opening(("carol", "", "")) == ()
    without_effects = stock_model("r.sub == p.sub", columns="sub, obj, act")
    assert Rules(without_effects, [row[:3] for row in OPEN], {}).opening(("alice", "", "")) == (0, 3)


def test_opening_is_bounded() -> None:
    rows = [("a", f"o{at}", "get", "allow") for at in range(20)]
    rules = Rules(stock_model(MATCHERS[0]), rows, {})
    assert rules.opening(("a", "", "")) == tuple(range(MAX_OPENING))
    denials = [("a", "o", "get", "deny")] * MAX_OPENING_TRIED
    assert Rules(stock_model(MATCHERS[0]), [*denials[1:], *rows], {}).opening(("a", "", "")) == (len(denials) - 1,)
    assert Rules(stock_model(MATCHERS[0]), [*denials, *rows], {}).opening(("a", "", "")) == ()

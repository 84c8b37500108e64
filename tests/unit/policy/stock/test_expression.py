"""The language of Casbin matchers: what is compiled, what is refused and where, and what bounds it."""

import pytest

from sidecar.policy.stock.compiler import read_expression, uncompiled_rule
from sidecar.policy.stock.expression import (
    MAX_DEPTH,
    MAX_EXPRESSION_CHARS,
    Attributed,
    BadExpressionError,
    Definitions,
    EvaluationError,
    Expression,
)
from sidecar.policy.stock.functions import MAX_PATTERN_CHARS

NAMES = Definitions(("sub", "obj", "act", "ctx"), ("sub", "obj", "act", "expires_at", "when", "eft"), {"g": 2})


def read(text: str) -> Expression:
    return read_expression(text, NAMES, {"g": lambda member, role: member == role})


def value_of(
    text: str, *request: object, row: tuple[str, ...] = ("alice", "/x/:id", "read", "-", "-", "allow")
) -> bool:
    run = read(text).run
    assert run is not None
    return bool(run([*request, *("alice", "/x/1", "read", "")][: len(NAMES.request)], row))


def fault_of(text: str, *, rule: bool = False) -> BadExpressionError:
    with pytest.raises(BadExpressionError) as caught:
        uncompiled_rule(text, NAMES) if rule else read(text)
    return caught.value


@pytest.mark.parametrize(
    ("matcher", "expected"),
    [
        ('keyGet(r.obj, "/x/*") == "1"', True),
        ('keyGet2(r.obj, p.obj, "id") == "1"', True),
        ('keyGet2(r.obj, p.obj, "other") == ""', True),
        ('keyGet3(r.obj, "/{area}/{id}", "area") == "x"', True),
        ('who(r.sub, "*", p.eft) && glob(r.obj, "/x/*") && globs(r.act, "write|read")', True),
        ('who("anonymous", "*", p.eft)', False),
        ('r.obj.startswith("/x") && r.act.upper() == "READ"', True),
        ('(r.act if r.sub == "alice" else r.obj) == "read"', True),
        ("r.ctx != None", True),
        ('timeMatch("_", "9999-12-30 00:00:00")', True),
        ('timeMatch("_", "2001-01-01 00:00:00")', False),
    ],
)
def test_a_matcher_is_compiled(matcher: str, expected: bool) -> None:
    assert value_of(matcher) is expected


@pytest.mark.parametrize(
    ("matcher", "is_total"),
    [
        ('keyGet2(r.obj, p.obj, "id") == p.act && keyMatch(r.obj, p.obj)', True),
        ("who(r.sub, p.sub, p.eft) && globs(r.act, p.act) && globMatch(r.obj, p.obj)", True),
        ("keyMatch2(p.obj, r.obj)", False),
        ("ipMatch(r.sub, p.sub)", False),
        ("r.obj.startswith(p.obj)", True),
        ("r.ctx.startswith(p.obj)", False),
        ("timeMatch(p.expires_at, p.when)", False),
    ],
)
def test_a_matcher_is_total_if_it_cannot_fail(matcher: str, is_total: bool) -> None:
    assert read(matcher).total is is_total


def test_patterns_in_columns_are_named_so_that_they_are_checked_when_rows_are_loaded() -> None:
    matcher = 'keyGet2(r.obj, p.obj, "id") == r.sub && regexMatch(r.act, p.act) && keyMatch2(r.obj, p.obj)'
    assert read(matcher).patterns == (("keyGet2", 1), ("regexMatch", 2), ("keyMatch2", 1))


def test_live_and_holds_beside_a_matcher_are_left_out_of_it() -> None:
    beside = "live(p.expires_at, r.ctx) && holds(p.when, p.eft, r.ctx)"
    assert value_of(f"(r.sub == p.sub && {beside}) && r.act == p.act")
    assert not value_of(f"r.sub == p.obj && {beside}")
    assert value_of(beside)
    assert len(read(f"r.sub == p.sub && {beside}").alternatives[0].facets) == 1


@pytest.mark.parametrize(
    ("matcher", "token", "said"),
    [
        ("r.sub == p.sub || live(p.expires_at, r.ctx)", "live", "is next to the rest"),
        ("!holds(p.when, p.eft, r.ctx)", "holds", "is next to the rest"),
        ("r.sub == p.sub && live(p.when, r.ctx)", "live", "takes p.expires_at, r.ctx"),
        ("live(p.expires_at, r.ctx) && r.ctx == p.sub", "r.ctx", "of live and holds alone"),
        ("live(p.expires_at, r.ctx) && r.ctx.age > 3", "r.ctx", "of live and holds alone"),
    ],
)
def test_live_and_holds_stand_beside_a_matcher_alone(matcher: str, token: str, said: str) -> None:
    fault = fault_of(matcher)
    assert fault.token == token
    assert said in fault.message


@pytest.mark.parametrize(
    ("matcher", "token", "hint"),
    [
        ("r.sbu == p.sub", "r.sbu", 'did you mean "r.sub"?'),
        ("r_sbu == p.sub", "r_sbu", 'did you mean "r.sub"?'),
        ("r.sub == p.object", "p.object", 'did you mean "p.obj"?'),
        ("keyMatch9(r.sub, p.sub)", "keyMatch9", 'did you mean "keyMatch'),
        ("keymatch(r.sub, p.sub)", "keymatch", 'did you mean "keyMatch"?'),
        ("g2(r.sub, p.sub)", "g2", 'did you mean "g"?'),
        ("g(r.sub)", "g", ""),
        ("keyGet2(r.sub, p.sub)", "keyGet2", ""),
        ("keyMatch2(r.sub, p.sub, p.obj)", "keyMatch2", ""),
        ("r.sub == p.sub && eval(p.when )", "eval", ""),
        ("eval(r.sub)", "eval", ""),
        ("r.sub.format(p.sub)", "format", ""),
        ("r.sub.startswth(p.sub)", "startswth", 'did you mean "startswith"?'),
        ("r.sub.startswith()", "startswith", ""),
        ('regexMatch(r.sub, "(a")', "(a", ""),
        ('regexMatch(r.sub, "(a)\\\\1")', "", ""),
        ('keyGet2(r.sub, "/(x)/:a", "a") == ""', "/(x)/:a", ""),
        ("sub == p.sub", "sub", ""),
        ("r.sub ==== p.sub", "=", "check the brackets and operators"),
        ("r.sub == p.sub &&", "", "check the brackets and operators"),
        ("", "", "check the brackets and operators"),
        ("(r.sub == p.sub", "(", "check the brackets and operators"),
    ],
)
def test_what_is_wrong_is_pointed_at(matcher: str, token: str, hint: str) -> None:
    fault = fault_of(matcher)
    assert fault.token == token
    assert token in matcher
    assert hint in fault.hint
    assert fault.message


@pytest.mark.parametrize(
    "rule",
    ["eval(p.when)", 'r.sub == "a" # b', 'r.sub == "a") || (r.act == "b"', "", "r.age > 3", "2 ** r.ctx.age > 1"],
)
def test_a_rule_is_an_expression_of_its_own(rule: str) -> None:
    assert fault_of(rule, rule=True).message
    run = read("eval(p.when)").run
    assert run is not None
    with pytest.raises(EvaluationError):
        run(("a", "/x", "b", ""), ("", "", "", "", rule, ""))


HOSTILE = {
    "long": " || ".join(['r.sub == "a"'] * 4_000),
    "a long list": f"r.sub in ({', '.join(['1'] * 20_000)})",
    "brackets": "(" * 250 + "r.sub == r.obj" + ")" * 250,
    "more brackets": "(" * 15_000,
    "lists": "[" * 100 + "]" * 100 + " == r.sub",
    "negations": "!" * 9_000 + "r.sub",
    "signs": "-" * 9_000 + "1 == r.ctx",
    "sums": "r.ctx" + " + r.ctx" * 1_000 + " > 1",
    "attributes": "r.ctx" + ".a" * 9_000 + " == 1",
    "a power": "10 ** 10 ** 10 > r.ctx",
    "a shift": "1 << 10000 << 10000 > r.ctx",
    "a long number": "9" * 5_000 + " > r.ctx",
    "a format": '"%1000000000d" % 1 == r.sub',
    "a formatted text": "f'{1:1000000000}' == r.sub",
    "a format of the request": "r.act % 1 == r.sub",
    "a format in what only pycasbin evaluates": "r.sub[0] == r.ctx.word % 1",
    "a method that pads": "r.sub.zfill(1000000000) == r.sub",
    "a loop": "[a for a in r.sub for b in r.sub] == []",
    "a function of its own": "(lambda: r.sub)() == 1",
    "a pattern": f'regexMatch(r.sub, "{"a" * (MAX_PATTERN_CHARS + 1)}")',
    "a pattern that repeats": 'regexMatch(r.sub, "((a{500}){500}){500}")',
    "braces that multiply": f'globMatch(r.sub, "{"{a,b}" * 20}")',
    "braces that count": 'globMatch(r.sub, "{1..100000000}")',
    "a zero": "r.sub == 'a\0'",
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_an_expression_that_could_take_long_is_refused_when_it_is_loaded(name: str) -> None:
    assert len(str(fault_of(HOSTILE[name]))) < 400


@pytest.mark.parametrize(
    "matcher",
    [
        '"a" * 10000000000 == r.sub',
        '10000000000 * "a" == r.sub',
        'r.ctx.word % "x" == r.sub',
        "r.ctx.number * r.ctx.number * r.ctx.number > 1",
        '"a" * 99999 + r.sub * 99999 == ""',
        '[1] * 10000000000 == r.sub',
        "regexMatch(p.act, r.obj)",
        "globMatch(p.act, r.obj)",
    ],
)  # fmt: skip
def test_a_value_that_grows_is_refused_when_it_is_computed(matcher: str) -> None:
    run = read(matcher).run
    assert run is not None
    context = Attributed("", {"word": "%9999999999d", "number": 2**4096})
    with pytest.raises(EvaluationError):
        run(("alice", "{a,b}" * 20 + "(" * 200, "read", context), ("alice", "x", "read", "-", "-", "allow"))


@pytest.mark.parametrize(
    "matcher",
    ['r.sub[0] == "a"', 'r.sub in {"a", "b"}', "r.ctx.level & 1 == 1", "r.sub is p.sub", "p.obj[1:] == r.obj"],
)
def test_what_only_pycasbin_evaluates_is_told_and_checked(matcher: str) -> None:
    expression = read(f"{matcher} && keyMatch2(r.obj, p.obj) && eval(p.when)")
    assert expression.foreign
    assert expression.run is None
    assert expression.patterns == (("keyMatch2", 1),)
    assert expression.rules == (4,)
    assert expression.reads_rows
    assert uncompiled_rule(matcher, NAMES) == expression.foreign
    assert fault_of(f"{matcher} && keyMatch9(r.obj, p.obj)").token == "keyMatch9"


def test_what_is_large_but_bounded_is_compiled() -> None:
    names = ", ".join(f'"user{number}"' for number in range(1_500))
    assert value_of(f"r.sub in ({names})", "user1499")
    assert len(f"r.sub in ({names})") < MAX_EXPRESSION_CHARS
    nested = "(" * 50 + "r.sub == p.sub" + " && r.act == p.act)" * 50
    assert value_of(nested)
    assert value_of("!" * (MAX_DEPTH // 2) + "(r.sub == p.sub)") in (True, False)


def test_many_patterns_that_requests_give_take_little_room_and_time() -> None:
    run = read("regexMatch(p.act, r.obj)").run
    assert run is not None
    row = ("", "", "a" * 5_000, "", "", "")
    for number in range(300):
        assert run(("", f"(a+)+b{number}|a", "", ""), row)
    assert not run(("", "(a+)+(a+)+(a+)+$b", "", ""), row)


def test_values_of_any_type_are_refused_by_functions_of_texts() -> None:
    run = read("keyMatch2(r.ctx.level, p.obj) || r.sub == p.sub").run
    assert run is not None
    with pytest.raises(EvaluationError):
        run(("alice", "", "", Attributed("", {"level": 5})), ("alice", "/x", "", "", "", ""))
    assert value_of('keyMatch(r.ctx.level, "5") || r.sub == p.sub', "alice", "", "", Attributed("", {"level": 5}))

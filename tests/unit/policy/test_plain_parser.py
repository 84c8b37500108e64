"""Does the parser of plain conditions read a text as CEL does, and leave all others to it?

`SIDECAR_CONDITIONS=1000000 pytest …` compares a million texts.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from sidecar.policy.conditions import LateProgram
from sidecar.policy.grammar import Wrong
from sidecar.policy.plain_conditions import plain_condition
from sidecar.policy.plain_parser import parsed
from sidecar.policy.syntax import CALL, CONST, LIST, SELECT, WireMessage, expression_of, syntax_of
from tests.unit.policy.test_plain_conditions import EVALUATIONS, LANGUAGE, scene_of, written

_PIECES = (
    *("args", "args.a", "now", "now.a", "principal", "call.server", "chain", "has(args.a)", "has(args)", "has(now)"),
    *("has(args['a'])", "timestamp('2027-01-15T08:00:00Z')", "timestamp(args.a)", "'a'", '"b"', "''", '"""x"""'),
    *("1", "-1", "1.5", "-0.0", "00", "01", "1.", "1u", "1e3", "0x1", "null", "true", "[]", "['a']", "[args.a]"),
    *("&&", "||", "!", "==", "!=", "<", ">=", "in", "(", ")", "[", "]", ",", ".", ".a", "?", ":", "+", "-", "%", "//x"),
    *(".startsWith('a')", ".contains(args.b)", ".startsWith", ".size()", "if", "args.if", "args.in", "has", "args.has"),
    *("size(args.a)", "args.a[0]", "principal.roles", "has_role(principal, 'a')", "\t", "é", "args . a"),
    *("r'a'", "b'a'", "_x", "args [ 'x' ]", "{'a': 1}", "args._x", "'a\\n'"),
)
_LEAVES = (
    *("args.a", "args['x-y']", "has(args.a.b)", "args.a == 1", "'x' in args.l", "args.t.endsWith('q')"),
    *("now > timestamp('2027-01-15T08:00:00Z')", "args.a in ['p', 2]", "principal.name != origin.name"),
)


def _joined(random: Random, depth: int = 0) -> str:
    """Long chains of `&&` and `||`, which CEL balances."""
    match random.randrange(8) if depth < 4 else 0:
        case 1 | 2:
            return random.choice((" && ", " || ")).join(
                _joined(random, depth + 1) for _ in range(random.randrange(2, 7))
            )
        case 3:
            return f"!{_joined(random, depth + 1)}"
        case 4:
            return f"({_joined(random, depth + 1)})"
        case 5:
            return f"{_joined(random, depth + 1)}{random.choice((' == ', ' < ', ' in '))}{_joined(random, depth + 1)}"
    return random.choice(_LEAVES)


def _text(random: Random) -> str:
    match random.randrange(4):
        case 0:
            return written(random)
        case 1:
            return _joined(random)
        case 2:
            return random.choice(("", " ")).join(random.choices(_PIECES, k=random.randrange(1, 8)))
    letters = list(random.choice((written, _joined))(random))
    for _ in range(random.randrange(1, 3)):
        at = random.randrange(len(letters))
        letters[at] = random.choice(("", letters[at] + random.choice("ab.1'\"()[]!&|=<> ,-_\\é")))
    return "".join(letters)


def _tree(expr: WireMessage) -> Any:
    """The tree without ids."""
    select, call = expr.one(SELECT), expr.one(CALL)
    return (
        *(expr.one(CONST), expr.one(3).keys(), expr.one(4), select.text(2), select.number(3), call.text(2)),
        *([_tree(one) for one in (*select.all(1), *call.all(1), *call.all(3), *expr.one(LIST).all(1))],),
        *(select.keys(), call.keys(), expr.keys()),
    )


def test_what_is_parsed_here_is_what_cel_parses() -> None:
    """Trees, places in the text, and that CEL accepts the text at all."""
    random, compared = Random(EVALUATIONS), 0
    for _ in range(EVALUATIONS):
        ours = parsed(text := _text(random))
        if ours is None or plain_condition(ours) is None:
            continue
        theirs = LANGUAGE.environment.compile(text).serialize()
        assert _tree(expression_of(ours)) == _tree(expression_of(theirs)), text
        assert syntax_of(ours) == syntax_of(theirs), text
        compared += 1
    assert compared > EVALUATIONS / 10


@pytest.mark.parametrize("text", ["(" * 40 + "args.a" + ")" * 40, "", "args.a == 'é'", "args.a && "])
def test_other_texts_are_left_to_cel(text: str) -> None:
    assert parsed(text) is None


@pytest.mark.parametrize("text", [f"args{'.a' * 100} == 'x'", f"{'!(' * 32}args.a{')' * 32}", f"args{'.a' * 2_000}"])
def test_a_condition_that_cel_cannot_nest_is_a_fault_of_the_policy(text: str) -> None:
    """Otherwise the rule fails only when an input is not plain, or ends the load with a RecursionError."""
    with pytest.raises(Wrong, match="does not compile"):
        LANGUAGE.compile(text)


def test_cel_is_asked_where_an_input_is_not_plain() -> None:
    condition = LANGUAGE.compile("args.a == 'x' || args.b.startsWith('é')")
    late = LANGUAGE.compile("args.a != 'x'")
    assert not isinstance(condition.program, LateProgram) and isinstance(late.program, LateProgram)
    assert [late.run(scene_of({"a": value}))[0] for value in ("y", "é", "x")] == ["true", "true", "false"]

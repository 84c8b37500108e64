"""Do plain conditions, which run without CEL's runtime, give what CEL gives?

`SIDECAR_CONDITIONS=1000000 pytest …` compares a million evaluations.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from dataclasses import replace
from itertools import accumulate
from random import Random
from typing import Any

from sidecar.policy.conditions import Condition, ConditionContext, Language
from sidecar.vocabulary import Principal, Question
from tests.tables import tables
from tests.unit.policy.world import NOW

TABLES = tables("policy/plain_conditions")

EVALUATIONS = int(os.environ.get("SIDECAR_CONDITIONS", "5000"))
PER_CONDITION = 50
LANGUAGE = Language()

CHAIN = (
    Principal("user:alice", roles=frozenset({"role:oncall"}), scopes=frozenset({"read", "write"})),
    Principal("nhi:planner", scopes=frozenset({"read"})),
)
_TEXTS = (*TABLES["texts"], "\ud800")
_NUMBERS = (
    *(0, 1, -1, 50, 20.0, 0.0, -0.0, 1.5, -1.5, 1e300, math.inf, -math.inf, math.nan),
    *(2**53 - 1, 2**53, 2**53 + 1, -(2**53), -(2**53) - 1, 2.0**53, float(2**53 + 2)),
    *(2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2.0**63, 2**64 - 1, 2**64, 2**70, -(2**70)),
)
_SCALARS = (*_TEXTS, *_NUMBERS, None, True, False)
_CONSTANTS = (
    *("null", "true", "false", "''", "'a'", "'acme/'", "'acme/site'", "'read'", "'é'", r"'a\0'", "'role:oncall'"),
    *("0", "1", "-1", "50", "1.5", "-1.5", "0.0", "-0.0", "1e300", "9007199254740992", "9007199254740993"),
    *("-9007199254740993", "9223372036854775807", "18446744073709551615u", "1u", "9007199254740992.0", "b'a'"),
)
_INPUTS = (
    *("args.a", "args.b", "args.c", "args['d-e']", "args.o.x", "args.o.y", "args.o.p.q"),
    *("principal.name", "principal.id", "principal.kind", "origin.id"),
)
_FIELDS = (*(name for name in _INPUTS if "'" not in name), "args.l", "args.o", "args.o.l")
_TESTS = tuple(f"has({name})" for name in _FIELDS)
_LISTS = ("args.l", "args.o.l", "principal.scopes", "principal.roles", "origin.scopes", "origin.roles", "args.a")
_TIMES = TABLES["times"]
_KEYS = ("a", "x", "text", "é", "", "q" * 300)
_NESTED = list(accumulate(range(70), lambda inner, _: [inner], initial=1))


def written(random: Random, depth: int = 0) -> str:
    """A random condition, most often a plain one."""
    one, two = (random.choice(_INPUTS if random.random() < 0.9 else _TESTS) for _ in range(2))
    constant = random.choice(_CONSTANTS)
    kind = random.randrange(16) if depth < 3 else random.randrange(4, 16)
    match kind:
        case 0 | 1:
            return f"({written(random, depth + 1)} && {written(random, depth + 1)})"
        case 2:
            return f"({written(random, depth + 1)} || {written(random, depth + 1)})"
        case 3:
            return f"!({written(random, depth + 1)})"
        case 4:
            return f"{one}.{random.choice(('startsWith', 'endsWith', 'contains'))}({random.choice(_CONSTANTS[3:9])})"
        case 5:
            return f"has({random.choice(_FIELDS)})"
        case 6:
            return f"now {_operator(random)} timestamp('{random.choice(_TIMES)}')"
        case 7:
            constants = random.choices(_CONSTANTS, k=random.randrange(4))
            return f"{one} in [{', '.join(constants)}]"
        case 8:
            return f"{random.choice((constant, one))} in {random.choice(_LISTS)}"
        case 9:
            return one
        case 10:
            return f"{one} {_operator(random)} {two}"
        case 11:
            return f"{constant} {_operator(random)} {one}"
        case 12 | 13:
            sized = random.choice((*_INPUTS, *_LISTS, *_FIELDS[-3:]))
            sides = [random.choice((f"size({sized})", f"{sized}.size()")), random.choice((*"01234", constant))]
            return f" {_operator(random)} ".join(random.sample(sides, 2))
    return f"{one} {_operator(random)} {constant}"


def _operator(random: Random) -> str:
    return random.choice(("==", "!=", "<", "<=", ">", ">="))


def _arguments(random: Random) -> dict[str, Any]:
    """Arguments of which each may be absent, or of any type."""
    keys = [key for key in ("a", "b", "c", "d-e", "l", "o") if random.random() < 0.85]
    return {key: _argument(random, key) for key in keys}


def _argument(random: Random, key: str) -> Any:
    strange = random.random()
    if strange < 0.02:
        return random.choice(({}, [], {"x": 1}, [1], [[]], object(), b"a", "x" * 70_000, [1] * 257, {"a\0": 1}))
    if strange < 0.06:
        return random.choice((_nested(random), _NESTED[random.randrange(70)]))
    if key in ("l", "o") and strange > 0.1:
        if key == "l":
            return random.choices(
                _SCALARS if strange < 0.3 else ("a", "read", 1, 1.5, True, None), k=random.randrange(5)
            )
        inner = [key for key in ("x", "y", "l", "p") if random.random() < 0.8]
        return {key: {"q": random.choice(_SCALARS)} if key == "p" else _argument(random, key) for key in inner}
    return random.choice(_SCALARS)


def _nested(random: Random) -> Any:
    values = [random.choice(_SCALARS) if random.random() < 0.7 else _nested(random) for _ in range(random.randrange(4))]
    return values if random.random() < 0.5 else dict(zip(random.sample(_KEYS, len(values)), values, strict=True))


def _compiled(text: str) -> Condition | None:
    try:
        return LANGUAGE.compile(text)
    except Exception:  # its types do not fit, and a load refuses it
        return None


def scene_of(arguments: dict[str, Any], now_s: float = NOW) -> ConditionContext:
    question = Question("tool:s/t", "tools/call", "s", "t", arguments)
    return ConditionContext(CHAIN, 1, question, arguments, now_s, lambda principal: principal.roles)


def _ran(condition: Condition, scene: ConditionContext, units: float) -> tuple[str, ...]:
    outcome, read, left = condition.run(scene, units)
    return outcome, repr(read), repr(left)


def _is_plain(condition: Condition, scene: ConditionContext) -> bool:
    """Whether the inputs are plain too; otherwise CEL evaluates the condition in any case."""
    try:
        return condition.plain is not None and condition.plain.run(scene, 0) is not None
    except (ValueError, OverflowError):
        return True


def test_a_plain_condition_gives_what_cel_gives() -> None:
    """Result, inputs in their order, and units left in the budget."""
    random, outcomes = Random(EVALUATIONS), Counter[str]()
    while outcomes.total() < EVALUATIONS:
        condition = _compiled(text := written(random))
        if condition is None or condition.plain is None:
            continue
        by_cel = replace(condition, plain=None)
        for _ in range(PER_CONDITION):
            arguments, units = _arguments(random), random.choice((1_000_000, 1_000_000, 300, 60))
            now_s = random.choice((NOW, NOW + 0.000001, NOW - 1, NOW + 1, 0.0, 1e20, -1.0))
            scene = scene_of(arguments, now_s)
            expected = _ran(by_cel, scene, units)
            assert _ran(condition, scene, units) == expected, (text, arguments, now_s)
            outcomes[expected[0]] += _is_plain(condition, scene)
    print(dict(outcomes))
    assert min(outcomes[outcome] for outcome in ("true", "false", "error")) > EVALUATIONS / 50

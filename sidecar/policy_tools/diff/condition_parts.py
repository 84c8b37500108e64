"""Splits conditions into parts that must all hold, compares the parts, and finds the roles that they test.

`a && b` is true exactly if `a` and `b` are, and false as soon as one is false (cel-spec, logical operators), so an
additional part narrows a condition of an allow row, whatever the parts test. A condition that cannot be split with
certainty, by its text alone, is one part.

Of two parts that test the same value, one may imply the other: `args.amount <= 50` implies `args.amount <= 100`, and
`args.repo.startsWith('acme/')` implies `args.repo.startsWith('ac')`. Only forms are compared in which an error of the
first is also an error of the second, so that the implication holds for deny rows too, which match on an error.

`has_role(principal, 'role:x')` tests one role by name. A condition that may read the roles of a principal in any other
way, such as a computed role or a comparison of a whole principal, is treated as testing every role.
"""

import re
from functools import lru_cache

_TOO_CLEVER = ("//", "\\", "'''", '"""')  # comments, escapes, long strings: not split
_PATH = r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)"
_TEXT = r"'([^'\\]*)'"
_COMPARED = re.compile(_PATH + r" *(<=|<|>=|>|==) *(-?\d{1,15})")
_EQUAL = re.compile(_PATH + r" *== *" + _TEXT)
_BEGINS = re.compile(_PATH + r"\.startsWith\( *" + _TEXT + r" *\)")
_AMONG = re.compile(_PATH + r" +in +\[( *'[^'\\]*' *(?:, *'[^'\\]*' *)*)\]")


@lru_cache(4096)
def parts(condition: str) -> tuple[str, ...]:
    """Returns the parts, trimmed, in order; none for an empty condition. It is cut at every `&&` outside of brackets
    and strings, unless an operator of lower precedence is there too."""
    found, start, depth, quote = list[str](), 0, 0, ""
    for place, character in enumerate("" if any(mark in condition for mark in _TOO_CLEVER) else condition):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif depth == 0 and (character == "?" or condition.startswith("||", place)):
            return (condition.strip(),)
        elif depth == 0 and condition.startswith("&&", place):
            found.append(condition[start:place].strip())
            start = place + 2
    return (*found, condition[start:].strip()) if condition else ()


@lru_cache(4096)
def conjuncts(condition: str) -> frozenset[str]:
    return frozenset(parts(condition))


@lru_cache(65536)
def implies(one: str, other: str) -> bool:
    """Whether the part `other` is true whenever `one` is; False if that is not certain."""
    return one == other or _bounds(one, other) or _texts(one, other)


def _bounds(one: str, other: str) -> bool:
    mine, theirs = _COMPARED.fullmatch(one), _COMPARED.fullmatch(other)
    if mine is None or theirs is None or mine[1] != theirs[1]:
        return False
    if "==" not in (mine[2], theirs[2]) and mine[2][0] != theirs[2][0]:
        return False
    number, bound = int(mine[3]), int(theirs[3])
    if theirs[2] == "==":
        return False
    strict = theirs[2] in ("<", ">") and mine[2] not in ("<", ">")  # the bound itself satisfies the first part only
    less, more = (number, bound) if theirs[2][0] == "<" else (bound, number)
    return less < more or (less == more and not strict)


def _texts(one: str, other: str) -> bool:
    mine, theirs = _EQUAL.fullmatch(one) or _AMONG.fullmatch(one), _AMONG.fullmatch(other)
    if mine is not None and theirs is not None:
        return mine[1] == theirs[1] and _listed(mine) <= _listed(theirs)
    begins = _BEGINS.fullmatch(other)
    mine = mine or _BEGINS.fullmatch(one)
    if mine is None or begins is None or mine[1] != begins[1]:
        return False
    return all(text.startswith(begins[2]) for text in _listed(mine))


def _listed(match: re.Match[str]) -> frozenset[str]:
    return frozenset(re.findall("'([^']*)'", match[0]))


HAS_ROLE = re.compile(r"(?<![.\w])has_role\(\s*\w+(?:\[\d+\])?\s*,\s*(?:'(role:[^'\"\\]*)'|\"(role:[^'\"\\]*)\")\s*\)")
_PRINCIPAL = r"(?:principal|origin|chain\s*\[\s*\d+\s*\])"
_FIELD = r"\s*(?:\.\s*\w+|\[\s*(?:'[^']*'|\"[^\"]*\")\s*\])"
_ONE_FIELD = re.compile(rf"\b{_PRINCIPAL}{_FIELD}")
_LENGTH = re.compile(r"\bsize\(\s*chain\s*\)|\bchain\s*\.\s*size\(\s*\)")
_EACH = re.compile(r"\bchain\s*\.\s*(?:all|exists|exists_one)\(\s*(\w+)\s*,")
_ROLES = re.compile(r"\broles\b")
_PRINCIPALS = re.compile(r"\b(?:principal|origin|chain|roles|has_role)\b")


@lru_cache(4096)
def roles_asked(condition: str) -> frozenset[str] | None:
    """Returns the roles that a condition names; None if it may test any role."""
    named = frozenset(one or other for one, other in HAS_ROLE.findall(condition))
    if "\\" in condition:  # escapes can spell any name
        return None if _PRINCIPALS.search(condition) else named
    rest = HAS_ROLE.sub(" true ", condition)
    if _ROLES.search(rest):
        return None
    rest = _LENGTH.sub(" 1 ", _ONE_FIELD.sub(" 1 ", rest))
    while each := _EACH.search(rest):
        rest = rest[: each.start()] + " (" + re.sub(rf"\b{each[1]}{_FIELD}", " 1 ", rest[each.end() :])
        if re.search(rf"\b{each[1]}\b", rest):
            return None
    return None if _PRINCIPALS.search(rest) else named


def asks_of(condition: str, roles: frozenset[str]) -> bool:
    """Whether a condition, or a part of one, may change its outcome if the members of these roles change."""
    if not condition or not roles:
        return False
    asked = roles_asked(condition)
    return asked is None or not asked.isdisjoint(roles)

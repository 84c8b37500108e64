"""Finds the roles that a condition certainly tests.

`has_role(principal, 'role:x')` tests one role by name. A condition that may read the roles of a principal in any other
way, such as a computed role or a comparison of a whole principal, counts as testing every role.
"""

from __future__ import annotations

import re
from functools import lru_cache

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
    """Return the roles that a condition names; None if it may test any role."""
    named = frozenset(one or other for one, other in HAS_ROLE.findall(condition))
    if "\\" in condition:  # escapes can spell any word
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

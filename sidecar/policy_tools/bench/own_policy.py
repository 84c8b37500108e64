"""Derives questions from a policy's own rows."""

from __future__ import annotations

import random
from collections.abc import Iterator

from sidecar.policy import PolicySource
from sidecar.policy_tools.bench.ladder import DrawnQuestion
from sidecar.vocabulary import PermissionKind

KINDS = (PermissionKind.AGENT_TO_TOOL, PermissionKind.USER_TO_NHI, PermissionKind.NHI_TO_NHI)


def questions(source: PolicySource, *, seed: int = 1) -> Iterator[DrawnQuestion]:
    """Yield questions without end: half are about a row's object, with a caller whom the row can match; half mix two
    rows. Yields none if no kind has a row.
    """
    rng = random.Random(seed)
    kinds = [kind for kind in KINDS if len(source.tables[kind])]
    members = {role: member for member, roles in source.roles.parents.items() for role in roles}
    elements = {name: element for element, names in source.sets.parents.items() for name in names}
    while kinds:
        kind = rng.choice(kinds)
        table = source.tables[kind]
        row = table[rng.randrange(len(table))]
        other = row if rng.random() < 0.5 else table[rng.randrange(len(table))]
        subject = row.subject
        while subject in members:
            subject = members[subject]
        obj = other.object
        while obj in elements:
            obj = elements[obj]
        action = next(iter(row.actions)).replace("*", "x")
        yield DrawnQuestion(kind.value, _named(subject, kind), _thing(obj, kind), action)


def _named(subject: str, kind: PermissionKind) -> str:
    if subject == "*" or subject.startswith("role:"):
        return "user:x" if kind is PermissionKind.USER_TO_NHI else "nhi:x"
    return subject.replace("*", "x")


def _thing(obj: str, kind: PermissionKind) -> str:
    if obj == "*" or obj.startswith("set:"):
        return "tool:x/x" if kind is PermissionKind.AGENT_TO_TOOL else "nhi:x"
    return obj.replace("*", "x")

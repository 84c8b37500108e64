"""Of which roles does a condition ask? What is not certain asks of all."""

from __future__ import annotations

import pytest

from sidecar.policy.conditions import Language
from sidecar.policy_tools.diff.condition_parts import roles_asked

X = frozenset(("role:x",))
NOTHING: frozenset[str] = frozenset()


@pytest.mark.parametrize(
    ("condition", "asked"),
    [
        ("args.a == 1", NOTHING),
        ("args.role == 'role:x'", NOTHING),
        ("principal.id == 'x' && origin.kind == 'user' && chain[0].id == 'y'", NOTHING),
        ("principal['id'] == 'x' && 'mail' in principal . scopes", NOTHING),
        ("size(chain) == 2 || chain.size() == 3", NOTHING),
        ("chain.exists(p, p.id == 'x') && chain.all(q, q['kind'] == 'nhi')", NOTHING),
        ("args.url.startsWith('https://x/') && principal.id == 'y'", NOTHING),
        ("has_role(principal, 'role:x')", X),
        ('!has_role( chain[0] , "role:x" ) || args.a == 1', X),
        ("chain.exists(p, has_role(p, 'role:x') && p.kind == 'nhi')", X),
        ("has_role(principal, args.role)", None),
        ("has_role(principal, 'role:' + args.team)", None),
        ("has_role(principal, args.a == 1 ? 'role:x' : 'role:y')", None),
        (r"has_role(principal, 'role:\u0078')", None),
        (r"principal['r\u006fles'].size() > 0", None),
        ("'role:x' in principal.roles", None),
        ("'role:x' in principal . roles", None),
        ("principal['roles'].size() > 0", None),
        ("principal['ro' + 'les'].size() > 0", None),
        ("principal[args.field] == 1", None),
        ("principal == origin", None),
        ("chain[0] == chain[1]", None),
        ("chain.exists(p, p == args.p)", None),
        ("chain.exists(p, args.role in p.roles)", None),
        ("chain.map(p, p['roles']).size() > 1", None),
        ("[principal].exists(p, args.role in p[args.field])", None),
    ],
)
def test_a_condition_asks_of_the_roles_that_it_names_and_else_of_any(
    condition: str, asked: frozenset[str] | None
) -> None:
    Language().compile(condition)
    assert roles_asked(condition) == asked

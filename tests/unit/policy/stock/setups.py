"""Ordinary Casbin setups: models and policies as teams have them, what their programs set in code, and requests.

The shapes are those of Casbin's published examples, with names of our own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sidecar.policy.stock.expression import Attributed

ALLOW_OVERRIDE = "some(where (p.eft == allow))"
DENY_OVERRIDE = "!some(where (p.eft == deny))"
ALLOW_AND_DENY = f"{ALLOW_OVERRIDE} && {DENY_OVERRIDE}"
PRIORITY = "priority(p.eft) || deny"
SUBJECT_PRIORITY = "subjectPriority(p.eft) || deny"
ROLES = {"g": "_, _"}
SAME = "r.sub == p.sub && r.obj == p.obj && r.act == p.act"
BY_ROLE = "g(r.sub, p.sub) && r.obj == p.obj && r.act == p.act"

PEOPLE = ("alice", "bob", "carol", "root", "admin", "nobody", "")
DATA = ("data1", "data2", "data3", "data4")
ACTS = ("read", "write", "delete")


@dataclass(frozen=True)
class Setup:
    """`options` are by role definition what a program sets in code; `values` are drawn from for each request."""

    model: str
    policy: str
    values: Sequence[Sequence[Any]] = (PEOPLE, DATA, ACTS)
    options: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    suffix: str = ""


def conf(
    matcher: str,
    *,
    request: str = "sub, obj, act",
    columns: str = "sub, obj, act",
    effect: str = ALLOW_OVERRIDE,
    roles: Mapping[str, str] | None = None,
) -> str:
    defined = "".join(f"{name} = {form}\n" for name, form in (roles or {}).items())
    section = f"[role_definition]\n{defined}\n" if defined else ""
    return (
        f"[request_definition]\nr = {request}\n\n[policy_definition]\np = {columns}\n\n{section}"
        f"[policy_effect]\ne = {effect}\n\n[matchers]\nm = {matcher}\n"
    )


def _is(text: str, **attributes: object) -> Attributed:
    return Attributed(text, attributes)


_STAFF = (
    _is("alice", Age=16, Role="admin"), _is("bob", Age=20), _is("carol", Age=70, Role="x"), _is("dave", Age="old"),
    "eve", _is("frank", Age=59, Role="admin"),
)  # fmt: skip
_PATHS = """\
p, alice, /alice_data/*, GET
p, alice, /alice_data/:id, POST
p, bob, /bob_data/{x}/a, GET
p, bob, /bob_data/{x}/{x}, POST
p, carol, /carol_data, (GET)|(POST)
p, carol, /x/{a}/*, GET
p, root, /*, GET
"""
_ASKED_PATHS = (
    *("/alice_data/1", "/alice_data/1/2", "/alice_data/", "/alice_data", "/bob_data/1/a", "/bob_data/1/1"),
    *("/bob_data/1/2", "/carol_data", "/carol_data?x=1", "/x/1/y", "/x/1/", "/x/1", "/"),
)
_VERBS = ("GET", "POST", "GETX", "PUT")
_EFT = "sub, obj, act, eft"

SETUPS: Mapping[str, Setup] = {
    "access list": Setup(conf(SAME), "p, alice, data1, read\np, bob, data2, write\n"),
    "superuser": Setup(conf(f'{SAME} || r.sub == "root"'), "p, alice, data1, read\np, bob, data2, write\n"),
    "without subjects": Setup(
        conf("r.obj == p.obj && r.act == p.act", request="obj, act", columns="obj, act"),
        "p, data1, read\np, data2, write\n",
        (DATA, ACTS),
    ),
    "roles": Setup(
        conf(BY_ROLE, roles=ROLES),
        "p, alice, data1, read\np, admin, data2, read\np, admin, data2, write\np, boss, data3, read\n\n# roles\n"
        "g, alice, admin\ng, admin, boss\ng, carol, boss\n",
    ),
    "roles in domains": Setup(
        conf(
            "g(r.sub, p.sub, r.dom) && r.dom == p.dom && r.obj == p.obj && r.act == p.act",
            request="sub, dom, obj, act",
            columns="sub, dom, obj, act",
            roles={"g": "_, _, _"},
        ),
        "p, admin, d1, data1, read\np, admin, d1, data1, write\np, admin, d2, data2, read\np, alice, d2, data3, read\n"
        "g, alice, admin, d1\ng, bob, admin, d2\ng, admin, boss, d1\np, boss, d1, data4, read\n",
        (PEOPLE, ("d1", "d2", "d3"), DATA, ACTS),
    ),
    "resource roles": Setup(
        conf("g(r.sub, p.sub) && g2(r.obj, p.obj) && r.act == p.act", roles={**ROLES, "g2": "_, _"}),
        "p, alice, data1, read\np, bob, data2, write\np, group_admin, group, write\ng, alice, group_admin\n"
        "g2, data1, group\ng2, data2, group\n",
        (PEOPLE, (*DATA, "group"), ACTS),
    ),
    "all pattern": Setup(
        conf(
            "r.dom == p.dom && g(r.sub, p.sub, r.dom) && r.obj == p.obj && r.act == p.act",
            request="sub, dom, obj, act",
            columns="sub, dom, obj, act",
            roles={"g": "_, _, _"},
        ),
        "p, admin, d1, data1, read\np, admin, d2, data2, read\np, /book/:id, d1, data3, read\ng, alice, admin, *\n"
        "g, /user/:id, admin, d1\ng, bob, admin, d2\n",
        ((*PEOPLE, "/user/1", "/book/1", "/user/1/2"), ("d1", "d2", "d3"), DATA, ACTS),
        {"g": {"match": "keyMatch2", "match_domain": "keyMatch"}},
    ),
    "pattern roles of resources": Setup(
        conf("g(r.sub, p.sub) && g2(r.obj, p.obj) && regexMatch(r.act, p.act)", roles={**ROLES, "g2": "_, _"}),
        "p, alice, /pen/1, GET\np, alice, /pen2/1, GET\np, book_admin, books, GET\np, pen_admin, pens, (GET)|(POST)\n"
        "g, alice, book_admin\ng, bob, pen_admin\ng2, /book/*, books\ng2, /book/:id, books\ng2, /pen/:id, pens\n",
        (PEOPLE, ("/pen/1", "/pen2/1", "/book/1", "/book/1/2", "/book/", "/x"), _VERBS),
        {"g2": {"match": "keyMatch2"}},
    ),
    "deny override": Setup(
        conf(SAME, columns=_EFT, effect=DENY_OVERRIDE),
        "p, alice, data1, read, allow\np, bob, data2, write, deny\np, alice, data2, write, deny\n",
    ),
    "allow and deny": Setup(
        conf(BY_ROLE, columns=_EFT, effect=ALLOW_AND_DENY, roles=ROLES),
        "p, alice, data1, read, allow\np, admin, data2, read, allow\np, admin, data2, write, allow\n"
        "p, alice, data2, write, deny\ng, alice, admin\ng, bob, admin\n",
    ),
    "priority by order": Setup(
        conf(BY_ROLE, columns=_EFT, effect=PRIORITY, roles=ROLES),
        "p, alice, data1, read, allow\np, admin, data1, read, deny\np, admin, data1, write, deny\n"
        "p, alice, data1, write, allow\np, bob, data2, read, deny\np, admin, data2, read, allow\n"
        "g, alice, admin\ng, bob, admin\n",
    ),
    "priority by column": Setup(
        conf(BY_ROLE, columns=f"priority, {_EFT}", effect=PRIORITY, roles=ROLES),
        "p, 10, admin, data1, write, deny\np, 10, admin, data1, read, deny\np, 1, alice, data1, write, allow\n"
        "p, 1, alice, data1, read, allow\np, 1, bob, data2, read, deny\np, 9, admin, data2, write, allow\n"
        "p, 2, admin, data2, write, deny\ng, alice, admin\ng, bob, admin\n",
    ),
    "priority by subject": Setup(
        conf(BY_ROLE, columns=_EFT, effect=SUBJECT_PRIORITY, roles=ROLES),
        "p, root, data1, read, deny\np, admin, data1, read, deny\np, editor, data1, read, deny\n"
        "p, carol, data1, read, allow\np, alice, data1, read, allow\np, admin, data2, write, allow\n"
        "g, admin, root\ng, editor, admin\ng, bob, editor\ng, carol, editor\ng, alice, admin\n",
        ((*PEOPLE, "editor"), DATA, ACTS),
    ),
    "attributes": Setup(
        conf("r.sub == r.obj.Owner"),
        "p, x, y, z\n",
        (
            PEOPLE,
            (_is("data1", Owner="alice"), _is("data2", Owner="bob"), _is("data3"), "data4", _is("d", Owner=3)),
            ACTS,
        ),
    ),
    "rules in rows": Setup(
        conf("eval(p.sub_rule) && r.obj == p.obj && r.act == p.act", columns="sub_rule, obj, act"),
        'p, r.sub.Age > 18, data1, read\np, r.sub.Age < 60 && r.sub.Role == "admin", data2, write\n'
        'p, r.sub.Age > 60 || r.sub == "alice", data3, read\n',
        (_STAFF, DATA, ACTS),
    ),
    "rules in rows, looked up": Setup(
        conf("r.obj == p.obj && r.act == p.act && eval(p.sub_rule)", columns="sub_rule, obj, act"),
        'p, r.sub.Age > 18, data1, read\np, r.sub.Age < 60 && r.sub.Role == "admin", data2, write\n'
        'p, r.sub.Age * 2 > 120, data1, read\np, r.act == "read", data3, read\n',
        (_STAFF, DATA, ACTS),
    ),
    **{
        name: Setup(
            conf(f"r.sub == p.sub && {name}(r.obj, p.obj) && regexMatch(r.act, p.act)"),
            _PATHS,
            (PEOPLE, _ASKED_PATHS, _VERBS),
        )
        for name in ("keyMatch", "keyMatch2", "keyMatch3", "keyMatch4", "keyMatch5")
    },
    "ipMatch": Setup(
        conf("ipMatch(r.sub, p.sub) && r.obj == p.obj && r.act == p.act"),
        "p, 192.168.2.0/24, data1, read\np, 10.0.0.0/16, data2, write\n"
        "p, 10.0.0.7, data1, read\np, ::/64, data3, read\n",
        (("192.168.2.1", "192.168.3.1", "10.0.1.1", "10.0.0.7", "::1", "x", "1.2.3"), DATA, ACTS),
    ),
    "globMatch": Setup(
        conf("r.sub == p.sub && globMatch(r.obj, p.obj) && r.act == p.act"),
        "p, alice, /data/*, read\np, bob, /data/**, read\np, carol, /d?ta/[ab], read\np, carol, */x, write\n",
        (PEOPLE, ("/data/1", "/data/1/2", "/data", "/dxta/a", "/x", "/y/x"), ACTS),
    ),
    "Bell-LaPadula": Setup(
        conf(
            '(r.act == "read" && r.sub_level >= r.obj_level) || (r.act == "write" && r.sub_level <= r.obj_level)',
            request="sub, sub_level, obj, obj_level, act",
        ),
        "",
        (PEOPLE, (1, 2, 3, "x"), DATA, (1, 2, 3), ACTS),
    ),
    "Biba": Setup(
        conf(
            '(r.act == "read" && r.sub_level <= r.obj_level) || (r.act == "write" && r.sub_level >= r.obj_level)',
            request="sub, sub_level, obj, obj_level, act",
        ),
        "",
        (PEOPLE, (1, 2, 3), DATA, (1, 2, 3), ACTS),
    ),
    "lattice": Setup(
        conf(
            '(r.action == "read" && r.subject_secret >= r.object_secret && r.subject_trust >= r.object_trust)'
            ' || (r.action == "write" && r.subject_secret <= r.object_secret && r.subject_trust <= r.object_trust)',
            request="subject, subject_secret, subject_trust, object, object_secret, object_trust, action",
        ),
        "",
        (PEOPLE, (1, 2), (1, 2), DATA, (1, 2), (1, 2), ACTS),
    ),
    "relations": Setup(
        conf(
            "g(r.sub, r.obj, p.role) && g2(r.obj, p.obj_type) && r.act == p.act",
            columns="role, obj_type, act",
            roles={"g": "_, _, _", "g2": "_, _"},
        ),
        "p, collaborator, doc, read\np, owner, doc, write\ng, alice, data1, collaborator\ng, bob, data1, owner\n"
        "g, bob, data2, collaborator\ng2, data1, doc\ng2, data2, doc\n",
    ),
    "conditional roles": Setup(
        conf(BY_ROLE, roles={"g": "_, _, (_, _)"}),
        "p, r1, data1, read\np, r2, data2, write\np, r3, data3, read\np, r4, data4, read\n"
        "g, alice, r1, 0000-01-01 00:00:00, 0000-01-02 00:00:00\n"
        "g, alice, r2, 0001-01-01 00:00:00, 9999-12-30 00:00:00\n"
        "g, alice, r3, _, 9999-12-30 00:00:00\ng, bob, r4, _, _\ng, r2, r4, _, _\n",
        options={"g": {"condition": "timeMatch"}},
    ),
    "a second definition": Setup(
        "[request_definition]\nr = sub, obj, act\nr2 = sub, act\n[policy_definition]\np = sub, obj, act\n"
        f"p2 = sub_rule, act, eft\n[policy_effect]\ne = {ALLOW_OVERRIDE}\ne2 = {DENY_OVERRIDE}\n"
        f"[matchers]\nm = {SAME}\nm2 = r2.act == p2.act && eval(p2.sub_rule)\n",
        "p, alice, data1, read\np2, r2.sub.Age > 18, read, deny\np2, r2.sub.Age < 60, write, allow\n",
        (_STAFF, ACTS),
        suffix="2",
    ),
}

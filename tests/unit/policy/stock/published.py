"""The shapes of model and policy that Casbin publishes as examples, with the decisions that it publishes for them.

The texts are our own: nora and omar work with a ledger and with stock. In `decisions`, `+` is allowed, `-` denied.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sidecar.policy.stock.expression import Attributed
from tests.unit.policy.stock.setups import (
    ALLOW_AND_DENY,
    ALLOW_OVERRIDE,
    BY_ROLE,
    DENY_OVERRIDE,
    PRIORITY,
    ROLES,
    SAME,
    SUBJECT_PRIORITY,
    conf,
)


@dataclass(frozen=True)
class Example:
    """`values` are what the words of `decisions` stand for, if not for themselves."""

    model: str
    policy: str
    decisions: str
    options: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    suffix: str = ""

    def requests(self) -> Iterator[tuple[Sequence[Any], bool]]:
        for line in self.decisions.split(";"):
            sign, *words = line.split()
            yield [self.values.get(word, word) for word in words], sign == "+"


def _person(name: str, age: int) -> Attributed:
    return Attributed(name, {"name": name, "age": age})


_EFT = "sub, obj, act, eft"
_IN_DOMAIN = "sub, dom, obj, act"
_DOMAIN_ROLES = {"g": "_, _, _"}
_BY_DOMAIN_ROLE = "g(r.sub, p.sub, r.dom) && r.dom == p.dom && r.obj == p.obj && r.act == p.act"
_TWO = "p, nora, ledger, read\np, omar, stock, write\n"
_TWO_DECISIONS = (
    "+ nora ledger read; - nora ledger write; - nora stock read; - nora stock write;"
    "- omar ledger read; - omar ledger write; - omar stock read; + omar stock write"
)
_STOCK_ADMIN = "p, stock_admin, stock, read\np, stock_admin, stock, write\ng, nora, stock_admin\n"
_OFFICES = (
    "p, admin, oslo, ledger, read\np, admin, oslo, ledger, write\np, admin, rome, stock, read\n"
    "p, admin, rome, stock, write\n"
)
_HIERARCHY = "g, role:chief, role:reader, oslo\ng, role:chief, role:writer, oslo\ng, nora, role:chief, oslo\n"
_DENIED = (
    "p, nora, ledger, read, allow\np, omar, stock, write, allow\np, stock_admin, stock, read, allow\n"
    "p, stock_admin, stock, write, allow\np, nora, stock, write, deny\ng, nora, stock_admin\n"
)
_TIMED = (
    (2, "0001-01-01 00:00:00", "0001-01-02 00:00:00"), (3, "0001-01-01 00:00:00", "9999-12-30 00:00:00"),
    (4, "_", "_"), (5, "_", "9999-12-30 00:00:00"), (6, "_", "0001-01-02 00:00:00"), (7, "0001-01-01 00:00:00", "_"),
    (8, "9999-12-30 00:00:00", "_"),
)  # fmt: skip
_TIMED_DECISIONS = (
    "+ {1} read; + {1} write; - {2} read; - {2} write; + {3} read; + {4} read; + {5} write; - {6} read; + {7} read;"
    "- {8} write"
)
_MATCHED_PEN = (
    "+ nora /book/1 GET; + nora /book/2 GET; + nora /pen/1 GET; - nora /pen/2 GET; - omar /book/1 GET;"
    "- omar /book/2 GET; + omar /pen/1 GET; + omar /pen/2 GET"
)
_LEVELS = {"1": 1, "2": 2, "3": 3}

_SEVERAL = (
    "[request_definition]\nr = sub, obj, act\nr2 = sub, obj, act\n\n[policy_definition]\np = sub, obj, act\n"
    "p2 = sub_rule, obj, act, eft\n\n[role_definition]\ng = _, _\n\n[policy_effect]\n"
    f"e = {ALLOW_OVERRIDE}\n\n[matchers]\n# by role\nm = {BY_ROLE}\n# by rule\n"
    "m2 = eval(p2.sub_rule) && r2.obj == p2.obj && r2.act == p2.act\n"
)
_SEVERAL_ROWS = (
    "p, stock_admin, stock, read\np2, r2.sub.age > 18 && r2.sub.age < 60, /ledger, read, allow\n"
    "p2, r2.sub.age > 60 && r2.sub.age < 100, /ledger, read, deny\n\ng, nora, stock_admin\n"
)

EXAMPLES: Mapping[str, Example] = {
    "basic": Example(conf(SAME), _TWO, _TWO_DECISIONS),
    "basic without spaces": Example(conf(SAME, request="sub,obj,act", columns="sub,obj,act"), _TWO, _TWO_DECISIONS),
    "comments": Example(
        conf(SAME).replace("[matchers]", "# the names are compared\n; as texts\n[matchers]") + "# the end\n",
        f"# who may\n\n{_TWO}",
        _TWO_DECISIONS,
    ),
    "a comment behind a matcher": Example(conf(f"{SAME} # as texts"), _TWO, _TWO_DECISIONS),
    "a matcher of several lines": Example(conf(SAME.replace("&& r.act", "&& \\\n  r.act")), _TWO, _TWO_DECISIONS),
    "basic with root": Example(
        conf(f'{SAME} || r.sub == "root"'), _TWO, f"{_TWO_DECISIONS}; + root any any; + root ledger read"
    ),
    "basic without resources": Example(
        conf("r.sub == p.sub && r.act == p.act", request="sub, act", columns="sub, act"),
        "p, nora, read\np, omar, write\n",
        "+ nora read; - nora write; + omar write; - omar read",
    ),
    "basic without users": Example(
        conf("r.obj == p.obj && r.act == p.act", request="obj, act", columns="obj, act"),
        "p, ledger, read\np, stock, write\n",
        "+ ledger read; - ledger write; + stock write; - stock read",
    ),
    "rbac": Example(
        conf(BY_ROLE, roles=ROLES),
        _TWO + _STOCK_ADMIN,
        "+ nora ledger read; - omar ledger read; + omar stock write; + nora stock read; + nora stock write;"
        "- nobody stock write",
    ),
    "rbac with a hierarchy": Example(
        conf(BY_ROLE, roles=ROLES),
        f"{_TWO}p, ledger_admin, ledger, read\np, ledger_admin, ledger, write\np, stock_admin, stock, read\n"
        "p, stock_admin, stock, write\ng, nora, admin\ng, admin, ledger_admin\ng, admin, stock_admin\n",
        "+ nora ledger read; + nora ledger write; + nora stock read; + nora stock write; - omar ledger read;"
        "- omar ledger write; - omar stock read; + omar stock write",
    ),
    "rbac with in": Example(
        conf(f"{BY_ROLE} || r.obj in ['stock', 'scrap']", roles=ROLES),
        _TWO + _STOCK_ADMIN,
        "+ nora ledger read; + nora stock read; + nora scrap scribble; - nora desk scribble",
    ),
    "rbac with names of its own": Example(
        conf(
            "g(r.user, p.role) && r.thing == p.thing && r.action == p.action",
            request="user, thing, action",
            columns="role, thing, action",
            roles={"g": "_,_"},
        ),
        "p, user, /data, GET\np, admin, /data, POST\ng, admin, user\ng, nora, admin\n",
        "+ nora /data GET; + nora /data POST; + user /data GET; - user /data POST; + admin /data GET",
    ),
    "rbac with resource roles": Example(
        conf("g(r.sub, p.sub) && g2(r.obj, p.obj) && r.act == p.act", roles={**ROLES, "g2": "_, _"}),
        f"{_TWO}p, clerk, goods, write\ng, nora, clerk\ng2, ledger, goods\ng2, stock, goods\n",
        "+ nora ledger read; + nora ledger write; - nora stock read; + nora stock write; - omar ledger read;"
        "- omar ledger write; - omar stock read; + omar stock write",
    ),
    "rbac with domains": Example(
        conf(_BY_DOMAIN_ROLE, request=_IN_DOMAIN, columns=_IN_DOMAIN, roles=_DOMAIN_ROLES),
        f"{_OFFICES}g, nora, admin, oslo\ng, omar, admin, rome\n",
        "+ nora oslo ledger read; + nora oslo ledger write; - nora oslo stock read; - nora oslo stock write;"
        "- omar rome ledger read; - omar rome ledger write; + omar rome stock read; + omar rome stock write",
    ),
    "rbac with a hierarchy in domains": Example(
        conf(_BY_DOMAIN_ROLE, request=_IN_DOMAIN, columns=_IN_DOMAIN, roles=_DOMAIN_ROLES),
        "p, role:reader, oslo, ledger, read\np, role:writer, oslo, ledger, write\np, nora, oslo, stock, read\n"
        f"p, nora, rome, stock, read\n{_HIERARCHY}",
        "+ nora oslo ledger read; + nora oslo ledger write; + nora oslo stock read; + nora rome stock read;"
        "- nora rome ledger read; - omar oslo ledger read",
    ),
    "rbac with domains of roles alone": Example(
        conf("g(r.sub, p.sub, r.dom) && r.obj == p.obj && r.act == p.act", request=_IN_DOMAIN, roles=_DOMAIN_ROLES),
        f"p, role:reader, ledger, read\np, role:writer, ledger, write\np, nora, stock, read\n{_HIERARCHY}",
        "+ nora oslo ledger read; + nora oslo ledger write; - nora rome ledger read; + nora rome stock read",
    ),
    "rbac with a pattern of domains": Example(
        conf(_BY_DOMAIN_ROLE, request=_IN_DOMAIN, columns=_IN_DOMAIN, roles=_DOMAIN_ROLES),
        f"{_OFFICES}g, nora, admin, *\ng, omar, admin, rome\n",
        "+ nora oslo ledger read; + nora oslo ledger write; - nora oslo stock read; + nora rome stock read;"
        "- omar rome ledger read; + omar rome stock read; + omar rome stock write",
        {"g": {"match_domain": "keyMatch2"}},
    ),
    "rbac with patterns of domains in rows": Example(
        conf(
            "g(r.sub, p.sub, r.dom) && keyMatch2(r.dom, p.dom) && r.obj == p.obj && r.act == p.act",
            request=_IN_DOMAIN,
            columns=_IN_DOMAIN,
            roles=_DOMAIN_ROLES,
        ),
        "p, admin, office.*, ledger, read\np, user, office.*, desk, read\np, user, office.1, stock, read\n"
        "p, user, office.1, stock, write\ng, nora, user, *\ng, omar, admin, office.3\n",
        "- nora office.1 ledger read; + nora office.1 stock read; + nora office.1 stock write;"
        "+ nora office.9 desk read;"
        "+ omar office.3 ledger read; - omar office.1 ledger read",
        {"g": {"match_domain": "keyMatch2"}},
    ),
    "rbac with all patterns": Example(
        conf(
            "r.sub == p.sub && g(r.obj, p.obj, r.dom) && r.dom == p.dom && r.act == p.act",
            request=_IN_DOMAIN,
            columns=_IN_DOMAIN,
            roles=_DOMAIN_ROLES,
        ),
        "p, nora, oslo, books, read\np, nora, rome, books, write\ng, /book/:id, books, *\n",
        "+ nora oslo /book/1 read; - nora oslo /book/1 write; - nora rome /book/1 read; + nora rome /book/1 write",
        {"g": {"match": "keyMatch2", "match_domain": "keyMatch2"}},
    ),
    "rbac with patterns of resources": Example(
        conf("g(r.sub, p.sub) && g2(r.obj, p.obj) && regexMatch(r.act, p.act)", roles={**ROLES, "g2": "_, _"}),
        "p, nora, /pen/1, GET\np, nora, /pen2/1, GET\np, book_admin, books, GET\np, pen_admin, pens, GET\n"
        "g, nora, book_admin\ng, omar, pen_admin\ng2, /book/:id, books\ng2, /pen/:id, pens\n",
        _MATCHED_PEN,
        {"g2": {"match": "keyMatch2"}},
    ),
    "rbac with patterns in braces": Example(
        conf("g(r.sub, p.sub) && g2(r.obj, p.obj) && regexMatch(r.act, p.act)", roles={**ROLES, "g2": "_, _"}),
        "p, nora, /pen/1, GET\np, book_admin, books, GET\np, pen_admin, pens, GET\ng, nora, book_admin\n"
        "g, omar, pen_admin\ng2, /book/{id}, books\ng2, /pen/{id}, pens\n",
        _MATCHED_PEN,
        {"g2": {"match": "keyMatch3"}},
    ),
    "rbac with many matching patterns": Example(
        conf(
            "g2(r.act, p.role) && (g(r.sub, p.sub) || p.sub=='*') && keyMatch(r.obj, p.obj)",
            columns="sub, obj, role",
            roles={**ROLES, "g2": "_, _"},
        ),
        "p, root, *, owner\ng, root@localhost, root\ng2, *.read, viewer\ng2, *.read, editor\ng2, *.update, editor\n"
        "g2, *.read, admin\ng2, *.update, admin\ng2, *.create, admin\ng2, *.delete, admin\ng2, *.*, owner\n",
        "+ root@localhost / org.create; - nora / org.create",
        {"g2": {"match": "globMatch"}},
    ),
    "rbac with deny": Example(
        conf(BY_ROLE, columns=_EFT, effect=ALLOW_AND_DENY, roles=ROLES),
        _DENIED,
        "+ nora ledger read; + omar stock write; + nora stock read; - nora stock write",
    ),
    "rbac with not deny": Example(
        conf(BY_ROLE, columns=_EFT, effect=DENY_OVERRIDE.replace("p.eft", "p_eft"), roles=ROLES),
        _DENIED,
        "- nora stock write; + nora stock read; + nobody anything write",
    ),
    "priority": Example(
        conf(BY_ROLE, columns=_EFT, effect=PRIORITY, roles=ROLES),
        "p, nora, ledger, read, allow\np, ledger_shut, ledger, read, deny\np, ledger_shut, ledger, write, deny\n"
        "p, nora, ledger, write, allow\ng, nora, ledger_shut\np, stock_open, stock, read, allow\n"
        "p, omar, stock, read, deny\np, omar, stock, write, deny\ng, omar, stock_open\n",
        "+ nora ledger read; - nora ledger write; - nora stock read; - nora stock write; - omar ledger read;"
        "- omar ledger write; + omar stock read; - omar stock write",
    ),
    "priority, neither allow nor deny": Example(
        conf(BY_ROLE, columns=_EFT, effect=PRIORITY, roles=ROLES),
        "p, nora, ledger, read, unknown\n",
        "- nora ledger read",
    ),
    "priority, explicit": Example(
        conf(BY_ROLE, columns=f"priority, {_EFT}", effect=PRIORITY, roles=ROLES),
        "p, 10, ledger_shut, ledger, read, deny\np, 10, ledger_shut, ledger, write, deny\n"
        "p, 10, stock_open, stock, read, allow\np, 10, stock_open, stock, write, allow\n"
        "p, 1, nora, ledger, write, allow\np, 1, nora, ledger, read, allow\np, 1, omar, stock, read, deny\n"
        "g, omar, stock_open\ng, nora, ledger_shut\n",
        "+ nora ledger write; + nora ledger read; - omar stock read; + omar stock write; - ledger_shut ledger read;"
        "- ledger_shut ledger write; + stock_open stock read; + stock_open stock write",
    ),
    "priority, explicit, with a denial before": Example(
        conf(BY_ROLE, columns=f"priority, {_EFT}", effect=PRIORITY, roles=ROLES),
        "p, 10, stock_open, stock, read, allow\np, 10, stock_open, stock, write, allow\np, 1, omar, stock, read, deny\n"
        "p, 1, omar, stock, write, deny\ng, omar, stock_open\n",
        "- omar stock read; - omar stock write; + stock_open stock read; + stock_open stock write",
    ),
    "priority of subjects": Example(
        conf(BY_ROLE, columns=_EFT, effect=SUBJECT_PRIORITY, roles=ROLES),
        "p, root, ledger, read, deny\np, admin, ledger, read, deny\np, editor, ledger, read, deny\n"
        "p, reader, ledger, read, deny\np, omar, ledger, read, allow\np, nora, ledger, read, allow\ng, admin, root\n"
        "g, editor, admin\ng, reader, admin\ng, omar, editor\ng, nora, reader\n",
        "+ omar ledger read; + nora ledger read; - editor ledger read; - reader ledger read",
    ),
    "priority of subjects in domains": Example(
        conf(
            _BY_DOMAIN_ROLE,
            request="sub, obj, dom, act",
            columns="sub, obj, dom, act, eft",
            effect=SUBJECT_PRIORITY,
            roles=_DOMAIN_ROLES,
        ),
        "p, admin, ledger, oslo, write, deny\np, nora, ledger, oslo, write, allow\np, admin, stock, rome, write, deny\n"
        "p, omar, stock, rome, write, allow\ng, nora, admin, oslo\ng, omar, admin, rome\n",
        "+ nora ledger oslo write; + omar stock rome write; - admin ledger oslo write; - omar ledger oslo write",
    ),
    "abac": Example(
        conf("r.sub == r.obj.Owner"),
        "",
        "+ nora ledger write; - omar ledger write",
        values={"ledger": Attributed("ledger", {"Owner": "nora", "id": "data1"})},
    ),
    "abac rule": Example(
        conf("eval(p.sub_rule) && r.obj == p.obj && r.act == p.act", columns="sub_rule, obj, act"),
        "p, r.sub.age > 18, /ledger, read\np, r.sub.age < 60, /stock, write\n",
        "- at16 /ledger read; - at16 /stock read; - at16 /ledger write; + at16 /stock write; + at20 /ledger read;"
        "- at20 /stock read; - at20 /ledger write; + at20 /stock write; + at65 /ledger read; - at65 /stock read;"
        "- at65 /ledger write; - at65 /stock write",
        values={f"at{age}": _person("nora", age) for age in (16, 20, 65)},
    ),
    "abac with several rules": Example(
        conf(
            "r.obj == p.obj && r.act == p.act && eval(p.sub_rule) && eval(p.sub_rule2)",
            columns="sub_rule, sub_rule2, obj, act",
        ),
        'p, r.sub.age > 18, r.sub.name == "nora", /ledger, read\n'
        'p, r.sub.age < 60, r.sub.name == "omar", /stock, write\n',
        "- nora16 /ledger read; - nora16 /stock write; + nora20 /ledger read; - nora20 /stock write;"
        "- omar65 /ledger read; - omar65 /stock write; - omar35 /ledger read; + omar35 /stock write",
        values={f"{name}{age}": _person(name, age) for name in ("nora", "omar") for age in (16, 20, 35, 65)},
    ),
    "a rule in domains": Example(
        conf(
            "eval(p.sub_rule) && g(r.sub, p.sub, r.dom) && r.dom == p.dom && r.act == p.act",
            request=_IN_DOMAIN,
            columns="sub_rule, sub, dom, act",
            roles=_DOMAIN_ROLES,
        ),
        'p, r.obj == "ledger" && r.sub.age >= 18, admin, oslo, read\ng, nora, admin, oslo\n',
        "+ nora20 oslo ledger read; - nora16 oslo ledger read; - nora20 oslo stock read; - nora20 rome ledger read",
        values={f"nora{age}": _person("nora", age) for age in (16, 20)},
    ),
    "keyMatch": Example(
        conf("r.sub == p.sub && keyMatch(r.obj, p.obj) && regexMatch(r.act, p.act)"),
        "p, nora, /nora/*, GET\np, nora, /nora/page1, POST\np, omar, /nora/page2, GET\np, omar, /omar/*, POST\n"
        "p, pia, /pia, (GET)|(POST)\n",
        "+ nora /nora/test GET; - nora /omar/test GET; + pia /pia GET; + pia /pia POST; - pia /pia/12 POST;"
        "+ nora /nora/page1 POST; - nora /nora/page2 POST; + omar /nora/page2 GET; + omar /omar/page1 POST;"
        "- omar /omar/page1 GET; - pia /pia DELETE",
    ),
    "keyMatch with root": Example(
        conf('r.sub == p.sub && keyMatch(r.obj, p.obj) && regexMatch(r.act, p.act) || r.sub == "root"'),
        "p, nora, /nora/*, GET\n",
        "+ nora /nora/1 GET; - nora /nora/1 POST; + root /omar/1 DELETE",
    ),
    "keyMatch2": Example(
        conf("r.sub == p.sub && keyMatch2(r.obj, p.obj) && regexMatch(r.act, p.act)"),
        "p, nora, /nora/:page, GET\np, nora, /nora2/:id/using/:page, GET\n",
        "+ nora /nora/hello GET; + nora /nora2/123/using/456 GET; - nora /nora2/123 GET; - nora /nora/hello POST",
    ),
    "keyMatch3": Example(
        conf("r.sub == p.sub && keyMatch3(r.obj, p.obj) && regexMatch(r.act, p.act)"),
        "p, nora, /nora/{page}, GET\np, nora, /nora2/{id}/using/{page}, GET\n",
        "+ nora /nora/hello GET; + nora /nora2/123/using/456 GET; - nora /nora2/123 GET",
    ),
    "keyMatch4": Example(
        conf("r.sub == p.sub && keyMatch4(r.obj, p.obj)"),
        "p, nora, /parent/{id}/child/{id}, any\np, nora, /parent/{id}/other/{name}, any\n",
        "+ nora /parent/123/child/123 x; - nora /parent/123/child/456 x; + nora /parent/123/other/456 x",
    ),
    "keyMatch5": Example(
        conf("r.sub == p.sub && keyMatch5(r.obj, p.obj)"),
        "p, nora, /foo/bar, any\np, nora, /parent/*, any\n",
        "+ nora /foo/bar?status=1&type=2 x; + nora /parent/child1 x; + nora /parent/child1?status=1 x; - nora /foo x",
    ),
    "globMatch": Example(
        conf("r.sub == p.sub && globMatch(r.obj, p.obj) && regexMatch(r.act, p.act)"),
        "p, nora, /nora/*, GET\np, nora, /nora/???, POST\np, omar, /nora/[1-9], GET\np, omar, /omar/[!1-9], POST\n",
        "+ nora /nora/test_all GET; + nora /nora/123 POST; + omar /nora/1 GET; - omar /nora/0 GET; + omar /omar/0 POST;"
        "- omar /omar/1 POST",
    ),
    "ipMatch": Example(
        conf("ipMatch(r.sub, p.sub) && r.obj == p.obj && r.act == p.act"),
        "p, 192.168.2.0/24, ledger, read\np, 10.0.0.0/16, stock, write\n",
        "+ 192.168.2.1 ledger read; - 192.168.3.1 ledger read; + 10.0.9.9 stock write; - 10.1.0.1 stock write",
    ),
    "several definitions, the first": Example(_SEVERAL, _SEVERAL_ROWS, "+ nora stock read; - omar stock read"),
    "several definitions, the second": Example(
        _SEVERAL,
        _SEVERAL_ROWS,
        "- nora70 /ledger read; + omar30 /ledger read; - omar30 /ledger write; - nora70 /stock read",
        values={"nora70": _person("nora", 70), "omar30": _person("omar", 30)},
        suffix="2",
    ),
    "conditional roles": Example(
        conf(BY_ROLE, roles={"g": "_, _, (_, _)"}),
        "p, nora, d1, read\np, nora, d1, write\n"
        + "".join(
            f"p, admin{n}, d{n}, read\np, admin{n}, d{n}, write\ng, nora, admin{n}, {a}, {b}\n" for n, a, b in _TIMED
        ),
        _TIMED_DECISIONS.format("", *(f"nora d{n}" for n in range(1, 9))),
        {"g": {"condition": "timeMatch"}},
    ),
    "conditional roles in domains": Example(
        conf(_BY_DOMAIN_ROLE, request=_IN_DOMAIN, columns=_IN_DOMAIN, roles={"g": "_, _, _, (_, _)"}),
        "p, nora, o1, d1, read\np, nora, o1, d1, write\n"
        + "".join(
            f"p, admin{n}, o{n}, d{n}, read\np, admin{n}, o{n}, d{n}, write\ng, nora, admin{n}, o{n}, {a}, {b}\n"
            for n, a, b in _TIMED
        ),
        _TIMED_DECISIONS.format("", *(f"nora o{n} d{n}" for n in range(1, 9)))
        + "; - nora elsewhere d1 read; - nora elsewhere d4 write; - nora o3 d4 read",
        {"g": {"condition": "timeMatch"}},
    ),
    "Bell-LaPadula": Example(
        conf(
            '(r.act == "read" && r.sub_level >= r.obj_level) || (r.act == "write" && r.sub_level <= r.obj_level)',
            request="sub, sub_level, obj, obj_level, act",
        ),
        "",
        "+ nora 3 ledger 1 read; + nora 2 stock 2 read; - omar 1 ledger 2 read; + omar 1 ledger 3 write;"
        "- nora 3 ledger 1 write; + nora 2 stock 2 write",
        values=_LEVELS,
    ),
    "Biba": Example(
        conf(
            '(r.act == "read" && r.sub_level <= r.obj_level) || (r.act == "write" && r.sub_level >= r.obj_level)',
            request="sub, sub_level, obj, obj_level, act",
        ),
        "",
        "- nora 3 ledger 1 read; + nora 2 stock 2 read; + omar 1 ledger 2 read; - omar 1 ledger 3 write;"
        "+ nora 3 ledger 1 write; + nora 2 stock 2 write",
        values=_LEVELS,
    ),
    "lattice": Example(
        conf(
            '(r.action == "read" && r.subject_secret >= r.object_secret && r.subject_trust >= r.object_trust)'
            ' || (r.action == "write" && r.subject_secret <= r.object_secret && r.subject_trust <= r.object_trust)',
            request="subject, subject_secret, subject_trust, object, object_secret, object_trust, action",
        ),
        "",
        "+ nora 3 2 ledger 1 1 read; - nora 3 1 ledger 1 2 read; + omar 1 1 ledger 2 2 write;"
        "- omar 2 1 ledger 1 2 write",
        values=_LEVELS,
    ),
    "relations": Example(
        conf(
            "g(r.sub, r.obj, p.role) && g2(r.obj, p.obj_type) && r.act == p.act",
            columns="role, obj_type, act",
            roles={"g": "_, _, _", "g2": "_, _"},
        ),
        "p, collaborator, doc, read\np, owner, doc, write\ng, nora, doc1, collaborator\ng, omar, doc1, owner\n"
        "g2, doc1, doc\n",
        "+ nora doc1 read; - nora doc1 write; + omar doc1 write; - omar doc2 write; - nora doc2 read",
    ),
}

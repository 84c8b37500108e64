"""Draws Casbin models of any form with rows and requests, and patterns of matching functions with texts."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from casbin import util

from sidecar.policy.stock.expression import Attributed
from tests.unit.policy.stock.setups import (
    ALLOW_AND_DENY,
    ALLOW_OVERRIDE,
    DENY_OVERRIDE,
    PRIORITY,
    SUBJECT_PRIORITY,
    conf,
)

Rows = dict[str, list[tuple[str, ...]]]

_NAMES = ("a", "b", "c", "/x", "/x/1", "/x/1/2", "10.0.0.1", "10.0.0.2", "r1", "r2", "r3", "", "5", "anonymous")
_PATTERNS = (
    *("/x/*", "/x/:id", "/x/{id}", "/*", "*", "10.0.0.0/24", "10.0.0.1", "/x/1", "a", "r1", "r2", "/x/{i}/{i}"),
    *("/x/.", "x", "r1|a", "/**", "/x/{id}/*", "(a)|(b)", "/x/:id/:id", "p_sub", "anot b", "[^/]+", "é"),
)
_LITERALS = (*_NAMES, "p.sub", "a!b", "a&&b", "x||y", "é")
_ROLES = ("r1", "r2", "r3")
_ROLE_PATTERNS = ("/x/*", "/x/:id", "/x/{id}", "*", "/x/1", "/x")
_DOMAINS = ("d1", "d2", "d3")
_MATCHES = ("keyMatch", "keyMatch2", "keyMatch3", "keyMatch4", "keyMatch5", "regexMatch", "globMatch", "ipMatch")
_RULES = (
    *(
        'r.sub == "a"',
        "r.sub.age > 18",
        'r.act == p.act && r.obj != "b"',
        "keyMatch2(r.obj, p.obj)",
        "r.sub.owner in p.obj",
    ),
    *("True", "r.obj.owner == r.sub", "r.sub.age + 1 > 18", "18", '""', '!(r.sub == "a") || r.act in ("b", "c")'),
)
_TIMES = (("_", "_"), ("_", "9999-12-30 00:00:00"), ("0000-01-01 00:00:00", "_"), ("_", "2001-01-01 00:00:00"))


@dataclass(frozen=True)
class DrawnModel:
    conf: str
    rows: Rows
    options: Mapping[str, Mapping[str, str]]
    request: Callable[[], list[Any]]
    suffix: str


class ModelDrawer:
    """Draws one model. Its parts fit each other: what a matcher reads is defined."""

    def __init__(self, drawn: Random) -> None:
        self.drawn = drawn
        self.has_domain = drawn.random() < 0.4
        self.has_attributes = drawn.random() < 0.4
        self.has_extra = drawn.random() < 0.15
        self.suffix = "2" if drawn.random() < 0.1 else ""
        self.is_long = drawn.random() < 0.05  # a chain of more roles than pycasbin follows
        self.names: tuple[str, ...] = (
            *_NAMES,
            *(("k0", "k1", "k3", "k9", "k10", "k11", "k12") if self.is_long else ("p_sub", "anot b", "é")),
        )
        self.columns = ["sub", *(["dom"] if self.has_domain else []), "obj", "act"]
        self.request = [*self.columns, *(["env"] if self.has_extra else [])]
        self.roles: dict[str, int] = {}
        self.options: dict[str, dict[str, str]] = {}
        self._draw_roles()
        if drawn.random() < 0.6:
            self.columns.append("eft")
        if drawn.random() < 0.2:
            self.columns.insert(drawn.randint(0, len(self.columns)), "priority")
        self.has_rule = drawn.random() < 0.12
        if self.has_rule:
            self.columns.insert(drawn.randint(0, len(self.columns)), "rule")
        self.texts = [f"r.{name}" for name in self.request if name != "env"]
        self.cells = [f"p.{name}" for name in self.columns if name in ("sub", "dom", "obj", "act")]
        self.reads_rows = self.has_rule or drawn.random() < 0.95
        if not self.reads_rows:
            self.cells = ['"a"', '"/x/*"', '"r1"', '"10.0.0.0/24"']

    def _draw_roles(self) -> None:
        drawn = self.drawn
        if drawn.random() < 0.3:
            return
        self.roles["g"] = 3 if self.has_domain and drawn.random() < 0.6 else 2
        if drawn.random() < 0.3:
            self.roles["g2"] = 2
        is_conditional = drawn.random() < 0.1
        if is_conditional:
            self.options["g"] = {"condition": "timeMatch"}
        for name in self.roles:
            if drawn.random() < 0.15:
                self.options.setdefault(name, {})["match"] = drawn.choice(_MATCHES)
        if self.roles["g"] == 3 and drawn.random() < 0.3:
            self.options.setdefault("g", {})["match_domain"] = drawn.choice(("keyMatch", "keyMatch2"))

    def model(self) -> DrawnModel:
        drawn = self.drawn
        effects = [ALLOW_OVERRIDE, DENY_OVERRIDE, ALLOW_AND_DENY, PRIORITY]
        if "g" in self.roles and self.columns[0] == "sub":
            effects.append(SUBJECT_PRIORITY)
        matcher = self.expression(3)
        if self.has_rule:
            form = drawn.choice(["eval(p.rule) && ({})", "({}) && eval(p.rule)", "({}) || eval(p.rule)"])
            matcher = form.format(matcher)
        if drawn.random() < 0.15:
            matcher = f'({matcher}) || r.sub == "{drawn.choice(_NAMES[:3])}"'
        forms = {name: ", ".join("_" * count) for name, count in self.roles.items()}
        if "condition" in self.options.get("g", {}):
            forms["g"] += ", (_, _)"
        request, columns = ", ".join(self.request), ", ".join(self.columns)
        text = conf(self.own(matcher), request=request, columns=columns, effect=drawn.choice(effects), roles=forms)
        if self.suffix:
            text = text.replace("\nr = ", "\nr = sub\nr2 = ").replace("\np = ", "\np = sub\np2 = ")
            text = text.replace("\nm = ", "\nm = r.sub == p.sub\nm2 = ")
        count = drawn.randint(1, 9) if self.reads_rows else drawn.randint(0, 1)
        rows: Rows = {f"p{self.suffix}": [tuple(map(self.cell, self.columns)) for _ in range(count)]}
        for name in self.roles:
            rows[name] = list(dict.fromkeys(self.link(name) for _ in range(drawn.randint(0, 5))))
            if self.is_long and "condition" not in self.options.get(name, {}):
                rows[name] += [self.chained(name, at) for at in range(12)]
        return DrawnModel(text, rows, self.options, self.values, self.suffix)

    def own(self, text: str) -> str:
        """Return an expression with the names of the definition that is drawn."""
        return re.sub(r"\b([pr])\.", rf"\g<1>{self.suffix}.", text)

    def chained(self, name: str, at: int) -> tuple[str, ...]:
        return (f"k{at}", f"k{at + 1}", *(["d1"] if self.roles[name] == 3 else []))

    def cell(self, column: str) -> str:
        choices: Mapping[str, Sequence[str]] = {
            "eft": ("allow", "deny", "allow", "x"), "priority": tuple(map(str, range(13))), "dom": ("d1", "d2", "*"),
            "rule": tuple(map(self.own, _RULES)),
        }  # fmt: skip
        return self.drawn.choice(choices.get(column, (*_PATTERNS, *self.names[:12], *self.names[14:])))

    def link(self, name: str) -> tuple[str, ...]:
        drawn = self.drawn
        patterns = _ROLE_PATTERNS if "match" in self.options.get(name, {}) else ()
        roles = (*_ROLES, *patterns, "a") if drawn.random() < 0.3 else _ROLES
        link = [drawn.choice((*_NAMES[:3], *_ROLES[:2], *patterns)), drawn.choice(roles)]
        if self.roles[name] == 3:
            link.append(drawn.choice(("d1", "d2", "*")))
        if "condition" in self.options.get(name, {}):
            link.extend(drawn.choice(_TIMES))
        return tuple(link)

    def values(self) -> list[Any]:
        def value() -> str:
            text = self.drawn.choice(self.names)
            if not self.has_attributes:
                return text
            attributes = {
                name: self.drawn.choice([17, 18, 20, 18.5, "a", text, True, None, [1, "a"]])
                for name in ("age", "owner")
                if self.drawn.random() < 0.7
            }
            return Attributed(text, attributes)

        request: list[Any] = [value(), value(), self.drawn.choice(self.names)]
        if self.has_domain:
            request.insert(1, self.drawn.choice(_DOMAINS))
        if self.has_extra:
            request.append(self.drawn.choice([1, 2, 18, "a", "d1", False, 2.5]))
        return request

    # --- matchers

    def expression(self, depth: int) -> str:
        drawn = self.drawn
        if depth == 0 or drawn.random() < 0.25:
            return self.atom()
        kind = drawn.random()
        if kind < 0.55:
            return " && ".join(self.expression(depth - 1) for _ in range(drawn.randint(2, 3)))
        if kind < 0.85:
            return f"({self.expression(depth - 1)} || {self.expression(depth - 1)})"
        if kind < 0.9:
            return f"({self.atom()} if {self.atom()} else {self.atom()})"
        return f"!({self.expression(depth - 1)})"

    def atom(self) -> str:
        drawn = self.drawn
        kinds = (
            [self.equality] * 6
            + [self.match] * 4
            + [self.member] * 2
            + [self.ordering, self.column, self.native, self.got]
        )
        kinds += [self.role] * 5 if self.roles else []
        kinds += [self.attribute] * 3 if self.has_attributes else []
        kinds += [self.extra] * 3 if self.has_extra else []
        return drawn.choice(kinds)()

    def text(self) -> str:
        return self.drawn.choice((*self.texts, *self.cells, f'"{self.drawn.choice(_LITERALS)}"'))

    def equality(self) -> str:
        return f"{self.drawn.choice(self.texts)} {self.drawn.choice(('==', '==', '==', '!='))} {self.text()}"

    def role(self) -> str:
        name = self.drawn.choice(sorted(self.roles))
        pair = [self.drawn.choice(self.texts), self.drawn.choice(self.cells)]
        if self.drawn.random() < 0.1:
            pair = self.drawn.choice([pair[::-1], [pair[0], '"r1"'], [pair[0], self.drawn.choice(self.texts)]])
        domain = [self.drawn.choice(("r.dom", "r.dom", "r.dom", "p.dom", '"d1"'))] if self.roles[name] == 3 else []
        if domain == ["p.dom"] and not self.reads_rows:
            domain = ["r.dom"]
        return f"{name}({', '.join([*pair, *domain])})"

    def match(self) -> str:
        pattern = self.drawn.choice((*self.cells, *self.cells, '"/x/*"', '"/x/{id}"', *self.texts))
        return f"{self.drawn.choice(_MATCHES)}({self.drawn.choice(self.texts)}, {pattern})"

    def native(self) -> str:
        text, cell = self.drawn.choice(self.texts), self.drawn.choice(self.cells)
        effect = "p.eft" if "eft" in self.columns else '"allow"'
        return self.drawn.choice((f"who({text}, {cell}, {effect})", f"glob({text}, {cell})", f"globs({text}, {cell})"))

    def got(self) -> str:
        text, cell, other = self.drawn.choice(self.texts), self.drawn.choice(self.cells), self.text()
        which = self.drawn.randint(1, 3)
        call = f"keyGet({text}, {cell})" if which == 1 else f'keyGet{which}({text}, {cell}, "id")'
        return f"{call} {self.drawn.choice(('==', '!='))} {other}"

    def member(self) -> str:
        text, cell = self.drawn.choice(self.texts), self.drawn.choice(self.cells)
        return self.drawn.choice((f'{text} in ({cell}, "a", "b")', f"{text} in {cell}", f'{text} not in ["a", {cell}]'))

    def ordering(self) -> str:
        text, cell = self.drawn.choice(self.texts), self.drawn.choice(self.cells)
        return self.drawn.choice(
            (f"{text} < {cell}", f"{text} >= {cell}", f"{text}.startswith({cell})", f"{text} + {cell} > {text}")
        )

    def column(self) -> str:
        return f'{self.drawn.choice(self.cells)} == "{self.drawn.choice(_NAMES)}"'

    def attribute(self) -> str:
        drawn = self.drawn
        value = f"r.{drawn.choice(('sub', 'obj'))}.{drawn.choice(('age', 'owner'))}"
        calculated = drawn.choice(
            (value, value, f"{value} * 2", f"{value} + 1", f"-{value}", f"{value} % 7", f"{value} / 2")
        )
        other = drawn.choice(("18", "36", "r.sub", "p.obj", "r.obj.age", '"a"', "None", "17.5"))
        return drawn.choice((
            f"{calculated} {drawn.choice(('==', '>', '<', '!=', '<='))} {other}",
            f"16 < {value} <= 18", f"keyMatch({value}, p.obj)", f"keyMatch2({value}, p.obj)",
            f"{value} in (18, p.obj)", f"regexMatch({value}, p.act)", f"ipMatch({value}, p.obj)",
        ))  # fmt: skip

    def extra(self) -> str:
        return self.drawn.choice(
            ("r.env == 1", "r.env > 1", "r.env in (1, 2, p.obj)", "r.env == p.sub", "r.env + 1 > 2")
        )


# --- patterns ---------------------------------------------------------------------------------------------------------

FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "keyMatch": util.key_match,
    "keyMatch2": util.key_match2,
    "keyMatch3": util.key_match3,
    "keyMatch4": util.key_match4,
    "keyMatch5": util.key_match5,
    "regexMatch": util.regex_match,
    "globMatch": util.glob_match,
    "ipMatch": util.ip_match,
    "keyGet": util.key_get,
    "keyGet2": util.key_get2,
    "keyGet3": util.key_get3,
}
"""The functions of pycasbin."""
_PIECES = (
    *("/", "/", "a", "b", "foo", "bar", "*", "/*", ":id", ":x", "{id}", "{x}", "{y}", "-", "_", ".", "1", "**", "?"),
    *(
        "[ab]",
        "+",
        "^",
        "$",
        "|",
        "(a)",
        "\\d",
        "?q=1",
        "{a}-{b}",
        ",",
        "[!a]",
        "[.]",
        "{a,b}",
        "{,/**}",
        "\\*",
        "/**/",
    ),
)
_TEXT_PIECES = (
    "/",
    "/",
    "a",
    "b",
    "foo",
    "bar",
    "-",
    "_",
    "1",
    "x",
    "?q=1",
    ".",
    "{id}",
    ":id",
    "*",
    ",",
    "}",
    "(",
    "..",
)
_ADDRESSES = ("10.0.0.1", "10.0.0.9", "192.168.1.1", "::1", "fe80::1", "10.0.0.x", "", "a")
_NETWORKS = (*_ADDRESSES, "10.0.0.0/24", "10.0.0.0/30", "::/0", "10.0.0.5/8", "10.0.0.0/99")


def drawn_pattern(drawn: Random, function: str) -> tuple[str, list[str]]:
    """Return a pattern and texts, of which many match."""
    if function == "ipMatch":
        return drawn.choice(_NETWORKS), [drawn.choice(_ADDRESSES) for _ in range(3)]
    pattern = _drawn_from(_PIECES, drawn, 6)
    return pattern, [
        _fitting(pattern, drawn),
        _fitting(pattern, drawn) + drawn.choice("/a."),
        _drawn_from(_TEXT_PIECES, drawn, 7),
    ]


def _drawn_from(pieces: Sequence[str], drawn: Random, most: int) -> str:
    return "".join(drawn.choice(pieces) for _ in range(drawn.randint(0, most)))


def _fitting(pattern: str, drawn: Random) -> str:
    text = re.sub(r"\{([^{}]*,[^{}]*)\}", lambda found: drawn.choice(found[1].split(",")), pattern)
    text = re.sub(r":[a-z]+|\{[^}]*\}", lambda found: drawn.choice(["a", "foo", "1", "", "a/b"]), text)
    for wildcard, values in (
        ("**", ("a", "a/b", "")),
        ("*", ("", "foo", "a/b", "/", ".a")),
        ("[ab]", "a"),
        ("[!a]", "b"),
    ):
        text = text.replace(wildcard, drawn.choice(values))
    return text.replace("?", "").replace("\\d", "1").replace("[.]", ".").replace("\\", "")

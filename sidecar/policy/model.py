"""Reads Casbin models and checks that they are safe to evaluate.

A model of the sidecar is a `.conf` in Casbin's own form over fixed names; models of other forms are read by
`policy.stock`. Features that Casbin accepts silently but that can allow too much are refused: effects that allow by
default, `eval`, `regexMatch` and the `keyMatch` family, literals that Casbin rewrites, and missing names.

A matcher must be a conjunction that contains `live(p.expires_at, r.ctx)` and `holds(p.when, p.eft, r.ctx)`: so an
expired row or a row with a failed condition never matches, whatever the rest of the matcher is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from sidecar.policy import expression
from sidecar.policy.expression import Name, Node, conjuncts
from sidecar.policy.faults import Faults, SourceLine, meant, shown
from sidecar.vocabulary import PermissionKind

REQUEST = ("sub", "obj", "act", "ctx")
COLUMNS = ("sub", "obj", "act", "expires_at", "max_calls_per_hour", "when", "eft")
DOMAIN = "dom"  # optional in both definitions: the namespace of the subject, for `g = _, _, _`

ALLOW_AND_DENY = "some(where (p.eft == allow)) && !some(where (p.eft == deny))"
ALLOW_OVERRIDE = "some(where (p.eft == allow))"
PRIORITY = "priority(p.eft) || deny"
DENY_OVERRIDE = "!some(where (p.eft == deny))"  # valid for guardrails only: it allows everything that no row covers
EFFECTS = (ALLOW_AND_DENY, ALLOW_OVERRIDE, PRIORITY)

MAX_MODEL_CHARS = 16 * 1024
_LIVE = expression.FunctionCall("live", (Name("p", "expires_at"), Name("r", "ctx")))
_HOLDS = expression.FunctionCall("holds", (Name("p", "when"), Name("p", "eft"), Name("r", "ctx")))
SECTIONS: Mapping[str, str] = {
    "request_definition": "r",
    "policy_definition": "p",
    "role_definition": "g",
    "policy_effect": "e",
    "matchers": "m",
}
_KEY = re.compile(r"[rpgem](?:[2-9]|[1-9][0-9])?")
_OWN_KEYS = ("r", "p", "g", "g2", "e", "m")
_HEADING = re.compile(r"\[([^\]]*)\]")


@dataclass(frozen=True, slots=True)
class Model:
    """One checked model. `groups` are its role definitions; `matcher` is the text as written; `asks` are the parts of
    its conjunction other than `live` and `holds`."""

    kind: PermissionKind
    request: tuple[str, ...]
    columns: tuple[str, ...]
    groups: tuple[str, ...]
    effect: str
    matcher: str
    asks: tuple[Node, ...]
    by_domain: bool = False


_GUARDRAIL_MATCHER = (
    "(who(r.sub, p.sub, p.eft) || g(r.sub, p.sub)) && (glob(r.obj, p.obj) || g2(r.obj, p.obj)) && globs(r.act, p.act)"
    " && live(p.expires_at, r.ctx) && holds(p.when, p.eft, r.ctx)"
)


def guardrail_model() -> Model:
    tree, _ = expression.read_matcher(_GUARDRAIL_MATCHER)
    assert tree is not None
    asks = _without_outcomes(tree)
    kind = PermissionKind.GUARDRAIL
    return Model(kind, REQUEST, COLUMNS, ("g", "g2"), DENY_OVERRIDE, _GUARDRAIL_MATCHER, asks)


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One `key = value`. `column` is where the value begins."""

    value: str
    line: SourceLine
    column: int
    faults: Faults

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(part.strip() for part in self.value.split(","))

    def refuse(self, code: str, message: str, hint: str = "", token: str = "") -> None:
        column = self.line.text.find(token, self.column - 1) + 1 if token else 0
        width = len(token) if column else max(1, len(self.value))
        self.faults.error(code, message, self.line, column or self.column, width, hint)


def parse_model(kind: PermissionKind, file: str, text: str, faults: Faults) -> Model | None:
    """Returns the sidecar's model in a text; None after faults."""
    return own_model(kind, file, model_entries(file, text, faults), faults)


def is_own(entries: Mapping[str, ModelEntry]) -> bool:
    """Whether a model is one of the sidecar's, whose requests have a context. All others are Casbin's own
    (`policy.stock`)."""
    return "r" not in entries or "ctx" in entries["r"].parts


def own_model(kind: PermissionKind, file: str, entries: Mapping[str, ModelEntry], faults: Faults) -> Model | None:
    before = len(faults.errors)
    for key, entry in entries.items():
        if key not in _OWN_KEYS:
            entry.refuse("P201", f"{shown(key)} is unknown here", "a model with r.ctx has r, p, g, g2, e and m")
    for section, key in SECTIONS.items():
        if section != "role_definition" and key not in entries:
            faults.whole("P202", f"[{section}] with {key} = … is missing", file)
    request = _names(entries, "r", REQUEST, "a request has exactly these fields")
    columns = _names(entries, "p", COLUMNS, "a row has exactly these columns")
    groups = tuple(key for key in ("g", "g2") if key in entries)
    by_domain = False
    for key in groups:
        # Domain patterns have granted access across tenants: domains must be exact names.
        if key == "g" and entries[key].parts == ("_", "_", "_") and DOMAIN in request:
            by_domain = True
        elif entries[key].parts != ("_", "_"):
            hint = f"no link conditions; a domain for g alone, and with {DOMAIN} in the request: g = _, _, _"
            entries[key].refuse("P202", f"{key} must be _, _", hint)
    effects = {"".join(effect.split()): effect for effect in EFFECTS}
    effect = effects.get("".join(entries["e"].value.split()), "") if "e" in entries else ""
    if not effect and "e" in entries:
        hint = f"write e = {ALLOW_AND_DENY}; other effects allow by default, or depend on more than the rows"
        entries["e"].refuse("P203", "this effect is refused", hint)
    matcher = entries["m"].value if "m" in entries else ""
    model = Model(kind, request, columns, groups, effect, matcher, (), by_domain)
    if "m" in entries:
        model = replace(model, asks=_checked_matcher(entries["m"], model))
    return model if len(faults.errors) == before else None


def model_entries(file: str, text: str, faults: Faults) -> dict[str, ModelEntry]:
    r"""Returns the `key = value` entries by key. A `\` at the end of a line continues it, as in Casbin's own reader."""
    entries: dict[str, ModelEntry] = {}
    section, pending = "", ""
    start: SourceLine | None = None
    for number, raw in enumerate(text.split("\n"), start=1):
        content = raw.strip()
        if not pending and (not content or content[0] in "#;"):
            continue
        line = start or SourceLine(file, number, raw.rstrip("\r"))
        if content.endswith("\\"):
            pending, start = pending + content[:-1].strip() + " ", line
            continue
        content, pending, start = pending + content, "", None
        if heading := _HEADING.fullmatch(content):
            section = heading[1]
            if section not in SECTIONS:
                faults.error("P201", f"section {shown(section)} is unknown", line, hint=meant(section, SECTIONS))
        else:
            _keep_entry(section, content, line, entries, faults)
    if pending and start is not None:
        faults.error("P201", "the line that this one continues on is missing", start)
    return entries


def _keep_entry(section: str, content: str, line: SourceLine, entries: dict[str, ModelEntry], faults: Faults) -> None:
    key, equals, value = content.partition("=")
    key, column = key.strip(), len(line.text) - len(line.text.lstrip()) + 1
    if section not in SECTIONS:
        if not section:
            faults.error("P201", "this is in no section", line, column)
    elif not equals or not _KEY.fullmatch(key) or key[0] != SECTIONS[section]:
        known = f"known are {SECTIONS[section]}, {SECTIONS[section]}2 and so on"
        faults.error("P201", f"{shown(key)} is unknown in [{section}]", line, column, hint=known)
    elif key in entries:
        faults.error("P201", f"{key} is there twice", line, column)
    else:
        start = line.text.find(value.strip()[:8], line.text.find("=") + 1)
        entries[key] = ModelEntry(value.strip(), line, max(0, start) + 1, faults)


def _names(entries: Mapping[str, ModelEntry], key: str, needed: tuple[str, ...], message: str) -> tuple[str, ...]:
    """Returns the names of a definition in order; `dom` may be among them. After a fault, returns the needed ones."""
    if key not in entries:
        return needed
    names = entries[key].parts
    if sorted(set(names) - {DOMAIN}) == sorted(needed) and len(set(names)) == len(names):
        return names
    hint = f"write, in any order, {key} = {', '.join(needed)}; {DOMAIN} may be added"
    entries[key].faults.error("P202", message, entries[key].line, entries[key].column, hint=hint)
    return needed


def _checked_matcher(entry: ModelEntry, model: Model) -> tuple[Node, ...]:
    tree, bad_parts = expression.read_matcher(entry.value)
    for bad in bad_parts:
        hint = meant(bad.token, expression.FUNCTIONS) if bad.message.startswith("function") else ""
        entry.refuse("P204", bad.message, hint or bad.hint, bad.token)
    if tree is None:
        return ()
    names = {f"r.{name}" for name in model.request} | {f"p.{name}" for name in model.columns}
    for written in dict.fromkeys(f"{name.side}.{name.field}" for name in expression.names_in(tree)):
        if written not in names:
            entry.refuse("P204", f"{shown(written)} is not a name here", meant(written, names), written)
    parts, calls, count = conjuncts(tree), list(expression.calls_in(tree)), 2 + model.by_domain
    for call in calls:
        if call.function in ("g", "g2") and call.function not in model.groups:
            message, hint = f"function {shown(call.function)} is refused", f"define {call.function} = _, _"
            entry.refuse("P204", message, hint, call.function)
        elif call.function == "g" and len(call.arguments) != count:
            entry.refuse("P204", f"g takes {count} arguments", "as many as its definition has", "g(")
    for needed, form in ((_LIVE, "live(p.expires_at, r.ctx)"), (_HOLDS, "holds(p.when, p.eft, r.ctx)")):
        if parts.count(needed) != 1 or sum(call.function == needed.function for call in calls) != 1:
            hint = "otherwise an expired row, or one whose condition failed, could match"
            entry.refuse("P205", f"{form} must be one part of the conjunction, and nowhere else", hint)
    asks = _without_outcomes(tree)
    read = {name for part in asks for name in expression.names_in(part)}
    for field in ("sub", "obj", "act"):
        if Name("r", field) not in read:
            entry.refuse("P205", f"the matcher never reads r.{field}", "every row would match every one of them")
    if Name("r", "ctx") in read:
        entry.refuse("P205", "r.ctx is for live and holds only")
    return asks


def _without_outcomes(tree: Node) -> tuple[Node, ...]:
    return tuple(part for part in conjuncts(tree) if part not in (_LIVE, _HOLDS))

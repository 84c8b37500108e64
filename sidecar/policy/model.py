"""HOW is a question decided: what does this Casbin model say, and is it safe to ask?

A model is a `.conf` in Casbin's own form over fixed names (CONTRACT 2.1). What Casbin would take in silence and then
allow too much with is refused here: effects that allow by default or by order, `eval`, `regexMatch` and the
`keyMatch` family, literals in matchers, missing names (threats K1-K4, K8-K10, libraries 1.1).

A matcher must be a conjunction that holds `live(p.expires_at, r.ctx)` and `holds(p.when, p.eft, r.ctx)`: then no
expired row and no row with a failed condition can match, whatever else the matcher says. The rest of the conjunction
is cut into `Factor`s by what they read of the request, so that each part is asked once per caller, object and action
and not once per combination. Cutting a conjunction changes no answer.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass

from sidecar.policy.faults import Faults, Line, meant, shown
from sidecar.vocabulary import PermissionKind

REQUEST = ("sub", "obj", "act", "ctx")
COLUMNS = ("sub", "obj", "act", "expires_at", "max_calls_per_hour", "when", "eft")
ALLOW_AND_DENY = "some(where (p.eft == allow)) && !some(where (p.eft == deny))"
DENY_ONLY = "!some(where (p.eft == deny))"  # right for guardrails alone: they are asked only where rows are
FUNCTIONS: Mapping[str, int] = {"who": 3, "glob": 2, "globs": 2, "live": 2, "holds": 3, "g": 2, "g2": 2}

MAX_MODEL_CHARS = 16 * 1024
_LIVE, _HOLDS = "live(p_expires_at, r_ctx)", "holds(p_when, p_eft, r_ctx)"
_SECTIONS: Mapping[str, tuple[str, ...]] = {
    "request_definition": ("r",),
    "policy_definition": ("p",),
    "role_definition": ("g", "g2"),
    "policy_effect": ("e",),
    "matchers": ("m",),
}
_HEADING = re.compile(r"\[([^\]]*)\]")


@dataclass(frozen=True, slots=True)
class Factor:
    """One part of a matcher: an expression in Casbin's form, the request fields and the columns that it reads."""

    matcher: str
    reads: tuple[str, ...]
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Model:
    """One checked model. `groups` are the role definitions it has, `matcher` is as written."""

    kind: PermissionKind
    columns: tuple[str, ...]
    groups: tuple[str, ...]
    effect: str
    matcher: str
    factors: tuple[Factor, ...]


_GUARDRAIL_MATCHER = (
    "(who(r.sub, p.sub, p.eft) || g(r.sub, p.sub)) && (glob(r.obj, p.obj) || g2(r.obj, p.obj)) && globs(r.act, p.act)"
    " && live(p.expires_at, r.ctx) && holds(p.when, p.eft, r.ctx)"
)


def guardrail_model() -> Model:
    """Guardrails stand above the kinds: their model is ours and cannot be replaced."""
    factors = _factors(_conjuncts(_parsed(_GUARDRAIL_MATCHER)))
    return Model(PermissionKind.GUARDRAIL, COLUMNS, ("g", "g2"), DENY_ONLY, _GUARDRAIL_MATCHER, factors)


@dataclass(frozen=True, slots=True)
class _Entry:
    value: str
    line: Line
    column: int


def parse_model(kind: PermissionKind, file: str, text: str, faults: Faults) -> Model | None:
    """The model, or None with every fault recorded."""
    before = len(faults.errors)
    entries = _entries(file, text, faults)
    for section, keys in _SECTIONS.items():
        if section != "role_definition" and keys[0] not in entries:
            faults.whole("P202", f"[{section}] with {keys[0]} = … is missing", file)
    columns = _columns(entries, faults)
    groups = tuple(key for key in ("g", "g2") if key in entries)
    _check_groups(entries, groups, faults)
    if "e" in entries:
        _check_effect(entries["e"], faults)
    factors = _checked_matcher(entries["m"], groups, faults) if "m" in entries else ()
    if len(faults.errors) > before:
        return None
    return Model(kind, columns, groups, ALLOW_AND_DENY, entries["m"].value, factors)


def _entries(file: str, text: str, faults: Faults) -> dict[str, _Entry]:
    """`key = value` by key; a `\\` at the end of a line continues it, as in Casbin's own reader."""
    entries: dict[str, _Entry] = {}
    section, pending = "", ""
    start: Line | None = None
    for number, raw in enumerate(text.split("\n"), start=1):
        content = raw.strip()
        if not pending and (not content or content[0] in "#;"):
            continue
        line = start or Line(file, number, raw.rstrip("\r"))
        if content.endswith("\\"):
            pending, start = pending + content[:-1].strip() + " ", line
            continue
        content, pending, start = pending + content, "", None
        heading = _HEADING.fullmatch(content)
        if heading:
            section = _section(heading[1], line, faults)
        else:
            _keep_entry(section, content, line, entries, faults)
    if pending and start is not None:
        faults.error("P201", "the line that this one continues on is missing", start)
    return entries


def _section(name: str, line: Line, faults: Faults) -> str:
    if name not in _SECTIONS:
        faults.error("P201", f"section {shown(name)} is unknown", line, hint=meant(name, _SECTIONS))
    return name


def _keep_entry(section: str, content: str, line: Line, entries: dict[str, _Entry], faults: Faults) -> None:
    key, equals, value = content.partition("=")
    key, column = key.strip(), len(line.text) - len(line.text.lstrip()) + 1
    if section not in _SECTIONS:
        if not section:
            faults.error("P201", "this stands in no section", line, column)
    elif not equals or key not in _SECTIONS[section]:
        known = " and ".join(_SECTIONS[section])
        faults.error("P201", f"{shown(key)} is unknown in [{section}]", line, column, hint=f"known is {known}")
    elif key in entries:
        faults.error("P201", f"{key} is there twice", line, column)
    else:
        start = line.text.find(value.strip()[:8], line.text.find("=") + 1)
        entries[key] = _Entry(value.strip(), line, max(0, start) + 1)


def _columns(entries: Mapping[str, _Entry], faults: Faults) -> tuple[str, ...]:
    request, policy = entries.get("r"), entries.get("p")
    if request is not None and tuple(_split(request.value)) != REQUEST:
        hint = "write r = " + ", ".join(REQUEST)
        faults.error("P202", "a request has exactly these fields", request.line, request.column, hint=hint)
    columns = _split(policy.value) if policy is not None else []
    if policy is not None and sorted(columns) != sorted(COLUMNS):
        hint = "write, in any order, p = " + ", ".join(COLUMNS)
        faults.error("P202", "a row has exactly these columns", policy.line, policy.column, hint=hint)
    return tuple(columns)


def _split(value: str) -> list[str]:
    return [part.strip() for part in value.split(",")]


def _check_groups(entries: Mapping[str, _Entry], groups: tuple[str, ...], faults: Faults) -> None:
    for key in groups:
        if _split(entries[key].value) != ["_", "_"]:
            # Threats K13: domains and their patterns have granted across tenants.
            hint = "no domains and no link conditions: put the tenant into the name"
            faults.error("P202", f"{key} must be _, _", entries[key].line, entries[key].column, hint=hint)


def _check_effect(entry: _Entry, faults: Faults) -> None:
    if "".join(entry.value.split()) != "".join(ALLOW_AND_DENY.split()):
        hint = f"others allow by default, or by the order of rows: e = {ALLOW_AND_DENY}"
        faults.error("P203", "this effect is refused", entry.line, entry.column, max(1, len(entry.value)), hint)


# --- the matcher ----------------------------------------------------------------------------------------------------


def _checked_matcher(entry: _Entry, groups: tuple[str, ...], faults: Faults) -> tuple[Factor, ...]:
    def refuse(code: str, message: str, hint: str = "", token: str = "") -> None:
        column = entry.line.text.find(token, entry.column - 1) + 1 if token else 0
        width = len(token) if column else max(1, len(entry.value))
        faults.error(code, message, entry.line, column or entry.column, width, hint)

    if "#" in entry.value or ";" in entry.value or not entry.value.isascii():
        refuse("P204", "a matcher holds no comments and only ASCII")
        return ()
    try:
        tree = _parsed(entry.value)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        refuse("P204", "this is no expression", "check the brackets and operators")
        return ()
    for message, hint, token in _unsafe_parts(tree, groups):
        refuse("P204", message, hint, token)
    conjuncts = _conjuncts(tree)
    written = [ast.unparse(part) for part in conjuncts]
    for needed, call in ((_LIVE, "live(p.expires_at, r.ctx)"), (_HOLDS, "holds(p.when, p.eft, r.ctx)")):
        if written.count(needed) != 1 or _calls(tree, needed.partition("(")[0]) != 1:
            why = "else an expired row, or one whose condition failed, could match"
            refuse("P205", f"{call} must be one part of the conjunction, and nowhere else", why)
    factors = _factors(conjuncts)
    for name in ("sub", "obj", "act"):
        if not any(name in factor.reads for factor in factors):
            refuse("P205", f"the matcher never reads r.{name}", "every row would match every one of them")
    if any("ctx" in factor.reads for factor in factors):
        refuse("P205", "r.ctx is for live and holds only")
    return factors


def _parsed(matcher: str) -> ast.expr:
    """The tree of what Casbin makes of a matcher (CoreEnforcer._get_expression, util.escape_assertion)."""
    text = re.sub(r"\b([pr])\.", r"\1_", matcher).replace("&&", " and ").replace("||", " or ")
    return ast.parse(re.sub(r"!(?!=)", " not ", text).strip(), mode="eval").body


def _conjuncts(tree: ast.expr) -> list[ast.expr]:
    if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And):
        return [part for value in tree.values for part in _conjuncts(value)]
    return [tree]


def _calls(tree: ast.expr, name: str) -> int:
    return sum(isinstance(node, ast.Name) and node.id == name for node in ast.walk(tree))


def _unsafe_parts(tree: ast.expr, groups: tuple[str, ...]) -> list[tuple[str, str, str]]:
    """What is not one of our functions over our names, as (message, hint, text): an allow-list, so that nothing new
    slips through."""
    names = {f"r_{name}" for name in REQUEST} | {f"p_{name}" for name in COLUMNS}
    functions = {name for name in FUNCTIONS if name not in ("g", "g2") or name in groups}
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            # Threats K9: Casbin rewrites what looks like a name inside of literals.
            found.append(
                ("a literal is refused", "Casbin does not keep literals as they are: use rows", str(node.value))
            )
        elif isinstance(node, ast.Call):
            found += _unsafe_call(node, functions)
        elif isinstance(node, ast.Name):
            if id(node) not in called and node.id not in names:
                written = node.id.replace("_", ".", 1)
                found.append((f"{shown(written)} is no name here", meant(node.id, names).replace("_", ".", 1), written))
        elif not isinstance(node, _SAFE_NODES):
            found.append((f"{type(node).__name__} is refused", "use && || ! == != and the functions", ""))
    return found


_SAFE_NODES = (ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.Compare, ast.Eq, ast.NotEq, ast.Load)


def _unsafe_call(node: ast.Call, functions: set[str]) -> list[tuple[str, str, str]]:
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if name not in functions:
        # Threats K2, K3, K8: Casbin's own matchers match prefixes, and eval runs what stands in a row.
        hint = meant(name, functions) or "the functions are " + ", ".join(sorted(functions))
        return [(f"function {shown(name)} is refused", hint, name)]
    if node.keywords or len(node.args) != FUNCTIONS[name]:
        return [(f"{name} takes {FUNCTIONS[name]} arguments", "", name)]
    return []


def _factors(conjuncts: list[ast.expr]) -> tuple[Factor, ...]:
    """The conjuncts but `live` and `holds`, put together by what they read of the request."""
    grouped: dict[tuple[str, ...], list[ast.expr]] = {}
    for part in conjuncts:
        if ast.unparse(part) not in (_LIVE, _HOLDS):
            grouped.setdefault(_read(part, "r_"), []).append(part)
    return tuple(_factor(reads, parts) for reads, parts in sorted(grouped.items()))


def _factor(reads: tuple[str, ...], parts: list[ast.expr]) -> Factor:
    matcher = " and ".join(f"({ast.unparse(part)})" for part in parts)
    columns = sorted({column for part in parts for column in _read(part, "p_")})
    return Factor(matcher, reads, tuple(columns))


def _read(part: ast.expr, prefix: str) -> tuple[str, ...]:
    names = {node.id for node in ast.walk(part) if isinstance(node, ast.Name)}
    return tuple(sorted(name.removeprefix(prefix) for name in names if name.startswith(prefix)))

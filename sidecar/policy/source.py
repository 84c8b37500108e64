"""What do the operator's models and rows say, all of it, or what is wrong with them?

`load_policy` reads every file, checks every row, and either returns one `PolicySource` or raises `PolicyError` with
every fault at once. Reading files is all that it does outside: no clock, no network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from sidecar.errors import Fault, PolicyError
from sidecar.policy import grammar
from sidecar.policy.conditions import Condition, Language
from sidecar.policy.faults import Faults, Line, meant, shown
from sidecar.policy.files import KINDS, PolicyFile, policy_files, read_text
from sidecar.policy.grammar import NONE, Wrong
from sidecar.policy.model import MAX_MODEL_CHARS, Model, guardrail_model, parse_model
from sidecar.policy.roles import MAX_DEPTH, Links
from sidecar.policy.rows import Field, Row, parse_rows
from sidecar.policy.scopes import ScopeLike, inside, scopes_of
from sidecar.vocabulary import PermissionKind, Rule

MAX_ROWS = 200_000
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PolicySource:
    """A checked policy. `columns` has, rule by rule, the texts that Casbin is given, in the order of the model's
    columns; `conditions` the compiled `when` by its text.

    `revision` is the SHA-256 (hex) of what is decided: models, rules with their ids and notes, roles and sets. It does
    not change with the names of files, the order of rows, or comments.
    """

    models: Mapping[PermissionKind, Model]
    rules: tuple[Rule, ...]
    columns: tuple[tuple[str, ...], ...]
    roles: Links
    sets: Links
    conditions: Mapping[str, Condition]
    revision: str
    warnings: tuple[Fault, ...] = ()


@dataclass(slots=True)
class _Draft:
    """What was read so far."""

    models: dict[PermissionKind, Model]
    scopes: Sequence[ScopeLike]
    names: frozenset[str] | None
    faults: Faults = field(default_factory=Faults)
    language: Language = field(default_factory=Language)
    conditions: dict[str, Condition] = field(default_factory=dict)
    rules: dict[str, tuple[Rule, tuple[str, ...]]] = field(default_factory=dict)
    links: dict[str, dict[tuple[str, str], Line]] = field(default_factory=lambda: {"g": {}, "g2": {}})
    rows: int = 0


def load_policy(
    models: Path, policies: Path, *, scopes: Sequence[ScopeLike] = (), names: frozenset[str] | None = None
) -> PolicySource:
    """The policy in two folders. `names` are the upstreams that exist, if rows are to be held against them.

    Raises PolicyError with every fault; what is merely suspicious is in `warnings`.
    """
    draft = _Draft({}, scopes, names)
    _read_models(models, draft)
    for file in policy_files(policies, draft.faults):
        _read_file(file, draft)
    if not draft.rules and not draft.faults.errors:
        # Threats K1, K14: an empty policy is a broken mount or a truncated file far more often than a wish.
        draft.faults.whole("P004", "no rule in any file", str(policies), "write at least one p row")
    roles = _links("g", draft)
    sets = _links("g2", draft)
    _warn_empty_sets(sets, draft)
    if draft.faults.errors:
        raise PolicyError(sorted(draft.faults.errors, key=lambda fault: (fault.file, fault.line, fault.column)))
    return _source(draft, roles, sets)


def _source(draft: _Draft, roles: Links, sets: Links) -> PolicySource:
    ordered = [draft.rules[name] for name in sorted(draft.rules)]
    return PolicySource(
        models=draft.models,
        rules=tuple(rule for rule, _ in ordered),
        columns=tuple(columns for _, columns in ordered),
        roles=roles,
        sets=sets,
        conditions=draft.conditions,
        revision=_revision(draft, roles, sets),
        warnings=tuple(draft.faults.warnings),
    )


def _revision(draft: _Draft, roles: Links, sets: Links) -> str:
    digest = sha256()
    for kind, model in sorted(draft.models.items()):
        digest.update(repr((kind.value, model.columns, model.groups, model.effect, model.matcher)).encode())
    for name, (rule, columns) in sorted(draft.rules.items()):
        notes = (rule.kind.value, rule.per, rule.shadow, rule.owner, rule.reason)
        digest.update(repr((name, columns, notes)).encode())
    for links in (roles, sets):
        digest.update(repr(sorted(links.parents.items())).encode())
    return digest.hexdigest()


# --- models ---------------------------------------------------------------------------------------------------------


def _read_models(folder: Path, draft: _Draft) -> None:
    draft.models[PermissionKind.GUARDRAIL] = guardrail_model()
    known = {f"{kind.value}.conf": kind for kind in KINDS}
    if folder.is_dir():
        for path in sorted(folder.iterdir()):
            if path.name not in known and not path.name.startswith("."):
                draft.faults.whole("P002", "no model has this name", str(path), meant(path.name, known))
    for name, kind in known.items():
        path = folder / name
        text = read_text(path, draft.faults)
        if text is not None and len(text) > MAX_MODEL_CHARS:
            draft.faults.whole("P201", f"longer than {MAX_MODEL_CHARS} characters", str(path))
        elif text is not None:
            model = parse_model(kind, str(path), text, draft.faults)
            if model is not None:
                draft.models[kind] = model


# --- rows -----------------------------------------------------------------------------------------------------------


def _read_file(file: PolicyFile, draft: _Draft) -> None:
    text = read_text(file.path, draft.faults)
    if text is None:
        return
    scopes = scopes_of(file.relative, draft.scopes)
    for row in parse_rows(str(file.path), text, draft.faults):
        draft.rows += 1
        if draft.rows > MAX_ROWS:
            draft.faults.error("P001", f"more than {MAX_ROWS} rows in all", row.line)
            return
        if file.kind is None:
            _read_link(row, scopes, draft)
        elif row.type != "p":
            draft.faults.error("P111", f"a {row.type} row belongs into roles.csv", row.line)
        elif file.kind in draft.models:  # else the model itself is the fault
            _RuleReader(row, draft.models[file.kind], scopes, draft).read()


def _take(row: Row, field: Field, faults: Faults, read: Callable[..., T], *more: object) -> T | None:
    """What a reader makes of a field, or None after a fault at its place."""
    try:
        return read(field.text, *more)
    except Wrong as wrong:
        line = row.notes_line if field in row.notes.values() and row.notes_line else row.line
        column = field.column_of(wrong.offset) if wrong.width else field.column
        faults.error(wrong.code, wrong.message, line, column, max(1, wrong.width or field.width), wrong.hint)
        return None


class _RuleReader:
    """One `p` row to one Rule."""

    def __init__(self, row: Row, model: Model, scopes: Sequence[ScopeLike], draft: _Draft) -> None:
        self._row, self._model, self._scopes, self._draft = row, model, scopes, draft
        self._faults = draft.faults

    def read(self) -> None:
        row, model = self._row, self._model
        if len(row.fields) != len(model.columns):
            message = f"{len(row.fields) + 1} fields, but {len(model.columns) + 1} are needed"
            hint = "p, " + ", ".join(model.columns) + " (write - for none; quote a field that holds a comma)"
            self._faults.error("P102", message, row.line, 1, len(row.line.text), hint)
            return
        before = len(self._faults.errors)
        fields = dict(zip(model.columns, row.fields, strict=True))
        effect = self._take(fields["eft"], grammar.effect)
        subject = self._take(fields["sub"], grammar.subject, model.kind)
        obj = self._take(fields["obj"], grammar.object_, model.kind)
        actions = self._actions(fields["act"])
        expires_at = self._take(fields["expires_at"], grammar.expires_at)
        limit = self._take(fields["max_calls_per_hour"], grammar.limit, effect or "allow")
        when = self._when(fields["when"], effect or "allow")
        notes = self._notes(effect or "allow")
        if len(self._faults.errors) > before or effect is None or subject is None or obj is None:
            return
        self._check_scope(fields, subject, obj)
        texts = {column: field.text for column, field in fields.items()} | {"act": "|".join(actions)}
        columns = tuple(texts[column] for column in model.columns)
        rule = Rule(
            id=notes.get("id") or _content_id(model.kind, texts),
            kind=model.kind,
            subject=subject,
            object=obj,
            actions=actions,
            effect=effect,
            expires_at=expires_at,
            max_calls_per_hour=limit,
            when=when,
            per=_per(notes),
            shadow=notes.get("shadow") == "true",
            owner=notes.get("owner", ""),
            reason=notes.get("reason", ""),
            file=row.line.file,
            line=row.line.number,
        )
        self._keep(rule, columns)
        self._warn(rule, fields)

    def _take(self, field: Field, read: Callable[..., T], *more: object) -> T | None:
        return _take(self._row, field, self._faults, read, *more)

    def _actions(self, field: Field) -> tuple[str, ...]:
        """The `|` list, `use` written out, each once."""
        words: dict[str, None] = {}
        at = field.column_of(0)
        for raw in field.text.split("|"):
            text = raw.strip()
            part = Field(text, at + len(raw) - len(raw.lstrip()), max(1, len(text)))
            word = self._take(part, grammar.action)
            words.update(dict.fromkeys(grammar.USED if word == grammar.USE else (word or "",)))
            at += len(raw) + 1
        return tuple(words)

    def _when(self, field: Field, effect: str) -> str:
        if field.text == NONE:
            return ""
        condition = self._draft.conditions.get(field.text) or self._take(field, self._draft.language.compile)
        if condition is None:
            return ""
        self._draft.conditions[field.text] = condition
        if effect == "allow" and any(path[:2] in (("call",), ("call", "meta")) for path in condition.paths):
            message = "an allow row that trusts call.meta, which the caller writes"
            self._faults.warn("P405", message, self._row.line, field.column, field.width)
        return field.text

    def _notes(self, effect: str) -> dict[str, str]:
        notes = {key: field.text for key, field in self._row.notes.items()}
        readers: Mapping[str, tuple[Callable[..., object], tuple[object, ...]]] = {
            "id": (grammar.rule_id, ()),
            "shadow": (grammar.word, (("true", "false"),)),
            "per": (grammar.word, (("subject", "origin", "rule"),)),
            "created_at": (grammar.expires_at, ()),
        }
        for key, (read, more) in readers.items():
            if key in self._row.notes:
                self._take(self._row.notes[key], read, *more)
        return notes

    def _check_scope(self, fields: Mapping[str, Field], subject: str, obj: str) -> None:
        for scope in self._scopes:
            for name, column, patterns in ((subject, "sub", scope.subjects), (obj, "obj", scope.objects)):
                if not inside(name, patterns):
                    _outside(self._row, fields[column], scope, patterns, self._faults)

    def _keep(self, rule: Rule, columns: tuple[str, ...]) -> None:
        other = self._draft.rules.setdefault(rule.id, (rule, columns))[0]
        if other is not rule:
            what = f"id {shown(rule.id)}" if "id" in self._row.notes else "the same rule"
            where = self._row.notes_line if "id" in self._row.notes and self._row.notes_line else self._row.line
            self._faults.error("P108", f"{what} stands at {other.file}:{other.line} already", where)

    def _warn(self, rule: Rule, fields: Mapping[str, Field]) -> None:
        if rule.effect == "deny" and rule.expires_at is not None:
            field = fields["expires_at"]
            message = "a deny row that ends: what it forbids will be allowed then"
            self._faults.warn("P120", message, self._row.line, field.column, field.width)
        server = _server(rule.object)
        if self._draft.names is not None and server and server not in self._draft.names:
            field = fields["obj"]
            hint = meant(server, self._draft.names)
            self._faults.warn("P121", f"no upstream {shown(server)}", self._row.line, field.column, field.width, hint)


def _per(notes: Mapping[str, str]) -> grammar.Per:
    value = notes.get("per")
    return "origin" if value == "origin" else "rule" if value == "rule" else "subject"


def _content_id(kind: PermissionKind, texts: Mapping[str, str]) -> str:
    """A name for a rule without one: from what it says, whatever the order of columns, never from where it stands."""
    return sha256(repr((kind.value, sorted(texts.items()))).encode()).hexdigest()[:16]


def _server(obj: str) -> str:
    """The server that an object names exactly, or ""."""
    word, _, rest = obj.partition(":")
    server = rest.partition("/")[0]
    return server if word in ("tool", "prompt", "resource") and "*" not in server else ""


def _outside(row: Row, field: Field, scope: ScopeLike, patterns: Sequence[str], faults: Faults) -> None:
    hint = f"{scope.files} may name " + (", ".join(patterns) if patterns else "nothing of this kind")
    message = f"{shown(field.text)} is outside the scope of this folder"
    faults.error("P112", message, row.line, field.column, field.width, hint)


# --- roles and sets -------------------------------------------------------------------------------------------------

_LINK_READERS: Mapping[str, tuple[Callable[[str], str], Callable[[str], str]]] = {
    "g": (grammar.member, grammar.role),
    "g2": (grammar.element, grammar.set_),
}


def _read_link(row: Row, scopes: Sequence[ScopeLike], draft: _Draft) -> None:
    if row.type == "p":
        draft.faults.error("P111", "roles.csv holds only g and g2 rows", row.line, hint="p rows go into <kind>.csv")
        return
    if len(row.fields) != 2:
        hint = f"{row.type}, " + ("member, role" if row.type == "g" else "object, set")
        message = f"{len(row.fields) + 1} fields, but 3 are needed"
        draft.faults.error("P102", message, row.line, 1, len(row.line.text), hint)
        return
    for key in row.notes.keys() - {"owner", "reason", "created_at"}:
        line = row.notes_line or row.line
        draft.faults.error("P109", f"{key} means nothing for a {row.type} row", line, row.notes[key].column)
    readers = _LINK_READERS[row.type]
    member = _take(row, row.fields[0], draft.faults, readers[0])
    container = _take(row, row.fields[1], draft.faults, readers[1])
    if member is None or container is None:
        return
    for scope in scopes:
        _check_link_scope(row, member, container, scope, draft.faults)
    first = draft.links[row.type].setdefault((member, container), row.line)
    if first is not row.line:
        draft.faults.warn("P304", f"the same row stands at {first.file}:{first.number} already", row.line)


def _check_link_scope(row: Row, member: str, container: str, scope: ScopeLike, faults: Faults) -> None:
    """A team may put anybody into its own roles, and its own objects into its own sets."""
    patterns = scope.roles if row.type == "g" else scope.objects
    if not inside(container, patterns):
        _outside(row, row.fields[1], scope, patterns, faults)
    if row.type == "g2" and not inside(member, scope.objects):
        _outside(row, row.fields[0], scope, scope.objects, faults)


def _links(kind: str, draft: _Draft) -> Links:
    """The links of all files; cycles and chains that are too long are faults."""
    found = draft.links[kind]
    links = Links.of(found)
    cycle = links.cycle()
    if cycle:
        line = found[cycle[0], cycle[1]]
        draft.faults.error("P301", "a cycle: " + " in ".join(cycle), line, hint="take one of these rows away")
        return Links()
    chains = links.chains()
    for (member, container), line in found.items():
        if chains[member] == MAX_DEPTH + 1 and chains[container] == MAX_DEPTH:
            message = f"{shown(member)} is at the bottom of more than {MAX_DEPTH} levels"
            draft.faults.error("P302", message, line, hint="Casbin would silently not follow them all")
    return links


def _warn_empty_sets(sets: Links, draft: _Draft) -> None:
    filled = {container for containers in sets.parents.values() for container in containers}
    for rule, _ in draft.rules.values():
        if rule.object.startswith("set:") and rule.object not in filled:
            hint = meant(rule.object, filled)
            draft.faults.warn("P305", f"nothing is in {shown(rule.object)}", Line(rule.file, rule.line, ""), hint=hint)

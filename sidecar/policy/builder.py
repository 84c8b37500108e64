"""Builds a policy from rows and reports their faults.

A `PolicyBuilder` grows while files are read. `RuleReader` turns one `p` row into a table row, or into faults with
positions. Checks that need only the row are made here; checks that need the whole policy are made in `source`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from sidecar.policy import grammar
from sidecar.policy.conditions import Condition, Language
from sidecar.policy.faults import Faults, SourceLine, meant, shown
from sidecar.policy.grammar import NONE, Wrong
from sidecar.policy.model import ALLOW_OVERRIDE, DOMAIN, Model
from sidecar.policy.rows import CsvField, CsvRow
from sidecar.policy.scopes import ScopeLike, inside
from sidecar.policy.table import RowNotes, RowTable, TableShape, TextPool
from sidecar.settings.uris import fault_in_object
from sidecar.vocabulary import PermissionKind

MAX_ROWS = 2_000_000
T = TypeVar("T")
Place = tuple[str, int]  # a file and a line


@dataclass(slots=True)
class PolicyBuilder:
    """The rows read so far. `names` maps each written id to the place of its rule; `links` maps the `g` and `g2` rows,
    as (member, container, domain), to their places; `shapes` maps the shapes of each table to their numbers.
    """

    scopes: Sequence[ScopeLike]
    upstreams: frozenset[str] | None
    agent_ids: Mapping[str, str] = field(default_factory=dict)
    models: dict[PermissionKind, Model] = field(default_factory=dict)
    faults: Faults = field(default_factory=Faults)
    language: Language = field(default_factory=Language)
    conditions: dict[str, Condition] = field(default_factory=dict)
    texts: TextPool = field(default_factory=TextPool)
    files: list[str] = field(default_factory=list)
    tables: dict[PermissionKind, RowTable] = field(default_factory=dict)
    shapes: dict[PermissionKind, dict[TableShape, int]] = field(default_factory=dict)
    names: dict[str, Place] = field(default_factory=dict)
    links: dict[str, dict[tuple[str, ...], Place]] = field(default_factory=lambda: {"g": {}, "g2": {}})
    rows: int = 0
    _looked_up: tuple[str, Sequence[str]] = ("", ())  # the last file that `line_at` read

    def add_model(self, model: Model) -> None:
        self.models[model.kind] = model
        self.tables[model.kind] = RowTable(model.kind, self.texts, self.files)
        self.shapes[model.kind] = {}

    @property
    def rows_of_rules(self) -> int:
        """The number of table rows."""
        return sum(map(len, self.tables.values()))

    def shape(self, kind: PermissionKind, shape: TableShape) -> int:
        """Return the number of a shape in its table."""
        known = self.shapes[kind]
        number = known.get(shape)
        if number is None:
            number = known[shape] = self.tables[kind].add_shape(shape)
        return number

    def line_at(self, place: Place) -> SourceLine:
        """Read the line at a place again: positions are kept in memory, lines are not."""
        file, number = place
        if self._looked_up[0] != file:
            self._looked_up = (file, _lines_of(file))
        lines = self._looked_up[1]
        return SourceLine(file, number, lines[number - 1].rstrip("\r") if 0 < number <= len(lines) else "")

    def file_number(self, file: str) -> int:
        """Return the number of the file being read."""
        if not self.files or self.files[-1] != file:
            self.files.append(file)
        return len(self.files) - 1


def _lines_of(file: str) -> Sequence[str]:
    try:
        return Path(file).read_text("utf-8-sig", "replace").split("\n")
    except OSError:
        return ()


def take(row: CsvRow, field: CsvField, faults: Faults, read: Callable[..., T], *more: object) -> T | None:
    """Return what a reader makes of a field, or None after a fault at the field's place."""
    try:
        return read(field.text, *more)
    except Wrong as wrong:
        line = line_of(row, field, wrong.offset if wrong.width else 0)
        column = field.column_of(wrong.offset) if wrong.width else field.column
        faults.error(wrong.code, wrong.message, line, column, max(1, wrong.width or field.width), wrong.hint)
        return None


def line_of(row: CsvRow, field: CsvField, offset: int = 0) -> SourceLine:
    """Return the line of a field. In YAML each field has its own line."""
    noted = row.notes_line if row.notes_line and any(field is note for note in row.notes.values()) else row.line
    return field.line_of(offset) or noted


def outside(row: CsvRow, field: CsvField, scope: ScopeLike, patterns: Sequence[str], faults: Faults) -> None:
    """Report patterns that are outside the folder's scope."""
    hint = f"{scope.files} may name " + (", ".join(patterns) if patterns else "nothing of this kind")
    message = f"{shown(field.text)} is outside the scope of this folder"
    faults.error("P112", message, line_of(row, field), field.column, field.width, hint)


@dataclass(frozen=True, slots=True)
class _Whole:
    """The rule of the row above, which rows with `part_of` may extend."""

    file: str
    id: str
    said: Mapping[str, str]
    notes: Mapping[str, str]


class RuleReader:
    """Reads the `p` rows of one file and kind."""

    def __init__(self, model: Model, scopes: Sequence[ScopeLike], draft: PolicyBuilder) -> None:
        self._model, self._scopes, self._draft = model, scopes, draft
        self._faults = draft.faults
        self._above: _Whole | None = None

    def read(self, row: CsvRow) -> None:
        """Add one row, or report its faults."""
        model = self._model
        if len(row.fields) != len(model.columns):
            message = f"{len(row.fields) + 1} fields, but {len(model.columns) + 1} are needed"
            hint = "p, " + ", ".join(model.columns) + " (write - for none; quote a field that holds a comma)"
            self._faults.error("P102", message, row.line, 1, len(row.line.text), hint)
            return
        before = len(self._faults.errors)
        fields = dict(zip(model.columns, row.fields, strict=True))
        texts = self._texts(row, fields)
        notes = self._notes(row)
        if len(self._faults.errors) == before:
            self._check_scope(row, fields, texts)
            notes = self._part(row, texts, notes) if "part_of" in row.notes else notes
        if len(self._faults.errors) == before:
            self._keep(row, texts, notes)
            self._warn(row, fields)

    def _texts(self, row: CsvRow, fields: Mapping[str, CsvField]) -> dict[str, str]:
        """Return the text of each column, with `use` written out in the list of actions. Reports a fault for each
        column whose text is not permitted.
        """
        model, faults = self._model, self._faults
        effect = take(row, fields["eft"], faults, grammar.effect) or "allow"
        before = len(faults.errors)
        take(row, fields["sub"], faults, grammar.subject, model.kind)
        obj = take(row, fields["obj"], faults, grammar.object_, model.kind)
        if len(faults.errors) > before:
            self._tell_home(row, fields, before)
        if effect == "allow" and model.kind is PermissionKind.GUARDRAIL:
            field = fields["eft"]
            hint = belongs(row, fields["sub"].text, fields["obj"].text) or "write deny"
            faults.error("P105", "a guardrail only denies", line_of(row, field), field.column, field.width, hint)
        take(row, fields["expires_at"], faults, grammar.expires_at)
        take(row, fields["max_calls_per_hour"], faults, grammar.limit, effect)
        if DOMAIN in fields:
            take(row, fields[DOMAIN], faults, grammar.domain)
        if effect == "deny" and model.effect == ALLOW_OVERRIDE:
            field = fields["eft"]
            hint = "with this effect a deny row would do nothing"
            faults.error("P115", "the model knows no deny", line_of(row, field), field.column, field.width, hint)
        actions = self._actions(row, fields["act"])
        self._check_condition(row, fields["when"], effect)
        texts = {column: field.text for column, field in fields.items()}
        return texts | {"act": "|".join(actions), "obj": obj or fields["obj"].text}

    def _tell_home(self, row: CsvRow, fields: Mapping[str, CsvField], before: int) -> None:
        """Replace the faults of a row of another kind with one fault that names the right kind."""
        if self._model.kind is PermissionKind.GUARDRAIL:
            return
        hint = belongs(row, fields["sub"].text, fields["obj"].text)
        if hint and len(self._faults.errors) > before:
            del self._faults.errors[before + 1 :]
            self._faults.errors[before] = replace(self._faults.errors[before], hint=hint)

    def _actions(self, row: CsvRow, field: CsvField) -> tuple[str, ...]:
        """Return the actions of the `|` list, without duplicates, with `use` written out."""
        words: dict[str, None] = {}
        at = 0
        for raw in field.text.split("|"):
            part = field.part(at + len(raw) - len(raw.lstrip()), raw.strip())
            word = take(row, part, self._faults, grammar.action)
            words.update(dict.fromkeys(grammar.USED if word == grammar.USE else (word or "",)))
            at += len(raw) + 1
        return tuple(words)

    def _check_condition(self, row: CsvRow, field: CsvField, effect: str) -> None:
        if field.text == NONE:
            return
        known = self._draft.conditions
        condition = known.get(field.text) or take(row, field, self._faults, self._draft.language.compile)
        if condition is None:
            return
        known[field.text] = condition
        if effect == "allow" and condition.trusts_meta:
            message = "an allow row that trusts call.meta, which the caller writes"
            hint = "ask principal, origin or chain instead"
            self._faults.warn("P405", message, line_of(row, field), field.column, field.width, hint)

    def _notes(self, row: CsvRow) -> dict[str, str]:
        readers: Mapping[str, tuple[Callable[..., object], tuple[object, ...]]] = {
            "id": (grammar.rule_id, ()),
            "part_of": (grammar.rule_id, ()),
            "shadow": (grammar.word, (("true", "false"),)),
            "per": (grammar.word, (("subject", "origin", "rule"),)),
            "created_at": (grammar.expires_at, ()),
        }
        for key, (read, more) in readers.items():
            if key in row.notes:
                take(row, row.notes[key], self._faults, read, *more)
        return {key: field.text for key, field in row.notes.items()}

    def _part(self, row: CsvRow, texts: Mapping[str, str], notes: Mapping[str, str]) -> dict[str, str]:
        """Return the notes of the rule that this row is a further part of."""
        whole, field = self._above, row.notes["part_of"]
        hint = "it stands below another row of that rule, and differs in nothing but subject and object"
        if whole is None or whole.file != row.line.file or whole.id != field.text:
            message = f"the row above is no part of {shown(field.text)}"
            self._faults.error("P114", message, line_of(row, field), field.column, field.width, hint)
            return {}
        for key in notes.keys() - {"part_of"}:
            message = f"{key} is said where the rule begins"
            self._faults.error(
                "P114", message, line_of(row, row.notes[key]), row.notes[key].column, row.notes[key].width, hint
            )
        unlike = [column for column in texts if column not in ("sub", "obj") and texts[column] != whole.said[column]]
        if unlike:
            self._faults.error("P114", f"another {unlike[0]} than the rule has", row.line, 1, 1, hint)
        return {**whole.notes, "id": whole.id, "part_of": whole.id}

    def _check_scope(self, row: CsvRow, fields: Mapping[str, CsvField], texts: Mapping[str, str]) -> None:
        for scope in self._scopes:
            for column, patterns in (("sub", scope.subjects), ("obj", scope.objects)):
                if not inside(texts[column], patterns):
                    outside(row, fields[column], scope, patterns, self._faults)

    def _keep(self, row: CsvRow, texts: Mapping[str, str], notes: Mapping[str, str]) -> None:
        draft, kind = self._draft, self._model.kind
        if "part_of" not in notes and "id" in notes:
            self._claim(row, notes["id"])
        shape = TableShape(*(texts[column] for column in TableShape._fields if column in texts))
        said = RowNotes(
            id=notes.get("id", ""),
            owner=notes.get("owner", ""),
            reason=notes.get("reason", ""),
            per=_per(notes),
            shadow=notes.get("shadow") == "true",
            created_at=notes.get("created_at", ""),
        )
        table, sub, obj = draft.tables[kind], draft.texts.id(texts["sub"]), draft.texts.id(texts["obj"])
        if notes:
            table.notes[len(table)] = said
        file = draft.file_number(row.line.file)
        table.add(sub, obj, draft.shape(kind, shape), shape.flags | said.flags, file, row.line.number)
        if "part_of" not in notes:
            name = said.id or table.id_of(len(table) - 1)
            self._above = _Whole(row.line.file, name, texts, notes)

    def _claim(self, row: CsvRow, name: str) -> None:
        """Record the id of a rule; report an id that another rule has."""
        place = (row.line.file, row.line.number)
        other = self._draft.names.setdefault(name, place)
        if other is not place:
            at = row.notes["id"]
            message = f"id {shown(name)} stands at {other[0]}:{other[1]} already"
            hint = "take one away, or rename one"
            self._faults.error("P108", message, line_of(row, at), at.column, at.width, hint)

    def _warn(self, row: CsvRow, fields: Mapping[str, CsvField]) -> None:
        if fields["eft"].text == "deny" and fields["expires_at"].text != NONE:
            field = fields["expires_at"]
            message = "a deny row that ends: what it forbids will be allowed then"
            hint = "write -, and let an allow row end instead"
            self._faults.warn("P120", message, line_of(row, field), field.column, field.width, hint)
        field, names = fields["obj"], self._draft.upstreams
        if agent := self._draft.agent_ids.get(field.text.removeprefix("nhi:").lower()):
            message = f"{shown(field.text)} is the agent_id of {agent}, and calls have its name"
            hint = f"write nhi:{agent}"
            self._faults.error("P121", message, line_of(row, field), field.column, field.width, hint)
        tell_normal_form(row, field, grammar.object_(field.text, self._model.kind), self._faults)
        server = server_of(field.text)
        if names is not None and server and server not in names:
            hint, offset = meant(server, names) or "add it to upstreams", field.text.index(":") + 1
            line, column = line_of(row, field, offset), field.column_of(offset)
            self._faults.warn("P121", f"no upstream {shown(server)}", line, column, len(server), hint)


def belongs(row: CsvRow, subject: str, obj: str) -> str:
    """Return a hint that names the kind of a row in the wrong place; "" if no kind fits."""
    kind = grammar.home_of(subject, obj)
    if kind is None:
        return ""
    return f"it belongs in {kind.value}.csv" if row.line.file.endswith(".csv") else f"write kind: {kind.value}"


def tell_normal_form(row: CsvRow, field: CsvField, obj: str, faults: Faults) -> None:
    """Report an object whose normal form differs from its text, or that no call can name."""
    place = line_of(row, field), field.column, field.width
    if obj != field.text:
        hint = "calls are decided in this form: write it so"
        faults.warn("P122", f"read as {shown(obj)}", *place, hint)
    if fault := fault_in_object(obj):
        faults.warn("P123", f"the URI of this resource {fault}", *place, "correct it, or add a row in lower case")


def server_of(obj: str) -> str:
    """Return the server that an object names exactly, or ""."""
    word, _, rest = obj.partition(":")
    server = rest.partition("/")[0]
    return server if word in ("tool", "prompt", "resource") and "*" not in server else ""


def _per(notes: Mapping[str, str]) -> grammar.Per:
    value = notes.get("per")
    return "origin" if value == "origin" else "rule" if value == "rule" else "subject"


# --- roles and sets -------------------------------------------------------------------------------------------------

LINK_READERS: Mapping[str, tuple[Callable[[str], str], Callable[[str], str]]] = {
    "g": (grammar.member, grammar.role),
    "g2": (grammar.element, grammar.set_),
}


def read_link(row: CsvRow, scopes: Sequence[ScopeLike], draft: PolicyBuilder) -> None:
    """Add one `g` or `g2` row."""
    by_domain = row.type == "g" and any(model.by_domain for model in draft.models.values())
    if len(row.fields) != 2 + by_domain:
        hint = f"{row.type}, " + ("object, set" if row.type == "g2" else "member, role" + ", domain" * by_domain)
        message = f"{len(row.fields) + 1} fields, but {3 + by_domain} are needed"
        draft.faults.error("P102", message, row.line, 1, len(row.line.text), hint)
        return
    for key in row.notes.keys() - {"owner", "reason", "created_at"}:
        line = row.notes_line or row.line
        draft.faults.error("P109", f"{key} means nothing for a {row.type} row", line, row.notes[key].column)
    readers = LINK_READERS[row.type]
    member = take(row, row.fields[0], draft.faults, readers[0])
    container = take(row, row.fields[1], draft.faults, readers[1])
    domain = take(row, row.fields[2], draft.faults, grammar.domain) if by_domain else ""
    if member is None or container is None or domain is None:
        return
    for scope in scopes:
        _check_link_scope(row, member, container, scope, draft.faults)
    if row.type == "g2":
        tell_normal_form(row, row.fields[0], member, draft.faults)
    place = (row.line.file, row.line.number)
    first = draft.links[row.type].setdefault((member, container, domain), place)
    if first is not place:
        draft.faults.warn(
            "P304", f"the same row stands at {first[0]}:{first[1]} already", row.line, hint="take one away"
        )


def _check_link_scope(row: CsvRow, member: str, container: str, scope: ScopeLike, faults: Faults) -> None:
    """Check that a team adds members only to its own roles, and only its own objects to its own sets."""
    patterns = scope.roles if row.type == "g" else scope.objects
    if not inside(container, patterns):
        outside(row, row.fields[1], scope, patterns, faults)
    if row.type == "g2" and not inside(member, scope.objects):
        outside(row, row.fields[0], scope, scope.objects, faults)

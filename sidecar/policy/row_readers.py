"""Adds rows to a policy, or reports their faults.

A row is read in one of two ways, by the same checks. `take` adds a plain line: without quotes or notes, and with texts
that cause no warning. Each of its texts is checked once and has a number afterwards, because nearly all texts of a
large policy occur often. `read` adds any row, or reports its faults with their positions. Checks that need the whole
policy are in `source`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, TypeVar, cast

from sidecar.policy import grammar
from sidecar.policy.builder import MAX_ROWS, PolicyBuilder
from sidecar.policy.faults import meant, shown
from sidecar.policy.grammar import NONE, Per, Wrong
from sidecar.policy.model import ALLOW_OVERRIDE, DOMAIN, Model
from sidecar.policy.patterns import glob, inside
from sidecar.policy.rows import APPROVAL_NOTES, BLANKS, MAX_LINE_CHARS, CsvField, CsvRow, with_approval_reason
from sidecar.policy.table import RowNotes
from sidecar.settings.policy import PolicyScope
from sidecar.settings.uris import fault_in_object
from sidecar.vocabulary import USED, ApprovalTerms, PermissionKind

T = TypeVar("T")
Doubt = tuple[str, Wrong]  # "error" or "warning"
NOT_TAKEN: Final = -1

_NOTES: Final[Mapping[str, Callable[[str], object]]] = {
    "id": grammar.rule_id,
    "part_of": grammar.rule_id,
    "shadow": grammar.word_of("true", "false"),
    "per": grammar.word_of("subject", "origin", "rule"),
    "created_at": grammar.expires_at,
    "approval": grammar.role,
    "within": grammar.approval_within,
    "valid": grammar.approval_valid,
    "approval_reason": grammar.word_of(grammar.REQUIRED),
}
OF_CLIENTS: Final = frozenset({"sampling/createMessage", "elicitation/create", "roots/list"})
APPROVABLE: Final = tuple(sorted({*USED, "push/set", "push/get", "push/list", "push/delete", "card/extended"}))
_LINKS: Final[Mapping[str, tuple[Callable[[str], str], Callable[[str], str]]]] = {
    "g": (grammar.member, grammar.role),
    "g2": (grammar.element, grammar.set_),
}


class _Reader:
    def __init__(self, draft: PolicyBuilder, scopes: Sequence[PolicyScope], file: str) -> None:
        self._draft, self._scopes, self._faults = draft, scopes, draft.faults
        self._file = draft.file_number(file)

    def _checked(self, row: CsvRow, field: CsvField, check: Callable[..., T], *more: object) -> T | None:
        """Returns the result of a check of a field, or None after a fault at the field's place."""
        try:
            return check(field.text, *more)
        except Wrong as wrong:
            self._tell(row, field, wrong)
            return None

    def _tell(self, row: CsvRow, field: CsvField, wrong: Wrong, severity: str = "error") -> None:
        """Reports a fault in a field. A fault without a width covers the whole field."""
        noted = row.notes_line if row.notes_line and any(field is note for note in row.notes.values()) else row.line
        line = field.line_of(wrong.offset if wrong.width else 0) or noted
        column = field.column_of(wrong.offset) if wrong.width else field.column
        report = self._faults.error if severity == "error" else self._faults.warn
        report(wrong.code, wrong.message, line, column, max(1, wrong.width or field.width), wrong.hint)

    def _check_inside(self, row: CsvRow, field: CsvField, name: str, scope: PolicyScope, what: str) -> None:
        patterns = getattr(scope, what)
        if not inside(name, patterns):
            hint = f"{scope.files} may name " + (", ".join(patterns) if patterns else "nothing of this kind")
            self._tell(row, field, Wrong("P112", f"{shown(field.text)} is outside the scope of this folder", hint))

    def _tell_count(self, row: CsvRow, needed: int, hint: str) -> None:
        message = f"{len(row.fields) + 1} fields, but {needed + 1} are needed"
        self._faults.error("P102", message, row.line, 1, len(row.line.text), hint)


class _Whole(NamedTuple):
    """The rule of the row above, which rows with `part_of` may extend."""

    id: str
    texts: Mapping[str, str]
    notes: Mapping[str, str]


class RuleReader(_Reader):
    def __init__(self, draft: PolicyBuilder, scopes: Sequence[PolicyScope], file: str, model: Model) -> None:
        super().__init__(draft, scopes, file)
        self._model, self._table = model, draft.tables[model.kind]
        self._above: _Whole | None = None
        self._plain = model.columns[:2] == ("sub", "obj")
        self._subjects = _KnownValues(self._subject_number)
        self._objects = _KnownValues(self._object_number)
        self._shapes = _KnownValues(self._shape_number)

    def read(self, row: CsvRow) -> None:
        columns, errors = self._model.columns, self._faults.errors
        if len(row.fields) != len(columns):
            hint = "p, " + ", ".join(columns) + " (write - for none; quote a field that contains a comma)"
            self._tell_count(row, len(columns), hint)
            return
        before = len(errors)
        fields = dict(zip(columns, row.fields, strict=True))
        texts = self._texts(row, fields)
        noted = with_approval_reason(row.notes)
        for key, check in _NOTES.items():
            if key in noted:
                self._checked(row, noted[key], check)
        self._check_approval(row, noted, texts)
        notes = {key: field.text for key, field in noted.items()}
        if len(errors) == before:
            for scope in self._scopes:
                self._check_inside(row, fields["sub"], texts["sub"], scope, "subjects")
                self._check_inside(row, fields["obj"], texts["obj"], scope, "objects")
            notes = self._part(row, texts, notes) if "part_of" in notes else notes
        if len(errors) == before:
            self._add(row, texts, notes)
            if fields["eft"].text == "deny" and texts["expires_at"] != NONE:
                message = "a deny row that expires: what it denies is allowed afterwards"
                hint = "write -, and let an allow row expire instead"
                self._tell(row, fields["expires_at"], Wrong("P120", message, hint), "warning")
            for severity, doubt in self._object_doubts(fields["obj"].text):
                self._tell(row, fields["obj"], doubt, severity)

    def _texts(self, row: CsvRow, fields: Mapping[str, CsvField]) -> dict[str, str]:
        """Returns the text of each column, with `use` expanded. Reports a fault for each forbidden text."""
        kind, errors = self._model.kind, self._faults.errors
        names = fields["sub"].text, fields["obj"].text
        effect = self._checked(row, fields["eft"], self._effect, row) or "allow"
        before = len(errors)
        self._checked(row, fields["sub"], grammar.subject, kind)
        obj = self._checked(row, fields["obj"], grammar.object_, kind)
        if len(errors) > before and kind is not PermissionKind.GUARDRAIL and (home := belongs(row, *names)):
            # One fault that names the right kind is enough for a row of another kind.
            errors[before:] = [replace(errors[before], hint=home)]
        self._checked(row, fields["expires_at"], grammar.expires_at)
        self._checked(row, fields["max_calls_per_hour"], grammar.limit, effect)
        if DOMAIN in fields:
            self._checked(row, fields[DOMAIN], grammar.domain)
        actions, wrong_ones = grammar.actions(fields["act"].text)
        for wrong in wrong_ones:
            self._tell(row, fields["act"], wrong)
        condition = self._checked(row, fields["when"], self._draft.condition)
        if effect == "allow" and condition is not None and condition.trusts_meta:
            message = "an allow row that trusts call.meta, which the caller writes"
            hint = "use principal, origin or chain instead"
            self._tell(row, fields["when"], Wrong("P405", message, hint), "warning")
        texts = {column: field.text for column, field in fields.items()}
        return texts | {"act": actions, "obj": obj or fields["obj"].text}

    def _effect(self, text: str, row: CsvRow | None = None) -> str:
        effect = grammar.effect(text)
        if effect == "allow" and self._model.kind is PermissionKind.GUARDRAIL:
            # The row is one of another kind, whose columns are unknown here: usually the first two are the names.
            home = row and belongs(row, row.fields[0].text, row.fields[1].text)
            raise Wrong("P105", "a guardrail only denies", home or "write deny")
        if effect == "deny" and self._model.effect == ALLOW_OVERRIDE:
            raise Wrong("P115", "the model has no deny rows", "with this effect a deny row would do nothing")
        return effect

    def _object_doubts(self, text: str) -> Iterator[Doubt]:
        names = self._draft.upstreams
        if agent := self._draft.agent_ids.get(text.removeprefix("nhi:").lower()):
            message = f"{shown(text)} is the agent_id of {agent}, and calls have its name"
            yield "error", Wrong("P121", message, f"write nhi:{agent}")
        yield from _normal_form_doubts(text, grammar.object_(text, self._model.kind))
        server = server_of(text)
        if names is not None and server and server not in names:
            hint, offset = meant(server, names) or "add it to upstreams", text.index(":") + 1
            yield "warning", Wrong("P121", f"no upstream {shown(server)}", hint, offset=offset, width=len(server))

    def _check_approval(self, row: CsvRow, noted: Mapping[str, CsvField], texts: Mapping[str, str]) -> None:
        for key in APPROVAL_NOTES:
            if key in noted and "approval" not in noted:
                hint = "write approval=role:oncall"
                self._tell(row, noted[key], Wrong("P109", f"{key} has no effect without approval", hint))
        if "approval" not in noted:
            return
        actions = texts["act"].split("|")
        if texts["eft"] == "deny":
            wrong = Wrong(
                "P109", "a deny row cannot require an approval", "write the approval on the row that allows the call"
            )
        elif asked := [action for action in actions if action in OF_CLIENTS]:
            hint = "write another row for it, without approval"
            wrong = Wrong("P109", f"{asked[0]} is a request of a server, which cannot wait for an approval", hint)
        elif not any(glob(action, one) for one in actions for action in APPROVABLE):
            wrong = Wrong(
                "P109", "no action of this row can wait for an approval", "known are " + ", ".join(APPROVABLE)
            )
        else:
            return
        self._tell(row, noted["approval"], wrong)

    def _part(self, row: CsvRow, texts: Mapping[str, str], notes: Mapping[str, str]) -> dict[str, str]:
        whole, field = self._above, row.notes["part_of"]
        hint = "it is below another row of that rule, and differs only in subject and object"
        if whole is None or whole.id != field.text:
            self._tell(row, field, Wrong("P114", f"the row above is not part of {shown(field.text)}", hint))
            return {}
        for key in notes.keys() - {"part_of"}:
            self._tell(row, row.notes[key], Wrong("P114", f"{key} belongs at the first row of the rule", hint))
        unlike = [column for column in texts if column not in ("sub", "obj") and texts[column] != whole.texts[column]]
        if unlike:
            self._faults.error("P114", f"another {unlike[0]} than the rule has", row.line, 1, 1, hint)
        return {**whole.notes, "id": whole.id, "part_of": whole.id}

    def _add(self, row: CsvRow, texts: Mapping[str, str], notes: Mapping[str, str]) -> None:
        draft, table = self._draft, self._table
        if "part_of" not in notes and "id" in notes:
            self._claim(row, notes["id"])
        said = RowNotes(
            **{key: notes[key] for key in ("id", "owner", "reason", "created_at") if key in notes},
            per=cast(Per, notes.get("per", "subject")),
            shadow=notes.get("shadow") == "true",
            approval=approval_in(notes),
        )
        if notes:
            table.notes[len(table)] = said
        shape = draft.shape(self._model.kind, texts)
        flags = table.shape_flags[shape] | said.flags
        sub, obj = draft.texts.id(texts["sub"]), draft.texts.id(texts["obj"])
        table.add(sub, obj, shape, flags, self._file, row.line.number)
        if "part_of" not in notes:
            self._above = _Whole(said.id or table.id_of(len(table) - 1), texts, notes)

    def _claim(self, row: CsvRow, name: str) -> None:
        place = (row.line.file, row.line.number)
        other = self._draft.names.setdefault(name, place)
        if other is not place:
            message = f"id {shown(name)} is already at {other[0]}:{other[1]}"
            self._tell(row, row.notes["id"], Wrong("P108", message, "remove or rename one"))

    def take(self, raw: str, number: int) -> bool:
        """Adds the line if it is a plain row; returns whether it was added. `number` counts from 1."""
        fields = raw.removesuffix("\r").split(",", 3)
        if len(fields) < 4 or fields[0].strip(BLANKS) != "p" or len(raw) > MAX_LINE_CHARS or not self._plain:
            return False
        shape = self._shapes[fields[3]]
        sub = self._subjects[fields[1]]
        obj = self._objects[fields[2]]
        if shape < 0 or sub < 0 or obj < 0 or self._draft.rows >= MAX_ROWS:
            return False
        table = self._table
        table.add(sub, obj, shape, table.shape_flags[shape], self._file, number)
        self._draft.rows += 1
        return True

    def _subject_number(self, raw: str) -> int:
        text = grammar.subject(_plain_text(raw), self._model.kind)
        fits = all(inside(text, scope.subjects) for scope in self._scopes)
        return self._draft.texts.id(text) if fits else NOT_TAKEN

    def _object_number(self, raw: str) -> int:
        text = _plain_text(raw)
        if any(self._object_doubts(text)) or not all(inside(text, scope.objects) for scope in self._scopes):
            return NOT_TAKEN
        return self._draft.texts.id(text)

    def _shape_number(self, raw: str) -> int:
        fields, columns = [_plain_text(field) for field in raw.split(",")], self._model.columns[2:]
        if len(fields) != len(columns):
            return NOT_TAKEN
        texts = dict(zip(columns, fields, strict=True))
        effect = self._effect(texts["eft"])
        grammar.expires_at(texts["expires_at"])
        grammar.limit(texts["max_calls_per_hour"], effect)
        grammar.domain(texts.get(DOMAIN, NONE))
        texts["act"], wrong = grammar.actions(texts["act"])
        condition = self._draft.condition(texts["when"])
        if wrong or (condition is not None and condition.trusts_meta):
            return NOT_TAKEN
        ends = effect == "deny" and texts["expires_at"] != NONE
        return NOT_TAKEN if ends else self._draft.shape(self._model.kind, texts)


def approval_in(notes: Mapping[str, str]) -> ApprovalTerms | None:
    """Returns the approval that valid notes demand; None if they demand none."""
    if "approval" not in notes:
        return None
    return ApprovalTerms(
        notes["approval"],
        grammar.approval_within(notes.get("within", "15m")),
        grammar.approval_valid(notes.get("valid", grammar.ONCE)),
        "approval_reason" in notes,
    )


class LinkReader(_Reader):
    def __init__(self, draft: PolicyBuilder, scopes: Sequence[PolicyScope], file: str) -> None:
        super().__init__(draft, scopes, file)
        self._path = file
        self._plain = not scopes and not draft.by_domain
        self._good = {group: [_KnownValues(_good(check)) for check in checks] for group, checks in _LINKS.items()}

    def read(self, row: CsvRow) -> None:
        by_domain = row.type == "g" and self._draft.by_domain
        if len(row.fields) != 2 + by_domain:
            names = "object, set" if row.type == "g2" else "member, role" + ", domain" * by_domain
            self._tell_count(row, 2 + by_domain, f"{row.type}, {names}")
            return
        for key in row.notes.keys() - {"owner", "reason", "created_at"}:
            line = row.notes_line or row.line
            self._faults.error("P109", f"{key} has no effect on a {row.type} row", line, row.notes[key].column)
        checks = _LINKS[row.type]
        member = self._checked(row, row.fields[0], checks[0])
        container = self._checked(row, row.fields[1], checks[1])
        domain = self._checked(row, row.fields[2], grammar.domain) if by_domain else ""
        if member is None or container is None or domain is None:
            return
        for scope in self._scopes:  # a team adds members only to its own roles, and only its own objects to its sets
            self._check_inside(row, row.fields[1], container, scope, "roles" if row.type == "g" else "objects")
            if row.type == "g2":
                self._check_inside(row, row.fields[0], member, scope, "objects")
        for severity, doubt in _normal_form_doubts(row.fields[0].text, member) if row.type == "g2" else ():
            self._tell(row, row.fields[0], doubt, severity)
        place = (row.line.file, row.line.number)
        first = self._draft.links[row.type].setdefault((member, container, domain), place)
        if first is not place:
            message = f"the same row is already at {first[0]}:{first[1]}"
            self._faults.warn("P304", message, row.line, hint="remove one")

    def take(self, raw: str, number: int) -> bool:
        """Adds the line if it is a plain row; returns whether it was added. `number` counts from 1."""
        fields = [field.strip(BLANKS) for field in raw.removesuffix("\r").split(",")]
        if len(fields) != 3 or fields[0] not in self._good or not self._plain or self._draft.rows >= MAX_ROWS:
            return False
        group, member, container = fields
        members, containers = self._good[group]
        pair, links = (member, container, ""), self._draft.links[group]
        if pair in links or members[member] < 0 or containers[container] < 0:
            return False
        links[pair] = (self._path, number)
        self._draft.rows += 1
        return True


class _KnownValues(dict[str, int]):
    """Maps texts to their numbers, each computed once; NOT_TAKEN for a text that is not accepted. Such texts, which may
    be many, are not stored."""

    def __init__(self, read: Callable[[str], int]) -> None:
        super().__init__()
        self._read = read

    def __missing__(self, text: str) -> int:
        try:
            number = self._read(text)
        except Wrong:
            return NOT_TAKEN
        if number >= 0:
            self[text] = number
        return number


def _good(check: Callable[[str], str]) -> Callable[[str], int]:
    """Returns a function that maps a member or container of a plain line to 0, or to NOT_TAKEN."""
    return lambda text: NOT_TAKEN if any(_normal_form_doubts(text, check(_plain_text(text)))) else 0


def _plain_text(raw: str) -> str:
    """Returns the trimmed text of a field. Raises Wrong for a field that needs the full parser: with quotes or
    invisible or non-ASCII characters."""
    text = raw.strip(BLANKS)
    if '"' in text or not text.isascii() or not text.isprintable():
        raise Wrong("P110", "not plain")
    return text


def _normal_form_doubts(text: str, normal: str) -> Iterator[Doubt]:
    """Yields a warning for an object whose normal form differs from its text, and for one that no call can name."""
    if normal != text:
        yield "warning", Wrong("P122", f"read as {shown(normal)}", "write this form, in which calls are decided")
    if fault := fault_in_object(normal):
        message, hint = f"the URI of this resource {fault}", "correct it, or add a row in lower case"
        yield "warning", Wrong("P123", message, hint)


def belongs(row: CsvRow, subject: str, obj: str) -> str:
    """Returns a hint that names the kind of a row in the wrong place; "" if no kind fits."""
    kind = grammar.home_of(subject, obj)
    if kind is None:
        return ""
    return f"it belongs in {kind.value}.csv" if row.line.file.endswith(".csv") else f"write kind: {kind.value}"


def server_of(obj: str) -> str:
    """Returns the server of a tool, prompt or resource that an object names exactly; "" if it names none."""
    word, _, rest = obj.partition(":")
    server = rest.partition("/")[0]
    return server if word in ("tool", "prompt", "resource") and "*" not in server else ""

"""Reads common rows fast.

Most rows of a large policy are plain: no notes, no quotes, no warnings, and nearly all their texts occurred before.
`BulkReader.take` accepts only such rows: the subject, the object and the rest of a line are each checked once and known
by a number afterwards. Any other row goes through the full parser, which reports faults with their positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sidecar.policy import grammar
from sidecar.policy.builder import LINK_READERS, MAX_ROWS, PolicyBuilder, server_of
from sidecar.policy.grammar import NONE, Wrong
from sidecar.policy.model import ALLOW_OVERRIDE, Model
from sidecar.policy.rows import MAX_LINE_CHARS
from sidecar.policy.scopes import ScopeLike, inside
from sidecar.policy.table import TableShape
from sidecar.settings.uris import fault_in_object
from sidecar.vocabulary import PermissionKind

_BLANKS = " \t"
NOT_TAKEN = -1


class BulkReader:
    """Reads the plain `p` rows of one file, for a model whose columns begin with subject and object."""

    def __init__(self, model: Model, scopes: Sequence[ScopeLike], draft: PolicyBuilder, file: str) -> None:
        self._draft, self._model, self._scopes = draft, model, scopes
        self._table = draft.tables[model.kind]
        self._file = draft.file_number(file)
        self._rest = model.columns[2:]
        self._usual = model.columns[:2] == ("sub", "obj")
        self._subjects = _KnownValues(self._subject)
        self._objects = _KnownValues(self._object)
        self._shapes = _KnownValues(self._shape)

    def take(self, raw: str, number: int) -> bool:
        """Add the line if it is a plain row; return whether it was added. `number` counts from 1."""
        fields = raw.removesuffix("\r").split(",", 3)
        if len(fields) < 4 or fields[0].strip(_BLANKS) != "p" or len(raw) > MAX_LINE_CHARS or not self._usual:
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

    # --- the number of a text; NOT_TAKEN if it needs the full parser --------------------------------------------------

    def _subject(self, raw: str) -> int:
        text = _plain(raw)
        grammar.subject(text, self._model.kind)
        fits = all(inside(text, scope.subjects) for scope in self._scopes)
        return self._draft.texts.id(text) if fits else NOT_TAKEN

    def _object(self, raw: str) -> int:
        text = _plain(raw)
        if grammar.object_(text, self._model.kind) != text or fault_in_object(text):
            return NOT_TAKEN
        if text.removeprefix("nhi:").lower() in self._draft.agent_ids:
            return NOT_TAKEN
        server, names = server_of(text), self._draft.upstreams
        known = names is None or not server or server in names
        fits = known and all(inside(text, scope.objects) for scope in self._scopes)
        return self._draft.texts.id(text) if fits else NOT_TAKEN

    def _shape(self, raw: str) -> int:
        fields = [_plain(field) for field in raw.split(",")]
        if len(fields) != len(self._rest):
            return NOT_TAKEN
        said = dict(zip(self._rest, fields, strict=True))
        effect = grammar.effect(said["eft"])
        if effect == "allow" and self._model.kind is PermissionKind.GUARDRAIL:
            return NOT_TAKEN
        if effect == "deny" and (self._model.effect == ALLOW_OVERRIDE or said["expires_at"] != NONE):
            return NOT_TAKEN
        grammar.expires_at(said["expires_at"])
        grammar.limit(said["max_calls_per_hour"], effect)
        if "dom" in said:
            grammar.domain(said["dom"])
        said["act"] = _actions(said["act"])
        if not self._is_plain_condition(said["when"]):
            return NOT_TAKEN
        shape = TableShape(*(said[column] for column in TableShape._fields if column in said))
        return self._draft.shape(self._model.kind, shape)

    def _is_plain_condition(self, text: str) -> bool:
        if text == NONE:
            return True
        known = self._draft.conditions
        if text not in known:
            known[text] = self._draft.language.compile(text)
        return not known[text].trusts_meta


def _plain(raw: str) -> str:
    """Return a field without quotes and invisible characters. Raises Wrong for a field that needs the full parser."""
    text = raw.strip(_BLANKS)
    if '"' in text or not text.isascii() or not text.isprintable():
        raise Wrong("P110", "not plain")
    return text


def _actions(text: str) -> str:
    words: dict[str, None] = {}
    for part in text.split("|"):
        word = grammar.action(part.strip())
        words.update(dict.fromkeys(grammar.USED if word == grammar.USE else (word,)))
    return "|".join(words)


class BulkLinkReader:
    """Reads the plain `g` and `g2` rows of one file, without domains."""

    def __init__(self, scopes: Sequence[ScopeLike], draft: PolicyBuilder, file: str) -> None:
        self._links, self._file = draft.links, file
        self._usual = not scopes and not any(model.by_domain for model in draft.models.values())
        self._draft = draft
        self._good: dict[str, tuple[set[str], set[str]]] = {"g": (set(), set()), "g2": (set(), set())}

    def take(self, raw: str, number: int) -> bool:
        """Add the line if it is a plain row; return whether it was added. `number` counts from 1."""
        fields = [field.strip(_BLANKS) for field in raw.removesuffix("\r").split(",")]
        if len(fields) != 3 or fields[0] not in self._good or not self._usual or self._draft.rows >= MAX_ROWS:
            return False
        group, member, container = fields
        members, containers = self._good[group]
        pair = (member, container, "")
        if pair in self._links[group] or not (
            (member in members or self._check(group, 0, member))
            and (container in containers or self._check(group, 1, container))
        ):
            return False
        self._links[group][pair] = (self._file, number)
        self._draft.rows += 1
        return True

    def _check(self, group: str, side: int, text: str) -> bool:
        try:
            read = LINK_READERS[group][side](_plain(text))
        except Wrong:
            return False
        if read != text or fault_in_object(text):
            return False
        self._good[group][side].add(text)
        return True


class _KnownValues(dict[str, int]):
    """Maps texts to their numbers, each computed once. Texts that are not taken are not stored, since there may be
    many.
    """

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

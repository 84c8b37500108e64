"""Reads Casbin models and their rows, or reports all their faults.

Rows are read like in pycasbin's file adapter: fields are separated by commas outside of brackets and parentheses and
trimmed, nothing is quoted, `#` begins a comment line. Content that pycasbin drops silently, or that makes it raise at
every request, is a fault here: rows of a type that the model does not define, rules with too few or too many fields,
links with too few (the fields beyond the definition are a warning), effects that are neither allow nor deny, and
patterns and rules that do not compile.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final, NamedTuple

from sidecar.policy import grammar
from sidecar.policy.builder import MAX_ROWS, PolicyBuilder
from sidecar.policy.faults import Faults, SourceLine, meant, shown
from sidecar.policy.grammar import Wrong
from sidecar.policy.model import ModelEntry
from sidecar.policy.rows import MAX_LINE_CHARS, hidden_character
from sidecar.policy.stock.compiler import read_expression, uncompiled_rule
from sidecar.policy.stock.expression import BadExpressionError, text_fields
from sidecar.policy.stock.functions import COMPILED, FUNCTIONS, BadPatternError, time_match
from sidecar.policy.stock.model import BadModelError, StockModel, definitions_of, model_of
from sidecar.policy.stock.roles import RoleOptions, checked
from sidecar.policy.stock.row_index import CompactRows, Row
from sidecar.policy.stock.rules import RuleIndex, in_order, index_of_rules
from sidecar.settings.policy import CasbinSettings
from sidecar.vocabulary import PermissionKind

CASBIN_US, CASBIN_RULE_US = 20.0, 80.0  # upper bounds of pycasbin's time for a row, and for one with a rule for `eval`
WALKED_US: Final = 2.0  # of one row in a compiled matcher
SLOW_ROWS: Final = 500  # from this number on, evaluating them is worth a warning
MAX_CHECKED: Final = 65_536  # values of a column whose check is cached
EXPIRES_AT, LIMIT, WHEN, EFFECT = "expires_at", "max_calls_per_hour", "when", "eft"
_SEPARATOR: Final = re.compile(r"[,\[\]()]")
_BRACKET: Final = re.compile(r"[\[\]()]")
_OPENING: Final = "[("
_DECIDING_NOTE: Final = re.compile(r"\s*#:(?:[^#]*\s)?(approval|shadow)=")


class RowLine(NamedTuple):
    """One line of a file of rows."""

    file: str
    number: int
    raw: str

    @property
    def source(self) -> SourceLine:
        return SourceLine(self.file, self.number, self.raw.rstrip("\r"))

    @property
    def fields(self) -> list[str]:
        """The fields, split like in pycasbin. Raises ValueError, with its column, for a closing bracket without an
        opening one."""
        raw = self.raw
        if _BRACKET.search(raw) is None:
            return [field.strip() for field in raw.split(",")]
        return [raw[start:end].strip() for start, end in self._spans()]

    def column_of(self, field: int) -> int:
        """Returns where a field begins; columns count from 1."""
        start, end = list(self._spans())[field]
        text = self.raw[start:end]
        return start + len(text) - len(text.lstrip()) + 1

    def _spans(self) -> Iterator[tuple[int, int]]:
        depth = start = 0
        for match in _SEPARATOR.finditer(self.raw):
            if match[0] in _OPENING:
                depth += 1
            elif match[0] != ",":
                depth -= 1
                if depth < 0:
                    raise ValueError(match.start() + 1)
            elif not depth:
                yield start, match.start()
                start = match.end()
        yield start, len(self.raw)


@dataclass(frozen=True, slots=True)
class StockSource:
    """A checked Casbin model and its rows, in the order in which they are tried. `files` and `lines` are their places,
    by row; a file is an index of `names`. `foreign` is the reason why the matcher is not compiled; "" if it is
    compiled. `reads_rows` is false if the matcher reads no column, so that it needs no rows."""

    model: StockModel
    file: str
    rows: CompactRows
    index: RuleIndex
    links: Mapping[str, Sequence[Row]]
    names: Sequence[str]
    files: array[int]
    lines: array[int]
    foreign: str = ""
    reads_rows: bool = True

    @property
    def is_plain(self) -> bool:
        """Whether rows have none of the sidecar's columns that are tested in each call."""
        return not {EXPIRES_AT, LIMIT, WHEN} & set(self.model.columns)


class StockReader:
    """Reads one model and its rows. `kinds` are the permission kinds that it decides."""

    def __init__(self, draft: PolicyBuilder, file: str, model: StockModel, entries: Mapping[str, ModelEntry]) -> None:
        self.kinds: list[PermissionKind] = []
        self._draft, self._faults, self._file, self._model = draft, draft.faults, file, model
        self._types = [key for key in entries if key[0] == "p"]
        self._rows: list[Row] = []
        self._links: dict[str, list[Row]] = {}
        self._names: list[str] = []
        self._files, self._lines = array("H"), array("I")
        self._texts: dict[str, str] = {}
        self._first: dict[str, dict[Row, tuple[int, int]]] = {}
        self._definitions = definitions_of(model)
        self._foreign, self._reads_rows, self._is_wrong = "", True, False
        self._row_us = CASBIN_US
        self._checks: dict[int, list[Callable[[str], object]]] = {}
        self._read_matcher(entries[f"m{model.suffix}"])

    def _read_matcher(self, entry: ModelEntry) -> None:
        try:
            expression = read_expression(self._model.matcher, self._definitions, {})
        except BadExpressionError as error:
            entry.refuse("P204", error.message, error.hint, error.token)
            self._is_wrong = True
            return
        self._foreign, self._reads_rows = expression.foreign, expression.reads_rows
        for function, column in expression.patterns:
            self._add_check(column, _pattern_check(function))
        for column in expression.rules:
            self._row_us = CASBIN_RULE_US  # pycasbin parses the rule of each row in each call
            self._add_check(column, self._check_rule)
        for name, check in (
            (EFFECT, grammar.effect), (EXPIRES_AT, grammar.expires_at), (WHEN, self._draft.condition)
        ):  # fmt: skip
            if name in self._model.columns:
                self._add_check(self._model.columns.index(name), check)

    def _add_check(self, column: int, check: Callable[[str], object]) -> None:
        self._checks.setdefault(column, []).append(lru_cache(MAX_CHECKED)(check))

    def _check_rule(self, text: str) -> None:
        try:
            self._foreign = self._foreign or uncompiled_rule(text, self._definitions)
        except BadExpressionError as error:
            at, width = max(text.find(error.token), 0), len(error.token)
            message = f"{shown(text)} is not a rule: {error.message}"
            raise Wrong("P124", message, error.hint, offset=at, width=width) from None

    def read(self, file: str, text: str) -> None:
        """Reads the rows of one file."""
        faults, own, roles = self._faults, f"p{self._model.suffix}", self._model.roles
        self._names.append(file)
        for number, raw in enumerate(text.split("\n"), start=1):
            content = raw.strip()
            if not content:
                continue
            line = RowLine(file, number, raw)
            if content[0] == "#":
                self._refuse_notes(line)
                continue
            if len(raw) > MAX_LINE_CHARS:
                faults.error("P110", f"longer than {MAX_LINE_CHARS} characters", SourceLine(file, number, ""))
                continue
            if not (content.isascii() and content.isprintable()) and hidden_character(line.source, faults):
                continue
            if self._draft.rows >= MAX_ROWS:
                faults.error("P001", f"more than {MAX_ROWS} rows in all", line.source)
                return
            self._draft.rows += 1
            try:
                key, *fields = line.fields
            except ValueError as error:
                faults.error("P102", "a bracket that nothing opens", line.source, int(str(error)))
                continue
            if '"' in raw:
                self._warn_of_quotes(fields, line)
            if key == own:
                self._read_rule(fields, line)
            elif key in roles:
                self._read_link(key, fields, line)
            elif key not in self._types:
                known = (*self._types, *roles)
                hint = meant(key, known) or f"{self._file} defines {', '.join(known)}"
                message = f"row type {shown(key)} is unknown"
                faults.error("P101", message, line.source, line.column_of(0), max(1, len(key)), hint)

    def _refuse_notes(self, line: RowLine) -> None:
        """Reports notes that take effect in rows of the sidecar's own models. Here their line is a comment, and the row
        would allow."""
        found = _DECIDING_NOTE.match(line.raw)
        if found is not None:
            message = f"{found[1]} has no effect in a row of a Casbin model"
            hint = "write the rule for one of the sidecar's own models, or remove the note"
            self._faults.error("P127", message, line.source, found.start(1) + 1, len(found[1]), hint)

    def _warn_of_quotes(self, fields: Sequence[str], line: RowLine) -> None:
        for at, text in enumerate(fields, start=1):
            if len(text) > 1 and text[0] == text[-1] == '"':
                message = "the quotes are part of the value, as in pycasbin"
                hint = "remove them; commas inside brackets and parentheses need none"
                self._faults.warn("P126", message, line.source, line.column_of(at), len(text), hint)

    def _read_rule(self, fields: Sequence[str], line: RowLine) -> None:
        columns = self._model.columns
        if len(fields) != len(columns):
            self._refuse_count(line, fields, f"p{self._model.suffix}", columns)
            return
        before = len(self._faults.errors)
        for column, checks in self._checks.items():
            for check in checks:
                self._check(check, fields, column, line)
        if LIMIT in columns:
            effect = fields[columns.index(EFFECT)] if EFFECT in columns else "allow"
            self._check(partial(grammar.limit, effect=effect), fields, columns.index(LIMIT), line)
        if len(self._faults.errors) == before:
            self._rows.append(self._kept("p", fields, line))
            self._files.append(len(self._names) - 1)
            self._lines.append(line.number)

    def _read_link(self, key: str, fields: Sequence[str], line: RowLine) -> None:
        form = self._model.roles[key]
        if len(fields) < form.fields:
            parameters = [f"parameter {at + 1}" for at in range(form.parameters)]
            self._refuse_count(line, fields, key, ("member", "role", *["domain"] * form.by_domain, *parameters))
            return
        if len(fields) > form.fields:
            message, hint = (
                f"only the first {form.fields} fields of a {key} row are read",
                f"{self._file} defines it so",
            )
            self._faults.warn("P102", message, line.source, line.column_of(form.fields + 1), hint=hint)
        self._links.setdefault(key, []).append(self._kept(key, fields[: form.fields], line))

    def _kept(self, key: str, fields: Sequence[str], line: RowLine) -> Row:
        texts, first = self._texts, self._first.setdefault(key, {})
        row = tuple([texts.setdefault(text, text) for text in fields])
        place = len(self._names) - 1, line.number
        before = first.setdefault(row, place)
        if before is not place:
            message = f"the same row is already at {self._names[before[0]]}:{before[1]}"
            self._faults.warn("P304", message, line.source, hint="remove one")
        return row

    def _refuse_count(self, line: RowLine, fields: Sequence[str], key: str, names: Sequence[str]) -> None:
        message = f"{len(fields) + 1} fields, but {len(names) + 1} are needed"
        self._faults.error("P102", message, line.source, 1, len(line.raw), f"{key}, {', '.join(names)}")

    def _check(self, check: Callable[[str], object], fields: Sequence[str], column: int, line: RowLine) -> None:
        try:
            check(fields[column])
        except Wrong as wrong:
            at, width = line.column_of(column + 1) + wrong.offset, max(1, wrong.width or len(fields[column]))
            self._faults.error(wrong.code, wrong.message, line.source, at, width, wrong.hint)

    def finished(self, settings: CasbinSettings) -> StockSource:
        """Returns the model with all its rows. Reports faults that depend on all rows."""
        model, count = self._model, len(self._rows)
        order: Sequence[int] = range(count)
        try:
            numbered = [(*row, str(at)) for at, row in enumerate(self._rows)]
            order = [int(row[-1]) for row in in_order(model, numbered, self._links)]
        except ValueError as error:
            self._faults.whole("P125", f"the rows have no order: {error}", self._file)
        check_casbin_rows(self._foreign, count, settings, self._faults, self._file, self._row_us)
        rows = CompactRows.of((self._rows[at] for at in order), len(model.columns))
        index: RuleIndex = () if self._is_wrong else index_of_rules(model, rows, role_options(settings))
        walks = max((one.walks for one in index), default=0)
        if walks >= SLOW_ROWS:
            spent_ms = walks * WALKED_US / 1000
            message = f"no part can be looked up: each decision evaluates {walks} rows, some {spent_ms:.1f} ms"
            hint = "compare a field of the request with a column before all that reads attributes"
            self._faults.warn("P206", message, SourceLine(self._file, 0, ""), hint=hint)
        return StockSource(
            model,
            self._file,
            rows,
            index,
            self._links,
            self._names,
            array("H", [self._files[at] for at in order]),
            array("I", [self._lines[at] for at in order]),
            self._foreign,
            self._reads_rows,
        )


def check_casbin_rows(
    foreign: str, rows: int, settings: CasbinSettings, faults: Faults, file: str, row_us: float = CASBIN_US
) -> None:
    """Reports the cost of pycasbin if it decides, because the settings demand it or because of `foreign`, the reason
    why a matcher is not compiled."""
    if not foreign and settings.engine == "compiled":
        return
    why = f"the matcher is not compiled ({foreign})" if foreign else f"policy.engine is {settings.engine}"
    if rows > settings.casbin_max_rows:
        message = f"{why}, and pycasbin decides {settings.casbin_max_rows} rows at most; there are {rows}"
        hint = "raise policy.casbin_max_rows" + (", or write a compiled matcher" if foreign else "")
        faults.whole("P210", message, file, hint)
        return
    message = f"{why}, so pycasbin decides: up to {row_us:.0f} µs a row, {rows * row_us / 1000:.1f} ms a decision"
    faults.warn(
        "P207",
        message,
        SourceLine(file, 0, ""),
        hint="== != in && || ! and the documented functions are compiled" * bool(foreign),
    )


def stock_model(
    entries: Mapping[str, ModelEntry], file: str, use: int, settings: CasbinSettings, faults: Faults
) -> StockModel | None:
    """Returns the model in these entries; `use` selects its definitions. None after faults."""
    suffix = "" if use == 1 else str(use)
    try:
        model = model_of({key: entry.value for key, entry in entries.items()}, suffix)
    except BadModelError as error:
        if error.key:
            entries[error.key].refuse("P203" if error.key == "e" else "P202", error.message)
        else:
            faults.whole("P202", error.message, file)
        return None
    before = len(faults.errors)
    if model.effect.allows_by_default:
        if settings.default == "allow":
            message = "this model allows every request that no row denies"
            faults.warn("P209", message, entries["e"].line, entries["e"].column)
        else:
            hint = "if that is intended, write policy.default: allow in sidecar.yaml"
            entries["e"].refuse("P203", "this effect allows every request that no row denies", hint)
    for key, form in model.roles.items():
        functions = settings.roles.get(key)
        condition = functions is not None and functions.condition is not None
        if form.parameters and not condition:
            hint = f"write policy.roles: {{{key}: {{condition: timeMatch}}}} in sidecar.yaml"
            entries[key].refuse("P202", "its parameters are not defined", hint)
        elif condition and not form.parameters:
            hint = f"write {key} = _, _, (_, _), or remove policy.roles.{key}.condition"
            entries[key].refuse("P202", "a condition without parameters", hint)
    for name in model.request:
        if name not in text_fields(model.request) and path_of(name, settings) is None:
            entries[f"r{suffix}"].refuse(
                "P202", f"r.{name} is not defined", f"write policy.request: {{{name}: principal.<attribute>}}", name
            )
    return model if len(faults.errors) == before else None


def path_of(name: str, settings: CasbinSettings) -> str | None:
    """Returns the path by which a request field that is not text is read; None if there is none."""
    given = settings.request.get(name)
    side, underscore, attribute = name.partition("_")
    if given is None and underscore and side in _SIDES:
        return f"{_SIDES[side]}.{attribute}"
    return given


_SIDES: Final[Mapping[str, str]] = {"sub": "principal", "obj": "object"}


def role_options(settings: CasbinSettings) -> Mapping[str, RoleOptions]:
    """Returns the settings of role definitions."""
    return {
        key: RoleOptions(
            FUNCTIONS[said.match] if said.match else None,
            FUNCTIONS[said.match_domain] if said.match_domain else None,
            checked(time_match) if said.condition else None,
        )
        for key, said in settings.roles.items()
    }


def _pattern_check(function: str) -> Callable[[str], object]:
    compiled = COMPILED[function]

    def check(text: str) -> None:
        try:
            compiled(text)
        except BadPatternError as error:
            raise Wrong("P124", f"{shown(text)} is not a pattern of {function}: {error}") from None

    return check

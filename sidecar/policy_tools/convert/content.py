"""Reads a file of rows together with its comments, and verifies that two forms of a policy are equivalent."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import NamedTuple, TypeVar

from sidecar.errors import PolicyError
from sidecar.policy import grammar, load_policy
from sidecar.policy.faults import Faults, shown
from sidecar.policy.files import GUARDRAILS, KINDS, STEMS, read_text
from sidecar.policy.model import COLUMNS, parse_model
from sidecar.policy.rows import APPROVAL_NOTES, CsvField, CsvRow, decoded, parse_rows, with_approval_reason
from sidecar.policy.yaml_links import Columns
from sidecar.policy.yaml_rows import MAX_BYTES, parse_yaml
from sidecar.policy.yaml_values import YamlField
from sidecar.vocabulary import PermissionKind

Comment = Callable[[str], str | None]
T = TypeVar("T")


def columns_of(models: Path) -> dict[PermissionKind, tuple[str, ...]]:
    """Returns the columns of the rows of each kind, as the models in a folder define them. Raises PolicyError with
    every fault of the models."""
    faults = Faults()
    columns: dict[PermissionKind, tuple[str, ...]] = {PermissionKind.GUARDRAIL: COLUMNS}
    for kind in KINDS:
        path = models / f"{kind.value}.conf"
        text = read_text(path, faults)
        model = parse_model(kind, str(path), text, faults) if text is not None else None
        if model is not None:
            columns[kind] = model.columns
    if faults.errors:
        raise PolicyError(faults.errors)
    return columns


class ContentEntry(NamedTuple):
    """One row, its kind (None for g and g2), and the comment lines above it; "" is an empty line."""

    kind: PermissionKind | None
    row: CsvRow
    above: tuple[str, ...] = ()


class Content(NamedTuple):
    """The content of one file: the comments at its head, its rows, and the comments at its end."""

    entries: tuple[ContentEntry, ...]
    head: tuple[str, ...] = ()
    end: tuple[str, ...] = ()


def read(path: str, raw: bytes, columns: Columns, faults: Faults) -> Content | None:
    """Reads a CSV or YAML file; None, with faults, if it is not valid."""
    before = len(faults.errors)
    text = decoded(raw, path, faults)
    if text is None:
        return None
    if PurePosixPath(path).suffix == ".csv":
        kind, known = kind_of(path)
        if not known:
            faults.whole("P002", "this name has no kind", path, "name it <kind>.csv, or say --kind")
            return None
        found = [(None if row.type != "p" else kind, row) for row in parse_rows(path, text, faults)]
    else:
        found = list(parse_yaml(path, text, faults, columns))
    found = [(kind, replace(row, notes=with_approval_reason(row.notes))) for kind, row in found]
    _check(found, columns, faults)
    if len(faults.errors) > before:
        return None
    return _with_comments(found, text, _comment_in_csv if path.endswith(".csv") else _comment_in_yaml)


def kind_of(path: str) -> tuple[PermissionKind | None, bool]:
    """Returns the kind of the p rows of a CSV file, by its name (None for a file of roles), and whether the name is
    known."""
    stem = PurePosixPath(path).name.partition(".")[0]
    kinds = {**{kind.value: kind for kind in KINDS}, GUARDRAILS: PermissionKind.GUARDRAIL}
    return kinds.get(stem), stem in STEMS


def _check(found: Sequence[tuple[PermissionKind | None, CsvRow]], columns: Columns, faults: Faults) -> None:
    """Reports content that the other form cannot express. `sidecar policy check` makes all other checks."""
    owner = ""
    for kind, row in found:
        wanted = columns.get(kind, COLUMNS) if kind else ("member", "container")
        if row.type == "p" and kind is None:
            faults.error("P111", "roles.csv contains only g and g2 rows", row.line)
        elif len(row.fields) != len(wanted) and not (row.type == "g" and len(row.fields) == 3):
            message = f"{len(row.fields) + 1} fields, but {len(wanted) + 1} are needed"
            faults.error("P102", message, row.line, 1, len(row.line.text))
        elif row.type != "p":
            _try(row, row.fields[1], faults, grammar.role if row.type == "g" else grammar.set_)
        else:
            _check_rule(dict(zip(wanted, row.fields, strict=True)), kind, row, owner, faults)
        part_of = row.notes.get("part_of")
        owner = part_of.text if part_of else row.notes["id"].text if "id" in row.notes else ""


def _check_rule(
    fields: Mapping[str, CsvField], kind: PermissionKind | None, row: CsvRow, owner: str, faults: Faults
) -> None:
    effect = _try(row, fields["eft"], faults, grammar.effect)
    _try(row, fields["max_calls_per_hour"], faults, grammar.limit, effect or "allow")
    _try(row, fields["act"], faults, lambda text: [grammar.action(word.strip()) for word in text.split("|")])
    for key in APPROVAL_NOTES:
        if key in row.notes and "approval" not in row.notes:
            field, line = row.notes[key], row.notes_line or row.line
            faults.error("P109", f"{key} has no effect without approval", line, field.column, field.width)
    if "shadow" in row.notes:
        _try(row, row.notes["shadow"], faults, grammar.word_of("true", "false"))
    if kind is PermissionKind.GUARDRAIL and effect == "allow":
        field = fields["eft"]
        faults.error("P505", "a guardrail only denies", row.line, field.column, field.width)
    if "part_of" in row.notes and row.notes["part_of"].text != owner:
        field, line = row.notes["part_of"], row.notes_line or row.line
        hint = "a part is directly below the rule that it belongs to, and names its id"
        faults.error("P509", f"the rule above is not {shown(field.text)}", line, field.column, field.width, hint)


def _try(row: CsvRow, field: CsvField, faults: Faults, read: Callable[..., T], *more: object) -> T | None:
    try:
        return read(field.text, *more)
    except grammar.Wrong as wrong:
        noted = row.notes_line if row.notes_line and any(field is note for note in row.notes.values()) else row.line
        line = field.line_of() if isinstance(field, YamlField) else noted
        faults.error(wrong.code, wrong.message, line, field.column, max(1, field.width), wrong.hint)
        return None


def _with_comments(found: Sequence[tuple[PermissionKind | None, CsvRow]], text: str, comment: Comment) -> Content:
    """Returns the rows, each with the comments between the previous row and itself, and inside it. Those above the last
    empty line before the first row are the file's."""
    lines = [comment(line.removesuffix("\r")) for line in text.split("\n")]
    entries: list[ContentEntry] = []
    at = 0
    for kind, row in found:
        start = (row.notes_line or row.line).number - 1
        fields = [field for field in (*row.fields, *row.notes.values()) if isinstance(field, YamlField)]
        end = max([row.line.number, *(place.line.number for field in fields for place in field.places)])
        above = [line for line in lines[at:start] if line is not None]
        above += [line for line in lines[max(at, start) : end] if line]
        entries.append(ContentEntry(kind, row, tuple(above)))
        at = max(at, end)
    if not entries:
        return Content((), tuple(_trimmed([line for line in lines if line is not None])))
    first = entries[0]
    blank = max((number for number, line in enumerate(first.above) if line == ""), default=-1)
    entries[0] = ContentEntry(first.kind, first.row, first.above[blank + 1 :])
    rest = _trimmed([line for line in lines[at:] if line is not None])
    return Content(tuple(entries), tuple(_trimmed(first.above[: blank + 1])), tuple(rest))


def _trimmed(lines: Sequence[str]) -> Sequence[str]:
    found = [number for number, line in enumerate(lines) if line]
    return lines[found[0] : found[-1] + 1] if found else []


def _comment_in_csv(line: str) -> str | None:
    """Returns the comment on a CSV line, "" for an empty line; None for any other line."""
    content = line.strip(" \t").replace("\t", "    ")
    return content if (content.startswith("#") and not content.startswith("#:")) or not content else None


_QUOTED = re.compile(r"""(?:(?<=[\s,:\[{(-])|^)("(?:[^"\\]|\\.)*"|'(?:[^']|'')*')""")
_AFTER = re.compile(r"\s#")


def _comment_in_yaml(line: str) -> str | None:
    """Returns the comment on a YAML line, also after a value; "" for an empty line, None for any other line."""
    content = line.strip()
    if content.startswith("#"):
        found = content
    elif not content:
        return ""
    else:
        bare = _QUOTED.sub(lambda quoted: "x" * len(quoted[0]), line)
        after = _AFTER.search(bare)
        if after is None:  # comments above `version` belong to the file, not to the first row
            return "" if content.startswith("version:") else None
        found = line[after.start() :].strip()
    return "# " + found[1:] if found.startswith("#:") else found


class DifferentError(Exception):
    """The result differs from the source: a bug in the converter. Nothing is written."""


Said = dict[tuple[str, str], list[object]]


def said(content: Content, columns: Columns) -> Said:
    """Returns the rows by kind and type, in a form that is equal for equivalent files."""
    found: Said = {}
    head: dict[str, str] = {}
    for entry in content.entries:
        kind, row = entry.kind, entry.row
        names = columns.get(kind, COLUMNS) if kind else ("member", "container", "domain")
        texts = {name: field.text for name, field in zip(names, row.fields, strict=False)}
        if row.type == "p":
            actions = dict.fromkeys(word.strip() for word in texts["act"].split("|"))
            texts["act"] = "|".join(actions)
            # A part has the fields of the rule's first row, except for subject and object (P509).
            head = texts if "part_of" not in row.notes else head | {key: texts[key] for key in ("sub", "obj")}
            texts = dict(head)
        notes = {key: field.text for key, field in row.notes.items()}
        found.setdefault((kind.value if kind else "", row.type), []).append((sorted(texts.items()), notes))
    return found


def compare(path: str, content: Content, written: Mapping[str, bytes], columns: Columns) -> None:
    """Reads the result again. Raises DifferentError if it does not contain the same rows, PolicyError if it is too
    large."""
    faults = Faults()
    again: Said = {}
    for name, raw in written.items():
        if len(raw) > MAX_BYTES:
            faults.whole("P510", f"as {name} it would be larger than {MAX_BYTES // 2**20} MiB", path, "split it first")
            raise PolicyError(faults.errors)
        result = read(name, raw, columns, faults)
        for key, rows in (said(result, columns) if result else {}).items():
            again.setdefault(key, []).extend(rows)
    if faults.errors or again != said(content, columns):
        what = str(faults.errors[0]) if faults.errors else "the rows differ"
        raise DifferentError(f"{path} cannot be converted without loss: {what}")


def revision_of_both(files: Mapping[str, bytes], result: Mapping[str, bytes], models: Path) -> tuple[str, str]:
    """Returns the revision of both policies, and ""; if the source does not load, "" and the reason. Raises
    DifferentError if the result does not load, or has another revision."""
    with TemporaryDirectory(prefix="sidecar-convert-") as folder:
        before, after = Path(folder) / "before", Path(folder) / "after"
        for root, found in ((before, files), (after, result)):
            for path, raw in found.items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_bytes(raw)
        try:
            old = load_policy(models, before)
        except PolicyError as error:
            return "", error.faults[0].message
        try:
            new = load_policy(models, after)
        except PolicyError as error:
            raise DifferentError(f"the result does not load: {error.faults[0]}") from None
    if old.revision != new.revision:
        raise DifferentError(f"the revision changes: {old.revision} is not {new.revision}")
    return new.revision, ""

"""Verifies that two forms of a policy are equivalent."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from sidecar.errors import PolicyError
from sidecar.policy import load_policy
from sidecar.policy.faults import Faults
from sidecar.policy.model import COLUMNS
from sidecar.policy.yaml_links import Columns
from sidecar.policy.yaml_rows import MAX_BYTES
from sidecar.policy_tools.convert.csv_content import Content, ContentEntry, read


class DifferentError(Exception):
    """The result differs from the source: a bug in the converter. Nothing is written."""


Said = dict[tuple[str, str], list[object]]


def said(content: Content, columns: Columns) -> Said:
    """Return the content of the rows, by kind and type, in order."""
    found: Said = {}
    head: dict[str, str] = {}
    for entry in content.entries:
        kind, row = entry.kind, entry.row
        texts = _texts(entry, columns)
        if row.type == "p":
            actions = dict.fromkeys(word.strip() for word in texts["act"].split("|"))
            texts["act"] = "|".join(actions)
            # Parts agree with the row above in all but these (P509), in any spelling.
            head = texts if "part_of" not in row.notes else head | {key: texts[key] for key in ("sub", "obj")}
            texts = dict(head)
        notes = {key: field.text for key, field in row.notes.items()}
        found.setdefault((kind.value if kind else "", row.type), []).append((sorted(texts.items()), notes))
    return found


def _texts(entry: ContentEntry, columns: Columns) -> dict[str, str]:
    names = columns.get(entry.kind, COLUMNS) if entry.kind else ("member", "container", "domain")
    return {name: field.text for name, field in zip(names, entry.row.fields, strict=False)}


def compare(path: str, content: Content, written: Mapping[str, bytes], columns: Columns) -> None:
    """Read the result again: it must contain the same rows. Raises DifferentError; PolicyError if it is too large."""
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
    """Return the revision that both have; "" and the reason if the source does not load."""
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

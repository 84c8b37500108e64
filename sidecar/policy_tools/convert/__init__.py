"""Converts policies between CSV and YAML, and formats CSV, without loss, comments included.

The result is read again: it must contain the same rows and, if the policy loads, have the same revision.
"""

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

from sidecar.errors import PolicyError
from sidecar.policy.faults import Faults
from sidecar.policy.files import GUARDRAILS, ROLES, STEMS
from sidecar.policy.yaml_links import Columns
from sidecar.policy.yaml_rows import MAX_BYTES
from sidecar.policy_tools.convert.content import Content, ContentEntry, compare, read, revision_of_both
from sidecar.policy_tools.convert.writer import csv_of, yaml_of
from sidecar.vocabulary import PermissionKind

Form = Literal["yaml", "csv"]
SUFFIXES: Mapping[Form, tuple[str, ...]] = {"yaml": (".yaml", ".yml"), "csv": (".csv",)}
OTHER_FILES = ("budgets.yaml", "pins.yaml", "disabled.yaml")
MAX_FILES = 4096


class Converted(NamedTuple):
    """The new files by path, and how their equality was verified. `sources` are the converted files, each with the
    paths of its results; `rows` counts their rows. `revision` is "" if the source does not load, so that only its rows
    were compared; `why_not` is the reason."""

    files: Mapping[str, bytes]
    sources: Mapping[str, tuple[str, ...]]
    rows: int
    revision: str = ""
    why_not: str = ""


def convert(files: Mapping[str, bytes], to: Form, models: Path, columns: Columns, folder: str = "") -> Converted:
    """Converts the files of a policy, by path with `/`, to the form `to`; files that are already in it, and other
    files, are returned unchanged. `folder` is their location in faults. Raises PolicyError with every fault of the
    source, DifferentError if the result is not equivalent."""
    faults = Faults()
    result: dict[str, bytes] = {}
    sources: dict[str, tuple[str, ...]] = {}
    rows = 0
    for path, raw in files.items():
        pure = PurePosixPath(path)
        is_rows = pure.suffix in sum(SUFFIXES.values(), ()) and path not in OTHER_FILES and pure.parts[0] != "tests"
        if not is_rows or pure.suffix in SUFFIXES[to]:
            _keep(path, {path: raw}, result, faults)
            continue
        content = read(str(PurePosixPath(folder, path)), raw, columns, faults)
        if content is not None:
            rows += len(content.entries)
            written = _written(path, content, to, columns)
            compare(path, content, written, columns)
            _keep(path, written, result, faults)
            sources[path] = tuple(written)
    if faults.errors:
        raise PolicyError(faults.errors)
    revision, why_not = revision_of_both(files, result, models)
    return Converted(result, sources, rows, revision, why_not)


def formatted(files: Mapping[str, bytes], models: Path, columns: Columns, folder: str = "") -> dict[str, bytes]:
    """Returns the formatted text of those CSV files of a policy that differ from it, by path. Raises PolicyError with
    every fault of the source, DifferentError if the result is not equivalent."""
    faults, result = Faults(), dict[str, bytes]()
    for path, raw in files.items():
        stem = PurePosixPath(path).name.partition(".")[0]
        if PurePosixPath(path).suffix != ".csv" or stem not in STEMS:
            continue
        content = read(str(PurePosixPath(folder, path)), raw, columns, faults)
        if content is not None and (written := csv_of(content).encode()) != raw:
            compare(path, content, {path: written}, columns)
            result[path] = written
    if faults.errors:
        raise PolicyError(faults.errors)
    revision_of_both(files, {**files, **result}, models)
    return result


def files_below(folder: Path) -> dict[str, bytes]:
    """Returns every file below a policy's folder by path, except those with a name or folder that begins with `.`.
    Raises PolicyError for a file that is not regular or is too large, and for more than MAX_FILES files."""
    faults, found = Faults(), dict[str, bytes]()
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if path.is_dir() or any(part.startswith(".") for part in relative.parts):
            continue
        if len(found) == MAX_FILES:
            faults.whole("P001", f"more than {MAX_FILES} files", str(folder))
            break
        raw = bounded(path, faults)
        if raw is not None:
            found[relative.as_posix()] = raw
    if faults.errors:
        raise PolicyError(faults.errors)
    return found


def bounded(path: Path, faults: Faults) -> bytes | None:
    """Returns the bytes of a file; None, with a fault, if it is not regular or is too large."""
    if not path.is_file():
        faults.whole("P001", "not a regular file", str(path))
        return None
    with path.open("rb") as file:
        raw = file.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        faults.whole("P001", f"larger than {MAX_BYTES // 2**20} MiB", str(path), "split it first")
        return None
    return raw


def _keep(source: str, written: Mapping[str, bytes], result: dict[str, bytes], faults: Faults) -> None:
    for path, raw in written.items():
        if path in result:
            faults.whole("P002", f"{path} would be written twice", source, "rename one of the files")
        result[path] = raw


def _written(path: str, content: Content, to: Form, columns: Columns) -> dict[str, bytes]:
    pure = PurePosixPath(path)
    if not content.entries:
        return {}  # a YAML file must not be empty; a CSV file may be
    if to == "yaml":
        return {str(pure.with_suffix(".yaml")): yaml_of(content, columns).encode()}
    parts: dict[str, list[ContentEntry]] = {}
    for entry in content.entries:
        parts.setdefault(_csv_name(pure, entry.kind), []).append(entry)
    names = list(parts)
    heads, ends = {names[0]: content.head}, {names[-1]: content.end}
    return {
        str(pure.with_name(name)): csv_of(Content(tuple(entries), heads.get(name, ()), ends.get(name, ()))).encode()
        for name, entries in parts.items()
    }


def _csv_name(path: PurePosixPath, kind: PermissionKind | None) -> str:
    """Returns the name of the CSV file for rows of one kind: `rules.yaml` → `agent_to_tool.rules.csv`. A stem that
    already states the kind does not change. `kind` is None for roles and sets."""
    stem = ROLES if kind is None else GUARDRAILS if kind is PermissionKind.GUARDRAIL else kind.value
    if path.stem == stem or path.stem.startswith(f"{stem}."):
        return f"{path.stem}.csv"
    return f"{stem}.{path.stem}.csv"

"""Reads YAML documents with positions, and validates them by strict models.

The only reader of YAML files: settings, rules, budgets, tests. It refuses text that two readers could interpret
differently, reports all faults at once, and remembers the position of each value for faults found later.

    Y001-Y012   the text: unreadable, size, encoding, characters, syntax, documents, depth, anchors, tags, keys, scalars
    Y101-Y104   the shape: unknown key, missing key, wrong type, wrong value
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

from sidecar.errors import ConfigError, Fault, SettingsError, fault_in, way_to_read
from sidecar.settings.validation_errors import Finding, findings_of
from sidecar.settings.yaml_nodes import MAX_BYTES, Loc, YamlNode, YamlSpan, compose, lines_of, place_in, shown_line

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class Document:
    """One YAML file that was read without faults. `error` is the exception class of later faults."""

    path: Path
    root: YamlNode
    lines: tuple[str, ...] = field(repr=False)
    error: type[ConfigError] = SettingsError

    @cached_property
    def data(self) -> Any:
        """The content in dicts, lists and scalars; None if the file is empty."""
        return self.root.plain()

    def span_of(self, loc: Loc, *, key: bool = False) -> YamlSpan:
        """The position of the value at `loc`. With `key`, and for a mapping or a list, it is that of its key. For a
        missing value it is that of its nearest parent."""
        node = self.nearest(loc)
        is_collection = isinstance(node.value, dict | list)
        return node.key if node.key and (key or is_collection) else node.span

    def nearest(self, loc: Loc) -> YamlNode:
        """The node at `loc`. Steps that are not in the file (pydantic's union tags, a missing key) are skipped."""
        node = self.root
        for step in loc:
            node = node.child(step) or node
        return node

    def source_line(self, number: int) -> str:
        """The text of a line, with passwords in URLs masked; "" if it does not exist."""
        return shown_line(self.lines[number - 1]) if 0 < number <= len(self.lines) else ""

    def fault(self, loc: Loc, message: str, code: str, hint: str = "", *, key: bool = False) -> Fault:
        """A fault at the value or the key at `loc`."""
        span = self.span_of(loc, key=key)
        source = self.source_line(span.line) if span.file == str(self.path) else ""
        return Fault(span.file, span.line, span.column, code, message, hint, source, span.width)

    def refuse(self, faults: Iterable[Fault]) -> NoReturn:
        """Raises this document's error with the faults in file order, without duplicates."""
        raise self.error(in_file_order(faults))

    def validate(self, model: type[Model], context: Mapping[str, Any] | None = None) -> Model:
        """The content as `model`. Raises this document's error with all faults, their positions and hints."""
        if self.data is None:
            needed = [name for name, about in model.model_fields.items() if about.is_required()]
            hint = f"it needs at least: {', '.join(needed)}" if needed else ""
            self.refuse([fault_in(self.path, "the file is empty", code="Y102", hint=hint)])
        try:
            return model.model_validate(self.data, context=dict(context or {}))
        except ValidationError as error:
            self.refuse(self._placed(finding) for finding in findings_of(error, model))

    def _placed(self, finding: Finding) -> Fault:
        node = self.nearest(finding.at)
        if node.secret or node.shown is not None:
            # Hints and quoted words may repeat the value, and values of secret files or ${VAR} must not be shown.
            message = "this value is not valid here" if '"' in finding.message else finding.message
            return self.fault(finding.at, message, finding.code)
        return self.fault(finding.at, finding.message, finding.code, finding.hint, key=finding.on_key)


def read_document(
    path: Path,
    *,
    text: str | bytes | None = None,
    error: type[ConfigError] = SettingsError,
    max_bytes: int = MAX_BYTES,
    inside: Path | None = None,
) -> Document:
    """Reads a YAML file, or `text` in its place. A file that links lead out of the folder `inside` is refused. Raises
    `error` with all faults."""
    content = read_bytes(path, error=error, max_bytes=max_bytes, inside=inside) if text is None else text
    raw = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    if len(raw) > max_bytes:
        message = f"larger than {max_bytes} bytes"
        raise error([fault_in(path, message, code="Y002", hint="split it into several files")])
    try:
        decoded = raw.decode("utf-8")
    except UnicodeDecodeError as wrong:
        line, column = place_in(raw, wrong.start)
        fault = fault_in(path, "not UTF-8", code="Y003", hint="save it as UTF-8")
        raise error([replace(fault, line=line, column=column)]) from None
    root, faults = compose(decoded, str(path))
    if faults:
        raise error(in_file_order(faults))
    return Document(path, root, tuple(lines_of(decoded)), error)


def read_bytes(
    path: Path, *, error: type[ConfigError] = SettingsError, max_bytes: int = MAX_BYTES, inside: Path | None = None
) -> bytes:
    """Reads a file, at most one byte more than `max_bytes`, so that the caller sees whether it is larger. `inside` is
    as in `read_document`. Raises `error`."""
    if inside is not None and (fault := leading_out(path, inside)) is not None:
        raise error([fault])
    try:
        with path.open("rb") as file:
            return file.read(max_bytes + 1)
    except OSError as wrong:
        raise error([_unreadable(path, wrong)]) from None


def is_written(path: Path, *, error: type[ConfigError]) -> bool:
    """Whether there is a file or a link of this name, also a link that leads nowhere, which a reader must not take for
    a missing file. Raises `error` if the folder cannot be searched."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as wrong:
        raise error([_unreadable(path, wrong)]) from None
    return True


def _unreadable(path: Path, wrong: OSError) -> Fault:
    reason = (wrong.strerror or str(wrong)).lower()
    return fault_in(path, f"cannot be read: {reason}", code="Y001", hint=way_to_read(wrong))


def leading_out(path: Path, folder: Path) -> Fault | None:
    """The fault of a path that links lead out of `folder`; None if they do not. Faults quote lines, so the author of
    such a link could read any file. Links within the folder (Kubernetes' `..data`) are allowed."""
    if Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        return None
    hint = "replace it with the file; links must lead to files inside the folder"
    return fault_in(path, f"a link that leads out of {folder}", code="P009", hint=hint)


def in_file_order(faults: Iterable[Fault]) -> list[Fault]:
    """The faults in file order, without duplicates."""
    return sorted(set(faults), key=lambda fault: (fault.file, fault.line, fault.column, fault.code, fault.message))

"""Holds the parts of a policy while its files are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sidecar.policy.conditions import Condition, Language
from sidecar.policy.faults import Faults, SourceLine
from sidecar.policy.grammar import NONE
from sidecar.policy.model import Model
from sidecar.policy.rows import MAX_FILE_BYTES
from sidecar.policy.table import RowTable, TableShape, TextPool
from sidecar.settings.policy import PolicyScope
from sidecar.settings.reading import read_bounded
from sidecar.vocabulary import PermissionKind

MAX_ROWS = 2_000_000
Place = tuple[str, int]  # a file and a line


@dataclass(slots=True)
class PolicyBuilder:
    """The rows read so far. `names` maps each written id to the place of its rule; `links` maps the `g` and `g2` rows,
    as (member, container, domain), to their places; `shapes` maps the shapes of each table to their numbers."""

    scopes: Sequence[PolicyScope]
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
    def by_domain(self) -> bool:
        return any(model.by_domain for model in self.models.values())

    def shape(self, kind: PermissionKind, texts: Mapping[str, str]) -> int:
        known, shape = self.shapes[kind], TableShape(*(texts[name] for name in TableShape._fields if name in texts))
        number = known.get(shape)
        if number is None:
            number = known[shape] = self.tables[kind].add_shape(shape)
        return number

    def condition(self, text: str) -> Condition | None:
        """Compiles a condition once; None for `-`. Raises Wrong."""
        if text == NONE:
            return None
        known = self.conditions.get(text)
        if known is None:
            known = self.conditions[text] = self.language.compile(text)
        return known

    def line_at(self, place: Place) -> SourceLine:
        """Reads the line at a place again: positions are stored in memory, lines are not."""
        file, number = place
        if self._looked_up[0] != file:
            try:
                text = read_bounded(Path(file), MAX_FILE_BYTES).decode("utf-8-sig", "replace")
                self._looked_up = file, text.split("\n")
            except OSError:
                self._looked_up = file, ()
        lines = self._looked_up[1]
        return SourceLine(file, number, lines[number - 1].rstrip("\r") if 0 < number <= len(lines) else "")

    def file_number(self, file: str) -> int:
        if not self.files or self.files[-1] != file:
            self.files.append(file)
        return len(self.files) - 1

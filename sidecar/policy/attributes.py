"""Reads attributes.yaml: attributes of principals and objects, for Casbin models that compare them.

    version: 1
    attributes:
      user:alice: {Age: 30, Role: admin}
      tool:data/*: {Owner: alice}

Names and patterns are the sidecar's. If several entries match a name, the exact one applies, otherwise the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field, JsonValue

from sidecar.errors import PolicyError
from sidecar.policy.patterns import WILDCARD, glob
from sidecar.settings.field_types import Section, Word
from sidecar.settings.yaml_document import is_written, read_document

ATTRIBUTES_FILE: Final = "attributes.yaml"
MAX_NAMES: Final = 8_192  # whose attributes are cached
_NONE: Final[Mapping[str, Any]] = {}


class AttributesFile(Section):
    """Attributes of principals and objects, for Casbin models that compare them."""

    version: Literal[1]
    """Version of this file format."""
    attributes: Mapping[Word, Mapping[str, JsonValue]] = Field(default_factory=dict)
    """Attributes by name or pattern. If several entries match a name, the exact one applies, otherwise the first."""


class Attributes:
    """The attributes of names. `of` returns those of one name."""

    def __init__(self, entries: Mapping[str, Mapping[str, Any]] = _NONE) -> None:
        self.entries = entries
        self._patterns = [(name, found) for name, found in entries.items() if WILDCARD in name]
        self.of = lru_cache(MAX_NAMES)(self._of)

    def _of(self, name: str) -> Mapping[str, Any]:
        found = self.entries.get(name)
        if found is not None:
            return found
        return next((said for pattern, said in self._patterns if glob(name, pattern)), _NONE)

    def __reduce__(self) -> tuple[type[Attributes], tuple[Mapping[str, Mapping[str, Any]]]]:
        return Attributes, (self.entries,)


def load_attributes(folder: Path) -> Attributes:
    """Reads the file in the folder of the rules; without it, no name has attributes. Raises PolicyError."""
    path = folder / ATTRIBUTES_FILE
    if not is_written(path, error=PolicyError):
        return Attributes()
    return Attributes(read_document(path, error=PolicyError, inside=folder).validate(AttributesFile).attributes)

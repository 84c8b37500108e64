"""The fields of a query or of a form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final
from urllib.parse import parse_qsl, urlencode

from sidecar.protocols.jsonrpc import malformed

MAX_FIELDS: Final = 200


class FormFields(Mapping[str, str]):
    """Fields of a query or a form. A field that is given more than once has its last value; `all` returns each."""

    def __init__(self, given: Sequence[tuple[str, str]]) -> None:
        self._given, self._last = given, dict(given)

    @classmethod
    def parsed(cls, text: str) -> FormFields:
        """Parses `application/x-www-form-urlencoded`. Raises Refusal(MALFORMED_CALL)."""
        try:
            given = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS)
        except ValueError:
            raise malformed("the fields cannot be read") from None
        return cls(given)

    def __getitem__(self, name: str) -> str:
        return self._last[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._last)

    def __len__(self) -> int:
        return len(self._last)

    def all(self, name: str) -> Sequence[str]:
        """All values of a field."""
        return [value for key, value in self._given if key == name]

    def text(self, name: str, *, most: int = 512) -> str:
        """One line of text without blanks around it; "" if it is missing. Raises Refusal(MALFORMED_CALL)."""
        value = self.get(name, "").strip()
        if len(value) > most:
            raise malformed(f"{name}: at most {most} characters")
        if any(character < " " or character == "\x7f" for character in value):
            raise malformed(f"{name}: one line of text, without control characters")
        return value

    def number(self, name: str, default: int, *, least: int, most: int) -> int:
        """A whole number within bounds; `default` if the field is missing or empty. Raises Refusal(MALFORMED_CALL)."""
        value = self.text(name, most=20)
        if not value:
            return default
        if not (value.isascii() and value.isdecimal()) or not least <= int(value) <= most:
            raise malformed(f"{name}: a whole number from {least} to {most}")
        return int(value)

    def choice(self, name: str, choices: Sequence[str], default: str = "") -> str:
        """One of the choices; `default` if the field is missing or empty. Raises Refusal(MALFORMED_CALL)."""
        value = self.text(name) or default
        if value not in (*choices, default):
            raise malformed(f"{name}: one of {', '.join(choices)}")
        return value

    def without(self, name: str) -> FormFields:
        return FormFields([(key, value) for key, value in self._given if key != name])

    def with_changes(self, changes: Mapping[str, object]) -> str:
        """The fields as a query, with changes, and without fields that are None or ""."""
        changed = {**self._last, **changes}
        return urlencode({name: value for name, value in changed.items() if value not in (None, "")})

"""Records chosen arguments in clear, so that a changed condition can be evaluated on them later.

Only arguments that `audit.clear_arguments` names are recorded, and only plain, short values without anything that looks
like a credential; otherwise the record gives the reason why a value is missing.
"""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from sidecar.protocols.json_pointers import Pointer, parse_pointer
from sidecar.protocols.secret_patterns import CLASSES, Span
from sidecar.vocabulary import Question

MAX_CHARS = 256
VALUE, ABSENT, LEFT_OUT = "value", "absent", "left_out"  # the kinds of entry
_MAX_INTEGER = 2**63
_CREDENTIALS = [CLASSES[name] for name in ("bearer", "jwt", "api_key", "private_key")]
_URL_USER = "://"


class Clear:
    """Selects the arguments that are recorded in clear. `chosen` are pointers by object."""

    __slots__ = ("_chosen",)

    def __init__(self, chosen: Mapping[str, Sequence[str]]) -> None:
        self._chosen = {name: {text: parse_pointer(text) for text in pointers} for name, pointers in chosen.items()}

    def of(self, question: Question) -> dict[str, dict[str, Any]] | None:
        pointers = self._chosen.get(question.object)
        if pointers is None:
            return None
        return {text: _entry(question.arguments, pointer) for text, pointer in pointers.items()}


def _entry(value: Any, pointer: Pointer) -> dict[str, Any]:
    """The entry for a pointer. `absent` is the number of the pointer's names up to the first missing one, inclusive."""
    for depth, name in enumerate(pointer):
        if not isinstance(value, Mapping):
            return {LEFT_OUT: "no-object"}
        if name not in value:
            return {ABSENT: depth + 1}
        value = value[name]
    why = _why_not(value)
    return {LEFT_OUT: why} if why else {VALUE: value}


def _why_not(value: Any) -> str:
    match value:
        case None | bool():
            return ""
        case int():
            return "" if abs(value) < _MAX_INTEGER else "too-large"
        case float():
            return "" if isfinite(value) else "not-plain"
        case str():
            return "too-large" if len(value) > MAX_CHARS else _why_no_text(value)
    return "not-plain"


def _why_no_text(text: str) -> str:
    spans: list[Span] = []
    for find in _CREDENTIALS:
        find(text, 0, len(text), spans)
    before, _, after = text.partition(_URL_USER)
    if spans or (before and "@" in after.partition("/")[0]):
        return "credential"
    return "not-plain" if any("\ud800" <= each <= "\udfff" for each in text) else ""  # a lone surrogate

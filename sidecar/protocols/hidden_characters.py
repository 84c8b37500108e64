"""Finds, removes and escapes characters that models read but people do not see.

Tag characters can contain whole sentences that no screen shows, bidirectional controls and zero-width characters make
one text look like another, and escape sequences control a terminal. Hidden characters are the code points that Unicode
calls default-ignorable, control characters except tab and line ends, line and paragraph separators, noncharacters, and
characters that look blank. Joiners and variation selectors that have an effect on visible characters (in an emoji, in
Persian) are not hidden.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import orjson

_JOINERS, _SELECTORS = "\u200c\u200d", "\ufe0e\ufe0f"
_CLASSES: Final = {
    "tag characters": "\U000e0000-\U000e007f",
    "bidirectional controls": "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069",
    "zero-width characters": "\u200b\u2060-\u2065\ufeff",
    "variation selectors": "\u180b-\u180d\u180f\ufe00-\ufe0d\U000e0100-\U000e01ef",
    "control characters": "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ufff9-\ufffb",
    # The rest of Default_Ignorable_Code_Point (Unicode 16, DerivedCoreProperties.txt), the Braille blank, and
    # noncharacters.
    "invisible characters": "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180e\u206a-\u206f\u2800\u3164\uffa0"
    "\ufff0-\ufff8\ufffe\uffff\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0080-\U000e00ff\U000e01f0-\U000e0fff",
}
_HIDDEN = "".join(_CLASSES.values())
_VISIBLE = f"[^\x00-\x7f{_JOINERS}{_SELECTORS}{_HIDDEN}]"
_ESCAPE = r"(?:\x1b\[|\x9b)[0-?]{0,99}[ -/]{0,9}[@-~]|(?:\x1b\]|\x9d)[^\x07\x1b\x9c]{0,9999}(?:\x07|\x1b\\|\x9c)|\x1b"
_IDLE_JOINER = f"(?:(?<!{_VISIBLE})(?<!\ufe0f)[{_JOINERS}]|[{_JOINERS}](?!{_VISIBLE}))"
_IDLE_SELECTOR = f"(?<!{_VISIBLE})[{_SELECTORS}](?!\u20e3)"  # 20E3 makes a digit a key cap
_FOUND = re.compile(
    f"(?P<escape>{_ESCAPE})|(?P<joiner>{_IDLE_JOINER})|(?P<selector>{_IDLE_SELECTOR})|"
    + "|".join(f"(?P<c{number}>[{points}]+)" for number, points in enumerate(_CLASSES.values()))
)
_NAMES: Final = {
    "escape": "terminal escapes",
    "joiner": "zero-width characters",
    "selector": "variation selectors",
    **{f"c{number}": kind for number, kind in enumerate(_CLASSES)},
}
_SUSPECT_ASCII = re.compile(rb"\\u00|\\[bf]|\x7f")  # how orjson writes control characters
_UNSEEN = re.compile(f"[{_JOINERS}{_SELECTORS}{_HIDDEN}]")


class AmbiguousKeysError(ValueError):
    """Two keys of one object are equal after hidden characters are removed."""


def hidden_in(value: object) -> tuple[str, ...]:
    """The kinds of hidden characters in the strings and keys of a JSON value, each kind once."""
    if _is_plain(value):
        return ()
    kinds = (_NAMES[str(found.lastgroup)] for text in _texts(value) for found in _FOUND.finditer(text))
    return tuple(dict.fromkeys(kinds))


def without_hidden(value: Any) -> Any:
    """The JSON value without hidden characters in strings and keys. Raises AmbiguousKeysError if two keys of an object
    would become equal."""
    return value if _is_plain(value) else _cleaned(value)


def revealed(json_text: str) -> str:
    """An equal JSON text in which hidden characters, and all joiners and variation selectors, are escaped. The result
    does not depend on the Unicode version of Python."""
    return _UNSEEN.sub(lambda found: _escape(found[0]), json_text)


def shown(text: str) -> str:
    """A text that is safe on one line of a terminal: line ends, tabs, and characters that control it or are invisible
    are escaped."""
    return "".join(character if character.isprintable() else _escape(character) for character in revealed(text))


def _is_plain(value: object) -> bool:
    """Whether a quick check shows that a JSON value has no hidden character; true for nearly every value without
    one."""
    try:
        raw = orjson.dumps(value)
    except TypeError:
        return False
    if _SUSPECT_ASCII.search(raw):
        return False
    return raw.isascii() or not _UNSEEN.search(raw.decode())


def _texts(value: object) -> Iterator[str]:
    rest = [value]
    while rest:
        item = rest.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            yield from item
            rest.extend(reversed(item.values()))
        elif isinstance(item, list):
            rest.extend(reversed(item))


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return _clean(value)
    if isinstance(value, list):
        return [_cleaned(item) for item in value]
    if isinstance(value, dict):
        cleaned = {_clean(key): _cleaned(item) for key, item in value.items()}
        if len(cleaned) != len(value):
            raise AmbiguousKeysError
        return cleaned
    return value


def _clean(text: str) -> str:
    """Removes hidden characters until none is found: after one is removed, a joiner next to it may have no effect."""
    while (cleaned := _FOUND.sub("", text)) != text:
        text = cleaned
    return text


def _escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))

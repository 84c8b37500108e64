"""Resolves JSON Pointers with wildcards.

RFC 6901 with one extension: `*` alone as a token matches any member or any index, including a member that is named `*`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

Pointer = tuple[str, ...]
Place = tuple[dict[str, Any] | list[Any], Any]
"""A container, and the key or index in it."""

ANY = "*"
_NO_ESCAPE = re.compile(r"~(?![01])")


def parse_pointer(text: str) -> Pointer:
    """The tokens of a pointer, unescaped. Raises ValueError for an invalid pointer, and for "", which has no
    container."""
    head, *tokens = text.split("/")
    if head or not tokens:
        raise ValueError("a JSON Pointer begins with /")
    if _NO_ESCAPE.search(text):
        raise ValueError("~ is written ~0, and / inside a name ~1")
    return tuple(token.replace("~1", "/").replace("~0", "~") for token in tokens)


def places(value: object, pointer: Pointer) -> Iterator[Place | None]:
    """Yields every place in `value` that the pointer matches, and None for each value visited on the path to it, so
    that the caller can bound the work."""
    yield None
    if not isinstance(value, dict | list):
        return
    token, rest = pointer[0], pointer[1:]
    for key in _keys(value, token):
        if rest:
            yield from places(value[key], rest)
        else:
            yield value, key


def _keys(value: dict[str, Any] | list[Any], token: str) -> list[Any]:
    if isinstance(value, dict):
        return list(value) if token == ANY else [token] if token in value else []
    if token == ANY:
        return list(range(len(value)))
    plain = token.isascii() and token.isdigit() and len(token) <= 9 and (token == "0" or token[0] != "0")
    return [int(token)] if plain and int(token) < len(value) else []

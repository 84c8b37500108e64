"""Writes canonical JSON (RFC 8785).

There is one extension: integers between 2^53 and 64 bits, which RFC 8785 treats as doubles, are written in full,
because they pass through the sidecar unchanged. Digests of arguments and pinned tools are made over this form.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson
import rfc8785

from sidecar.protocols.jsonrpc import INT64_MIN, UINT64_MAX

MAX_DEPTH = 100  # of values that `_write` writes; the parser's bound is far lower
_FIRST_SURROGATE = "\ud800"
_NUMBERS = frozenset({int, float})
_ODD_NUMBER = re.compile(rb"\.0[,\]]|[en]")


class NotCanonicalError(ValueError):
    """The value has no canonical form: it is not JSON that all readers interpret in the same way (I-JSON), an integer
    needs more than 64 bits, or it is nested too deep."""


def canonical_json(value: Any) -> bytes:
    """The canonical form of a JSON value, with whole 64-bit integers. Raises NotCanonicalError.

    orjson's sorted form is byte for byte that of RFC 8785 if there is no float (the two write some differently) and no
    key with a character at or above U+D800 (orjson sorts keys by code point, RFC 8785 by UTF-16 unit). All other values
    are written here."""
    try:
        items = [value]  # every value in it; grows while it is walked
        for item in items:
            kind = type(item)
            if kind is str or kind is int:
                continue
            if kind is dict:
                keys = "".join(item)
                if not keys.isascii() and max(keys) >= _FIRST_SURROGATE:
                    break
                items += item.values()
            elif kind is list:
                items += item
            elif kind is not bool and item is not None:
                break
        else:
            return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
        written: list[bytes] = []
        _write(value, written, MAX_DEPTH)
        return b"".join(written)
    except (TypeError, rfc8785.CanonicalizationError, UnicodeEncodeError):  # TypeError: of orjson; a key is not text
        raise NotCanonicalError from None


def _write(value: object, out: list[bytes], depth: int) -> None:
    match value:
        case float():
            out.append(_fraction(value))
        case None | bool() | str():
            out.append(orjson.dumps(value))
        case int() if INT64_MIN <= value <= UINT64_MAX:
            out.append(b"%d" % value)
        case Mapping() if depth:
            _write_object(value, out, depth)
        case list() | tuple() if depth:
            _write_array(value, out, depth)
        case _:
            raise rfc8785.CanonicalizationError("not JSON, beyond 64 bits, or nested too deep")


def _write_object(value: Mapping[Any, object], out: list[bytes], depth: int) -> None:
    if not all(isinstance(key, str) for key in value):
        raise rfc8785.CanonicalizationError("a key that is not a string")
    before = b"{"
    for key in sorted(value, key=lambda key: key.encode("utf-16-be")):
        out += (before, orjson.dumps(key), b":")
        _write(value[key], out, depth - 1)
        before = b","
    out.append(b"}" if value else b"{}")


def _write_array(value: list[object] | tuple[object, ...], out: list[bytes], depth: int) -> None:
    if _NUMBERS.issuperset(map(type, value)) and (written := _numbers(value)):
        out.append(written)
        return
    before = b"["
    for item in value:
        out.append(before)
        _write(item, out, depth - 1)
        before = b","
    out.append(b"]" if value else b"[]")


def _numbers(value: list[object] | tuple[object, ...]) -> bytes | None:
    """A whole array of numbers, if orjson writes all of them like RFC 8785; None otherwise. Writing a hundred thousand
    numbers one by one would block the event loop. The two differ in whole floats, in exponents, and in NaN and
    infinity."""
    written = orjson.dumps(value)
    return None if _ODD_NUMBER.search(written) else written


def _fraction(value: float) -> bytes:
    """ECMAScript's shortest form, which is Python's except for whole numbers and exponents (RFC 8785 3.2.2.3)."""
    digits, found, exponent = repr(value).partition("e")
    if not found and digits[-2:] != ".0" and digits[-1] not in "fn":
        return digits.encode()
    if found and not -7 < int(exponent) < 21:
        return f"{digits}e{int(exponent):+d}".encode()
    return rfc8785.dumps(value)

"""Converts costs to exact decimal amounts.

Costs are counted in whole millionths of their unit, never in floats: exact in Redis scripts (below 2^53) and as JSON
numbers (15 digits). Amounts in configuration are taken exactly or rejected. Amounts that an upstream reports are
rounded up, so that many small calls are never free, and clamped to the amount that was reserved.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import ROUND_CEILING, Context, Decimal
from typing import Any, Final

MILLION: Final = 1_000_000
MOST: Final = 999_999_999_999_999
"""The largest limit, in millionths of its unit."""

_WRITTEN = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?")
_REPORTED = re.compile(r"[0-9]{1,20}(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?")
_EXACT = Context(prec=80)
_DOTTED = re.compile(r"[^./~\s]{1,128}(\.[^./~\s]{1,128}){0,15}")
_POINTER = re.compile(r"(/([^/~]|~[01]){1,256}){1,16}")

# The possible places of the path's first step in an agent's result (A2A 1.0, 3.1 and 4.2).
_PARTS: Final = ("task", "message", "statusUpdate", "artifactUpdate")


def millionths(written: object) -> int:
    """Parses a configured amount, a number or a quoted number of up to six decimal places, into millionths. Raises
    ValueError."""
    text = repr(written) if isinstance(written, int | float) and not isinstance(written, bool) else written
    if isinstance(text, str) and "e-" in text and isinstance(written, float):
        text = format(Decimal(text), "f")  # such as 0.00001
    if not isinstance(text, str) or not _WRITTEN.fullmatch(text):
        raise ValueError("this is not an amount")
    return int(Decimal(text) * MILLION)


def in_units(amount: int) -> float:
    """Converts millionths to units; whole amounts become ints. The result is written with exactly the digits of the
    amount, also after a JSON round trip."""
    return amount // MILLION if amount % MILLION == 0 else amount / MILLION


def path_of(text: str) -> tuple[str, ...]:
    """Returns the steps of `_meta.usage.cost`, or of a JSON Pointer (RFC 6901) for names with dots. Raises
    ValueError."""
    if _DOTTED.fullmatch(text):
        return tuple(text.split("."))
    if not _POINTER.fullmatch(text):
        raise ValueError("this is not a path")
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in text[1:].split("/"))


def reported(result: Mapping[str, Any], path: Sequence[str], most: int) -> int | None:
    """Returns the amount that a result reports at a path, in millionths and at most `most`; None if it reports none."""
    for holder in _holders(result):
        if (amount := _amount(_at(holder, path), most)) is not None:
            return amount
    return None


def _holders(result: Mapping[str, Any]) -> Iterator[Any]:
    yield result
    for part in _PARTS:
        if part in result:
            yield result[part]


def _at(value: Any, path: Sequence[str]) -> Any:
    for step in path:
        if isinstance(value, Mapping):
            value = value.get(step)
        elif isinstance(value, list) and step.isascii() and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    return value


def _amount(said: object, most: int) -> int | None:
    if isinstance(said, bool):
        return None
    if isinstance(said, int):  # of any length; a negative cost is ignored
        return min(said * MILLION, most) if said >= 0 else None
    text = repr(said) if isinstance(said, float) else said
    if not isinstance(text, str) or len(text) > 64 or not _REPORTED.fullmatch(text):
        return None
    amount = _EXACT.multiply(Decimal(text), Decimal(MILLION)).to_integral_value(ROUND_CEILING)
    return most if amount > most else int(amount)

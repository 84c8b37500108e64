"""Reads unquoted YAML scalars, and refuses ambiguous ones.

YAML 1.1 and 1.2 read `no`, `010`, `0o10`, `1:30`, `1_000` and `1e3` differently, and authors do not mean `False`, 8 or
90. Scalars that both versions read alike are accepted (true, false, null, decimal numbers, other text). Ambiguous ones
must be quoted. Dates are text; callers that need a moment parse it.
"""

import math
import re

Scalar = str | int | float | bool | None

_WORDS: dict[str, Scalar] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_DECIMAL = re.compile(r"[-+]?(?:0|[1-9][0-9]*)\.[0-9]+(?:[eE][-+][0-9]+)?")
_LOWEST, _HIGHEST = -(2**63), 2**64 - 1  # the range of 64-bit integers, signed or unsigned
_MAX_DIGITS = 20

# The spellings that YAML versions read differently, why, and what to write if quoting is not the only remedy.
_DOUBTFUL = (
    (r"(?i:y|yes|n|no|on|off)", "{text} means true or false to YAML 1.1 and a text to YAML 1.2", "true or false"),
    (r"[-+]?0[0-9_]+", "{text} is an octal number to YAML 1.1 and a decimal one to YAML 1.2", ""),
    (r"[-+]?0o[0-9_]+", "{text} is an octal number to YAML 1.2 and a text to YAML 1.1", ""),
    (r"[-+]?0[xX][0-9a-fA-F_]+", "{text} is a hexadecimal number to YAML", ""),
    (r"[-+]?0b[01_]+", "{text} is a binary number to YAML 1.1", ""),
    (r"[-+]?[0-9][0-9_]*(?::[0-9]{1,2})+(?:\.[0-9_]*)?", "{text} is a number in base 60 to YAML 1.1", ""),
    (
        r"[-+]?\.?[0-9](?=[0-9._]*_)[0-9._]*(?:[eE][-+]?[0-9]+)?",
        "{text} is a number to YAML 1.1 and a text to YAML 1.2",
        "",
    ),
    (
        r"[-+]?[0-9]*\.?[0-9]*[eE][-+]?[0-9]+|[-+]?[0-9]+\.|[-+]?\.[0-9]+|[-+]?0[0-9]+\.[0-9]*",
        "YAML readers disagree whether {text} is a number",
        "it as a plain decimal number such as 0.5",
    ),
    (r"[-+]?\.(?i:inf|nan)", "{text} is not a finite number", ""),
    (r"=|<<", "{text} has a meaning of its own in YAML 1.1", ""),
)
_PATTERNS = tuple((re.compile(pattern), message, instead) for pattern, message, instead in _DOUBTFUL)


class DoubtfulScalarError(ValueError):
    """The unquoted scalar is ambiguous, or a number that is too large. `hint` says what to write."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def meaning_of(text: str) -> Scalar:
    """The value of an unquoted scalar. Raises DoubtfulScalarError if YAML versions disagree, or a number is too
    large."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        if len(text) <= _MAX_DIGITS and _LOWEST <= (integer := int(text)) <= _HIGHEST:
            return integer
        raise DoubtfulScalarError("this number does not fit into 64 bits", "quote it if it is a name")
    if _DECIMAL.fullmatch(text):
        if math.isfinite(decimal := float(text)):
            return decimal
        raise DoubtfulScalarError("this number is too large", "quote it if it is a name")
    for pattern, message, instead in _PATTERNS:
        if pattern.fullmatch(text):
            hint = f"write {instead}, or quote it" if instead else "quote it"
            raise DoubtfulScalarError(message.format(text=text), f'{hint}: "{text}"')
    return text

"""Guesses which values are secrets. A value that is not clearly harmless is treated as one, because hiding a harmless
value is cheap."""

import re
from math import log2
from urllib.parse import urlsplit

_NAMES_A_SECRET = re.compile(
    r"token|secret|passw|passwd|pwd|pass$|key|credential|auth|cookie|session|signature|dsn|private|bearer|\bpat\b|_pat$",
    re.IGNORECASE,
)
_LOOKS_LIKE_ONE = re.compile(
    r"(?:^|[\s=:/\"'])(?:sk|pk|rk)[-_][A-Za-z0-9]|gh[pousr]_|github_pat_|glpat-|xox[a-z]-|AKIA|ASIA|AIza|ya29\.|eyJ[A-Za-z0-9]"
    r"|npm_|hf_|pypi-|dop_v1_|-----BEGIN|\b(?:bearer|basic|token)\s+\S|://[^/\s@]*:[^/\s@]+@",
    re.IGNORECASE,
)
_HARMLESS = re.compile(
    r"|[a-z]{1,24}|true|false|[0-9]{1,6}|[0-9]{1,3}(\.[0-9]{1,3}){1,3}(:[0-9]{1,5})?|[a-z]{2}[-_][A-Z]{2}(\.UTF-8)?"
    r"|(DEBUG|INFO|WARN|WARNING|ERROR|TRACE)|\.{0,2}(/[\w.@ +-]{1,64})+/?|[a-z]{2}-[a-z]+-[0-9]"
)
_LONG = 20
_BITS_PER_CHARACTER = 3.2  # kebab-case English words have less, random base 36 of this length more
_RANDOM = re.compile(r"[A-Za-z0-9+=_-]{20,}")


def names_a_secret(name: str) -> bool:
    """Whether a variable, header, option or parameter of this name usually holds a secret."""
    return _NAMES_A_SECRET.search(name) is not None


def may_stand_in_clear(name: str, value: str) -> bool:
    if names_a_secret(name) and value not in ("", "true", "false"):
        return False
    return not looks_secret(value) and (_HARMLESS.fullmatch(value) is not None or _is_plain_url(value))


def looks_secret(text: str) -> bool:
    """Whether a text is or contains something that looks like a token or key, whatever its name."""
    return _LOOKS_LIKE_ONE.search(text) is not None or any(_is_random(found) for found in _RANDOM.findall(text))


def _is_plain_url(value: str) -> bool:
    try:
        parts = urlsplit(value)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and not (parts.query or "@" in parts.netloc or parts.fragment)


def _is_random(word: str) -> bool:
    """Whether a text is long, consists of digits and letters, and is evenly distributed, unlike a name chosen by a
    person."""
    if len(word) < _LONG or not re.search(r"[0-9]", word) or not re.search(r"[A-Za-z]", word):
        return False
    shares = [word.count(character) / len(word) for character in set(word)]
    return -sum(share * log2(share) for share in shares) > _BITS_PER_CHARACTER

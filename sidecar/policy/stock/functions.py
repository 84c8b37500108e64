"""Casbin's matching functions, compiled once for each pattern.

Each function decides as the function of that name in pycasbin 2.8 does, for texts without line breaks. Regular
expressions run on RE2, which is linear in the text; a pattern that RE2 or pycasbin cannot compile is an error of the
policy, reported when it is loaded.

    keyMatch    one `*`, which ends the pattern         ipMatch     an address or a network
    keyMatch2   `:name` is a segment, `/*` the rest     globMatch   `*`, `**`, `?`, `[...]`, `{a,b}`
    keyMatch3   `{name}` is a part of a segment         regexMatch  a regular expression, from the beginning on
    keyMatch4   like 3; equal names have equal values   timeMatch   now lies between two local times, `_` for none
    keyMatch5   like 3, without the query of the text

Patterns are looked up by their `prefix`: the text that everything they match begins with.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache
from ipaddress import ip_address, ip_network
from typing import Final, NamedTuple

import re2
from wcmatch import glob

MAX_PATTERNS: Final = 16_384  # compiled ones that are kept, of each function
MAX_PATTERN_CHARS: Final = 2_048
MAX_GLOB_STARS: Final = 4  # the time of a glob grows with the length of the text to this power
_TIME: Final = "%Y-%m-%d %H:%M:%S"

Test = Callable[[str], bool]
Getter = Callable[..., str]


class BadPatternError(ValueError):
    """A pattern that cannot be compiled."""


class BadValueError(ValueError):
    """A value of the request that the function does not take; Casbin raises, and the request is refused."""


class MatchFunction(NamedTuple):
    """One function. `compiled` raises BadPatternError; the test that it returns raises BadValueError only if not
    `total`. `prefix` is shorter than it could be rather than wrong."""

    compiled: Callable[[str], Test]
    prefix: Callable[[str], str]
    total: bool = True


# Characters without a meaning of their own in a regular expression. All others in a pattern are its author's regular
# expression, because pycasbin escapes none.
_PLAIN: Final = r"[A-Za-z0-9_\-~%@!&',;=/ #<>\"`]"
_STYLES: Final[Mapping[str, tuple[re.Pattern[str], str]]] = {
    # what stands for a part of the text, and the regular expression that it becomes
    "2": (re.compile(r"(.*?):[^\/]+(.*?)"), r"\g<1>[^\/]+\g<2>"),
    "3": (re.compile(r"(.*?){[^\/]+?}(.*?)"), r"\g<1>[^\/]+\g<2>"),
    "5": (re.compile(r"{[^/]+}"), r"[^/]+"),
}
_NAMED: Final = re.compile(r"{([^/]+)}")
_SEGMENTS: Final = {
    "2": re.compile(rf"({_PLAIN.replace('/', '')}*)(:[^/]+)?"),
    "3": re.compile(rf"({_PLAIN.replace('/', '')}*)({{[^/{{}}]+}})?({_PLAIN.replace('/', '')}*)"),
}
_QUANTIFIED: Final = re.compile(r".?[*+?{].*", re.DOTALL)
_META: Final = re.compile(r"[.\[\](){}\\^$|*+?].*", re.DOTALL)


def _bounded(compiled: Callable[[str], Test]) -> Callable[[str], Test]:
    @lru_cache(MAX_PATTERNS)
    def bounded(pattern: str) -> Test:
        if len(pattern) > MAX_PATTERN_CHARS:
            raise BadPatternError(f"a pattern has at most {MAX_PATTERN_CHARS} characters")
        return compiled(pattern)

    return bounded


# --- regular expressions ---------------------------------------------------------------------------------------------

_OPTIONS: Final = re2.Options()
_OPTIONS.log_errors, _OPTIONS.max_mem = False, 2**20


def _linear(pattern: str) -> re2._Regexp:
    try:
        re.compile(pattern)
        return re2.compile(pattern, _OPTIONS)
    except (re.error, OverflowError, RecursionError):
        raise BadPatternError("pycasbin cannot compile it") from None
    except re2.error as error:
        raise BadPatternError(f"not on a linear engine: {str(error)[:100]}") from None


def _regex(pattern: str) -> Test:
    match = _linear(pattern).match
    return lambda text: match(text) is not None


def _regex_prefix(pattern: str) -> str:
    if "|" in pattern:
        return ""
    return _META.sub("", _QUANTIFIED.sub("", pattern.removeprefix("^")))


# --- keyMatch ---------------------------------------------------------------------------------------------------------


def _key(pattern: str) -> Test:
    prefix, star, _ = pattern.partition("*")
    return (lambda text: text.startswith(prefix)) if star else (lambda text: text == pattern)


def _key_prefix(pattern: str) -> str:
    return pattern.partition("*")[0]


def _styled(style: str) -> Callable[[str], Test]:
    name, becomes = _STYLES[style]

    def compiled(pattern: str) -> Test:
        if (plain := _plain_path(pattern, style)) is not None:
            return plain
        regex = name.sub(becomes, pattern.replace("/*", "/.*"))
        if style == "2" and regex == "*":
            return _regex("^(.*)$")
        return _regex(f"^{regex}$")

    return compiled


class _Segment(NamedTuple):
    """A segment of a path: its text, or (`open`) its beginning and end around at least one character."""

    head: str
    open: bool
    tail: str = ""

    def fits(self, text: str) -> bool:
        head, is_open, tail = self
        if not is_open:
            return text == head
        return len(text) > len(head) + len(tail) and text.startswith(head) and text.endswith(tail)


def _plain_path(pattern: str, style: str) -> Test | None:
    """Return a test that compares segments; None for a pattern that only a regular expression can express."""
    head, rest, tail = pattern.partition("/*")
    segments: list[_Segment] = []
    for part in head.split("/"):
        found = _SEGMENTS["3" if style == "5" else style].fullmatch(part)
        if found is None:
            return None
        segments.append(_Segment(found[1], found[2] is not None, found[3] if style != "2" else ""))
    if tail:
        return None
    count = len(segments)
    if not rest:
        if not any(one.open for one in segments):
            return lambda text: text == pattern
        return lambda text: len(parts := text.split("/")) == count and _all_fit(segments, parts)
    if not any(one.open for one in segments):
        beginning = head + "/"
        return lambda text: text.startswith(beginning)
    return lambda text: len(parts := text.split("/", count)) > count and _all_fit(segments, parts)


def _all_fit(segments: list[_Segment], parts: list[str]) -> bool:
    return all(map(_Segment.fits, segments, parts))


def _styled_prefix(style: str) -> Callable[[str], str]:
    begins = ":" if style == "2" else "{"

    def prefix(pattern: str) -> str:
        head, rest, _ = pattern.partition("/*")
        return (
            _regex_prefix(head.partition(begins)[0] + ("/" if rest and begins not in head else ""))
            if ("|" not in pattern)
            else ""
        )

    return prefix


def _named_path(pattern: str) -> Test:
    """keyMatch4. A name reaches from a `{` to the last `}` of its segment, as in pycasbin."""
    names: list[str] = []

    def group(found: re.Match[str]) -> str:
        names.append(found[1])
        return "([^/]+)"

    regex = _linear("^" + _NAMED.sub(group, pattern.replace("/*", "/.*")) + "$")
    if regex.groups != len(names):
        raise BadPatternError("it has groups of its own, with which pycasbin fails")

    def test(text: str) -> bool:
        found = regex.match(text)
        if found is None:
            return False
        values: dict[str, str] = {}
        return all(values.setdefault(name, value) == value for name, value in zip(names, found.groups(), strict=True))

    return test


def _without_query(pattern: str) -> Test:
    test = _styled("5")(pattern)
    return lambda text: test(text.partition("?")[0])


# --- others -----------------------------------------------------------------------------------------------------------


def _glob(pattern: str) -> Test:
    while pattern.startswith("*/"):
        pattern = pattern[1:]
    parts = [part if part == "**" else re.sub(r"\*{2,}", "*", part) for part in pattern.split("/")]
    if any(part.count("*") > MAX_GLOB_STARS for part in parts if part != "**") or parts.count("**") > MAX_GLOB_STARS:
        raise BadPatternError(f"a glob has at most {MAX_GLOB_STARS} wildcards of a kind")
    written = "/".join(parts)
    if written.endswith("/**"):
        written = f"{{{written[:-3]},{written}}}"
    try:
        matcher = glob.compile(written, flags=glob.GLOBSTAR | glob.BRACE)
    except (re.error, ValueError, RecursionError) as error:
        raise BadPatternError(f"no glob: {str(error)[:100]}") from None
    return lambda text: bool(matcher.match(text))


def _ip(pattern: str) -> Test:
    try:
        network = ip_network(pattern, strict=False)
    except ValueError:
        return _no_network
    return lambda text: _address(text) in network


def _no_network(text: str) -> bool:
    _address(text)
    return False


@lru_cache(1_024)
def _address(text: str) -> object:
    try:
        return ip_address(text)
    except ValueError:
        raise BadValueError("not an IP address") from None


def time_match(begin: str, end: str) -> bool:
    """Whether now, in local time, lies between two times. Raises BadPatternError."""
    now = datetime.now()
    try:
        return (begin == "_" or now > datetime.strptime(begin, _TIME)) and (
            end == "_" or now < datetime.strptime(end, _TIME)
        )
    except ValueError:
        raise BadPatternError("a time is written 2027-03-31 00:00:00, or _") from None


def _nothing(pattern: str) -> str:
    return ""


FUNCTIONS: Final[Mapping[str, MatchFunction]] = {
    "keyMatch": MatchFunction(_key, _key_prefix),
    "keyMatch2": MatchFunction(_bounded(_styled("2")), _styled_prefix("2")),
    "keyMatch3": MatchFunction(_bounded(_styled("3")), _styled_prefix("3")),
    "keyMatch4": MatchFunction(_bounded(_named_path), _styled_prefix("4")),
    "keyMatch5": MatchFunction(_bounded(_without_query), _styled_prefix("5")),
    "regexMatch": MatchFunction(_bounded(_regex), _regex_prefix),
    "globMatch": MatchFunction(_bounded(_glob), _nothing),
    "ipMatch": MatchFunction(_bounded(_ip), _nothing, total=False),
}

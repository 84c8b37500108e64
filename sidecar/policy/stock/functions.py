"""Casbin's matching functions, compiled once for each pattern.

Each function decides like pycasbin 2.8's function of that name, for texts without line breaks (`\\b` knows ASCII words
only). Regular expressions and globs run on RE2, which is linear in the text. A pattern that RE2 or pycasbin cannot
compile is an error of the policy, reported when it is loaded.

    keyMatch    one `*`, which ends the pattern         ipMatch     an address or a network
    keyMatch2   `:name` is a segment, `/*` the rest     globMatch   `*`, `**`, `?`, `[...]`, `{a,b}`
    keyMatch3   `{name}` is a part of a segment         regexMatch  a regular expression, from the beginning on
    keyMatch4   like 3; equal names have equal values   timeMatch   now is between two local times, `_` for none
    keyMatch5   like 3, without the query of the text   keyGet, 2, 3  the part that keyMatch, 2, 3 match

pycasbin has the functions keyGet, keyGet2 and keyGet3, but programs must register them. `glob`, `globs` and `who` are
those of the sidecar's own models (sidecar/policy/patterns.py).

Patterns are looked up by their `prefix`: the common beginning of all texts that they match, in its `form`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache
from ipaddress import ip_address, ip_network
from typing import Final, NamedTuple, TypeVar

import bracex
import re2

from sidecar.policy import patterns

MAX_PATTERNS: Final = 16_384  # compiled patterns that are cached, of each function
MAX_REQUEST_PATTERNS: Final = 64  # cached patterns from requests
MAX_PATTERN_CHARS: Final = 2_048
MAX_GLOBS: Final = 64  # alternatives that the braces of one glob expand to
_TIME: Final = "%Y-%m-%d %H:%M:%S"

Test = Callable[[str], bool]
_Compiled = TypeVar("_Compiled")


class BadPatternError(ValueError):
    """A pattern that cannot be compiled."""


class BadValueError(ValueError):
    """A value of the request that the function does not accept. Casbin raises, and the request is refused."""


class MatchFunction(NamedTuple):
    """One function. `compiled` raises BadPatternError; the test that it returns raises BadValueError only if not
    `total`. `prefix` may be shorter than possible, but is never wrong. `form` returns the form of a text that begins
    with the prefixes of all patterns that match the text."""

    compiled: Callable[[str], Test]
    prefix: Callable[[str], str]
    total: bool = True
    form: Callable[[str], str] = str


class TextFunction(NamedTuple):
    """A function whose value is a part of the text. `compiled` raises BadPatternError; the returned function takes the
    text and the names after the pattern in the `arguments`."""

    compiled: Callable[[str], Callable[..., str]]
    arguments: int


# Characters without a meaning of their own in a regular expression. All others in a pattern are part of a regular
# expression, because pycasbin does not escape them.
_PLAIN: Final = r"[A-Za-z0-9_\-~%@!&',;=/ #<>\"`]"
_STYLES: Final[Mapping[str, tuple[re.Pattern[str], str]]] = {
    # the placeholder for a part of the text, and the regular expression that replaces it
    "2": (re.compile(r"(.*?):[^\/]+(.*?)"), r"\g<1>[^\/]+\g<2>"),
    "3": (re.compile(r"(.*?){[^\/]+?}(.*?)"), r"\g<1>[^\/]+\g<2>"),
    "5": (re.compile(r"{[^/]+}"), r"[^/]+"),
}
_GROUPS: Final[Mapping[str, tuple[re.Pattern[str], str]]] = {
    "2": (re.compile(r":[^/]+"), r"([^/]+)"),
    "3": (re.compile(r"{[^/]+?}"), r"([^/]+?)"),
}
_NAMED: Final = re.compile(r"{([^/]+)}")
_SEGMENTS: Final = {
    "2": re.compile(rf"({_PLAIN.replace('/', '')}*)(:[^/]+)?"),
    "3": re.compile(rf"({_PLAIN.replace('/', '')}*)({{[^/{{}}]+}})?({_PLAIN.replace('/', '')}*)"),
}
_QUANTIFIED: Final = re.compile(r".?[*+?{].*", re.DOTALL)
_GLOB_SPECIAL: Final = re.compile(r"[*?\[{\\]")
_SLASHES: Final = re.compile(r"/{2,}")
_META: Final = re.compile(r"[.\[\](){}\\^$|*+?].*", re.DOTALL)


def _bounded(compiled: Callable[[str], _Compiled]) -> Callable[[str], _Compiled]:
    @lru_cache(MAX_PATTERNS)
    def bounded(pattern: str) -> _Compiled:
        if len(pattern) > MAX_PATTERN_CHARS:
            raise BadPatternError(f"a pattern has at most {MAX_PATTERN_CHARS} characters")
        return compiled(pattern)

    return bounded


# --- regular expressions ---------------------------------------------------------------------------------------------

_OPTIONS: Final = re2.Options()
_OPTIONS.log_errors, _OPTIONS.max_mem = False, 2**20
_AMBIGUOUS: Final = re.compile(r"(?<!\\)(\{,|\[\[:)")


def _linear(pattern: str) -> re2._Regexp[str]:
    if _AMBIGUOUS.search(pattern):
        raise BadPatternError("pycasbin and a linear engine take {,n} and [[:name:]] for different things")
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        raise BadPatternError("pycasbin cannot compile it") from None
    return _compiled(_with_unicode(pattern))


# Python's classes are Unicode's, RE2's are ASCII's.
_CLASSES: Final = {
    "d": r"\p{Nd}", "D": r"\P{Nd}", "w": r"\p{L}\p{N}_", "s": r"\s\v\x1c-\x1f\x85\p{Z}",
}  # fmt: skip
_BRACKETS_OR_ESCAPE: Final = re.compile(r"(\[\^?\]?(?:\\.|[^\]\\])*\])|\\(.)", re.DOTALL)


def _with_unicode(pattern: str) -> str:
    """Writes the classes of a Python pattern for RE2."""
    return _BRACKETS_OR_ESCAPE.sub(_written_class, pattern)


def _written_class(found: re.Match[str]) -> str:
    brackets, name = found.groups()
    if brackets is not None:
        return re.sub(r"\\(.)", _member, brackets, flags=re.DOTALL)
    members = _CLASSES.get(name.lower(), "")
    if not members or name in "dD":
        return _CLASSES.get(name, found[0])
    return f"[{'^' if name.isupper() else ''}{members}]"


def _member(found: re.Match[str]) -> str:
    if found[1] in "WS":
        raise BadPatternError(f"a linear engine has no {found[0]} within brackets")
    return _CLASSES.get(found[1], found[0])


def _compiled(pattern: str) -> re2._Regexp[str]:
    try:
        return re2.compile(pattern, _OPTIONS)
    except re2.error as error:
        reason = error.args[0].decode() if error.args and isinstance(error.args[0], bytes) else str(error)
        raise BadPatternError(f"not on a linear engine: {reason[:100]}") from None


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
    """Returns a test that compares segments; None for a pattern that only a regular expression can express."""
    head, rest, tail = pattern.partition("/*")
    segments: list[_Segment] = []
    for part in head.split("/"):
        found = _SEGMENTS["2" if style == "2" else "3"].fullmatch(part)
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
    """keyMatch4. A name reaches from a `{` to the last `}` of its segment, like in pycasbin."""
    written = _NAMED.findall(pattern)
    if len(set(written)) == len(written) and (plain := _plain_path(pattern, "4")) is not None:
        return plain
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


def _key_get(pattern: str) -> Callable[..., str]:
    head, star, _ = pattern.partition("*")
    return lambda text: text[len(head) :] if star and text.startswith(head) else ""


def _styled_get(style: str) -> Callable[[str], Callable[..., str]]:
    name, group = _GROUPS[style]

    def compiled(pattern: str) -> Callable[..., str]:
        pattern = pattern.replace("/*", "/.*")
        names = [found.strip(":{}") for found in name.findall(pattern)]
        written = name.sub(group, pattern)
        regex = _linear("^(?:.*)$" if written == "*" else f"^{written}$")
        if regex.groups != len(names):
            raise BadPatternError("it has groups of its own, of which pycasbin would return one")

        def value(text: str, sought: str) -> str:
            found = regex.match(text)
            if found is None or sought not in names:
                return ""
            return found[names.index(sought) + 1]  # type: ignore[return-value]  # None for a group of another branch

        return value

    return compiled


def _without_query(pattern: str) -> Test:
    test = _styled("5")(pattern)
    return lambda text: test(text.partition("?")[0])


# --- others -----------------------------------------------------------------------------------------------------------


# A text is compared in a form in which a `/`, and a `.` that begins a segment (which wildcards do not match), are
# characters of their own: two that Unicode reserves for internal use. A third one takes the place of those in a text.
_SLASH, _HIDDEN, _RESERVED = "\ufdd0", "\ufdd1", "\ufdd2"
_WILD: Final = f"[^{_SLASH}{_HIDDEN}]"
_DEEP: Final = f"[^{_HIDDEN}]*"  # the regular expression of a `**`
_MEMBER: Final = r"[^][\\-](?:-[^][\\-])?"
_GLOB_PART: Final = re.compile(
    rf"(?P<stars>\*+)|(?P<one>\?)|\[(?P<but>[!^]|(?![!^]))(?P<members>(?:[]-]|{_MEMBER})(?:{_MEMBER})*-?)]"
    r"|(?P<bad>\[)|\\?(?P<text>.?)",
    re.DOTALL,
)
_PLAIN_SEGMENT: Final = r"(?:\*|[^][*?{},\\/]+\*?)"
_PLAIN_GLOB: Final = re.compile(rf"/?(?:{_PLAIN_SEGMENT}/)*{_PLAIN_SEGMENT}(?:/\*\*)?")


def _glob(pattern: str) -> Test:
    while pattern.startswith("*/"):
        pattern = pattern[1:]
    if any(mark in pattern for mark in (_SLASH, _HIDDEN, _RESERVED)):
        raise BadPatternError("it contains characters that Unicode reserves")
    if _PLAIN_GLOB.fullmatch(pattern) is not None:
        return _plain_glob(pattern)
    written = "/".join(part if part == "**" else re.sub(r"\*{2,}", "*", part) for part in pattern.split("/"))
    if written.endswith("/**"):
        written = f"{{{written[:-3]},{written}}}"
    try:
        globs = bracex.expand(written, keep_escapes=True, limit=MAX_GLOBS)
    except (ValueError, RecursionError, bracex.ExpansionLimitException):
        raise BadPatternError(f"its braces stand for more than {MAX_GLOBS} globs") from None
    match = _compiled("|".join(map(_glob_regex, dict.fromkeys(globs)))).fullmatch
    return lambda text: match(_marked(text)) is not None


def _plain_glob(pattern: str) -> Test:
    """Returns a test that compares segments, which takes a tenth of the time to make."""
    head, deep, _ = pattern.partition("/**")
    segments = [(segment.removesuffix("*"), segment.endswith("*")) for segment in head.split("/")]
    count = len(segments)

    def test(text: str) -> bool:
        parts = _single_slashes(text).split("/")
        if not parts[-1]:
            parts.pop()
        if len(parts) != count and not (deep and len(parts) > count):
            return False
        for (start, is_open), part in zip(segments, parts, strict=False):
            if not (part == start if not is_open else part.startswith(start) if start else part[:1] not in ("", ".")):
                return False
        return not any(part.startswith(".") for part in parts[count:])

    return test


def _marked(text: str) -> str:
    for mark in (_SLASH, _HIDDEN):
        if mark in text:
            text = text.replace(mark, _RESERVED)
    marked = text.replace("/", _SLASH).replace(f"{_SLASH}.", _SLASH + _HIDDEN)
    return _HIDDEN + marked[1:] if marked.startswith(".") else marked


def _glob_regex(one: str) -> str:
    """Returns the regular expression of a glob without braces, for texts as `_marked` returns them."""
    written = re.split("/+", one)
    is_folder = len(written) > 1 and not written[-1]
    pairs = zip(written, [None, *written], strict=False)
    segments = [segment for segment, before in pairs if (segment, before) != ("**", "**")]
    if is_folder:
        segments.pop()
    found, last = "", len(segments) - 1
    for at, segment in enumerate(segments):
        if segment != "**":
            between = f"{_SLASH}+" if at < last and segments[at + 1] != "**" else ""
            found += _segment_regex(segment) + between
        elif at < last:
            found += f"(?:{_SLASH}{_DEEP})?{_SLASH}+" if at else f"(?:{_DEEP}{_SLASH}+)?"
        elif is_folder:
            found += f"{_SLASH}(?:{_DEEP}{_SLASH})?" if at else _DEEP + _SLASH
        else:
            found += _SLASH + _DEEP if at else _DEEP
    if not one or segments[last] == "**":
        return found
    return f"{found}{_SLASH}{'+' if is_folder else '*'}"


def _segment_regex(segment: str) -> str:
    if segment and not segment.strip("*"):
        return f"{_WILD}+"
    found: list[str] = []
    for part in _GLOB_PART.finditer(segment):
        if part["bad"]:
            raise BadPatternError("in a glob, [...] contains characters and ranges only; write \\[ for a bracket")
        if part["stars"] or part["one"]:
            found.append(_WILD + ("*" if part["stars"] else ""))
        elif part["members"]:
            found.append(_class(part["but"], part["members"]))
        elif part["text"]:
            is_hidden = part["text"] == "." and part.start() == 0
            found.append(_HIDDEN if is_hidden else re.escape(part["text"]))
    return "".join(found)


def _class(but: str, members: str) -> str:
    found: list[str] = []
    for low, high, one in re.findall("([^-])-([^-])|(.)", members, re.DOTALL):
        if high and not low <= high < _SLASH:
            raise BadPatternError(f"the range {low}-{high} is none")
        found.append(f"{re.escape(low)}-{re.escape(high)}" if high else re.escape(one))
    return f"[{'^' + _SLASH + _HIDDEN if but else ''}{''.join(found)}]"


def _glob_prefix(pattern: str) -> str:
    head = _GLOB_SPECIAL.split(pattern, maxsplit=1)[0]
    return _single_slashes(head).rstrip("/") if "**" in pattern else _single_slashes(head)  # /a/** matches /a


def _single_slashes(text: str) -> str:
    """Returns a text in the form for globs, in which several slashes are one."""
    return _SLASHES.sub("/", text)


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
    """Whether the current local time is between two times. Raises BadPatternError."""
    now = datetime.now()
    try:
        return (begin == "_" or now > datetime.strptime(begin, _TIME)) and (
            end == "_" or now < datetime.strptime(end, _TIME)
        )
    except ValueError:
        raise BadPatternError("a time is written 2027-03-31 00:00:00, or _") from None


def _globs(pattern: str) -> Test:
    return lambda text: patterns.globs(text, pattern)


def _wildcard(pattern: str) -> Test:
    return lambda text: patterns.glob(text, pattern)


def _nothing(pattern: str) -> str:
    return ""


FUNCTIONS: Final[Mapping[str, MatchFunction]] = {
    "keyMatch": MatchFunction(_key, _key_prefix),
    "keyMatch2": MatchFunction(_bounded(_styled("2")), _styled_prefix("2")),
    "keyMatch3": MatchFunction(_bounded(_styled("3")), _styled_prefix("3")),
    "keyMatch4": MatchFunction(_bounded(_named_path), _styled_prefix("4")),
    "keyMatch5": MatchFunction(_bounded(_without_query), _styled_prefix("5")),
    "regexMatch": MatchFunction(_bounded(_regex), _regex_prefix),
    "globMatch": MatchFunction(_bounded(_glob), _glob_prefix, form=_single_slashes),
    "ipMatch": MatchFunction(_bounded(_ip), _nothing, total=False),
    "glob": MatchFunction(_wildcard, _key_prefix),
    "globs": MatchFunction(_globs, lambda pattern: "" if "|" in pattern else _key_prefix(pattern)),
}
TEXT_FUNCTIONS: Final[Mapping[str, TextFunction]] = {
    "keyGet": TextFunction(_key_get, 2),
    "keyGet2": TextFunction(_bounded(_styled_get("2")), 3),
    "keyGet3": TextFunction(_bounded(_styled_get("3")), 3),
}
COMPILED: Final[Mapping[str, Callable[[str], Callable[..., bool | str]]]] = {
    **{name: function.compiled for name, function in FUNCTIONS.items()},
    **{name: function.compiled for name, function in TEXT_FUNCTIONS.items()},
}
"""The compiler of each function's patterns. Raises BadPatternError."""

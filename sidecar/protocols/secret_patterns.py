"""Finds text that looks like a secret.

Each class has a `Finder`, which finds the spans that begin within a slice of a text. There are two kinds, both fast on
any text: tokens are found by a literal that begins them or is part of them, and each run of characters is read once;
numbers are short, so each position costs at most their length. A number that only has the shape of its class is
ignored: cards must pass Luhn's check, bank accounts the check modulo 97.

    email         local@domain.tld; letters of any script
    card          13 to 19 digits, the first from 2 to 6, whole or in the groups that cards are printed in
    bearer        the credential after "Bearer" or "Basic"
    jwt           two to five parts in base64url, of which the first begins like a JSON object
    api_key       keys whose makers mark them: AWS, GitHub, GitLab, Slack, Stripe, Google, Anthropic, OpenAI, npm, PyPI
    private_key   a PEM block, to its end
    iban          an account number of a country of the registry, whole or in groups of four
    ssn           US social security numbers, with their hyphens
    ipv4          four numbers with dots
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Mapping
from typing import Final

Span = tuple[int, int]
Finder = Callable[[str, int, int, list[Span]], int]
"""(text, start, stop, spans): adds the spans that begin in text[start:stop], or that are identified there and begin up
to `LOCAL_CHARS` before it. Returns the position to continue from, at least `stop`.
"""

MIN_CHARS: Final = 6  # `a@b.co`: the shortest text with a match of any class
_NUMBER_CHARS: Final = 64  # longer than any number, with its separators and the characters that are checked after it
_MIN_PREFIXED: Final = 8
_DIGITS: Final = frozenset(string.digits)
_ALNUM: Final = frozenset(string.ascii_letters + string.digits)


# Characters that end a local part to the left. RFC 5321 allows more, which texts without quotes do not contain.
_BEFORE_LOCAL = re.compile(r".*[\s<>()\[\]{}\"',;:=|\\/@\x00-\x1f]", re.DOTALL)
_DOMAIN = re.compile(r"(?:[\w-]+\.)+(?:xn--[A-Za-z0-9-]+|[^\W\d_]{2,})")
LOCAL_CHARS, _DOMAIN_CHARS = 64 * 1024, 1024  # far beyond the limits, 64 and 253


def find_emails(text: str, start: int, stop: int, spans: list[Span]) -> int:
    """Finds an address around each @ that has a name before it and a domain with a dot after it."""
    left = 0
    at = text.find("@", start, stop)
    if at > 0:
        left = text.rfind("@", 0, at) + 1
    while at >= 0:
        begin = _local_begin(text, left, at)
        domain = _DOMAIN.match(text, at + 1, at + 1 + _DOMAIN_CHARS) if begin < at else None
        if domain:
            spans.append((begin, domain.end()))
        left = at + 1
        at = text.find("@", left, stop)
    return stop


def _local_begin(text: str, left: int, at: int) -> int:
    left = max(left, at - LOCAL_CHARS)
    if at > left + 1 and text[at - 1] == '"':  # a quoted local part
        quote = text.rfind('"', left, at - 1)
        return quote if quote >= 0 else at
    before = _BEFORE_LOCAL.match(text[left:at])
    begin = left + (before.end() if before else 0)
    return begin if any(map(str.isalnum, text[begin:at])) else at


_WORDS_BEFORE = ("earer", "EARER", "asic", "ASIC")
_CREDENTIAL = re.compile(
    r"(?=[\s:=\"'\\])\\?[\"']?(?:\s{0,16}[:=]\s{0,16}|\s{0,32})\\?[\"']?([A-Za-z0-9._~+/-]{16,}=*)"
)


def find_bearers(text: str, start: int, stop: int, spans: list[Span]) -> int:
    """Finds the credential after `Bearer` or `Basic`, without that keyword, which may be the end of another one."""
    looked = stop
    for word in _WORDS_BEFORE:
        at = text.find(word, start, stop + len(word))
        while 0 <= at < stop:
            end = at + len(word)
            if at and text[at - 1] in "bB" and (found := _CREDENTIAL.match(text, end)):
                spans.append(found.span(1))
                looked = max(looked, found.end() - len(word))
            at = text.find(word, end, stop + len(word))
    return looked


_RUN = re.compile(r"[A-Za-z0-9_-]+")
_JWT_REST = re.compile(r"\.[A-Za-z0-9_-]{4,}(?:\.[A-Za-z0-9_-]*){0,3}")


def find_jwts(text: str, start: int, stop: int, spans: list[Span]) -> int:
    """Finds tokens that begin with `eyJ`, which is `{"` in base64."""
    at = text.find("eyJ", start, stop + 2)
    while 0 <= at < stop:
        run = _RUN.match(text, at)
        end = run.end() if run else at + 3
        rest = _JWT_REST.match(text, end) if end - at >= 10 else None
        if rest:
            end = rest.end()
            spans.append((at, end))
        if end >= stop:  # the rest of this run cannot begin another token
            return end
        at = text.find("eyJ", end, stop + 2)
    return stop


# Marks, and the minimum number of characters after each. Sources: the makers' own documentation of secret scanning.
API_KEYS: Final[Mapping[str, int]] = {
    "AKIA": 16, "ASIA": 16,
    "ghp_": 20, "gho_": 20, "ghu_": 20, "ghs_": 20, "ghr_": 20, "github_pat_": 20, "glpat-": 16,
    "xoxa-": 10, "xoxb-": 10, "xoxe-": 10, "xoxp-": 10, "xoxr-": 10, "xoxs-": 10, "xapp-": 10,
    "sk_live_": 10, "sk_test_": 10, "rk_live_": 10, "rk_test_": 10, "whsec_": 16,
    "AIza": 30, "sk-ant-": 16, "sk-proj-": 16, "npm_": 30, "pypi-": 30,
}  # fmt: skip


def prefixed(marks: Mapping[str, int]) -> Finder:
    """A finder of tokens that begin with one of these marks, at the beginning of a word, and have at least the given
    number of characters after it."""
    longest = max(map(len, marks))

    def find(text: str, start: int, stop: int, spans: list[Span]) -> int:
        looked = stop
        for mark, at_least in marks.items():
            at = text.find(mark, start, stop + longest)
            while 0 <= at < stop:
                end = at + len(mark)
                run = _RUN.match(text, end) if at == 0 or text[at - 1] not in _ALNUM else None
                if run and run.end() - end >= at_least:
                    end = run.end()
                    spans.append((at, end))
                    looked = max(looked, end)
                at = text.find(mark, end, stop + longest)
        return looked

    return find


def prefixed_alike(prefixes: tuple[str, ...]) -> Finder:
    """A finder of tokens with an operator's own prefixes, and at least eight characters after them."""
    return prefixed(dict.fromkeys(prefixes, _MIN_PREFIXED))


_KEY_BEGIN = "-----BEGIN "
_KEY_HEAD = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}?PRIVATE KEY(?: BLOCK)?-----")
_KEY_END = re.compile(r"-----END [A-Z0-9 ]{0,60}-----")


def find_private_keys(text: str, start: int, stop: int, spans: list[Span]) -> int:
    """Finds PEM blocks of private keys. One without an end extends to the end of the text, because a part of a key is
    also a secret."""
    at = text.find(_KEY_BEGIN, start, stop + len(_KEY_BEGIN))
    while 0 <= at < stop:
        head = _KEY_HEAD.match(text, at)
        end = at + len(_KEY_BEGIN)
        if head:
            tail_at = text.find("-----END ", head.end())
            tail = _KEY_END.match(text, tail_at) if tail_at >= 0 else None
            end = tail.end() if tail else len(text)
            spans.append((at, end))
        if end >= stop:
            return end
        at = text.find(_KEY_BEGIN, end, stop + len(_KEY_BEGIN))
    return stop


def _numbers(pattern: re.Pattern[str], true_end: Callable[[str], int]) -> Finder:
    """A finder of the matches of a pattern, of at most `_NUMBER_CHARS`; `true_end` returns how many characters of a
    match are a number of the class, 0 for none."""

    def find(text: str, start: int, stop: int, spans: list[Span]) -> int:
        end, at = min(len(text), stop + _NUMBER_CHARS), start
        while (found := pattern.search(text, at, end)) and found.start() < stop:
            length = true_end(found[0])
            at = found.start() + (length or 1)
            if length:
                spans.append((found.start(), at))
        return max(stop, at)

    return find


_CARD = re.compile(
    r"(?<![0-9])(?<![0-9]\.)(?:"
    r"[2-6][0-9]{12,18}"
    r"|[2-6][0-9]{3}([ -])[0-9]{4}\1[0-9]{4}\1[0-9]{1,7}(?:\1[0-9]{1,3})?"
    r"|3[0-9]{3}([ -])[0-9]{6}\2[0-9]{4,5}"
    r")(?![0-9])"
)
_DOUBLED = (0, 2, 4, 6, 8, 1, 3, 5, 7, 9)


def passes_luhn(digits: str) -> bool:
    """Whether digits pass the check of ISO/IEC 7812-1, annex B."""
    total = sum(map(int, digits[-1::-2])) + sum(_DOUBLED[int(digit)] for digit in digits[-2::-2])
    return total % 10 == 0


def _card_end(found: str) -> int:
    """The end of the card number in a match, 0 for none. The last group may not belong to it, because another number
    may follow a card in groups."""
    for end in (len(found), max(found.rfind(" "), found.rfind("-"))):
        digits = found[: max(end, 0)].replace(" ", "").replace("-", "")
        if 13 <= len(digits) <= 19 and passes_luhn(digits):
            return end
    return 0


def is_card(number: int) -> bool:
    """Whether a JSON integer is a card number by its digits."""
    digits = str(abs(number))
    return 13 <= len(digits) <= 19 and digits[0] in "23456" and passes_luhn(digits)


_SSN = re.compile(r"(?<![0-9])(?!000|666|9)[0-9]{3}-(?!00)[0-9]{2}-(?!0000)[0-9]{4}(?![0-9])")
_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1?[0-9]{1,2})"
_IPV4 = re.compile(rf"(?<![0-9])(?<![0-9]\.)(?:{_OCTET}\.){{3}}{_OCTET}(?!\.?[0-9])")

_IBAN = re.compile(r"(?<![A-Za-z0-9])[A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]){11,30}")
# Lengths by country: the SWIFT registry, release 99.
_IBAN_CHARS: Final[Mapping[str, int]] = {
    entry[:2]: int(entry[2:])
    for entry in (  # noqa: SIM905
        "AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BI27 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DJ27 DK18 DO28 EE20 EG29 "
        "ES24 FI18 FK18 FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HN28 HR21 HU28 IE22 IL23 IQ23 IS26 IT27 JO30 KW30 KZ20 "
        "LB28 LC32 LI21 LT20 LU20 LV21 LY25 MC27 MD24 ME22 MK19 MN20 MR27 MT31 MU30 NI28 NL18 NO15 OM23 PK24 PL28 PS29 "
        "PT25 QA29 RO24 RS22 RU33 SA24 SC31 SD18 SE24 SI19 SK24 SM27 SO23 ST25 SV28 TL23 TN24 TR26 UA29 VA22 VG24 XK20 "
        "YE30"
    ).split()
}


def _iban_end(found: str) -> int:
    length = _IBAN_CHARS.get(found[:2], 0)
    if not length:
        return 0
    end = _end_of(found, length)
    account = found[:end].replace(" ", "")
    if len(account) != length or found[end : end + 1] in _DIGITS:
        return 0
    return end if int("".join(str(int(each, 36)) for each in account[4:] + account[:4])) % 97 == 1 else 0


def _end_of(text: str, length: int) -> int:
    """The position after this number of characters, not counting blanks; the end of the text if it has fewer."""
    kept = 0
    for end, character in enumerate(text, 1):
        kept += character != " "
        if kept == length:
            return end
    return len(text)


CLASSES: Final[Mapping[str, Finder]] = {
    "email": find_emails,
    "card": _numbers(_CARD, _card_end),
    "bearer": find_bearers,
    "jwt": find_jwts,
    "api_key": prefixed(API_KEYS),
    "private_key": find_private_keys,
    "iban": _numbers(_IBAN, _iban_end),
    "ssn": _numbers(_SSN, len),
    "ipv4": _numbers(_IPV4, len),
}

"""Computes keyed hashes of arguments.

Digests are keyed, because a plain SHA-256 of `{"confirm": true}` can be guessed at once. Each is HMAC-SHA-256 over

    frame(purpose) frame(part) ... frame(last part)        frame(x) = length of x in 4 bytes, big-endian, then x

so that different purposes or lists of parts never share an input. `args_hash` has the purpose `sidecar/args/1` and
covers the namespace, the action, the object, and the arguments in the canonical form of RFC 8785, in which integers
between 2^53 and 64 bits are written in full.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from sidecar.errors import Reason, Refusal, SettingsError, fault_in
from sidecar.protocols.canonical import NotCanonicalError, canonical_json
from sidecar.settings.secrets import make_hex_key, read_hex_key

ARGS, FACT, HEAD, NAME = b"sidecar/args/1", b"sidecar/fact/1", b"sidecar/head/1", b"sidecar/name/1"
HASHED_NAME = "~hmac:"  # prefix of a hashed name; never valid in a tool, prompt, URI or server name
BLOCK_BYTES = 64  # of SHA-256
KEY_ID_CHARS = 16
REMEMBERED, REMEMBERED_CHARS = 1024, 128  # of short inputs, actions and objects, which are cached
FACT_HASH_CHARS = 32  # 128 bits


Mac = Callable[[bytes], str]  # takes the framed rest of a message, returns the 64 hex digits of its HMAC


@dataclass(frozen=True, slots=True)
class AuditKey:
    """The secret behind the keyed digests of one data folder. `id` is in each record and discloses nothing about it.
    `begin` takes the framed start of a message, purpose first; `anchor` is begun for anchors."""

    id: str
    secret: bytes = field(repr=False)
    begin: Callable[[bytes], Mac] = field(init=False, repr=False, compare=False)
    anchor: Mac = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "begin", _hmac_sha256(self.secret))
        object.__setattr__(self, "anchor", self.begin(frame(HEAD)))

    @classmethod
    def from_secret(cls, secret: bytes) -> AuditKey:
        """The key of a secret. Its id is a digest of the secret, so the two always match."""
        return cls(sha256(b"sidecar/key-id/1" + secret).hexdigest()[:KEY_ID_CHARS], secret)


class Digests:
    """The keyed digests of one namespace: equal values have equal digests only within it."""

    __slots__ = ("_args", "_begin", "_begun", "_fact", "_name", "known_facts")

    def __init__(self, key: AuditKey, namespace: str) -> None:
        own = frame(_utf8(namespace))
        self.known_facts: dict[object, str] = {}
        """The texts of `int` and `str` that conditions read, which are often the same in many calls."""
        self._begin, self._args = key.begin, frame(ARGS) + own
        self._begun: dict[tuple[str, str], Mac] = {}  # by action and object
        self._fact, self._name = (key.begin(frame(purpose) + own) for purpose in (FACT, NAME))

    def args_hash(self, action: str, object_: str, arguments: Mapping[str, Any]) -> str:
        """The digest of one call's arguments, 64 hex digits. Raises Refusal(MALFORMED_CALL) if they are not JSON."""
        mac = self._begun.get((action, object_)) or self._begin_args(action, object_)
        try:
            form = canonical_json(arguments)
        except NotCanonicalError:
            told = "the arguments are not JSON that every reader reads alike"
            raise Refusal(Reason.MALFORMED_CALL, told) from None
        return mac(len(form).to_bytes(4, "big") + form)  # see `frame`

    def _begin_args(self, action: str, object_: str) -> Mac:
        if len(self._begun) >= REMEMBERED:
            self._begun.clear()
        mac = self._begin(self._args + frame(_utf8(action)) + frame(_utf8(object_)))
        if len(action) + len(object_) <= REMEMBERED_CHARS:
            self._begun[action, object_] = mac
        return mac

    def fact_hash(self, value: object) -> str | None:
        """The digest of a condition's input, which does not disclose it; None if it is not JSON, such as a time or a
        CEL type."""
        try:
            return self._fact(frame(canonical_json(value)))[:FACT_HASH_CHARS]
        except NotCanonicalError:
            return None

    def fact_text(self, value: object) -> str:
        """The digest as JSON, which is cached in `known_facts`."""
        digest, kind = self.fact_hash(value), type(value)
        told = f'"{digest}"' if digest else "null"
        if kind is int or (kind is str and len(value) <= REMEMBERED_CHARS):  # type: ignore[arg-type]
            if len(self.known_facts) >= REMEMBERED:
                self.known_facts.clear()
            self.known_facts[value] = told
        return told

    def name_hash(self, name: str) -> str:
        return HASHED_NAME + self._name(frame(_utf8(name)))[:FACT_HASH_CHARS]


def namespace_of(principal_id: str) -> str:
    """The tenant of a principal: the part of its id before the first slash."""
    namespace, slash, _ = principal_id.partition("/")
    return namespace if slash else ""


def frame(part: bytes) -> bytes:
    """Prefixes a part of a message with its length, so that different lists of parts differ."""
    return len(part).to_bytes(4, "big") + part


def load_or_make_key(path: Path, *, entropy: Callable[[int], bytes] = os.urandom) -> AuditKey:
    """Loads the key from `path`, one line of hex, created at first start with mode 0600. Raises SettingsError."""
    try:
        make_hex_key(path, entropy)
        return load_key(path, ours=True)
    except OSError as error:
        message = f"the audit key cannot be used: {error.strerror}"
        raise SettingsError([fault_in(path, message, code="A101")]) from None


def load_key(path: Path, *, ours: bool = False) -> AuditKey:
    """Loads the key from `path`. With `ours` it must not be guessable; older weak keys may still verify. Raises
    SettingsError if others may read the file or it is not a key, OSError if it is missing."""
    return AuditKey.from_secret(read_hex_key(path, "the audit key", "A101", strong=ours))


def _hmac_sha256(secret: bytes) -> Callable[[bytes], Mac]:
    """RFC 2104 in steps, so that constant parts are hashed once. `hmac.digest` takes three times as long."""
    padded = (sha256(secret).digest() if len(secret) > BLOCK_BYTES else secret).ljust(BLOCK_BYTES, b"\0")
    inner, outer = (sha256(bytes(byte ^ pad for byte in padded)) for pad in (0x36, 0x5C))

    def begin(beginning: bytes) -> Mac:
        begun = inner.copy()
        begun.update(beginning)

        def mac(rest: bytes) -> str:
            first, second = begun.copy(), outer.copy()
            first.update(rest)
            second.update(first.digest())
            return second.hexdigest()

        return mac

    return begin


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "replace")

"""Reads secret files, checks their strength, and creates our own.

There is no built-in secret, and one that could be guessed, or read by others, stops the start (threats A12). The group
may read: that is how secrets are mounted.
"""

from __future__ import annotations

import os
import secrets
import stat
from itertools import pairwise
from pathlib import Path
from typing import Literal

from sidecar.errors import SettingsError, fault_in
from sidecar.settings.validation_errors import ValidationFinding

MIN_CHARACTERS = 32  # 128 bits as hexadecimal digits
MIN_DIFFERENT = 10  # "aaaa..." and "1234123412341234..." are long, not secret
MAX_BYTES = 64 * 1024
OPEN_TO_OTHERS = 0o037
MAX_NEIGHBOURS = 0.6  # of a secret's characters; of random hexadecimal digits every fifth is one
_ROWS = (
    "0123456789abcdef0",
    "1234567890",
    "abcdefghijklmnopqrstuvwxyza",
    *("qwertyuiop", "qwertzuiop", "azertyuiop", "asdfghjkl", "qsdfghjklm", "zxcvbnm", "yxcvbnm", "wxcvbn"),
    *("1qaz", "2wsx", "3edc", "4rfv", "5tgb", "6yhn", "7ujm", "8ik", "9ol"),
)
_NEXT = frozenset(pair for row in _ROWS for one, other in pairwise(row) for pair in (one + other, other + one))
_SAMPLES = (
    "changeme",
    "change-me",
    "change_me",
    "example",
    "password",
    "placeholder",
    "replace",
    "sample",
    "secret",
    "your-",
)

Whose = Literal["ours", "theirs"]
"""`ours`: whoever knows it has power over us, so it must be strong. `theirs`: another's, we can only send it."""


class WeakSecretError(Exception):
    """What is wrong with a secret; never the secret."""

    def __init__(self, finding: ValidationFinding) -> None:
        super().__init__(finding.message)
        self.finding = finding


def read_secret(path: Path, whose: Whose) -> str:
    """The secret in a file, without the line break at its end. Raises SettingsError, which names the file only."""
    try:
        return checked_secret(path, whose)
    except WeakSecretError as weak:
        fault = fault_in(path, weak.finding.message, code=weak.finding.code, hint=weak.finding.hint)
        raise SettingsError([fault]) from None


def checked_secret(path: Path, whose: Whose) -> str:
    """As `read_secret`, raising WeakSecretError for callers who know the place that named the file."""
    secret = _text(path)
    if (fault := fault_of_secret(secret, whose)) is not None:
        raise WeakSecretError(fault)
    return secret


def fault_of_secret(secret: str, whose: Whose) -> ValidationFinding | None:
    """What is wrong with a secret; never the secret."""
    if not secret:
        return ValidationFinding("the secret is empty", "S120")
    if any(not "!" <= character <= "~" for character in secret.replace(" ", "_")):
        return ValidationFinding("the secret is not one line of printable ASCII", "S120")
    if whose == "ours" and (weakness := weakness_of(secret)):
        return ValidationFinding(weakness, "S121", "make one: openssl rand -hex 32")
    return None


def exposure_of(path: Path, mode: int) -> ValidationFinding | None:
    """What is wrong with the mode of a file that holds a secret: others than its owner and group may read it, or its
    group may write it."""
    if not mode & OPEN_TO_OTHERS:
        return None
    return ValidationFinding(
        f"{path} can be read by others (mode {stat.S_IMODE(mode):04o})", "S121", f"chmod 600 {path}"
    )


def check_private(path: Path) -> None:
    """As `exposure_of`, of a file as it lies there. Raises SettingsError; one that is not there is its reader's fault
    to tell."""
    try:
        found = exposure_of(path, path.stat().st_mode)
    except OSError:
        return
    if found is not None:
        raise SettingsError([fault_in(path, found.message, code=found.code, hint=found.hint)])


def keep_once(path: Path, content: bytes) -> None:
    """Make a file of ours (mode 0600) unless it is there. Written aside and linked into place: two sidecars that start
    at once end with one content, and never half of one; who is killed here is in nobody's way. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(aside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        os.write(descriptor, content)
        os.fsync(descriptor)
        try:
            os.link(aside, path)
        except FileExistsError:
            pass  # the other one was first; its content is as good
    finally:
        os.close(descriptor)
        aside.unlink()


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            exposed = exposure_of(path, os.fstat(file.fileno()).st_mode)
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        reason = (error.strerror or "unreadable").lower()
        raise WeakSecretError(ValidationFinding(f"{path} cannot be read: {reason}", "S116")) from None
    if exposed is not None:
        raise WeakSecretError(exposed)
    if len(raw) > MAX_BYTES:
        raise WeakSecretError(ValidationFinding(f"the secret is larger than {MAX_BYTES} bytes", "S120"))
    return raw.decode("latin-1").removesuffix("\n").removesuffix("\r")


def weakness_of(secret: str) -> str:
    """Why it could be guessed; "" if it could not. Secrets are not judged by what they mean, but by how they look."""
    if len(secret) < MIN_CHARACTERS:
        return f"the secret has fewer than {MIN_CHARACTERS} characters"
    if len(set(secret)) < MIN_DIFFERENT:
        return "the secret repeats itself"
    if any(sample in secret.lower() for sample in _SAMPLES):
        return "the secret looks like a sample"
    if _repeats(secret):
        return "the secret repeats itself"
    if any(_walks(secret.lower(), stride) for stride in (1, 2)):
        return "the secret is a sequence, or a row of keys"
    return ""


def _repeats(secret: str) -> bool:
    """Whether it is one shorter text again and again."""
    return secret in (secret + secret)[1:-1] or any(
        secret == (secret[:size] * (len(secret) // size + 1))[: len(secret)] for size in range(1, len(secret) // 2 + 1)
    )


def _walks(secret: str, stride: int) -> bool:
    """Whether most characters are neighbours of the one before, in the alphabet or on a keyboard; with a stride of 2,
    of the one before that: `0a1b2c3d`."""
    pairs = [one + other for one, other in zip(secret, secret[stride:], strict=False)]
    return sum(pair in _NEXT or pair[0] == pair[1] for pair in pairs) > MAX_NEIGHBOURS * len(pairs)

"""Is this file's content fit to be a secret, and how is one of our own kept?

There is no built-in secret, and one that could be guessed stops the start (threats A12).
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Literal

from sidecar.errors import SettingsError, fault_in
from sidecar.settings.findings import Finding

MIN_CHARACTERS = 32  # 128 bits as hexadecimal digits
MIN_DIFFERENT = 10  # "aaaa..." and "1234123412341234..." are long, not secret
MAX_BYTES = 64 * 1024
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

    def __init__(self, finding: Finding) -> None:
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
    if not secret:
        raise WeakSecretError(Finding("the secret is empty", "S120"))
    if any(not "!" <= character <= "~" for character in secret.replace(" ", "_")):
        raise WeakSecretError(Finding("the secret is not one line of printable ASCII", "S120"))
    if whose == "ours" and (weakness := _weakness_of(secret)):
        raise WeakSecretError(Finding(weakness, "S121", "make one: openssl rand -hex 32"))
    return secret


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
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        reason = (error.strerror or "unreadable").lower()
        raise WeakSecretError(Finding(f"{path} cannot be read: {reason}", "S116")) from None
    if len(raw) > MAX_BYTES:
        raise WeakSecretError(Finding(f"the secret is larger than {MAX_BYTES} bytes", "S120"))
    return raw.decode("latin-1").removesuffix("\n").removesuffix("\r")


def _weakness_of(secret: str) -> str:
    if len(secret) < MIN_CHARACTERS:
        return f"the secret has fewer than {MIN_CHARACTERS} characters"
    if len(set(secret)) < MIN_DIFFERENT:
        return "the secret repeats itself"
    if any(sample in secret.lower() for sample in _SAMPLES):
        return "the secret looks like a sample"
    return ""

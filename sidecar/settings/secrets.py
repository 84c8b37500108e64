"""Reads, checks and creates secrets. One that can be guessed, or that others can read, stops the start."""

import os
import re
import secrets
import stat
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Literal

from sidecar.errors import SettingsError, fault_in
from sidecar.settings.reading import bounded_content
from sidecar.settings.validation_errors import Finding

MIN_CHARACTERS = 32  # 128 bits in hexadecimal digits
MIN_DIFFERENT = 8  # of 32 random hexadecimal digits, fewer are different in one of 28 million secrets
MAX_BYTES = 64 * 1024
HEX_KEY_BYTES = 32
OPEN_TO_OTHERS = 0o037
MAX_NEIGHBOURS = 0.6  # share of a secret's pairs of characters; about a fifth of random hexadecimal digits
_ROWS = (
    "0123456789abcdef0",
    "1234567890",
    "abcdefghijklmnopqrstuvwxyza",
    *("qwertyuiop", "qwertzuiop", "azertyuiop", "asdfghjkl", "qsdfghjklm", "zxcvbnm", "yxcvbnm", "wxcvbn"),
    *("1qaz", "2wsx", "3edc", "4rfv", "5tgb", "6yhn", "7ujm", "8ik", "9ol"),
)
_NEXT = frozenset(pair for row in _ROWS for one, other in pairwise(row) for pair in (one + other, other + one))
_SAMPLE = re.compile(r"change[-_]?me|example|password|placeholder|replace|sample|secret|your-")

Whose = Literal["ours", "theirs"]
"""`ours`: a secret that gives access to the sidecar, so it must be strong. `theirs`: one that others issued, and that
the sidecar only sends."""


def read_secret(path: Path, whose: Whose) -> str:
    """Reads a secret from a file, without the final line break. Raises SettingsError, which names only the file."""
    secret, found = judged_secret(path, whose)
    if found is not None:
        raise SettingsError([fault_in(path, found.message, code=found.code, hint=found.hint)])
    return secret


def judged_secret(path: Path, whose: Whose) -> tuple[str, Finding | None]:
    """Reads a secret like `read_secret`. Returns it, and what is wrong with it, without showing it, or None."""
    try:
        with path.open("rb") as file:
            exposed = exposure_of(path, os.fstat(file.fileno()).st_mode)
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        return "", Finding(f"{path} cannot be read: {(error.strerror or 'unreadable').lower()}", "S116")
    if exposed is None and len(raw) > MAX_BYTES:
        exposed = Finding(f"the secret is larger than {MAX_BYTES} bytes", "S120")
    secret = raw.decode("latin-1").removesuffix("\n").removesuffix("\r")
    return secret, exposed or fault_of_secret(secret, whose)


def fault_of_secret(secret: str, whose: Whose) -> Finding | None:
    """What is wrong with a secret, without showing it; None if nothing is."""
    if not secret:
        return Finding("the secret is empty", "S120")
    if any(not "!" <= character <= "~" for character in secret.replace(" ", "_")):
        return Finding("the secret is not one line of printable ASCII", "S120")
    if whose == "ours" and (weakness := weakness_of(secret)):
        return Finding(weakness, "S121", "create one: openssl rand -hex 32")
    return None


def exposure_of(path: Path, mode: int) -> Finding | None:
    """What is wrong with the mode of a secret file: others have any access, or its group can write or execute it. None
    if nothing is."""
    if not mode & OPEN_TO_OTHERS:
        return None
    return Finding(f"{path} is open to others (mode {stat.S_IMODE(mode):04o})", "S121", f"chmod 600 {path}")


def check_private(path: Path) -> None:
    """Checks the mode of a secret file. Raises SettingsError. A missing file passes; its reader reports it."""
    try:
        found = exposure_of(path, path.stat().st_mode)
    except OSError:
        return
    if found is not None:
        raise SettingsError([fault_in(path, found.message, code=found.code, hint=found.hint)])


def keep_once(path: Path, content: bytes) -> None:
    """Creates a file (mode 0600) unless it exists. If two sidecars start together, both find the same complete content.
    A sidecar that is killed leaves no incomplete file at `path`. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(aside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):  # another process was first; its content is used
            os.link(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def make_hex_key(path: Path, entropy: Callable[[int], bytes]) -> None:
    """Creates a key file for `read_hex_key` unless it exists. `entropy` returns a number of random bytes. Raises
    OSError."""
    if not path.exists():
        keep_once(path, entropy(HEX_KEY_BYTES).hex().encode() + b"\n")


def read_hex_key(path: Path, what: str, code: str, *, strong: bool = True) -> bytes:
    """The key in a file: hexadecimal digits for at least 32 bytes. Only the owner of the file, and its group for
    reading, may have access. With `strong` it must not be guessable. `what` and `code` are for faults. Raises
    SettingsError if the key cannot be used, OSError if the file cannot be read."""

    def unusable(
        message: str, hint: str = "restore the file, or create a new key: openssl rand -hex 32"
    ) -> SettingsError:
        return SettingsError([fault_in(path, f"{what} {message}", code=code, hint=hint)])

    if not stat.S_ISREG(path.stat().st_mode):  # before it is opened, which waits for the writer of a pipe
        raise unusable("is not a regular file")
    with path.open("rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if mode & OPEN_TO_OTHERS:
            raise unusable(f"is open to others (mode {stat.S_IMODE(mode):04o})", f"chmod 600 {path}")
        raw = bounded_content(file, MAX_BYTES)
    try:
        key = bytes.fromhex(raw.decode("ascii").strip())
    except ValueError:
        raise unusable("is not one line of hexadecimal digits") from None
    if len(key) < HEX_KEY_BYTES:
        raise unusable(f"holds {len(key)} bytes; {HEX_KEY_BYTES} are needed")
    if strong and (weakness := weakness_of(key.hex())):
        raise unusable(f"could be guessed: {weakness}")
    return key


def weakness_of(secret: str) -> str:
    """Why a secret could be guessed, as far as its characters show; "" if they show nothing."""
    if len(secret) < MIN_CHARACTERS:
        return f"the secret has fewer than {MIN_CHARACTERS} characters"
    if len(set(secret)) < MIN_DIFFERENT:
        return "the secret repeats itself"
    if _SAMPLE.search(secret.lower()):
        return "the secret looks like a sample value"
    if _repeats(secret):
        return "the secret repeats itself"
    if any(_walks(secret.lower(), stride) for stride in (1, 2)):
        return "the secret is a sequence, or a row of keys on a keyboard"
    return ""


def _repeats(secret: str) -> bool:
    return secret in (secret + secret)[1:-1] or any(
        secret == (secret[:size] * (len(secret) // size + 1))[: len(secret)] for size in range(1, len(secret) // 2 + 1)
    )


def _walks(secret: str, stride: int) -> bool:
    """Whether most characters are equal to the one `stride` before, or next to it on a keyboard, in the alphabet or
    among the digits. `0a1b2c3d` walks with stride 2."""
    pairs = [one + other for one, other in zip(secret, secret[stride:], strict=False)]
    return sum(pair in _NEXT or pair[0] == pair[1] for pair in pairs) > MAX_NEIGHBOURS * len(pairs)

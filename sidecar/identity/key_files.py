"""Makes API keys and edits the key file.

It is used by commands, not by requests. A hand-edited keys.yaml retains its comments: one line is added or removed and
the result is parsed; only if that is not exactly the intended set of keys is the file rewritten.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sidecar.errors import ConfigError, SettingsError, fault_in
from sidecar.identity.api_keys import HASH_PREFIX, KeyEntry, KeyFile, digest_of, read_pepper, records_of
from sidecar.identity.credentials import API_KEY_PREFIX
from sidecar.settings.field_types import is_caller
from sidecar.settings.reading import read_bounded
from sidecar.settings.secrets import keep_once
from sidecar.settings.timestamps import rfc3339
from sidecar.settings.writing import write_whole
from sidecar.settings.yaml_document import read_document
from sidecar.settings.yaml_nodes import MAX_BYTES

RandomBytes = Callable[[int], bytes]
_EMPTY = "version: 1\nkeys:\n"
_BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def make_key(
    principal: str, pepper: bytes, *, now: float, expires_at: float | None, scopes: tuple[str, ...], random: RandomBytes
) -> tuple[str, KeyEntry]:
    """Returns a new key's text, which is never stored, and its entry. Raises ValueError for a name that is not a
    caller's."""
    if not is_caller(principal):
        raise ValueError("a key belongs to user:<id> or nhi:<id>")
    key_id = _base62(random(9), 12)
    text = f"{API_KEY_PREFIX}{key_id}_{_base62(random(32), 43)}"
    entry = KeyEntry(
        id=key_id,
        principal=principal,
        hash=HASH_PREFIX + digest_of(text, pepper).hex(),
        expires_at=None if expires_at is None else rfc3339(expires_at),
        created_at=rfc3339(now),
        scopes=list(scopes),
    )
    return text, entry


def add_key(path: Path, entry: KeyEntry, now: float) -> None:
    """Appends to keys.yaml, which may be missing. Raises SettingsError before writing, such as for a third live key."""
    with _alone(path):
        text = _text_of(path)
        appended = text + ("" if text.endswith("\n") else "\n") + _line(entry) + "\n"
        _replace(path, appended, [*_entries(path, text), entry], now)


def remove_key(path: Path, key_id: str, now: float) -> bool:
    """Removes a key from keys.yaml. Returns False if it is not there. Raises SettingsError."""
    with _alone(path):
        text = _text_of(path)
        before = _entries(path, text)
        after = [entry for entry in before if entry.id != key_id]
        if after == before:
            return False
        lines = text.splitlines(keepends=True)
        kept = [line for line in lines if not (f'"{key_id}"' in line and line.lstrip().startswith("- {"))]
        _replace(path, "".join(kept), after, now)
    return True


def ensure_pepper(path: Path, random: RandomBytes) -> bytes:
    """Returns the pepper in this file, which is created at first use (mode 0600). Raises SettingsError."""
    if not path.exists():
        keep_once(path, random(32).hex().encode() + b"\n")
    return read_pepper(path)


def write_secret(path: Path, text: str) -> None:
    """Creates a file that only its owner can read. Raises FileExistsError: a key is never overwritten."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(text)


def _text_of(path: Path) -> str:
    try:
        return read_bounded(path, MAX_BYTES).decode()
    except FileNotFoundError:
        return _EMPTY
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError([fault_in(path, f"cannot be read: {error}", code="S315")]) from None


def keys_in(path: Path) -> list[KeyEntry]:
    """Returns the entries of keys.yaml; none if the file is missing. Raises SettingsError."""
    return _entries(path, _text_of(path))


def _entries(path: Path, text: str) -> list[KeyEntry]:
    return read_document(path, text=text).validate(KeyFile).keys


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Locks the folder, so that concurrent commands do not lose each other's changes."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _replace(path: Path, edited: str, meant: list[KeyEntry], now: float) -> None:
    """Writes the edited text if it parses to `meant`, otherwise rewrites the keys. Raises SettingsError before
    writing."""
    try:
        said = _entries(path, edited)
    except ConfigError:
        said = None
    text = edited if said == meant else _EMPTY + "".join(f"{_line(entry)}\n" for entry in meant)
    records_of(read_document(path, text=text), now)
    write_whole(path, text.encode(), mode=None if path.exists() else 0o600)


def _line(entry: KeyEntry) -> str:
    pairs = entry.model_dump(exclude_none=True, exclude_defaults=True)
    # JSON strings are YAML strings in every YAML version.
    return "  - {" + ", ".join(f"{name}: {json.dumps(value)}" for name, value in pairs.items()) + "}"


def _base62(raw: bytes, width: int) -> str:
    number, digits = int.from_bytes(raw), ""
    for _ in range(width):
        number, digit = divmod(number, 62)
        digits = _BASE62[digit] + digits
    return digits

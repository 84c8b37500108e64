"""Signs webhooks by Standard Webhooks 1.0 (standardwebhooks.com).

`webhook-id` stays the same when a delivery is repeated, `webhook-timestamp` is that of the attempt, and

    webhook-signature: v1,base64(HMAC-SHA256(secret, "{webhook-id}.{webhook-timestamp}.{body}"))

Each receiver (scheme, host, port) has its own secret, derived from the sidecar's key, so that a receiver cannot forge
deliveries to another. A secret is shown as `whsec_` and base64, which the libraries of Standard Webhooks accept.
"""

from __future__ import annotations

import hmac
import os
import stat
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sidecar.errors import SettingsError, fault_in
from sidecar.http.client.origin import TargetOrigin
from sidecar.settings.secrets import keep_once, weakness_of
from sidecar.storage.deliveries import Headers

PREFIX: Final = "whsec_"
KEY_BYTES: Final = 32
_PURPOSE: Final = b"sidecar/callback/1\0"
_MAX_KEY_FILE_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class CallbackKey:
    """The key from which receivers' secrets are derived."""

    key: bytes = field(repr=False)

    def secret_of(self, receiver: TargetOrigin) -> bytes:
        place = f"{receiver.scheme}://{receiver.host}:{receiver.port}"
        return hmac.digest(self.key, _PURPOSE + place.encode(), "sha256")

    def told_to(self, receiver: TargetOrigin) -> str:
        """Returns the secret in the form that the receiver's operator gets."""
        return PREFIX + b64encode(self.secret_of(receiver)).decode()

    def sign(self, receiver: TargetOrigin, id_: str, now_s: float, body: bytes) -> Headers:
        moment = str(int(now_s))
        mac = hmac.digest(self.secret_of(receiver), f"{id_}.{moment}.".encode() + body, "sha256")
        return (
            ("webhook-id", id_),
            ("webhook-timestamp", moment),
            ("webhook-signature", f"v1,{b64encode(mac).decode()}"),
        )


def load_or_make_callback_key(path: Path, *, entropy: Callable[[int], bytes] = os.urandom) -> CallbackKey:
    """Reads the key in `path`, one line of hex; creates it on first use, with mode 0600. Raises SettingsError."""
    try:
        if not path.exists():
            keep_once(path, entropy(KEY_BYTES).hex().encode() + b"\n")
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            raw = file.read(_MAX_KEY_FILE_BYTES)
    except OSError as error:
        raise _unusable(path, f"cannot be used: {error.strerror}") from None
    if mode & 0o077:
        raise _unusable(path, f"can be read by others (mode {mode:04o})", hint=f"chmod 600 {path}")
    try:
        key = bytes.fromhex(raw.decode("ascii").strip())
    except ValueError:
        key = b""
    if len(key) < KEY_BYTES:
        hint = "restore it; without the file a new key is made, and every receiver needs its new secret"
        raise _unusable(path, f"is not one line of hexadecimal digits for {KEY_BYTES} bytes", hint=hint)
    if weakness := weakness_of(key.hex()):
        raise _unusable(path, f"could be guessed: {weakness}", hint="make one: openssl rand -hex 32")
    return CallbackKey(key)


def _unusable(path: Path, message: str, *, hint: str = "") -> SettingsError:
    return SettingsError([fault_in(path, message, code="H101", hint=hint)])

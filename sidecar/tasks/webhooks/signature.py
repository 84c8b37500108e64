"""Signs webhooks by Standard Webhooks 1.0 (standardwebhooks.com).

    webhook-signature: v1,base64(HMAC-SHA256(secret, "{webhook-id}.{webhook-timestamp}.{body}"))

Each receiver (scheme, host, port) has its own secret, derived from the sidecar's key, so that a receiver cannot forge
deliveries to another. It is shown as `whsec_` and base64.
"""

import hmac
import os
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sidecar.errors import SettingsError, fault_in
from sidecar.http.client.origin import TargetOrigin
from sidecar.settings.secrets import make_hex_key, read_hex_key
from sidecar.storage.deliveries import Headers

PREFIX: Final = "whsec_"
_PURPOSE: Final = b"sidecar/callback/1\0"


@dataclass(frozen=True, slots=True)
class CallbackKey:
    """The key from which receivers' secrets are derived."""

    key: bytes = field(repr=False)

    def secret_of(self, receiver: TargetOrigin) -> bytes:
        place = f"{receiver.scheme}://{receiver.host}:{receiver.port}"
        return hmac.digest(self.key, _PURPOSE + place.encode(), "sha256")

    def told_to(self, receiver: TargetOrigin) -> str:
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
        make_hex_key(path, entropy)
        return CallbackKey(read_hex_key(path, "the callback key", "H101"))
    except OSError as error:
        message = f"the callback key cannot be used: {error.strerror}"
        raise SettingsError([fault_in(path, message, code="H101")]) from None

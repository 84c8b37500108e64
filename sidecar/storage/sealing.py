"""Seals data that leaves this process, so that only holders of a key can read or change it (AES-256-GCM)."""

import secrets
from base64 import b64decode, b64encode
from hashlib import sha256
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NONCE_BYTES: Final = 12


class AesSeal:
    """A key for one purpose, derived from a secret. Sealed bytes open only with the `about` they were sealed with."""

    __slots__ = ("_aead",)

    def __init__(self, secret: bytes, purpose: bytes) -> None:
        self._aead = AESGCM(sha256(purpose + b"\0" + secret).digest())

    def sealed(self, plain: bytes, about: bytes) -> bytes:
        """Returns a random nonce, followed by the ciphertext."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + self._aead.encrypt(nonce, plain, about)

    def opened(self, raw: bytes, about: bytes) -> bytes:
        """Returns the plain bytes. Raises ValueError if this key did not seal them, or not with this `about`."""
        try:
            return self._aead.decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], about)
        except InvalidTag:
            raise ValueError("it is not sealed with this key") from None

    def sealed_text(self, plain: bytes, about: bytes) -> bytes:
        """Returns the sealed bytes in base64, for stores of text."""
        return b64encode(self.sealed(plain, about))

    def opened_text(self, text: bytes | str, about: bytes) -> bytes:
        """Opens what `sealed_text` returned. Raises ValueError."""
        return self.opened(b64decode(text, validate=True), about)

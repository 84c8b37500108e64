"""Encodes and decodes unpadded base64url.

This is RFC 4648 5 without padding, and each value has exactly one text. Python's own decoder skips invalid characters,
text after the padding and unused bits, so that many texts would give one value.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode


def encode(raw: bytes) -> str:
    """Unpadded base64url of these bytes."""
    return urlsafe_b64encode(raw).decode().rstrip("=")


def decode(text: str) -> bytes:
    """The bytes that `encode` writes as this text. Raises ValueError for any text that it does not produce."""
    raw = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if encode(raw) != text:
        raise ValueError("not the one way to write it")
    return raw

"""Encodes and decodes unpadded base64url.

As RFC 4648 5 has it, without padding, and in one way only: Python's own reader passes over what is no base64, over what
comes behind the padding and over bits that say nothing, so that many texts would be one value.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode


def encode(raw: bytes) -> str:
    """The text of bytes."""
    return urlsafe_b64encode(raw).decode().rstrip("=")


def decode(text: str) -> bytes:
    """The bytes of a text. Raises ValueError for any other text than theirs."""
    raw = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if encode(raw) != text:
        raise ValueError("not the one way to write it")
    return raw

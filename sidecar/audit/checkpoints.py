"""Signs and verifies checkpoints of the audit log.

A checkpoint states where the chain ended. It is signed with Ed25519:

    frame("sidecar/checkpoint/1") frame(seq, decimal) frame(hash) frame(time) frame(kid)        frames as in `digest`

It is a control record directly after the record that it covers, and can also be published where the host's owner has no
control: a truncated or rewritten log contradicts it. The key signs nothing else and is published as
`"use":"audit-checkpoint"` (RFC 7517 4.2).
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from sidecar.audit.chain import ChainEnd, json_object
from sidecar.audit.digest import frame
from sidecar.audit.record import CHECKPOINT
from sidecar.errors import SettingsError, fault_in
from sidecar.http.signing_keys import (
    SigningKey,
    generate,
    keep_private_key,
    private_key_from,
    read_public_jwk,
    thumbprint,
)
from sidecar.protocols import base64url
from sidecar.settings.reading import read_bounded

USE: Final = "audit-checkpoint"
MAX_LINE_BYTES: Final = 64 * 1024
MAX_KEYS_BYTES: Final = 1 << 20
_PURPOSE: Final = b"sidecar/checkpoint/1"
# Anywhere in a line: log collectors add prefixes.
_PUBLISHED: Final = re.compile(rb'\{"sidecar-checkpoint":(\{[^{}]{0,2048}\})\}')
_HASH: Final = re.compile(r"[0-9a-f]{64}")

Keys = Mapping[str, Ed25519PublicKey]
"""Public keys by their RFC 7638 thumbprint."""


class Checkpoint(NamedTuple):
    """A signed statement: at `time` the chain ended with record `seq`, whose hash is `hash`."""

    seq: int
    hash: str
    time: str
    kid: str
    signature: str

    @property
    def message(self) -> bytes:
        parts = (b"%d" % self.seq, self.hash.encode(), self.time.encode(), self.kid.encode())
        return frame(_PURPOSE) + b"".join(map(frame, parts))

    @property
    def published(self) -> bytes:
        """One line of JSON without its newline."""
        return orjson.dumps({"sidecar-checkpoint": self._asdict()})

    def signed_by(self, keys: Keys) -> bool | None:
        """Whether the key that it names signed it; None if that key is not in `keys`."""
        key = keys.get(self.kid)
        if key is None:
            return None
        try:
            key.verify(base64url.decode(self.signature), self.message)
        except (InvalidSignature, ValueError):
            return False
        return True


def attest(key: SigningKey, end: ChainEnd, time: str) -> Checkpoint:
    unsigned = Checkpoint(end.seq, end.hash, time, key.kid, "")
    return unsigned._replace(signature=base64url.encode(key.sign_bytes(unsigned.message)))


def checkpoint_in(control: object) -> Checkpoint | None:
    """Returns the checkpoint in a control record; None if it has none."""
    if not isinstance(control, Mapping) or control.get("what") != CHECKPOINT:
        return None
    return _checkpoint_from(control)


def read_checkpoints(path: Path, *, tail_bytes: int | None = None) -> Iterator[Checkpoint]:
    """The published checkpoints in a file, or in its last `tail_bytes`: as lines of their own, inside the lines of a
    log, or as records of the chain. Other content is skipped. Raises OSError."""
    with path.open("rb") as file:
        if tail_bytes is not None:
            file.seek(max(0, file.seek(0, 2) - tail_bytes))
        while line := file.readline(MAX_LINE_BYTES):
            yield from published_in(line)
            if line.startswith(b'{"v":') and b'"what":"checkpoint"' in line:
                found = checkpoint_in(json_object(line).get("control"))
                if found is not None:
                    yield found


def published_in(line: bytes) -> Iterator[Checkpoint]:
    """The published checkpoints of a line."""
    for match in _PUBLISHED.finditer(line):
        found = _checkpoint_from(json_object(match[1]))
        if found is not None:
            yield found


def public_keys_of(key: SigningKey) -> Keys:
    public = _key_from(key.public_jwk)
    return {} if public is None else {key.kid: public}


def read_public_keys(path: Path) -> Keys:
    """The Ed25519 keys for checkpoints in a PEM file, or in a JWKS in the sidecar's form. Raises OSError,
    ValueError."""
    raw = read_bounded(path, MAX_KEYS_BYTES)
    if raw.lstrip().startswith(b"{"):
        listed = json_object(raw).get("keys")
        entries = listed if isinstance(listed, list) else []
        jwks = [entry for entry in entries if isinstance(entry, dict) and entry.get("use") in (None, USE)]
    else:
        try:
            jwks = [dict(read_public_jwk(path))]
        except ValueError:
            raise ValueError("this is neither a key in PEM nor a key set (JWKS)") from None
    found = {thumbprint(key): key for jwk in jwks if (key := _key_from(jwk)) is not None}
    if not found:
        raise ValueError("no Ed25519 key for checkpoints")
    return found


def load_or_make_attesting_key(path: Path) -> SigningKey:
    """Loads the key from a PEM file, created at first start. Raises SettingsError."""
    if not path.exists():
        keep_private_key(path, generate("EdDSA"))
    return load_attesting_key(path)


def load_attesting_key(path: Path) -> SigningKey:
    """Loads the key from a PEM file that only its owner may read. Raises SettingsError."""
    key = private_key_from(path)
    if not isinstance(key.private, Ed25519PrivateKey):
        hint = "openssl genpkey -algorithm ED25519"
        message = "checkpoints need an Ed25519 key, and this is another key"
        raise SettingsError([fault_in(path, message, code="A102", hint=hint)])
    return key


def public_jwk(key: SigningKey) -> Mapping[str, Any]:
    return {**key.public_jwk, "use": USE}


def _key_from(jwk: Mapping[str, Any]) -> Ed25519PublicKey | None:
    if jwk.get("kty") != "OKP" or jwk.get("crv") != "Ed25519" or not isinstance(jwk.get("x"), str):
        return None
    try:
        return Ed25519PublicKey.from_public_bytes(base64url.decode(jwk["x"]))
    except ValueError:
        return None


def _checkpoint_from(given: Mapping[str, Any]) -> Checkpoint | None:
    seq, digest = given.get("seq"), given.get("hash")
    words = (given.get("time"), given.get("kid"), given.get("signature"))
    if type(seq) is not int or not 0 < seq < 2**63 or not isinstance(digest, str) or not _HASH.fullmatch(digest):
        return None
    time, kid, signature = (word if isinstance(word, str) and word.isascii() else "" for word in words)
    return Checkpoint(seq, digest, time, kid, signature)

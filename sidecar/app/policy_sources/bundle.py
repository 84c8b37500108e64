"""Makes, signs, verifies and unpacks policy bundles.

A bundle is a tar.gz. Its first member, `manifest.json`, names the policy, its version, and the size and SHA-256 of each
file. The second, `signatures.json`, has Ed25519 signatures over the exact bytes of the first; no more is inflated until
one is verified. The other members are the files: `policies/` and optionally `models/`.
"""

import hashlib
import io
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from sidecar.app.policy_sources.tarball import (
    MAX_FILE_BYTES,
    BadArchive,
    TarMember,
    TarNames,
    archive_of,
    gunzipped,
    members,
    write_member,
)
from sidecar.http.signing_keys import SigningKey, read_public_jwk
from sidecar.protocols import base64url
from sidecar.settings.reading import read_bounded

MANIFEST, SIGNATURES = "manifest.json", "signatures.json"
FOLDERS: Final = ("policies", "models")
DOMAIN: Final = b"sidecar policy bundle v1\n"
VERSION: Final = 1
MAX_MANIFEST: Final = 2 * 2**20
MAX_SIGNATURES: Final = 16 * 1024
MAX_SIGNERS: Final = 8
MAX_KEYS: Final = 64
MAX_KEY_FILE: Final = 256 * 1024
MAX_NUMBER: Final = 2**53 - 1

Keys = Mapping[str, Ed25519PublicKey]


class BundleEntry(NamedTuple):
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """A bundle's contents. `version` increases with each bundle of the policy `name`; `created_at` is a Unix time."""

    name: str
    version: int
    created_at: float
    files: Mapping[str, BundleEntry]

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.files.values())


@dataclass(frozen=True, slots=True)
class Bundle:
    """A verified bundle, its signing key's id, and the SHA-256 of the whole file and of the signed manifest."""

    manifest: Manifest
    key_id: str
    digest: str
    manifest_digest: str


def build(folder: Path, *, name: str, version: int, created_at: float) -> bytes:
    """Builds an unsigned bundle from a folder's `policies` and `models`. Raises BadArchive, OSError."""
    files = dict(_files_of(folder))
    entries = {path: {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()} for path, raw in files.items()}
    manifest = {"v": VERSION, "name": name, "version": version, "created_at": created_at, "files": entries}
    raw = orjson.dumps(manifest, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)
    _manifest(raw)  # refuse to build a bundle that no reader accepts
    return archive_of({MANIFEST: raw, **files})


def sign(bundle: bytes, key: SigningKey) -> bytes:
    """Adds a signature, or replaces the one of the same key. Raises BadArchive."""
    if key.algorithm != "EdDSA":
        raise BadArchive("bundles are signed with Ed25519")
    found = {one.name: b"".join(one.content) for one in members(gunzipped(io.BytesIO(bundle)))}
    manifest = found.pop(MANIFEST, b"")
    _manifest(manifest)
    known = _signatures(found.pop(SIGNATURES)) if SIGNATURES in found else {}
    made = {**known, key.kid: key.sign_bytes(DOMAIN + manifest)}
    if len(made) > MAX_SIGNERS:
        raise BadArchive(f"it has {MAX_SIGNERS} signatures already")
    listed = [{"kid": kid, "alg": "EdDSA", "signature": base64url.encode(raw)} for kid, raw in made.items()]
    signatures = orjson.dumps({"v": VERSION, "signatures": listed}, option=orjson.OPT_INDENT_2)
    return archive_of({MANIFEST: manifest, SIGNATURES: signatures, **found})


def opened(bundle: bytes, keys: Keys, *, into: Path | None = None) -> Bundle:
    """Verifies a whole bundle, and unpacks it if an empty folder is given. Raises BadArchive, OSError."""
    found = members(gunzipped(io.BytesIO(bundle)))
    raw = _small(next(found, None), MANIFEST, MAX_MANIFEST)
    second = next(found, None)
    if second is None or second.name != SIGNATURES:
        raise BadArchive("it is not signed")
    key_id = _vouched(raw, _signatures(_small(second, SIGNATURES, MAX_SIGNATURES)), keys)
    manifest = _manifest(raw)
    _unpack(found, manifest, into)
    return Bundle(manifest, key_id, hashlib.sha256(bundle).hexdigest(), hashlib.sha256(raw).hexdigest())


def read_keys(path: Path) -> Keys:
    """Reads the trusted keys: a JWKS or a PEM file of Ed25519 keys. Raises BadArchive, OSError."""
    raw = read_bounded(path, MAX_KEY_FILE)
    try:
        listed = [read_public_jwk(path)] if b"-----BEGIN" in raw else orjson.loads(raw)["keys"]
        keys = {
            str(one["kid"]): Ed25519PublicKey.from_public_bytes(base64url.decode(str(one["x"])))
            for one in listed
            if one.get("crv") == "Ed25519"
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BadArchive(f"{path} holds no public keys: it is a JWKS, or one key in PEM") from None
    if not keys or len(listed) > MAX_KEYS:
        raise BadArchive(f"{path} holds no Ed25519 key, or more than {MAX_KEYS} keys")
    return keys


def _files_of(folder: Path) -> Iterator[tuple[str, bytes]]:
    names = TarNames()
    for top in FOLDERS:
        for path in sorted((folder / top).rglob("*")) if (folder / top).is_dir() else ():
            relative = path.relative_to(folder)
            if any(part.startswith(".") for part in relative.parts) or path.is_dir():
                continue
            names.take(relative.as_posix())
            yield relative.as_posix(), read_bounded(path, MAX_FILE_BYTES)


def _small(member: TarMember | None, name: str, most: int) -> bytes:
    if member is None or member.name != name:
        raise BadArchive(f"{name} is not where it belongs: this is not a policy bundle")
    if member.size > most:
        raise BadArchive(f"{name} is larger than {most} bytes")
    return b"".join(member.content)


def _signatures(raw: bytes) -> dict[str, bytes]:
    try:
        listed = orjson.loads(raw)["signatures"]
        if not isinstance(listed, list) or len(listed) > MAX_SIGNERS:
            raise ValueError
        return {str(one["kid"]): base64url.decode(one["signature"]) for one in listed}
    except (ValueError, KeyError, TypeError):
        raise BadArchive(f"{SIGNATURES} is none") from None


def _vouched(manifest: bytes, signatures: Mapping[str, bytes], keys: Keys) -> str:
    """The id of the trusted key that signed the bundle."""
    for kid, signature in signatures.items():
        key = keys.get(kid)
        if key is None:
            continue
        try:
            key.verify(signature, DOMAIN + manifest)
        except InvalidSignature:
            continue
        return kid
    raise BadArchive("none of its signatures is of a key that may vouch for it")


def _manifest(raw: bytes) -> Manifest:
    """Parses a manifest. Unknown members come from a newer minor version and are ignored."""
    try:
        said = orjson.loads(raw)
        if said["v"] != VERSION:
            raise BadArchive(f"it is a bundle of version {said['v']!r}, which this release does not know")
        files = {path: BundleEntry(int(one["bytes"]), str(one["sha256"])) for path, one in said["files"].items()}
        found = Manifest(str(said["name"]), said["version"], float(said["created_at"]), files)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BadArchive(f"{MANIFEST} is none") from None
    if type(found.version) is not int or not 0 < found.version <= MAX_NUMBER:
        raise BadArchive("its version is not a positive number")
    if not any(path.startswith("policies/") and entry.size for path, entry in files.items()):
        raise BadArchive("it has no rules")
    for path in files:
        if path.partition("/")[0] not in FOLDERS:
            raise BadArchive(f"{path[:128]!r} belongs to no policy: there are policies/ and models/")
    return found


def _unpack(found: Iterator[TarMember], manifest: Manifest, into: Path | None) -> None:
    left = dict(manifest.files)
    for member in found:
        entry = left.pop(member.name, None)
        if entry is None or entry.size != member.size:
            raise BadArchive(f"{member.name[:128]} is not as the manifest says")
        digest = hashlib.sha256()
        content = _hashing(member.content, digest)
        if into is None:
            deque(content, maxlen=0)
        else:
            write_member(into, member._replace(content=content))
        if digest.hexdigest() != entry.sha256:
            raise BadArchive(f"{member.name} is not as the manifest says")
    if left:
        raise BadArchive(f"{next(iter(left))[:128]} is missing")


def _hashing(content: Iterator[bytes], digest: Any) -> Iterator[bytes]:
    for chunk in content:
        digest.update(chunk)
        yield chunk

"""Authenticates API keys.

A key is `sck_<id>_<secret>`: the id selects its record, the secret has 256 bits. The record stores an HMAC of the whole
text under a pepper in another file, so neither file alone lets an attacker authenticate or guess keys. Keys expire, and
a principal has at most two live ones: the old and the new of a rotation.
"""

from __future__ import annotations

import hmac
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from sidecar.errors import CredentialFault, Fault
from sidecar.identity.credentials import API_KEY_PREFIX, Workload, bad_credential
from sidecar.settings.field_types import is_caller, named
from sidecar.settings.secrets import read_secret
from sidecar.settings.timestamps import seconds_of
from sidecar.settings.validation_errors import reject
from sidecar.settings.yaml_document import Document
from sidecar.vocabulary import Credential, Principal

ISSUER = "api-key"
MAX_LIVE_KEYS = 2
HASH_PREFIX = "hmac-sha256:"

_KEY = re.compile(rf"{API_KEY_PREFIX}([A-Za-z0-9]{{4,32}})_[A-Za-z0-9]{{43,86}}")
_DOMAIN = b"sidecar/api-key/v1\0"
_NO_DIGEST = bytes(32)


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """One stored key. `digest` is the HMAC; `expires_at` is in seconds since the epoch, None for never."""

    id: str
    principal: str
    digest: bytes
    expires_at: float | None = None
    scopes: frozenset[str] = frozenset()

    def lives(self, now: float) -> bool:
        return self.expires_at is None or now < self.expires_at


def _owner(name: str) -> str:
    return name if is_caller(name) else reject("this is not a caller", hint="a key belongs to user:<id> or nhi:<id>")


def _time(text: str) -> str:
    try:
        seconds_of(text)
    except ValueError:
        reject("this is not an RFC 3339 time with a zone", hint="write a time as 2027-03-31T00:00:00Z")
    return text


Time = Annotated[str, AfterValidator(_time)]


class KeyEntry(BaseModel):
    """An API key. `sidecar token api-key` creates it."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)

    id: Annotated[str, named("[A-Za-z0-9]{4,32}", "key id", "4-32 letters and digits")]
    """Id of the key: the part of the key between the underscores."""
    principal: Annotated[str, AfterValidator(_owner)]
    """The principal that the key authenticates: `user:<id>` or `nhi:<id>`."""
    hash: Annotated[str, named(f"{HASH_PREFIX}[0-9a-f]{{64}}", "hash", f"write {HASH_PREFIX}<64 hex digits>")]
    """HMAC of the whole key under the pepper: `hmac-sha256:` and 64 hexadecimal digits."""
    expires_at: Time | None = None
    """Time at which the key expires (RFC 3339). Default: never."""
    created_at: Time | None = None
    """Time at which the key was created (RFC 3339)."""
    scopes: list[str] = Field(default_factory=list)
    """Scopes that the key grants."""


class KeyFile(BaseModel):
    """The API keys of callers."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)

    version: Literal[1]
    """Version of this file format."""
    keys: Annotated[
        list[KeyEntry],
        BeforeValidator(lambda given: [] if given is None else given),  # `keys:` without entries
        Field(default_factory=list, max_length=10_000),
    ]
    """The keys. A principal has at most two that are not expired."""


class ApiKeys:
    """The keys of one keys.yaml, by id. Without records, no key is valid."""

    def __init__(self, records: Iterable[KeyRecord] = (), pepper: bytes = b"") -> None:
        self._records = {record.id: record for record in records}
        self._workloads = {record.id: _workload(record) for record in self._records.values()}
        self._pepper = pepper

    def owners(self) -> frozenset[str]:
        return frozenset(record.principal for record in self._records.values())

    def check(self, text: str, now: float) -> Workload:
        """Returns the workload that a key authenticates. Raises Refusal(BAD_CREDENTIAL)."""
        match = _KEY.fullmatch(text)
        record = self._records.get(match[1]) if match else None
        # An unknown id costs the same HMAC as a known one, so timing does not reveal which ids exist.
        held = hmac.compare_digest(digest_of(text, self._pepper), record.digest if record else _NO_DIGEST)
        if record is None or not held:
            raise bad_credential("the API key is not valid", CredentialFault.UNKNOWN)
        if not record.lives(now):
            raise bad_credential("the API key has expired", CredentialFault.EXPIRED)
        return self._workloads[record.id]

    def ending(self) -> Iterator[tuple[str, str, float]]:
        """Yields the keys that expire: id, principal, and when (seconds since the epoch)."""
        for record in self._records.values():
            if record.expires_at is not None:
                yield record.id, record.principal, record.expires_at

    def knows(self, key_id: str, principal: str, now: float) -> bool:
        record = self._records.get(key_id)
        return record is not None and record.principal == principal and record.lives(now)


def _workload(record: KeyRecord) -> Workload:
    principal = Principal(record.principal, ISSUER, frozenset(), record.scopes)
    return Workload(principal, Credential("api_key", ISSUER, record.id), record.expires_at)


def digest_of(text: str, pepper: bytes) -> bytes:
    return hmac.digest(pepper, _DOMAIN + text.encode("utf-8", "surrogateescape"), "sha256")


def records_of(document: Document, now: float) -> tuple[KeyRecord, ...]:
    """Returns the records of a parsed keys.yaml. Raises SettingsError, also for a principal with too many live keys."""
    records = tuple(
        KeyRecord(
            entry.id,
            entry.principal,
            bytes.fromhex(entry.hash.removeprefix(HASH_PREFIX)),
            seconds_of(entry.expires_at) if entry.expires_at is not None else None,
            frozenset(entry.scopes),
        )
        for entry in document.validate(KeyFile).keys
    )
    faults = list(_set_faults(document, records, now))
    if faults:
        document.refuse(faults)
    return records


def read_pepper(path: Path) -> bytes:
    """Reads the pepper. Raises SettingsError, also for a short or trivial one, which would not protect the keys."""
    return read_secret(path, "ours").encode()


def _set_faults(document: Document, records: tuple[KeyRecord, ...], now: float) -> Iterable[Fault]:
    ids: set[str] = set()
    live: Counter[str] = Counter()
    for place, record in enumerate(records):
        if record.id in ids:
            yield document.fault(("keys", place, "id"), f"key id {record.id} appears twice", "S313")
        ids.add(record.id)
        live[record.principal] += record.lives(now)
        if record.lives(now) and live[record.principal] > MAX_LIVE_KEYS:
            message = f"{record.principal} has more than {MAX_LIVE_KEYS} valid keys"
            yield document.fault(("keys", place, "principal"), message, "S314", "revoke or expire an older one")

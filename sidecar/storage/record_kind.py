"""Describes one kind of record: its encoding and where it is stored."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Annotated, Any, Final, Generic, Self, get_args, get_origin, get_type_hints

import orjson
from pydantic import ConfigDict, Field, TypeAdapter

from sidecar.storage.record_store import R, UnreadableRecord
from sidecar.storage.sealing import AesSeal
from sidecar.vocabulary import Caller, Credential, CredentialKind, Principal

MAX_ID_CHARS: Final = 64
MAX_TOLD: Final = 1_000
FINITE: Final = ConfigDict(allow_inf_nan=False)  # NaN is neither earlier nor later than any time
_Chain = Annotated[list[tuple[str, str, frozenset[str], frozenset[str]]], Field(min_length=1)]
_CALLER: Final = TypeAdapter(
    tuple[_Chain, list[tuple[CredentialKind, str, str, str]], float | None], config={**FINITE, "defer_build": True}
)

log = logging.getLogger("sidecar.storage")


def plain_caller(caller: Caller) -> list[Any]:
    """Returns the caller as JSON-compatible lists, strings and numbers, without the token."""
    chain = [[one.name, one.issuer, sorted(one.roles), sorted(one.scopes)] for one in caller.chain]
    shown = [[one.kind, one.issuer, one.key_id, one.trust] for one in caller.credentials]
    return [chain, shown, caller.expires_at]


def caller_from(plain: Any) -> Caller:
    """Restores a caller from `plain_caller`'s encoding. Raises ValueError if the data is not a caller."""
    chain, credentials, expires_at = _CALLER.validate_python(plain)
    return Caller(tuple(Principal(*one) for one in chain), tuple(Credential(*one) for one in credentials), expires_at)


@dataclass(frozen=True, slots=True)
class RecordCodec(Generic[R]):
    """Encodes and decodes a record. `decode` raises ValueError, TypeError or LookupError for data that is damaged or
    newer; every field of a decoded record has been checked."""

    encode: Callable[[R], bytes]
    decode: Callable[[bytes | str], R]


def record_codec(kind: type[R]) -> RecordCodec[R]:
    """Returns the encoding of a NamedTuple as JSON by member names. `decode` ignores members that a newer version
    added. Its checks are built when the first record is read."""

    @cache
    def checks() -> tuple[Callable[[Any], R], Callable[[Any], Any]]:
        return TypeAdapter(kind, config=FINITE).validate_python, _reader(kind)

    names: tuple[str, ...] = kind._fields  # type: ignore[attr-defined]

    def encode(record: R) -> bytes:
        plain = dict(zip(names, record, strict=True))  # type: ignore[call-overload]
        return orjson.dumps(plain, default=_plain, option=orjson.OPT_PASSTHROUGH_DATACLASS)

    def decode(body: bytes | str) -> R:
        check, known_members = checks()
        return check(known_members(orjson.loads(body)))

    return RecordCodec(encode, decode)


def _plain(part: Any) -> Any:
    if isinstance(part, tuple):
        return part._asdict()  # type: ignore[attr-defined]
    return plain_caller(part) if isinstance(part, Caller) else part.model_dump(mode="json", exclude_unset=True)


def _reader(kind: Any) -> Any:
    """Returns a function that removes unknown members from a stored value of this type, and restores callers in it;
    None if the value is used unchanged."""
    if kind is Caller:
        return caller_from
    if not hasattr(kind, "_fields"):
        inner = next(filter(None, map(_reader, get_args(kind))), None)
        if inner is None:
            return None
        if get_origin(kind) is tuple:
            return lambda plain: [inner(one) for one in plain]
        return lambda plain: None if plain is None else inner(plain)
    readers = {name: _reader(hint) for name, hint in get_type_hints(kind).items()}
    inner_readers = {name: reader for name, reader in readers.items() if reader is not None}

    def read(plain: Any) -> Any:
        known = {name: plain[name] for name in readers if name in plain}
        for name, reader in inner_readers.items():
            if name in known:
                known[name] = reader(known[name])
        return known

    return read


@dataclass(frozen=True, slots=True)
class RecordKind(Generic[R]):
    """One kind of record. `what` names one in a sentence; `key` and `codec` are a storage format that neighbouring
    versions share. An unfinished record of a kind that `is_work` may be held, and does not expire. `told` are hashes of
    the unreadable records that are already logged."""

    what: str
    codec: RecordCodec[R]
    key: str
    is_work: bool = True
    told: set[int] = field(default_factory=set, compare=False, repr=False)

    def sealed(self, seal: Callable[[], AesSeal]) -> Self:
        """Returns the same kind with bodies that only holders of the key can read. `seal` is called on first use."""
        about = self.key.encode()
        return replace(
            self,
            codec=RecordCodec(
                lambda record: seal().sealed_text(self.codec.encode(record), about),
                lambda body: self.codec.decode(seal().opened_text(body, about)),
            ),
        )

    def read(self, body: bytes | str | None, record_id: str | None = None) -> R:
        """Decodes a stored record. Raises UnreadableRecord, also for a record with another id."""
        try:
            record = self.codec.decode(body or b"")
            if record_id is None or record.id == record_id:
                return record
        except (ValueError, TypeError, LookupError):
            pass
        raise UnreadableRecord(f"{self.what} cannot be read: it was damaged, or another version wrote it")

    def readable(self, bodies: Iterable[bytes | str | None]) -> list[R]:
        """Decodes the readable records. Each of the others is logged when it is first read, not every time."""
        found = []
        for body in bodies:
            try:
                found.append(self.read(body))
            except UnreadableRecord as unreadable:
                if len(self.told) >= MAX_TOLD:
                    self.told.clear()
                if (digest := hash(body)) not in self.told:
                    self.told.add(digest)
                    log.warning("%s", unreadable, extra={"id": _id_in(body)})
        return found


def _id_in(body: bytes | str | None) -> str | None:
    """Returns the record's id for the log if the body is JSON and has one, otherwise None."""
    try:
        return str(orjson.loads(body or b"")["id"])[:MAX_ID_CHARS]
    except (ValueError, TypeError, LookupError):
        return None

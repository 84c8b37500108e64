"""Opens the audit sink in the settings.

file      file_sink.py                   read back at start: the chain continues
redis     carrier.py, redis_carrier.py   likewise
stdout    carrier.py, stdout_carrier.py  cannot be read back: the chain starts with the process
otlp      carrier.py, otlp_carrier.py    likewise
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sidecar import __version__
from sidecar.audit.carrier import Carrier, ChainedCarrier
from sidecar.audit.chain import BEGINNING
from sidecar.audit.digest import AuditKey
from sidecar.audit.file_sink import AuditFile, FoundEnd
from sidecar.audit.rotation import ChainSink
from sidecar.audit.stdout_carrier import StdoutCarrier
from sidecar.errors import SettingsError, fault_in
from sidecar.http.client import DIRECT, Egress, parse_origin
from sidecar.http.tls import read_authorities
from sidecar.settings.audit import OtlpSink
from sidecar.settings.secrets import read_secret
from sidecar.settings.sidecar_file import Settings

if TYPE_CHECKING:
    from sidecar.audit.otlp_carrier import OtlpCarrier
    from sidecar.audit.redis_carrier import RedisCarrier


def open_sink(
    settings: Settings, key: AuditKey, instance: str, older: Sequence[AuditKey] = (), egress: Egress = DIRECT
) -> tuple[ChainSink, FoundEnd]:
    """Opens the configured sink; also returns the state that was found in it. `older` are previous keys. Raises
    SettingsError."""
    chosen, path = settings.audit, settings.audit_path
    if chosen.sink != "file":
        carrier, found = _carrier(settings, chosen.sink, key, instance, older, egress)
        return ChainedCarrier(carrier, found.end), found
    file = AuditFile.open(path, key, older=older, to_disk=chosen.durability == "disk")
    return file, file.found


def place_of(settings: Settings) -> str:
    """The name of the configured sink for operators."""
    chosen = settings.audit
    places = {
        "file": str(settings.audit_path),
        "stdout": "standard output",
        "redis": f"stream {stream_of(settings, settings.server.worker)}",
        "otlp": "" if chosen.otlp is None else chosen.otlp.url,
    }
    return places[chosen.sink]


def stream_of(settings: Settings, worker: int) -> str:
    """The key of a log's stream: each worker has its own."""
    chosen = settings.audit.redis
    named = chosen.stream if chosen is not None else None
    return (named or f"sidecar:audit:{platform.node()}") + (f":{worker}" if worker else "")


def reading_stream(settings: Settings, worker: int) -> RedisCarrier:
    """Opens the stream of a log for reading, without becoming its writer. Raises SettingsError."""
    if settings.audit_store.is_memory:
        raise SettingsError(
            [fault_in("store.url", "no Redis or Valkey is configured for the audit stream", code="A120")]
        )
    return _stream(settings, worker, AuditKey.from_secret(b""))


def _carrier(
    settings: Settings, name: str, key: AuditKey, instance: str, older: Sequence[AuditKey], egress: Egress
) -> tuple[Carrier, FoundEnd]:
    chosen = settings.audit
    if name == "redis":
        if settings.audit_store.place.kind not in ("redis", "unix"):
            hint = "write audit: {redis: {store: {url: redis://…}}}"
            raise SettingsError(
                [fault_in("audit.redis", "the audit stream needs a single server", code="A120", hint=hint)]
            )
        stream = _stream(settings, settings.server.worker, key, older)
        return stream, stream.take()
    if name == "otlp":
        assert chosen.otlp is not None
        return _otlp(chosen.otlp, instance, egress), FoundEnd(BEGINNING, 0)
    return StdoutCarrier.take(), FoundEnd(BEGINNING, 0)


def _stream(settings: Settings, worker: int, key: AuditKey, older: Sequence[AuditKey] = ()) -> RedisCarrier:
    from sidecar.audit.redis_carrier import RedisCarrier, connector_to

    chosen = settings.audit.redis
    most = None if chosen is None else chosen.max_length
    place, stream = connector_to(settings.audit_store), stream_of(settings, worker)
    return RedisCarrier(place, stream, key, older=older, max_length=most)


def _otlp(chosen: OtlpSink, instance: str, egress: Egress) -> OtlpCarrier:
    from sidecar.audit.otlp_carrier import OtlpCarrier

    try:
        origin = parse_origin(chosen.url)
    except ValueError as error:
        raise SettingsError([fault_in("audit.otlp.url", str(error), code="A120")]) from None

    def headers() -> Mapping[str, str]:
        return {name: read_secret(path, "theirs") for name, path in chosen.header_paths.items()}

    headers()
    authorities = "" if chosen.ca_path is None else read_authorities(chosen.ca_path)
    resource = {
        "service.name": "sidecar",
        "service.version": __version__,
        "service.instance.id": instance,
        "host.name": platform.node(),
    }
    return OtlpCarrier(origin, resource, headers=headers, egress=egress, authorities=authorities)

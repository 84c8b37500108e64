"""Settings of the audit log."""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from sidecar.settings.addresses import is_loopback_host
from sidecar.settings.credentials import RESERVED_HEADERS
from sidecar.settings.field_types import (
    SLUG,
    Bytes,
    Count,
    HeaderName,
    HttpUrl,
    Many,
    PathField,
    Seconds,
    Section,
    Word,
    named,
)
from sidecar.settings.store import StoreSettings
from sidecar.settings.validation_errors import Finding, reject

WRONG = "S150"
GOES_ON = frozenset({"file", "redis"})  # sinks whose chain continues after a restart


def _otlp_url(text: str) -> str:
    if urlsplit(text).path in ("", "/"):
        reject("the path is missing", hint="write the whole address: http://127.0.0.1:4318/v1/logs")
    return text


class RedisSink(Section):
    """A stream in Redis or Valkey."""

    store: StoreSettings | None = None
    """Redis or Valkey that holds the stream, with the keys of `store`. Default: the server of `store`. Sentinel and
    Cluster are not supported."""
    stream: Word | None = None
    """Key of the stream. Each sidecar needs its own. Default: `sidecar:audit:<host name>`."""
    max_length: Annotated[int, Field(ge=1000, le=10**12)] | None = None
    """Approximate number of the newest lines to retain. By default, all are retained."""


class OtlpSink(Section):
    """A receiver of OpenTelemetry logs over HTTP."""

    url: Annotated[HttpUrl, AfterValidator(_otlp_url)]
    """Full URL of the receiver, usually `…:4318/v1/logs`."""
    header_paths: Mapping[HeaderName, PathField] = {}
    """Headers, and the file with the value of each. Requires https, or a receiver on this machine."""
    ca_path: PathField | None = None
    """PEM file with the authorities to trust for https, instead of those of the system."""

    def _faults(self) -> Iterator[Finding]:
        parts = urlsplit(self.url)
        if self.header_paths and parts.scheme == "http" and not is_loopback_host(parts.hostname or ""):
            what = "the values of these headers would be sent unencrypted"
            yield Finding(what, WRONG, "use https://", ("url",))
        for name in self.header_paths:
            if name.lower() in RESERVED_HEADERS:
                what, at = f"{name} is set by the sidecar", ("header_paths", name)
                yield Finding(what, WRONG, "remove it", at, on_key=True)


class CheckpointSettings(Section):
    """Signed statements of where the log ends, in the log itself. The sidecar always writes one when it stops."""

    every_s: Seconds = 300.0
    """Interval between checkpoints, if there are new records."""
    to: Many[Literal["stdout", "store"]] = ()
    """Where checkpoints are also published, out of reach of the host of the log: standard output, the store."""
    known_path: PathField | None = None
    """File with published checkpoints of this log, in addition to those in the store. If the log ends before one of
    them, the sidecar reports it at its start."""


class RotationSettings(Section):
    """Rotation of the log. A rotated file keeps its chain; `audit verify` reads all files of a folder."""

    max_bytes: Bytes | None = None
    """Rotate the file when the records, or the stored results, reach this size. By default, the file grows."""
    every_s: Seconds | None = None
    """Rotate the file when its first record reaches this age."""
    keep: Count | None = None
    """Maximum number of rotated files. The deletion of an older one is recorded first. By default, all are retained."""


_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
_SECRET_WORDS = frozenset({"token", "cookie", "otp", "pin", "jwt", "pwd"})
_SECRET_PART = re.compile(r"passw(or)?d|passphrase|secret|(api|access|private)key|authorization|credential")


def _no_secret(pointer: str) -> str:
    for name in pointer.split("/"):
        words = [word.lower() for word in _WORD.findall(name)]
        if _SECRET_PART.search("".join(words)) or not _SECRET_WORDS.isdisjoint(words):
            reject(
                f"{name} looks like the name of a credential", WRONG, "credentials are never recorded: choose another"
            )
    return pointer


_CLEAR_OBJECT = rf"(tool|prompt):{SLUG}/[A-Za-z0-9_.\-/]{{1,128}}"
ClearObject = Annotated[str, named(_CLEAR_OBJECT, "exact tool or prompt", "such as tool:github/search_code")]
ClearPointer = Annotated[
    str,
    Field(max_length=256),
    named(r"(/([^~/*]|~[01])+)+", "JSON Pointer", "such as /repo or /options/limit"),
    AfterValidator(_no_secret),
]
ClearPointers = Annotated[Many[ClearPointer], Field(min_length=1, max_length=8)]


class AuditSettings(Section):
    """The audit log."""

    sink: Literal["file", "stdout", "redis", "otlp"] = "file"
    """Where records are written: a `file`; `stdout`, for containers; `redis`, a stream; `otlp`, a receiver of logs."""
    durability: Literal["strict", "disk", "best_effort"] = "strict"
    """`strict`: the operating system or the sink has the record before the next step. `disk`: the disk has it too, for
    a file. `best_effort`: no call waits, and lost records are only counted."""
    path: PathField | None = None
    """File of the log. Default: `audit/audit.jsonl` in the data folder."""
    key_path: PathField | None = None
    """File with the key of the hashes. Default: a key that is created in the data folder at the first start."""
    previous_key_paths: Many[PathField] = ()
    """Files with earlier keys, for older records. `keys/audit.previous.key` in the data folder is always included."""
    clear_arguments: Annotated[dict[ClearObject, ClearPointers], Field(max_length=64)] = Field(default_factory=dict)
    """Arguments that are recorded in clear, for `policy replay`: up to 8 JSON Pointers for each of up to 64 exact tools
    or prompts. Only short texts, numbers, booleans and null, and no value that looks like a credential."""
    checkpoint_key_path: PathField | None = None
    """PEM file with the Ed25519 key that signs checkpoints. Default: a key that is created in the data folder."""
    checkpoints: CheckpointSettings = Field(default_factory=CheckpointSettings)
    rotate: RotationSettings = Field(default_factory=RotationSettings)
    redis: RedisSink | None = None
    """Stream for `sink: redis`."""
    otlp: OtlpSink | None = None
    """Receiver for `sink: otlp`."""

    def _faults(self) -> Iterator[Finding]:
        if self.sink != "file":
            if self.path is not None:
                yield Finding(f"path has no effect with sink: {self.sink}", WRONG, "remove it", ("path",), on_key=True)
            if self.durability == "disk":
                hint = "write strict, which waits until the sink acknowledges the record"
                yield Finding(f"durability: disk applies to a file, not to {self.sink}", WRONG, hint, ("durability",))
            if self.rotate != RotationSettings():
                yield Finding("rotation applies only to sink: file", WRONG, "remove it", ("rotate",), on_key=True)
        if self.sink == "stdout" and "stdout" in self.checkpoints.to:
            loc = ("checkpoints", "to")
            yield Finding("standard output already contains the checkpoints, as records", WRONG, "remove it", loc)
        if self.checkpoints.known_path is not None and self.sink not in GOES_ON:
            loc = ("checkpoints", "known_path")
            yield Finding(
                f"with sink: {self.sink}, each process begins its own chain", WRONG, "remove it", loc, on_key=True
            )
        for name in ("redis", "otlp"):
            if getattr(self, name) is not None and name != self.sink:
                yield Finding("this sink is not in use", WRONG, f"write sink: {name}", (name,), on_key=True)
        if self.sink == "otlp" and self.otlp is None:
            yield Finding("sink: otlp needs a receiver", WRONG, "write otlp: {url: ...}", ("sink",))

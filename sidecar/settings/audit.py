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
    """Where it is, with what `store` has; by default the store of limits. Neither Sentinel nor Cluster."""
    stream: Word | None = None
    """Its key. Each sidecar needs its own; by default `sidecar:audit:<host name>`."""
    max_length: Annotated[int, Field(ge=1000, le=10**12)] | None = None
    """Approximately how many of the newest lines to retain; by default all."""


class OtlpSink(Section):
    """A receiver of OpenTelemetry logs over HTTP."""

    url: Annotated[HttpUrl, AfterValidator(_otlp_url)]
    """Its whole address, usually `…:4318/v1/logs`."""
    header_paths: Mapping[HeaderName, PathField] = {}
    """Headers, and the file with the value of each; over https, or on this machine."""
    ca_path: PathField | None = None
    """The authorities that sign its certificate; without it, those of the machine."""

    def _faults(self) -> Iterator[Finding]:
        parts = urlsplit(self.url)
        if self.header_paths and parts.scheme == "http" and not is_loopback_host(parts.hostname or ""):
            what = "what these headers hold would cross the network in the clear"
            yield Finding(what, WRONG, "use https://", ("url",))
        for name in self.header_paths:
            if name.lower() in RESERVED_HEADERS:
                what, at = f"{name} is written by the sidecar itself", ("header_paths", name)
                yield Finding(what, WRONG, "remove it", at, on_key=True)


class CheckpointSettings(Section):
    """Signed statements of where the log ended, in the log itself; at a stop there is always one."""

    every_s: Seconds = 300.0
    """Interval between checkpoints, if there are new records."""
    to: Many[Literal["stdout", "store"]] = ()
    """Where they are published besides: standard output, the store: out of reach of the log's own host."""
    known_path: PathField | None = None
    """A file of this log's published checkpoints, in addition to those in the store. A start with a log that is behind
    them reports it."""


class RotationSettings(Section):
    """A file that is set aside keeps its chain; `audit verify` reads all of a folder."""

    max_bytes: Bytes | None = None
    """Rotate once the file of records, or of stored results, reaches this size. By default it grows."""
    every_s: Seconds | None = None
    """Rotate the file once its first record reaches this age."""
    keep: Count | None = None
    """How many rotated files to retain. The deletion of an older one is recorded first. By default all are retained."""


_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
_SECRET_WORDS = frozenset({"token", "cookie", "otp", "pin", "jwt", "pwd"})
_SECRET_PART = re.compile(r"passw(or)?d|passphrase|secret|(api|access|private)key|authorization|credential")


def _no_secret(pointer: str) -> str:
    for name in pointer.split("/"):
        words = [word.lower() for word in _WORD.findall(name)]
        if _SECRET_PART.search("".join(words)) or not _SECRET_WORDS.isdisjoint(words):
            reject(f"{name} sounds like a credential", WRONG, "none is recorded: choose another")
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
    """The audit trail."""

    sink: Literal["file", "stdout", "redis", "otlp"] = "file"
    """Where the evidence is: a `file`; `stdout`, for containers; `redis`, a stream; `otlp`, a receiver of logs."""
    durability: Literal["strict", "disk", "best_effort"] = "strict"
    """`strict`: passed to the operating system, or acknowledged by the sink, before the next step; `disk`: on the disk
    too, for a file; `best_effort`: no call waits, and a loss is only counted."""
    path: PathField | None = None
    """The file; by default audit/audit.jsonl in the data folder."""
    key_path: PathField | None = None
    """File with the key of the hashes; by default one is made in the data folder at first start."""
    previous_key_paths: Many[PathField] = ()
    """Files with earlier keys, for records of their time; `keys/audit.previous.key` in the data folder is one too."""
    clear_arguments: Annotated[dict[ClearObject, ClearPointers], Field(max_length=64)] = Field(default_factory=dict)
    """Arguments recorded in clear, for `policy replay`: up to 8 JSON Pointers for each of 64 exact tools or prompts.
    Only short texts, numbers, booleans and null, and nothing that looks like a credential."""
    checkpoint_key_path: PathField | None = None
    """PEM file with the Ed25519 key that signs checkpoints; by default one is made in the data folder."""
    checkpoints: CheckpointSettings = Field(default_factory=CheckpointSettings)
    rotate: RotationSettings = Field(default_factory=RotationSettings)
    redis: RedisSink | None = None
    """The stream of `redis`."""
    otlp: OtlpSink | None = None
    """The receiver of `otlp`."""

    def _faults(self) -> Iterator[Finding]:
        if self.sink != "file":
            if self.path is not None:
                yield Finding(f"there is no file with sink: {self.sink}", WRONG, "remove it", ("path",), on_key=True)
            if self.durability == "disk":
                hint = "strict waits until the sink has acknowledged it"
                yield Finding(f"durability: disk is for a file, not for {self.sink}", WRONG, hint, ("durability",))
            if self.rotate != RotationSettings():
                yield Finding("only a file is rotated", WRONG, "remove it", ("rotate",), on_key=True)
        if self.sink == "stdout" and "stdout" in self.checkpoints.to:
            hint = "remove it: the records there have their checkpoints among them"
            yield Finding("standard output holds the records only", WRONG, hint, ("checkpoints", "to"))
        if self.checkpoints.known_path is not None and self.sink not in GOES_ON:
            loc = ("checkpoints", "known_path")
            yield Finding(f"with sink: {self.sink} each process begins a chain", WRONG, "remove it", loc, on_key=True)
        for name in ("redis", "otlp"):
            if getattr(self, name) is not None and name != self.sink:
                yield Finding("no record goes to this sink", WRONG, f"write sink: {name}", (name,), on_key=True)
        if self.sink == "otlp" and self.otlp is None:
            yield Finding("the receiver has no address", WRONG, "write otlp: {url: ...}", ("sink",))

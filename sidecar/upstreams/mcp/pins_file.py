r"""Reads and writes policies/pins.yaml.

version: 1
servers:
  github:
    "search_code":
      digest: sha256:3f0c…
      pinned_at: 2026-11-28T04:00:00Z
      pinned_by: "alice"
      definition: |-
        {
          "description": "Search.",
          …

The file holds the definition itself, so that a pull request shows its changes. It is JSON in which hidden characters
are escaped as `\u200b`; the digest must match it and its spelling must be the one that this module writes, so that a
reviewer reads exactly what is pinned. `sidecar mcp tools SERVER --pin` writes the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Final, Literal

import orjson
from pydantic import AfterValidator, Field

from sidecar.errors import PolicyError
from sidecar.protocols.hidden_characters import revealed
from sidecar.protocols.mcp.messages import NAME
from sidecar.settings.field_types import Section, Slug, Word, named
from sidecar.settings.timestamps import seconds_of
from sidecar.settings.validation_errors import Finding, reject
from sidecar.settings.yaml_document import is_written, read_bytes, read_document
from sidecar.upstreams.mcp.pins import NO_PINS, Pin, Pins, digest_of, pin_of, pinned_part

PINS_FILE: Final = "pins.yaml"
MAX_PINS_BYTES: Final = 32 * 2**20
HEAD: Final = """\
# The tools that were approved, by server. Written by `sidecar mcp tools SERVER --pin`.
version: 1
servers:
"""
_ALGORITHM: Final = "sha256:"
_BY_COMMAND: Final = "sidecar mcp tools SERVER --pin writes this file"


def load_pins(path: Path, known: Pins = NO_PINS) -> Pins:
    """Reads pins.yaml; without the file nothing is pinned. An unchanged file gives `known`: a thousand definitions take
    a third of a second. Raises PolicyError with every fault and its position."""
    if not is_written(path, error=PolicyError):
        return NO_PINS
    content = read_bytes(path, error=PolicyError, max_bytes=MAX_PINS_BYTES, inside=path.parent)
    source = sha256(content).hexdigest()
    if source == known.source:
        return known
    file = read_document(path, text=content, error=PolicyError, max_bytes=MAX_PINS_BYTES).validate(PinsFile)
    pins = {server: {tool: entry.pin() for tool, entry in tools.items()} for server, tools in file.servers.items()}
    return Pins(pins, source)


def file_with(path: Path, server: str, pins: Mapping[str, Pin]) -> str:
    """Returns the text of pins.yaml with these pins in place of the server's old ones. Raises PolicyError like
    `load_pins`."""
    return file_of({**load_pins(path).servers, server: pins})


def file_of(servers: Mapping[str, Mapping[str, Pin]]) -> str:
    """Returns the text of pins.yaml with the pins of these servers."""
    return HEAD + "".join(_server_block(name, servers[name]) for name in servers)


def readable(value: object) -> str:
    """Returns a JSON value for review: keys in order, one item per line, hidden characters escaped."""
    lines = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False).split("\n")
    return "\n".join(map(revealed, lines))


def _digest(text: str) -> str:
    digits = text.removeprefix(_ALGORITHM)
    if digits == text or len(digits) != 64 or set(digits) - set("0123456789abcdef"):
        reject("this is not a digest", hint=f"{_ALGORITHM} and 64 hexadecimal digits; {_BY_COMMAND}")
    return digits


def _moment(text: str) -> str:
    try:
        seconds_of(text)
    except ValueError:
        reject("this is not a time", hint="write, for example, 2027-03-31T00:00:00Z")
    return text


class PinEntry(Section):
    """The approved description of a tool."""

    digest: Annotated[str, AfterValidator(_digest)]
    """SHA-256 of the definition: `sha256:` and 64 hexadecimal digits."""
    pinned_at: Annotated[str, AfterValidator(_moment)]
    """Time of the approval (RFC 3339)."""
    pinned_by: Word
    """The person who approved the description."""
    definition: str
    """The description as JSON text. Hidden characters are escaped."""

    def _faults(self) -> Iterator[Finding]:
        try:
            definition = orjson.loads(self.definition)
        except orjson.JSONDecodeError:
            definition = None
        if not isinstance(definition, dict) or pinned_part(definition) != definition:
            yield Finding("this is not a definition of a tool", hint=_BY_COMMAND, at=("definition",))
        elif digest_of(definition) != self.digest:
            yield Finding("the digest is not that of the definition below it", hint=_BY_COMMAND, at=("digest",))
        elif readable(definition) != self.definition:  # a duplicate key, for example: readers may differ on it
            yield Finding("the definition was not written by the sidecar", hint=_BY_COMMAND, at=("definition",))

    def pin(self) -> Pin:
        pin = pin_of(orjson.loads(self.definition), at=self.pinned_at, by=self.pinned_by)
        assert pin is not None  # its digest was compared
        return pin


class PinsFile(Section):
    """The pins of tools. `sidecar mcp tools SERVER --pin` writes this file."""

    version: Literal[1]
    """Version of this file format."""
    servers: dict[Slug, dict[Annotated[str, named(NAME.pattern, "tool's name", _BY_COMMAND)], PinEntry]] = Field(
        default_factory=dict
    )
    """Pins of tools, by server and tool."""

    def _faults(self) -> Iterator[Finding]:
        for server, tools in self.servers.items():
            for tool, entry in tools.items():
                if orjson.loads(entry.definition).get("name") != tool:
                    at = ("servers", server, tool, "definition")
                    yield Finding("this is the definition of another tool", hint=_BY_COMMAND, at=at)


def _server_block(server: str, pins: Mapping[str, Pin]) -> str:
    if not pins:
        return f"  {server}: {{}}\n"
    return f"  {server}:\n" + "".join(_tool_block(tool, pins[tool]) for tool in sorted(pins))


def _tool_block(tool: str, pin: Pin) -> str:
    lines = readable(pin.definition).replace("\n", "\n" + 8 * " ")
    return (
        f'    "{tool}":\n'
        f"      digest: {_ALGORITHM}{pin.digest}\n"
        f"      pinned_at: {pin.pinned_at}\n"
        f"      pinned_by: {json.dumps(pin.pinned_by)}\n"
        f"      definition: |-\n"
        f"        {lines}\n"
    )

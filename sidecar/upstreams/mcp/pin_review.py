"""Compares the tools of a server with their pins, for the person who approves them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from sidecar.upstreams.mcp.pins import Pin, differing
from sidecar.upstreams.mcp.pins_file import readable
from sidecar.upstreams.mcp.tools import Tool

PINNED: Final = "pinned"
NEW: Final = "new"
CHANGED: Final = "changed"
GONE: Final = "gone"
PinState = Literal["pinned", "new", "changed", "gone"]


@dataclass(frozen=True, slots=True)
class ReviewedTool:
    """One tool that is listed or pinned. `tool` is None if it is not listed any more, `pin` is None if it is new."""

    name: str
    status: PinState
    tool: Tool | None
    pin: Pin | None

    @property
    def definition(self) -> Mapping[str, Any]:
        """The definition that a pin would hold; empty if the tool is not listed, or cannot be pinned."""
        return {} if self.tool is None else self.tool.pinnable

    @property
    def changed(self) -> tuple[str, ...]:
        """The members that differ, in the order of a definition."""
        if self.status != CHANGED or self.pin is None or self.tool is None:
            return ()
        return differing(self.pin.members, self.tool.definition.members)

    def plain(self) -> dict[str, Any]:
        tool, pin = self.tool, self.pin
        return {
            "name": self.name,
            "status": self.status,
            "digest": tool and (tool.definition.digest or None),
            "pinned_digest": pin and pin.digest,
            "pinned_at": pin and pin.pinned_at,
            "pinned_by": pin and pin.pinned_by,
            "changed": list(self.changed),
            "quarantined": tool and (tool.quarantine_reason or None),
            "hidden_text": list(tool.hidden) if tool else [],
            "definition": self.definition,
            "pinned_definition": pin and pin.definition,
        }


def reviewed(listed: Mapping[str, Tool], pinned: Mapping[str, Pin]) -> list[ReviewedTool]:
    """Returns every tool that is listed or pinned, sorted by name."""
    return [review_of(name, listed.get(name), pinned.get(name)) for name in sorted({*listed, *pinned})]


def review_of(name: str, tool: Tool | None, pin: Pin | None) -> ReviewedTool:
    return ReviewedTool(name, _status(tool, pin), tool, pin)


def _status(tool: Tool | None, pin: Pin | None) -> PinState:
    if tool is None:
        return GONE
    if pin is None:
        return NEW
    return PINNED if pin.digest == tool.definition.digest else CHANGED


def approved(
    pinned: Mapping[str, Pin], chosen: Collection[ReviewedTool], *, at: str, by: str
) -> tuple[dict[str, Pin], dict[str, str]]:
    """Returns the server's pins, with those of the chosen tools as listed by the server, and why tools cannot be
    pinned, by name. A chosen tool that is not listed any more, or cannot be pinned, loses its pin."""
    pins, unfit = dict(pinned), dict[str, str]()
    for one in chosen:
        if one.status == PINNED:
            continue
        pins.pop(one.name, None)
        if one.tool is None:
            continue
        if definition := one.definition:
            known = one.tool.definition
            pins[one.name] = Pin(known.digest, known.members, definition, at, by)
        else:
            unfit[one.name] = one.tool.quarantine_reason or "it is not plain JSON"
    return pins, unfit


def member_lines(definition: Mapping[str, Any], member: str) -> list[str]:
    """Returns one member, in any of its spellings, as lines of JSON. Each line of a text is quoted, so that it cannot
    imitate other output."""
    found = {key: value for key, value in definition.items() if key.casefold() == member.casefold()}
    texts = (_lines(value) if key == member else _lines({key: value}) for key, value in sorted(found.items()))
    return [line for lines in texts for line in lines]


def _lines(value: object) -> list[str]:
    if isinstance(value, str):
        return [readable(line) for line in value.split("\n")]
    return readable(value).split("\n")

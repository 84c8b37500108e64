"""Watches for tools that differ from their pins and reports them.

Compares whenever a server's list is refreshed or new pins come into force, and reports each changed definition once: a
log line, a `pin-drift` audit record, and an entry in `/status` and in metrics until it is resolved. Nothing is refused
here: lists and calls are filtered by the digests in the snapshot.

Pinned tools are compared with their pins; the tools of a server without pins with the first list that this process
read.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from sidecar.errors import ConfigError
from sidecar.gateway.snapshot import Live, Service, Snapshot
from sidecar.observability.metrics import Metrics
from sidecar.upstreams.mcp.catalogue import ToolCatalogue
from sidecar.upstreams.mcp.pins import Defined, Definition, Drift, Mode, Pins, drift_between
from sidecar.vocabulary import Witness

# Bounds of the reports in the log and the audit, because a server may change its tools at any rate.
MAX_TOLD: Final = 20
TELL_EVERY_S: Final = 5.0
MAX_DRIFTS: Final = 4_000  # for one server: twice the size of the largest list

log = logging.getLogger("sidecar.app.tool_drift")


@dataclass(slots=True)
class _Watched:
    """The state of one server: `first` are the definitions of its first list, `told` the reported ones, by tool."""

    catalogue: ToolCatalogue
    lists: int = -1
    pins: Pins | None = None
    first: Mapping[str, Definition] | None = None
    drifts: dict[str, Drift] = field(default_factory=dict)
    told: dict[str, Drift] = field(default_factory=dict)
    hidden: frozenset[str] = frozenset()
    next_at: float = 0.0


@dataclass(slots=True)
class ToolDrift:
    """Compares the listed tools with the approved ones. `clock_mono` returns monotonic seconds."""

    live: Live
    metrics: Metrics
    witness: Witness
    clock_mono: Callable[[], float]
    _watched: dict[str, _Watched] = field(default_factory=dict)

    async def look(self) -> None:
        """Compares and reports. Cheap if nothing changed."""
        now = self.live.current
        for name in self._watched.keys() - now.services.keys():
            del self._watched[name]
        for service in now.services.values():
            watched = self._watched.get(service.name)
            if watched is None or watched.catalogue is not service.catalogue:
                watched = self._watched[service.name] = _Watched(service.catalogue)
            await self._look_at(service, watched, now)

    def summary(self, service: Service) -> Mapping[str, Any]:
        """The server's mode and its differences, for operators."""
        now, watched = self.live.current, self._watched.get(service.name)
        mode, drifts = _mode(now, service), {} if watched is None else watched.drifts
        pinned = now.pins.servers.get(service.name)
        tools = service.catalogue.tools
        return {
            "pins": mode,
            "pinned": None if pinned is None else len(pinned),
            "changed": {tool: list(drift.members) for tool, drift in drifts.items() if drift.old},
            "new": [tool for tool, drift in drifts.items() if not drift.old],
            "gone": sorted(set(pinned or ()) - set(tools)) if service.catalogue.lists else [],
            "hidden_text": {tool.name: list(tool.hidden) for tool in tools.values() if tool.hidden},
        }

    async def _look_at(self, service: Service, watched: _Watched, now: Snapshot) -> None:
        catalogue, seen = service.catalogue, service.sightings.take()
        if catalogue.lists and (watched.lists != catalogue.lists or watched.pins is not now.pins):
            watched.lists, watched.pins = catalogue.lists, now.pins
            listed = {name: tool.definition for name, tool in catalogue.tools.items()}
            watched.first = listed if watched.first is None else watched.first
            watched.drifts = dict(_drifts(listed, _reference(watched, service, now)))
            hidden = frozenset(name for name, tool in service.catalogue.tools.items() if tool.hidden)
            self.metrics.hidden_text_found(service.name, len(hidden))
            if hidden - watched.hidden:
                about = {"upstream": service.name, "tools": sorted(hidden)[:MAX_TOLD]}
                log.warning("texts of tools contain hidden characters", extra=about)
            watched.hidden = hidden
        # Seen by a caller, but not in a list that the sidecar fetched itself, or not yet.
        for tool, drift in _drifts(seen, _reference(watched, service, now)):
            if len(watched.drifts) < MAX_DRIFTS:
                watched.drifts.setdefault(tool, drift)
        if watched.drifts != watched.told and self.clock_mono() >= watched.next_at:
            await self._tell(service, watched, now)

    async def _tell(self, service: Service, watched: _Watched, now: Snapshot) -> None:
        fresh = {tool: drift for tool, drift in watched.drifts.items() if watched.told.get(tool) != drift}
        watched.told, watched.next_at = dict(watched.drifts), self.clock_mono() + TELL_EVERY_S
        self.metrics.pins_mismatched(service.name, len(watched.drifts))
        server, approved = service.name, service.name in now.pins.servers
        held: dict[str, object] = {"upstream": server, "pinned": approved, "refused": server in now.required}
        for tool, drift in islice(fresh.items(), MAX_TOLD):
            digests = {"old_digest": drift.old or None, "new_digest": drift.new or None}
            await self._put_on_record({**held, "tool": tool, **digests, "members": drift.members})
        if len(fresh) > MAX_TOLD:
            await self._put_on_record({**held, "more": len(fresh) - MAX_TOLD})

    async def _put_on_record(self, facts: Mapping[str, object]) -> None:
        log.warning("a tool differs from its pin, or from the first list", extra=dict(facts))
        with suppress(ConfigError):  # logged; calls of the tool are refused anyway, and each refusal is recorded
            await self.witness("pin-drift", "sidecar", **facts)


def _mode(now: Snapshot, service: Service) -> Mode:
    return now.pins.mode(service.name, service.definition.pins)


def _reference(watched: _Watched, service: Service, now: Snapshot) -> Mapping[str, Defined] | None:
    """The definitions that the server's tools are compared with; None if drift is not watched."""
    mode, pinned = _mode(now, service), now.pins.servers.get(service.name)
    if mode == "off":
        return None
    return watched.first if pinned is None and mode == "warn" else pinned or {}


def _drifts(listed: Mapping[str, Definition], reference: Mapping[str, Defined] | None) -> Iterator[tuple[str, Drift]]:
    if reference is None:
        return
    for name, definition in listed.items():
        if (drift := drift_between(reference.get(name), definition)) is not None:
            yield name, drift

"""What do the operator's files say, all of them together, now?

From sidecar.yaml, models, rows, budgets and keys to one `Snapshot`: at the start, for a check, and for each reload.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from sidecar.egress import fetch
from sidecar.identity import Identity
from sidecar.limits import open_store
from sidecar.policy import Engine
from sidecar.settings import Settings, load_settings
from sidecar.snapshot import Service, Snapshot, snapshot_from
from sidecar.upstreams import Catalogue, upstream_from


def check_files(path: Path, environ: Mapping[str, str]) -> Engine:
    """Everything that a start would check, without taking an address or writing a file. Raises ConfigError."""
    settings = load_settings(path, environ)
    open_store(settings.store.url, time.time)
    return first_snapshot(settings, base_url="").engine


def services_from(settings: Settings, known: Mapping[str, Service]) -> Mapping[str, Service]:
    """The servers behind us. Those whose definition is the same in `known` go on, with what was learned of them."""
    services = {}
    for name, definition in settings.upstreams.items():
        old, new = known.get(name), _service(settings, name)
        same = old is not None and old.definition == definition and old.upstream.shows_the_same_as(new.upstream)
        services[name] = old if old is not None and same else new
    return services


def _service(settings: Settings, name: str) -> Service:
    definition = settings.upstreams[name]
    assert definition.mcp is not None
    upstream = upstream_from(name, definition, max_response_bytes=settings.server.max_response_bytes)
    catalogue = Catalogue(upstream)
    return Service(
        name, definition, upstream, catalogue, definition.mcp.timeout_s, definition.anonymous, definition.scopes
    )


def first_snapshot(settings: Settings, base_url: str) -> Snapshot:
    """What serves from the start. Raises ConfigError."""
    identity = Identity.from_settings(settings, time.time, fetch)
    services = services_from(settings, {})
    return snapshot_from(settings, identity=identity, services=services, base_url=base_url)


async def next_snapshot(path: Path, environ: Mapping[str, str], old: Snapshot) -> Snapshot:
    """Built aside, off the loop; nothing of the old one changes until all of the new one is good."""
    new = await asyncio.to_thread(_read_snapshot, path, environ, old)
    await new.identity.start(old.identity)
    return new


def _read_snapshot(path: Path, environ: Mapping[str, str], old: Snapshot) -> Snapshot:
    settings = load_settings(path, environ)
    identity = Identity.from_settings(settings, time.time, fetch)
    services = services_from(settings, old.services)
    new = snapshot_from(settings, identity=identity, services=services, base_url=old.base_url)
    return replace(new, bounds=old.bounds)  # `server` needs a restart, all of it

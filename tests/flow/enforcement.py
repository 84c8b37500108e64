"""Enforcement points that ask a running sidecar for decisions, and callers whose requests they ask about."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.flow.idp import SETTINGS, Idp
from tests.flow.world import World, world

SECRET = "3f1c9a5be27d48069a4fd0c81b7e65d23f1c9a5be27d4806"
NAME = "edge"
KEY = {"X-PDP-Key": SECRET}
ADMIN = f'admin: {{listen: "127.0.0.1:0", credentials: [{{role: pdp, name: {NAME}, secret_path: pdp.secret}}]}}\n'


@asynccontextmanager
async def asked_world(
    folder: Path,
    pdp: str = "{charges: ask}",
    *,
    callers: tuple[str, ...] = ("nhi:planner",),
    files: Mapping[str, str] | None = None,
    settings: str = "",
    upstreams: str = "",
    identity: str = "",
    idp: Idp | None = None,
    **written: Any,
) -> AsyncIterator[tuple[World, Mapping[str, str]]]:
    """A sidecar with the section `pdp`, whose enforcement point `edge` has `SECRET`; and the API keys of `callers`, by
    principal. `World.admin_url` is where it asks. `upstreams` are lines of further ones, `identity` of that
    section."""
    idp = idp or Idp()
    keys = {caller: idp.api_key(caller) for caller in callers}
    given = {**idp.files(), "pdp.secret": SECRET, **(files or {})}
    whole = f"{upstreams}{SETTINGS}{identity}{ADMIN}pdp: {pdp}\n{settings}"
    async with world(folder, settings=whole, files=given, principal="", **written) as running:
        yield running, keys


def decisions(running: World) -> list[dict[str, Any]]:
    """The audit records of decisions for enforcement points."""
    return [record for record in running.records() if record["enforcement_point"]]

"""Builds an MCP upstream from its settings."""

from __future__ import annotations

from typing import Any

from sidecar.errors import SettingsError, fault_in
from sidecar.http.client import DIRECT, Egress
from sidecar.settings.programs import environment_of, executable_of
from sidecar.settings.upstreams import McpUpstream, UpstreamSettings
from sidecar.upstreams.credentials.from_settings import source_from
from sidecar.upstreams.credentials.signed_tokens import NO_SIGNER, TokenSigner
from sidecar.upstreams.http_address import HttpAddress
from sidecar.upstreams.mcp.legacy_sse import SseUpstream
from sidecar.upstreams.mcp.line_sessions import LineBounds
from sidecar.upstreams.mcp.stdio import ProgramUpstream
from sidecar.upstreams.mcp.streamable_http import HttpUpstream
from sidecar.upstreams.mcp.transport import McpTransport
from sidecar.upstreams.mcp.transport_detection import DetectingUpstream
from sidecar.upstreams.processes.launcher import Processes, Program


def upstream_from(
    name: str,
    section: UpstreamSettings,
    *,
    max_response_bytes: int,
    processes: Processes,
    signer: TokenSigner = NO_SIGNER,
    egress: Egress = DIRECT,
) -> McpTransport:
    """Builds an upstream as configured, its secrets read. Nothing is opened or started yet. Raises SettingsError."""
    mcp = section.mcp
    if mcp is None or (mcp.command is None and mcp.url is None):
        raise ValueError("the settings promise an MCP upstream its URL or its command")
    if mcp.url is None:
        return ProgramUpstream(
            name,
            _program(name, mcp, processes),
            processes,
            timeout_s=mcp.timeout_s,
            max_response_bytes=max_response_bytes,
            shared=mcp.shared,
            bounds=LineBounds(mcp.max_programs_per_caller, mcp.max_programs, mcp.idle_s),
        )
    address = HttpAddress(
        mcp.url,
        credential=source_from(section.credential, mcp.url, signer, egress=egress),
        headers=tuple(mcp.headers.items()),
        max_connections=mcp.max_connections,
        egress=egress,
    )
    bounds: dict[str, Any] = {"timeout_s": mcp.timeout_s, "max_response_bytes": max_response_bytes}
    if mcp.transport == "http":
        return HttpUpstream(name, address, **bounds)
    sse = SseUpstream(name, address, **bounds)
    return sse if mcp.transport == "sse" else DetectingUpstream(name, address, sse, **bounds)


def _program(name: str, mcp: McpUpstream, processes: Processes) -> Program:
    named, command = mcp.all_env(), mcp.command or ""
    path = executable_of(command, named, processes.environ)
    if path is None:
        place = f"upstreams.{name}.mcp.command"
        raise SettingsError([fault_in(place, f"there is no program {command}", code="S117")])
    return Program(
        path=path,
        argv=(command, *mcp.args),
        env=environment_of(named, processes.environ),
        cwd=None if mcp.cwd is None else str(mcp.cwd.absolute()),
    )

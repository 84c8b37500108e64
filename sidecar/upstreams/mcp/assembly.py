"""Builds an MCP upstream from its transport and the layers around it."""

from __future__ import annotations

from sidecar.settings import upstreams as settings
from sidecar.upstreams.credentials import NO_SIGNER, TokenSigner, source_from
from sidecar.upstreams.mcp.legacy_sse import sse_upstream_from
from sidecar.upstreams.mcp.stdio import stdio_upstream_from
from sidecar.upstreams.mcp.streamable_http import http_upstream_from
from sidecar.upstreams.mcp.transport import McpTransport
from sidecar.upstreams.mcp.transport_detection import DetectingUpstream
from sidecar.upstreams.processes import Processes


def upstream_from(
    name: str,
    section: settings.UpstreamSettings,
    *,
    max_response_bytes: int,
    processes: Processes,
    signer: TokenSigner = NO_SIGNER,
) -> McpTransport:
    """An upstream as configured, its secrets read. Nothing is opened or started yet. Raises SettingsError."""
    if section.mcp is not None and section.mcp.command is not None:
        return stdio_upstream_from(name, section, max_response_bytes=max_response_bytes, processes=processes)
    url = "" if section.mcp is None else section.mcp.url or ""
    credential = source_from(section.credential, url, signer)
    transport = "auto" if section.mcp is None else section.mcp.transport
    if transport == "sse":
        return sse_upstream_from(name, section, credential, max_response_bytes=max_response_bytes)
    http = http_upstream_from(name, section, credential, max_response_bytes=max_response_bytes)
    if transport == "http":
        return http
    sse = sse_upstream_from(name, section, credential, max_response_bytes=max_response_bytes)
    return DetectingUpstream(http, sse)

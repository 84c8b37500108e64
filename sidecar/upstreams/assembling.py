"""Which parts make up one upstream, from its wire to what the request's way sees?"""

from __future__ import annotations

from sidecar.processes import Processes
from sidecar.settings import upstreams as settings
from sidecar.upstreams.credentials import NO_SIGNER, Signer, source_from
from sidecar.upstreams.detecting import DetectingUpstream
from sidecar.upstreams.http import http_upstream_from
from sidecar.upstreams.legacy_sse import sse_upstream_from
from sidecar.upstreams.stdio import stdio_upstream_from
from sidecar.upstreams.transport import Upstream


def upstream_from(
    name: str,
    section: settings.Upstream,
    *,
    max_response_bytes: int,
    processes: Processes,
    signer: Signer = NO_SIGNER,
) -> Upstream:
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

"""Which parts make up one upstream, from its wire to what the request's way sees?"""

from __future__ import annotations

from sidecar.settings import upstreams as settings
from sidecar.upstreams.http import http_upstream_from
from sidecar.upstreams.transport import Upstream


def upstream_from(name: str, section: settings.Upstream, *, max_response_bytes: int) -> Upstream:
    """An upstream as configured, its secrets read. Nothing is opened yet. Raises SettingsError."""
    return http_upstream_from(name, section, max_response_bytes=max_response_bytes)

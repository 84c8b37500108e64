"""How is one upstream, asked here and now?

The health report of `sidecar mcp test`: a conversation of our own, begun, used once and ended, without anything that a
running sidecar knows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from sidecar.errors import Refusal
from sidecar.settings.moments import rfc3339
from sidecar.upstreams.listing import Enquiry
from sidecar.upstreams.tools import tools_from
from sidecar.upstreams.transport import Upstream
from sidecar.upstreams.wired import WiredUpstream

Health = Literal["healthy", "degraded", "unhealthy"]
HEALTHY: Final = "healthy"
DEGRADED: Final = "degraded"
UNHEALTHY: Final = "unhealthy"
STDERR_LINES: Final = 20


@dataclass(frozen=True, slots=True)
class HealthReport:
    """What one look showed. `degraded`: it greets us, and yet not all of it can be used. Latency is in seconds, of the
    handshake; `tools` is None where they could not be listed; `timestamp` is in seconds since the epoch; `stderr` is
    the end of what a program wrote to its error output."""

    tool_name: str
    timestamp: float
    status: Health
    handshake_success: bool
    handshake_latency_s: float
    error_message: str = ""
    server_capabilities: tuple[str, ...] = ()
    protocol_version: str = ""
    server: str = ""
    tools: int | None = None
    stderr: tuple[str, ...] = ()

    def plain(self) -> dict[str, Any]:
        """In values that JSON has."""
        return {
            "tool_name": self.tool_name,
            "timestamp": rfc3339(self.timestamp),
            "status": self.status,
            "handshake_success": self.handshake_success,
            "handshake_latency_ms": round(self.handshake_latency_s * 1000, 3),
            "error_message": self.error_message or None,
            "server_capabilities": list(self.server_capabilities),
            "protocol_version": self.protocol_version or None,
            "server": self.server or None,
            "tools": self.tools,
            "stderr": list(self.stderr),
        }


async def report_on(upstream: Upstream, *, now_s: float) -> HealthReport:
    """Begin a conversation, list the tools, end it. Whatever fails is in the report."""
    report = await _asked(upstream, now_s)
    if isinstance(upstream, WiredUpstream):
        await upstream.close()  # then all that it wrote is read
        return replace(report, stderr=tuple(upstream.last_words()[-STDERR_LINES:]))
    return report


async def _asked(upstream: Upstream, now_s: float) -> HealthReport:
    enquiry = Enquiry(upstream)
    begun_at = enquiry.clock_mono()
    try:
        await enquiry.probe(upstream.timeout_s)
    except Refusal as refusal:
        took_s = enquiry.clock_mono() - begun_at
        return HealthReport(upstream.name, now_s, UNHEALTHY, False, took_s, sentence(refusal))
    greeting = enquiry.greeting
    assert greeting is not None
    tools, trouble = await _tools(enquiry)
    await enquiry.close()
    return HealthReport(
        upstream.name,
        now_s,
        DEGRADED if trouble else HEALTHY,
        True,
        greeting.took_s,
        trouble,
        greeting.capabilities,
        greeting.version,
        greeting.server,
        tools,
    )


async def _tools(enquiry: Enquiry) -> tuple[int | None, str]:
    """How many there are, and what keeps them, or some of them, from being used."""
    try:
        tools = tools_from((await enquiry.list_tools()).entries, {}).values()
    except Refusal as refusal:
        return None, sentence(refusal)
    unusable = sorted(tool.name for tool in tools if tool.schema is None)
    return len(tools), f"no schema can be used of {', '.join(unusable)}" if unusable else ""


def sentence(refusal: Refusal) -> str:
    """What went wrong, in our words."""
    return f"{refusal.answer.message}: {refusal.detail}" if refusal.detail else refusal.answer.message

"""Makes the report of `sidecar mcp test`: begins a conversation with one upstream, lists its offers, and ends it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from sidecar.errors import Refusal
from sidecar.protocols.mcp.messages import LeftOut, unnamed_in
from sidecar.settings.timestamps import rfc3339
from sidecar.upstreams.mcp.listing import OwnConversation
from sidecar.upstreams.mcp.stdio import ProgramUpstream
from sidecar.upstreams.mcp.tools import tools_from
from sidecar.upstreams.mcp.transport import McpTransport

UNHEALTHY: Final = "unhealthy"
STDERR_LINES: Final = 20
MAX_NAMED: Final = 10  # in one sentence


@dataclass(frozen=True, slots=True)
class HealthReport:
    """One check. `degraded`: the handshake succeeds, but some entries cannot be used; `tools` is None if they could not
    be listed; `stderr` is the end of a program's error output; `left_out` are entries that no caller can use, with
    reasons."""

    tool_name: str
    timestamp: str
    status: Literal["healthy", "degraded", "unhealthy"]
    handshake_success: bool
    handshake_latency_ms: float
    error_message: str | None = None
    server_capabilities: tuple[str, ...] = ()
    protocol_version: str | None = None
    server: str | None = None
    tools: int | None = None
    left_out: tuple[LeftOut, ...] = ()
    stderr: tuple[str, ...] = ()

    def plain(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self.__slots__}
        return {**values, "left_out": [one._asdict() for one in self.left_out]}


async def report_on(upstream: McpTransport, *, now_s: float) -> HealthReport:
    """Begins a conversation, lists what the upstream offers, and ends it. Failures are part of the report. A program is
    ended too."""
    report = await _asked(upstream, rfc3339(now_s))
    if isinstance(upstream, ProgramUpstream):
        await upstream.close()  # afterwards everything that it wrote has been read
        return replace(report, stderr=tuple(upstream.tail.lines(STDERR_LINES)))
    return report


async def _asked(upstream: McpTransport, now: str) -> HealthReport:
    enquiry = OwnConversation(upstream)
    begun_at = enquiry.clock_mono()
    try:
        await enquiry.probe(upstream.timeout_s)
    except Refusal as refusal:
        took_ms = round((enquiry.clock_mono() - begun_at) * 1000, 3)
        return HealthReport(upstream.name, now, UNHEALTHY, False, took_ms, sentence(refusal))
    greeting, tools, trouble = enquiry.greeting, None, ""
    left_out: tuple[LeftOut, ...] = ()
    assert greeting is not None
    try:
        entries = (await enquiry.list_tools()).entries
        known = tools_from(entries, {}).values()
        unusable = sorted(LeftOut("tool", one.name, one.quarantine_reason) for one in known if one.schema is None)
        tools, left_out = len(known), (*unusable, *unnamed_in("tools", entries))
        async for kind, entries in enquiry.offers():
            left_out += unnamed_in(kind, entries)
    except Refusal as refusal:
        trouble = sentence(refusal)
    await enquiry.close()
    if left_out and not trouble:
        trouble = f"not usable: {', '.join(f'{one.kind} {one.name!r}' for one in left_out[:MAX_NAMED])}"
    return HealthReport(
        upstream.name,
        now,
        "degraded" if trouble else "healthy",
        True,
        round(greeting.took_s * 1000, 3),
        trouble or None,
        greeting.capabilities,
        greeting.version,
        greeting.server or None,
        tools,
        left_out,
    )


def sentence(refusal: Refusal) -> str:
    return f"{refusal.answer.message}: {refusal.detail}" if refusal.detail else refusal.answer.message

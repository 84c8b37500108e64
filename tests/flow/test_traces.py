"""Do the spans of sidecars arrive whole at a receiver, and does nothing else depend on it?"""

import signal
from typing import Any

import aiohttp
import pytest

from sidecar.cli.free_ports import free_ports
from tests.flow.process import Served, served
from tests.flow.world import ACCEPT, STATELESS, Upstream, listening, stateless

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, UNSAMPLED = (f"00-{TRACE}-{PARENT}-{flags}" for flags in ("01", "00"))
RULES = "#: id=all\np, anonymous, tool:github/*, use, -, -, -, allow\n"
SECRET = "acme/site"  # an argument
OPEN = {"rules": RULES, "upstream_settings": "anonymous: true"}


async def call(url: str, headers: dict[str, str] | None = None, **meta: str) -> dict[str, Any]:
    asked = {"name": "search_code", "arguments": {"repo": SECRET}, "_meta": meta}
    around = {"Mcp-Method": "tools/call", "Mcp-Name": "search_code", "MCP-Protocol-Version": STATELESS}
    sent = {"Accept": ACCEPT, **around, **(headers or {})}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{url}/mcp/github", json=stateless("tools/call", asked), headers=sent) as response,
    ):
        assert response.status == 200, await response.text()
        answer: dict[str, Any] = await response.json()
        return answer


async def ended(*running: Served) -> None:
    for one in running:
        one.signal(signal.SIGTERM)
    for one in running:
        assert await one.ended() == 0, one.log()


async def test_without_a_receiver_only_spans_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.1")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
    async with listening(Upstream().handle) as base, served(f"{base}/mcp", **OPEN) as one:
        assert "result" in await call(one.url)
        assert "result" in await call(one.url)
        await ended(one)
        (record, *_) = [record for record in one.records() if record["tool"]]
        assert len(record["trace_id"]) == 32  # a trace that began here


async def test_while_it_is_off_nothing_of_it_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    stub = Upstream()
    async with listening(stub.handle) as base, served(f"{base}/mcp", is_fresh=True, **OPEN) as one:
        await call(one.url, {"traceparent": SAMPLED})
        assert stub.seen[-1][0]["traceparent"] == SAMPLED
        imported = [line for line in one.log().splitlines() if line.startswith("import time:")]
        assert any("sidecar.gateway.pipeline" in line for line in imported)
        assert [line for line in imported if "opentelemetry" in line or "request_spans" in line] == []

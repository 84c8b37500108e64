"""Spans arrive at an OTLP receiver."""

import logging
from http.server import HTTPServer
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from oteltest.sink import HttpSink

from sidecar.cli.free_ports import free_ports
from tests.flow.process import served
from tests.flow.world import ACCEPT, STATELESS, Upstream, listening, stateless, until


class Heard:
    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.metrics: list[Any] = []

    def handle_trace(self, request: Any, headers: Any) -> None:
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans += scope.spans

    def handle_metrics(self, request: Any, headers: Any) -> None:
        self.metrics.append(request)

class Loopback(HTTPServer):
    def __init__(self, address, handler):
        super().__init__(("127.0.0.1", address[1]), handler)

async def test_spans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard, (port,) = Heard(), free_ports(1)
    monkeypatch.setattr("oteltest.sink.HTTPServer", Loopback)
    sink = HttpSink(heard, logging.getLogger("sink"), port)
    sink.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    stub = Upstream()
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with listening(stub.handle) as base, aiohttp.ClientSession() as http:
        rules = "p, anonymous, tool:github/*, use, -, -, -, allow\n"
        async with served(f"{base}/mcp", rules=rules, upstream_settings="anonymous: true") as one:
            for repo in ("acme/site", 5):
                message = stateless("tools/call", {"name": "search_code", "arguments": {"repo": repo}})
                around = {"Mcp-Method": "tools/call", "Mcp-Name": "search_code", "MCP-Protocol-Version": STATELESS}
                sent = {"Accept": ACCEPT, **around, "traceparent": parent}
                async with http.post(f"{one.url}/mcp/github", json=message, headers=sent) as response:
                    print(response.status, await response.text())
            print(stub.seen[-1])
            await until(lambda: len(heard.spans) >= 3)
            one.signal(15)
            await one.ended()
            print(one.log())
            print([r["trace_id"] for r in one.records()])
    sink.stop()
    for span in heard.spans:
        print(span)
    print(heard.metrics[-1])
    assert 0

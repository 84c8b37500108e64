"""The spans of three sidecars in a row are one tree."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from sidecar.cli.free_ports import free_ports
from tests.flow.otlp_sink import attributes, otlp_sink
from tests.flow.process import Served, served
from tests.flow.test_traces import OPEN, PARENT, SAMPLED, SECRET, TRACE, UNSAMPLED, call, ended
from tests.flow.world import STATELESS, Upstream, listening


async def test_the_spans_of_three_sidecars_in_a_row_are_one_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent's trace comes in `_meta`, that of its transport in a header; both of the last sidecar reach the
    server. The audit records of all three name the trace."""
    stub, row = Upstream(), ("first", "second", "third")
    with otlp_sink(monkeypatch) as sink:
        async with AsyncExitStack() as stack:
            server = f"{await stack.enter_async_context(listening(stub.handle))}/mcp"
            ports = free_ports(3)
            urls = [*(f"http://127.0.0.1:{port}/mcp/github" for port in ports[1:]), server]

            async def start(name: str, port: int, url: str) -> Served:
                monkeypatch.setenv("OTEL_SERVICE_NAME", name)  # read before the process is waited for
                listen = f'server: {{listen: "127.0.0.1:{port}"}}\n'
                return await stack.enter_async_context(served(url, settings=listen, **OPEN))

            running = await asyncio.gather(*map(start, row, ports, urls))
            transport = f"00-{TRACE}-{'1' * 16}-01"
            await call(running[0].url, {"traceparent": transport, "baggage": "who=alice"}, traceparent=SAMPLED)
            await call(running[0].url, {"traceparent": UNSAMPLED})  # of which no span is sent
            await ended(*running)
            assert {record["trace_id"] for one in running for record in one.records() if record["tool"]} == {TRACE}
            assert not any('"level":"error"' in one.log() for one in running)
    tree = {(span.service, span.kind): span for span in sink.spans if span.name == "tools/call search_code"}
    assert len([span for span in sink.spans if span.name in {one.name for one in tree.values()}]) == len(tree) == 6
    parent, above = PARENT, [(name, kind) for name in row for kind in ("SERVER", "CLIENT")]
    for key in above:
        span = tree[key]
        assert (span.trace_id, span.parent_id) == (TRACE, parent), key
        parent = span.span_id
        assert span.facts["mcp.method.name"] == "tools/call"
        assert span.facts["gen_ai.operation.name"] == "execute_tool"
        assert span.facts["gen_ai.tool.name"] == "search_code"
        assert span.facts["mcp.protocol.version"] == STATELESS
        assert span.facts["jsonrpc.request.id"] == "1"
        assert (span.facts["network.transport"], span.facts["network.protocol.name"]) == ("tcp", "http")
        assert ("server.port" in span.facts) == (span.kind == "CLIENT")
        assert ("client.port" in span.facts) == (span.kind == "SERVER")
        assert span.scope.startswith("https://opentelemetry.io/schemas/")
        assert not span.error
        assert SECRET not in repr(span)
    assert tree["first", "SERVER"].links == ("1" * 16,)
    assert tree["first", "SERVER"].events["sidecar.decision"]["sidecar.decision.rules"] == ["all"]
    headers, message = next(one for one in stub.seen if one[1]["method"] == "tools/call")
    (*_, (unsampled, _)) = stub.seen
    last = f"00-{TRACE}-{tree['third', 'CLIENT'].span_id}-01"
    assert (headers["traceparent"], message["params"]["_meta"]["traceparent"]) == (last, last)
    assert "baggage" not in headers
    assert unsampled["traceparent"].startswith(f"00-{TRACE}-")
    assert unsampled["traceparent"].endswith("-00")
    # Metrics, once at the end: our own series, and those of the conventions.
    requests = sink.metrics["sidecar_requests_total"].sum
    assert requests.is_monotonic
    assert sum(point.as_double for point in requests.data_points if attributes(point)["method"] == "tools/call") == 2
    (durations,) = sink.metrics["sidecar_request_duration_seconds"].histogram.data_points[:1]
    assert len(durations.bucket_counts) == len(durations.explicit_bounds) + 1
    for side in ("server", "client"):
        points = sink.metrics[f"mcp.{side}.operation.duration"].histogram.data_points
        (point,) = [one for one in points if attributes(one)["mcp.method.name"] == "tools/call"]
        assert point.count == 2
        assert point.exemplars[0].trace_id.hex() == TRACE

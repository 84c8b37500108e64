"""Where do tests get an OpenTelemetry receiver from?

A real HTTP server in a thread of its own, which reads what it gets with the official messages of OTLP.
"""

import asyncio
import gzip
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse

PROTOBUF = "application/x-protobuf"
Answer = Callable[[], web.Response]


def taken(**partial: Any) -> web.Response:
    """As a receiver says that it took all, or all but some."""
    said = ExportLogsServiceResponse()
    for name, value in partial.items():
        setattr(said.partial_success, name, value)
    return web.Response(body=said.SerializeToString(), content_type=PROTOBUF)


class Receiver:
    """`requests` are what it read, `headers` what came with them. `answers` are told first, then `taken()`; one that
    is no 2xx keeps nothing. While `go` is not set, it reads and says nothing."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.tls = tls
        self.requests: list[ExportLogsServiceRequest] = []
        self.headers: list[Mapping[str, str]] = []
        self.attempts = 0
        self.answers: list[Answer] = []
        self.go = threading.Event()
        self.go.set()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1/logs"

    @property
    def logs(self) -> list[Any]:
        """Every log record, in order."""
        return [
            log
            for request in self.requests
            for resource in request.resource_logs
            for scope in resource.scope_logs
            for log in scope.log_records
        ]

    @property
    def lines(self) -> list[bytes]:
        """What evidence came, line by line."""
        return [log.body.string_value.encode() for log in self.logs]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.attempts += 1
        while not self.go.is_set():
            await asyncio.sleep(0.005)
        answer = self.answers.pop(0)() if self.answers else taken()
        if answer.status < 300:
            if request.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body
            self.headers.append(dict(request.headers))
            self.requests.append(ExportLogsServiceRequest.FromString(body))
        return answer


@contextmanager
def receiving(receiver: Receiver | None = None) -> Iterator[Receiver]:
    """A receiver for as long as the block lasts; one that is given serves again at its port."""
    one = receiver or Receiver()
    ready, loop = threading.Event(), asyncio.new_event_loop()
    over = asyncio.Event()

    async def serve() -> None:
        runner = web.ServerRunner(web.Server(one.handle), shutdown_timeout=0.1)  # type: ignore[arg-type]
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", one.port, reuse_address=True, ssl_context=one.tls).start()
        one.port = runner.addresses[0][1]
        ready.set()
        await over.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert ready.wait(5)
    try:
        yield one
    finally:
        one.go.set()
        loop.call_soon_threadsafe(over.set)
        thread.join(5)
        loop.close()

"""What does a proxy cost that asks no question?

aiohttp's server and aiohttp's client and nothing between: the measure for what the sidecar adds. As fast as it can be
made with the library's public means: the low-level server, no routing, no cookies, no access log, no decompression.
`python -m bench.passthrough PORT UPSTREAM_URL [uvloop]`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable

import uvloop
from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector, web

_HOP_BY_HOP = ("Host", "Connection", "Content-Length", "Transfer-Encoding")
_TIMEOUT = ClientTimeout(total=30)


def forward(client: ClientSession, url: str) -> Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]:
    """A handler that sends every request on to `url`."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        headers = request.headers.copy()
        for name in _HOP_BY_HOP:
            headers.popall(name, None)
        body = await request.read()
        async with client.request(request.method, url, headers=headers, data=body, allow_redirects=False) as answer:
            passed = {"Content-Type": answer.headers["Content-Type"]}
            return web.Response(status=answer.status, headers=passed, body=await answer.read())

    return handle


async def _serve(port: int, url: str) -> None:
    connector = TCPConnector(limit=0)
    async with ClientSession(
        connector=connector, timeout=_TIMEOUT, cookie_jar=DummyCookieJar(), auto_decompress=False
    ) as client:
        server = web.Server(forward(client, url), access_log=None)
        accepting = await asyncio.get_running_loop().create_server(server, "127.0.0.1", port)
        await accepting.serve_forever()


def main() -> None:
    """Serve on asyncio's own event loop, or on uvloop."""
    loop_factory = uvloop.new_event_loop if sys.argv[3:] == ["uvloop"] else None
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(_serve(int(sys.argv[1]), sys.argv[2]))


if __name__ == "__main__":
    main()

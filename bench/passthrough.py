"""What does a proxy cost that asks no question?

aiohttp's server and aiohttp's client and nothing between: the measure for what the sidecar adds. It comes in two forms:

    bare     what anybody would write: one route that takes everything, and answers passed on as they arrive, since an
             MCP server may answer with an event stream
    tuned    what cannot be beaten with the library's public means: the low-level server on uvloop, no router, no
             cookies, every answer held until it is whole; such a proxy breaks event streams

`python -m bench.passthrough bare|tuned PORT UPSTREAM_URL`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable

import uvloop
from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector, web
from multidict import CIMultiDict

HOP_BY_HOP = ("Host", "Connection", "Content-Length", "Transfer-Encoding")
Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


def streaming(client: ClientSession, url: str) -> Handler:
    """Passes every request on to `url`, and every answer back as it comes."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        headers = _passed(request)
        async with client.request(request.method, url, headers=headers, data=body, allow_redirects=False) as answer:
            response = web.StreamResponse(
                status=answer.status, headers={"Content-Type": answer.headers["Content-Type"]}
            )
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
            return response

    return handle


def buffering(client: ClientSession, url: str) -> Handler:
    """Passes every request on to `url`, and every answer back once it is whole."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        headers = _passed(request)
        async with client.request(request.method, url, headers=headers, data=body, allow_redirects=False) as answer:
            passed = {"Content-Type": answer.headers["Content-Type"]}
            return web.Response(status=answer.status, headers=passed, body=await answer.read())

    return handle


def _passed(request: web.BaseRequest) -> CIMultiDict[str]:
    headers = request.headers.copy()
    for name in HOP_BY_HOP:
        headers.popall(name, None)
    return headers


async def _serve_bare(port: int, url: str) -> None:
    async with ClientSession(timeout=ClientTimeout(total=30), auto_decompress=False) as client:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", streaming(client, url))
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        await asyncio.Event().wait()


async def _serve_tuned(port: int, url: str) -> None:
    async with ClientSession(
        connector=TCPConnector(limit=0),
        timeout=ClientTimeout(total=30),
        cookie_jar=DummyCookieJar(),
        auto_decompress=False,
    ) as client:
        server = web.Server(buffering(client, url), access_log=None)
        accepting = await asyncio.get_running_loop().create_server(server, "127.0.0.1", port)
        await accepting.serve_forever()


def main() -> None:
    """Serve until killed."""
    form, port, url = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    if form == "bare":
        asyncio.run(_serve_bare(port, url))
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve_tuned(port, url))


if __name__ == "__main__":
    main()
